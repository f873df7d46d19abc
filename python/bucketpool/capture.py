"""Pools inside captured graphs: what bucketpool/capture.h has, around the runtime's own capture."""

import ctypes
from contextlib import contextmanager
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from . import _abi
from ._library import call, configured, core, viewed
from .device import Stream
from .errors import CaptureError
from .handle import Handle, Owner
from .names import decoded, member, optional, whole
from .pool import Pool


class CaptureHandle(Handle):
    destroy = "bp_capture_destroy"


class CaptureSummary(NamedTuple):
    """As bp_capture_info in capture.h. bytes: of slabs that the graph touches."""

    name: str
    ended: bool
    acquires: int
    releases: int
    waits: int
    bytes: int
    launches: int


class Capture(Owner[CaptureHandle]):
    """A capture of a pool, and later the graph that came of it, as far as the pool is concerned.

        with Capture(pool) as capture:              # waits until all memory of the pool is at rest
            ... capture with the runtime; acquire, use and release inside ...
        with capture.launching(stream):             # before and after each launch
            ... launch the graph on the stream ...

    An exception in the block gives the capture up. name: in messages. owned: ids of live requests that the graph may
    use. collectives: "auto" (in registered slabs), "none", "all": where the graph's collectives are, so that it is void
    once such a slab was offloaded. Entering raises ScheduleError (a request is live that is neither persistent nor
    owned), CaptureError, Unsupported (guard mode); leaving raises ScheduleError where what was acquired inside is still
    live: the capture is given up then, too. One call at a time."""

    def __init__(self, pool: Pool, name: Optional[str] = None, owned: Sequence[int] = (),
                 collectives: str = "auto") -> None:
        self.pool = pool
        ids = (ctypes.c_uint32 * len(owned))(*[whole(id, 32, "an id") for id in owned])
        self._config = configured(core().bp_capture_config_init, _abi.bp_capture_config,
                                  name=optional(name, "a capture's name"), owned=ids, owned_count=len(owned),
                                  collectives=member("BP_CAPTURE_COLLECTIVES_", collectives, "collectives"))

    def __enter__(self) -> "Capture":
        if self._handle is not None:
            raise CaptureError("this capture has begun already: make another one")
        handle = CaptureHandle()
        call(core().bp_capture_begin, self.pool.handle, ctypes.byref(self._config), ctypes.byref(handle))
        self._handle = handle
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
        """Around one launch of the graph on the stream: it waits for eager work in the graph's memory, and eager work
        afterwards for it. An exception inside means that nothing was launched. Raises ScheduleError (memory of the
        graph is held), CaptureError (a slab with its collectives was offloaded: capture anew)."""
        call(core().bp_capture_before_launch, self.handle, stream.handle)
        try:
            yield
        except BaseException:
            call(core().bp_capture_launched, self.handle, None)
            raise
        call(core().bp_capture_launched, self.handle, stream.handle)

    @property
    def summary(self) -> CaptureSummary:
        s = viewed(core().bp_capture_get_info, self.handle)
        return CaptureSummary(decoded(s.name), bool(s.ended), s.acquires, s.releases, s.waits, s.bytes, s.launches)
