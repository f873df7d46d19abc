"""Tensors over memory without ownership, with a callback at the end of their storage.

FSDP2 does not free its communication buffers explicitly: it drops its references once the stream of the
allocation is ordered after every use, as the caching allocator of PyTorch requires. The end of the storage is
that moment, whichever object had the last reference: FSDP2, a view, or the work object of a collective.
"""

import weakref
from typing import Any, Callable, Dict

import torch

from ...handle import exiting
from ..memory import over


class _End(weakref.ref):  # type: ignore[type-arg]  # not generic at run time in Python 3.8
    """A weak reference that calls a function when the storage has ended. weakref.finalize takes a microsecond more."""

    __slots__ = ("at_end",)


_ends: Dict[int, _End] = {}  # keeps them until their storages have ended


def _ended(end: _End) -> None:
    del _ends[id(end)]
    if not exiting():
        end.at_end()


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: torch.device,
              at_end: Callable[[], None]) -> torch.Tensor:
    """A tensor of `numel` (not 0) elements at `address`, over memory that must outlive its storage.

    at_end is called once, on the thread that drops the last reference to the storage (views count), but not when the
    interpreter exits. It must not raise.
    """
    memory, tensor = over(address, numel * dtype.itemsize, device)
    end = _End(memory, _ended)
    end.at_end = at_end
    _ends[id(end)] = end
    return tensor.view(dtype)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same contiguous memory that does not keep the storage, for consumers that drop a tensor later
    than they use it.
    """
    count = tensor.numel() * tensor.dtype.itemsize
    return over(tensor.data_ptr(), count, tensor.device)[1].view(tensor.dtype).view(tensor.shape)
