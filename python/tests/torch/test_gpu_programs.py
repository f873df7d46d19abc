"""The programs that `./check --gpu torch` runs on a GPU, on the CPU and in small: every way is in the document as a figure or is skipped with
a reason, and a program that is killed leaves its figures so far."""

import json
import os
import subprocess
import sys
import time
import zipfile

import pytest

pytest.importorskip("torch")

from devices import cpu_only  # noqa: E402

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bench", "torch")
sys.path.append(BENCH)

pytestmark = cpu_only("a rehearsal without a GPU")


def command(program, path, *options):
    return [sys.executable, os.path.join(BENCH, program), "--device", "cpu", "--rehearse", "--json", str(path), *options]


def document(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def rehearsed(program, path, *options):
    done = subprocess.run(command(program, path, *options), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    found = document(path)
    assert found["format"] == "bucketpool.bench/1" and found["device"] == "cpu"
    assert all(check["outcome"] == "passed" for check in found["checks"]), found["checks"]
    assert all(skip["reason"] for skip in found["skipped"])
    for row in found["figures"]:
        assert row["ns_median"] >= row["ns_min"] > 0 and row["windows"] >= 1, row
    return found


def names(rows):
    return {row["name"] for row in rows}


@pytest.mark.parametrize("hidden", [0, 4096])
def test_logprob(tmp_path, hidden):
    from ways import HEAD_WAYS, WAYS

    found = rehearsed("logprob.py", tmp_path / "found.json", *(["--hidden", str(hidden)] if hidden else []))
    ways = HEAD_WAYS if hidden else WAYS
    skipped = names(found["skipped"])
    for group in {row["group"] for row in found["figures"]}:
        rows = {row["name"]: row for row in found["figures"] if row["group"] == group}
        assert rows.keys() | skipped >= {way.name for way in ways}
        for way in ways:
            if way.name not in skipped:
                row = rows[way.name]
                assert row["ratio_min"] <= row["ratio_median"] <= row["ratio_max"] and 0 < row["forward_ns_median"] < row["ns_median"]
                assert row["grad_dtype"] == "bfloat16" and row["in_place"] == way.in_place and row["peak_driver_bytes"] >= 0
                assert hidden or row["bytes_per_logit"] == 6 and 0 < row["bandwidth_fraction"]
    assert {f"{way.name}: against fp64" for way in ways if way.ours} <= names(found["checks"])
    assert len(found["figures"]) == (1 if hidden else 2) * (1 + len(ways) - len(skipped))


def test_ways_that_are_wrong_or_out_of_memory(tmp_path):
    import logprob
    import torch
    from machine import machine
    from report import Report
    from ways import WAYS, Way

    def hungry(runs):
        """Has memory for the comparison with fp64, and for so many runs."""
        left = [runs + 1]

        def function(logits, target):
            left[0] -= 1
            if left[0] < 0:
                raise torch.OutOfMemoryError("no memory")
            return logits.float().log_softmax(-1).gather(-1, target[:, None])[:, 0]

        return lambda device: function

    ways = [WAYS[0], Way("wrong", lambda device: lambda logits, target: logits.float().mean(-1)), Way("never", hungry(0)),
            Way("late", hungry(4))]
    on, report = machine("cpu"), Report(str(tmp_path / "found.json"))
    found = logprob.ready(report, on, [*ways, Way("breaks", None)], 0, float("inf"), ["breaks"])
    assert {"wrong", "breaks"} == names(report.document["skipped"])
    assert [way.name for way, *_ in found] == ["bucketpool", "never", "late"]
    case = logprob.Case(report, on, 40, 300, 0, float("inf"))
    left = case.warm(found, float("inf"))
    assert [way.name for way, *_ in left] == ["bucketpool", "late"]
    case.rows(left, case.turns(left, 3, 0))
    rows = {row["name"]: row for row in document(tmp_path / "found.json")["figures"]}
    assert rows["never"]["outcome"] == rows["late"]["outcome"] == "out of memory"
    assert rows["bucketpool"]["windows"] == 3 and report.status() == 0


def test_offload(tmp_path):
    from offload import SAVERS, WAYS

    found = rehearsed("offload.py", tmp_path / "found.json")
    figures, skipped = names(found["figures"]), names(found["skipped"])
    for way in WAYS + SAVERS:
        rows = {f"{way.name}: {direction}{when}" for direction in ("out", "back") for when in ("", ", first time")}
        assert way.name in skipped or rows <= figures
    assert {"bucketpool: a release group: its bytes come back each time"} <= names(found["checks"])
    assert all(row["gib_per_s"] > 0 and row["bytes"] == 64 << 20 for row in found["figures"])


def test_allocator(tmp_path):
    found = rehearsed("allocator.py", tmp_path / "found.json")
    assert len(found["figures"]) == 2 and len(found["skipped"]) == 2


def test_wheels(tmp_path):
    import wheels

    for name, code in (("sound", "answer = 42"), ("broken", "raise OSError('no driver')")):
        with zipfile.ZipFile(tmp_path / f"bp_{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"bp_{name}/__init__.py", code)
    assert wheels.unpack(None) == [] and wheels.unpack(str(tmp_path / "nothing")) == []
    assert wheels.unpack(str(tmp_path)) == ["bp_broken-1.0-py3-none-any.whl", "bp_sound-1.0-py3-none-any.whl"]
    assert wheels.attribute("bp_sound", "answer") == 42
    for module, words in (("bp_broken", "OSError: no driver"), ("bp_missing", "No module named")):
        with pytest.raises(wheels.Unavailable, match=words):
            wheels.attribute(module, "answer")


def test_a_killed_program_leaves_what_it_had(tmp_path):
    path = tmp_path / "found.json"
    process = subprocess.Popen(command("logprob.py", path, "--turns", "100000", "--seconds", "1000"), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 40
        while time.monotonic() < until and not (path.exists() and document(path)["checks"]):
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    found = document(path)
    assert found["checks"] and found["program"] == "logprob"
