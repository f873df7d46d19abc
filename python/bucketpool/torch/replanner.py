"""Passes: what a module asked for while it had a pool, as timelines to plan anew from."""

from typing import Any, List, Sequence, Tuple

import torch

from .timeline import Timeline

_MOST_EVENTS = 1 << 17


class Pass:
    """Requests and releases since a moment without buffers in use, in the order of the host.

    A pass ends when no buffer is in use and the group asks again that asked first, in forward: a micro-batch, with its
    backward if it has one. So its timeline can be planned alone.
    """

    def __init__(self, units: Sequence[str]) -> None:
        self._units, self._first = units, ""
        self._events: List[Tuple[Any, ...]] = []
        self.differs = ""  # the first request that was not as planned, and why

    def begins(self, unit: str, phase: str) -> bool:
        """True if this request, made while no buffer is in use, begins a pass."""
        self._first = self._first or unit
        return bool(self._events) and ((unit == self._first and phase == "forward") or len(self._events) > _MOST_EVENTS)

    def asked(self, buffer: object, unit: str, role: str, phase: str, numel: int, dtype: torch.dtype) -> None:
        self._events.append((buffer, unit, role, phase, numel, dtype))

    def released(self, buffer: object) -> None:
        self._events.append((buffer, ))

    def clear(self) -> None:
        self._events.clear()
        self.differs = ""

    def timeline(self) -> Timeline:
        """The timeline of the pass. Raises ScheduleError (one buffer with several dtypes)."""
        timeline, slots = Timeline(self._units), {}
        for buffer, *request in self._events:
            if request:
                slots[buffer] = timeline.acquire(*request)
            else:
                timeline.release(slots.pop(buffer))
        return timeline
