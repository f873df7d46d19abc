# SPDX-License-Identifier: Apache-2.0
"""Attachments: a sharded module whose communication buffers come from a pool."""

import ctypes
import functools
import math
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from ..._library import call, core
from ...device import Device, Stream
from ...errors import InvalidArgument, Mismatch, ScheduleError
from ...names import list_of, optional, shown
from ...plan import Plan
from ...pool import Pool, Prepared, Statistics, check_options
from ...registration import Registration
from ..accounting import Memory, memory
from ..capture import GraphCapture, follow
from ..memory import device_for, tensors_of
from ..replanner import Replanner
from ..streams import Streams
from ..timeline import PHASES, Planned, Size, Slot, Timeline, phase_of
from .comms import Buffer, Source, install, uninstall
from .groups import Group, groups_of
from .predict import predict
from .registration import register_groups

_task = torch._C._current_graph_task_id
_NOT_OF_THE_PLAN = ("compiled", "another device", "offloaded")  # reasons that a new plan would not change


class Unplanned(ScheduleError):
    """A buffer is not as planned: another size, another time, or one too many (attach(on_mismatch="error"))."""


class _Planned(Buffer):
    """A buffer of the plan, and its current use."""

    __slots__ = ("slot", "numel", "dtype", "bytes", "request", "tensor", "stream", "apart")

    def __init__(self, slot: Slot, size: Size, request: Prepared, device: torch.device,
                 ended: Callable[["_Planned"], None]) -> None:
        super().__init__()
        self.slot, self.request = slot, request
        self.numel, self.dtype, self.bytes = size.numel, size.dtype, size.bytes
        self.tensor = tensors_of(request, size.dtype, device, functools.partial(ended, self))
        self.stream: Optional[Stream] = None  # of its acquire; None: free
        self.apart = False  # its collective is on another stream


