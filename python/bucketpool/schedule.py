# SPDX-License-Identifier: Apache-2.0
"""Schedules: the steps in which each request is live."""

import ctypes
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from . import _abi
from ._library import call, configured, core, viewed
from .buckets import Buckets
from .errors import InvalidArgument
from .handle import Handle, Owner, handle_of
from .model import Model
from .names import flag, list_of, mapping_of, member, name_of, whole


__all__ = ["Schedule", "ScheduleEvent", "Step"]


class ScheduleHandle(Handle, _abi.bp_schedule):
    destroy = "bp_schedule_destroy"


class Step(NamedTuple):
    """A step. unit None: persistent parameters; forward_unit: the unit that runs forward at the same time."""

    phase: str
    unit: Optional[int]
    forward_unit: Optional[int]


class ScheduleEvent(NamedTuple):
    """An acquire or a release of `requests` consecutive requests, starting with id `first`."""

    step: int
    acquire: bool
    lane: int
    first: int
    requests: int


def _unit(unit: int) -> Optional[int]:
    return None if unit < 0 else unit


def training_config(prefetch: int = 1, grad_units: int = 2, passes: str = "train",
                    prefetch_backward: Optional[int] = None, keep_after_forward: bool = False, recompute: bool = False,
                    streams: str = "separate", outside: str = "nothing", microbatches: int = 0, combined: bool = False,
                    overrides: Mapping[int, Tuple[int, Optional[int]]] = {}) -> _abi.bp_schedule_config:
    """The struct of the arguments of Schedule.training."""
    own = (_abi.bp_unit_prefetch * len(mapping_of(overrides, "overrides")))()
    for entry, (unit, (forward, backward)) in zip(own, overrides.items()):
        entry.unit, entry.forward = whole(unit, 32, "a unit"), whole(forward, 32, "prefetch")
        entry.backward = _abi.BP_PREFETCH_SAME if backward is None else whole(backward, 32, "prefetch")
    return configured(core().bp_schedule_config_init, _abi.bp_schedule_config, prefetch=prefetch, grad_units=grad_units,
                      passes=member("BP_PASSES_", passes, "passes"), prefetch_backward=prefetch_backward,
                      keep_after_forward=flag(keep_after_forward, "keep_after_forward"),
                      recompute=flag(recompute, "recompute"),
                      streams=member("BP_STREAMS_", streams, "streams"),
                      outside=member("BP_OUTSIDE_PREFETCHES_", outside, "outside"), microbatches=microbatches,
                      combined=flag(combined, "combined"), override_count=len(overrides),
                      overrides=own)


class Schedule(Owner[ScheduleHandle]):
    """A schedule: the live ranges of the requests, which never change.

    Made by Schedule.training() (a step of training), recorded() (events of a run), merged() or embedded().
    """

    shared = True

    def __init__(self) -> None:
        raise TypeError("Schedule has no constructor; call Schedule.training, recorded, merged or embedded")

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
        """The schedule of a training or evaluation step; by default Megatron-FSDP with double buffering.

        - prefetch, prefetch_backward: prefetch depth in forward and backward; None: as in forward
        - grad_units: units whose gradients are live at once
        - passes: "train", "eval" or "both"
        - keep_after_forward: parameters stay gathered until their backward (reshard_after_forward=False)
        - recompute: activation checkpointing
        - streams: "separate" or "unified", for all-gathers and reduce-scatters
        - outside: prefetch during embedding and output layer, "nothing" or "successor"
        - microbatches, combined: forward passes in flight in a 1F1B stage; forward and backward at the same
          time
        - overrides: prefetch depths (forward, backward) by unit; backward None: as in forward

        Raises InvalidArgument, Unsupported (more than 2^25 steps).
        """
        config = training_config(prefetch, grad_units, passes, prefetch_backward, keep_after_forward, recompute,
                                 streams, outside, microbatches, combined, overrides)
        return cls._made(core().bp_schedule_create_training, handle_of(buckets, Buckets, "buckets"),
                         ctypes.byref(config))

    @classmethod
    def recorded(cls, model: Model, buckets: Buckets, overlap_window: int = 0, partial: bool = False) -> "Schedule":
        """The schedule of recorded events of the model (Model.add_event), one step for each event.

        - overlap_window: memory released on one lane is not given to this many units that other lanes acquire
          next
        - partial: requests without events are never live, instead of an error

        Raises ScheduleError (with position and name), InvalidArgument (no events).
        """
        config = configured(core().bp_recorded_config_init, _abi.bp_recorded_config, overlap_window=overlap_window,
                            partial=flag(partial, "partial"))
        return cls._made(core().bp_schedule_create_recorded, handle_of(model, Model, "model"),
                         handle_of(buckets, Buckets, "buckets"), ctypes.byref(config))

    @classmethod
    def merged(cls, schedules: Iterable["Schedule"]) -> "Schedule":
        """Merges schedules of the same buckets, one after the other: a conflict in one of them is a conflict of
        the merged schedule. Raises InvalidArgument.
        """
        kept = [handle_of(schedule, Schedule, "schedules") for schedule in list_of(schedules, "schedules")]
        pointers = (_abi.bp_schedule * len(kept))(*[handle.value for handle in kept])
        return cls._made(core().bp_schedule_create_merged, pointers, len(kept))

    @classmethod
    def embedded(cls, schedule: "Schedule", buckets: Buckets, index: int) -> "Schedule":
        """Converts the schedule of one model to merged buckets (Buckets.merged), for models that share a pool.

        index: the position of its buckets in the merge. Raises InvalidArgument.
        """
        return cls._made(core().bp_schedule_create_embedded, handle_of(schedule, Schedule, "schedule"),
                         handle_of(buckets, Buckets, "buckets"), whole(index, 63, "a part"))

    @property
    def _info(self) -> Any:
        return viewed(core().bp_schedule_get_info, self.handle)

    @property
    def step_count(self) -> int:
        return int(self._info.step_count)

    @property
    def steps(self) -> List[Step]:
        """The steps, of which intervals() and events have indices."""
        info = self._info
        return [Step(name_of("BP_PHASE_", s.phase), _unit(s.unit), _unit(s.forward_unit))
                for s in info.steps[:info.step_count]]

    def intervals(self, request: int) -> List[Tuple[int, int]]:
        """Intervals [begin, end) of steps in which a request is live; [] if this schedule never uses it.

        Raises InvalidArgument (an unknown request).
        """
        info, index = self._info, whole(request, 63, "a request")
        if index >= info.request_count:
            raise InvalidArgument(f"schedule: unknown request {index}; there are {info.request_count}")
        found = info.requests[index]
        return [(i.begin, i.end) for i in found.intervals[:found.interval_count]]

    @property
    def overlaps(self) -> List[Tuple[int, int]]:
        """Pairs of requests (earlier, later) that conflict because of an overlap window, although they are never
        live together.
        """
        info = self._info
        return [(o.earlier, o.later) for o in info.overlaps[:info.overlap_count]]

    @property
    def events(self) -> List[ScheduleEvent]:
        """Acquires and releases by step; in a step releases come first."""
        info = self._info
        return [ScheduleEvent(e.step, bool(e.acquire), e.lane, e.first_request, e.request_count)
                for e in info.events[:info.event_count]]

    def __repr__(self) -> str:
        return "<Schedule, closed>" if self.closed else f"<Schedule: {self.step_count} steps>"
