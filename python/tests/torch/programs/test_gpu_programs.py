# SPDX-License-Identifier: Apache-2.0
"""The programs of `./check --gpu torch` on the CPU, in small sizes.

Every variant has a figure or a reason for its skip, and a killed run keeps the results of finished parts.
"""

import json
import os
import sys
import zipfile

import pytest
from places import ROOT

from devices import cpu_only  # noqa: E402
from rehearsal import killed, rehearsed  # noqa: E402

BENCH = os.path.join(ROOT, "bench", "torch")
sys.path.append(BENCH)

pytestmark = cpu_only("a rehearsal without a GPU")


def document(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def part_of(name):
    """A part of the rehearsal that is a program, with valid figures."""
    part = rehearsed("torch")[0][name]
    assert part["about"]["device"] == "cpu"
    for row in part["figures"]:
        assert row["ns_median"] >= row["ns_min"] > 0 and row["windows"] >= 1, row
    return part


def test_recorded_parts():
    parts = rehearsed("torch")[0]
    assert list(parts) == ["build", "PyTorch", "pool tensors", "host time of calls", *(f"tests {name}"
                                                 for name in ("logprob_device", "logprob_values", "logprob_autograd",
                                                              "logprob_head", "logprob_saved",
                                                  "views", "pluggable_allocator")), "logprob, eager", "head, eager",
                           "logprob", "head", "offload", "allocator",
                           "step memory"]
    for name, part in parts.items():
        if name.startswith("tests"):
            assert any(check["outcome"] == "passed" for check in part["checks"]), name


def test_results_after_kill():
    assert any(part.get("checks") for part in killed("torch"))


def names(rows):
    return {row["name"] for row in rows}


@pytest.mark.parametrize("hidden,eager", [(0, True), (0, False), (4096, True), (4096, False)])
def test_logprob(hidden, eager):
    from ways import HEAD_WAYS, WAYS

    found = part_of(("head" if hidden else "logprob") + (", eager" if eager else ""))
    found.setdefault("skipped", [])
    ways = [way for way in (HEAD_WAYS if hidden else WAYS) if not (eager and way.compiles)]
    assert any(not way.ours for way in ways)
    skipped = names(found["skipped"])
    for group in {row["group"] for row in found["figures"]}:
        rows = {row["name"]: row for row in found["figures"] if row["group"] == group}
        assert rows.keys() | skipped >= {way.name for way in ways}
        for way in ways:
            if way.name not in skipped:
                row = rows[way.name]
                assert (
                    row["ratio_min"] <= row["ratio_median"] <= row["ratio_max"]
                    and 0 < row["forward_ns_median"] < row["ns_median"]
                )
                assert (
                    row["grad_dtype"] == "bfloat16"
                    and row["in_place"] == way.in_place
                    and row["peak_driver_bytes"] >= 0
                )
                assert hidden or row["bytes_per_logit"] == 6 and 0 < row["bandwidth_fraction"]
    assert {f"{way.name}: against fp64" for way in ways if way.ours} <= names(found["checks"])
    assert len(found["figures"]) == (1 if hidden else 2) * (1 + len(ways) - len(skipped))


def test_wrong_results_and_out_of_memory(tmp_path):
    import logprob
    import torch
    from machine import machine
    from report import Report
    from ways import WAYS, Way

    def hungry(runs):
        """A variant with memory for the comparison with fp64, the count of bytes, and `runs` runs."""
        left = [runs + 2]

        def function(logits, target):
            left[0] -= 1
            if left[0] < 0:
                raise torch.OutOfMemoryError("no memory")
            return logits.float().log_softmax(-1).gather(-1, target[:, None])[:, 0]

        return lambda device: function

    ways = [WAYS[0], Way("wrong", lambda device: lambda logits, target: logits.float().mean(-1)),
            Way("never", hungry(0)), Way("late", hungry(4))]
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


def test_offload():
    from offload import SAVERS, WAYS

    found = part_of("offload")
    figures, skipped = names(found["figures"]), names(found["skipped"])
    for way in WAYS + SAVERS:
        rows = {f"{way.name}: {direction}{when}" for direction in ("out", "back") for when in ("", ", first time")}
        assert way.name in skipped or rows <= figures
    assert {"bucketpool: a release group: its bytes are restored each time"} <= names(found["checks"])
    assert all(row["gib_per_s"] > 0 and row["bytes"] == 64 << 20 for row in found["figures"])


def test_allocator():
    found = part_of("allocator")
    assert len(found["figures"]) == 2 and len(found["skipped"]) == 2


def test_step_memory():
    found = rehearsed("torch")[0]["step memory"]
    assert "step: recorded on the GPU" in names(found["skipped"])
    assert all(row["planned"] >= row["peak"] > 0 and row["steps"] >= 2 for row in found["figures"])
    assert all(check["outcome"] == "passed" for check in found["checks"])


def test_head_memory():
    """linear_logprobs holds less than its memory= beyond gradients, and every way less than log_softmax in fp32."""
    import head_memory
    import torch

    found = {}
    for name, way in head_memory.WAYS.items():
        peak, needed = head_memory.peak(way, 8192, 256, 100_000, torch.bfloat16)
        found[name] = peak - needed
    plain, _, pieces, *others = found.values()
    assert 0 < pieces < 1 << 30 and all(0 < each < plain for each in others)


def test_peers(tmp_path):
    import peers

    for name, code in (("sound", "answer = 42"), ("broken", "raise OSError('no driver')")):
        with zipfile.ZipFile(tmp_path / f"bp_{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"bp_{name}/__init__.py", code)
    assert peers.unpack(None) == [] and peers.unpack(str(tmp_path / "nothing")) == []
    assert peers.unpack(str(tmp_path)) == ["bp_broken-1.0-py3-none-any.whl", "bp_sound-1.0-py3-none-any.whl"]
    assert peers.attribute("bp_sound", "answer") == 42
    for module, words in (("bp_broken", "OSError: no driver"), ("bp_missing", "No module named")):
        with pytest.raises(peers.Unavailable, match=words):
            peers.attribute(module, "answer")


def test_copy_of_skyrl(tmp_path):
    import peers

    file = tmp_path / peers.SKYRL
    file.parent.mkdir(parents=True)
    file.write_text("import megatron.core.parallel_state as mpu\nanswer = 42")
    peers.unpack(None)
    with pytest.raises(peers.Unavailable, match="no copy of SkyRL"):
        peers.skyrl("answer")
    assert peers.unpack(str(tmp_path)) == ["SkyRL"] and peers.skyrl("answer") == 42
    assert "megatron" not in sys.modules
    file.write_text("import bp_missing")
    with pytest.raises(peers.Unavailable, match="bp_missing"):
        peers.skyrl("answer")
    peers.unpack(None)


def test_traffic():
    import torch
    from machine import Traffic

    x, index = torch.ones(4, 100, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    for function, expected in ((lambda: x.float(), 400 * (2 + 4)), (lambda: x.mul_(2), 400 * 4),
                               (lambda: x[1:].t().view(100, 3), 0), (lambda: torch.zeros_like(x), 400 * 2),
                               (lambda: torch.empty_like(x), 0), (lambda: x.copy_(x), 400 * 4),
                               (lambda: x.gather(-1, index), 3 * 4 * 8),
                               (lambda: x[:, :1].expand(4, 100).neg(), 4 * 2 + 400 * 2)):
        with Traffic() as traffic:
            function()
        assert traffic.bytes == expected
