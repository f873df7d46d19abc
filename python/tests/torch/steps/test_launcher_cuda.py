# SPDX-License-Identifier: Apache-2.0
"""The launcher on PyTorch's CUDA allocator, over the emulated runtime: starts in a process and from a plan, and refusals."""

import json
import os
import subprocess
import sys

from devices import cpu_only
from places import ROOT
from test_served_cuda import DRIVER, FOLDER, RUNTIME

PROGRAM = os.path.join(FOLDER, "marked_cuda.py")


def launched(folder, *arguments, settings=None):
    """The lines of the launcher, its report, and what the program printed."""
    environment = {**os.environ, "LD_PRELOAD": f"{DRIVER}:{RUNTIME}", "FAKE_CUDA": f"memory={80 << 30},granularity=2097152,poison=0",
                   "PYTHONPATH": os.path.join(ROOT, "python"), "OMP_NUM_THREADS": "1"}
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        environment.pop(name, None)
    if settings is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
    done = subprocess.run([sys.executable, "-m", "bucketpool.torch.steps", "--report", "report.json", *arguments], capture_output=True,
                          text=True, timeout=300, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    reserved, allocated = map(int, done.stdout.splitlines()[-1].split()[1:])
    print(done.stderr, reserved, allocated)
    assert "initialized False" in done.stdout
    return done.stderr.splitlines(), json.loads((folder / "report.json").read_text()), reserved, allocated


@cpu_only("for machines without a GPU")
def test_in_process_and_from_a_plan(tmp_path):
    """Recording sets expandable segments, and what is reserved falls; from the plan it is the peak of live memory."""
    (setting, line), report, _, _ = launched(tmp_path, "--save", "plan.json", PROGRAM, "10")
    assert setting.endswith("ALLOC_CONF=expandable_segments:True, so that the slab finds room after the recorded steps")
    assert report["steps"] == 6 and report["served"] == report["allocations"] == 240 and report["losses"] == []
    assert report["reserved_peak_bytes"] < 0.95 * report["reserved_peak_before_bytes"]
    assert "% less), 240 of 240 allocations served in 6 steps" in line, line
    (line, ), second, reserved, allocated = launched(tmp_path, "--plan", "plan.json", PROGRAM, "10")
    assert second["steps"] == 9 and second["served"] == second["allocations"] == 360
    assert second["reserved_peak_before_bytes"] == report["reserved_peak_before_bytes"]
    assert second["reserved_peak_bytes"] >> 20 <= reserved <= 1.03 * allocated, (reserved, allocated)
    assert {(wait["waiting"], wait["before"]) for wait in second["waits_by_streams"]} == {(0, 1), (1, 0)}


@cpu_only("for machines without a GPU")
def test_refused_in_process(tmp_path):
    """Without expandable segments the slab would not fit beside what is pinned: nothing changes."""
    lines, report, reserved, _ = launched(tmp_path, PROGRAM, "8", settings="expandable_segments:False")
    assert report["state"] == "failed" and report["steps"] == 0 and report["reserved_peak_bytes"] >> 20 == reserved
    assert "save the plan for the next run" in lines[-1], lines


@cpu_only("for machines without a GPU")
def test_plan_of_another_program(tmp_path):
    """Activations of three times the size: the guard stops, and says why."""
    launched(tmp_path, "--save", "plan.json", PROGRAM, "6")
    lines, report, _, _ = launched(tmp_path, "--plan", "plan.json", PROGRAM, "8", "3")
    assert report["state"] == "stopped" and "without it" in report["because"] and report["because"] in lines[-1]
    assert report["served"] < 0.9 * report["allocations"]
