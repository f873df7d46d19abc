# SPDX-License-Identifier: Apache-2.0
"""Trainings on the CPU that really run, on one rank and on two with gloo: the peak of their tensors, and that of a recording of rank 0."""

import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore


@dataclass
class Case:
    ranks: int = 1
    checkpoint: bool = False
    microbatches: int = 1
    hybrid: bool = False  # attention, MLP and experts, by position


CASES = {
    "cpu-llama": Case(),
    "cpu-llama-checkpoint": Case(checkpoint=True),
    "cpu-llama-accumulated": Case(microbatches=2),
    "cpu-llama-fsdp2": Case(ranks=2),
    "cpu-llama-fsdp2-checkpoint": Case(ranks=2, checkpoint=True),
    "cpu-llama-fsdp2-accumulated": Case(ranks=2, microbatches=2),
    "cpu-hybrid-fsdp2": Case(ranks=2, hybrid=True),
}


def build(case):
    if case.hybrid:
        import model as hybrid
        return hybrid.Hybrid(96, 4, 1, 2048)
    import transformers
    config = transformers.LlamaConfig(hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                                      vocab_size=2048, max_position_embeddings=512, use_cache=False, attn_implementation="eager")
    made = transformers.LlamaForCausalLM(config).train()
    if case.checkpoint:
        made.gradient_checkpointing_enable({"use_reentrant": False})
    return made


def train(case, step=lambda: None):
    """Two steps, with everything that they allocate."""
    torch.manual_seed(0)
    model = build(case)
    if case.ranks > 1:
        mesh, policy = init_device_mesh("cpu", (case.ranks,)), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers if case.hybrid else model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    if case.hybrid:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.02)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 2048, (64, 257) if case.hybrid else (16, 256))
    for _ in range(2):
        step()
        for _ in range(case.microbatches):
            loss = model(tokens) if case.hybrid else model(input_ids=tokens, labels=tokens).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def peak_of(function, *arguments):
    """Of the CPU's allocator: the profiler records each allocation and free."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        function(*arguments)
    events = [(event.start_ns(), event.nbytes()) for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        live += size
        peak = max(peak, live)
    return peak


def _rank(rank, name, path, found):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    case = CASES[name]
    if case.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=case.ranks)
    train(case)  # the first training of a process also makes groups and caches
    found[rank] = peak_of(train, case)
    if case.ranks > 1:
        dist.destroy_process_group()


def real(name):
    """Peak bytes of each rank."""
    context = torch.multiprocessing.get_context("spawn")
    with context.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        found = manager.dict()
        torch.multiprocessing.spawn(_rank, (name, os.path.join(folder, "store"), found), nprocs=CASES[name].ranks)
        return [found[rank] for rank in sorted(found.keys())]


def recorded(name):
    """Peak bytes of a recording of rank 0."""
    from bucketpool.torch import trace
    case = CASES[name]
    if case.ranks > 1:
        dist.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    try:
        with trace.record(device="cpu") as found:
            train(case, found.step)
        return found.peak_bytes
    finally:
        if case.ranks > 1:
            dist.destroy_process_group()
