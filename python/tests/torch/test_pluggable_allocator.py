"""The two functions that PyTorch loads for a MemPool: PyTorch finds them, and they serve segments on the emulated driver."""

import os
import subprocess
import sys

import pytest
import torch

from bucketpool import InvalidArgument, NoDevice
from bucketpool._library import core
from bucketpool.torch.allocator import pluggable_allocator, serving

LIBRARY = core()._name
BUILD = os.environ.get("BUCKETPOOL_BUILD") or os.path.dirname(os.path.dirname(LIBRARY))


def test_pytorch_takes_the_functions():
    assert pluggable_allocator().allocator() is not None


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError):
        torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "bp_torch_malloc", "bp_torch_no_such_function")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_driver_nothing_is_served():
    assert core().bp_torch_malloc(1 << 21, 0, None) is None
    assert b"BUCKETPOOL_TORCH_BYTES" in core().bp_error_detail()
    with pytest.raises(NoDevice):
        serving(bytes=1 << 21)


def test_what_serves_is_said_once():
    with pytest.raises(InvalidArgument, match="bytes"):
        serving()


SEGMENTS = """
import sys
from bucketpool import ScheduleError
from bucketpool._library import core
from bucketpool.torch.allocator import serving
MIB = 1 << 20
take, give = core().bp_torch_malloc, core().bp_torch_free
memory = serving(bytes=64 * MIB) if sys.argv[1] == "call" else None
first, second = take(20 * MIB, 0, None), take(44 * MIB, 0, None)
assert first % (2 * MIB) == 0 and second == first + 20 * MIB, (first, second)
assert take(2 * MIB, 0, None) is None
if memory:
    statistics = memory.statistics
    assert (statistics.live_segments, statistics.refused) == (2, 1) and "64" in statistics.because, statistics
    try:
        memory.stop()
        raise SystemExit("stopped")
    except ScheduleError as error:
        assert "2" in str(error), error
give(first, 20 * MIB, 0, None)
assert take(2 * MIB, 0, None) == first
give(first, 2 * MIB, 0, None)
give(second, 44 * MIB, 0, None)
if memory:
    memory.stop()
else:
    assert core().bp_torch_stop(0) == 0
print("served")
"""


@pytest.mark.parametrize("how", ["call", "environment"])
def test_segments_on_the_emulated_driver(how):
    driver = os.path.join(BUILD, "tests", "fakes", "cuda")
    assert os.path.exists(os.path.join(driver, "libcuda.so.1"))
    bytes_of = {"BUCKETPOOL_TORCH_BYTES": "64m"} if how == "environment" else {}
    done = subprocess.run([sys.executable, "-c", SEGMENTS, how], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": driver, **bytes_of})
    assert done.returncode == 0 and done.stdout == "served\n", done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_mem_pool():
    with serving(bytes=256 << 20) as memory:
        with torch.cuda.use_mem_pool(memory.mem_pool):
            first = torch.full((32 << 20,), 3, dtype=torch.uint8, device="cuda")
            second = torch.full((32 << 20,), 5, dtype=torch.uint8, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        assert int(first.sum(dtype=torch.int64)) == 3 * (32 << 20) and int(second.sum(dtype=torch.int64)) == 5 * (32 << 20)
        assert memory.statistics.live_segments > 0
        del first, second
