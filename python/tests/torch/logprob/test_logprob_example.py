# SPDX-License-Identifier: Apache-2.0
"""examples/rl_logprob.py: the commands of its docstring, and equal losses for any number of processes."""

import os
import subprocess
import sys

import pytest
from places import ROOT

EXAMPLE = os.path.join(ROOT, "examples", "rl_logprob.py")


def printed(*command):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.path.join(ROOT, "python"), environment.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, *command, "--steps", "3"], env=environment, capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(lines) == 3, done.stdout
    return [[float(word) for word in line.split()[3::2]] for line in lines]


def test_losses_of_several_processes():
    alone = printed(EXAMPLE)
    assert alone[0][0] > alone[1][0] > alone[2][0]  # it learns
    two = printed("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", EXAMPLE, "--fused")
    for mine, theirs in zip(alone, two):
        assert mine == pytest.approx(theirs, abs=3e-5)
