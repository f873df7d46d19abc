# SPDX-License-Identifier: Apache-2.0
"""Allocators with the interface of Megatron-FSDP's TemporaryBucketAllocator, over one pool."""

import dataclasses
import warnings
import weakref
from contextlib import nullcontext
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from ...errors import InvalidArgument, Mismatch, NoDeviceMemory, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool, check_options
from ...view import View
from ..memory import device_for, with_index
from ..streams import Streams
from .units import DTYPES, ITEM_BYTES, ROLES, bucket_id_of, dtype_name, unit_ids

ON_MISMATCH = ("replan", "plain", "error")
_SAVED = ("param", "param_transpose")  # roles of which autograd saves views: one address from forward to backward


class Bucket:
    """The result of allocate(): `data` is the bucket as a one-dimensional tensor.

    The tensor keeps the memory mapped, but holds no reference to the request, which free() releases.
    """

    __slots__ = ("data",)

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


@dataclasses.dataclass(frozen=True)
class Planned:
    """A request of the plan."""

    id: int  # in the pool
    dtype: str  # storage dtype
    bytes: int  # with padding


@dataclasses.dataclass
class Counts:
    """Calls of allocate() since the module was wrapped, and new plans."""

    served: int = 0  # from the pool
    differing: int = 0  # from PyTorch, because the plan has another dtype, fewer bytes, or no such bucket
    busy: int = 0  # from PyTorch, because the memory was in use
    replans: int = 0


class _Allocation:
    """A bucket that is allocated now, with the streams that use it. pool_id None: PyTorch's memory."""

    __slots__ = ("bucket", "pool_id", "streams", "dtype", "size")

    def __init__(self, bucket: Bucket, pool_id: Optional[int], dtype: torch.dtype, size: int) -> None:
        self.bucket, self.pool_id, self.dtype, self.size = bucket, pool_id, dtype, size
        self.streams: Set[Any] = set()


def _refuse(plan: Plan) -> None:
    """Raises Unsupported for a plan that Megatron-FSDP cannot follow: with dynamic memory, or with parameters and
    gradients in one slab. It frees a gradient when its queue of reduce-scatters drains, which no schedule contains.
    """
    if plan.feasible and not plan.stable:
        raise Unsupported(f"plan: policy {plan.policy} leaves buckets without an address; use scheduled, max, or fixed "
                          "with fallback persistent")
    roles: Dict[int, str] = {}
    for request in plan.requests:
        other = roles.setdefault(request.slab, request.role) if request.placement == "planned" else request.role
        if other != request.role and {other, request.role} & set(ROLES):
            raise Unsupported(
                f"plan: {other} and {request.role} buckets in one slab, but Megatron-FSDP frees gradients "
                "later than the schedule, when its queue of reduce-scatters drains; plan without joint"
            )


