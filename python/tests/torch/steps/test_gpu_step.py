# SPDX-License-Identifier: Apache-2.0
"""The rehearsal of `./check --gpu step` on the CPU."""

import pytest

from devices import cpu_only
from rehearsal import rehearsed
from test_served_cuda import run

WANTED = ("wanted of steps", "wanted of batches", "wanted of experts")
pytestmark = cpu_only("a rehearsal without a GPU")


def part(name):
    return rehearsed("step", WANTED)[0][name]


def figures(name):
    return {row["name"]: row for row in part(name)["figures"]}


def test_parts():
    names = list(rehearsed("step", WANTED)[0])
    assert names[:4] == ["build", "PyTorch", "steps llama, in process", "steps llama, plans"]
    assert names[-3:] == ["captures", "shared tensors", "compute-sanitizer memcheck: served steps"]
    assert all(part(name)["reason"] == "nothing to compare: a CPU reserves nothing" for name in WANTED)


@pytest.mark.parametrize("name, way", [("steps llama, in process", "in process"), ("steps llama, plans", "plan"), ("steps experts", "in process")])
def test_steps(name, way):
    plain, served = figures(name)["plain"], figures(name)[way]
    assert served["losses"] == plain["losses"] and len(set(plain["losses"])) > 5
    assert served["profile"]["losses"] == plain["profile"]["losses"]
    assert served["windows"] == plain["windows"] == 4
    assert served["served_share"] > 0.8 and served["slab_bytes"] >= served["lower_bound_bytes"] > 0
    assert served["ratio_to"] == "plain" and served["processor_ns_median"] > 0


def test_largest_batch():
    rows = {**figures("largest batch plain"), **figures("largest batch plan, expandable")}
    assert all(row["largest_batch"] >= 16 and row["complete"] for row in rows.values())
    assert rows["plan, expandable"]["served"] > 0


def test_captures_and_shared_tensors():
    assert set(figures("captures")) == {"CUDA graphs", "reduce-overhead"}
    assert len(part("shared tensors")["checks"]) == 8


def test_figures_of_cuda():
    """Memory is measured after the warm-up, in which the steps begin to be served."""
    found = run("", "", "expandable_segments:True", script="measured_cuda.py", PYTORCH_NVML_BASED_CUDA_CHECK="0")
    slab = found["served"]["slab_bytes"]
    assert slab == 12 << 20 and found["served"]["steps"] >= 3 and found["served"]["served"] == found["served"]["allocations"] > 0
    assert found["memory"]["live_peak_bytes"] == slab <= found["memory"]["reserved_peak_bytes"]
    assert found["first"]["reserved_peak_bytes"] >= found["memory"]["reserved_peak_bytes"]
    assert found["memory"]["driver_peak_bytes"] > 0 and found["step"]["ns"] > 0
    assert found["out_of_memory"] is True
