# SPDX-License-Identifier: Apache-2.0
"""Memory of pools beside that of PyTorch's caching allocator, which does not count them.

torch.cuda.memory_allocated(), memory_reserved() and memory_summary() know only what PyTorch allocated. A process holds
that and its pools.
"""

from typing import Any, Iterable, List, NamedTuple, Optional, Union

import torch

from ..handle import handle_of
from ..names import list_of
from ..pool import Pool

__all__ = ["Memory", "memory", "memory_summary"]


class Memory(NamedTuple):
    """Bytes now, and at the peak.

    - pool_bytes: slabs of the pools; live_bytes: of these, requests in use; peak_live_bytes: sum of the pools' peaks
    - torch_bytes, torch_reserved_bytes: tensors of PyTorch, and what its caching allocator holds, on the pools' GPU; 0
      without one, because PyTorch does not count memory of the CPU
    """

    pool_bytes: int
    live_bytes: int
    peak_live_bytes: int
    torch_bytes: int
    torch_reserved_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes that the process holds: slabs of the pools, and memory reserved by PyTorch."""
        return self.pool_bytes + self.torch_reserved_bytes

    def __str__(self) -> str:
        return (f"held {_size(self.held_bytes)}: pools {_size(self.pool_bytes)} (live {_size(self.live_bytes)}, peak "
                f"{_size(self.peak_live_bytes)}), PyTorch {_size(self.torch_reserved_bytes)} reserved "
                f"({_size(self.torch_bytes)} allocated)")


def _several(pools: Union[Pool, Iterable[Pool]]) -> List[Pool]:
    """One pool or several. Raises InvalidArgument for other objects, and for closed pools."""
    several = [pools] if isinstance(pools, Pool) else list_of(pools, "pools")
    for each in several:
        handle_of(each, Pool, "pools")
    return several


def memory(pools: Union[Pool, Iterable[Pool]]) -> Memory:
    """The memory of pools on one device, and that of PyTorch there. Raises InvalidArgument (a closed pool)."""
    pools = _several(pools)
    counters = [pool.statistics for pool in pools]
    ordinals = {pool.device.ordinal for pool in pools} - {None}
    allocated = reserved = 0
    for ordinal in ordinals:
        allocated += torch.cuda.memory_allocated(ordinal)
        reserved += torch.cuda.memory_reserved(ordinal)
    return Memory(sum(each.slab_bytes for each in counters), sum(each.live_bytes for each in counters),
                  sum(each.peak_live_bytes for each in counters), allocated, reserved)


def memory_summary(pools: Union[Pool, Iterable[Pool]], device: Any = None, abbreviated: bool = True) -> str:
    """torch.cuda.memory_summary() of the device with a line for each pool; without a GPU the lines alone."""
    pools = _several(pools)
    lines = [] if not torch.cuda.is_available() else [torch.cuda.memory_summary(device, abbreviated)]
    lines += [_row("bucketpool", "Slabs", "Live Now", "Live Peak", "Policy")]
    for pool in pools:
        now = pool.statistics
        lines.append(_row(pool.name, _size(now.slab_bytes), _size(now.live_bytes), _size(now.peak_live_bytes),
                          pool.policy))
    return "\n".join(lines) + "\n"


def _row(name: str, *cells: str) -> str:
    return f"| {name[:22]:22} |" + "|".join(f" {cell:>10} " for cell in cells) + "|"  # PyTorch's columns


def _size(count: Optional[int]) -> str:
    value = float(count or 0)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