class PooledBuckets:
    """A pool for the buckets of one module, and the state that its allocators share. install() makes one.

    - plan: only read
    - device: a torch device; "cpu" is the library's host device, for runs without a GPU
    - outside_bytes: memory for buckets outside units
    - on_mismatch: a request that differs from the plan, or whose memory is in use: "plain" and "replan" take memory of
      PyTorch until free(), "error" raises. install() makes the new plans of "replan", from `asked`
    - counts: continues these counts; None: starts at 0
    - pool_options: as in bucketpool.Pool (guard, fingerprint, name, ...). strict: "off" here, as in Megatron-FSDP

    Make one allocator for each role. A bucket that another allocator has allocated is in use.

    Raises Unsupported (a plan with parameters and gradients in one slab or with dynamic memory, another device than
    cpu or cuda), InvalidArgument (a plan of other buckets than those of describe()), Infeasible, NoDeviceMemory,
    NoDevice.
    """

    def __init__(self, plan: Plan, device: Any = "cpu", outside_bytes: int = 0,
                 on_mismatch: str = "replan", counts: Optional[Counts] = None, **pool_options: Any) -> None:
        check_options(type(self).__init__, pool_options)
        if on_mismatch not in ON_MISMATCH:
            raise InvalidArgument(f"unknown on_mismatch {on_mismatch!r}; expected one of {', '.join(ON_MISMATCH)}")
        self.on_mismatch = on_mismatch
        self.counts = counts if counts is not None else Counts()
        self.asked: Dict[Tuple[str, int], Tuple[int, torch.dtype]] = {}  # requests that differ from the plan
        # Of this step: where each bucket of _SAVED got memory, and whether units run in another order than planned.
        self.places: Dict[Optional[Tuple[str, int]], str] = {}
        self.deviates = False
        self.moved: List[Tuple[str, "weakref.ref[Any]"]] = []  # former memory of buckets that got other memory
        self.device = with_index(torch.device(device))
        _refuse(plan)
        pool_options = {"name": "megatron_fsdp", "strict": "off", **pool_options}
        native = device_for(self.device)
        self.pool = Pool(native, plan, persistent_bytes=outside_bytes, **pool_options)
        self.streams = Streams(native, self.device)
        self.planned = self._find(plan)
        self._outside: Dict[Tuple[str, int], Planned] = {}
        self.allocated: Set[int] = set()  # requests that one of the allocators holds

    @staticmethod
    def _find(plan: Plan) -> Dict[Tuple[str, int], Planned]:
        planned = {}
        for id, each in enumerate(plan.requests):
            if each.placement != "planned":
                continue
            bucket_id = bucket_id_of(each.bucket)
            if bucket_id is None or each.role not in ROLES:
                raise InvalidArgument(
                    f"plan: {each.role} bucket {each.bucket or each.ordinal} of unit {each.unit} is not a "
                    "bucket of Megatron-FSDP; plan the units.json of describe(model).write() with the "
                    "command that it returns"
                )
            planned[each.role, bucket_id] = Planned(id, each.dtype, each.bytes)
        return planned

    def bind_outside(self, role: str, bucket_id: int, dtype: str, size_bytes: int) -> Planned:
        """Binds a bucket outside units once, in the memory of outside_bytes. Raises NoDeviceMemory."""
        found = self._outside.get((role, bucket_id))
        if found is None:
            request = self.pool.bind("", bucket_id, role, dtype, size_bytes, placement="persistent")
            found = self._outside[role, bucket_id] = Planned(request, dtype, size_bytes)
        return found

    def allocator(self, role: str, groups: Sequence[Any], outside: str = "persistent",
                  repeats: str = "accept") -> "BucketAllocator":
        """The allocator of one role (param, param_transpose, grad, grad_comm) for these parameter groups."""
        return BucketAllocator(self, role, groups, outside, repeats)

    def check_moved(self) -> None:
        """Raises ScheduleError if anything still refers to the former memory of a bucket that got other memory."""
        moved, self.moved = self.moved, []
        for label, storage in moved:
            if storage() is not None:
                raise ScheduleError(
                    f"{label}: its planned memory is in use, and autograd saved views of it in forward, which would "
                    "read other parameters; units ran in another order than planned: plan that order "
                    "(docs/guides/megatron_fsdp.md#orders), or use modules that save the parameter, not a view"
                )

    def next_step(self) -> None:
        """Nothing that autograd saved is left. Raises as check_moved."""
        self.check_moved()
        self.places.clear()
        self.deviates = False

    def close(self) -> None:
        """Closes the pool. Memory of live tensors stays mapped until they are deleted."""
        self.streams.close()
        self.pool.close()


