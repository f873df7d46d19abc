"""Plans: where each request lives, how many bytes that takes, and how few it could take."""

import ctypes
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import _abi
from ._library import call, configured, core, filled, formats
from .buckets import Buckets
from .handle import Handle, Owner
from .names import (Path, decoded, dtype_name, encoded, encoded_path, member, name_of, optional, role_name, role_names,
                    whole)
from .schedule import Schedule


class PlanHandle(Handle):
    destroy = "bp_plan_destroy"


class PlanRole(NamedTuple):
    """A slab's worth of a plan: roles, bytes (of them shared, persistent and dynamic ones), the bound and what was
    proven."""

    roles: Tuple[str, ...]
    copies: int
    bytes: int
    pool_bytes: int
    persistent_bytes: int
    dynamic_bytes: int
    lower_bound_bytes: int
    lower_bound_step: int
    proven_bytes: int
    optimal: bool
    live_units: int
    method: str


class PlanSlab(NamedTuple):
    bytes: int
    group: str


class Assignment(NamedTuple):
    """A request's place. predecessors: assignments whose release an acquire waits for. bytes: padded, not aligned."""

    unit: str
    ordinal: int
    role: str
    dtype: str
    slab: int
    offset: int
    bytes: int
    bucket: Optional[str]
    predecessors: Tuple[int, ...]


