# SPDX-License-Identifier: Apache-2.0
"""Plans of training steps: one address in a slab for each allocation that the step repeats."""

import ctypes
import os
import tempfile
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _abi
from ._library import call, configured, core, formats, viewed
from .errors import InvalidArgument
from .handle import Handle, Owner
from .names import Path, decoded, encoded, encoded_path, flag, list_of, shown, utf8, whole

__all__ = ["StepEvent", "StepItem", "StepKind", "StepPlan", "StepWaits"]


T = TypeVar("T")
ACTIONS = {"allocate": _abi.BP_STEP_ALLOCATE, "free": _abi.BP_STEP_FREE, "mark": _abi.BP_STEP_MARK}
bytes_type = bytes  # properties of classes below hide it


class StepPlanHandle(Handle, _abi.bp_step_plan):
    destroy = "bp_step_plan_destroy"


class StepEvent(NamedTuple):
    """An event of a recording: "allocate", "free", or "mark", when an optimizer has ended its step.

    address: unique while the allocation is live; stream: a number, 0 is the default stream.
    """

    action: str
    address: int = 0
    bytes: int = 0
    stream: int = 0


class StepItem(NamedTuple):
    """An allocation of a step. offset: in the slab, None outside of the plan; stream: a position in StepPlan.streams;
    place: the code that allocates, "" if it is unknown; precedes_stream: its next user in the slab is on another stream.
    """

    bytes: int
    offset: Optional[int]
    stream: int = 0
    place: str = ""
    precedes_stream: bool = False


class StepKind(NamedTuple):
    """A kind of step. marks: items before which an optimizer has ended; steps: recorded ones; bytes: the slab that it
    alone takes; lower_bound_bytes: its peak live bytes; proven_bytes: no placement takes less.
    """

    items: Tuple[StepItem, ...]
    marks: Tuple[int, ...] = (0, )
    is_first: bool = False
    steps: int = 1
    bytes: int = 0
    lower_bound_bytes: int = 0
    proven_bytes: int = 0
    method: str = ""


class StepWaits(NamedTuple):
    """Waits of a steady step: stream `waiting` waits for stream `before` so many times, because memory changes streams."""

    waiting: int
    before: int
    waits: int


