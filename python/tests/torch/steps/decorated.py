# SPDX-License-Identifier: Apache-2.0
"""The decorator of PyTorch's allocator, called without the user's interface: plans that a test makes item by item."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from bucketpool import _abi
from bucketpool._library import core
from bucketpool.torch.steps._build import library

OUTSIDE = 2**64 - 1
NO_PLACE = 2**32 - 1
SERVED = 0


class Status(ctypes.Structure):
    """bp_decorator_status of decorator.h."""

    _fields_ = [("state", ctypes.c_uint32), ("is_recording", ctypes.c_uint32), *(
        (name, ctypes.c_uint64) for name in ("slab", "slab_bytes", "live_bytes", "peak_live_bytes", "reserved_bytes",
                                             "peak_reserved_bytes")), ("because", ctypes.c_char * 256)]


class Item(NamedTuple):
    bytes: int
    offset: int = OUTSIDE
    stream: int = 0
    precedes_stream: int = 0


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def plan_of(kinds: Sequence[Sequence[Item]], slab: int, streams: Sequence[int] = (0, ), marked: bool = True) -> _abi.bp_step_plan:
    """Each kind begins at a mark."""
    made = (_abi.bp_step_plan_kind * len(kinds))()
    zero = (ctypes.c_uint32 * 1)(0)
    for kind, items in zip(made, kinds):
        kind.items = (_abi.bp_step_plan_item * len(items))(*(
            _abi.bp_step_plan_item(i.bytes, i.offset, i.stream, NO_PLACE, i.precedes_stream) for i in items))
        kind.item_count, kind.steps = len(items), 1
        if marked:
            kind.marks, kind.mark_count = zero, 1
    info = _abi.bp_step_plan_info(bytes=slab, kinds=made, kind_count=len(kinds), stream_count=len(streams),
                                  streams=(ctypes.c_uint64 * len(streams))(*streams))
    plan = _abi.bp_step_plan()
    assert core().bp_step_plan_from_info(ctypes.byref(info), ctypes.byref(plan)) == 0, core().bp_error_detail()
    return plan


class Decorated:
    def __init__(self, kind: str) -> None:
        self.library = library(kind)
        self.library.bp_decorator_error.restype = ctypes.c_char_p
        self.library.bp_decorator_server.restype = _abi.bp_step_server
        self.library.bp_decorator_events.restype = ctypes.c_size_t
        self.called("install")

    def called(self, name: str, *arguments: object) -> None:
        if getattr(self.library, "bp_decorator_" + name)(*arguments) != 0:
            raise RuntimeError(self.library.bp_decorator_error().decode())

    def serve(self, plan: _abi.bp_step_plan, wait_bytes: int = 0) -> None:
        self.called("serve", 0, plan, ctypes.c_uint64(wait_bytes))

    def stop(self) -> None:
        self.library.bp_decorator_stop(0)

    def mark(self) -> None:
        self.library.bp_decorator_mark(0)

    def status(self) -> Status:
        status = Status()
        self.library.bp_decorator_get_status(0, ctypes.byref(status))
        return status

    def statistics(self, device: int = 0) -> _abi.bp_step_statistics:
        statistics = _abi.bp_step_statistics()
        assert core().bp_step_server_get_statistics(self.library.bp_decorator_server(device), ctypes.byref(statistics)) == 0
        return statistics

    def check(self) -> None:
        assert core().bp_step_server_check(self.library.bp_decorator_server(0)) == 0, core().bp_error_detail()

    def holds(self, address: int) -> bool:
        status = self.status()
        return status.slab != 0 and status.slab <= address < status.slab + status.slab_bytes

    def events(self) -> list[tuple[int, int, int, int]]:
        pointer = ctypes.POINTER(_abi.bp_step_event)()
        count = self.library.bp_decorator_events(0, ctypes.byref(pointer))
        return [(e.address, e.bytes, e.stream, e.action) for e in pointer[:count]]
