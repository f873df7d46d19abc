"""Tensors over memory that somebody else owns, with word of their end.

FSDP2 gives its communication buffers no free call: it drops its references once the stream that the buffer was
allocated on is ordered behind every use of it, which is what PyTorch's caching allocator needs. The end of the storage
is that moment, whoever held the last view of it: FSDP2's own records, a view, a collective's work."""

import weakref
from typing import Callable

import torch

from ..memory import over


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: torch.device,
         at_end: Callable[[], None]) -> torch.Tensor:
    """A tensor of `numel` (not 0) elements of `dtype` at `address`. `at_end` is called once, on whichever thread drops
    the last reference to the tensor's storage (views count), and must not raise; nothing is called as the interpreter
    exits. The memory must outlive the storage."""
    memory, tensor = over(address, numel * dtype.itemsize, device)
    weakref.finalize(memory, at_end).atexit = False
    return tensor.view(dtype)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same contiguous memory that does not keep it: for who may hold on to a tensor longer than it
    uses it."""
    count = tensor.numel() * tensor.dtype.itemsize
    return over(tensor.data_ptr(), count, tensor.device)[1].view(tensor.dtype).view(tensor.shape)
