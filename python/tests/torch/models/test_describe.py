# SPDX-License-Identifier: Apache-2.0
"""python3 -m bucketpool describe: units from module trees, of transformers and of torch alone."""

import json
import os
import subprocess
import sys

import pytest
import torch

import bucketpool as bp
from bucketpool import describe
from places import ROOT

CONFIGS = os.path.join(ROOT, "tests", "data", "architectures")


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8, bias=False)


class Layer(torch.nn.Module):
    def __init__(self, experts=0):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Module()
        self.mlp.experts = torch.nn.ModuleList([Expert() for _ in range(experts)])
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])


class Mixed(torch.nn.Module):
    """A stack with layers of two kinds, tied weights and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 8)
        self.layers = torch.nn.ModuleList([Layer(), Layer(3), Layer(3)])
        self.head = torch.nn.Linear(8, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.projections = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)])


def total(model):
    return sum(p.numel() for p in model.parameters())


def command(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "bucketpool", *arguments], capture_output=True, text=True, timeout=600,
                          env={**os.environ, **environment})


def test_module_tree(tmp_path):
    model = Mixed()
    document = describe.units_of(model, "mixed", "fp32")
    assert [unit["name"] for unit in document["units"]] == ["layers.0", "layers.1", "layers.2"]
    assert describe.numel_of(document) == total(model)
    by_name = {p["name"]: p for unit in document["units"] for p in unit["parameters"]}
    up = by_name["layers.1.mlp.experts.*.up.weight"]
    assert (up["copies"], up["experts"], up["gemm"], up["shape"]) == (3, True, True, [16, 8])
    outside = {p["name"]: p for p in document["outside"]["parameters"]}
    assert sorted(outside) == ["embedding.weight", "projections.0.bias", "projections.0.weight", "projections.1.bias",
                               "projections.1.weight", "scale"]
    assert outside["scale"]["frozen"] and "frozen" not in outside["embedding.weight"]
    path = tmp_path / "units.json"
    path.write_text(json.dumps(document))
    with bp.Model.read(str(path)) as read:
        assert read.numel == total(model)
        buckets = bp.Buckets(read, dp=3, ep=3)
        assert {(b.unit, b.expert) for b in buckets} >= {("layers.0", False), ("layers.1", False), ("layers.1", True)}


@pytest.mark.parametrize("name", ["mixtral.1", "qwen3_5_moe.1", "t5.1", "whisper.1", "gemma4.1", "vit.1"])
def test_configurations(name, tmp_path):
    """Totals are those of the whole model with its towers, and planning works."""
    pytest.importorskip("transformers")
    sys.path.insert(0, CONFIGS)
    import dump

    path = os.path.join(CONFIGS, name + ".json")
    written = str(tmp_path / "units.json")
    done = command("describe", path, "-o", written)
    assert done.returncode == 0, done.stderr
    with bp.Model.read(written) as model:
        assert model.numel == total(dump.build(dump.read(path)))
        buckets = bp.Buckets(model, dp=2)
        assert bp.Plan(buckets, bp.Schedule.training(buckets)).bytes > 0


def test_class_paths():
    pytest.importorskip("transformers")
    document = describe.describe("transformers.BertModel", "fp16")
    assert len(document["units"]) == 12 and document["units"][0]["name"] == "encoder.layer.0"
    assert {p["dtype"] for p in document["units"][0]["parameters"]} == {"fp16"}


def test_refusals(tmp_path, monkeypatch):
    unknown = tmp_path / "config.json"
    unknown.write_text('{"model_type": "perceptron"}')
    with pytest.raises(bp.FileError, match="No such file"):
        describe.describe(str(tmp_path / "missing.json"))
    with pytest.raises(bp.InvalidArgument, match="neither a file nor"):
        describe.describe("nonsense")
    with pytest.raises(bp.InvalidArgument, match="neither a file nor"):
        describe.describe("os.path")
    with pytest.raises(bp.Unsupported, match="2 required"):
        describe.describe("torch.nn.Linear")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(bp.Unsupported, match="describe needs transformers"):
        describe.describe(str(unknown))


def test_unknown_types(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "perceptron"}')
    done = command("describe", str(tmp_path))
    assert done.returncode == 3 and "perceptron" in done.stderr and done.stdout == ""


def test_usage():
    done = command("describe", "--help")
    assert done.returncode == 0 and "config.json" in done.stdout
    done = command("describe")
    assert done.returncode == 2 and "MODEL" in done.stderr
