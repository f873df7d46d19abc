"""Installs pooled allocators in place of Megatron-FSDP's double buffers."""

import importlib
import operator
import os
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from ...errors import InvalidArgument, Mismatch, ScheduleError
from ...plan import Plan
from ...pool import Pool
from ...registration import Registration
from ..capture import GraphCapture
from ..nccl import register
from .allocator import Bucket, BucketAllocator, PooledBuckets
from .units import Group, Units, describe, unit_ids

# The modules that define its buffers: in the package, and in its copy in Megatron-LM.
MODULES = ("megatron_fsdp.param_and_grad_buffer",
           "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer")
Planner = Callable[[Units], Plan]
REPLACED = ("FixedPoolAllocator", "MaxPoolAllocator")
# The names that ParamAndGradBuffer gives its allocators, and their roles.
ROLE_OF_NAME = {"fsdp_params": "param", "fsdp_fp8_transpose_params": "param_transpose", "fsdp_grads": "grad",
                "hsdp_grad_comm": "grad_comm"}


class Installed:
    """The pool of the module that was wrapped inside install().

    Attributes, set when the module is wrapped: pool, plan, units, allocators (by role).
    """

    def __init__(self, plan: Union[None, Plan, str, "os.PathLike[str]", Planner], policy: str,
                 pool_options: Dict[str, Any]) -> None:
        self.plan: Optional[Plan] = None
        self._planner: Planner = lambda units: units.plan(policy)
        if isinstance(plan, Plan):
            self.plan = plan
        elif isinstance(plan, (str, os.PathLike)):
            self.plan = Plan.read(plan)
        elif callable(plan):
            self._planner = plan
        elif plan is not None:
            raise InvalidArgument(f"plan: expected a Plan, a path, a function of Units, or None, got {plan!r}")
        self._options = pool_options
        self._closed = False
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

    def register(self, groups: Iterable[dist.ProcessGroup], kind: str = "symmetric") -> Registration:
        """Registers the pool with the NCCL communicators of process groups, those of the module's collectives.
        Collective.

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

    def capture(self, stream: Any, name: Optional[str] = None) -> GraphCapture:
        """A context for capturing whole steps with torch.cuda.graph(graph, stream=stream); replay() launches the graph.

        Run a few steps eagerly first. Raises as bucketpool.Capture.
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

    def _make_allocator(self, name: str, fsdp_param_groups: Sequence[Any], size: int = 2,
                        dtype_fn: Callable[[Any], torch.dtype] = operator.attrgetter("dtype"),
                        fallback_to_persistent_buffer: bool = False) -> "_Deferred":
        """Called by ParamAndGradBuffer in place of FixedPoolAllocator and MaxPoolAllocator."""
        role = ROLE_OF_NAME.get(name)
        if role is None:
            raise InvalidArgument(f"unknown allocator {name!r} of Megatron-FSDP; use a version with "
                                  f"{', '.join(ROLE_OF_NAME)}")
        if role in self.allocators:
            raise ScheduleError("install: a second module is wrapped for one pool; install() again for each module")
        if size < 2:
            raise InvalidArgument(f"{name}: expected at least 2 buffers (fsdp_buffer_count), got {size}")
        self._buffers = max(self._buffers, size)
        self._groups = fsdp_param_groups
        if role == "grad":
            self._grad_dtype_of = dtype_fn
        made = self.allocators[role] = _Deferred(self, role, fsdp_param_groups,
                                                 "persistent" if fallback_to_persistent_buffer else "dynamic")
        return made

    def _serve(self, device: torch.device) -> PooledBuckets:
        """The pool, created with the first allocation, when all buffers have their sizes."""
        if self.pooled is None:
            self.units = describe(list(self._groups), grad_dtype_of=self._grad_dtype_of, buffers=self._buffers)
            if self.plan is None:
                made = self._planner(self.units)
                if not isinstance(made, Plan):
                    raise InvalidArgument(f"install: the function plan returned {made!r}; return a Plan")
                self.plan = made
            outside = sum(self.units.outside_bytes(role) for role, each in self.allocators.items()
                          if each.outside == "persistent")
            pooled = PooledBuckets(self.plan, device, outside, **self._options)
            _check_sizes(self.units.groups, pooled)
            self.pooled = pooled
        return self.pooled


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

    def __init__(self, installed: Installed, role: str, groups: Sequence[Any], outside: str) -> None:
        self._installed, self._role, self._groups, self.outside = installed, role, groups, outside
        self._allocator: Optional[BucketAllocator] = None
        self.fsdp_double_buffer_units = unit_ids(groups)

    def allocate(self, bucket_id: int, size: int, dtype: torch.dtype, device: torch.device,
                 mem_alloc_context: Optional[Callable[[], Any]] = None, strict_assignments: bool = True) -> Bucket:
        """As BucketAllocator.allocate; the first call creates the pool."""
        if self._allocator is None:
            self._allocator = self._installed._serve(device).allocator(self._role, self._groups, self.outside)
        return self._allocator.allocate(bucket_id, size, dtype, device, mem_alloc_context, strict_assignments)

    def free(self, bucket_id: int) -> None:
        """As BucketAllocator.free."""
        if self._allocator is not None:
            self._allocator.free(bucket_id)

    def can_allocate(self, bucket_ids: Iterable[int], releasable_bucket_ids: Optional[Iterable[int]] = None) -> bool:
        """As BucketAllocator.can_allocate; True before the pool exists."""
        return self._allocator is None or self._allocator.can_allocate(bucket_ids, releasable_bucket_ids)

    @property
    def live(self) -> List[int]:
        """The ids that are allocated now."""
        return self._allocator.live if self._allocator is not None else []


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
            package: Optional[str] = None, **pool_options: Any) -> Iterator[Installed]:
    """A context in which Megatron-FSDP allocates its double buffers from a pool. Wrap one module inside:

        with install() as installed:
            model = fully_shard_model(module, fsdp_unit_modules=[Block], fsdp_double_buffer=True, ...)

    - plan: a Plan, its file, or a function that makes a Plan from Units; None: plans the buckets of the module
    - policy: of the plan that install() makes: "scheduled", "max" or "fixed"
    - package: the module of Megatron-FSDP, such as "megatron_fsdp"; None: the imported one, else an installed one
    - pool_options: as in bucketpool.Pool

    The pool stays until Installed.close(). One thread at a time. Raises ImportError, ScheduleError (the module has no
    double buffers), and as PooledBuckets when the first bucket is allocated.
    """
    installed = Installed(plan, policy, pool_options)
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
    if not installed.allocators:
        raise ScheduleError("Megatron-FSDP made no double buffer; wrap a module inside install(), with "
                            "fsdp_double_buffer=True and units in fsdp_unit_modules")
