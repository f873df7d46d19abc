"""Allocators with the interface of Megatron-FSDP's TemporaryBucketAllocator, served by one pool."""

import dataclasses
import warnings
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ...errors import InvalidArgument, Mismatch, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool
from ..memory import device_for, with_index
from ..streams import Streams
from .units import DTYPES, ITEM_BYTES, bucket_id_of, dtype_name, unit_ids

ROLES = ("param", "param_transpose", "grad", "grad_comm")


class Bucket:
    """The result of allocate(): `data` is the bucket as a one-dimensional tensor.

    The tensor is a view of the pool: it keeps the memory mapped but holds no reference to the request, which
    free() releases.
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


class _Hold:
    """A bucket that is allocated now."""

    __slots__ = ("bucket", "pool_id", "streams", "dtype", "size")

    def __init__(self, bucket: Bucket, pool_id: Optional[int], dtype: torch.dtype, size: int) -> None:
        self.bucket, self.pool_id, self.dtype, self.size = bucket, pool_id, dtype, size
        self.streams: Set[Any] = set()


def _refuse(plan: Plan) -> None:
    """Plans that cannot be kept to. A gradient is freed when the queue of reductions drains, at a time that no plan
    knows: so its bytes cannot be a parameter's next."""
    if plan.feasible and not plan.stable:
        raise Unsupported(f"the plan of policy {plan.policy} leaves buckets without an address: plan by scheduled, "
                          f"max, or fixed with fallback persistent")
    roles: Dict[int, str] = {}
    for request in plan.requests:
        other = roles.setdefault(request.slab, request.role) if request.placement == "planned" else request.role
        if other != request.role and {other, request.role} & set(ROLES):
            raise Unsupported(f"the plan has {other} and {request.role} buckets in one slab, which Megatron-FSDP "
                              f"cannot use: it frees gradients when its queue of reductions drains, not where the "
                              f"schedule says. Plan without joint")


class PooledBuckets:
    """A pool made of a plan on one device, and what its allocators share.

    `plan` is read, not kept. `device` is a torch device: memory and streams are its own ("cpu": the library's host
    device, for runs without a GPU). `outside_bytes` is memory for buckets outside units, made at creation.
    `pool_options` are those of Pool (strict, guard, fingerprint, name, ...). Several allocators may serve one pool: one
    for each role. A bucket that another one has allocated is refused.

    Errors: Unsupported (a plan with parameters and gradients in one slab or with dynamic memory, a device that is
    neither cpu nor cuda), InvalidArgument (a plan whose buckets are not named by ids: not exported by describe()),
    Infeasible, NoDeviceMemory, NoDevice."""

    def __init__(self, plan: Plan, device: Any = "cpu", outside_bytes: int = 0, **pool_options: Any) -> None:
        self.device = with_index(torch.device(device))
        _refuse(plan)
        pool_options.setdefault("name", "megatron_fsdp")
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
                raise InvalidArgument(f"the plan's {each.role} bucket {each.bucket or each.ordinal} of unit "
                                      f"{each.unit} is none of Megatron-FSDP's: plan the units.json that "
                                      f"describe(model).write() makes, with its --roles")
            planned[each.role, bucket_id] = Planned(id, each.dtype, each.bytes)
        return planned

    def bind_outside(self, role: str, bucket_id: int, dtype: str, size_bytes: int) -> Planned:
        """A bucket outside units, from the memory of `outside_bytes`, bound once. Errors: Mismatch (another dtype or
        more bytes than at first), NoDeviceMemory."""
        found = self._outside.get((role, bucket_id))
        if found is None:
            request = self.pool.bind("", bucket_id, role, dtype, size_bytes, placement="persistent")
            found = self._outside[role, bucket_id] = Planned(request, dtype, size_bytes)
        return found

    def allocator(self, role: str, groups: Sequence[Any], outside: str = "persistent",
                  repeats: str = "accept") -> "BucketAllocator":
        """The allocator of one role (param, param_transpose, grad, grad_comm) for these parameter groups."""
        return BucketAllocator(self, role, groups, outside, repeats)

    def close(self) -> None:
        """Closes the pool. Memory of live tensors stays mapped until they are deleted."""
        self.streams.close()
        self.pool.close()


