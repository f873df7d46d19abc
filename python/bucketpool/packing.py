# SPDX-License-Identifier: Apache-2.0
"""Offset assignment of any items: sizes, live ranges and conflicts, without models or devices (bucketpool/pack.h)."""

import ctypes
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from ._library import call, configured, core, viewed
from .errors import InvalidArgument
from .handle import Handle, Owner
from .names import decoded, list_of, name_of, shown, whole

__all__ = ["Packing", "Placement"]


class PackingHandle(Handle, _abi.bp_packing):
    destroy = "bp_packing_destroy"


class Placement(NamedTuple):
    """The result of Packing.pack().

    - outcome: "placed"; "infeasible": proven, no placement fits the capacity; "not_found": the search reached its
      limit
    - offsets: by item; [] unless placed
    - bytes: total of the best placement found; optimal: proven minimum
    - bound: as Packing.bound(); proven: proven minimum, the bound or more
    - work: work done; method: the search method that found the placement
    """

    outcome: str
    offsets: List[int]
    bytes: int
    optimal: bool
    bound: int
    proven: int
    work: int
    method: str


class Packing(Owner[PackingHandle]):
    """An instance of the problem: items with sizes, intervals and conflicts. One thread.

        packing = Packing()
        packing.add(4096, [(0, 3)])
        packing.add(1024, [(2, 5)])
        print(packing.pack().offsets)
    """

    def __init__(self) -> None:
        self._handle = PackingHandle()
        call(core().bp_packing_create, ctypes.byref(self._handle))

    def __len__(self) -> int:
        return int(viewed(core().bp_packing_get_info, self.handle).item_count)

    def add(self, size: int, intervals: Iterable[Tuple[int, int]] = ()) -> int:
        """Adds an item and returns its number. intervals: [begin, end) in any unit. Raises InvalidArgument."""
        handle, item = self.handle, ctypes.c_size_t()
        ranges = [(whole(begin, 64, "begin"), whole(end, 64, "end")) for begin, end in _pairs(intervals)]
        for begin, end in ranges:
            if end <= begin:
                raise InvalidArgument(f"item {len(self)}: interval [{begin}, {end}) is empty; end must be larger")
        call(core().bp_packing_add_item, handle, whole(size, 64, "size"), ctypes.byref(item))
        for begin, end in ranges:
            call(core().bp_packing_add_interval, handle, item, begin, end)
        return item.value

    def conflict(self, item: int, other: int) -> None:
        """Declares a conflict between two items, whatever their intervals are."""
        call(core().bp_packing_add_conflict, self.handle, whole(item, 31, "an item"), whole(other, 31, "an item"))

    def bound(self) -> Tuple[int, List[int]]:
        """A lower bound of every placement, and the items that conflict there."""
        handle, count, bound = self.handle, ctypes.c_size_t(), ctypes.c_uint64()
        witness = (ctypes.c_uint32 * max(len(self), 1))()
        call(core().bp_packing_bound, handle, witness, ctypes.byref(count), ctypes.byref(bound))
        return bound.value, witness[:count.value]

    def pack(self, capacity: int = 0, work: int = 0, known: Optional[Sequence[int]] = None) -> Placement:
        """Searches a placement.

        - capacity: 0: minimize the total; else accept any placement of at most this size
        - work: search limit, very roughly in nanoseconds; 0: the default
        - known: offsets of a placement with which the search starts

        Raises InvalidArgument (a capacity below the largest item, an invalid known placement), SizeOverflow.
        """
        handle, result = self.handle, _abi.bp_pack_result()
        offsets = (ctypes.c_uint64 * max(len(self), 1))()
        config = configured(core().bp_pack_config_init, _abi.bp_pack_config, capacity=whole(capacity, 64, "capacity"),
                            work=whole(work, 64, "work"),
                            known=None if known is None else self._offsets(known, "known"))
        call(core().bp_pack, handle, ctypes.byref(config), offsets, ctypes.byref(result))
        placed = result.outcome == _abi.BP_PACK_PLACED
        return Placement(name_of("BP_PACK_", result.outcome), offsets[:len(self)] if placed else [], result.bytes,
                         bool(result.optimal), result.bound, result.proven, result.work, decoded(result.method))

    def check(self, offsets: Sequence[int], bytes: int) -> None:
        """Verifies a placement with code that the search does not share. Raises Mismatch, with the first fault."""
        call(core().bp_packing_check, self.handle, self._offsets(offsets, "offsets"), whole(bytes, 64, "bytes"))

    def _offsets(self, offsets: Sequence[int], what: str) -> "ctypes.Array[ctypes.c_uint64]":
        offsets = list_of(offsets, what)
        if len(offsets) != len(self):
            raise InvalidArgument(f"{what}: {len(offsets)} for {len(self)} items; pass one for each item")
        return (ctypes.c_uint64 * max(len(offsets), 1))(*[whole(offset, 64, what) for offset in offsets])

    def __repr__(self) -> str:
        return "<Packing, closed>" if self.closed else f"<Packing: {len(self)} items>"


def _pairs(intervals: Iterable[Tuple[int, int]]) -> List[Tuple[int, int]]:
    pairs = list_of(intervals, "intervals")
    for each in pairs:
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise InvalidArgument(f"intervals: expected pairs (begin, end), got {shown(each)}")
    return pairs
