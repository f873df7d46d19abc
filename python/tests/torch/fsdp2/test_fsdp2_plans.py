# SPDX-License-Identifier: Apache-2.0
"""`plan --bucketing fsdp2` beside `describe` and beside FSDP2's own settings (predict), on bundled models and on modules with
every setting that schedules know. Models are on the meta device, ranks of a process group without communication.
"""

import contextlib
import json
import os
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import bucketpool as bp
from bucketpool import describe
from bucketpool._library import core
from bucketpool.torch import fsdp2
from places import ROOT

TOOL = os.path.join(os.path.dirname(core()._name), os.pardir, "tools", "bucketpool")
MODELS = os.path.join(ROOT, "examples", "models")

# Models of which plan has less than transformers builds.
DIFFERENT = {"Gemma-3-27B": "the text part is planned, transformers builds a vision tower, too"}
GRAD_UNITS = 3 if torch.__version__.startswith("2.12.") else 2  # 2.12 keeps the input of a reduce-scatter longer

pytestmark = pytest.mark.skipif(not os.path.exists(TOOL), reason="the command was not built beside the library")


@contextlib.contextmanager
def ranks(count):
    dist.init_process_group("fake", rank=0, world_size=count, store=fake.FakeStore())
    try:
        yield init_device_mesh("cpu", (count,))
    finally:
        dist.destroy_process_group()


def plan(path, count, *options):
    """Peaks of a plan: parameters, gradients, both; and its notes."""
    result = subprocess.run([TOOL, "plan", str(path), "--bucketing", "fsdp2", "--dp", str(count), "--param-dtype",
                             "bf16", "--grad-dtype", "fp32", "--align", "1", "--joint", "--policy", "dynamic,scheduled",
                             "--grad-units", str(GRAD_UNITS), "--json", *options], capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    model, = json.loads(result.stdout)["models"]
    dynamic, scheduled = model["policies"]
    roles = {role["role"]: role["lower_bound_bytes"] for role in dynamic["roles"]}
    return (roles["param"], roles["grad"], scheduled["lower_bound_bytes"]), model.get("notes", "")


def sharded_peaks(model, mesh, placement=None):
    """Peaks by FSDP2's settings: layers and the whole model are sharded, as trainers do."""
    options = {"mesh": mesh, "shard_placement_fn": placement,
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for _, layers in describe._lists(model, torch.nn):
        for layer in layers:
            fully_shard(layer, **options)
    fully_shard(model, **options)
    timeline = fsdp2.predict(model)
    return timeline.peak_bytes["param"], timeline.peak_bytes["grad"], timeline.joint_peak_bytes


def built(folder):
    model, _ = describe._of_config(os.path.join(folder, "config.json"))
    model.tie_weights()
    return model


def compared(folder, count, tmp_path):
    """Peaks of plan, of plan from describe's units.json, and of predict."""
    model = built(folder)
    path = tmp_path / "units.json"
    path.write_text(json.dumps(describe.units_of(model, "m")))
    with ranks(count) as mesh:
        return plan(folder, count), plan(path, count), sharded_peaks(model, mesh)


# With stacked experts, tied and separate embeddings, Mamba layers, one and several groups of experts. The others follow.
TEN = ["DeepSeek-V3", "Gemma-3-1B-it", "Granite-4.0-H-Tiny", "Jamba-1.5-Mini", "Llama-3.1-8B", "Mixtral-8x7B",
       "Nemotron-3-Nano-30B-A3B", "Qwen3-0.6B", "Qwen3-Next-80B-A3B", "gpt-oss-120b"]
OTHERS = sorted(set(os.listdir(MODELS)) - set(TEN))


@pytest.mark.parametrize("name,count", [(name, count) for name in TEN for count in (8, 64, 512)]
                         + [(name, 64) for name in OTHERS])
def test_bundled_models(name, count, tmp_path):
    (planned, notes), (described, _), predicted = compared(os.path.join(MODELS, name), count, tmp_path)
    assert described == predicted
    if name in DIFFERENT:
        print(f"{name}, dp {count}: plan {planned}, predict {predicted}: {DIFFERENT[name]}")
        assert planned != predicted and "not counted" in notes
    else:
        assert planned == predicted


# Rows of what is in the place of the head: a score, padded to the ranks; nothing.
HEADS = {"LlamaForSequenceClassification": 64, "LlamaModel": 0}


@pytest.mark.parametrize("architecture", HEADS)
def test_heads(architecture, tmp_path):
    """Models without a head for words: the architecture decides what transformers builds."""
    with open(os.path.join(MODELS, "Llama-3.1-8B", "config.json"), encoding="utf-8") as file:
        values = {**json.load(file), "architectures": [architecture], "num_hidden_layers": 4, "num_labels": 1}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (planned, _), (described, _), predicted = compared(tmp_path, 64, tmp_path)
    assert described == predicted
    assert predicted[1] == 4 * 4096 * (128256 + 1 + HEADS[architecture])
    if planned != predicted:
        print(f"{architecture}: plan {planned}, predict {predicted}: plan has the head of a language model")
        assert planned[1] - predicted[1] == 4 * 4096 * (128256 - HEADS[architecture])


def test_shard1(tmp_path):
    """A placement function for experts."""
    folder = os.path.join(MODELS, "Qwen3-30B-A3B")
    model = built(folder)
    with ranks(256) as mesh:
        predicted = sharded_peaks(model, mesh, lambda p: Shard(1) if p.dim() == 3 else None)
    planned, notes = plan(folder, 256, "--padding", "fsdp2-shard1")
    assert (planned, notes) == (predicted, "")
    assert plan(folder, 256)[0][0] > 1.9 * predicted[0]


# ---- settings -----------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(16, width)
        self.outer = torch.nn.Linear(width, 16)


class Stack(torch.nn.Module):
    def __init__(self, widths, root):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(width) for width in widths])
        if root:
            self.embedding = torch.nn.Embedding(101, 16)


