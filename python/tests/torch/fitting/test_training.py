# SPDX-License-Identifier: Apache-2.0
"""Trainings of a config.json: options, models, sharding, losses and optimizers, by what they record."""

import collections
import contextlib
import json
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "trace"))

import bucketpool as bp
import process_group
from bucketpool.torch import trace
from bucketpool.torch.fitting import losses
from bucketpool.torch.fitting.training import OPTIMIZERS, Training, clip, config_of
from places import ROOT
from trace_cases import measured

transformers = pytest.importorskip("transformers")

MODELS = os.path.join(ROOT, "examples", "models")
LLAMA = dict(model_type="llama", hidden_size=256, intermediate_size=512, num_hidden_layers=3, vocab_size=1024,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False)
EXPERTS = dict(LLAMA, model_type="qwen3_moe", head_dim=64, moe_intermediate_size=128, num_experts=8,
               num_experts_per_tok=2, mlp_only_layers=[])


@contextlib.contextmanager
def group(ranks):
    if ranks == 1:
        yield
        return
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def written(tmp_path):
    """A config.json with these fields."""
    def write(fields=LLAMA, **changed):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**fields, **changed}))
        return str(path)

    return write


def recorded(path, batch=2, steps=2, routing="", **options):
    """The training, and its recording, in which the model is live at the end."""
    training = Training({"model": path, "sequence": 128, **options})
    if routing:
        training.routing = routing
    with group(training.ranks), trace.record(device="cuda") as recording:
        built = training.build()
        training.whole = sum(each.numel() for each in built.model.parameters())
        for _ in range(steps):
            recording.step()
            training.step(built, batch)
        training.kinds = collections.Counter()
        for each in recording.live():
            training.kinds[each.kind] += each.bytes
    return training, recording


def train(path, options, steps=2, step=lambda: None):
    """On the CPU, in values or recorded."""
    training = Training({"model": path, "sequence": 64, **options})
    training.device = "cpu"
    built = training.build()
    for _ in range(steps):
        step()
        training.step(built, 16)


def measured_train(path, options):
    train(path, options, steps=1)
    return measured(train, path, options)


REAL = {
    "autocast": {}, "bf16": dict(weights="bf16"), "checkpointing": dict(checkpointing="full"),
    "logprobs": dict(loss="logprobs"), "bucketpool": dict(loss="bucketpool"), "momentum": dict(optimizer="momentum"),
    "experts": dict(weights="bf16"), "ddp": dict(dp=2, runtime="ddp"), "tp": dict(tp=2),
}


def both_measured(path):
    return [min(measured_train(path, REAL[name]) for _ in range(2)) for name in ("ddp", "tp")]


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """Peaks of two ranks: of ddp, and of tp. They vary by the time that gloo keeps a buffer of a collective."""
    path = tmp_path_factory.mktemp("llama") / "config.json"
    path.write_text(json.dumps(LLAMA))
    return dict(zip(("ddp", "tp"), map(min, zip(*process_group.run(both_measured, str(path))))))


@pytest.mark.parametrize("name", REAL)
def test_real_peak(name, written, request):
    """A recording's peak is that of PyTorch's allocator when the training runs on CPUs."""
    path, options = written(EXPERTS if name == "experts" else LLAMA), REAL[name]
    ranks = options.get("dp", 1) * options.get("tp", 1)
    real = measured_train(path, options) if ranks == 1 else request.getfixturevalue("of_ranks")[name]
    with group(ranks), trace.record(device="cpu") as recording:
        train(path, options, step=recording.step)
    assert recording.peak_bytes == pytest.approx(real, rel=0.01 if ranks == 1 else 0.02)


def size_of(fields):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(fields))
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("options", [{}, {"dp": 4}, {"dp": 4, "runtime": "ddp"}, {"weights": "bf16"},
                                     {"tp": 2}, {"dp": 2, "tp": 2, "weights": "bf16"}], ids=str)
def test_memory(options, tied, written):
    """Parameters and state of AdamW after a step, of this rank: tied weights count once, DDP has buckets as well."""
    path = written(tie_word_embeddings=tied)
    training, _ = recorded(path, **options)
    size = size_of(path)
    ranks = training.tp * (training.dp if training.runtime == "fsdp2" else 1)
    width = 2 if training.weights == torch.bfloat16 else 4
    expected = size * width // ranks
    norms = (2 * 3 + 1) * 256 * width  # are not divided by tp
    assert training.parameters == size
    assert expected <= training.kinds["parameters"] <= expected + norms + 20_000
    assert training.kinds["optimizer state"] == pytest.approx(2 * training.kinds["parameters"], rel=0.02)
    assert training.kinds["gradients"] == 0
    assert training.kinds["communication"] == (size * 4 if training.runtime == "ddp" else 0)


def test_checkpointing(written):
    """Activations of a layer at a time; the largest part is in the loss."""
    none, full = (recorded(written(), checkpointing=each, batch=8)[1].peak_bytes for each in ("none", "full"))
    assert full < 0.8 * none


def test_reshard(written):
    kept, freed = (recorded(written(num_hidden_layers=6), dp=4, batch=1, steps=1, reshard=each)[1].peak_bytes
                   for each in (False, True))
    assert freed < kept


def test_losses(written):
    """The fused head holds at most 1 GiB for logits, here one copy in fp32 and half of their gradient: an eager step has
    them in fp32 and bf16, their log softmax and gradients.
    """
    path, logits = written(vocab_size=32768), 24 * 128 * 32768
    peaks = {each: recorded(path, batch=24, loss=each, weights="bf16")[1].peak_bytes for each in losses.LOSSES}
    assert peaks["logprobs"] - peaks["bucketpool"] > 4 * logits
    training, recording = recorded(path, loss="bucketpool", dp=4)
    assert any(each.op == "bucketpool::head_forward (workspace)" for each in recording.peak())


