# SPDX-License-Identifier: Apache-2.0
"""Installs pooled allocators in place of Megatron-FSDP's double buffers."""

import importlib
import operator
import os
import sys
import warnings
import weakref
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...errors import Error, InvalidArgument, Mismatch, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool, check_options
from ...registration import Registration
from ..accounting import Memory, memory
from ..capture import GraphCapture, follow
from ..nccl import Groups, register
from ..streams import Streams
from .allocator import ON_MISMATCH, Bucket, BucketAllocator, Counts, PlainBuckets, PooledBuckets
from .units import Group, Units, describe, unit_ids

# The modules that define its buffers: in the package, and in its copy in Megatron-LM.
MODULES = ("megatron_fsdp.param_and_grad_buffer",
           "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer")
Planner = Callable[[Units], Plan]
REPLACED = ("FixedPoolAllocator", "MaxPoolAllocator")
# The names that ParamAndGradBuffer gives its allocators, and their roles.
ROLE_OF_NAME = {"fsdp_params": "param", "fsdp_fp8_transpose_params": "param_transpose", "fsdp_grads": "grad",
                "hsdp_grad_comm": "grad_comm"}


class Wrapped:
    """A module that was wrapped inside install(), with its pool.

    Attributes, set when the module is wrapped: pool, plan, units, allocators (by role), counts.
    """

    def __init__(self, plan: Optional[Plan], planner: Planner, on_mismatch: str, pool_options: Dict[str, Any]) -> None:
        self.plan, self._planner, self._on_mismatch = plan, planner, on_mismatch
        self._options = pool_options
        self._closed = False
        self.counts = Counts()
        self.units: Optional[Units] = None
        self.pooled: Optional[PooledBuckets] = None
        self.allocators: Dict[str, "_Deferred"] = {}
        self._registration: Optional[Registration] = None
        self._groups: Sequence[Any] = ()
        self._buffers = 2
        self._grad_dtype_of: Optional[Callable[[Any], torch.dtype]] = None

    @property
    def pool(self) -> Pool:
        """The pool. Raises ScheduleError before a module has been wrapped, and after close()."""
        if self._closed:
            raise ScheduleError("the pool was closed; install() again and wrap the module again")
        if self.pooled is None:
            raise ScheduleError("the pool does not exist yet; first wrap a module with fsdp_double_buffer and sharded "
                                "units")
        return self.pooled.pool

    def register(self, groups: Groups, kind: str = "symmetric") -> Registration:
        """Registers the pool with the NCCL communicators of process groups, those of the module's collectives; or by
        role: {"param": [group of all-gathers], "grad": [group of reduce-scatters]}. Collective.

        Call it once, between steps, after the first collective has created the communicators. kind: "buffer",
        "window" or "symmetric"; the returned Registration reports what NCCL granted. close() undoes it.

        Raises Unsupported (a group of another backend), ScheduleError (registered already), and as
        bucketpool.Registration.
        """
        pool, pooled = self.pool, self.pooled
        assert pooled is not None
        if self._registration is not None:
            raise ScheduleError("the pool is registered already; close() it and wrap the module again to register "
                                "another kind")
        self._registration = register(pool, pool.device, groups, pooled.device, kind)
        return self._registration

    def memory(self) -> Memory:
        """Bytes of the pool, and of PyTorch's allocator on its GPU, which does not count the pool."""
        return memory(self.pool)

    def capture(self, stream: Any, name: Optional[str] = None) -> GraphCapture:
        """A context for capturing whole steps with torch.cuda.graph(graph, stream=stream); replay() launches the graph.

        Needed for a name alone: captures without it are declared, too (bucketpool.torch.capture.follow). Run a few
        steps eagerly first. Raises as bucketpool.Capture.
        """
        pool, pooled = self.pool, self.pooled
        assert pooled is not None
        return GraphCapture(pool, pooled.streams, stream, name)

    def close(self) -> None:
        """Closes the pool. Call it after the last step of the module; collective if the pool is registered.

        Memory of live tensors stays mapped until they are deleted.
        """
        if self._registration is not None:
            self._registration.close()
            self._registration = None
        if self.pooled is not None:
            self.pooled.close()
            self._closed = True

    def add(self, role: str, groups: Sequence[Any], size: int, dtype_fn: Callable[[Any], torch.dtype],
            persistent: bool) -> "_Deferred":
        """Makes the allocator of a role. groups: the parameter groups. size: number of buffers."""
        self._buffers = max(self._buffers, size)
        self._groups = groups
        if role == "grad":
            self._grad_dtype_of = dtype_fn
        made = self.allocators[role] = _Deferred(self, role, groups, "persistent" if persistent else "dynamic")
        return made

    def wraps(self, groups: Sequence[Any]) -> bool:
        """True if these are the parameter groups of this module."""
        return self._groups is groups

    def serve(self, device: torch.device) -> Optional[PooledBuckets]:
        """The pool, created with the first allocation, when all buffers have their sizes. None: nothing is sharded."""
        if self.pooled is None:
            try:
                self.units = describe(list(self._groups), grad_dtype_of=self._grad_dtype_of, buffers=self._buffers)
            except Unsupported as error:
                if self._on_mismatch == "error":
                    raise
                if not self.counts.differing:
                    warnings.warn(f"{error} (on_mismatch={self._on_mismatch!r})", RuntimeWarning, stacklevel=4)
                self.counts.differing += 1
                return None
            plan = self.plan if self.plan is not None else self._make_plan(self.units)
            pooled = self._make_pool(plan, self.units, device)
            try:
                _check_sizes(self.units.groups, pooled)
            except Mismatch as mismatch:
                if self._on_mismatch == "error":
                    raise
                warnings.warn(f"{mismatch} (on_mismatch={self._on_mismatch!r})", RuntimeWarning, stacklevel=4)
                if self._on_mismatch == "replan":
                    pooled.close()
                    plan = self.units.plan()
                    pooled = self._make_pool(plan, self.units, device)
                    self.counts.replans += 1
            self.plan, self.pooled = plan, pooled
            follow(self._in_captures)
        return self.pooled

    def _in_captures(self) -> Optional[Tuple[Pool, Streams]]:
        return None if self.pooled is None or self._closed else (self.pooled.pool, self.pooled.streams)

    def next_step(self) -> None:
        """Says that a step has ended: no graph of autograd is left. Plans anew where requests differed (replan()).

        install() calls it after each step of an optimizer of PyTorch.
        """
        if self.pooled is not None and not self._closed:
            self.pooled.next_step()
            self.replan()

    def replan(self) -> bool:
        """Plans the requests that differed from the plan, and serves from a new pool. Call it between steps.

        False, and nothing changes: no request differed, a bucket of a unit or a gradient is allocated, a graph, a
        communicator or an Offload knows the addresses, on_mismatch is not "replan", or no plan or pool can be made (with
        a warning, once for these requests).
        """
        pooled, units = self.pooled, self.units
        if pooled is None or units is None or self._closed or not pooled.asked or self._on_mismatch != "replan" or \
                pooled.pool.addresses_known or not all(each.can_move for each in self.allocators.values()):
            return False
        try:
            units = units.with_requests(pooled.asked)
            plan = self._make_plan(units)
            for each in self.allocators.values():
                each.outside = "dynamic"  # the former pool had these
            made = self._make_pool(plan, units, pooled.device)
        except Error as error:
            warnings.warn(f"install: no new plan, PyTorch allocates requests that differ: {error}", RuntimeWarning,
                          stacklevel=2)
            pooled.asked.clear()
            return False
        for each in self.allocators.values():
            each.move(made)
        self.units, self.plan, self.pooled = units, plan, made
        self.counts.replans += 1
        pooled.close()
        return True

    def _make_plan(self, units: Units) -> Plan:
        made = self._planner(units)
        if not isinstance(made, Plan):
            raise InvalidArgument(f"install: the function plan returned {made!r}; return a Plan")
        return made

    def _make_pool(self, plan: Plan, units: Units, device: torch.device) -> PooledBuckets:
        outside = sum(units.outside_bytes(role) for role, each in self.allocators.items()
                      if each.outside == "persistent")
        return PooledBuckets(plan, device, outside, on_mismatch=self._on_mismatch, counts=self.counts, **self._options)