class StepPlan(Owner[StepPlanHandle]):
    """The plan of a training step, which bucketpool.torch.steps serves. It does not change; several threads may read it.

        plan = StepPlan.read("plan.json")
        print(plan.bytes, plan.lower_bound_bytes, plan.optimal)

    docs/guides/step_memory.md says where plans come from.
    """

    shared = True

    def __init__(self) -> None:
        raise TypeError("StepPlan: use StepPlan.read, from_snapshot, from_events or from_kinds")

    @classmethod
    def _made(cls, function: Any, *arguments: Any) -> "StepPlan":
        handle = StepPlanHandle()
        call(function, *arguments, ctypes.byref(handle))
        plan = cls.__new__(cls)
        plan._handle = handle
        return plan

    @classmethod
    def read(cls, path: Path) -> "StepPlan":
        """Reads a file bucketpool.step_plan/1. Raises FileError, FormatError, InvalidArgument."""
        return cls._made(formats().bp_step_plan_read, encoded_path(path))

    @classmethod
    def parse(cls, text: Union[str, bytes_type], origin: str = "a plan") -> "StepPlan":
        """As read(), from text. origin: its name in errors."""
        encoded_text = utf8(text, "text") if isinstance(text, str) else text
        if not isinstance(encoded_text, bytes_type):
            raise InvalidArgument(f"text: expected a string or bytes, got {shown(text)}")
        return cls._made(formats().bp_step_plan_parse, encoded_text, len(encoded_text), encoded(origin, "an origin"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A pickle is the document of write()."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            self.write(path)
            with open(path, encoding="utf-8") as file:
                return type(self).parse, (file.read(), "a pickled plan")

    def write(self, path: Path) -> None:
        """Writes the plan as bucketpool.step_plan/1, atomically. Raises FileError."""
        call(formats().bp_step_plan_write, self.handle, encoded_path(path))

    @classmethod
    def from_snapshot(cls, path: Path, ordinal: int = 0, **options: Any) -> "StepPlan":
        """Plans the steps of a memory snapshot of PyTorch or of bucketpool.torch.trace. ordinal: of the GPU in the file;
        options: as in from_events().

        Raises FileError, FormatError (no events of the device), InvalidArgument (no steps).
        """
        config, _held = _configured(**options)
        return cls._made(formats().bp_step_plan_read_snapshot, encoded_path(path), whole(ordinal, 32, "ordinal"),
                         ctypes.byref(config))

    @classmethod
    def from_events(cls, events: Iterable[StepEvent], **options: Any) -> "StepPlan":
        """Plans the steps of a recording: from mark to mark, or parts that repeat where there are no marks.

        - lead: memory of streams other than the busiest is kept free for so many events before its allocation; None:
          since the last allocation of its size there, about a layer; 0: not
        - is_from_start: the events begin with the process, so that its first step is a separate kind
        - held: pairs (offset, bytes) of the slab that the plan must leave alone
        - reserved_before_bytes: what PyTorch reserved without the plan, 0 if unknown
        - work: limit of the search, 0: the default

        Raises InvalidArgument (no steps).
        """
        if isinstance(events, ctypes.Array):
            array: Any = events
        else:
            each = [_of(StepEvent, event, "events") for event in list_of(events, "events")]
            array = (_abi.bp_step_event * len(each))()
            for to, event in zip(array, each):
                if event.action not in ACTIONS:
                    raise InvalidArgument(f"unknown action {event.action!r}; expected one of {', '.join(ACTIONS)}")
                to.action = ACTIONS[event.action]
                to.address, to.bytes = whole(event.address, 64, "an address"), whole(event.bytes, 64, "bytes")
                to.stream = whole(event.stream, 32, "a stream")
        return cls._from_array(array, len(array), **options)

    @classmethod
    def _from_array(cls, events: Any, count: int, **options: Any) -> "StepPlan":
        config, _held = _configured(**options)
        return cls._made(core().bp_step_plan_create, events, count, ctypes.byref(config))

    @classmethod
    def from_kinds(cls, kinds: Sequence[StepKind], bytes: int, *, streams: Sequence[int] = (0, ),
                   reserved_before_bytes: int = 0) -> "StepPlan":
        """A plan with these kinds of steps, for plans of other planners and for tests. bytes: of the slab. Items may overlap
        while both are live: the first is served then. Raises InvalidArgument (an offset or mark that is impossible).
        """
        keeps: List[Any] = []
        places: List[bytes_type] = []
        kinds = [_of(StepKind, kind, "kinds") for kind in list_of(kinds, "kinds")]
        streams = list_of(streams, "streams")
        made = (_abi.bp_step_plan_kind * len(kinds))()
        for to, kind in zip(made, kinds):
            given = [_of(StepItem, item, "items") for item in list_of(kind.items, "items")]
            items = (_abi.bp_step_plan_item * len(given))()
            for target, item in zip(items, given):
                if item.place and encoded(item.place, "a place") not in places:
                    places.append(encoded(item.place, "a place"))
                target.bytes, target.stream = whole(item.bytes, 64, "bytes"), whole(item.stream, 32, "a stream")
                target.offset = _abi.BP_STEP_OUTSIDE if item.offset is None else whole(item.offset, 64, "an offset")
                target.place = places.index(encoded(item.place, "a place")) if item.place else _abi.BP_STEP_NO_PLACE
                target.precedes_stream = flag(item.precedes_stream, "precedes_stream")
            ends = [whole(mark, 32, "a mark") for mark in list_of(kind.marks, "marks")]
            marks = (ctypes.c_uint32 * len(ends))(*ends)
            keeps += [items, marks]
            to.items, to.item_count, to.marks, to.mark_count = items, len(items), marks, len(marks)
            to.is_first, to.steps = flag(kind.is_first, "is_first"), whole(kind.steps, 32, "steps")
            for name in ("bytes", "lower_bound_bytes", "proven_bytes"):
                setattr(to, name, whole(getattr(kind, name), 64, name))
            to.method = encoded(kind.method, "a method")
        handles = (ctypes.c_uint64 * len(streams))(*(whole(each, 64, "a stream") for each in streams))
        names = (ctypes.c_char_p * len(places))(*places)
        keeps += [handles, names]
        info = _abi.bp_step_plan_info(
            bytes=whole(bytes, 64, "bytes"), bytes_without_windows=whole(bytes, 64, "bytes"), kinds=made, kind_count=len(made),
            lower_bound_bytes=max((kind.lower_bound_bytes for kind in kinds), default=0), streams=handles,
            stream_count=len(handles), places=names, place_count=len(names),
            reserved_before_bytes=whole(reserved_before_bytes, 64, "reserved_before_bytes"))
        return cls._made(core().bp_step_plan_from_info, ctypes.byref(info))

    # ---- contents --------------------------------------------------------------------------------------------------

    @property
    def _info(self) -> Any:
        return viewed(core().bp_step_plan_get_info, self.handle)

    @property
    def bytes(self) -> int:
        """Bytes of the slab."""
        return int(self._info.bytes)

    @property
    def bytes_without_windows(self) -> int:
        """Bytes of the slab with lead=0: the difference is what the overlap of streams costs."""
        return int(self._info.bytes_without_windows)

    @property
    def lower_bound_bytes(self) -> int:
        """Peak live bytes of the planned allocations: no slab takes less."""
        return int(self._info.lower_bound_bytes)

    @property
    def persistent_bytes(self) -> int:
        """Live during whole steps, outside of the slab: parameters, optimizer state."""
        return int(self._info.persistent_bytes)

    @property
    def outside_bytes(self) -> int:
        """Peak live bytes of the allocations of steps that are not planned."""
        return int(self._info.outside_bytes)

    @property
    def peak_live_bytes(self) -> int:
        """Of the recorded steps: no allocator takes less."""
        return int(self._info.peak_live_bytes)

    @property
    def reserved_before_bytes(self) -> int:
        """High-water mark of what PyTorch reserved without the plan; 0: unknown."""
        return int(self._info.reserved_before_bytes)

    @property
    def optimal(self) -> bool:
        """True: the slab is proven to be the smallest."""
        return bool(self._info.optimal)

    @property
    def streams(self) -> List[int]:
        """Handles of the streams in the recording."""
        info = self._info
        return list(info.streams[:info.stream_count])

    @property
    def places(self) -> List[str]:
        """Code that allocates."""
        info = self._info
        return [decoded(place) for place in info.places[:info.place_count]]

    @property
    def waits(self) -> List[StepWaits]:
        """Pairs of streams that wait for each other because of memory."""
        info = self._info
        return [StepWaits(each.waiting, each.before, each.waits) for each in info.waits[:info.waits_count]]

    @property
    def kinds(self) -> List[StepKind]:
        """The kinds of steps, with copies of their items."""
        info, places = self._info, self.places
        return [StepKind(tuple(_item(kind.items[i], places) for i in range(kind.item_count)),
                         tuple(kind.marks[:kind.mark_count]), bool(kind.is_first), kind.steps, kind.bytes,
                         kind.lower_bound_bytes, kind.proven_bytes, decoded(kind.method))
                for kind in info.kinds[:info.kind_count]]

    @property
    def allocations(self) -> int:
        """Allocations of a step, of the kind with the most."""
        info = self._info
        return max((kind.item_count for kind in info.kinds[:info.kind_count]), default=0)

    def _place(self, kind: int, item: int) -> str:
        """The place of an item; "" for an unknown item."""
        info = self._info
        if kind >= info.kind_count or item >= info.kinds[kind].item_count:
            return ""
        place = info.kinds[kind].items[item].place
        return "" if place == _abi.BP_STEP_NO_PLACE else decoded(info.places[place])

    def __repr__(self) -> str:
        if self.closed:
            return "<StepPlan, closed>"
        info = self._info
        return f"<StepPlan: {info.bytes} bytes, at least {info.lower_bound_bytes}, {info.kind_count} kinds of steps>"


def _of(kind: Type[T], value: Any, what: str) -> T:
    """A named tuple, or another tuple with its fields."""
    try:
        return value if isinstance(value, kind) else kind(*value)
    except TypeError:
        raise InvalidArgument(f"{what}: expected a {kind.__name__}, got {shown(value)}") from None


def _item(item: _abi.bp_step_plan_item, places: List[str]) -> StepItem:
    return StepItem(item.bytes, None if item.offset == _abi.BP_STEP_OUTSIDE else item.offset, item.stream,
                    "" if item.place == _abi.BP_STEP_NO_PLACE else places[item.place], bool(item.precedes_stream))


def _configured(lead: Optional[int] = None, is_from_start: bool = True, held: Sequence[Tuple[int, int]] = (),
                reserved_before_bytes: int = 0, work: int = 0) -> Tuple[_abi.bp_step_plan_config, Any]:
    """The configuration, and an array that must live as long."""
    pairs = list_of(held, "held")
    ranges = (_abi.bp_step_held * len(pairs))()
    for to, each in zip(ranges, pairs):
        if not isinstance(each, tuple) or len(each) != 2:
            raise InvalidArgument(f"held: expected pairs (offset, bytes), got {shown(each)}")
        to.offset, to.bytes = whole(each[0], 64, "an offset"), whole(each[1], 64, "bytes")
    config = configured(core().bp_step_plan_config_init, _abi.bp_step_plan_config, work=whole(work, 64, "work"),
                        lead=None if lead is None else whole(lead, 31, "lead"),
                        is_from_start=flag(is_from_start, "is_from_start"),
                        reserved_before_bytes=whole(reserved_before_bytes, 64, "reserved_before_bytes"))
    config.held, config.held_count = ranges, len(ranges)
    return config, ranges
