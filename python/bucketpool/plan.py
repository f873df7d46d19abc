"""Plans: where each request lives, how many bytes that takes, and how few it could take."""

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import _abi
from ._library import call, configured, core, formats, viewed
from .buckets import Buckets
from .handle import Handle, Owner
from .names import (DType, Path, decoded, dtype, dtype_name, encoded, encoded_path, member, name_of, optional, role,
                    role_name, role_names, whole)
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


class PlanRequest(NamedTuple):
    """A request; its id is its index. placement: "planned" (slab and offset are its place), "persistent", "dynamic" or
    "none" (no bytes, or the schedule never uses it). bytes: padded, not aligned; used_bytes: without padding."""

    unit: str
    ordinal: int
    role: str
    dtype: str
    placement: str
    slab: int
    offset: int
    bytes: int
    used_bytes: int
    bucket: Optional[str]


def request_of(r: _abi.bp_plan_request) -> PlanRequest:
    return PlanRequest(decoded(r.unit), r.ordinal, role_name(r.role), dtype_name(r.dtype),
                       name_of("BP_PLACE_", r.placement), r.slab, r.offset, r.bytes, r.used_bytes,
                       None if r.bucket is None else decoded(r.bucket))


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

    @property
    def _info(self) -> Any:
        return viewed(core().bp_plan_get_info, self.handle)

    @property
    def policy(self) -> str:
        return name_of("BP_POLICY_", self._info.policy)

    @property
    def bytes(self) -> int:
        """Of all roles."""
        return int(self._info.bytes)

    @property
    def lower_bound_bytes(self) -> int:
        """No plan with a slab for each role takes less."""
        return int(self._info.lower_bound_bytes)

    @property
    def copies(self) -> int:
        return int(self._info.copies)

    @property
    def alignment(self) -> int:
        return int(self._info.alignment)

    @property
    def optimal(self) -> bool:
        """The bytes are proven to be the least possible."""
        return bool(self._info.optimal)

    @property
    def stable(self) -> bool:
        """Every request that is ever live has one address for the whole run."""
        return bool(self._info.stable)

    @property
    def feasible(self) -> bool:
        return bool(self._info.feasible)

    @property
    def infeasible_because(self) -> str:
        """"" where it is feasible."""
        return decoded(self._info.infeasible_because)

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits: equal on every rank that can work together. A pass over the plan each time."""
        text = ctypes.create_string_buffer(_abi.BP_FINGERPRINT_CHARS)
        call(core().bp_plan_fingerprint, self.handle, text)
        return text.value.decode()

    @property
    def slabs(self) -> List[PlanSlab]:
        info = self._info
        return [PlanSlab(s.bytes, decoded(s.group)) for s in info.slabs[:info.slab_count]]

    @property
    def roles(self) -> List[PlanRole]:
        """[] of plans that were read from a file."""
        info = self._info
        return [
            PlanRole(tuple(role_names(r.roles)), r.copies, r.bytes, r.pool_bytes, r.persistent_bytes, r.dynamic_bytes,
                     r.lower_bound_bytes, r.lower_bound_step, r.proven_bytes, bool(r.optimal), r.live_units,
                     decoded(r.method)) for r in info.roles[:info.role_count]
        ]

    @property
    def requests(self) -> List[PlanRequest]:
        """By id: those of the buckets, in their order."""
        info = self._info
        return [request_of(r) for r in info.requests[:info.request_count]]

    def find(self, unit: str, ordinal: int, role: Any, dtype: DType = None, bytes: Optional[int] = None) -> int:
        """The id of a request. dtype and bytes (with padding) are those that the runtime has, None: not compared.
        Raises Mismatch (not in the plan, another dtype or size, never used by the plan's schedule)."""
        id = ctypes.c_uint32()
        call(core().bp_plan_find, self.handle, encoded(unit, "a unit's name"), whole(ordinal, 32, "an ordinal"),
             _role(role), _dtype(dtype), _abi.BP_BYTES_ANY if bytes is None else whole(bytes, 63, "bytes"),
             ctypes.byref(id))
        return id.value

    @property
    def model(self) -> str:
        """The model's name, for saving and display."""
        return decoded(self._info.model)

    @model.setter
    def model(self, name: str) -> None:
        call(core().bp_plan_set_model, self.handle, encoded(name, "a model's name"))

    @property
    def options(self) -> Dict[str, str]:
        """What it was planned with, as text, for saving and display."""
        info = self._info
        return {decoded(o.key): decoded(o.value) for o in info.options[:info.option_count]}

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
        info = self._info
        policy = name_of("BP_POLICY_", info.policy)
        return f"<Plan {policy}: {info.bytes} bytes, at least {info.lower_bound_bytes}>"


# Arguments of these names hide the functions.
_role, _dtype = role, dtype
