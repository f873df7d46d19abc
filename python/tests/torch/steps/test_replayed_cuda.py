# SPDX-License-Identifier: Apache-2.0
"""Recorded steps on PyTorch's CUDA allocator, over the emulated runtime: natively, and with their plan served."""

import os
import subprocess
import sys

import pytest

from devices import cpu_only
from places import ROOT
from test_served_cuda import SETTINGS, run

EXAMPLE = os.path.join(ROOT, "examples", "files", "llama_steps.pickle")
MIB = 1 << 20


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """Three steps of an FSDP2 training on eight ranks, without a GPU."""
    path = str(tmp_path_factory.mktemp("steps") / "sharded.pickle")
    subprocess.run([sys.executable, os.path.join(ROOT, "examples", "trace_step.py"), "dense-fsdp", "--layers", "4", "--sequence", "2048",
                    "--output", path], check=True, timeout=300, stdout=subprocess.DEVNULL)
    return path


def played(path, mode, settings):
    return run(mode, path, settings, script="replayed_cuda.py", more=["3"], memory=200 << 30)


def assert_served(served, natives):
    """Everything that is planned is served, from the first step on; reserved is the slab and what is outside of it."""
    for name in ("served_first", "served"):
        allocations, others = sum(served[name]), sum(served[name]) - served[name][0] - served[name][3]
        assert others == 0 and served[name][3] < 0.1 * allocations, served
    assert served["kind_changes"] == served["resyncs"] == 0
    for peak in ("reserved_peak_first_bytes", "reserved_peak_bytes"):
        rest = served["persistent_bytes"] + served["outside_bytes"]
        assert served["slab_bytes"] < served[peak] <= served["slab_bytes"] + rest + 60 * MIB
        assert all(served[peak] < native[peak] for native in natives)


@cpu_only("for machines without a GPU")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_one_stream(settings):
    served = played(EXAMPLE, "served", settings)
    assert_served(served, [played(EXAMPLE, "native", settings)])
    assert served["slab_bytes"] == served["lower_bound_bytes"] and served["waits"] == 0


@cpu_only("for machines without a GPU")
def test_streams_of_fsdp2(sharded):
    natives = [played(sharded, "native", settings) for settings in SETTINGS.values()]
    served = played(sharded, "served", SETTINGS["expandable"])
    assert_served(served, natives)
    assert 0 < served["waits"] < 0.1 * sum(served["served"]) / 3
    assert served["reserved_peak_bytes"] < 0.9 * min(native["reserved_peak_bytes"] for native in natives)
