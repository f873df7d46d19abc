"""Tensors that PyTorch makes itself, in a slab of this library: torch.cuda.MemPool whose segments come from it.

    with serving(bytes=8 << 30) as memory, torch.cuda.use_mem_pool(memory.mem_pool):
        buffer = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

For buckets take a pool: planned offsets are not honoured here. docs/guides/pytorch_allocator.md says what happens and what the
limits are."""

import ctypes
from types import TracebackType
from typing import Any, NamedTuple, Optional, Type

import torch

from .. import _abi
from .._library import call, configured, core, filled
from ..device import Device
from ..names import decoded, whole
from ..pool import Pool


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
    - pool, request: instead, a persistent request of a pool that is not live; the pool's registration covers
      it
    - ordinal: index of the GPU in PyTorch

    Raises InvalidArgument (neither or both), ScheduleError (served already, the request is live), Mismatch,
    NoDevice, NoDeviceMemory.
    """

    def __init__(self, bytes: int = 0, pool: Optional[Pool] = None, request: int = 0, ordinal: int = 0,
                 device: Optional[Device] = None) -> None:
        self._keeps = (pool, device)
        self.ordinal = ordinal
        self._mem_pool: Any = None
        self._allocator: Any = None  # before 2.11 PyTorch's MemPool holds a pointer that owns nothing
        config = configured(core().bp_torch_config_init, _abi.bp_torch_config, ordinal=ordinal,
                            bytes=whole(bytes, 64, "bytes"), request=whole(request, 32, "a request"),
                            pool=None if pool is None else pool.handle, device=None if device is None else device.handle)
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
        s = filled(core().bp_torch_statistics_get, _abi.bp_torch_statistics, self.ordinal)
        return Statistics(s.bytes, s.live_bytes, s.peak_live_bytes, s.live_segments, s.segments, s.waits, s.refused,
                          s.strays, decoded(s.because))

    def stop(self) -> None:
        """Frees the memory after the work of the device. May be repeated. The tensors and the MemPool must have
        been deleted; else ScheduleError has the number of live segments.
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
        else:  # tensors that the exception's frames hold would turn it into another one
            try:
                self.stop()
            except Exception:
                pass


def pluggable_allocator() -> Any:
    """torch.cuda.memory.CUDAPluggableAllocator with this library's functions, of the copy that is loaded: without a
    `serving` of the GPU, the environment says how many bytes serve (BUCKETPOOL_TORCH_BYTES=8g)."""
    return torch.cuda.memory.CUDAPluggableAllocator(core()._name, "bp_torch_malloc", "bp_torch_free")
