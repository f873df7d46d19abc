"""Megatron-FSDP without a GPU: a replacement for torch.cuda, random modules, and wrapping them.

The package uses streams, events and the current device of torch.cuda, moves one tensor with .cuda(), and allocates its
global buffers on the current CUDA device. On a CPU work has run when a call returns, so streams and events that do
nothing are correct. Everything else is the package's, also collectives: gloo, or torch's fake process group, which
moves nothing, for many ranks in one process.
"""

import contextlib
import random
import types
import unittest.mock
from typing import Any, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

import megatron_fsdp
from megatron_fsdp import param_and_grad_buffer as buffers
from megatron_fsdp import utils
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

CPU = torch.device("cpu")
torch.set_num_threads(1)  # the tensors are small


class _Event:
    def wait(self, stream: Any = None) -> None:
        pass


class _Stream:
    device = "cpu"

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self) -> _Event:
        return _Event()


class _GlobalBuffer(utils.GlobalMemoryBuffer):
    """The package's, on the CPU."""

    def get_tensor(self, *arguments: Any, **named: Any) -> torch.Tensor:
        with unittest.mock.patch.object(torch.cuda, "current_device", lambda: CPU):
            return super().get_tensor(*arguments, **named)


@contextlib.contextmanager
def without_cuda() -> Iterator[_GlobalBuffer]:
    """A context in which the package works on a CPU. Yields a counter of the bytes of its double buffers."""
    only, buffer = _Stream(), _GlobalBuffer()
    patch = unittest.mock.patch.object
    with patch(torch.cuda, "Stream", _Stream), patch(torch.cuda, "current_stream", lambda device=None: only), \
            patch(torch.cuda, "stream", lambda stream: contextlib.nullcontext()), \
            patch(torch.cuda, "current_device", lambda: 0), \
            patch(torch.cuda, "synchronize", lambda device=None: None), \
            patch(torch.Tensor, "cuda", lambda self, *arguments, **named: self), \
            patch(buffers, "gc", types.SimpleNamespace(collect=lambda: None)), \
            patch(buffers, "get_global_memory_buffer", lambda: buffer):  # gc: it takes longer than all the rest
        yield buffer


@contextlib.contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """A fake process group: this process is rank 0 of `count`, and collectives move nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Unit(nn.Module):
    """Linear layers of different sizes and dtypes, experts, a frozen part: several buckets in a unit."""

    def __init__(self, width: int, hidden: List[Tuple[int, torch.dtype]], experts: int = 0, frozen: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, size, dtype=dtype) for size, dtype in hidden)
        self.back = nn.ModuleList(nn.Linear(size, width, bias=False, dtype=dtype) for size, dtype in hidden)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.fixed = nn.Linear(width, frozen).requires_grad_(False) if frozen else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, back in zip(self.layers, self.back):
            x = x + back(torch.tanh(layer(x.to(layer.weight.dtype)))).to(x.dtype)
        for expert in self.experts:
            x = x + torch.tanh(expert(x)) / 4
        return x + self.fixed(x).mean() if self.fixed is not None else x


class Stack(nn.Module):
    """Embedding, units, output layer. recompute: activation checkpointing of units."""

    recompute = False

    def __init__(self, units: List[Unit], width: int, words: int = 40) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.units = nn.ModuleList(units)
        self.output = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for unit in self.units:
            x = checkpoint(unit, x, use_reentrant=False) if self.recompute else unit(x)
        return self.output(x)


def random_stack(seed: int, most_units: int = 6, dtypes: Tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
                 with_experts: bool = True) -> Stack:
    """A hybrid stack: a few kinds of units in random order. Widths are such that no shard ends amid a row, which 0.6.1
    cannot wrap."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    width = chance.choice((8, 16, 24))

    def kind() -> Tuple[List[Tuple[int, torch.dtype]], int, int]:
        hidden = [(width * chance.choice((1, 2, 4)), chance.choice(dtypes)) for _ in range(chance.randint(1, 3))]
        return hidden, chance.choice((0, 0, 4)) if with_experts else 0, chance.choice((0, 0, 5))

    kinds = [kind() for _ in range(chance.randint(2, 3))]
    return Stack([Unit(width, *chance.choice(kinds)) for _ in range(chance.randint(3, most_units))], width)


def wrap(module: nn.Module, maxpool: bool = False, double_buffer: bool = True, persistent: bool = True,
         strategy: Any = 3, expert_parallel: int = 1, outer: int = 0, policy: Optional[Any] = None,
         **options: Any) -> nn.Module:
    """fully_shard_model over all ranks, `outer` groups of them with hybrid sharding. Gradients are summed, not
    averaged: averaging needs NCCL's operations."""
    ranks = dist.get_world_size()
    named = {"mixed_precision_policy": policy} if policy is not None else {}
    if outer:
        mesh = init_device_mesh("cpu", (outer, ranks // outer, 1), mesh_dim_names=("outer", "dp", "tp"))
        experts = init_device_mesh("cpu", (outer, ranks // outer, 1), mesh_dim_names=("outer", "dp", "tp"))
        named.update(dp_outer_dim="outer", hybrid_fsdp_group=dist.group.WORLD, hybrid_fsdp_expt_group=dist.group.WORLD)
    else:
        mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("dp", "tp"))
        experts = init_device_mesh("cpu", (expert_parallel, ranks // expert_parallel, 1),
                                   mesh_dim_names=("ep", "dp", "tp"))
    return megatron_fsdp.fully_shard_model(
        module, device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp", expt_device_mesh=experts, fsdp_unit_modules=[Unit],
        zero_dp_strategy=strategy, device=CPU, fsdp_double_buffer=double_buffer, maxpool_double_buffer=maxpool,
        fsdp_db_use_persist_buf_on_alloc_fail=persistent, calculate_per_token_loss=True, **named, **options)


def step(model: nn.Module, seed: int, words: int = 40) -> torch.Tensor:
    """Runs forward and backward of a batch made from the seed. Returns the loss."""
    chance = torch.Generator().manual_seed(seed)
    batch = torch.randint(0, words, (3, 7), generator=chance)
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1).float(), batch.roll(1, 1).flatten())
    loss.backward()
    return loss.detach()