class BucketAllocator:
    """TemporaryBucketAllocator's interface over a pool: allocate() and free() by bucket id, and
    `fsdp_double_buffer_units`, the units whose buckets are pooled: all of them.

    A bucket has its planned address every time. `groups` are the parameter groups; of each only fsdp_unit_id is read.
    Buckets outside units are served as `outside` says: "persistent" from the pool's memory for them, "dynamic" by
    PyTorch, given back at free. What Megatron-FSDP's own allocators do with a bucket that is allocated already (it is
    returned again) or not allocated (free does nothing) happens here with `repeats` "accept", as its pipelines rely on
    it; "error" refuses both.

    Streams: allocate() is ordered on the current stream behind the last use of the memory; a repeated allocate() on
    another stream makes that one a user too; free() marks all of them, at what they have been given so far. Any thread,
    different buckets at once."""

    def __init__(self, pooled: PooledBuckets, role: str, groups: Sequence[Any], outside: str = "persistent",
                 repeats: str = "accept") -> None:
        for value, known, what in ((role, ROLES, "role"), (outside, ("persistent", "dynamic"), "outside"),
                                   (repeats, ("accept", "error"), "repeats")):
            if value not in known:
                raise InvalidArgument(f"{what} {value!r}: expected one of {', '.join(known)}")
        self.pooled, self.role, self.groups = pooled, role, groups
        self.outside, self.repeats = outside, repeats
        self.fsdp_double_buffer_units: List[int] = unit_ids(groups)
        self._held: Dict[int, _Hold] = {}
        self._tensors: Dict[Tuple[int, int], torch.Tensor] = {}
        self._dynamic: Dict[int, torch.Tensor] = {}
        self._warned = False

    # ---- the interface -----------------------------------------------------------------------------------------------

    def allocate(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
                 mem_alloc_context: Optional[Callable[[], Any]] = None, strict_assignments: bool = True) -> Bucket:
        """Allocates a bucket of `size` elements of `dtype`.

        With strict_assignments it is at the planned address, or an exception. Without, as Megatron-FSDP asks
        while it wraps a module, memory of PyTorch is used once, with a warning, if the planned memory is
        held. mem_alloc_context is not entered, because the pool's slabs exist already.

        Raises InvalidArgument (an id without a group, an unknown dtype, another device than the pool's),
        Mismatch (not in the plan, another dtype or more elements than planned, or other values than it is
        allocated with), ScheduleError (the memory is held, with the holder; allocated already, with repeats
        "error"), NoDeviceMemory (outside units).
        """
        self._check(bucket_id, size, dtype, device, mem_alloc_context)
        hold = self._held.get(bucket_id)
        if hold is not None:
            return self._again(bucket_id, hold, size, dtype)
        unit = self.groups[bucket_id].fsdp_unit_id
        if size == 0 or (unit is None and self.outside == "dynamic"):
            hold = _Hold(Bucket(self._from_torch(bucket_id, size, dtype, device)), None, dtype, size)
        else:
            planned = self._planned(bucket_id, unit, size, dtype)
            hold = self._from_pool(bucket_id, planned, size, dtype, strict_assignments)
        self._held[bucket_id] = hold
        return hold.bucket

    def free(self, bucket_id: int) -> None:
        """Frees a bucket on the current stream. Reuse waits for the present work of this stream and of the
        allocating ones.

        Ignores a bucket that is not allocated, because GradReducePipeline.reset frees every bucket. Raises
        InvalidArgument (an id without a group), ScheduleError (not allocated, with repeats "error").
        """
        self._check_id(bucket_id)
        hold = self._held.get(bucket_id)
        if hold is None:
            if self.repeats == "error":
                raise ScheduleError(f"{self._label(bucket_id)} is freed while it is not allocated: free it once for "
                                    f"each allocate")
            return
        if hold.pool_id is not None:
            self.pooled.pool.release([hold.pool_id], self.pooled.streams.current())
            self.pooled.allocated.discard(hold.pool_id)
        elif bucket_id in self._dynamic:
            self._dynamic[bucket_id].untyped_storage().resize_(0)
        del self._held[bucket_id]

    @property
    def live(self) -> List[int]:
        """The ids that are allocated now."""
        return sorted(self._held)

    # ---- how a bucket is served --------------------------------------------------------------------------------------

    def _label(self, bucket_id: int) -> str:
        unit = self.groups[bucket_id].fsdp_unit_id
        return f"{self.role} bucket {bucket_id} " + (f"of unit {unit}" if unit is not None else "outside units")

    def _check_id(self, bucket_id: int) -> None:
        if not isinstance(bucket_id, int) or not 0 <= bucket_id < len(self.groups):
            raise InvalidArgument(f"{self.role} bucket {bucket_id}: this module has {len(self.groups)} parameter "
                                  f"groups, whose ids count from 0")

    def _check(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
               context: Optional[Callable[[], Any]]) -> None:
        self._check_id(bucket_id)
        if dtype not in DTYPES:
            dtype_name(dtype, self._label(bucket_id))
        if size < 0:
            raise InvalidArgument(f"{self._label(bucket_id)}: {size} elements: expected 0 or more")
        if device is not None and with_index(torch.device(device)) != self.pooled.device:
            raise InvalidArgument(f"{self._label(bucket_id)} is asked for on {device}, the pool is on "
                                  f"{self.pooled.device}: make one pool for each device")
        if context is not None and context is not nullcontext and not self._warned:
            self._warned = True
            warnings.warn("nccl_ub: buckets come from bucketpool's slabs, not from Megatron-FSDP's NCCL memory pool, "
                          "and are not registered by it: register the pool with NCCL (docs/guides/nccl.md)",
                          RuntimeWarning, stacklevel=4)

    def _again(self, bucket_id: int, hold: _Hold, size: int, dtype: torch.dtype) -> Bucket:
        if self.repeats == "error":
            raise ScheduleError(f"{self._label(bucket_id)} is allocated while it is allocated: free it first")
        if (size, dtype) != (hold.size, hold.dtype):
            raise Mismatch(f"{self._label(bucket_id)} is allocated as {hold.size} elements of {hold.dtype}, asked for "
                           f"as {size} of {dtype}: free it first")
        if hold.pool_id is not None:
            stream = self.pooled.streams.current()
            if stream not in hold.streams:
                self.pooled.pool.use([hold.pool_id], stream)
                hold.streams.add(stream)
        return hold.bucket

    def _planned(self, bucket_id: int, unit: Optional[int], size: int, dtype: torch.dtype) -> Planned:
        storage = "uint8" if ITEM_BYTES[DTYPES[dtype]] == 1 else DTYPES[dtype]
        asked = size * ITEM_BYTES[DTYPES[dtype]]
        planned = self.pooled.bind_outside(self.role, bucket_id, storage, asked) if unit is None else \
            self.pooled.planned.get((self.role, bucket_id))
        if planned is None:
            ids = sorted(bucket for role, bucket in self.pooled.planned if role == self.role)
            there = f"the ids {_ranges(ids)}" if ids else f"none of this role: plan with --roles {self.role}"
            raise Mismatch(f"{self._label(bucket_id)} is not in the plan: it has {there}. Export units.json from this "
                           f"module and plan it again")
        if planned.dtype != storage:
            raise Mismatch(f"{self._label(bucket_id)} is planned as {planned.dtype}, asked for as {storage}: plan it "
                           f"again with the dtypes of this run")
        if asked > planned.bytes:
            raise Mismatch(f"{self._label(bucket_id)} needs {asked} bytes ({size} elements of {storage}), planned were "
                           f"{planned.bytes}: export units.json from this module, with this number of ranks, and plan "
                           f"it again")
        return planned

    def _from_pool(self, bucket_id: int, planned: Planned, size: int, dtype: torch.dtype, strict: bool) -> _Hold:
        if planned.id in self.pooled.allocated:
            raise ScheduleError(f"{self._label(bucket_id)} is allocated by another allocator of this pool: make one "
                                f"allocator for each role, and one pool for each module")
        stream = self.pooled.streams.current()
        take = self.pooled.pool.acquire if strict else self.pooled.pool.try_acquire
        views = take([planned.id], stream)
        if views is None:
            warnings.warn(f"{self._label(bucket_id)}: its memory is held, so it lies outside the pool this time",
                          RuntimeWarning, stacklevel=3)
            return _Hold(Bucket(torch.empty(size, dtype=dtype, device=self.pooled.device)), None, dtype, size)
        self.pooled.streams.settle(stream)
        view = views[0]
        key = (planned.id, view.address)
        tensor = self._tensors.get(key)
        if tensor is None or tensor.dtype != dtype:
            tensor = self._tensors[key] = view.torch(dtype)
        hold = _Hold(Bucket(tensor[:size] if tensor.numel() != size else tensor), planned.id, dtype, size)
        hold.streams.add(stream)
        self.pooled.allocated.add(planned.id)
        return hold

    def _from_torch(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The same tensor every time, whose storage comes and goes: views of it that parameters are see what is
        gathered next."""
        tensor = self._dynamic.get(bucket_id)
        if tensor is None or tensor.dtype != dtype or tensor.numel() != size:
            tensor = self._dynamic[bucket_id] = torch.empty(size, dtype=dtype, device=device)
        tensor.untyped_storage().resize_(size * tensor.element_size())
        return tensor


def _ranges(ids: Sequence[int]) -> str:
    """ "0-2, 5" for 0, 1, 2, 5."""
    text: List[str] = []
    begin = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            text.append(str(ids[begin]) if at - 1 == begin else f"{ids[begin]}-{ids[at - 1]}")
            begin = at
    return ", ".join(text)