class PlainBuckets:
    """PyTorch's memory for buckets, each time in the same tensor, because parameters are views of it."""

    def __init__(self) -> None:
        self._tensors: Dict[int, torch.Tensor] = {}

    def take(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocates the storage of the bucket's tensor, if it has none."""
        tensor = self._tensors.get(bucket_id)
        if tensor is None or tensor.dtype != dtype or tensor.numel() != size:
            tensor = self._tensors[bucket_id] = torch.empty(size, dtype=dtype, device=device)
        tensor.untyped_storage().resize_(size * tensor.element_size())
        return tensor

    def give_back(self, bucket_id: int) -> None:
        """Frees the storage of the bucket's tensor, if there is one."""
        tensor = self._tensors.get(bucket_id)
        if tensor is not None:
            if tensor.is_cuda and tensor.untyped_storage().nbytes():
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
            tensor.untyped_storage().resize_(0)


class BucketAllocator:
    """TemporaryBucketAllocator's interface over a pool: every allocate() of a bucket returns its planned address.

    - groups: the parameter groups of the module, of which only fsdp_unit_id is read
    - outside: memory of buckets outside units: "persistent" (from the pool) or "dynamic" (from PyTorch, until free)
    - repeats: "accept": as in Megatron-FSDP, allocate() of an allocated bucket returns it again, and free() of a free
      bucket does nothing; "error": both raise

    Streams: allocate() orders the current stream after the last use of the memory. A repeated allocate() on another
    stream makes that stream a user, too. Reuse waits for the work that all users had at free(). Threads: any, at the
    same time for different buckets.

    fsdp_double_buffer_units: the units whose buckets are pooled, which are all.
    """

    def __init__(self, pooled: PooledBuckets, role: str, groups: Sequence[Any], outside: str = "persistent",
                 repeats: str = "accept") -> None:
        for value, known, what in ((role, ROLES, "role"), (outside, ("persistent", "dynamic"), "outside"),
                                   (repeats, ("accept", "error"), "repeats")):
            if value not in known:
                raise InvalidArgument(f"unknown {what} {value!r}; expected one of {', '.join(known)}")
        self.pooled, self.role, self.groups = pooled, role, groups
        self.outside, self.repeats = outside, repeats
        self.fsdp_double_buffer_units: List[int] = unit_ids(groups)
        self._allocations: Dict[int, _Allocation] = {}
        self._tensors: Dict[Tuple[int, int], Tuple["weakref.ref[Any]", torch.Tensor]] = {}  # by id and address
        self._dynamic = PlainBuckets()
        self._warned = False

    # ---- the interface -----------------------------------------------------------------------------------------------

    def allocate(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
                 mem_alloc_context: Optional[Callable[[], Any]] = None, strict_assignments: bool = True) -> Bucket:
        """Allocates a bucket of `size` elements of `dtype`.

        - strict_assignments: False, which Megatron-FSDP passes while it wraps a module: as on_mismatch "plain" if the
          memory is in use
        - mem_alloc_context: not entered, because the slabs of the pool exist already

        Raises InvalidArgument (an unknown id, another device than the pool's), ScheduleError (allocated already, with
        repeats "error"). With on_mismatch "error" also InvalidArgument (an unknown dtype), Mismatch (not in the plan,
        another dtype or more elements than planned, or other values than it is allocated with), ScheduleError (the
        memory is in use), NoDeviceMemory (outside units).
        """
        if self.pooled.moved:
            self.pooled.check_moved()
        self._check(bucket_id, size, dtype, device, mem_alloc_context)
        allocation = self._allocations.get(bucket_id)
        if allocation is not None:
            return self._again(bucket_id, allocation, size, dtype)
        unit = self.groups[bucket_id].fsdp_unit_id
        if size == 0 or (unit is None and self.outside == "dynamic"):
            allocation = self._plain(bucket_id, size, dtype)
        else:
            allocation = self._serve(bucket_id, unit, size, dtype, strict_assignments)
        self._allocations[bucket_id] = allocation
        return allocation.bucket

    def free(self, bucket_id: int) -> None:
        """Frees a bucket on the current stream. Reuse waits for the present work of this stream and of the
        allocating ones.

        Ignores a bucket that is not allocated, because GradReducePipeline.reset frees every bucket. Raises
        InvalidArgument (an id without a group), ScheduleError (not allocated, with repeats "error").
        """
        if self.pooled.moved:
            self.pooled.check_moved()
        self._check_id(bucket_id)
        allocation = self._allocations.get(bucket_id)
        if allocation is None:
            if self.repeats == "error":
                raise ScheduleError(f"{self._label(bucket_id)}: freed while it is not allocated; free it once for each "
                                    "allocate")
            return
        if allocation.pool_id is not None:
            self.pooled.pool.release([allocation.pool_id], self.pooled.streams.current())
            self.pooled.allocated.discard(allocation.pool_id)
        self._dynamic.give_back(bucket_id)
        del self._allocations[bucket_id]

    def move(self, pooled: PooledBuckets) -> None:
        """Serves from another pool. Buckets outside units that are allocated are copied into PyTorch's memory, which
        Megatron-FSDP finds at their next allocate; until then parameters refer to the former ones.

        Raises ScheduleError (can_move).
        """
        if not self.can_move:
            raise ScheduleError(f"{self.role}: {len(self._allocations)} buckets are allocated; free them before the "
                                "allocator moves to another pool")
        for bucket_id, allocation in list(self._allocations.items()):
            if allocation.pool_id is not None:
                former = allocation.bucket.data
                self._allocations[bucket_id] = self._plain(bucket_id, allocation.size, allocation.dtype)
                self._allocations[bucket_id].bucket.data.copy_(former)
        self.outside = "dynamic"
        self._tensors.clear()
        self.pooled = pooled

    @property
    def can_move(self) -> bool:
        """True if nothing is allocated but parameters outside units."""
        return all(self.role in _SAVED and self.groups[bucket_id].fsdp_unit_id is None
                   for bucket_id in self._allocations)

    def can_allocate(self, bucket_ids: Iterable[int], releasable_bucket_ids: Optional[Iterable[int]] = None) -> bool:
        """True if the pool could serve all these buckets after free() of the releasable ones.

        Buckets outside units, and allocated ones that are not releasable, need no memory. Buckets of units that are not
        in the plan: False with on_mismatch "error", otherwise they need no memory of the pool. Raises
        InvalidArgument (an id without a group).
        """
        releasable = set(releasable_bucket_ids or ())
        wanted = set(bucket_ids)
        for bucket_id in wanted | releasable:
            self._check_id(bucket_id)
        ids = []
        for bucket_id in sorted(wanted):
            held = bucket_id in self._allocations and bucket_id not in releasable
            if held or self.groups[bucket_id].fsdp_unit_id is None:
                continue
            planned = self.pooled.planned.get((self.role, bucket_id))
            if planned is None and self.pooled.on_mismatch != "error":
                continue
            if planned is None:
                return False
            ids.append(planned.id)
        freed = [self._allocations[each].pool_id for each in sorted(releasable) if each in self._allocations]
        return not ids or self.pooled.pool.can_acquire(ids, [each for each in freed if each is not None])

    @property
    def live(self) -> List[int]:
        """The ids that are allocated now."""
        return sorted(self._allocations)

    # ---- memory of a bucket ------------------------------------------------------------------------------------------

    def _label(self, bucket_id: int) -> str:
        unit = self.groups[bucket_id].fsdp_unit_id
        return f"{self.role} bucket {bucket_id} " + (f"of unit {unit}" if unit is not None else "outside units")

    def _check_id(self, bucket_id: int) -> None:
        if not isinstance(bucket_id, int) or not 0 <= bucket_id < len(self.groups):
            raise InvalidArgument(f"{self.role} bucket {bucket_id}: unknown id; the module has {len(self.groups)} "
                                  f"parameter groups, with ids from 0")

    def _check(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
               context: Optional[Callable[[], Any]]) -> None:
        self._check_id(bucket_id)
        if size < 0:
            raise InvalidArgument(f"{self._label(bucket_id)}: expected 0 or more elements, got {size}")
        if device is not None and with_index(torch.device(device)) != self.pooled.device:
            raise InvalidArgument(f"{self._label(bucket_id)}: requested on {device}, the pool is on "
                                  f"{self.pooled.device}; make one pool for each device")
        if context is not None and context is not nullcontext and not self._warned:
            self._warned = True
            warnings.warn(
                "nccl_ub: buckets are in slabs of bucketpool, which Megatron-FSDP's NCCL memory pool does not "
                "register; call Installed.register (docs/guides/nccl.md)",
                RuntimeWarning,
                stacklevel=4,
            )

    def _again(self, bucket_id: int, allocation: _Allocation, size: int, dtype: torch.dtype) -> Bucket:
        if self.repeats == "error":
            raise ScheduleError(f"{self._label(bucket_id)}: allocated while it is allocated; free it first")
        if (size, dtype) != (allocation.size, allocation.dtype):
            if self.pooled.on_mismatch == "error":
                raise Mismatch(
                    f"{self._label(bucket_id)}: allocated as {allocation.size} elements of {allocation.dtype}, "
                    f"requested as {size} of {dtype}; free it first"
                )
            # The memory of the first request stays allocated until free(), because its tensor may be in use.
            self._differs(bucket_id, size, dtype)
            return Bucket(torch.empty(size, dtype=dtype, device=self.pooled.device))
        if allocation.pool_id is not None:
            stream = self.pooled.streams.current()
            if stream not in allocation.streams:
                self.pooled.pool.use([allocation.pool_id], stream)
                allocation.streams.add(stream)
        elif self.pooled.device.type == "cuda":
            allocation.bucket.data.record_stream(torch.cuda.current_stream(self.pooled.device))
        return allocation.bucket

    def _serve(self, bucket_id: int, unit: Optional[int], size: int, dtype: torch.dtype, strict: bool) -> _Allocation:
        """From the pool; from PyTorch if the request differs from the plan or its memory is in use, and on_mismatch
        allows it.

        Autograd may save views of parameters, so these have one address in a step. Once the memory of one is in use,
        PyTorch serves buckets that the pool has not served in this step, each time with the same storage.
        """
        lenient = self.pooled.on_mismatch != "error"
        place = (self.role, bucket_id) if strict and self.role in _SAVED else None
        before = self.pooled.places.get(place)
        if lenient and place and (before == "plain" or (before is None and self.pooled.deviates)):
            self.pooled.places[place] = "plain"
            return self._plain(bucket_id, size, dtype)
        try:
            planned = self._planned(bucket_id, unit, size, dtype)
        except (InvalidArgument, Mismatch, NoDeviceMemory):
            if not lenient or self.pooled.pool.closed:
                raise
            self._differs(bucket_id, size, dtype)
            return self._plain(bucket_id, size, dtype)
        allocation = self._from_pool(bucket_id, planned, size, dtype, strict and not lenient)
        if allocation is not None:
            self.pooled.counts.served += 1
            if place:
                self.pooled.places[place] = "pool"
            return allocation
        if before == "pool":  # fetch_bucket sets the parameters after this call; then only autograd has references
            self.pooled.moved += [(self._label(bucket_id), self._tensors.pop(key)[0])
                                  for key in list(self._tensors) if key[0] == planned.id]
        if place:
            self.pooled.places[place], self.pooled.deviates = "plain", True
        if not self.pooled.counts.busy:
            warnings.warn(f"{self._label(bucket_id)}: its planned memory is in use; PyTorch's memory is used this "
                          "time (later ones are only counted)", RuntimeWarning, stacklevel=4)
        self.pooled.counts.busy += 1
        return self._plain(bucket_id, size, dtype)

    def _differs(self, bucket_id: int, size: int, dtype: torch.dtype) -> None:
        self.pooled.counts.differing += 1
        self.pooled.asked[self.role, bucket_id] = (size, dtype)

    def _planned(self, bucket_id: int, unit: Optional[int], size: int, dtype: torch.dtype) -> Planned:
        dtype_name(dtype, self._label(bucket_id))
        storage = "uint8" if ITEM_BYTES[DTYPES[dtype]] == 1 else DTYPES[dtype]
        asked = size * ITEM_BYTES[DTYPES[dtype]]
        planned = self.pooled.bind_outside(self.role, bucket_id, storage, asked) if unit is None else \
            self.pooled.planned.get((self.role, bucket_id))
        if planned is None:
            ids = sorted(bucket for role, bucket in self.pooled.planned if role == self.role)
            there = f"the ids {_ranges(ids)}" if ids else f"none of this role: plan with --roles {self.role}"
            raise Mismatch(f"{self._label(bucket_id)}: not in the plan, which has {there}; export units.json from this "
                           "module and plan it again")
        if planned.dtype != storage:
            raise Mismatch(
                f"{self._label(bucket_id)}: planned as {planned.dtype}, requested as {storage}; plan it again "
                "with the dtypes of this run"
            )
        if asked > planned.bytes:
            raise Mismatch(f"{self._label(bucket_id)}: {asked} bytes requested ({size} elements of {storage}), "
                           f"{planned.bytes} planned; export units.json from this module, with this number of ranks, "
                           "and plan it again")
        return planned

    def _from_pool(self, bucket_id: int, planned: Planned, size: int, dtype: torch.dtype,
                   strict: bool) -> Optional[_Allocation]:
        """None: the memory is in use, and not strict."""
        if planned.id in self.pooled.allocated:
            if not strict:
                return None
            raise ScheduleError(f"{self._label(bucket_id)}: allocated by another allocator of this pool; make one "
                                "allocator for each role, and one pool for each module")
        stream = self.pooled.streams.current()
        take = self.pooled.pool.acquire if strict else self.pooled.pool.try_acquire
        views = take([planned.id], stream)
        if views is None:
            return None
        self.pooled.streams.settle(stream)
        view = views[0]
        key = (planned.id, view.address)
        known = self._tensors.get(key)
        if known is None or known[1].dtype != dtype:
            known = self._tensors[key] = self._tensor_of(view, dtype)
        tensor = known[1]
        allocation = _Allocation(Bucket(tensor[:size] if tensor.numel() != size else tensor), planned.id, dtype, size)
        allocation.streams.add(stream)
        self.pooled.allocated.add(planned.id)
        return allocation

    @staticmethod
    def _tensor_of(view: View, dtype: torch.dtype) -> Tuple["weakref.ref[Any]", torch.Tensor]:
        """A tensor over a bucket, and a reference to its storage, which lasts as long as the storage."""
        tensor = view._new_tensor(dtype, wait=True)
        return weakref.ref(tensor.untyped_storage()), tensor

    def _plain(self, bucket_id: int, size: int, dtype: torch.dtype) -> _Allocation:
        return _Allocation(Bucket(self._dynamic.take(bucket_id, size, dtype, self.pooled.device)), None, dtype, size)


def _ranges(ids: Sequence[int]) -> str:
    """ "0-2, 5" for 0, 1, 2, 5."""
    text: List[str] = []
    begin = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            text.append(str(ids[begin]) if at - 1 == begin else f"{ids[begin]}-{ids[at - 1]}")
            begin = at
    return ", ".join(text)
