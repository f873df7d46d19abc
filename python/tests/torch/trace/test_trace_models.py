# SPDX-License-Identifier: Apache-2.0
"""Recordings of FSDP2 on a fake process group, of models of transformers, and of examples/trace_step.py."""

import collections
import contextlib
import importlib.util
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import process_group
from bucketpool.torch import trace
from trace_cases import Transformer, checked, kinds, measured, steps_in
from places import ROOT


@contextlib.contextmanager
def fake_group(ranks):
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def train_sharded(reshard, device="cpu", on_meta=False, steps=3, step=lambda: None):
    """FSDP2 with a unit for each layer: fp32 shards, bf16 gathered, gradients reduced in fp32. Model and optimizer."""
    mesh = init_device_mesh(device, (dist.get_world_size(), ))
    with torch.device("meta" if on_meta else device):
        net = Transformer()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in net.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(net, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    if on_meta:
        net.to_empty(device=device)
    x = torch.randint(0, 1000, (4, 128), device=device)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        step()
        F.cross_entropy(net(x).flatten(0, 1).float(), x.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def real_peak(reshard):
    train_sharded(reshard, steps=1)  # the first training of a process also makes groups
    return measured(train_sharded, reshard)


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2_on_cpu(reshard):
    """gloo keeps buffers of its last collective a little longer than NCCL's streams, depending on time: real ranks take
    as much as the recording or, by a few buffers, more."""
    real = process_group.run(real_peak, reshard)
    with fake_group(2), trace.record(device="cpu") as recorded:
        train_sharded(reshard, step=recorded.step)
    assert 0 <= min(real) - recorded.peak_bytes + 64 <= 0.15 * recorded.peak_bytes, (real, recorded.peak_bytes)


@pytest.mark.parametrize("name", ["cpu-llama-accumulated", "cpu-llama-fsdp2-checkpoint"])
def test_real_ranks(name):
    """Trainings of bench/torch/fit, on one rank and on two: the peak of their tensors within 1 %. gloo keeps buffers
    longer on a rank that is behind, so the smaller peak counts."""
    folder = os.path.join(ROOT, "bench", "torch", "fit")
    done = subprocess.run([sys.executable, os.path.join(folder, "measured.py"), "--cpu", "--case", name],
                          capture_output=True, text=True, timeout=600)
    row = re.search(rf"^{name} +peak +([0-9.]+) +([0-9.]+) +([-+][0-9.]+) %", done.stdout, re.M)
    assert done.returncode == 0 and row and abs(float(row[3])) <= 1, done.stdout + done.stderr


def gathered_peak(snapshot):
    """Most bytes of gathered parameters: FSDP2 resizes their storages to 0 and back."""
    live = peak = 0
    for event in snapshot["device_traces"][0]:
        if event["frames"][0]["name"] == "resize_" and event["action"] != "free_completed":
            live += event["size"] if event["action"] == "alloc" else -event["size"]
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("on_meta", [False, True])
def test_fsdp2(on_meta):
    """Shards persist, gathered parameters are as FSDP2's rules say, and collectives are on their streams."""
    recordings = {}
    for reshard in (True, False):
        with fake_group(8), trace.record(device="cuda") as recorded:
            net, optimizer = train_sharded(reshard, "cuda", on_meta, step=recorded.step)
            sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in net.layers]
            whole = sum(parameter.numel() for parameter in net.parameters())
            local = sum(parameter.to_local().numel() for parameter in net.parameters())
            assert local * 8 >= whole and all(size == sizes[0] for size in sizes)
            persistent = collections.Counter()
            for each in recorded.live():
                persistent[each.op] += each.bytes
            # shards; two moments of AdamW; workspaces of this thread and of autograd's; tokens
            assert optimizer.state and persistent["aten::zeros_like"] == 2 * 4 * local
            assert persistent["aten::empty_like" if on_meta else "aten::new_zeros"] >= 4 * local
            assert persistent["cuBLAS workspace"] == 64 << 20
            assert sum(persistent.values()) < (65 << 20) + 13 * 4 * local
        snapshot = recorded.snapshot()
        checked(snapshot)
        recordings[reshard] = recorded
        outside = whole - sum(sizes)  # the root keeps its own, which are outside of layers
        expected = outside + (sizes[0] if reshard else sum(sizes))  # a prefetched layer is not copied out yet
        assert gathered_peak(snapshot) == pytest.approx(2 * expected, rel=0.01)
        streams = {}
        for event in snapshot["device_traces"][0]:
            frames = [frame["name"] for frame in event["frames"]]
            for name in ("all_gather_copy_in_cuda", "foreach_reduce"):
                if event["action"] == "alloc" and name in frames:
                    streams.setdefault(name, set()).add(event["stream"])
        assert 0 in streams["foreach_reduce"] and len(streams["foreach_reduce"]) == 2
        assert any("_fsdp_param_group:" in note for note in recorded.notes)
    assert recordings[True].peak_bytes < recordings[False].peak_bytes


def test_shapes_of_dtensor():
    """DTensor runs an operator on whole tensors, of which it wants the shapes: they take no memory on a GPU, and the
    first recording of a process is like the second, for which PyTorch has cached the shapes."""
    events = []
    for _ in range(2):
        with fake_group(8), trace.record(device="cuda") as recorded:
            with torch.device("meta"):
                net = torch.nn.Linear(1048, 1096, bias=False)
            fully_shard(net, mesh=init_device_mesh("cuda", (8, )))
            net.to_empty(device="cuda")
            with torch.no_grad():
                net.weight.mul(2)
            assert recorded.peak_bytes == 2 * 4 * 1048 * 1096 // 8
            assert kinds(recorded.live()) == {"parameters": recorded.peak_bytes // 2}
        events.append([event["size"] for event in recorded.snapshot()["device_traces"][0]])
    assert events[0] == events[1] and len(events[0]) == 4  # two allocations; one is freed


@pytest.mark.parametrize("microbatches", [1, 2])
def test_fsdp2_kinds(microbatches):
    """Shards and gathered parameters, sharded gradients, optimizer state, and buffers of collectives."""
    with fake_group(8), trace.record(device="cuda") as recorded:
        with torch.device("cuda"):
            net = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4)))
        for layer in net:
            fully_shard(layer)
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters())
        shards, layer = 4 * 512 * 512 * 4 // 8, 512 * 512 * 4
        for _ in range(2):
            recorded.step()
            for _ in range(microbatches):
                net(torch.randn(64, 512, device="cuda")).sum().backward()
                sizes = kinds(recorded.live())
                assert sizes["parameters"] == sizes["gradients"] == shards
            optimizer.step()
            optimizer.zero_grad()
        assert kinds(recorded.live()) == {"parameters": shards, "optimizer state": 2 * shards, "workspace": 64 << 20}
    live, most = collections.Counter(), collections.Counter()
    known = {}
    snapshot = recorded.snapshot()
    first, end = steps_in(snapshot)[1]
    for event in snapshot["device_traces"][0][:end]:
        if event["action"] == "alloc":
            known[event["addr"]] = event["user_metadata"]
            live[known[event["addr"]]] += event["size"]
        elif event["action"] == "free_requested":
            live[known[event["addr"]]] -= event["size"]
        if event["time_us"] >= first:
            most.update({kind: max(0, size - most[kind]) for kind, size in live.items()})
    assert most["kind=parameters"] in (shards + layer, shards + 2 * layer)  # gathered layers beside the shards
    assert layer <= most["kind=communication"] <= 3 * layer  # all-gathers ahead, one reduce-scatter
    assert most["kind=gradients"] in (shards + layer, shards + layer + layer // 8)  # one before its scatter
    assert most["kind=optimizer state"] == 2 * shards


def example():
    spec = importlib.util.spec_from_file_location("trace_step", os.path.join(ROOT, "examples", "trace_step.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["trace_step"] = module
    spec.loader.exec_module(module)
    return module


pytest.importorskip("transformers")
CASES = example().CASES


@pytest.mark.parametrize("name", ["dense", "dense-small", "experts-fsdp", "rl"])
def test_example(name, tmp_path, monkeypatch, capsys):
    """Two layers of each model of the example, with its real widths: kernels, names, steps that are alike."""
    module = example()
    path = tmp_path / "step.pickle"
    monkeypatch.setattr(sys, "argv", ["trace_step.py", name, "--layers", "2", "--sequence", "512", "--output",
                                      str(path)])
    recordings = []
    record = module.record
    monkeypatch.setattr(module, "record", lambda *arguments: recordings.append(record(*arguments)) or recordings[0])
    module.main()
    recorded, = recordings
    assert path.stat().st_size > 10_000 and "peak " in capsys.readouterr().out
    snapshot = recorded.snapshot()
    assert checked(snapshot) == (recorded.peak_bytes, recorded.live_bytes)
    steps = steps_in(snapshot)
    assert len(steps) == 3 and steps[2][1] - steps[2][0] == steps[1][1] - steps[1][0]
    assert [start for start, _ in steps] == snapshot["recording"]["steps"] and steps[2][1] == recorded.event_count
    operators = collections.Counter(event["frames"][0]["name"] for event in snapshot["device_traces"][0])
    assert operators["aten::_scaled_dot_product_cudnn_attention"] and not operators["aten::bitwise_and"]  # no mask
    places = {event["frames"][0]["filename"] for event in snapshot["device_traces"][0]}
    assert "model.layers.1.self_attn.o_proj (backward)" in places and "optimizer" in places
    if module.CASES[name].checkpoint:
        assert "model.layers.1.self_attn.o_proj (recompute)" in places
    if name == "experts-fsdp":
        assert operators["aten::_grouped_mm"] and operators["resize_"]


def test_example_cases():
    """Ten cases; each names a model of examples/models."""
    assert len(CASES) == 10
    for case in CASES.values():
        assert os.path.exists(os.path.join(ROOT, "examples", "models", case.model, "config.json"))


def test_llama_bytes():
    """With checkpointing, a Llama model saves the input of each layer, and no scores."""
    import transformers
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=4, vocab_size=1024,
                                      num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa")
    with trace.record(device="cuda") as recorded:
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
            tokens = torch.randint(0, 1000, (1, 2048))
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        size = sum(2 * each.numel() for each in model.parameters())
        assert recorded.live_bytes - size < 20_000 and 0 <= kinds(recorded.live())["parameters"] - size < 2_000
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
        saved = [each for each in recorded.live() if each.phase == "forward" and each.bytes == 2048 * 256 * 2]
        # the embeddings, outputs of four layers; the norm keeps its input in fp32, and its output
        assert len(saved) in (5, 6, 7) and hidden.requires_grad
        assert not any(each.bytes >= 2048 * 2048 for each in recorded.live() if each.op != "cuBLAS workspace")


def test_llama_kinds():
    """Tied embeddings count once; gradients accumulate in the same memory; the optimizer's state stays."""
    import transformers
    config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, vocab_size=512,
                                      num_attention_heads=4, tie_word_embeddings=True, attn_implementation="sdpa")
    with trace.record(device="cuda") as recorded:
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM(config)
            tokens = torch.randint(0, 500, (2, 64))
        size = sum(4 * each.numel() for each in model.parameters())
        buffers = sum(each.numel() * each.element_size() for each in model.buffers())
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            for _ in range(2):
                model(input_ids=tokens, labels=tokens).loss.backward()
                sizes = kinds(recorded.live())
                assert size + buffers - 600 <= sizes["parameters"] <= size + buffers and sizes["gradients"] == size
            optimizer.step()
            optimizer.zero_grad()
        sizes = kinds(recorded.live())
        assert sizes["optimizer state"] == 2 * size and sizes["gradients"] == 0
        assert sizes[""] <= 2 * 64 * 8 + 4 + 1024  # tokens and the loss


def test_trainer(tmp_path):
    """transformers' Trainer: its model is made before, each step updates, and files have no invented values."""
    import transformers
    pytest.importorskip("accelerate")
    config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, vocab_size=512,
                                      num_attention_heads=4, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config)
    size = sum(4 * each.numel() for each in model.parameters())
    numbers = [{"input_ids": torch.arange(32), "labels": torch.arange(32)} for _ in range(8)]
    with trace.record(device="cuda") as recorded:
        options = transformers.TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=2, max_steps=3,
                                                 bf16=True, report_to=[], save_steps=3, disable_tqdm=True)
        trainer = transformers.Trainer(model=model, args=options, train_dataset=numbers)
        trainer.train()
        sizes = kinds(recorded.live())
    assert sizes["parameters"] >= size
    assert sizes["optimizer state"] == 2 * size + 4 * len(list(model.parameters()))  # fused: steps on the GPU, too
    names = [each["name"] for each in recorded.snapshot()["external_annotations"] if each["stage"] == "START"]
    assert names.count("Optimizer.step#AdamW.step") == 3
    assert not list(tmp_path.rglob("*.safetensors")) and any(note.startswith("files: ") for note in recorded.notes)
