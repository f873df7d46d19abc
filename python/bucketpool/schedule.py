"""Schedules: when each request is live in a step of training."""

import ctypes
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from . import _abi
from ._library import call, configured, core, viewed
from .buckets import Buckets
from .errors import InvalidArgument
from .handle import Handle, Owner
from .model import Model
from .names import member, name_of, whole


class ScheduleHandle(Handle):
    destroy = "bp_schedule_destroy"


class Step(NamedTuple):
    """What a step computes. unit None: what lies outside units; forward_unit: beside it, where passes are combined."""

    phase: str
    unit: Optional[int]
    forward_unit: Optional[int]


class ScheduleEvent(NamedTuple):
    """An acquire or release of `requests` requests from number `first`."""

    step: int
    acquire: bool
    lane: int
    first: int
    requests: int


def _unit(unit: int) -> Optional[int]:
    return None if unit < 0 else unit


class Schedule(Owner[ScheduleHandle]):
    """Made by training(), recorded(), merged() or embedded(). Keeps nothing of its inputs, and never changes."""

    def __init__(self) -> None:
        raise TypeError("schedules are made by Schedule.training, recorded, merged or embedded")

    @classmethod
    def _made(cls, function: Any, *arguments: Any) -> "Schedule":
        handle = ScheduleHandle()
        call(function, *arguments, ctypes.byref(handle))
        schedule = cls.__new__(cls)
        schedule._handle = handle
        return schedule

    @classmethod
    def training(cls, buckets: Buckets, prefetch: int = 1, grad_units: int = 2, passes: str = "train",
                 prefetch_backward: Optional[int] = None, keep_after_forward: bool = False, recompute: bool = False,
                 streams: str = "separate", outside: str = "nothing", microbatches: int = 0, combined: bool = False,
                 overrides: Mapping[int, Tuple[int, Optional[int]]] = {}) -> "Schedule":
        """A training step as FSDP runtimes run it, by default Megatron-FSDP's with double buffering.

        prefetch: prefetch depth; prefetch_backward None: as forward. grad_units: units whose gradients are live
        at once. passes: "train", "eval", "both". keep_after_forward: parameters stay until their backward (ZeRO-2).
        recompute: activation checkpointing. streams: "separate", "unified". outside: what embedding and output layer
        gather ahead, "nothing" or "successor". microbatches: forward passes in flight in a 1F1B stage; combined:
        forward and backward at the same time. overrides: unit -> prefetch depths (forward, backward), backward None: as
        forward. Raises InvalidArgument, Unsupported (more than 2^25 steps)."""
        own = (_abi.bp_unit_prefetch * len(overrides))()
        for entry, (unit, (forward, backward)) in zip(own, overrides.items()):
            entry.unit, entry.forward = whole(unit, 32, "a unit"), whole(forward, 32, "prefetch")
            entry.backward = _abi.BP_PREFETCH_SAME if backward is None else whole(backward, 32, "prefetch")
        config = configured(core().bp_schedule_config_init, _abi.bp_schedule_config, prefetch=prefetch,
                            grad_units=grad_units, passes=member("BP_PASSES_", passes, "passes"),
                            prefetch_backward=prefetch_backward, keep_after_forward=int(keep_after_forward),
                            recompute=int(recompute), streams=member("BP_STREAMS_", streams, "streams"),
                            outside=member("BP_OUTSIDE_PREFETCHES_", outside,
                                           "outside"), microbatches=microbatches, combined=int(combined),
                            override_count=len(overrides), overrides=ctypes.cast(own,
                                                                                 ctypes.POINTER(_abi.bp_unit_prefetch)))
        return cls._made(core().bp_schedule_create_training, buckets.handle, ctypes.byref(config))

    @classmethod
    def recorded(cls, model: Model, buckets: Buckets, overlap_window: int = 0, partial: bool = False) -> "Schedule":
        """The events that the model brought along, a step each.

        overlap_window: memory released on one lane is kept from so many units that acquire next on another. partial:
        requests without events are not live, instead of an error. Raises ScheduleError by position and name,
        InvalidArgument (no events)."""
        config = configured(core().bp_recorded_config_init, _abi.bp_recorded_config, overlap_window=overlap_window,
                            partial=int(partial))
        return cls._made(core().bp_schedule_create_recorded, model.handle, buckets.handle, ctypes.byref(config))

    @classmethod
    def merged(cls, schedules: Iterable["Schedule"]) -> "Schedule":
        """Several schedules of the same buckets, one after the other: requests that conflict in one of them conflict.
        Raises InvalidArgument."""
        kept = [schedule.handle for schedule in schedules]
        pointers = (ctypes.c_void_p * len(kept))(*[handle.value for handle in kept])
        return cls._made(core().bp_schedule_create_merged, pointers, len(kept))

    @classmethod
    def embedded(cls, schedule: "Schedule", buckets: Buckets, index: int) -> "Schedule":
        """The schedule of one of several models that share a pool, for the buckets that Buckets.merged made of theirs;
        its own are number `index`. Raises InvalidArgument."""
        return cls._made(core().bp_schedule_create_embedded, schedule.handle, buckets.handle, whole(index, 63, "a part"))

    @property
    def _info(self) -> Any:
        return viewed(core().bp_schedule_get_info, self.handle)

    @property
    def step_count(self) -> int:
        return int(self._info.step_count)

    @property
    def steps(self) -> List[Step]:
        info = self._info
        return [Step(name_of("BP_PHASE_", s.phase), _unit(s.unit), _unit(s.forward_unit))
                for s in info.steps[:info.step_count]]

    def intervals(self, request: int) -> List[Tuple[int, int]]:
        """Steps [begin, end) in which a request is live; [] where this schedule never uses it. Raises InvalidArgument
        (no such request)."""
        info, index = self._info, whole(request, 63, "a request")
        if index >= info.request_count:
            raise InvalidArgument(f"request {index} of {info.request_count}")
        found = info.requests[index]
        return [(i.begin, i.end) for i in found.intervals[:found.interval_count]]

    @property
    def overlaps(self) -> List[Tuple[int, int]]:
        """Pairs of requests (earlier, later) that are never live together but conflict, because of an overlap window."""
        info = self._info
        return [(o.earlier, o.later) for o in info.overlaps[:info.overlap_count]]

    @property
    def events(self) -> List[ScheduleEvent]:
        """Acquires and releases, by step, releases first."""
        info = self._info
        return [ScheduleEvent(e.step, bool(e.acquire), e.lane, e.first_request, e.request_count)
                for e in info.events[:info.event_count]]

    def __repr__(self) -> str:
        return "<Schedule, closed>" if self.closed else f"<Schedule: {self.step_count} steps>"
