"""Tensors over memory without ownership, with a callback at the end of their storage.

FSDP2 does not free its communication buffers explicitly: it drops its references once the stream of the
allocation is ordered after every use, as the caching allocator of PyTorch requires. The end of the storage is
that moment, whichever object had the last reference: FSDP2, a view, or the work object of a collective.
"""

import ctypes
import functools
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from ...handle import exiting
from ..memory import over

_ends: Dict[int, Tuple[Any, Callable[[], None]]] = {}  # weak references must live until they are called


def _ended(reference: Any) -> None:
    _, function = _ends.pop(id(reference))
    if not exiting():
        function()


def call_at_end(of: Any, function: Callable[[], None]) -> None:
    """Calls a function once, on the thread that drops the last reference to an object, but not when the interpreter
    exits. It must not raise. weakref.finalize takes a microsecond more.
    """
    reference = weakref.ref(of, _ended)
    _ends[id(reference)] = (reference, function)


@functools.lru_cache(maxsize=4096)
def _bytes(count: int) -> Any:
    """The type of an array of bytes. Making one costs more than a tensor."""
    return ctypes.c_uint8 * count


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: torch.device,
              at_end: Optional[Callable[[], None]] = None) -> torch.Tensor:
    """A tensor of `numel` (not 0) elements at `address`, over memory that must outlive its storage.

    at_end: called at the end of the storage as by call_at_end(); views count as references.
    """
    count = numel * dtype.itemsize
    if device.type == "cpu":
        memory = _bytes(count).from_address(address)
        tensor = torch.frombuffer(memory, dtype=dtype)
    else:
        memory, tensor = over(address, count, device)
        tensor = tensor.view(dtype)
    if at_end is not None:
        call_at_end(memory, at_end)
    return tensor