class Attachment(Source):
    """A module whose communication buffers come from a pool, from attach() until detach() or the end of a `with` block.

    Attributes:

    - planned: model, buckets and schedule; plan, pool, device
    - served: number of served buffers by role ("param": outputs of all-gathers, "grad": inputs of reduce-scatters)
    - fallbacks: number of plain buffers instead, by reason
    - replans: why the pool was planned anew, for each time

    A buffer is released when the last reference to its storage is gone; FSDP2 has ordered the stream of its allocation
    after all uses by then. So memory in use is never served again, whatever the plan says.
    """

    def __init__(self, module: nn.Module, groups: List[Group], replanner: Replanner, on_mismatch: str,
                 poison: bool) -> None:
        super().__init__()
        self.module, self.groups, self.device = module, groups, replanner.device
        self.on_mismatch, self.poison = on_mismatch, poison
        self.torch_device = groups[0].device
        self.served: Dict[str, int] = {"param": 0, "grad": 0}
        self.fallbacks: Dict[str, int] = {}
        self.replans = replanner.replans
        self.registration: Optional[Registration] = None
        self._replanner, self._log = replanner, replanner.log
        self._streams = Streams(self.device, self.torch_device)
        self.communicates = None if self._streams.only else self._communicates
        self._failure: Optional[Exception] = None
        self._final: Optional[Statistics] = None  # of the pool that detach() closed
        self._take()
        try:
            install(groups, self)
        except BaseException:
            self.pool.close()
            raise
        self._installed = True
        follow(self._in_captures)

    def _in_captures(self) -> Optional[Tuple[Pool, Streams]]:
        if not self._in_use and not self.pool.closed:
            self._replanner.next_pass(self._take)  # the last time that the pool can be planned anew
        return None if self.pool.closed else (self.pool, self._streams)

    def _take(self) -> None:
        """Serves from the pool that the replanner has now."""
        self.planned, self.plan, self.pool = self._replanner.current
        if self._streams.only is not None:  # then releases record no events
            self.pool.set_stream(range(len(self.planned.slots)), self._streams.only)
        buffers = [_Planned(slot, self.planned.sizes[slot], Prepared(self.pool, request), self.torch_device,
                            self._ended)
                   for request, slot in enumerate(self.planned.slots)]
        buffers.sort(key=lambda each: each.slot.instance)
        self._buffers: Dict[Tuple[str, str], List[_Planned]] = {}
        for buffer in buffers:
            self._buffers.setdefault((buffer.slot.unit, buffer.slot.role), []).append(buffer)
        # The order in which a phase tries them: its own first.
        self._orders = {(unit, role, phase): sorted(each, key=lambda buffer: buffer.slot.phase != phase)
                        for (unit, role), each in self._buffers.items() for phase in PHASES}

    # ---- calls of the communication objects -----------------------------------------------------------------------

    def serve(self, comm: Any, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        numel = size[0] if len(size) == 1 else math.prod(size)
        if numel and not torch.compiler.is_compiling() and (device == self.torch_device
                                                  or torch.device(device).type == self.torch_device.type):
            name, role = comm.name, comm.role
            phase = "" if role == "grad" else "forward" if _task() == -1 else "backward"  # phase_of(role)
            if not self._in_use and self._replanner.begins(name, phase):
                self._replanner.next_pass(self._take)
            for buffer in self._orders.get((name, role, phase), ()):
                if buffer.stream is None and buffer.dtype is dtype and numel <= buffer.numel:
                    stream = self._streams.only or self._streams.current()
                    tensor = buffer.tensor(stream, numel)
                    if tensor is not None:
                        address = tensor.data_ptr()
                        if address != buffer.begin:
                            buffer.moved(address, buffer.bytes)
                        buffer.stream, self._in_use[address] = stream, buffer
                        self.served[role] += 1
                        self._log((buffer, name, role, phase, numel, dtype))
                        return tensor if len(size) == 1 else tensor.view(tuple(size))
        return self._instead(comm, numel, dtype, device).view(tuple(size))

    def _holders(self) -> str:
        return " and ".join(f"{slot.bucket} of {slot.unit}" for slot in self.live())

    def _cannot(self, unit: str, role: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tuple[str, str]:
        """The reason why a request got no buffer, short and in detail."""
        buffers = self._buffers.get((unit, role))
        if torch.compiler.is_compiling():
            return "compiled", "torch.compile's graphs must not contain addresses of a pool"
        if torch.device(device).type != self.torch_device.type:
            return "another device", f"requested on {device}, the pool is on {self.torch_device}"
        if not buffers:
            return "not in the plan", "the recording or prediction does not contain it"
        planned = buffers[0]
        if dtype != planned.dtype:
            return "another dtype", f"{numel} elements of {dtype} requested, planned as {planned.dtype}"
        if all(numel > each.numel for each in buffers):
            return "another size", f"{numel} elements of {dtype} requested, {planned.numel} planned"
        if all(each.stream is not None for each in buffers):
            which = "its buffer is" if len(buffers) == 1 else f"all its {len(buffers)} buffers are"
            return "in use", f"requested again while {which} in use"
        if self._in_use:
            return "unplanned overlap", f"its memory is in use by {self._holders()}"
        return "offloaded", "the pool is offloaded, or a caller holds its memory; restore the pool first"

    def _instead(self, comm: Any, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        unit, role = comm.name, comm.role
        if numel == 0:
            empty: torch.Tensor = comm.plain.allocate((0,), dtype=dtype, device=device)
            return empty
        reason, detail = self._cannot(unit, role, numel, dtype, device)
        what = "all-gather output" if role == "param" else "reduce-scatter input"
        if self.on_mismatch == "error":
            raise Unplanned(
                f"{unit}: the {what} is not as planned: {detail}; record a step of this kind with "
                "bucketpool.torch.fsdp2.record() and attach() with all recordings, or attach() with "
                "on_mismatch=\"replan\", which plans anew between steps"
            )
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1
        memory: torch.Tensor = comm.plain.allocate((numel, ), dtype=dtype, device=device)
        if reason in _NOT_OF_THE_PLAN or not self._replanner.recording:
            return memory
        self._replanner.differs(f"{unit}, {what}: {detail}")
        buffer, tensor = self.track(memory, self._replanner.released)
        self._replanner.asked(buffer, unit, role, phase_of(role), numel, dtype)
        return tensor

    def _ended(self, buffer: _Planned) -> None:
        """Called at the end of the storage, on any thread, so the next call raises errors."""
        acquired_on = buffer.stream
        assert acquired_on is not None
        try:
            # At the end of backward only the current stream is ordered after the uses; after a copy-out both are.
            last = self._streams.only or self._streams.current()
            if last is not acquired_on:
                if buffer.apart and phase_of(buffer.slot.role) == "forward":
                    last = acquired_on
                else:
                    buffer.request.use(last)
            if self.poison:
                self._fill(buffer, last)
            buffer.request.release(acquired_on)
        except Exception as error:
            self._failure = error
        self._log((buffer,))
        del self._in_use[buffer.begin]
        buffer.apart, buffer.stream = False, None

    def _communicates(self, buffer: Buffer) -> None:
        # FSDP2 orders the allocation stream after all uses of a buffer, if its collective is on another stream (noted
        # here), and backward's current stream. With both on one stream (async_op, unshard() by hand), the copy-out may
        # be on a third one, where the reference is dropped; then _ended() makes reuse wait for that stream, too.
        if isinstance(buffer, _Planned):
            buffer.apart = buffer.apart or self._streams.current() is not buffer.stream

    def _fill(self, buffer: _Planned, stream: Stream) -> None:
        if self.torch_device.type == "cpu":
            ctypes.memset(buffer.begin, 0xFF, buffer.bytes)
        else:
            call(core().bp_stream_fill, stream.handle, buffer.begin, 0xFF, buffer.bytes)

    # ---- for the caller -------------------------------------------------------------------------------------------

    def live(self) -> List[Slot]:
        """The buffers that FSDP2 uses now; [] between steps."""
        return [buffer.slot for buffer in list(self._in_use.values()) if isinstance(buffer, _Planned)]

    def register(self, kind: str = "symmetric") -> Registration:
        """Registers the pool with the NCCL communicators of the module's process groups. Collective.

        Call it once, between steps, after the first collective has created the communicators. kind: "buffer",
        "window" or "symmetric"; the returned Registration reports what NCCL granted. detach() undoes it. The pool is
        not planned anew afterwards, because ranks would have to do it together.

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

        Run a few steps eagerly first, so that streams are imported and gradients exist. The pool is not planned anew
        afterwards, because graphs hold its addresses. Raises as bucketpool.Capture.
        """
        return GraphCapture(self.pool, self._streams, stream, name)

    def memory(self) -> Memory:
        """Bytes of the pool, and of PyTorch's allocator on its GPU, which does not count the pool."""
        return memory(self.pool)

    def report(self) -> str:
        """The plan, the memory of the pool and the served buffers as text, one line each; also after detach()."""
        statistics = self._final or self.pool.statistics
        lines = [f"plan: policy {self.plan.policy}, {self.plan.bytes} bytes, at least {self.plan.lower_bound_bytes}",
                 f"pool: {statistics.slab_bytes} bytes allocated, {statistics.peak_live_bytes} peak live bytes",
                 f"served: {self.served['param']} all-gather outputs, {self.served['grad']} reduce-scatter inputs"]
        lines += [f"plain memory instead: {count} times, {reason}" for reason, count in sorted(self.fallbacks.items())]
        lines += [f"planned anew: {reason}" for reason in self.replans]
        return "\n".join(lines)

    def detach(self) -> None:
        """Restores the module's communication objects and frees the pool. Call it between steps; may be repeated.

        Raises ScheduleError while FSDP2 uses buffers. After everything is freed, raises the error of the last
        release, if any (guard mode: written past the end).
        """
        if self.pool.closed:
            return
        live = self.live()
        if live:
            slot = live[0]
            raise ScheduleError(
                f"detach: {len(live)} buffers are in use, among them {slot.bucket} of {slot.unit}; "
                "detach between steps"
            )
        self._uninstall()
        if self.registration is not None:
            self.registration.close()
        self._streams.close()
        self._final = self.pool.statistics
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
            if self.live():  # the exception's traceback may hold buffers
                return
        self.detach()


Timelines = Union[Timeline, Sequence[Timeline], None]


def _timelines_of(module: nn.Module, timelines: Timelines, phases: bool, any_version: bool) -> List[Timeline]:
    if timelines is None:
        first, later = predict(module, any_version), predict(module, any_version, first=False)
        timelines = [first] if later.events in (first.events, []) else [first, later]
    elif isinstance(timelines, Timeline):
        timelines = [timelines]
    for each in list_of(timelines, "timelines"):
        if not isinstance(each, Timeline):
            raise InvalidArgument(f"timelines: expected a Timeline, got {shown(each)}")
    return [each if phases else each.without_phases() for each in timelines]


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
    optional(name, "name")
    return Planned(name or _name(module), _timelines_of(module, timelines, phases, any_version))


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
           work: int = 0, on_mismatch: str = "replan", poison: bool = False, device: Optional[Device] = None,
           name: Optional[str] = None, phases: Optional[bool] = None, any_version: bool = False,
           **pool_options: Any) -> Attachment:
    """Plans the communication buffers of a fully_shard'ed module, creates a pool and attaches it. Between steps.

    - module: the root, on its device
    - timelines: of record(); None: predict() from the settings of the module
    - policy: "scheduled", "max", "fixed", or "dynamic" (no pool: stream-ordered allocation of every buffer)
    - plan: a Plan or its file, with these buckets, instead of planning
    - phases: as in plan_of; None: by policy
    - joint: one slab for all-gathers and reduce-scatters ("scheduled")
    - on_mismatch: for a buffer that is not as planned. "plain": plain memory, counted in `fallbacks`; "replan": the
      same, and a new plan and pool before the next pass, unless a graph, a communicator or an Offload knows the
      addresses; "error": raises Unplanned
    - poison: fill released buffers with NaN, for tests
    - device: a device of the library; None: a new one for the module's device
    - any_version: also with a PyTorch that has not been checked; compare losses with and without the pool then
    - alignment, work: as in Plan; pool_options: as in Pool (guard, fingerprint, ...)

    Call detach() on the result. Raises InvalidArgument (not sharded, a second pool, an unknown dtype), Mismatch
    (another device; a plan of other buckets, unless on_mismatch is "replan"), Unsupported (an unchecked version of
    PyTorch), Infeasible, and as Plan and Pool.
    """
    check_options(attach, pool_options)
    if on_mismatch not in ("replan", "plain", "error"):
        raise InvalidArgument(f"on_mismatch: {on_mismatch!r}; use \"replan\", \"plain\" or \"error\"")
    groups = groups_of(module, any_version)
    if plan is not None:
        plan = plan if isinstance(plan, Plan) else Plan.read(plan)
        policy = plan.policy
    if phases is None:
        phases = policy in ("scheduled", "dynamic")
    timelines = _timelines_of(module, timelines, phases, any_version)
    names = [group.name for group in groups]
    for each in timelines:
        if each.units != names:
            raise Mismatch(f"recording: it has units {each.units}, the module has {names}; record the module that the "
                           "pool is for")
    replanner = Replanner(name or _name(module), names, _device(device, groups[0].device),
                          {"policy": policy, "alignment": alignment, "joint": joint and policy == "scheduled",
                           "work": work}, pool_options, phases, recording=on_mismatch == "replan")
    replanner.start(timelines, plan)
    return Attachment(module, groups, replanner, on_mismatch, poison)
