# SPDX-License-Identifier: Apache-2.0
"""Tensors that PyTorch allocates, in a slab of the library: a torch.cuda.MemPool whose segments come from it.

    with serving(bytes=8 << 30) as memory, torch.cuda.use_mem_pool(memory.mem_pool):
        buffer = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

The offsets of a plan are not used here; for buckets use bucketpool.Pool. docs/guides/pytorch_allocator.md has the
limits.
"""

import ctypes
from types import TracebackType
from typing import Any, NamedTuple, Optional, Type

import torch

from .. import _abi
from .._library import call, configured, core, filled
from ..device import Device
from ..names import decoded, whole
from ..pool import Pool


__all__ = ["Statistics", "pluggable_allocator", "serving"]


class Statistics(NamedTuple):
    """Counters, as bp_torch_statistics in torch_allocator.h. because: reason of the last failed allocation."""

    bytes: int
    live_bytes: int
    peak_live_bytes: int
    live_segments: int
    segments: int
    waits: int
    refused: int
    strays: int
    because: str


class serving:
    """Serves the segments of PyTorch on one GPU until stop() or the end of `with`.

    - bytes, device: size of a separate slab, rounded up to the granularity of the device; device None: a new
      one
    - pool, request: instead of bytes, a persistent request of a pool that is not live. Registration of the pool
      with NCCL then covers these tensors.
    - ordinal: index of the GPU in PyTorch

    Raises InvalidArgument (neither or both), ScheduleError (served already, the request is live), Mismatch,
    NoDevice, NoDeviceMemory.
    """

    def __init__(self, bytes: int = 0, pool: Optional[Pool] = None, request: int = 0, ordinal: int = 0,
                 device: Optional[Device] = None) -> None:
        self._keeps = (pool, device)
        self.ordinal = ordinal
        self._mem_pool: Any = None
        self._allocator: Any = None  # kept here, because MemPool does not own it before PyTorch 2.11
        config = configured(core().bp_torch_config_init, _abi.bp_torch_config, ordinal=ordinal,
                            bytes=whole(bytes, 64, "bytes"), request=whole(request, 32, "a request"),
                            pool=None if pool is None else pool.handle,
                            device=None if device is None else device.handle)
        call(core().bp_torch_serve, ctypes.byref(config))
        self.stopped = False

    @property
    def mem_pool(self) -> Any:
        """The torch.cuda.MemPool for torch.cuda.use_mem_pool, created on first use."""
        if self._mem_pool is None:
            self._allocator = pluggable_allocator().allocator()
            self._mem_pool = torch.cuda.MemPool(self._allocator)
        return self._mem_pool

    @property
    def statistics(self) -> Statistics:
        """The counters of the GPU."""
        s = filled(core().bp_torch_statistics_get, _abi.bp_torch_statistics, self.ordinal)
        return Statistics(s.bytes, s.live_bytes, s.peak_live_bytes, s.live_segments, s.segments, s.waits, s.refused,
                          s.strays, decoded(s.because))

    def stop(self) -> None:
        """Waits for the device and frees the memory. May be repeated.

        Delete the tensors and the MemPool before; otherwise raises ScheduleError with the number of live segments.
        """
        if not self.stopped:
            self._mem_pool = None
            call(core().bp_torch_stop, self.ordinal)
            self.stopped = True

    def __enter__(self) -> "serving":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.stop()
        else:  # frames of the exception may hold tensors; stop()'s error must not replace the exception
            try:
                self.stop()
            except Exception:
                pass


def pluggable_allocator() -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator with the functions of the loaded library.

    Without a `serving` of the GPU, BUCKETPOOL_TORCH_BYTES sets the size of the slab, for example 8g.
    """
    return torch.cuda.memory.CUDAPluggableAllocator(core()._name, "bp_torch_malloc", "bp_torch_free")