class Plan(Owner[PlanHandle]):
    """Pure data: the same input gives the same plan. Keeps nothing of its inputs; may be read from many threads.

    policy: "dynamic", "fixed", "max", "scheduled". copies: buffer sets of fixed and max, 0: as many as needed.
    alignment: bytes, a power of two. joint: one slab for all roles (scheduled). fallback: of units that do not fit
    the fixed pool, "persistent", "dynamic". work: bound of the search, 0: the default. An infeasible plan is an
    answer: feasible is False, infeasible_because says why. Raises InvalidArgument, SizeOverflow."""

    def __init__(self, buckets: Buckets, schedule: Schedule, policy: str = "scheduled", copies: int = 0,
                 alignment: int = 256, joint: bool = False, fallback: str = "persistent", work: int = 0) -> None:
        config = configured(core().bp_plan_config_init, _abi.bp_plan_config,
                            policy=member("BP_POLICY_", policy, "policy"), copies=copies,
                            fallback=member("BP_FALLBACK_", fallback,
                                            "fallback"), alignment=alignment, joint=int(joint), work=work)
        handle = PlanHandle()
        call(core().bp_plan_create, buckets.handle, schedule.handle, ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Reads bucketpool.plan/1. Raises FileError, FormatError, Mismatch (contents and fingerprint)."""
        handle = PlanHandle()
        call(formats().bp_plan_read, encoded_path(path), ctypes.byref(handle))
        plan = cls.__new__(cls)
        plan._handle = handle
        return plan

    def write(self, path: Path) -> None:
        """Writes the plan, whole or not at all. Raises FileError."""
        call(formats().bp_plan_write, self.handle, encoded_path(path))

    def _summary(self) -> _abi.bp_plan_summary:
        return filled(core().bp_plan_summary_get, _abi.bp_plan_summary, self.handle)

    @property
    def policy(self) -> str:
        return name_of("BP_POLICY_", self._summary().policy)

    @property
    def bytes(self) -> int:
        """Of all roles."""
        return int(self._summary().bytes)

    @property
    def lower_bound_bytes(self) -> int:
        """No plan with a slab for each role takes less."""
        return int(self._summary().lower_bound_bytes)

    @property
    def copies(self) -> int:
        return int(self._summary().copies)

    @property
    def alignment(self) -> int:
        return int(self._summary().alignment)

    @property
    def optimal(self) -> bool:
        """The bytes are proven to be the least possible."""
        return bool(self._summary().optimal)

    @property
    def stable(self) -> bool:
        """Every request has one address for the whole run."""
        return bool(self._summary().stable)

    @property
    def feasible(self) -> bool:
        return bool(self._summary().feasible)

    @property
    def infeasible_because(self) -> str:
        """"" where it is feasible."""
        handle = self.handle  # the text is the plan's
        return decoded(filled(core().bp_plan_summary_get, _abi.bp_plan_summary, handle).infeasible_because)

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits: equal on every rank that can work together. A pass over the plan each time."""
        text = ctypes.create_string_buffer(_abi.BP_FINGERPRINT_CHARS)
        call(core().bp_plan_fingerprint, self.handle, text)
        return text.value.decode()

    @property
    def slabs(self) -> List[PlanSlab]:
        library, handle = core(), self.handle
        slabs = (filled(library.bp_plan_slab_get, _abi.bp_plan_slab, handle, index)
                 for index in range(library.bp_plan_slab_count(handle)))
        return [PlanSlab(s.bytes, decoded(s.group)) for s in slabs]

    @property
    def roles(self) -> List[PlanRole]:
        library, handle = core(), self.handle
        roles = (filled(library.bp_plan_role_get, _abi.bp_plan_role, handle, index)
                 for index in range(library.bp_plan_role_count(handle)))
        return [
            PlanRole(tuple(role_names(r.roles)), r.copies, r.bytes, r.pool_bytes, r.persistent_bytes, r.dynamic_bytes,
                     r.lower_bound_bytes, r.lower_bound_step, r.proven_bytes, bool(r.optimal), r.live_units,
                     decoded(r.method)) for r in roles
        ]

    @property
    def assignments(self) -> List[Assignment]:
        """Of the requests that have an address, in their order; [] of dynamic and infeasible plans."""
        library, handle = core(), self.handle
        entries = (filled(library.bp_plan_assignment_get, _abi.bp_assignment, handle, index)
                   for index in range(library.bp_plan_assignment_count(handle)))
        return [
            Assignment(decoded(a.unit), a.ordinal, role_name(a.role), dtype_name(a.dtype), a.slab, a.offset, a.bytes,
                       None if a.bucket is None else decoded(a.bucket),
                       tuple(a.predecessors[:a.predecessor_count]) if a.predecessor_count else ()) for a in entries
        ]

    @property
    def model(self) -> str:
        """The model's name, for saving and display."""
        handle = self.handle
        return decoded(core().bp_plan_model(handle))

    @model.setter
    def model(self, name: str) -> None:
        call(core().bp_plan_set_model, self.handle, encoded(name, "a model's name"))

    @property
    def options(self) -> Dict[str, str]:
        """What it was planned with, as text, for saving and display."""
        library, handle = core(), self.handle
        key, value = ctypes.c_char_p(), ctypes.c_char_p()
        options = {}
        for index in range(library.bp_plan_option_count(handle)):
            call(library.bp_plan_option, handle, index, ctypes.byref(key), ctypes.byref(value))
            options[decoded(key.value)] = decoded(value.value)
        return options

    def set_option(self, key: str, value: Optional[str]) -> None:
        """None removes it."""
        call(core().bp_plan_set_option, self.handle, encoded(key, "a key"), optional(value, "a value"))

    def set_group(self, slab: int, group: str) -> None:
        """Names the release group of a slab, before pools are made: the fingerprint covers groups."""
        call(core().bp_plan_set_group, self.handle, whole(slab, 63, "a slab"), encoded(group, "a group"))

    def check(self, buckets: Buckets, schedule: Schedule) -> None:
        """The library's checker, which shares nothing with its planner. Raises Mismatch naming the first thing that
        is wrong."""
        call(core().bp_plan_check, self.handle, buckets.handle, schedule.handle)

    def __repr__(self) -> str:
        if self.closed:
            return "<Plan, closed>"
        summary = self._summary()
        policy = name_of("BP_POLICY_", summary.policy)
        return f"<Plan {policy}: {summary.bytes} bytes, at least {summary.lower_bound_bytes}>"
