# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run (process_group.py): losses and a digest of the weight shards, with Megatron-FSDP's
allocators and with pooled ones.
"""

import contextlib
import hashlib
import logging
import os
import random
import warnings
from typing import Any, Callable, Dict, Iterator, Optional
from unittest.mock import patch

import torch
import torch.distributed as dist

import megatron_fsdp
from bucketpool import Mismatch, ScheduleError
from bucketpool.torch import megatron_fsdp as pooled
from megatron_cpu import buffers, random_stack, step, without_cuda, wrap

SEED, STEPS = 4, 3


def quiet_rank() -> int:
    """The rank of this process, which prints no warnings from now on."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    return dist.get_rank()


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


class _Linear(torch.autograd.Function):
    """As the linear layers of Transformer Engine and Megatron: saves the parameter. nn.Linear saves a view of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        return gradient @ weight, rows.t() @ x.flatten(0, -2), rows.sum(0) if ctx.needs_input_grad[2] else None


def permuted(shuffle: int, saves_views: bool) -> torch.nn.Module:
    """A stack whose units run in another order in each microbatch."""
    stack = random_stack(SEED)
    chance = random.Random(shuffle)

    def forward(words: torch.Tensor) -> torch.Tensor:
        x = stack.embedding(words)
        for unit in chance.sample(list(stack.units), len(stack.units)):
            x = unit(x)
        return stack.output(x)

    stack.forward = forward  # type: ignore[method-assign]
    if not saves_views:
        for module in stack.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = (lambda x, linear=module: _Linear.apply(x, linear.weight, linear.bias))
    return stack


@contextlib.contextmanager
def waiting(*arguments: Any, **named: Any) -> Iterator[Any]:
    """Coalesced collectives that have ended when the block does. In another order Megatron-FSDP frees what it gathered
    ahead without a wait, which streams make safe, but not gloo's threads.
    """
    with dist._coalescing_manager(*arguments, **named) as manager:
        yield manager
    manager.wait()


def run_permuted(name: str, shuffle: int, saves_views: bool) -> Dict[str, Any]:
    """Losses with "none" (no double buffers), Megatron-FSDP's "fixed" and "max", or ours with this on_mismatch."""
    rank, installed = quiet_rank(), None
    with without_cuda(), patch.object(buffers, "_coalescing_manager", waiting):
        if name in ("none", "fixed", "max"):
            model = wrap(permuted(shuffle, saves_views), double_buffer=name != "none", maxpool=name == "max")
        else:
            with pooled.install(on_mismatch=name) as installed:
                model = wrap(permuted(shuffle, saves_views))
        try:
            result = train(model, rank)
        except ScheduleError as error:
            return {"error": str(error)}
    return {**result, "busy": installed.counts.busy} if installed else result


def two_modules() -> Dict[str, Any]:
    """Two modules in one install(), as the chunks of a virtual pipeline: losses as of each alone."""
    rank = quiet_rank()
    with without_cuda():
        expected = [train(wrap(random_stack(SEED), double_buffer=False), rank) for _ in range(2)]
    with without_cuda():
        with pooled.install() as installed:
            models = [wrap(random_stack(SEED)) for _ in range(2)]
        results = [train(model, rank) for model in models]
        try:
            installed.pool
            refused = ""
        except ScheduleError as error:
            refused = str(error)
        pools = [each.pool for each in installed.modules]
        installed.close()
    return {"same": results == expected, "pools": len({id(pool) for pool in pools}), "refused": refused,
            "served": [each.counts.served for each in installed.modules],
            "unplanned": [each.counts.busy + each.counts.differing for each in installed.modules]}


def changed_dtype() -> Dict[str, Any]:
    """Gradients in another dtype after the first step, as Megatron's tests change grad_comm_dtype."""
    rank = quiet_rank()
    answers: Dict[str, Any] = {}
    for name in ("fixed", "replan", "plain", "error"):
        installed = None
        with without_cuda():
            policy = megatron_fsdp.MixedPrecisionPolicy(main_grads_dtype=torch.float32)
            if name == "fixed":  # without double buffers the policy cannot change
                model = wrap(random_stack(SEED), policy=policy)
            else:
                with pooled.install(on_mismatch=name) as installed:
                    model = wrap(random_stack(SEED), policy=policy)
            optimizer = megatron_fsdp.fully_shard_optimizer(torch.optim.Adam(model.parameters(), 1e-2))
            losses = []
            try:
                for number in range(4):
                    changed = megatron_fsdp.MixedPrecisionPolicy(grad_comm_dtype=torch.bfloat16 if number else None)
                    with model.mixed_precision_context(changed):
                        losses.append(step(model, 100 * number + rank).item().hex())
                        optimizer.step()
                        optimizer.zero_grad()
            except Mismatch as error:
                losses = [str(error)]
        answers[name] = {"losses": losses, "counts": installed and vars(installed.counts)}
    return answers


def all_runs() -> Dict[str, Dict[str, Any]]:
    rank = quiet_rank()
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
