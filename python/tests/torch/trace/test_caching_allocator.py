# SPDX-License-Identifier: Apache-2.0
"""The model of PyTorch's caching allocator against PyTorch's own, on the emulated runtime and driver.

Each program's snapshot is played from its recorded state. The model must choose the address of every allocation and
every segment that is allocated, mapped, unmapped or freed; the blocks in the end and PyTorch's statistics must agree.
"""

import glob
import json
import os
import subprocess
import sys

import pytest
import torch

import allocator_model
from devices import cpu_only
from places import ROOT

FOLDER = os.path.dirname(os.path.abspath(__file__))
SNAPSHOTS = os.path.join(ROOT, "tests", "data", "snapshots")
BUILD = os.environ.get("BUCKETPOOL_BUILD") or os.path.dirname(allocator_model.LIBRARIES)
FAKES = os.path.join(BUILD, "tests", "fakes")
RUNTIME, DRIVER = os.path.join(FAKES, "cudart", "libcudart.so.13"), os.path.join(FAKES, "cuda", "libcuda.so.1")
SMALL = 1500 << 20  # programs keep more than this, so allocations fail

GARBAGE = "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5"
CASES = {
    "default": ("", 80 << 30, {}),
    "ring": ("", 80 << 30, {"ring": 150, "operations": 500}),
    "failures": ("", SMALL, {}),
    "failures-ring": ("", SMALL, {"ring": 150, "operations": 500}),
    "expandable": ("expandable_segments:True", 80 << 30, {}),
    "expandable-failures": ("expandable_segments:True", SMALL, {"pools": False}),
    "expandable-failures-ring": ("expandable_segments:True", SMALL, {"pools": False, "ring": 200, "operations": 500}),
    "roundup": ("roundup_power2_divisions:[1:2,4:16,64:8,256:4,>:1]", 80 << 30, {}),
    "roundup-expandable": ("roundup_power2_divisions:8,expandable_segments:True,large_segment_size_mb:40", 80 << 30, {}),
    "max-split": ("max_split_size_mb:40", SMALL, {"pools": False}),
    "max-split-ring": ("max_split_size_mb:40,max_non_split_rounding_mb:60", SMALL,
                       {"pools": False, "ring": 200, "operations": 500}),
    "garbage": (GARBAGE, 4 << 30, {"limit_bytes": 2 << 30}),
    "garbage-max-split": (f"{GARBAGE},max_split_size_mb:100", 2 * SMALL, {"limit_bytes": SMALL, "pools": False}),
}


def run_programs(configuration, memory, options):
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": configuration, "LD_PRELOAD": f"{DRIVER}:{RUNTIME}",
                   "FAKE_CUDA": f"memory={memory},granularity=2097152,poison=0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, os.path.join(FOLDER, "allocator_programs.py"), json.dumps(options)],
                          capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@cpu_only("for machines without a GPU")
@pytest.mark.skipif(torch.__version__ < "2.11", reason="the rules of the model are those of PyTorch 2.11")
@pytest.mark.parametrize("name", CASES)
def test_random_programs(name):
    configuration, memory, options = CASES[name]
    programs = 25
    found = run_programs(configuration, memory, {"first": 1000 * list(CASES).index(name), "programs": programs, **options})
    assert found["faults"] == []
    assert found["allocations"] > 30 * programs and found["segment_events"] > 5 * programs, found
    assert (found["failures"] > 0) == (memory < 80 << 30), found


@cpu_only("for machines without a GPU")
@pytest.mark.skipif(torch.__version__ < "2.11", reason="the rules of the model are those of PyTorch 2.11")
@pytest.mark.parametrize("configuration, context, memory", [
    ("", "all", 80 << 30), ("", "alloc", 80 << 30), ("", None, 80 << 30), ("", "all", SMALL),
    ("expandable_segments:True", "all", 80 << 30), ("expandable_segments:True", None, 80 << 30),
    ("expandable_segments:True", "all", SMALL), ("max_split_size_mb:40", "all", SMALL),
])
def test_empty_cache(configuration, context, memory):
    """Calls of empty_cache are found in a recording, and allocations that find no memory and release the cache are none.
    Without stacks, a full device leaves it open.
    """
    pools = memory != SMALL or configuration == ""
    options = {"programs": 8, "pools": pools, "context": context, "empty_cache": 0.03, "plays": True, "memory": memory}
    found = run_programs(configuration, memory, {"first": 50000, **options})
    assert found["faults"] == []
    assert found["empty_caches"] > 20, found
    assert (found["retries"] > 0) == (memory == SMALL), found


@pytest.mark.parametrize("path", sorted(glob.glob(os.path.join(SNAPSHOTS, "*.pickle"))), ids=os.path.basename)
def test_saved_snapshots(path):
    limit_bytes = 2 << 30 if "garbage" in os.path.basename(path) else 0
    result = allocator_model.check(path, limit_bytes)
    assert result.fault() == "" and result.allocations > 20


def test_other_settings_depart():
    """A check that cannot fail shows nothing: with other settings than the recorded ones, the model departs."""
    path = os.path.join(SNAPSHOTS, "default.pickle")
    result = allocator_model.check(path, large_segment_bytes=40 << 20)
    assert "SEGMENT" in result.fault(), result.fault()
    assert "MAPPING" in allocator_model.check(path, expandable_segments=1).fault() or result.departures
