# SPDX-License-Identifier: Apache-2.0
"""The functions that PyTorch loads for a MemPool, on a GPU or on the emulated driver."""

import json
import os
import subprocess
import sys

import pytest
import torch

from bucketpool import InvalidArgument, NoDevice
from bucketpool._library import core
from bucketpool.torch.allocator import pluggable_allocator, serving
from devices import cpu_only
from places import ROOT

LIBRARY = core()._name
BENCH = os.path.join(ROOT, "bench", "torch")
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


def pool_tensors(path, *command, **environment):
    """Runs bench/torch/pool_tensors.py: how it ended, and its document."""
    done = subprocess.run([sys.executable, *command, "--json", path], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "BUCKETPOOL_BUILD": BUILD, **environment})
    assert path.exists(), done.stdout + done.stderr
    return done, json.loads(path.read_text())


def test_tensors_of_pool(tmp_path):
    """The program's checks: nobody holds memory after a round, and rounds after the first, which loads kernels, keep none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    done, document = pool_tensors(tmp_path / "report.json", os.path.join(BENCH, "pool_tensors.py"), "--device", device)
    assert done.returncode == 0 and len(document["checks"]) == 6, done.stdout + done.stderr
    rows = {row["name"]: row for row in document["figures"] if row["group"] == "round 3"}
    assert rows["Pool"]["slab_bytes"] >= 512 << 20 and rows["Pool.close"]["slab_bytes"] == 0
    assert rows["a tensor that does not fit"]["torch_reserved_bytes"] == rows["tensors in the pool"]["served_bytes"] > 80 << 20
    outside = rows["a tensor outside"]
    assert outside["torch_reserved_bytes"] - outside["served_bytes"] == 20 << 20  # PyTorch's segment of a tensor of 4 MiB


LEAK = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import pool_tensors
whole = pool_tensors.one_round

def leaks(ledger, kernels):
    whole(ledger, kernels)
    address = ctypes.c_uint64()
    assert ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(16 << 20)) == 0
    ledger.note("a leak", pool_tensors.LIBRARY)

pool_tensors.one_round = leaks
sys.exit(pool_tensors.main())
"""


@cpu_only("for machines without a GPU")
def test_lost_memory_of_pool_is_named(tmp_path):
    """Memory that each round loses is found, and the statement that keeps it."""
    fakes = [os.path.join(BUILD, "tests", "fakes", path) for path in ("cuda/libcuda.so.1", "cudart/libcudart.so.13")]
    done, document = pool_tensors(tmp_path / "report.json", "-c", LEAK.format(folder=BENCH), "--device", "cuda", "--without-kernels",
                                  LD_PRELOAD=":".join(fakes), FAKE_CUDA=f"memory={8 << 30},granularity=2097152,poison=0")
    failed = {check["name"]: check["reason"] for check in document["checks"] if check["outcome"] == "failed"}
    found = "16.0 MiB: +16.0 at a leak"
    assert done.returncode == 1 and failed == {
        "round 2: the library's statements keep nothing": found, "round 2 keeps nothing": found,
        "round 3: the library's statements keep nothing": found, "round 3 keeps nothing": found}, done.stdout + done.stderr


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
