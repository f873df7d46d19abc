# SPDX-License-Identifier: Apache-2.0
"""Passes of an engine: the buffers of a forward, with its backward if it has one, as timelines to plan from."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from ...device import Stream
from ...pool import Prepared
from ..timeline import Planned, Size, Slot, Timeline

_MAX_EVENTS = 1 << 17


class Request:
    """A request of the pool. busy: a buffer has its memory."""

    __slots__ = ("of_pass", "use", "size", "prepared", "busy")

    def __init__(self, of_pass: int, use: int, size: Size, prepared: Prepared) -> None:
        self.of_pass, self.use, self.size, self.prepared, self.busy = of_pass, use, size, prepared, False


class Buffer:
    """A buffer while DeepSpeed uses it.

    - use: its number among the buffers of the same unit and role in a pass, from 0
    - request, stream, address: None and 0 for PyTorch's memory
    """

    __slots__ = ("unit", "role", "use", "numel", "dtype", "request", "stream", "address")

    def __init__(self, unit: str, role: str, use: int, numel: int, dtype: torch.dtype) -> None:
        self.unit, self.role, self.use, self.numel, self.dtype = unit, role, use, numel, dtype
        self.request: Optional[Request] = None
        self.stream: Optional[Stream] = None
        self.address = 0


class _Recorded(NamedTuple):
    """A pass. buffers: acquires and releases, to compare passes."""

    timeline: Timeline
    buffers: List[Tuple[Any, ...]]
    gradients: bool


class Passes:
    """The passes that were recorded, and the buffers of the current one.

    Each buffer of each recorded pass is a separate request, so every request has one live range, and the requests of
    different passes never conflict: the bytes of a plan are those of the largest pass.

    Attributes: gradients, False in a pass without; current, the recorded pass that this one follows so far.
    """

    def __init__(self) -> None:
        self.gradients, self.current = True, 0
        self._recorded: List[_Recorded] = []
        self._events: List[Tuple[bool, Buffer]] = []
        self._uses: Dict[Tuple[str, str], int] = {}
        self._like: Dict[bool, int] = {}  # the recorded pass that the last one, with or without gradients, followed

    @property
    def peak_bytes(self) -> int:
        return max((each.timeline.joint_peak_bytes for each in self._recorded), default=0)

    def __bool__(self) -> bool:
        return bool(self._events)

    def buffer(self, unit: str, role: str, numel: int, dtype: torch.dtype) -> Buffer:
        use = self._uses.get((unit, role), 0)
        self._uses[unit, role] = use + 1
        return Buffer(unit, role, use, numel, dtype)

    def begin(self, buffer: Buffer) -> None:
        self._events.append((True, buffer))

    def end(self, buffer: Buffer) -> None:
        self._events.append((False, buffer))

    def preference(self, request: Request, buffer: Buffer) -> Tuple[bool, bool]:
        """The key by which requests are tried: those of the current pass first, and there the buffer's own."""
        return request.of_pass != self.current, request.use != buffer.use

    def next(self, gradients: bool) -> None:
        self._like[self.gradients] = self.current
        self.gradients, self.current = gradients, self._like.get(gradients, self.current)
        self._events.clear()
        self._uses.clear()

    def overflow(self) -> None:
        """Forgets a pass that does not end, because somebody keeps parameters."""
        if len(self._events) > _MAX_EVENTS:
            self._events.clear()

    def record(self) -> bool:
        """Adds the current pass, in which no buffer is in use now. False if a recorded one is the same.

        Raises ScheduleError (one buffer with several dtypes).
        """
        buffers = [(began, each.unit, each.role, each.use, each.numel, each.dtype) for began, each in self._events]
        if any(each.buffers == buffers for each in self._recorded):
            return False
        index = len(self._recorded)
        units = dict.fromkeys(f"{each.unit}#{index}.{each.use}" for began, each in self._events if began)
        timeline, slots = Timeline(units), {}
        for began, each in self._events:
            if began:
                unit = f"{each.unit}#{index}.{each.use}"
                slots[each] = timeline.acquire(unit, each.role, "", each.numel, each.dtype)
            elif each in slots:
                timeline.release(slots.pop(each))
        self._recorded.append(_Recorded(timeline, buffers, self.gradients))
        self._like[self.gradients] = self.current = index
        return True

    def forget(self) -> None:
        """Removes the pass that was recorded last."""
        self._recorded.pop()
        self.current = 0
        self._like.clear()

    def planned(self, name: str) -> Planned:
        timelines = [each.timeline for each in self._recorded]
        units = list(dict.fromkeys(unit for each in timelines for unit in each.units))
        for each in timelines:
            each.units = units
        return Planned(name, timelines)


def place_of(slot: Slot) -> Tuple[str, int, int]:
    """Unit, recorded pass and use of a slot."""
    unit, _, place = slot.unit.rpartition("#")
    of_pass, _, use = place.partition(".")
    return unit, int(of_pass), int(use)
