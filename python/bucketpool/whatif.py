# SPDX-License-Identifier: Apache-2.0
"""Plans of other schedules, and the units that set the peak of a plan (bucketpool/whatif.h)."""

import ctypes
from typing import Any, List, NamedTuple, Optional, Tuple

from . import _abi
from ._library import call, configured, core, viewed
from .buckets import Buckets
from .handle import Handle, handle_of
from .names import flag, name_of, role_name, role_names, whole
from .plan import Plan
from .schedule import Schedule, training_config

__all__ = ["Alternative", "Holder", "Peak", "alternatives", "peaks"]


class AlternativesHandle(Handle, _abi.bp_alternatives):
    destroy = "bp_alternatives_destroy"


class PeaksHandle(Handle, _abi.bp_peaks):
    destroy = "bp_peaks_destroy"


class Alternative(NamedTuple):
    """The plan of another schedule, as bp_alternative in whatif.h.

    bytes: of policy scheduled; max_bytes: of policy max, 0: infeasible; live_bytes: peak live bytes of all roles.
    """

    prefetch: int
    prefetch_backward: int
    streams: str
    joint: bool
    is_present: bool
    optimal: bool
    bytes: int
    lower_bound_bytes: int
    proven_bytes: int
    max_bytes: int
    live_bytes: int


class Holder(NamedTuple):
    """A unit in a role, live at a peak."""

    unit: str
    role: str
    bytes: int


class Peak(NamedTuple):
    """The peak of a slab, as bp_peak in whatif.h. step: the first that reaches it; holders: live in it, largest first.

    next_bytes: the peak if these holders were not live together; below_bytes: the largest sum below the peak.
    """

    roles: Tuple[str, ...]
    step: int
    bytes: int
    holders: List[Holder]
    step_count: int
    set_count: int
    next_bytes: int
    next_step: int
    below_step: int
    below_bytes: int


def alternatives(buckets: Buckets, max_prefetch: int = 4, work: int = 0, present: Optional[Plan] = None,
                 alignment: int = 256, joint: bool = False, plan_work: int = 0, **training: Any) -> List[Alternative]:
    """Plans every combination of prefetch depth, separate or unified streams, and one slab for each role or for all.

    - max_prefetch: largest prefetch depth, from 0 on
    - work: search limit for each slab; 0: the default. Bundled models take a second or two.
    - present: the plan of the present choice, with policy scheduled; None: it is made
    - alignment, joint, plan_work: as alignment, joint and work of Plan, for the present choice
    - training: arguments of Schedule.training, for the present choice

    Raises as Schedule.training and Plan.
    """
    schedule = training_config(**training)
    plan = configured(core().bp_plan_config_init, _abi.bp_plan_config, alignment=alignment, joint=flag(joint, "joint"),
                      work=plan_work)
    config = configured(core().bp_alternatives_config_init, _abi.bp_alternatives_config,
                        max_prefetch=whole(max_prefetch, 32, "max_prefetch"), work=whole(work, 64, "work") or None,
                        present=None if present is None else handle_of(present, Plan, "present").value)
    handle = AlternativesHandle()
    call(core().bp_alternatives_create, handle_of(buckets, Buckets, "buckets"), ctypes.byref(schedule),
         ctypes.byref(plan), ctypes.byref(config), ctypes.byref(handle))
    info = viewed(core().bp_alternatives_get_info, handle)
    return [
        Alternative(a.prefetch, a.prefetch_backward, name_of("BP_STREAMS_", a.streams), bool(a.joint),
                    bool(a.is_present), bool(a.optimal), a.bytes, a.lower_bound_bytes, a.proven_bytes, a.max_bytes,
                    a.live_bytes) for a in info.alternatives[:info.alternative_count]
    ]


def peaks(buckets: Buckets, schedule: Schedule, plan: Plan) -> List[Peak]:
    """Finds the units that set the peak, for each entry of Plan.roles. `plan` is of these buckets and this schedule.

    Raises InvalidArgument (a schedule or a plan of other buckets, a plan from a file).
    """
    handle = PeaksHandle()
    call(core().bp_peaks_create, handle_of(buckets, Buckets, "buckets"), handle_of(schedule, Schedule, "schedule"),
         handle_of(plan, Plan, "plan"), ctypes.byref(handle))
    units = buckets.units
    info = viewed(core().bp_peaks_get_info, handle)
    return [
        Peak(tuple(role_names(p.roles)), p.step, p.bytes,
             [Holder(units[h.unit], role_name(h.role), h.bytes) for h in p.holders[:p.holder_count]], p.step_count,
             p.set_count, p.next_bytes, p.next_step, p.below_step, p.below_bytes)
        for p in info.peaks[:info.peak_count]
    ]
