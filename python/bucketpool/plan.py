# SPDX-License-Identifier: Apache-2.0
"""Plans: the address of each request, the bytes that this takes, and a lower bound."""

import ctypes
import os
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _abi
from ._library import call, configured, core, formats, viewed
from .buckets import Buckets
from .errors import InvalidArgument
from .handle import Handle, Owner, handle_of
from .names import (DType, Path, decoded, dtype, dtype_name, encoded, encoded_path, flag, member, name_of, optional,
                    role, role_name, role_names, shown, utf8, whole)
from .schedule import Schedule


__all__ = ["Plan", "PlanRequest", "PlanRole", "PlanSlab"]


class PlanHandle(Handle, _abi.bp_plan):
    destroy = "bp_plan_destroy"


class PlanRole(NamedTuple):
    """A role of a plan, or several that share a slab: its bytes by placement, and their lower bound.

    pool_bytes, persistent_bytes, dynamic_bytes: the parts of bytes. lower_bound_step: the step of the peak live
    bytes. proven_bytes: no plan takes less.
    """

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
    """A slab of a plan. group: its release group, the name of the role or "joint" unless set_group changed it."""

    bytes: int
    group: str


class PlanRequest(NamedTuple):
    """A request of a plan. Its id is its index.

    placement is "planned" (with slab and offset), "persistent", "dynamic" or "none" (no bytes, or the
    schedule never uses it). bytes is with padding, before alignment; used_bytes is without padding.
    """

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
    """A plan: an address for each request. The same input gives the same plan.

        plan = Plan(buckets, Schedule.training(buckets))
        print(plan.bytes, plan.lower_bound_bytes, plan.optimal)

    - buckets, schedule: only read
    - policy: "scheduled" (the fewest bytes), "max", "fixed" or "dynamic"
    - copies: sets of buffers for fixed and max; 0: as many as the schedule needs
    - alignment: bytes, a power of two
    - joint: one slab for all roles (scheduled)
    - fallback: memory of units that are not in the fixed pool, "persistent" or "dynamic"
    - work: search limit for each slab; 0: the default

    An infeasible plan is not an error: feasible is False, and infeasible_because has the reason. Several threads
    may read a plan. Raises InvalidArgument, SizeOverflow.
    """

    shared = True

    def __init__(self, buckets: Buckets, schedule: Schedule, policy: str = "scheduled", copies: int = 0,
                 alignment: int = 256, joint: bool = False, fallback: str = "persistent", work: int = 0) -> None:
        config = configured(core().bp_plan_config_init, _abi.bp_plan_config,
                            policy=member("BP_POLICY_", policy, "policy"), copies=copies,
                            fallback=member("BP_FALLBACK_", fallback,
                                            "fallback"), alignment=alignment, joint=flag(joint, "joint"), work=work)
        handle = PlanHandle()
        call(core().bp_plan_create, handle_of(buckets, Buckets, "buckets"), handle_of(schedule, Schedule, "schedule"),
             ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Reads a file bucketpool.plan/1. Raises FileError, FormatError, Mismatch (the fingerprint of the
        contents).
        """
        handle = PlanHandle()
        call(formats().bp_plan_read, encoded_path(path), ctypes.byref(handle))
        plan = cls.__new__(cls)
        plan._handle = handle
        return plan

    @classmethod
    def parse(cls, text: Union[str, bytes], origin: str = "a plan") -> "Plan":
        """As read(), from text. origin: its name in errors."""
        encoded_text = utf8(text, "text") if isinstance(text, str) else text
        if not isinstance(encoded_text, bytes):
            raise InvalidArgument(f"text: expected a string or bytes, got {shown(text)}")
        handle = PlanHandle()
        call(formats().bp_plan_parse, encoded_text, len(encoded_text), encoded(origin, "an origin"),
             ctypes.byref(handle))
        plan = cls.__new__(cls)
        plan._handle = handle
        return plan

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A pickle is the document of write(). Raises Unsupported (a plan without addresses)."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            self.write(path)
            with open(path, encoding="utf-8") as file:
                return type(self).parse, (file.read(), "a pickled plan")

    def write(self, path: Path) -> None:
        """Writes the plan as bucketpool.plan/1, atomically. Raises FileError."""
        call(formats().bp_plan_write, self.handle, encoded_path(path))

    @property
    def _info(self) -> Any:
        return viewed(core().bp_plan_get_info, self.handle)

    @property
    def policy(self) -> str:
        return name_of("BP_POLICY_", self._info.policy)

    @property
    def bytes(self) -> int:
        """Bytes of all roles."""
        return int(self._info.bytes)

    @property
    def lower_bound_bytes(self) -> int:
        """Lower bound: no plan with one slab for each role takes fewer bytes."""
        return int(self._info.lower_bound_bytes)

    @property
    def copies(self) -> int:
        """Sets of buffers of the policies fixed and max."""
        return int(self._info.copies)

    @property
    def alignment(self) -> int:
        return int(self._info.alignment)

    @property
    def optimal(self) -> bool:
        """True if no plan takes fewer bytes."""
        return bool(self._info.optimal)

    @property
    def stable(self) -> bool:
        """True if every live request keeps one address."""
        return bool(self._info.stable)

    @property
    def feasible(self) -> bool:
        """False if no plan satisfies the options; pools cannot be made then."""
        return bool(self._info.feasible)

    @property
    def infeasible_because(self) -> str:
        """The reason why no plan satisfies the options; "" if the plan is feasible."""
        return decoded(self._info.infeasible_because)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan, 64 hexadecimal digits, equal on all ranks of one job. O(requests) for each call."""
        text = ctypes.create_string_buffer(_abi.BP_FINGERPRINT_CHARS)
        call(core().bp_plan_fingerprint, self.handle, text)
        return text.value.decode()

    @property
    def slabs(self) -> List[PlanSlab]:
        """The slabs, in which PlanRequest.slab is an index."""
        info = self._info
        return [PlanSlab(s.bytes, decoded(s.group)) for s in info.slabs[:info.slab_count]]

    @property
    def roles(self) -> List[PlanRole]:
        """The roles of the plan; [] if the plan was read from a file."""
        info = self._info
        return [
            PlanRole(tuple(role_names(r.roles)), r.copies, r.bytes, r.pool_bytes, r.persistent_bytes, r.dynamic_bytes,
                     r.lower_bound_bytes, r.lower_bound_step, r.proven_bytes, bool(r.optimal), r.live_units,
                     decoded(r.method)) for r in info.roles[:info.role_count]
        ]

    @property
    def requests(self) -> List[PlanRequest]:
        """The requests by id, which are those of the buckets."""
        info = self._info
        return [request_of(r) for r in info.requests[:info.request_count]]

    def find(self, unit: str, ordinal: int, role: Any, dtype: DType = None, bytes: Optional[int] = None) -> int:
        """Finds the id of a request. O(1).

        dtype and bytes (with padding) are those of the runtime's bucket and are compared; None is not. Raises
        Mismatch (not in the plan, another dtype or size, never used by the schedule of the plan).
        """
        id = ctypes.c_uint32()
        call(core().bp_plan_find, self.handle, encoded(unit, "a unit's name"), whole(ordinal, 32, "an ordinal"),
             _role(role), _dtype(dtype), _abi.BP_BYTES_ANY if bytes is None else whole(bytes, 63, "bytes"),
             ctypes.byref(id))
        return id.value

    @property
    def model(self) -> str:
        """The name of the model, which is saved and displayed."""
        return decoded(self._info.model)

    @model.setter
    def model(self, name: str) -> None:
        call(core().bp_plan_set_model, self.handle, encoded(name, "a model's name"))

    @property
    def options(self) -> Dict[str, str]:
        """Options of the plan as text, which are saved and displayed."""
        info = self._info
        return {decoded(o.key): decoded(o.value) for o in info.options[:info.option_count]}

    def set_option(self, key: str, value: Optional[str]) -> None:
        """Sets an option of the plan; None removes it."""
        call(core().bp_plan_set_option, self.handle, encoded(key, "a key"), optional(value, "a value"))

    def set_group(self, slab: int, group: str) -> None:
        """Sets the release group of a slab. Call it before pools are made, because the fingerprint covers
        groups.
        """
        call(core().bp_plan_set_group, self.handle, whole(slab, 63, "a slab"), encoded(group, "a group"))

    def check(self, buckets: Buckets, schedule: Schedule) -> None:
        """Verifies the plan with code that the planner does not share. Raises Mismatch, which names the first
        fault.
        """
        call(core().bp_plan_check, self.handle, handle_of(buckets, Buckets, "buckets"),
             handle_of(schedule, Schedule, "schedule"))

    def __repr__(self) -> str:
        if self.closed:
            return "<Plan, closed>"
        info = self._info
        policy = name_of("BP_POLICY_", info.policy)
        return f"<Plan {policy}: {info.bytes} bytes, at least {info.lower_bound_bytes}>"


# Arguments of these names hide the functions.
_role, _dtype = role, dtype
