# SPDX-License-Identifier: Apache-2.0
"""Plans that follow a module: new ones after passes that were not as planned. Internal."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ..device import Device
from ..errors import Infeasible, InvalidArgument, Mismatch, NoDeviceMemory, ScheduleError
from ..plan import Plan
from ..pool import Pool
from .timeline import Planned, Timeline

_MAX_EVENTS = 1 << 17
_MAX_REPLANS = 16  # a module that differs after that gets plain memory


class Replanner:
    """The plan of one module and its pool, and the requests of this pass, as a timeline to plan anew from.

    A pass ends when no buffer is in use and the group asks again that asked first, in forward: a micro-batch, with its
    backward if it has one. So its timeline can be planned alone.

    - units: names of the module's groups
    - plan_options, pool_options: as in Plan and Pool; the pool has the name of the model
    - phases: False: one bucket for all-gathers of forward and backward
    - recording: False: the plan stays

    Attributes: device; planned, plan and pool, None before the first; replans, why the pool was planned anew; recording,
    False once the plan stays.
    """

    def __init__(self, name: str, units: Sequence[str], device: Device, plan_options: Dict[str, Any],
                 pool_options: Dict[str, Any], phases: bool = True, recording: bool = True) -> None:
        self.name, self.device = name, device
        self.planned: Optional[Planned] = None
        self.plan: Optional[Plan] = None
        self.pool: Optional[Pool] = None
        self.replans: List[str] = []
        self._units, self._phases, self.recording = units, phases, recording
        self._plan_options, self._pool_options = plan_options, pool_options
        self._timelines: List[Timeline] = []
        self._events: List[Tuple[Any, ...]] = []
        self.log = self._events.append  # asked() and released() without their frames
        self._first, self._differs = "", ""

    @property
    def current(self) -> Tuple[Planned, Plan, Pool]:
        """The plan and its pool, once there is one."""
        assert self.planned is not None and self.plan is not None and self.pool is not None
        return self.planned, self.plan, self.pool

    # ---- a pass ----------------------------------------------------------------------------------------------------

    def begins(self, unit: str, phase: str) -> bool:
        """True if this request, made while no buffer is in use, begins a pass."""
        self._first = self._first or unit
        return bool(self._events) and ((unit == self._first and phase == "forward") or len(self._events) > _MAX_EVENTS)

    def asked(self, buffer: object, unit: str, role: str, phase: str, numel: int, dtype: torch.dtype) -> None:
        self.log((buffer, unit, role, phase, numel, dtype))

    def released(self, buffer: object) -> None:
        self.log((buffer,))

    def differs(self, why: str) -> None:
        """A request was not as planned. The first reason of a pass is kept."""
        self._differs = self._differs or why

    def next_pass(self, take: Callable[[], None], leave: Callable[[], None] = lambda: None) -> None:
        """Begins a pass. If the one before has no plan, or differs from it, replaces plan and pool, unless others know
        the addresses of the pool. leave() is called before the old pool is closed, take() after the new one is open.

        Errors of the first plan are raised as by start(). Later the old plan is kept instead, also if the device lacks
        memory for the new pool.
        """
        if self.pool is None:
            self.start([self._timeline()])
            take()
        elif self._differs and self.recording and not self.pool.addresses_known:
            self._replan(take, leave)
        self._events.clear()
        self._differs = ""
        self.recording = self.recording and len(self.replans) < _MAX_REPLANS

    def _timeline(self) -> Timeline:
        """The timeline of the pass. Raises ScheduleError (one buffer with several dtypes)."""
        timeline, slots = Timeline(self._units), {}
        for buffer, *request in self._events:
            if request:
                slots[buffer] = timeline.acquire(*request)
            else:
                timeline.release(slots.pop(buffer))
        return timeline if self._phases else timeline.without_phases()

    # ---- plans -----------------------------------------------------------------------------------------------------

    def start(self, timelines: Sequence[Timeline], plan: Optional[Plan] = None) -> None:
        """Plans these timelines, or takes the plan if it is for their buckets, and creates the pool.

        Raises as Planned and Plan; Infeasible; Mismatch (the plan is for other buckets, and must stay); NoDeviceMemory.
        """
        planned = Planned(self.name, timelines)
        if plan is not None:
            try:
                plan.check(planned.buckets, planned.schedule)
            except Mismatch as error:
                if not self.recording:
                    raise
                self.replans.append(f"the given plan: {error}")
                plan = None
        self._open(timelines, planned, self._plan_of(planned) if plan is None else plan)

    def close(self) -> None:
        """Closes the pool. The next pass is planned as the first."""
        if self.pool is not None:
            self.pool.close()
        self.pool = None

    def _plan_of(self, planned: Planned) -> Plan:
        plan = Plan(planned.buckets, planned.schedule, **self._plan_options)
        if not plan.feasible:
            raise Infeasible(f"policy {plan.policy}: {plan.infeasible_because}")
        return plan

    def _open(self, timelines: Sequence[Timeline], planned: Planned, plan: Plan) -> None:
        self.pool = Pool(self.device, plan, name=self.name, **self._pool_options)
        self._timelines, self.planned, self.plan = list(timelines), planned, plan

    def _replan(self, take: Callable[[], None], leave: Callable[[], None]) -> None:
        self.replans.append(self._differs)
        try:
            timelines = [*self._timelines, self._timeline()]
            try:
                planned = Planned(self.name, timelines)
            except InvalidArgument:  # the dtypes of this pass do not go with the others
                timelines = timelines[-1:]
                planned = Planned(self.name, timelines)
            plan = self._plan_of(planned)
        except (ScheduleError, Infeasible, InvalidArgument) as error:  # plain memory for such passes
            self.replans[-1] += f"; kept the plan: {error}"
            return
        leave()
        old_planned, old_plan, pool = self.current
        pool.close()
        try:
            self._open(timelines, planned, plan)
        except NoDeviceMemory as error:
            self.replans[-1] += f"; kept the plan: {error}"
            self._open(self._timelines, old_planned, old_plan)
        take()
