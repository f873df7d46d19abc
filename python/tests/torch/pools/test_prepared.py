# SPDX-License-Identifier: Apache-2.0
"""Requests that are acquired in each step, and tensors over them, from the compiled binding and from ctypes."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch

import bucketpool as bp
from bucketpool._library import binding
from bucketpool.pool import Prepared
from bucketpool.torch.memory import tensors_of
from support import small_plan

CPU = torch.device("cpu")


@pytest.fixture(params=["compiled", "off"], autouse=True)
def path(request, monkeypatch):
    """Both implementations."""
    monkeypatch.setenv("BUCKETPOOL_BINDING", request.param)
    binding.cache_clear()
    if request.param == "compiled" and binding() is None:
        pytest.skip("the build has no binding")
    yield request.param
    binding.cache_clear()


class Served:
    """A pool with room for 1000 fp32 elements."""

    def __init__(self, dtype=torch.float32):
        self.device = bp.Device.host()
        _buckets, _schedule, plan = small_plan([4000, 4000])
        self.pool = bp.Pool(self.device, plan)
        self.stream = self.device.stream("compute")
        self.ends = []
        self.one = Prepared(self.pool, plan.find("u0", 0, "param"))
        self.tensor = tensors_of(self.one, dtype, CPU, self.ended)

    def ended(self):
        self.ends.append(threading.get_ident())
        self.one.release(self.stream)


def test_class(path):
    assert (type(Served().one).__module__ == "bucketpool._binding") == (path == "compiled")


def test_tensors():
    served = Served()
    tensor = served.tensor(served.stream, 1000)
    assert tensor.data_ptr() == served.pool.live()[0].address and tensor.shape == (1000,)
    assert tensor.dtype == torch.float32 and tensor.untyped_storage().nbytes() == 4000 and not tensor.requires_grad
    tensor.fill_(3)
    assert served.tensor(served.stream, 1000) is None  # one tensor at a time
    part = tensor[10:20]
    del tensor
    assert not served.ends and part.sum() == 30
    del part
    assert served.ends == [threading.get_ident()] and all(each.id != served.one.id for each in served.pool.live())
    assert served.tensor(served.stream, 10).shape == (10,)
    assert len(served.ends) == 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.int32,
                                   torch.float8_e4m3fn])
def test_dtypes(dtype):
    served = Served(dtype)
    tensor = served.tensor(served.stream, 100)
    assert tensor.dtype == dtype and tensor.shape == (100,)
    tensor.zero_()
    assert not tensor.to(torch.float32).any()


def test_plain_calls():
    served = Served()
    address = served.one.try_acquire(served.stream)
    other = served.device.stream("other")
    served.one.use(other)
    assert address == served.pool.live()[0].address and served.one.id == served.pool.live()[0].id
    served.one.release(served.stream)
    for call in (served.one.release, served.one.use):
        with pytest.raises(bp.ScheduleError, match="u0"):
            call(served.stream)
    other.close()
    with pytest.raises(bp.InvalidArgument, match="Stream is closed"):
        served.one.try_acquire(other)
    served.pool.close()
    for call in (served.one.try_acquire, served.one.use, served.one.release):
        with pytest.raises(bp.InvalidArgument, match="Pool is closed"):
            call(served.stream)


def test_end_on_another_thread():
    served = Served()
    held = [served.tensor(served.stream, 1000)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(served.ends) == 1 and served.ends != [threading.get_ident()]


def test_end_during_an_exception():
    served = Served()

    def failing():
        _tensor = served.tensor(served.stream, 1000)
        raise KeyError("of the frame")

    with pytest.raises(KeyError, match="of the frame"):
        failing()
    gc.collect()
    assert len(served.ends) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_error_at_the_end(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(str(error.exc_value)))
    served = Served()
    tensor = served.tensor(served.stream, 1000)
    served.one.release(served.stream)
    del tensor  # ended() releases once more
    assert len(seen) == 1 and "u0" in seen[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the release, of a closed pool
def test_memory_outlives_the_pool():
    served = Served()
    tensor = served.tensor(served.stream, 1000)
    tensor.fill_(2)
    committed = served.device.usage.committed_bytes
    served.pool.close()
    assert served.device.usage.committed_bytes == committed > 0 and tensor.sum() == 2000


def test_failing_import(path):
    """The request is released if no tensor can be made."""
    if path == "off":
        pytest.skip("makes tensors from addresses")
    served = Served()

    def fail(_capsule):
        raise ValueError("no tensor")

    served.one.serve_with(fail, 1, 0, 2, 32, served.ended)
    with pytest.raises(ValueError, match="no tensor"):
        served.tensor(served.stream, 1000)
    assert not served.pool.live() and not served.ends
    for arguments in ((), (served.stream,), (served.stream, "many"), (served.stream, 1 << 70)):
        with pytest.raises((TypeError, OverflowError)):
            served.tensor(*arguments)
    with pytest.raises(bp.InvalidArgument, match="stream: expected a Stream, got None"):
        served.tensor(None, 1000)
    with pytest.raises(bp.InvalidArgument, match="does not fit"):
        served.tensor(served.stream, 1 << 40)
    with pytest.raises(TypeError):
        type(served.one)(served.pool)
    assert not served.pool.live()


def test_references():
    """Nothing is left of tensors and errors, and cycles through the callback are collected."""
    served = Served()

    def turn():
        served.tensor(served.stream, 1000)
        try:
            served.one.use(served.stream)
        except bp.ScheduleError:
            pass

    objects = (None, served.pool, served.pool._handle, served.stream, served.stream._handle, served.one)
    turn()
    before = [sys.getrefcount(each) for each in objects]
    for _ in range(1000):
        turn()
    gc.collect()
    after = [sys.getrefcount(each) for each in objects]
    assert after[1:] == before[1:] and after[0] < before[0] + 500
    gone = weakref.ref(served.pool)
    del served, objects, turn
    gc.collect()
    assert gone() is None


def test_exit():
    """A tensor that lives until the interpreter exits."""
    code = ("import test_prepared as t\nserved = t.Served()\nkept = served.tensor(served.stream, 1000)\n"
            "import builtins; builtins.kept = kept; print('ok')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=os.path.dirname(__file__))
    assert done.returncode == 0 and done.stdout == "ok\n" and not done.stderr, done.stderr