class Installed:
    """The modules that were wrapped inside install(), each with a pool: `modules`, in order.

    pool, plan, units, pooled, allocators, counts, register() and capture() are those of the only module. With several,
    such as the chunks of a virtual pipeline, use them of each of `modules`.
    """

    def __init__(self, plan: Union[None, Plan, str, "os.PathLike[str]", Planner], policy: str, on_mismatch: str,
                 pool_options: Dict[str, Any]) -> None:
        self.modules: List[Wrapped] = []
        self._plan: Optional[Plan] = None
        self._planner: Planner = lambda units: units.plan(policy)
        if isinstance(plan, Plan):
            self._plan = plan
        elif isinstance(plan, (str, os.PathLike)):
            self._plan = Plan.read(plan)
        elif callable(plan):
            self._planner = plan
        elif plan is not None:
            raise InvalidArgument(f"plan: expected a Plan, a path, a function of Units, or None, got {plan!r}")
        if on_mismatch not in ON_MISMATCH:
            raise InvalidArgument(f"unknown on_mismatch {on_mismatch!r}; expected one of {', '.join(ON_MISMATCH)}")
        self._on_mismatch, self._options = on_mismatch, pool_options
        reference = weakref.ref(self)  # the hook keeps nothing

        def stepped(*_: Any) -> None:
            installed = reference()
            if installed is not None:
                for each in installed.modules:
                    each.next_step()

        self._hook: Any = register_optimizer_step_post_hook(stepped)

    @property
    def only(self) -> Wrapped:
        """The only module. Raises ScheduleError if none or several were wrapped."""
        if len(self.modules) != 1:
            raise ScheduleError(f"install: {len(self.modules)} modules are wrapped; " + (
                "use each of Installed.modules" if self.modules else
                "first wrap a module with fsdp_double_buffer and sharded units"))
        return self.modules[0]

    @property
    def pool(self) -> Pool:
        """As Wrapped.pool."""
        return self.only.pool

    @property
    def pooled(self) -> Optional[PooledBuckets]:
        """As Wrapped.pooled."""
        return self.only.pooled

    @property
    def plan(self) -> Optional[Plan]:
        """As Wrapped.plan."""
        return self.only.plan

    @property
    def units(self) -> Optional[Units]:
        """As Wrapped.units."""
        return self.only.units

    @property
    def allocators(self) -> Dict[str, "_Deferred"]:
        """As Wrapped.allocators."""
        return self.only.allocators

    @property
    def counts(self) -> Counts:
        """As Wrapped.counts."""
        return self.only.counts

    def register(self, groups: Groups, kind: str = "symmetric") -> Registration:
        """As Wrapped.register."""
        return self.only.register(groups, kind)

    def capture(self, stream: Any, name: Optional[str] = None) -> GraphCapture:
        """As Wrapped.capture."""
        return self.only.capture(stream, name)

    def memory(self) -> Memory:
        """As Wrapped.memory, over the pools of all modules."""
        return memory([each.pool for each in self.modules])

    def close(self) -> None:
        """Closes the pools of all modules, as Wrapped.close."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        for each in self.modules:
            each.close()

    def _make_allocator(self, name: str, fsdp_param_groups: Sequence[Any], size: int = 2,
                        dtype_fn: Callable[[Any], torch.dtype] = operator.attrgetter("dtype"),
                        fallback_to_persistent_buffer: bool = False) -> "_Deferred":
        """Called by ParamAndGradBuffer in place of FixedPoolAllocator and MaxPoolAllocator."""
        role = ROLE_OF_NAME.get(name)
        if role is None:
            raise InvalidArgument(f"unknown allocator {name!r} of Megatron-FSDP; use a version with "
                                  f"{', '.join(ROLE_OF_NAME)}")
        if size < 2:
            raise InvalidArgument(f"{name}: expected at least 2 buffers (fsdp_buffer_count), got {size}")
        found = [each for each in self.modules if each.wraps(fsdp_param_groups)]
        if not found:
            found = [Wrapped(self._plan, self._planner, self._on_mismatch, self._options)]
            self.modules += found
        return found[0].add(role, fsdp_param_groups, size, dtype_fn, fallback_to_persistent_buffer)


def _check_sizes(groups: Sequence[Group], pooled: PooledBuckets) -> None:
    """Checks that the plan has every bucket at its size, while the module is wrapped rather than in a step."""
    asked = [(role, group) for group in groups if group.unit is not None and group.numel for role in group.roles]
    missing = [(role, group) for role, group in asked if (role, group.bucket_id) not in pooled.planned]
    larger = [(role, group) for role, group in asked if (role, group.bucket_id) in pooled.planned
              and pooled.planned[role, group.bucket_id].bytes < group.bytes(role)]
    for found, what in ((missing, "are not in the plan"), (larger, "are larger than planned")):
        if found:
            role, group = found[0]
            raise Mismatch(f"plan: {len(found)} of {len(asked)} buckets of this module {what}, first {role} bucket "
                           f"{group.bucket_id} of unit {group.unit} with {group.bytes(role)} bytes; export units.json "
                           f"from this module by describe(model).write(path), with this number of ranks, and plan it "
                           f"with the returned command")


class _Deferred:
    """An allocator whose pool is created with the first allocation."""

    def __init__(self, wrapped: Wrapped, role: str, groups: Sequence[Any], outside: str) -> None:
        self._wrapped, self._role, self._groups, self.outside = wrapped, role, groups, outside
        self._allocator: Optional[BucketAllocator] = None
        self._plain, self._live = PlainBuckets(), set[int]()  # of a module without a pool
        self.fsdp_double_buffer_units = unit_ids(groups)

    def allocate(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
                 mem_alloc_context: Optional[Callable[[], Any]] = None, strict_assignments: bool = True) -> Bucket:
        """As BucketAllocator.allocate; the first call creates the pool."""
        if self._allocator is None:
            pooled = self._wrapped.serve(device)
            if pooled is None:  # a gradient that is communicated in another dtype, for instance
                self._live.add(bucket_id)
                return Bucket(self._plain.take(bucket_id, size, dtype, device))
            self._allocator = pooled.allocator(self._role, self._groups, self.outside)
        return self._allocator.allocate(bucket_id, size, dtype, device, mem_alloc_context, strict_assignments)

    def free(self, bucket_id: int) -> None:
        """As BucketAllocator.free."""
        if self._allocator is not None:
            self._allocator.free(bucket_id)
        elif bucket_id in self._live:
            self._live.remove(bucket_id)
            self._plain.give_back(bucket_id)

    @property
    def can_move(self) -> bool:
        """As BucketAllocator.can_move."""
        return self._allocator is None or self._allocator.can_move

    def move(self, pooled: PooledBuckets) -> None:
        """As BucketAllocator.move."""
        if self._allocator is not None:
            self._allocator.move(pooled)

    def can_allocate(self, bucket_ids: Iterable[int], releasable_bucket_ids: Optional[Iterable[int]] = None) -> bool:
        """As BucketAllocator.can_allocate; True before the pool exists."""
        return self._allocator is None or self._allocator.can_allocate(bucket_ids, releasable_bucket_ids)

    @property
    def live(self) -> List[int]:
        """The ids that are allocated now."""
        return self._allocator.live if self._allocator is not None else sorted(self._live)


def _find(package: Optional[str]) -> List[ModuleType]:
    if package is not None:
        return [importlib.import_module(package + ".param_and_grad_buffer")]
    found = [sys.modules[name] for name in MODULES if name in sys.modules]
    if found:
        return found
    for name in MODULES:
        try:
            return [importlib.import_module(name)]
        except ImportError:
            continue
    raise ImportError("Megatron-FSDP is not installed; pip install megatron-fsdp, or pass package=")


@contextmanager
def install(plan: Union[None, Plan, str, "os.PathLike[str]", Planner] = None, policy: str = "scheduled",
            package: Optional[str] = None, on_mismatch: str = "replan", **pool_options: Any) -> Iterator[Installed]:
    """A context in which Megatron-FSDP allocates its double buffers from a pool. Wrap the modules inside:

        with install() as installed:
            model = fully_shard_model(module, fsdp_unit_modules=[Block], fsdp_double_buffer=True, ...)

    - plan: a Plan, its file, or a function that makes a Plan from Units; None: plans the buckets of the module
    - policy: of the plan that install() makes: "scheduled", "max" or "fixed"
    - package: the module of Megatron-FSDP, such as "megatron_fsdp"; None: the imported one, else an installed one
    - on_mismatch: a request that differs from the plan, or whose memory is in use, or one of a module without sharded
      units. "replan": PyTorch's memory, and after the next step of an optimizer a new plan of all requests
      (except the last kind); "plain": PyTorch's memory; "error": raises
    - pool_options: as in bucketpool.Pool

    Each module gets a pool, which stays until Installed.close(). One thread at a time. Raises ImportError,
    ScheduleError (the module has no double buffers), and as PooledBuckets when the first bucket is allocated.
    """
    check_options(install, pool_options)
    installed = Installed(plan, policy, on_mismatch, pool_options)
    modules = _find(package)
    before = [(module, name, getattr(module, name)) for module in modules for name in REPLACED if hasattr(module, name)]
    if not before:
        raise InvalidArgument(f"{modules[0].__name__}: no {' and no '.join(REPLACED)}; use Megatron-FSDP 0.6.1, or a "
                              "version with them")
    for module, name, _ in before:
        setattr(module, name, installed._make_allocator)
    try:
        yield installed
    finally:
        for module, name, original in before:
            setattr(module, name, original)
    if not installed.modules:
        raise ScheduleError("Megatron-FSDP made no double buffer; wrap a module inside install(), with "
                            "fsdp_double_buffer=True and units in fsdp_unit_modules")
