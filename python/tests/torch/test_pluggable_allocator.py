"""The two functions that PyTorch loads for a MemPool: PyTorch finds them, and they serve segments on the emulated driver."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

LIBRARY = os.environ.get("BUCKETPOOL_LIBRARY")
BUILD = os.environ.get("BUCKETPOOL_BUILD", "")

pytestmark = pytest.mark.skipif(not LIBRARY, reason="BUCKETPOOL_LIBRARY names no library: run ./check --torch")


def test_pytorch_takes_the_functions():
    allocator = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "bp_torch_malloc", "bp_torch_free")
    assert allocator.allocator() is not None


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError):
        torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "bp_torch_malloc", "bp_torch_no_such_function")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_driver_an_allocation_is_null():
    library = ctypes.CDLL(LIBRARY)
    library.bp_torch_malloc.restype = ctypes.c_void_p
    library.bp_torch_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.bp_error_detail.restype = ctypes.c_char_p
    assert library.bp_torch_malloc(1 << 21, 0, None) is None
    assert b"BUCKETPOOL_TORCH_BYTES" in library.bp_error_detail()


SEGMENTS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
take, give = library.bp_torch_malloc, library.bp_torch_free
take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
give.restype, give.argtypes = None, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
MIB = 1 << 20
first, second = take(20 * MIB, 0, None), take(44 * MIB, 0, None)
assert first % (2 * MIB) == 0 and second == first + 20 * MIB, (first, second)
assert take(2 * MIB, 0, None) is None
give(first, 20 * MIB, 0, None)
assert take(2 * MIB, 0, None) == first
give(first, 2 * MIB, 0, None)
give(second, 44 * MIB, 0, None)
assert library.bp_torch_stop(0) == 0
print("served")
"""


def test_segments_on_the_emulated_driver():
    driver = os.path.join(BUILD, "tests", "fakes", "cuda")
    assert os.path.exists(os.path.join(driver, "libcuda.so.1"))
    done = subprocess.run([sys.executable, "-c", SEGMENTS, LIBRARY], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": driver, "BUCKETPOOL_TORCH_BYTES": "64m"})
    assert done.returncode == 0 and done.stdout == "served\n", done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_mem_pool(monkeypatch):
    monkeypatch.setenv("BUCKETPOOL_TORCH_BYTES", "256m")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(LIBRARY, "bp_torch_malloc", "bp_torch_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        first = torch.full((32 << 20,), 3, dtype=torch.uint8, device="cuda")
        second = torch.full((32 << 20,), 5, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    assert int(first.sum(dtype=torch.int64)) == 3 * (32 << 20) and int(second.sum(dtype=torch.int64)) == 5 * (32 << 20)
