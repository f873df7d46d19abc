"""Rehearsals of `./check --gpu torch` and `./check --gpu fsdp2` on the CPU. Each runs once; tests read its results."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUILD = os.environ.get("BUCKETPOOL_BUILD")


def start(run, folder):
    """Starts a rehearsal that writes its results to `folder`. Returns the process."""
    if not BUILD:
        pytest.skip("BUCKETPOOL_BUILD names no build folder")
    return subprocess.Popen([sys.executable, "scripts/gpu", run, "--rehearse", "--build", BUILD, "--keep",
                             "--commit", "rehearsed", "--seconds", "1500", "--output", folder],
                            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def recorded(run, folder):
    with open(os.path.join(folder, f"rehearsal-{run}.json"), encoding="utf-8") as file:
        return json.load(file)


def has_begun(run, folder):
    return os.path.exists(os.path.join(folder, f"rehearsal-{run}.json"))


@functools.cache
def run_once(run):
    """Exit status, output, document and seconds of a run, also of a failed one."""
    with tempfile.TemporaryDirectory() as folder:
        begin, process = time.monotonic(), start(run, folder)
        text = process.communicate(timeout=1600)[0]
        return process.returncode, text, recorded(run, folder), time.monotonic() - begin


def rehearsed(run):
    """Parts by name, and the seconds of the run."""
    status, text, document, seconds = run_once(run)
    assert status == 0, text
    assert document["finished"] and document["rehearsal"] and document["torch"]
    parts = {part["name"]: part for part in document["parts"]}
    assert {part["outcome"] for part in parts.values()} == {"passed"}, text
    for name, part in parts.items():
        assert all(check["outcome"] != "failed" for check in part.get("checks", [])), name
        assert all(skip["reason"] for skip in part.get("skipped", [])), name
    return parts, seconds


def killed(run):
    """Kills a rehearsal after a third of its parts: the parts that were done are recorded, and the one that ran is
    named.
    """
    parts, _ = rehearsed(run)
    with tempfile.TemporaryDirectory() as folder:
        process = start(run, folder)
        until = time.monotonic() + 300
        while time.monotonic() < until and not (has_begun(run, folder)
                                                and len(recorded(run, folder)["parts"]) > len(parts) / 3):
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        printed = [line for line in process.communicate(timeout=60)[0].splitlines() if line.startswith("  ")]
        document = recorded(run, folder)
    done = [part for part in document["parts"] if part["outcome"] != "running"]
    assert not document["finished"] and len(done) >= len(printed) > 1
    assert [part["name"] for part in document["parts"]] == list(parts)[:len(document["parts"])]
    assert {part["outcome"] for part in done} == {"passed"}
    return done
