# SPDX-License-Identifier: Apache-2.0
"""Views as PyTorch tensors: bytes, dtypes, saved tensors, deletion during exceptions and at the interpreter's exit."""

import gc
import os
import subprocess
import sys

import pytest
import torch

import bucketpool as bp
from bucketpool import dlpack
from bucketpool._library import core
from bucketpool.torch.memory import tensor_at, with_index
from devices import CUDA, DEVICE, cpu_only, cuda_only, device_of_pools
from support import Served, committed

pytestmark = pytest.mark.usefixtures("on_device")


def served_on_device(**options):
    return Served(device_of_pools(), **options)


def exports(pool):
    return core().bp_pool_export_count(pool.handle)


@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16),
                                         ("fp64", torch.float64), ("int64", torch.int64), ("uint8", torch.uint8),
                                         ("bool", torch.bool), ("int32", torch.int32), ("complex64", torch.complex64)])
def test_dtypes(name, dtype):
    view = served_on_device(dtype=name, roles=("param",)).take(1)
    for tensor in (view.torch(), torch.from_dlpack(view), view.torch(dtype), view.torch(name)):
        assert (tensor.dtype, tensor.shape, tensor.device.type) == (dtype, (3000,), DEVICE)
        assert tensor.data_ptr() == view.address
    view.torch().fill_(1)
    assert view.torch().to(torch.float32 if dtype != torch.complex64 else dtype).sum() == 3000


def test_dtypes_of_one_buffer():
    view = served_on_device(dtype="fp8_e4m3", roles=("param",)).take(0)
    assert view.dtype == "uint8" and view.torch().dtype == torch.uint8
    eight = view.torch(torch.float8_e4m3fn)
    assert eight.dtype == view.torch("fp8_e4m3").dtype == torch.float8_e4m3fn
    eight.copy_(torch.full((1000,), 2.0))
    assert view.torch("fp8_e4m3").float().sum() == 2000
    with pytest.raises(bp.InvalidArgument, match="1001 bytes"):
        Served(dtype="uint8", sizes=(1001, 5), roles=("param",)).take(0).torch("bf16")
    with pytest.raises(bp.Unsupported, match="uint8"):
        view.torch("fp6_e2m3")


def test_saved_tensor_without_reference():
    """Autograd saves the bucket for backward; it is released, and the next unit has the memory at once."""
    served = served_on_device(sizes=(1000, 1000, 1000), dtype="fp32", policy="max", roles=("param",))
    view = served.take(0)
    weight, x = view.torch(), torch.ones(1000, requires_grad=True)
    weight.fill_(3)
    loss = (x * weight).sum()
    view.release()
    assert served.pool.live() == []
    other = served.take(2)
    assert other.address == weight.data_ptr()
    other.torch().fill_(5)
    loss.backward()
    assert set(x.grad.tolist()) == {5.0}  # what is there then: nothing was kept
    other.release()


def test_saved_tensor_after_close():
    served = served_on_device(dtype="fp32")
    device, pool, view = served.device, served.pool, served.take(0)
    part, whole = view.torch()[5:10], torch.from_dlpack(view)
    whole.fill_(2)
    view.release()
    pool.close()
    served.stream.close()
    del served, pool, view, whole
    assert committed(device) > 0
    assert part.sum() == 10
    del part
    assert committed(device) == 0


def test_tensor_deletion_in_exceptions():
    """A deleter that ran Python would lose the exception, and the interpreter with it."""
    served = served_on_device(dtype="fp32")
    view = served.take(0)

    def fail():
        raise KeyError("mine")

    for _ in range(50):
        with pytest.raises(KeyError, match="mine"):
            (torch.from_dlpack(view), view.torch(), fail())
    gc.collect()
    dlpack.take_back()
    served.pool.forget_tensors()
    assert exports(served.pool) == 0


def test_tensor_deletion_on_foreign_threads():
    """Autograd's threads drop what they saved."""
    served = served_on_device(dtype="fp32")
    view = served.take(0)
    view.torch().fill_(2)
    for _ in range(20):
        x = torch.ones(1000, requires_grad=True)
        ((x * view.torch()).sin() * view.torch()).sum().backward()
    del x
    gc.collect()
    dlpack.take_back()
    assert exports(served.pool) == 1  # of View.torch
    served.pool.forget_tensors()
    assert exports(served.pool) == 0


def test_tensors_of_one_view():
    """They are made once for each request and dtype, but autograd sees separate tensors."""
    served = served_on_device(dtype="fp32")
    view = served.take(0)
    first, second, bits = view.torch(), view.torch(), view.torch("uint8")
    assert first.data_ptr() == second.data_ptr() == bits.data_ptr() == view.address
    second.fill_(3)
    factor = torch.ones_like(first, requires_grad=True)
    product = factor * first  # saves first
    second.mul_(1)  # another tensor: first's version is as it was
    product.sum().backward()
    assert bool((factor.grad == 3).all())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product = factor * first
        first.mul_(2)
        product.sum().backward()
    view.release()
    again = served.take(0)
    assert again.torch().untyped_storage()._cdata == second.untyped_storage()._cdata
    assert not again.torch().requires_grad
    served.pool.close()
    second.fill_(1)  # keeps the memory