def test_losses_are_equal():
    """In values: the client's loss from hidden states is that of logits, with the scales and caps of models."""
    for kind, more in (("llama", {}), ("gemma2", dict(final_logit_softcapping=5.0, head_dim=64)),
                       ("granite", dict(logits_scaling=4.0))):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(**{**LLAMA, "model_type": kind, **more})
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        tokens = torch.randint(0, 1000, (2, 16))
        expected = losses.logprobs(model(input_ids=tokens).logits, tokens)
        losses.returns_logprobs(model)
        assert torch.allclose(model(tokens), expected, atol=1e-5), kind


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, written):
    """Bytes of state for each parameter, and FSDP2's tensors are accepted."""
    path = written()
    states = {"adamw": 8, "fused-adamw": 8, "loop-adamw": 8, "sgd": 0, "momentum": 4, "adagrad": 4}
    for options in ({}, {"dp": 4}):
        if name == "adafactor" and options:
            with pytest.raises(bp.Unsupported, match="adafactor"):
                recorded(path, optimizer=name, **options)
            continue
        training, _ = recorded(path, optimizer=name, **options)
        state = training.kinds["optimizer state"] / training.kinds["parameters"] * 4
        assert state == pytest.approx(states[name], abs=0.05) if name in states else 0 < state < 1


def test_clip():
    """Parameters of several meshes have one norm."""
    plain = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for each in plain:
        each.grad = torch.full((3, ), 2.0)
    clip(plain)
    assert float(torch.cat([each.grad for each in plain]).norm()) == pytest.approx(1.0, rel=1e-4)


def test_notes(written):
    notes = Training({"model": written(), "sequence": 1024, "layers": 2, "loss": "logprobs"}).notes
    assert [note.partition(":")[0] for note in notes] == ["sequence", "layers", "loss"]
    assert "1024 tokens are more than the 512 positions" in notes[0]
    notes = Training({"model": os.path.join(MODELS, "Gemma-3-27B")}).notes
    assert notes == ["model: the text model of gemma3 alone; its other parts, such as vision, are left out"]


def test_layers():
    """Lists and patterns with an entry for each layer are cut, too."""
    for name in ("Llama-3.1-8B", "Nemotron-H-8B", "Nemotron-3-Ultra-550B-A55B", "Gemma-3-27B", "gpt-oss-120b"):
        assert config_of(os.path.join(MODELS, name), 3).num_hidden_layers == 3, name
    assert config_of(os.path.join(MODELS, "Llama-3.1-8B")).num_hidden_layers == 32


REFUSED = {  # options, and what a sentence names
    "runtime": (dict(runtime="megatron"), "runtime: expected fsdp2, ddp, single, got 'megatron'"),
    "single": (dict(runtime="single", dp=2), "runtime single: no data parallelism, but dp is 2"),
    "dp": (dict(dp=0), "dp: expected a number above 0, got 0"),
    "tp": (dict(tp="2"), "tp: expected a number above 0, got '2'"),
    "ep": (dict(dp=4, ep=3), "ep: 3 does not divide dp, 4"),
    "optimizer": (dict(optimizer="lion"), "optimizer: expected adamw, "),
    "weights": (dict(weights="fp8"), "weights: expected fp32, bf16, got 'fp8'"),
    "reduce_dtype": (dict(runtime="ddp", dp=2, reduce_dtype="bf16"), "reduce-dtype: has no effect with runtime ddp"),
    "reshard": (dict(reshard=False), "no-reshard: has no effect with runtime single"),
    "one rank": (dict(runtime="fsdp2"), "runtime fsdp2: needs ranks, but dp and tp are 1"),
    "mixed": (dict(weights="bf16", param_dtype="fp32"), "weights in bf16 are used in bf16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, written):
    options, sentence = REFUSED[name]
    with pytest.raises(bp.InvalidArgument, match=sentence):
        Training({"model": written(), **options})


def test_refused_models(written, tmp_path):
    """Files that are no configurations, and models whose code is not in transformers."""
    with pytest.raises(bp.InvalidArgument, match="config.json: .*; pass a config.json"):
        Training({"model": str(tmp_path / "config.json")})
    with pytest.raises(bp.InvalidArgument, match="no model_type"):
        Training({"model": written({})})
    with pytest.raises(bp.Unsupported, match="'unheard' is not in this version of transformers, and its code on the "
                                             "hub is not run; install a version that has it"):
        Training({"model": written(dict(model_type="unheard", auto_map={}))})
    with pytest.raises(bp.Unsupported, match="'bart': an encoder and a decoder"):
        Training({"model": written(dict(model_type="bart"))})
    with pytest.raises(bp.Unsupported, match="'jamba': .* token by token, too many operators for 4096 tokens; pass"):
        Training({"model": os.path.join(MODELS, "Jamba-1.5-Mini")})
    learned = dict(model_type="gpt2", n_layer=1, n_embd=64, n_head=2, vocab_size=512)
    with pytest.raises(bp.InvalidArgument, match="2048 tokens, but the model has learned positions for 1024; pass"):
        recorded(written(learned), sequence=2048)
    recorded(written(learned), sequence=1024)
    with pytest.raises(bp.Unsupported, match="'vit': transformers has no causal language model"):
        recorded(written(dict(model_type="vit")))
