# SPDX-License-Identifier: Apache-2.0
"""The rehearsal of `./check --gpu fit` on the CPU, and its limits on PyTorch's CUDA allocator over the emulated runtime."""

import json
import os
import subprocess
import sys

import pytest

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "steps")]

from devices import cpu_only
from places import ROOT
from rehearsal import BUILD, rehearsed
from test_served_cuda import SETTINGS, run

sys.path.append(os.path.join(ROOT, "bench", "torch", "fit"))

import edge  # noqa: E402
import edges  # noqa: E402
from bucketpool.torch.fitting import measured  # noqa: E402
from bucketpool.torch.fitting.measured import Program, record  # noqa: E402
from bucketpool.torch.fitting.scaling import repeated  # noqa: E402
from report import Report  # noqa: E402

pytest.importorskip("transformers")
pytestmark = cpu_only("a rehearsal without a GPU")
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "limited_cuda.py")
EXAMPLE = os.path.join(ROOT, "examples", "files", "llama_steps.pickle")
MIB = 1 << 20


def test_parts():
    names = list(rehearsed("fit")[0])
    assert names[:6] == ["build", "PyTorch", "predictions", "edge dense", "edge fsdp2", "context and libraries"]
    assert set(names[3:5] + names[6:]) == {f"edge {case}" for case in edges.CASES}


@pytest.mark.parametrize("case", edges.CASES)
def test_edge(case):
    """Trainings that run with values: the largest micro-batch by fit runs, one more does not, and the peak is that of fit."""
    part = rehearsed("fit")[0][f"edge {case}"]
    passed = [check["name"] for check in part["checks"]]
    for row in part["figures"]:
        name, largest = row["name"], row["fit_largest"]
        assert row["largest_batch"] == largest > 1 and row["smallest_that_fails"] == largest + 1
        assert abs(row["peak_percent"]) <= 1 and row["torch_peak_allocated_bytes"] > edges.TOY_LIMIT / 2
        assert {f"{name}: micro-batch {largest} runs", f"{name}: micro-batch {largest + 1} does not", f"{name}: weights are finite",
                f"{name}: peak allocated within 1 %"} <= set(passed)
    assert [row["name"] for row in part["figures"]] == list(edges.ALLOCATORS)


def test_context():
    rows = rehearsed("fit")[0]["context and libraries"]["figures"]
    assert len(rows) == 6 and all(row["beside_bytes"] > 0 for row in rows)
    assert sum("communicator" in row["name"] for row in rows) == 2


