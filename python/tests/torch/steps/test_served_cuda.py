# SPDX-License-Identifier: Apache-2.0
"""The decorator of PyTorch's CUDA allocator on PyTorch's own allocator, over the emulated runtime and driver."""

import json
import os
import subprocess
import sys

import pytest

from devices import cpu_only
from places import ROOT

FOLDER = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUCKETPOOL_BUILD") or os.path.dirname(os.environ.get("BUCKETPOOL_LIBRARY_PATH", "").split(os.pathsep)[0])
FAKES = os.path.join(BUILD, "tests", "fakes")
RUNTIME, DRIVER = os.path.join(FAKES, "cudart", "libcudart.so.13"), os.path.join(FAKES, "cuda", "libcuda.so.1")
SETTINGS = {"default": "", "expandable": "expandable_segments:True"}


def run(program, argument, settings, *, more=(), memory=80 << 30, devices=1, script="served_cuda.py", **environment):
    with_fakes = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "LD_PRELOAD": f"{DRIVER}:{RUNTIME}", "OMP_NUM_THREADS": "1",
                  "FAKE_CUDA": f"memory={memory},granularity=2097152,poison=0,devices={devices}",
                  "PYTHONPATH": os.pathsep.join([os.path.join(ROOT, "python"), FOLDER]), **environment}
    done = subprocess.run([sys.executable, os.path.join(FOLDER, script), program, str(argument), *more], capture_output=True, text=True,
                          timeout=600, env=with_fakes)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=SETTINGS)
def settings(request):
    return SETTINGS[request.param]


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("seed", range(4))
def test_statistics(settings, seed):
    assert run("statistics", seed, settings)["in_slab"] > 200


@cpu_only("for machines without a GPU")
def test_history(settings):
    assert run("history", 0, settings)["in_slab"] > 50


@cpu_only("for machines without a GPU")
def test_order_of_streams(settings):
    found = run("order", 0, settings)
    assert found["wrong"] == {f"{name} stream, {flag}": 0 for flag in (0, 1) for name in ("allocating", "recorded")}
    assert found["waits"] >= 40 and found["events"] >= found["waits"]


@cpu_only("for machines without a GPU")
def test_order_of_streams_without_a_number(settings):
    assert run("other_streams", 0, settings) == {"wrong": 0, "in_slab": 0, "state": 0, "reserved": 0}


@cpu_only("for machines without a GPU")
def test_order_of_the_slab(settings):
    assert run("slab_order", 0, settings)["wrong"] == {"taken": 0, "given back": 0}


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("seed", range(4))
def test_random_order_of_streams(settings, seed):
    found = run("random_order", seed, settings)
    assert found["wrong"] == 0 and found["in_slab"] > 1000 and found["waits"] > 100


@cpu_only("for machines without a GPU")
def test_out_of_memory(settings):
    assert run("out_of_memory", 0, settings) == {"anywhere": 1, "ooms": 2,
                                                 "text": "CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has "}


@cpu_only("for machines without a GPU")
def test_observer_of_missing_memory(settings):
    assert run("observed", 0, settings) == {"seen": [1, "CUDA out of memory"]}


@cpu_only("for machines without a GPU")
def test_pools_and_refusals(settings):
    found = run("pools", 0, settings)
    assert found["refused"] == "a plan is being served; stop it first, and free what lives in its slab"
    assert found["too_large"].startswith("CUDA out of memory")


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("program, found", [("captured", {"unordered": 1}), ("fork", {})])
def test_captures_and_forks(settings, program, found):
    assert run(program, 0, settings) == found


@cpu_only("for machines without a GPU")
def test_plans_that_begin_and_end_among_threads(settings):
    found = run("life", 0, settings, devices=2)
    assert (found["faults"], found["left"], found["slab"]) == ([], [[0, 0], [0, 0]], 0) and min(found["done"].values()) > 20, found


@cpu_only("for machines without a GPU")
def test_frees_where_another_device_is_current(settings):
    assert run("other_device", 0, settings, devices=2) == {"wrong": 0, "context": 0, "served": 20, "events": 20}


@cpu_only("for machines without a GPU")
def test_threads(settings):
    found = run("threads", 0, settings)
    assert found["faults"] == [] and found["in_slab"] > 2000


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("settings, variables, because", [
    ("backend:cudaMallocAsync", {}, "cudaMallocAsync"), ("", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "PYTORCH_NO_CUDA_MEMORY_CACHING")])
def test_other_allocators_are_refused(settings, variables, because):
    assert because in run("refused", 0, settings, **variables)["because"]
