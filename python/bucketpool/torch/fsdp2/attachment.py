"""A sharded module whose communication buffers come from a pool."""

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
    """A buffer that is not in the plan: another size, another time, or one too many. With strict=False plain
    memory is used.
    """


@dataclasses.dataclass(frozen=True)
class _Lease:
    slot: Slot
    stream: Stream
    address: int
    bytes: int


class Attachment(Source):
    """Serves gather outputs and reduce-scatter inputs of one module from one pool, until detach(). attach() makes it; a
    `with` block detaches at its end.

    A buffer belongs to the framework until the last reference to its storage is gone: only then is it released, on the
    stream that it was allocated on, which FSDP2 has ordered behind all its uses by then. So a buffer that is still in
    use is never handed out, whatever the plan says; where the plan did not foresee that, Unplanned is raised, or a
    plain buffer is served and counted (`fallbacks`).

    Attributes: planned (model, buckets, schedule), plan, pool, device; served: buffers handed out, by role; fallbacks:
    plain buffers instead, by reason. Threads: those that FSDP2 uses. Streams: see Streams."""

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

    # ---- what the communication objects ask for -------------------------------------------------------------------

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
            reason = "unplanned overlap", f"asked for while its memory is in use by {self._holders()}"
        return self._instead(group.name, role, reason, plain)

    def _fits(self, request: int, role: str, numel: int) -> bool:
        """A gather is always of the planned size; a reduction is smaller where some parameters got no gradient."""
        planned = self._sizes[request][1].numel
        return numel == planned if role == "param" else numel <= planned

    def _tensor(self, request: int, address: int, numel: int, dtype: torch.dtype, stream: Stream) -> torch.Tensor:
        slot, size = self._sizes[request]
        self._live[request] = _Lease(slot, stream, address, size.bytes)
        self._in_use[address] = address + size.bytes
        self.served[slot.role] += 1
        return tensor_at(address, numel, dtype, self.torch_device, functools.partial(self._ended, request))

    def _holders(self) -> str:
        return " and ".join(f"{slot.bucket} of {slot.unit}" for slot in self.live()) or "nobody"

    def _cannot(self, unit: str, role: str, numel: int, dtype: torch.dtype, device: torch.device) -> Sequence[str]:
        """The reason why the plan has no buffer for this request, short and in detail; None if it has one."""
        requests = self._requests.get((unit, role))
        if torch.compiler.is_compiling():
            return "compiled", "inside torch.compile, whose graphs must not hold a pool's addresses"
        if torch.device(device).type != self.torch_device.type:
            return "another device", f"asked for on {device}, the pool is on {self.torch_device}"
        if not requests:
            return "not in the plan", "it did not run in what the plan was made from"
        _, size = self._sizes[requests[0]]
        if dtype != size.dtype:
            return "another dtype", f"{numel} elements of {dtype} asked for, planned for {size.dtype}"
        if not any(self._fits(each, role, numel) for each in requests):
            return "another size", f"{numel} elements of {dtype} asked for, {size.numel} planned"
        if all(each in self._live for each in requests):
            buffers = "its buffer is" if len(requests) == 1 else f"all its {len(requests)} buffers are"
            return "in use", f"asked for again while {buffers} in use"
        return ()

    def _instead(self, unit: str, role: str, reason: Sequence[str], plain: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self.strict:
            what = "gather output" if role == "param" else "reduce-scatter input"
            raise Unplanned(f"{unit}: the {what} is not as planned: {reason[1]}. Record a step of this kind with "
                            "bucketpool.torch.fsdp2.record() and attach with it (several recordings may be given), or "
                            "attach with strict=False, which takes plain memory for it")
        self.fallbacks[reason[0]] = self.fallbacks.get(reason[0], 0) + 1
        return plain()

    def _ended(self, request: int) -> None:
        """The storage is gone. Called wherever the last reference was dropped, so failures wait for the next call."""
        lease = self._live[request]
        del self._in_use[lease.address]
        try:
            # At the end of backward only the current stream is behind the uses; behind a copy-out in backward both are.
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
        """FSDP2 orders its own gather streams, and the current one of backward, behind a buffer's uses. A gather whose
        allocation and collective are on one stream is neither (`async_op`, unshard() by hand): should its copy-out be
        on yet another stream, where the reference is dropped, reuse waits for that one as well."""
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
        """Buffers that the framework holds now; empty between steps."""
        return [lease.slot for lease in self._live.values()]

    def register(self, kind: str = "symmetric") -> Registration:
        """Collective: registers the pool's slabs with the NCCL communicators of the module's process groups. Once,
        between steps, after the first collective has made the communicators. Not granted is in the report, no error;
        undone by detach().

        Raises Unsupported (a process group that is not NCCL's), ScheduleError (registered already), and as
        bucketpool.Registration."""
        if self.registration is not None:
            raise ScheduleError("the pool is registered already: detach() and attach() again to register it otherwise")
        self.registration = register_groups(self.pool, self.device, self.groups, kind)
        return self.registration

    def capture(self, stream: Any, name: Optional[str] = None) -> GraphCapture:
        """For a CUDA graph of whole steps (forward and backward, so that every buffer that is acquired inside is given
        back inside):

            with attached.capture(stream) as capture, torch.cuda.graph(graph, stream=stream):
                model(inputs).sum().backward()
            capture.replay(graph)

        Run a few steps eagerly first, so that streams are known and gradients exist. Raises as bucketpool.Capture."""
        return GraphCapture(self.pool, self._streams, stream, name)

    def report(self) -> str:
        """A report of the plan and of what was served, a line each."""
        statistics = self.pool.statistics
        lines = [f"plan: policy {self.plan.policy}, {self.plan.bytes} bytes, at least {self.plan.lower_bound_bytes}",
                 f"pool: {statistics.slab_bytes} bytes made, {statistics.peak_live_bytes} at most in use at once",
                 f"served: {self.served['param']} gather outputs, {self.served['grad']} reduce-scatter inputs"]
        lines += [f"plain memory instead: {count} times, {reason}" for reason, count in sorted(self.fallbacks.items())]
        return "\n".join(lines)

    def detach(self) -> None:
        """Restores the module's communication objects and frees the pool. Between steps; may be repeated.

        Raises ScheduleError while the framework holds buffers; and, after all is freed, the error of a last
        release (guard mode: written past the end).
        """
        if self.pool.closed:
            return
        if self._live:
            slot = self.live()[0]
            raise ScheduleError(f"{len(self._live)} buffers are in use, {slot.unit} {slot.bucket} among them: "
                                "detach between steps")
        self._uninstall()
        if self.registration is not None:
            self.registration.close()
        self._streams.close()
        self.pool.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _uninstall(self) -> None:
        """Once: later the module may have another pool."""
        if self._installed:
            uninstall(self.groups)
            self._installed = False

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is not None:
            self._failure = None  # the exception of the block says more
            self._uninstall()
            if self._live:  # its traceback may hold buffers
                return
        self.detach()


Timelines = Union[Timeline, Sequence[Timeline], None]


def plan_of(module: nn.Module, timelines: Timelines = None, name: Optional[str] = None, phases: bool = True,
            any_version: bool = False) -> Planned:
    """Units, buckets and schedule of a sharded module, as input of the planner.

    From recordings, or (None) from the settings of the module: a first step, and a later one if some groups
    stay gathered after backward. phases: separate buckets for all-gathers of forward and backward, for policy
    "scheduled"; "max" and "fixed", with buffers of one size, do better without.
    `plan_of(model).model.write_units("units.json")` writes the input of `bucketpool plan --joint units.json`.
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
        raise Mismatch(f"the module is on {torch_device}, the pool's device is {wanted.name}: leave device out, or "
                       "move the module first")
    return wanted


def attach(module: nn.Module, timelines: Timelines = None, *, policy: str = "scheduled",
           plan: Union[Plan, str, "os.PathLike[str]", None] = None, joint: bool = True, alignment: int = 256,
           work: int = 0, strict: bool = True, poison: bool = False, device: Optional[Device] = None,
           name: Optional[str] = None, phases: Optional[bool] = None, any_version: bool = False,
           **pool_options: Any) -> Attachment:
    """Plans the communication buffers of a fully_shard'ed module, creates a pool for them and attaches it.

    - module: the root, on its device
    - timelines: of record(); None: predict() from the settings of the module
    - policy: "scheduled", "max", "fixed", or "dynamic" (no pool: stream-ordered allocation of every buffer)
    - plan: a Plan or its file, with these buckets, instead of planning
    - phases: as in plan_of; None: by policy
    - joint: one slab for all-gathers and reduce-scatters ("scheduled")
    - strict: a buffer outside the plan raises Unplanned; False: it is plain memory, counted in `fallbacks`
    - poison: fill released buffers with NaN, for tests
    - pool_options: options of bucketpool.Pool (guard, name, fingerprint)

    The caller owns the attachment: detach(). Raises InvalidArgument (not sharded, a second pool, an unknown
    dtype), Mismatch (another device, a plan of other buckets), Unsupported (an unknown version of PyTorch),
    Infeasible, and the errors of Plan and Pool.
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
        raise Mismatch(f"the recording has units {planned.units}, the module {names}: record the module that the pool "
                       "is for")
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
