# SPDX-License-Identifier: Apache-2.0
"""Timelines of buffers, recorded or predicted, converted to units, buckets and events."""

import dataclasses
from typing import Dict, Iterable, List, Sequence, Tuple

import torch

from ..buckets import Buckets
from ..errors import InvalidArgument, ScheduleError
from ..model import Model
from ..schedule import Schedule

ROLES = ("param", "grad")  # outputs of all-gathers, inputs of reduce-scatters
PHASES = ("", "forward", "backward")
_BUCKET_NAMES = {"param": "gather", "grad": "reduce"}
# Each role is acquired and released in the order of its allocation stream: docs/guides/fsdp2.md.
_LANES = {"param": 0, "grad": 1}


def phase_of(role: str) -> str:
    """"forward" or "backward" for all-gathers; "" for reduce-scatters. Backward is what autograd's engine runs on this
    thread, with recomputed forwards.
    """
    if role != "param":
        return ""
    return "forward" if torch._C._current_graph_task_id() == -1 else "backward"


@dataclasses.dataclass(frozen=True)
class Slot:
    """A buffer of a group. All-gathers of forward and of backward are separate slots, which need not share an address.

    instance: number among slots of one kind that are live at once (a module that runs twice in a row).
    """

    unit: str
    role: str
    phase: str = ""  # "forward" or "backward" of an all-gather; "": any
    instance: int = 0

    @property
    def bucket(self) -> str:
        parts = [_BUCKET_NAMES[self.role], self.phase, str(self.instance) if self.instance else ""]
        return ".".join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Size:
    """The largest size of a slot: elements of a dtype."""

    numel: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize


class Timeline:
    """Acquires and releases of slots, in the order of the host.

    Live bytes are counted without rounding. `peak_bytes` for each role and `joint_peak_bytes` for both
    together are FSDP2's peak live bytes: the lower bound of any pool.
    """

    def __init__(self, units: Iterable[str]) -> None:
        self.units: List[str] = list(units)
        self.sizes: Dict[Slot, Size] = {}
        self.events: List[Tuple[bool, Slot]] = []
        self.peak_bytes: Dict[str, int] = dict.fromkeys(ROLES, 0)
        self.joint_peak_bytes = 0
        self._live: Dict[Slot, int] = {}

    def acquire(self, unit: str, role: str, phase: str, numel: int, dtype: torch.dtype) -> Slot:
        """Acquires the first free slot of the unit, role and phase."""
        instance = 0
        while Slot(unit, role, phase, instance) in self._live:
            instance += 1
        slot, size = Slot(unit, role, phase, instance), Size(numel, dtype)
        largest = self.sizes.get(slot)
        if largest is not None and largest.dtype != dtype:
            raise ScheduleError(f"{role} of {unit}: {dtype} now, {largest.dtype} before in one recording; record steps "
                                "of one kind")
        if largest is None or largest.numel < numel:
            self.sizes[slot] = size
        self._live[slot] = size.bytes
        self.events.append((True, slot))
        of_role = sum(count for live, count in self._live.items() if live.role == role)
        self.peak_bytes[role] = max(self.peak_bytes[role], of_role)
        self.joint_peak_bytes = max(self.joint_peak_bytes, sum(self._live.values()))
        return slot

    def release(self, slot: Slot) -> None:
        del self._live[slot]
        self.events.append((False, slot))

    @property
    def live(self) -> List[Slot]:
        return list(self._live)

    def without_phases(self) -> "Timeline":
        """The timeline with one slot for all-gathers of forward and backward."""
        merged, now = Timeline(self.units), {}
        for acquired, slot in self.events:
            if acquired:
                size = self.sizes[slot]
                now[slot] = merged.acquire(slot.unit, slot.role, "", size.numel, size.dtype)
            else:
                merged.release(now.pop(slot))
        return merged


class Planned:
    """Timelines of one module as input of the planner.

    Attributes: model (with given buckets; model.write_units writes units.json), buckets, schedule (of all timelines);
    slots (by request id); sizes (by slot).
    """

    def __init__(self, name: str, timelines: Sequence[Timeline]) -> None:
        if not timelines:
            raise InvalidArgument("timelines: none given; pass at least one recording or prediction")
        units = timelines[0].units
        for timeline in timelines:
            if timeline.units != units:
                raise InvalidArgument("recordings: modules with different groups: "
                                      f"{sorted(set(units) ^ set(timeline.units)) or 'in another order'}; record one "
                                      "module")
            if timeline.live:
                slot = timeline.live[0]
                raise ScheduleError(
                    f"recording: it ends while {slot.bucket} of {slot.unit} is live; record whole steps, "
                    "from before forward to after the last backward"
                )
        largest = _largest(timelines)
        if not largest:
            raise InvalidArgument("recording: it has no all-gather and no reduce-scatter; run a training step inside "
                                  "record()")
        self.units: List[str] = list(units)
        self._ordinals: Dict[Slot, int] = {}
        models = [self._model(name, units, largest, timeline) for timeline in timelines]
        self.model: Model = models[0]
        self.buckets = Buckets(self.model, bucketing="given", padding="given", dp=1, roles=ROLES)
        schedules = [Schedule.recorded(model, self.buckets, partial=True) for model in models]
        self.schedule: Schedule = schedules[0] if len(schedules) == 1 else Schedule.merged(schedules)
        by_place = {(slot.unit, self._ordinals[slot]): slot for slot in largest}
        self.slots: List[Slot] = [by_place[request.unit, request.ordinal] for request in self.buckets.requests]
        self.sizes: Dict[Slot, Size] = largest

    def _model(self, name: str, units: Sequence[str], largest: Dict[Slot, Size], timeline: Timeline) -> Model:
        model = Model(name)
        index = {unit: model.add_unit(unit) for unit in units}
        counts: Dict[str, int] = dict.fromkeys(units, 0)
        by_unit = sorted(largest, key=lambda s: (index[s.unit], ROLES.index(s.role), PHASES.index(s.phase), s.instance))
        for slot in by_unit:
            size = largest[slot]
            model.add_bucket(index[slot.unit], size.dtype, size.numel, name=slot.bucket, padded_numel=size.numel,
                             roles=(slot.role,))
            self._ordinals[slot] = counts[slot.unit]
            counts[slot.unit] += 1
        for acquired, slot in timeline.events:
            model.add_event(acquired, index[slot.unit], slot.role, bucket=self._ordinals[slot], lane=_LANES[slot.role])
        return model


def _largest(timelines: Sequence[Timeline]) -> Dict[Slot, Size]:
    largest: Dict[Slot, Size] = {}
    for timeline in timelines:
        for slot, size in timeline.sizes.items():
            if slot in largest and largest[slot].dtype != size.dtype:
                raise InvalidArgument(f"{slot.bucket} of {slot.unit}: {largest[slot].dtype} in one recording, "
                                      f"{size.dtype} in another; record steps with the same dtypes")
            if slot not in largest or largest[slot].numel < size.numel:
                largest[slot] = size
    return largest
