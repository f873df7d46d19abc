"""Attachments: a sharded module whose communication buffers come from a pool."""

import ctypes
import dataclasses
import functools
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn

from ..._library import call, core
from ...device import Device, Stream
from ...errors import Infeasible, InvalidArgument, Mismatch, ScheduleError
from ...plan import Plan
from ...pool import Pool
from ...registration import Registration
from ..capture import GraphCapture
from ..memory import device_for
from ..streams import Streams
from .comms import Source, install, phase_of, uninstall
from .groups import Group, groups_of
from .tensors import tensor_at
from .predict import predict
from .registration import register_groups
from .timeline import Planned, Size, Slot, Timeline


class Unplanned(ScheduleError):
    """A buffer is not as planned: another size, another time, or one too many. attach(strict=False) serves plain memory
    instead.
    """


@dataclasses.dataclass(frozen=True)
class _Lease:
    slot: Slot
    stream: Stream
    address: int
    bytes: int


class Attachment(Source):
    """A module whose communication buffers come from a pool, from attach() until detach() or the end of a `with` block.

    Attributes:

    - planned: model, buckets and schedule; plan, pool, device
    - served: number of served buffers by role ("param": outputs of all-gathers, "grad": inputs of reduce-scatters)
    - fallbacks: number of plain buffers instead, by reason (attach(strict=False))

    A buffer is released when the last reference to its storage is gone; FSDP2 has ordered the stream of its allocation
    after all uses by then. So memory in use is never served again, whatever the plan says.
    """

    def __init__(self, module: nn.Module, groups: List[Group], planned: Planned, plan: Plan, pool: Pool, device: Device,
                 strict: bool, poison: bool) -> None:
        super().__init__()
        self.module, self.groups, self.planned, self.plan = module, groups, planned, plan
        self.pool, self.device = pool, device
        self.strict, self.poison = strict, poison
        self.torch_device = groups[0].device
        self.served: Dict[str, int] = {"param": 0, "grad": 0}
        self.fallbacks: Dict[str, int] = {}
        self.registration: Optional[Registration] = None
        self._streams = Streams(device, self.torch_device)
        self._live: Dict[int, _Lease] = {}
        self._apart: Set[int] = set()
        self._failure: Optional[Exception] = None
        self._requests: Dict[Tuple[str, str], List[int]] = {}
        self._sizes: Dict[int, Tuple[Slot, Size]] = {}
        for request, slot in sorted(enumerate(planned.slots), key=lambda each: each[1].instance):
            self._requests.setdefault((slot.unit, slot.role), []).append(request)
            self._sizes[request] = (slot, planned.sizes[slot])
        install(groups, self)
        self._installed = True

    # ---- calls of the communication objects -----------------------------------------------------------------------

    def serve(self, group: Group, role: str, numel: int, dtype: torch.dtype, device: torch.device,
              plain: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        reason = self._cannot(group.name, role, numel, dtype, device)
        if not reason:
            phase, stream = phase_of(role), self._streams.current()
            fitting = [each for each in self._requests[group.name, role]
                       if each not in self._live and self._fits(each, role, numel)]
            for request in sorted(fitting, key=lambda each: self._sizes[each][0].phase != phase):
                views = self.pool.try_acquire([request], stream)
                if views is not None:
                    return self._tensor(request, views[0].address, numel, dtype, stream)
            reason = (("unplanned overlap", f"its memory is in use by {self._holders()}") if self._live else
                      ("offloaded", "the pool is offloaded, or a caller holds its memory; restore the pool first"))
        return self._instead(group.name, role, reason, plain)

    def _fits(self, request: int, role: str, numel: int) -> bool:
        """True if a request has the size. Reduce-scatters are smaller if some parameters got no gradient."""
        planned = self._sizes[request][1].numel
        return numel == planned if role == "param" else numel <= planned

    def _tensor(self, request: int, address: int, numel: int, dtype: torch.dtype, stream: Stream) -> torch.Tensor:
        slot, size = self._sizes[request]
        self._live[request] = _Lease(slot, stream, address, size.bytes)
        self._in_use[address] = address + size.bytes
        self.served[slot.role] += 1
        return tensor_at(address, numel, dtype, self.torch_device, functools.partial(self._ended, request))

    def _holders(self) -> str:
        return " and ".join(f"{slot.bucket} of {slot.unit}" for slot in self.live())

    def _cannot(self, unit: str, role: str, numel: int, dtype: torch.dtype, device: torch.device) -> Sequence[str]:
        """The reason why the plan has no buffer for this request, short and in detail; None if it has one."""
        requests = self._requests.get((unit, role))
        if torch.compiler.is_compiling():
            return "compiled", "torch.compile's graphs must not contain addresses of a pool"
        if torch.device(device).type != self.torch_device.type:
            return "another device", f"requested on {device}, the pool is on {self.torch_device}"
        if not requests:
            return "not in the plan", "the recording or prediction does not contain it"
        _, size = self._sizes[requests[0]]
        if dtype != size.dtype:
            return "another dtype", f"{numel} elements of {dtype} requested, planned as {size.dtype}"
        if not any(self._fits(each, role, numel) for each in requests):
            return "another size", f"{numel} elements of {dtype} requested, {size.numel} planned"
        if all(each in self._live for each in requests):
            buffers = "its buffer is" if len(requests) == 1 else f"all its {len(requests)} buffers are"
            return "in use", f"requested again while {buffers} in use"
        return ()

    def _instead(self, unit: str, role: str, reason: Sequence[str], plain: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self.strict:
            what = "all-gather output" if role == "param" else "reduce-scatter input"
            raise Unplanned(
                f"{unit}: the {what} is not as planned: {reason[1]}; record a step of this kind with "
                "bucketpool.torch.fsdp2.record() and attach() with all recordings, or attach(strict=False), "
                "which takes plain memory for it"
            )
        self.fallbacks[reason[0]] = self.fallbacks.get(reason[0], 0) + 1
        return plain()

    def _ended(self, request: int) -> None:
        """Called at the end of the storage, on any thread, so the next call raises errors."""
        lease = self._live[request]
        del self._in_use[lease.address]
        try:
            # At the end of backward only the current stream is ordered after the uses; after a copy-out both are.
            in_forward = lease.slot.role == "param" and phase_of(lease.slot.role) == "forward"
            last = lease.stream if in_forward and request in self._apart else self._streams.current()
            if last is not lease.stream:
                self.pool.use([request], last)
            if self.poison:
                self._fill(lease, last)
            self.pool.release([request], lease.stream)
        except Exception as error:
            self._failure = error
        self._apart.discard(request)
        del self._live[request]

    def communicates(self, address: int) -> None:
        # FSDP2 orders the allocation stream after all uses of a buffer, if its collective is on another stream (noted
        # here), and backward's current stream. With both on one stream (async_op, unshard() by hand), the copy-out may
        # be on a third one, where the reference is dropped; then _ended() makes reuse wait for that stream, too.
        stream = self._streams.current()
        for request, lease in list(self._live.items()):
            if lease.address <= address < lease.address + lease.bytes and stream is not lease.stream:
                self._apart.add(request)

    def _fill(self, lease: _Lease, stream: Stream) -> None:
        if self.torch_device.type == "cpu":
            ctypes.memset(lease.address, 0xFF, lease.bytes)
        else:
            call(core().bp_stream_fill, stream.handle, lease.address, 0xFF, lease.bytes)

    # ---- for the caller -------------------------------------------------------------------------------------------

    def live(self) -> List[Slot]:
        """The buffers that FSDP2 uses now; [] between steps."""
        return [lease.slot for lease in self._live.values()]

    def register(self, kind: str = "symmetric") -> Registration:
        """Registers the pool with the NCCL communicators of the module's process groups. Collective.

        Call it once, between steps, after the first collective has created the communicators. kind: "buffer",
        "window" or "symmetric"; the returned Registration reports what NCCL granted. detach() undoes it.

        Raises Unsupported (a process group of another backend), ScheduleError (registered already), and as
        bucketpool.Registration.
        """
        if self.registration is not None:
            raise ScheduleError("the pool is registered already; detach() and attach() again to register another kind")
        self.registration = register_groups(self.pool, self.device, self.groups, kind)
        return self.registration

    def capture(self, stream: Any, name: Optional[str] = None) -> GraphCapture:
        """A context for capturing whole steps, forward and backward, in a CUDA graph:

            with attached.capture(stream) as capture, torch.cuda.graph(graph, stream=stream):
                model(inputs).sum().backward()
            capture.replay(graph)

        Run a few steps eagerly first, so that streams are imported and gradients exist. Raises as bucketpool.Capture.
        """
        return GraphCapture(self.pool, self._streams, stream, name)

    def report(self) -> str:
        """The plan, the memory of the pool and the served buffers as text, one line each."""
        statistics = self.pool.statistics
        lines = [f"plan: policy {self.plan.policy}, {self.plan.bytes} bytes, at least {self.plan.lower_bound_bytes}",
                 f"pool: {statistics.slab_bytes} bytes allocated, {statistics.peak_live_bytes} peak live bytes",
                 f"served: {self.served['param']} all-gather outputs, {self.served['grad']} reduce-scatter inputs"]
        lines += [f"plain memory instead: {count} times, {reason}" for reason, count in sorted(self.fallbacks.items())]
        return "\n".join(lines)

    def detach(self) -> None:
        """Restores the module's communication objects and frees the pool. Call it between steps; may be repeated.

        Raises ScheduleError while FSDP2 uses buffers. After everything is freed, raises the error of the last
        release, if any (guard mode: written past the end).
        """
        if self.pool.closed:
            return
        if self._live:
            slot = self.live()[0]
            raise ScheduleError(
                f"detach: {len(self._live)} buffers are in use, among them {slot.bucket} of {slot.unit}; "
                "detach between steps"
            )
        self._uninstall()
        if self.registration is not None:
            self.registration.close()
        self._streams.close()
        self.pool.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _uninstall(self) -> None:
        """Restores the communication objects once, because the module may have another pool later."""
        if self._installed:
            uninstall(self.groups)
            self._installed = False

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is not None:
            self._failure = None  # the exception of the block is the cause
            self._uninstall()
            if self._live:  # the exception's traceback may hold buffers
                return
        self.detach()


Timelines = Union[Timeline, Sequence[Timeline], None]


def plan_of(module: nn.Module, timelines: Timelines = None, name: Optional[str] = None, phases: bool = True,
            any_version: bool = False) -> Planned:
    """Units, buckets and schedule of a sharded module, as input of the planner.

    - timelines: of record(); None: predict() from the settings of the module
    - name: of the model; None: the class of the module
    - phases: separate buckets for all-gathers of forward and backward; better for policy "scheduled", worse for
      "max" and "fixed"
    - any_version: also with a PyTorch that has not been checked

    plan_of(model).model.write_units("units.json") writes the input of `bucketpool plan --joint units.json`. Raises as
    predict(); InvalidArgument and ScheduleError (recordings of other modules, or of incomplete steps).
    """
    if timelines is None:
        first, later = predict(module, any_version), predict(module, any_version, first=False)
        timelines = [first] if later.events in (first.events, []) else [first, later]
    elif isinstance(timelines, Timeline):
        timelines = [timelines]
    return Planned(name or _name(module), [each if phases else each.without_phases() for each in timelines])


def _name(module: nn.Module) -> str:
    return type(module).__name__.replace("FSDP", "", 1) or "model"


def _device(wanted: Optional[Device], torch_device: torch.device) -> Device:
    if wanted is None:
        return device_for(torch_device)
    if wanted.ordinal != torch_device.index or (wanted.ordinal is None and not wanted.is_host_accessible):
        raise Mismatch(f"device {wanted.name}: the module is on {torch_device}; leave device out, or move the module "
                       "first")
    return wanted


def attach(module: nn.Module, timelines: Timelines = None, *, policy: str = "scheduled",
           plan: Union[Plan, str, "os.PathLike[str]", None] = None, joint: bool = True, alignment: int = 256,
           work: int = 0, strict: bool = True, poison: bool = False, device: Optional[Device] = None,
           name: Optional[str] = None, phases: Optional[bool] = None, any_version: bool = False,
           **pool_options: Any) -> Attachment:
    """Plans the communication buffers of a fully_shard'ed module, creates a pool and attaches it. Between steps.

    - module: the root, on its device
    - timelines: of record(); None: predict() from the settings of the module
    - policy: "scheduled", "max", "fixed", or "dynamic" (no pool: stream-ordered allocation of every buffer)
    - plan: a Plan or its file, with these buckets, instead of planning
    - phases: as in plan_of; None: by policy
    - joint: one slab for all-gathers and reduce-scatters ("scheduled")
    - strict: a buffer outside the plan raises Unplanned; False: it is plain memory, counted in `fallbacks`
    - poison: fill released buffers with NaN, for tests
    - device: a device of the library; None: a new one for the module's device
    - any_version: also with a PyTorch that has not been checked; compare losses with and without the pool then
    - alignment, work: as in Plan; pool_options: as in Pool (guard, fingerprint, ...)

    Call detach() on the result. Raises InvalidArgument (not sharded, a second pool, an unknown dtype), Mismatch
    (another device, a plan of other buckets), Unsupported (an unchecked version of PyTorch), Infeasible, and as Plan
    and Pool.
    """
    groups = groups_of(module, any_version)
    if plan is not None:
        plan = plan if isinstance(plan, Plan) else Plan.read(plan)
        policy = plan.policy
    if phases is None:
        phases = policy in ("scheduled", "dynamic")
    planned = plan_of(module, timelines, name, phases, any_version)
    names = [group.name for group in groups]
    if planned.units != names:
        raise Mismatch(f"recording: it has units {planned.units}, the module has {names}; record the module that the "
                       "pool is for")
    if plan is None:
        plan = Plan(planned.buckets, planned.schedule, policy=policy, alignment=alignment,
                    joint=joint and policy == "scheduled", work=work)
        if not plan.feasible:
            raise Infeasible(f"policy {policy}: {plan.infeasible_because}")
    else:
        plan.check(planned.buckets, planned.schedule)
    target = _device(device, groups[0].device)
    pool = Pool(target, plan, name=name or _name(module), **pool_options)
    try:
        return Attachment(module, groups, planned, plan, pool, target, strict, poison)
    except BaseException:
        pool.close()
        raise
