# SPDX-License-Identifier: Apache-2.0
"""Tensors over memory that they do not own, and devices of the library for devices of PyTorch. Internal.

FSDP frameworks do not free their communication buffers explicitly: they drop their references once the stream of the
allocation is ordered after every use, as the caching allocator of PyTorch requires. The end of the storage is that
moment, whichever object had the last reference: the framework, a view, or the work object of a collective.
"""

import ctypes
import functools
import weakref
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from .. import dlpack
from ..device import Device, Stream
from ..errors import Unsupported
from ..handle import exiting
from ..pool import Prepared

_DLPACK_TYPES = {"torch.uint8": (1, 8), "torch.float16": (2, 16), "torch.float32": (2, 32), "torch.float64": (2, 64),
                 "torch.bfloat16": (4, 16)}  # code and bits
_ends: Dict[int, Tuple[Any, Callable[[], None]]] = {}  # weak references must live until they are called


class _DeviceMemory:
    """Memory of a GPU with the CUDA array interface, from which PyTorch makes tensors without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


@functools.lru_cache(maxsize=4096)
def _bytes(count: int) -> Any:
    """The type of an array of bytes. Making one costs more than a tensor."""
    return ctypes.c_uint8 * count


def tensor_at(address: int, numel: int, dtype: torch.dtype, device: torch.device,
              at_end: Optional[Callable[[], None]] = None) -> torch.Tensor:
    """A tensor of `numel` (not 0) elements at `address`, over memory that must outlive its storage.

    at_end: called at the end of the storage as by call_at_end(); views count as references.
    """
    memory: Any
    if device.type == "cpu":
        memory = _bytes(numel * dtype.itemsize).from_address(address)
        tensor = torch.frombuffer(memory, dtype=dtype)
    else:
        memory = _DeviceMemory(address, numel * dtype.itemsize)
        tensor = torch.as_tensor(memory, device=device).view(dtype)
    if at_end is not None:
        call_at_end(memory, at_end)
    return tensor


def tensors_of(request: Prepared, dtype: torch.dtype, device: torch.device,
               at_end: Callable[[], None]) -> Callable[[Stream, int], Optional[torch.Tensor]]:
    """A function of a stream and a number of elements that acquires the request and returns a tensor over its memory,
    or None (busy).

    at_end: as in tensor_at(); it releases the request. Until then no second tensor is made.
    """
    compiled: Any = request
    if hasattr(compiled, "serve_with") and str(dtype) in _DLPACK_TYPES:
        place = (dlpack.CPU, 0) if device.type == "cpu" else (dlpack.CUDA, device.index)
        compiled.serve_with(torch._C._from_dlpack, *place, *_DLPACK_TYPES[str(dtype)], at_end)
        return compiled.tensor
    handle: Any = None  # of the pool, while a tensor uses the memory: keeps it mapped

    def tensor(stream: Stream, numel: int) -> Optional[torch.Tensor]:
        nonlocal handle
        if not 0 <= numel <= request.pool._records[request.id].bytes // dtype.itemsize:
            raise request.pool._oversized(request.id, numel, dtype.itemsize)
        address = None if handle is not None else request.try_acquire(stream)
        if address is None:
            return None
        handle = request.pool._handle
        return tensor_at(address, numel, dtype, device, ended)

    def ended() -> None:
        nonlocal handle
        _kept, handle = handle, None
        at_end()

    return tensor


def tracked(memory: torch.Tensor, at_end: Callable[[], None]) -> torch.Tensor:
    """A one-dimensional tensor over a contiguous tensor, which lives as long. at_end: as in tensor_at()."""

    def end(_memory: torch.Tensor = memory) -> None:
        at_end()

    return tensor_at(memory.data_ptr(), memory.numel(), memory.dtype, memory.device, end)


def call_at_end(of: Any, function: Callable[[], None]) -> None:
    """Calls a function once, on the thread that drops the last reference to an object, but not when the interpreter
    exits. It must not raise. weakref.finalize takes a microsecond more.
    """
    reference = weakref.ref(of, _ended)
    _ends[id(reference)] = (reference, function)


def _ended(reference: Any) -> None:
    _, function = _ends.pop(id(reference))
    if not exiting():
        function()


def with_index(device: torch.device) -> torch.device:
    """The device with an index: "cuda" is the current GPU."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_for(device: torch.device) -> Device:
    """A new device of the library for pools of tensors on `device` (with_index). Raises Unsupported, NoDevice."""
    if device.type == "cuda":
        return Device.cuda(device.index)
    if device.type == "cpu":
        return Device.host()
    raise Unsupported(f"device {device}: unsupported; pools are for cuda and cpu devices")
