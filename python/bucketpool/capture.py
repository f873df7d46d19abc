# SPDX-License-Identifier: Apache-2.0
"""Captures: pools inside captured CUDA graphs (bucketpool/capture.h)."""

import ctypes
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from . import _abi
from ._library import call, configured, core, viewed
from .device import Stream
from .errors import CaptureError
from .handle import Handle, Owner, handle_of
from .names import decoded, list_of, member, optional, whole
from .pool import Pool


__all__ = ["Capture", "CaptureSummary"]


class CaptureHandle(Handle, _abi.bp_capture):
    destroy = "bp_capture_destroy"


class CaptureSummary(NamedTuple):
    """Counters of a capture, as bp_capture_info in capture.h. bytes: of the slabs that the graph accesses."""

    name: str
    ended: bool
    acquires: int
    releases: int
    waits: int
    bytes: int
    launches: int


class Capture(Owner[CaptureHandle]):
    """A capture of a pool's acquires and releases, and later its graph.

        with Capture(pool) as capture:              # waits for all release events of the pool
            ...                                     # capture with the runtime; acquire, use and release
        with capture.launching(stream):             # around each launch
            ...                                     # launch the graph on the stream

    An exception in the first block abandons the capture. One call at a time. For torch.cuda.graph use
    bucketpool.torch.capture.GraphCapture.

    - name: in messages
    - owned: ids of live requests that the graph may use
    - collectives: slabs in which the graph has collectives: "auto" (the registered ones), "none" or "all".
      Offloading such a slab invalidates the graph.

    Entering raises ScheduleError (a live request is neither persistent nor owned), CaptureError, Unsupported
    (guard mode). Leaving raises ScheduleError if a request acquired inside is still live, and abandons the
    capture.
    """

    def __init__(self, pool: Pool, name: Optional[str] = None, owned: Sequence[int] = (),
                 collectives: str = "auto") -> None:
        handle_of(pool, Pool, "pool")
        self.pool = pool
        ids = [whole(id, 32, "owned") for id in list_of(owned, "owned")]
        self._config = configured(core().bp_capture_config_init, _abi.bp_capture_config,
                                  name=optional(name, "a capture's name"),
                                  owned=(ctypes.c_uint32 * len(ids))(*ids), owned_count=len(ids),
                                  collectives=member("BP_CAPTURE_COLLECTIVES_", collectives, "collectives"))

    def __enter__(self) -> "Capture":
        if self._handle is not None:
            raise CaptureError("this capture has begun already; create another one")
        handle = CaptureHandle()
        call(core().bp_capture_begin, self.pool.handle, ctypes.byref(self._config), ctypes.byref(handle))
        self._handle = handle
        self.pool.addresses_known = True
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        try:
            if kind is None:
                call(core().bp_capture_end, self.handle)
        except BaseException:
            self._abandon()
            raise
        if kind is not None:
            self._abandon()

    def _abandon(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            core().bp_capture_destroy(ctypes.byref(handle))
            if not self.pool.closed:
                self.pool._taken_back()

    @contextmanager
    def launching(self, stream: Stream) -> Iterator[None]:
        """A context around one launch of the graph on `stream`.

        The stream waits for eager work in the memory of the graph, and later eager work waits for the graph.
        An exception inside means that nothing was launched. Raises ScheduleError (another request uses
        memory of the graph), CaptureError (a slab with collectives of the graph was offloaded: capture
        again).
        """
        call(core().bp_capture_before_launch, self.handle, handle_of(stream, Stream, "stream"))
        try:
            yield
        except BaseException:
            call(core().bp_capture_launched, self.handle, None)
            raise
        call(core().bp_capture_launched, self.handle, stream.handle)

    @property
    def summary(self) -> CaptureSummary:
        """The counters of the capture."""
        s = viewed(core().bp_capture_get_info, self.handle)
        return CaptureSummary(decoded(s.name), bool(s.ended), s.acquires, s.releases, s.waits, s.bytes, s.launches)