def units_of(model, nested):
    """The same as a model of the library. The first part of blocks in `nested` is a nested unit."""
    made = bp.Model("stack")

    def add(name, module, parent, but=()):
        unit = None if name is None else made.add_unit(name, parent)
        for path, parameter in module.named_parameters():
            if not path.startswith(tuple(but)):
                made.add_parameter(f"{name}.{path}", list(parameter.shape), "fp32", unit=unit)
        return unit
    for index, block in enumerate(model.layers):
        unit = add(f"layers.{index}", block, None, ("inner",) if index in nested else ())
        if index in nested:
            add(f"layers.{index}.inner", block.inner, unit)
    if hasattr(model, "embedding"):
        add(None, model, None, ("layers",))
    return made


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("nested", [(), (1,), (0, 3, 4)])
@pytest.mark.parametrize("forward,backward", [(1, 1), (0, 0), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("keep", [False, True])
def test_settings(root, nested, forward, backward, keep):
    model = Stack([41, 23, 72, 7, 54], root)
    with ranks(4) as mesh:
        options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}
        for index, block in enumerate(model.layers):
            for module in [block.inner] * (index in nested) + [block]:
                fully_shard(module, reshard_after_forward=not keep, **options)
        fully_shard(model, **options)
        entered, left = orders(model, nested, root)
        for index, module in enumerate(entered if forward > 1 else []):
            module.set_modules_to_forward_prefetch(entered[index + 1:index + 1 + forward])
        for index, module in enumerate(left if backward > 1 else []):
            module.set_modules_to_backward_prefetch(left[index + 1:index + 1 + backward])
        timeline = fsdp2.predict(model)
    buckets = bp.Buckets(units_of(model, nested), bucketing="fsdp2", dp=4)
    schedule = bp.Schedule.training(buckets, prefetch=forward, prefetch_backward=backward, keep_after_forward=keep,
                                    grad_units=GRAD_UNITS)
    bounds = {joint: bp.Plan(buckets, schedule, joint=joint, alignment=1) for joint in (False, True)}
    roles = {role.roles[0]: role.lower_bound_bytes for role in bounds[False].roles}
    assert (roles, bounds[True].lower_bound_bytes) == (timeline.peak_bytes, timeline.joint_peak_bytes)


def orders(model, nested, root):
    """Modules in the order of pre-forward, and in that of pre-backward: the reverse of post-forward."""
    entered, left = [model] * root, []
    for index, block in enumerate(model.layers):
        entered += [block] + [block.inner] * (index in nested)
        left += [block.inner] * (index in nested) + [block]
    return entered, [model] * root + left[::-1]
