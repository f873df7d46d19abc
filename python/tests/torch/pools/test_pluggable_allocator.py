# SPDX-License-Identifier: Apache-2.0
"""The functions that PyTorch loads for a MemPool, serving segments on the emulated driver."""

import os
import subprocess
import sys

import pytest
import torch

from bucketpool import InvalidArgument, NoDevice
from bucketpool._library import core
from bucketpool.torch.allocator import pluggable_allocator, serving
from devices import cpu_only

LIBRARY = core()._name
BUILD = os.environ.get("BUCKETPOOL_BUILD") or os.path.dirname(os.path.dirname(LIBRARY))


def test_pluggable_functions():
    assert pluggable_allocator().allocator() is not None


def test_unknown_function():
    with pytest.raises(AttributeError):
        torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "bp_torch_malloc", "bp_torch_no_such_function")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_driver():
    assert core().bp_torch_malloc(1 << 21, 0, None) is None
    assert b"BUCKETPOOL_TORCH_BYTES" in core().bp_error_detail()
    with pytest.raises(NoDevice):
        serving(bytes=1 << 21)


def test_serving_arguments():
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


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("how", ["call", "environment"])
def test_segments_on_emulated_driver(how):
    driver = os.path.join(BUILD, "tests", "fakes", "cuda")
    assert os.path.exists(os.path.join(driver, "libcuda.so.1"))
    bytes_of = {"BUCKETPOOL_TORCH_BYTES": "64m"} if how == "environment" else {}
    done = subprocess.run([sys.executable, "-c", SEGMENTS, how], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LD_LIBRARY_PATH": driver, **bytes_of})
    assert done.returncode == 0 and done.stdout == "served\n", done.stdout + done.stderr


SERVED = """
from support import small_plan
import bucketpool as bp
from bucketpool.torch.allocator import serving
MIB = 1 << 20


def slab_of(megabytes):
    \"\"\"A pool whose persistent request serves PyTorch.\"\"\"
    pool = bp.Pool(bp.Device.cuda(0), small_plan()[2], persistent_bytes=megabytes * MIB)
    return pool, pool.bind("", 0, "param", "fp8_e4m3", megabytes * MIB, placement="persistent")
"""

SEGMENTS_OF_A_POOL = SERVED + """
from bucketpool._library import core
pool, request = slab_of(64)
address, size = pool.address(request)
memory = serving(pool=pool, request=request)
segment = core().bp_torch_malloc(20 * MIB, 0, None)
assert address <= segment and segment + 20 * MIB <= address + size, (segment, address, size)
assert memory.statistics.live_bytes == 20 * MIB
core().bp_torch_free(segment, 20 * MIB, 0, None)
assert memory.statistics.live_bytes == 0
memory.stop()
print("served")
"""

TENSORS_OF_A_POOL = SERVED + """
import torch
torch.cuda.init()
for tensor in torch.full((20 << 20,), 9, dtype=torch.int32, device="cuda"), torch.zeros(1 << 20, device="cuda"):
    assert not bool((tensor == 8).all())  # the driver loads kernels at their first launch, and they take memory
torch.cuda._sleep(1)
del tensor
torch.cuda.empty_cache()
warm = bp.Device.cuda(0)
before = torch.cuda.mem_get_info()[0]
pool, request = slab_of(512)
address, size = pool.address(request)
assert before - torch.cuda.mem_get_info()[0] >= 512 * MIB
memory = serving(pool=pool, request=request)
with torch.cuda.use_mem_pool(memory.mem_pool):
    tensors = [torch.full((numel,), number, dtype=torch.int32, device="cuda")
               for number, numel in enumerate([5, 1 << 20, 20 << 20, 3333])]
    try:
        torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
        raise SystemExit("1 GiB came from a slab of 512 MiB")
    except torch.OutOfMemoryError:
        pass
outside = torch.zeros(1 << 20, device="cuda")
assert not address <= outside.data_ptr() < address + size
for number, tensor in enumerate(tensors):
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    assert address <= begin and end <= address + size, (begin, end, address, size)
    assert bool((tensor == number).all())
assert memory.statistics.live_segments > 0 and memory.statistics.refused > 0
side = torch.cuda.Stream()
with torch.cuda.use_mem_pool(memory.mem_pool), torch.cuda.stream(side):
    torch.cuda._sleep(3_000_000)
    late = torch.full((20 << 20,), 9, dtype=torch.int32, device="cuda")
side.synchronize()
assert bool((late == 9).all()) and address <= late.data_ptr() < address + size
del tensor, tensors, late
torch.cuda.synchronize()
torch.cuda.empty_cache()
memory.stop()
pool.close()
torch.cuda.synchronize()
after = torch.cuda.mem_get_info()[0]
assert after >= before - 64 * MIB, (before, after)
print("served")
"""


def run_served(code, **environment):
    done = subprocess.run([sys.executable, "-c", code, "pool"], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **environment})
    assert done.returncode == 0 and done.stdout == "served\n", done.stdout + done.stderr


@cpu_only("for machines without a GPU")
def test_segments_of_pool_on_emulated_driver():
    run_served(SEGMENTS_OF_A_POOL, LD_LIBRARY_PATH=os.path.join(BUILD, "tests", "fakes", "cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_pool():
    run_served(TENSORS_OF_A_POOL)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_mem_pool():
    with serving(bytes=256 << 20) as memory:
        with torch.cuda.use_mem_pool(memory.mem_pool):
            first = torch.full((32 << 20,), 3, dtype=torch.uint8, device="cuda")
            second = torch.full((32 << 20,), 5, dtype=torch.uint8, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        assert int(first.sum(dtype=torch.int64)) == 3 * (32 << 20) and int(second.sum(dtype=torch.int64)) == 5 * (
            32 << 20
        )
        assert memory.statistics.live_segments > 0
        del first, second