@cpu_only("shared memory is the host's")
def test_tensor_moved_away():
    """share_memory_() moves a storage; later tensors are over the pool again."""
    view = served_on_device(dtype="fp32").take(0)
    moved = view.torch()
    moved.share_memory_()
    assert moved.data_ptr() != view.address == view.torch().data_ptr()


@cpu_only("the device is made in another process")
def test_tensors_at_exit():
    code = ("import torch, sys\nfrom support import Served\nserved = Served(dtype='fp32')\nview = served.take(0)\n"
            "torch.kept = sys.kept = [view.torch(), torch.from_dlpack(view), view]\n"
            "g = (torch.ones(1000, requires_grad=True) * view.torch()).sum(); torch.graph = g\n"
            "served.pool.close()\n")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@cpu_only("test_logprob_device.py has the protocol of GPUs")
def test_dlpack_protocol():
    view = Served(dtype="bf16").take(0)
    assert view.__dlpack_device__() == (1, 0)
    assert torch.from_dlpack(view, device="cpu", copy=False).data_ptr() == view.address
    with pytest.raises(BufferError, match="copies through DLPack are unsupported"):
        torch.from_dlpack(view, copy=True)
    with pytest.raises(BufferError, match="leave dl_device out"):
        view.__dlpack__(dl_device=(2, 0))
    dlpack.take_back()
    view.release()
    with pytest.raises(bp.ScheduleError, match="was released"):
        torch.from_dlpack(view)


@cpu_only("GPUs do not pause at random")
def test_layer():
    """Gathers into views of one stream, compute from tensors after it, on a device that pauses at random."""
    served = Served(bp.Device.host(max_delay_us=100), dtype="fp32", roles=("param",))
    for step in range(3):
        for unit in range(5):
            view = served.take(unit)
            served.stream.fill(view, unit + step)
            found = view.torch("uint8")  # waits for the fill
            assert int(found.min()) == int(found.max()) == unit + step
            view.release()
    assert served.pool.statistics.acquires == 15


# ---- on any device ---------------------------------------------------------------------------------------------------


def test_shared_memory():
    """DLPack and, on GPUs, __cuda_array_interface__: one address, and what one writes the others read."""
    served = served_on_device(dtype="fp32", roles=("param",))
    view = served.take(1)
    by_dlpack, by_view = torch.from_dlpack(view), view.torch()
    by_address = tensor_at(view.address, 3000, torch.float32, with_index(torch.device(DEVICE)))
    tensors = [by_dlpack, by_view, by_address]
    if not CUDA:
        tensors.append(torch.from_numpy(pytest.importorskip("numpy").from_dlpack(view)))
    for number, writer in enumerate(tensors):
        assert (writer.data_ptr(), writer.shape, writer.dtype, writer.device.type) == (view.address, (3000,),
                                                                                       torch.float32, DEVICE)
        writer.copy_(torch.arange(3000.0) + number)
        assert all(torch.equal(reader, torch.arange(3000.0) + number) for reader in tensors)
    view.release()


def test_copy_of_tensors():
    """The library's stream copies between tensors of PyTorch and views, in order with PyTorch's stream."""
    served = served_on_device(dtype="fp32", roles=("param",))
    view, source, back = served.take(1), torch.randn(3000), torch.zeros(3000)
    torch.get_device_module(DEVICE).synchronize()
    served.stream.copy(view, source.data_ptr(), view.bytes)
    assert torch.equal(view.torch(), source)  # waits for the copy
    served.stream.copy(back.data_ptr(), view, view.bytes)
    served.stream.synchronize()
    assert torch.equal(back, source)
    view.release()


def test_consumer_streams():
    module = torch.get_device_module(DEVICE)
    served = served_on_device(dtype="uint8", sizes=(32 << 20, 1 << 20), roles=("param",))
    side, view = module.Stream(), served.take(0)
    for value in range(1, 21):
        served.stream.fill(view, 0)
        served.stream.fill(view, value)
        with module.stream(side if value % 2 else module.current_stream()):
            total = int(torch.from_dlpack(view).sum(dtype=torch.int64))
        assert total == value * (32 << 20)
    view.release()


@cuda_only("cupy is for GPUs")
def test_cupy():
    cupy = pytest.importorskip("cupy")
    view = served_on_device(dtype="fp32", roles=("param",)).take(1)
    array = cupy.from_dlpack(view)
    assert array.data.ptr == view.address
    array[...] = 7
    cupy.cuda.get_current_stream().synchronize()
    assert float(view.torch().sum()) == 7 * 3000
    imported = torch.as_tensor(array, device=DEVICE)  # by __cuda_array_interface__
    assert imported.data_ptr() == view.address