def test_wrong_predictions(tmp_path):
    """A micro-batch too few: the next ones follow, and the check fails with the largest that ran. One too many: the same downwards."""
    row = rehearsed("fit")[0]["edge dense"]["figures"][0]
    with open(os.path.join(BUILD, "gpu-run", "fit", "predictions.json"), encoding="utf-8") as file:
        document = json.load(file)
    for name, off in (("default", -2), ("expandable", 1)):
        document["cases"]["dense"]["allocators"][name]["largest"] += off
    path, found = tmp_path / "predictions.json", tmp_path / "found.json"
    path.write_text(json.dumps(document))
    program = [sys.executable, os.path.join(os.path.dirname(edges.__file__), "edge.py"), "dense"]
    done = subprocess.run([*program, "--predictions", path, "--json", found, "--device", "cpu", "--rehearse"], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    largest, figures = row["fit_largest"], json.loads(found.read_text())["figures"]
    assert [(each["largest_batch"], each["smallest_that_fails"]) for each in figures] == [(largest, largest + 1)] * 2
    failed = {check["name"]: check["reason"] for check in json.loads(found.read_text())["checks"] if check["outcome"] == "failed"}
    assert failed[f"default: micro-batch {largest - 1} does not"] == f"the largest that ran: {largest}"
    assert f"expandable: micro-batch {largest + 1} runs" in failed


@pytest.mark.parametrize("change, failing", [
    ({}, []), ({"peak": 1.02}, ["peak allocated within 1 %"]), ({"reserved": 0.985}, ["reserved within 1 %"]),
    ({"retries": 3}, ["retries in the limit only where fit says so"]), ({"inside": "out of memory"}, ["micro-batch 4 runs"]),
    ({"more": "runs"}, ["micro-batch 5 does not"]), ({"finite": False}, ["weights are finite"]),
    ({"more": "failed"}, ["all failures are out of memory", "micro-batch 5 does not"])], ids=str)
def test_checks(change, failing):
    """Figures of a GPU, of which one is changed."""
    usual = {"peak": 1, "reserved": 1, "retries": 0, "inside": "runs", "more": "out of memory", "finite": True, **change}
    counters = {"reserved_bytes": round(15e9 / usual["reserved"]), "peak_bytes": round(14e9 / usual["peak"]), "requested_bytes": 14 * 10**9, "retries": 0}
    limited = {**counters, "retries": usual["retries"]}
    tries = [{"batch": 4, "limited": False, "outcome": "runs", "finite": usual["finite"], "counters": [counters] * 3},
             {"batch": 4, "limited": True, "outcome": usual["inside"], "said": "CUDA out of memory", "counters": [limited] * 3},
             {"batch": 5, "limited": True, "outcome": usual["more"], "said": "an error", "counters": []}]
    said = {"largest": 4, "rows": {"4": {"reserved_bytes": 15 * 10**9, "peak_bytes": 14 * 10**9, "retries": 0}}}
    report = Report(None)
    edge.compare(report, "dense", "default", said, tries, 16 << 30)
    assert [check["name"] for check in report.document["checks"] if check["outcome"] == "failed"] == [f"default: {name}" for name in failing]
    assert report.document["figures"][0]["peak_percent"] == pytest.approx(100 * (usual["peak"] - 1), abs=0.01)
    assert len(report.document["checks"]) == 7 and not report.document["skipped"]


# ---- PyTorch's allocator ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_limit(settings, tmp_path):
    """Of runs.py: tensors of exactly the limit, 12 micro-batches, can be made, no more; the snapshot has the events of a run."""
    limit, path = 12 * 60 * MIB, tmp_path / "free.pickle"
    free, inside, second, first = (run("trained", batch, settings, script=SCRIPT, more=[str(most), file])
                                   for batch, most, file in ((4, 0, str(path)), (4, limit, ""), (5, limit, ""), (12, limit, "")))
    assert (free["outcome"], inside["outcome"]) == ("runs", "runs") and free["finite"] is True and free["after"] >= 0
    assert [(each["outcome"], each["at"]) for each in (second, first)] == [("out of memory", "step 2"), ("out of memory", "step 1")]
    assert "CUDA out of memory" in first["said"]
    for each in (free, inside):
        peak = each["counters"][-1]
        assert peak["reserved_bytes"] == peak["peak_bytes"] == peak["requested_bytes"] == limit and peak["retries"] == 0
    subprocess.run(["gunzip", f"{path}.gz"], check=True)
    [device] = stepped(path)["devices"]
    assert device["peak_bytes"] == limit


def stepped(path, *options):
    done = subprocess.run([os.path.join(BUILD, "tools", "bucketpool"), "step", "--json", *options, str(path)], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Names: recordings."""
    folder = tmp_path_factory.mktemp("steps")
    for name, *options in (("dense-fsdp", "--layers", "4", "--sequence", "2048"), ("dense-small", "--layers", "8", "--sequence", "1024")):
        subprocess.run([sys.executable, os.path.join(ROOT, "examples", "trace_step.py"), name, *options, "--output", str(folder / name)],
                       check=True, timeout=300, stdout=subprocess.DEVNULL)
    return {"example": EXAMPLE, **{name: str(folder / name) for name in os.listdir(folder)}}


@pytest.mark.parametrize("name", ["example", "dense-fsdp", "dense-small"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_model_of_limits(name, settings, recordings):
    """`bucketpool step --limit` is PyTorch's allocator: what it reserves, when it fails, and how often it releases what it caches."""
    path = recordings[name]
    whole = stepped(path)["devices"][0]
    peak, reserved = whole["peak_bytes"], whole[f"{settings}_bytes"]
    seen = set()
    for share in (-0.01, 0.25, 0.6, 1.0):
        limit = int(peak + share * (reserved - peak)) // MIB * MIB
        model = stepped(path, "--limit", str(limit))["devices"][0]["limit"][settings]
        found = run("played", path, SETTINGS[settings], script=SCRIPT, more=[str(limit)], memory=200 << 30)
        assert found["fails"] == bool(model["failures"]), (share, model, found)
        if not found["fails"]:
            assert found["retries"] == model["retries"], (share, model, found)
        seen.add(found["fails"])
    assert seen == {True, False}


def test_later_steps(tmp_path):
    """In some limits two steps run with retries, and a later one finds no memory: fit says so, as PyTorch's allocator does."""
    recording = record(Program(edges.training_of(edges.options_of("experts", False, tmp_path), "cuda")), 8)
    longer, path = repeated(recording, 16), tmp_path / "steps.pickle"
    longer.write(path)
    peak, found = recording.peak_rounded_bytes >> 20 << 20, []
    for limit in range(peak + 1024 * MIB, peak + 4096 * MIB, 128 * MIB):
        two, many = (measured._retries(measured._evaluated(each, limit, "--work", "1", "--lead", "0"))[0] for each in (recording, longer))
        assert measured.measure((recording, ), limit).totals[0].default_retries == (None if many is None else two)
        if two is not None and many is None:
            found.append(limit)
    for limit in found[:1]:
        assert run("played", path, SETTINGS["default"], script=SCRIPT, more=[str(limit)], memory=200 << 30)["fails"] is True
    assert found
