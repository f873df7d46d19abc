# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of bench/torch/fsdp2 on the CPU, in small sizes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rehearsal import ROOT, killed, rehearsed
from places import FAKES

RESOLUTION = 8
FOLDER = os.path.join(ROOT, "bench", "torch", "fsdp2")


def command(program, path, *options):
    return [sys.executable, os.path.join(FOLDER, program), "--device", "cpu", "--rehearse", "--json", str(path),
            *options]


def run(program, path, *options, status=0):
    """The document of the program."""
    done = subprocess.run(command(program, path, *options), capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(path.read_text())


def figure(document):
    return document["figures"][-1]


def part_of(name):
    """A part of the rehearsal, with the rest of the program's document."""
    part = rehearsed("fsdp2")[0][name]
    return {**part["about"], **part}


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Files of the variants by name; lengths: with varying sequence lengths."""
    folder, found = tmp_path_factory.mktemp("variants"), {}
    for name in ("plain", "scheduled", "max"):
        found[name] = folder / f"{name}.json"
        found[name].write_text(json.dumps(part_of(f"steps {name}")))
    for name in ("plain", "scheduled"):
        found[name, "lengths"] = folder / f"{name}_lengths.json"
        found[name, "lengths"].write_text(json.dumps(part_of(f"varying lengths {name}")))
    return found


def test_recorded_parts():
    names = list(rehearsed("fsdp2")[0])
    assert names[:9] == ["build", "PyTorch", "steps plain", "steps scheduled", "steps max", "steps expandable_segments",
                         "steps scheduled_expandable_segments", "steps cuda_malloc_async", "same losses"]
    assert names[9:12] == ["steps llama, pools", "steps llama, pools in expandable segments", "Megatron-FSDP"]
    assert names[-1] == "captured step" and {"two ranks", "largest batch plain",
                                             "same losses, varying lengths"} <= set(names)
    assert len(rehearsed("fsdp2")[0]["same losses"]["checks"]) == 5


def test_results_after_kill():
    assert any("steps" in part.get("about", {}) for part in killed("fsdp2"))


def test_variants(variants):
    documents = {name: json.loads(path.read_text()) for name, path in variants.items()}
    for name, document in documents.items():
        row = figure(document)
        assert len(document["steps"]) == 4 == len(row["losses"]) and row["windows"] == 3 and row["ns_median"] > 0
        assert row["losses"] == [step["loss"] for step in document["steps"]] and len(set(row["losses"])) == 4
        assert (
            row["used_bytes_source"].startswith("resident anonymous memory")
            and row["used_bytes_peak"] >= row["used_bytes_after_model"] > 0
        )
        if "plain" in name:
            assert row["pool_bytes"] == 0
        else:  # 5 units: all are gathered in forward, all but the root in backward
            assert row["served"] == {"param": 4 * 9, "grad": 4 * 5} and row["fallbacks"] == {}
            assert row["pool_bytes"] >= row["plan_bytes"] >= row["pool_peak_live_bytes"] > 0
    assert figure(documents["max"])["pool_bytes"] > figure(documents["scheduled"])["pool_bytes"]
    tokens = [step["tokens"] for step in documents["plain", "lengths"]["steps"]]
    assert len(set(tokens)) > 1 and max(tokens) <= 2 * 64
    assert tokens == [step["tokens"] for step in documents["scheduled", "lengths"]["steps"]]


def run_compare(path, *files, status=0):
    program = os.path.join(FOLDER, "compare.py")
    done = subprocess.run([sys.executable, program, "--json", str(path), *map(str, files)], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(path.read_text())


def test_comparison_of_bits(variants, tmp_path):
    document = json.loads(variants["max"].read_text())
    loss = document["steps"][2]["loss"]
    document["steps"][2]["loss"] = loss.replace("0000000p", "0000001p")
    assert document["steps"][2]["loss"] != loss
    (tmp_path / "corrupted.json").write_text(json.dumps(document))
    compared = run_compare(tmp_path / "compared.json", variants["plain"], tmp_path / "corrupted.json", status=1)
    assert compared["checks"][0]["outcome"] == "failed" and "step 2" in compared["checks"][0]["reason"]
    run_compare(tmp_path / "alone.json", variants["plain"], status=77)


def test_measurements_after_kill(tmp_path):
    path = tmp_path / "killed.json"
    process = subprocess.Popen(command("variant.py", path, "--variant", "scheduled", "--steps", "100000"),
                               stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while time.monotonic() < until and not (path.exists() and len(json.loads(path.read_text())["steps"]) > 2):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
    steps = json.loads(path.read_text())["steps"]
    assert len(steps) > 2 and [step["step"] for step in steps] == list(range(len(steps)))
    assert all(float.fromhex(step["loss"]) > 0 and step["ns"] > 0 for step in steps)


def test_largest_batch():
    document = part_of("largest batch scheduled")
    row, tried = figure(document), {each["batch"]: each["outcome"] for each in document["tries"]}
    assert (
        row["complete"] and 0 < row["largest_batch"] < row["smallest_that_fails"] <= row["largest_batch"] + RESOLUTION
    )
    assert tried[row["largest_batch"]] == "fits" and tried[row["smallest_that_fails"]] == "out of memory"
    assert row["pool_bytes"] > 0


def test_llama_with_pools():
    """A model of transformers: plain, and with pools of buckets and of parameters, in processes that take turns."""
    bytes_of = {}
    for name, way in (("pools", "pool"), ("pools in expandable segments", "pool, parameters, expandable")):
        rows = {row["name"]: row for row in part_of(f"steps llama, {name}")["figures"]}
        assert set(rows) == {"plain", way} and rows[way]["losses"] == rows["plain"]["losses"]
        assert rows[way]["pool_served"] > 0 == rows[way]["pool_fallbacks"] and "pool_bytes" not in rows["plain"]
        bytes_of[way] = rows[way]["pool_bytes"]
    assert bytes_of["pool, parameters, expandable"] > bytes_of["pool"] > 0


def test_megatron_fsdp():
    document = part_of("Megatron-FSDP")
    theirs, ours = document["figures"]
    assert (theirs["name"], ours["name"]) == ("no double buffers", "scheduled") and theirs["losses"] == ours["losses"]
    assert len(ours["losses"]) == 2 and len(set(ours["losses"][0])) == 4 and ours["windows"] == 3
    assert ours["pool_bytes"] >= ours["plan_bytes"] >= ours["plan_lower_bound_bytes"] > 0 == ours["from_pytorch"]
    assert sum(check["name"].startswith("scheduled") for check in document["checks"]) == 4


def test_two_ranks():
    document = part_of("two ranks")
    row = figure(document)
    assert (
        row["backend"] == "gloo" and len(row["losses"]["pool"]) == 5 and row["losses"]["pool"] == row["losses"]["plain"]
    )
    assert [check["outcome"] for check in document["checks"]] == ["passed"] * 6
    (skipped,) = document["skipped"]
    assert "NCCL" in skipped["reason"]


def test_hanging_rank(tmp_path):
    document = run("ranks.py", tmp_path / "ranks.json", "--seconds", "1.5", "--steps", "100000", status=1)
    said = [check["reason"] for check in document["checks"] if check["name"].endswith(" ends")]
    assert len(said) == 2 and all("in phase" in each for each in said)


def test_captured_step_without_graph():
    document = part_of("captured step")
    assert {check["outcome"] for check in document["checks"]} == {"passed"}
    assert figure(document)["served"]["param"] == 4 * 9 and "graph" in document["skipped"][0]["name"]


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKES, "libcuda.so.1")), reason=f"no emulated driver in {FAKES}")
def test_captured_step_on_emulated_driver():
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_fsdp2_emulated.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LD_LIBRARY_PATH": FAKES})
    assert done.returncode == 0, done.stderr
    eager, graph = json.loads(done.stdout.splitlines()[-1])
    assert all(eager[name] == graph[name] for name in ("losses", "gradients", "parameters"))
    assert (
        graph["acquires_inside"] == graph["releases_inside"] == 9 + 5
        and graph["launches"] == 3
        and graph["fallbacks"] == {}
    )


def test_skip_without_gpu():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    programs = ("variant.py", "largest_batch.py", "ranks.py", "megatron_training.py")
    started = [subprocess.Popen([sys.executable, os.path.join(FOLDER, program)], stdout=subprocess.PIPE, text=True)
               for program in programs]
    for process in started:
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 77 and "GPU" in said.splitlines()[-1]
