"""One rank of a training run (process_group.py): losses and a digest of the weight shards, with Megatron-FSDP's
allocators and with pooled ones.
"""

import hashlib
import logging
import os
import warnings
from typing import Any, Callable, Dict, Optional

import torch
import torch.distributed as dist

import megatron_fsdp
from bucketpool.torch import megatron_fsdp as pooled
from megatron_cpu import random_stack, step, without_cuda, wrap

SEED, STEPS = 4, 3


def train(model: torch.nn.Module, rank: int) -> Dict[str, Any]:
    optimizer = megatron_fsdp.fully_shard_optimizer(torch.optim.Adam(model.parameters(), 1e-2))
    losses = []
    for number in range(STEPS):
        for microbatch in range(2):
            losses.append(step(model, 100 * number + 10 * microbatch + rank).item().hex())
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for _, parameter in sorted(model.named_parameters()):
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return {"losses": losses, "weights": digest.hexdigest()}


def theirs(rank: int, **options: Any) -> Dict[str, Any]:
    with without_cuda() as memory:
        result = train(wrap(random_stack(SEED), **options), rank)
        result["bytes"] = sum((tensor.nbytes + 255) // 256 * 256 for tensor in memory.buffer.values())  # as plans round
    return result


def ours(rank: int, policy: str, plan: Optional[Any] = None, **options: Any) -> Dict[str, Any]:
    with without_cuda() as memory:
        with pooled.install(plan=plan, policy=policy, guard=options.pop("guard", "off")) as installed:
            model = wrap(random_stack(SEED), **options)
        result = train(model, rank)
        assert not memory.buffer, "Megatron-FSDP allocated buffers itself"
        units = installed.units
        result["bytes"] = installed.plan.bytes + sum(units.outside_bytes(role) for role in units.roles)
        result["deviations"] = installed.pool.statistics.deviations
        result["live"] = {role: each.live for role, each in installed.allocators.items()}
    return result


def all_runs() -> Dict[str, Dict[str, Any]]:
    rank = dist.get_rank()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    runs: Dict[str, Callable[[], Dict[str, Any]]] = {
        "without double buffers": lambda: theirs(rank, double_buffer=False),
        "FixedPoolAllocator": lambda: theirs(rank),
        "MaxPoolAllocator": lambda: theirs(rank, maxpool=True),
        "pooled, scheduled": lambda: ours(rank, "scheduled"),
        "pooled, scheduled, guarded": lambda: ours(rank, "scheduled", guard="on"),
        "pooled, max": lambda: ours(rank, "max", maxpool=True),
        "pooled, fixed, outside dynamic": lambda: ours(rank, "fixed", persistent=False),
    }
    if os.environ.get("BUCKETPOOL_BRIEF"):
        runs = {name: runs[name] for name in ("without double buffers", "MaxPoolAllocator", "pooled, scheduled")}
    return {name: run() for name, run in runs.items()}
