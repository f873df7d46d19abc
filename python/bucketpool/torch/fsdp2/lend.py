"""Tensors over memory that somebody else owns, with word of their end.

FSDP2 gives its communication buffers no free call: it drops its references once the stream that the buffer was
allocated on is ordered behind every use of it, which is what PyTorch's caching allocator needs. The end of the storage
is that moment, whoever held the last view of it: FSDP2's own records, a view, a collective's work."""

import ctypes
import weakref
from typing import Any, Callable, Tuple

import torch


class _DeviceMemory:
    """Bytes of a GPU, as PyTorch takes them over without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


def lend(address: int, numel: int, dtype: torch.dtype, device: torch.device,
         at_end: Callable[[], None]) -> torch.Tensor:
    """A tensor of `numel` (not 0) elements of `dtype` at `address`. `at_end` is called once, on whichever thread drops
    the last reference to the tensor's storage (views count), and must not raise; nothing is called as the interpreter
    exits. The memory must outlive the storage."""
    memory, tensor = _over(address, numel * dtype.itemsize, device)
    weakref.finalize(memory, at_end).atexit = False
    return tensor.view(dtype)


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same contiguous memory that does not keep it: for who may hold on to a tensor longer than it
    uses it."""
    count = tensor.numel() * tensor.dtype.itemsize
    return _over(tensor.data_ptr(), count, tensor.device)[1].view(tensor.dtype).view(tensor.shape)


def _over(address: int, count: int, device: torch.device) -> Tuple[Any, torch.Tensor]:
    """What the storage keeps alive, and a tensor of bytes over it."""
    if device.type == "cpu":
        memory = (ctypes.c_uint8 * count).from_address(address)
        return memory, torch.frombuffer(memory, dtype=torch.uint8)
    on_device = _DeviceMemory(address, count)
    return on_device, torch.as_tensor(on_device, device=device)
