# SPDX-License-Identifier: Apache-2.0
"""Attachments: a ZeRO-3 engine whose communication buffers come from a pool.

DeepSpeed's functions run unchanged, inside a TorchFunctionMode that replaces the memory of torch.empty and torch.cat.
"""

import contextlib
import functools
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ...device import Device, Stream
from ...errors import Infeasible, InvalidArgument, NoDeviceMemory, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool, Prepared, check_options
from ..accounting import Memory, memory
from ..fsdp2.attachment import Unplanned
from ..memory import device_for, tensor_at, with_index
from ..streams import Streams
from ..timeline import Planned
from .passes import Buffer, Passes, Request, place_of

KNOWN_VERSIONS = ("0.19", )
_MAX_REPLANS = 16  # an engine that differs after that keeps its plan
_MAX_RECORDED = 8  # passes before the first plan
_STAGE3 = "_DeepSpeedZeroOptimizer_Stage3__"
_ADD, _REDUCE, _SCATTER = (_STAGE3 + name for name in ("add_grad_to_ipg_bucket", "reduce_and_partition_ipg_grads",
                                                       "avg_scatter_grads"))


class _Instead(TorchFunctionMode):
    """Calls `replacement` instead of a function of PyTorch, on this thread."""

    def __init__(self, function: Any, replacement: Callable[..., Any]) -> None:
        super().__init__()
        self._function, self._replacement = function, replacement

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._replacement if func == self._function else func)(*args, **(kwargs or {}))


class _Handle:
    """All-gathers in flight; DeepSpeed waits once for each parameter."""

    def __init__(self, waits: List[Callable[..., None]]) -> None:
        self._waits = waits

    def wait(self, *arguments: Any, **named: Any) -> None:
        for each in self._waits:
            each(*arguments, **named)


class Attachment:
    """An engine of DeepSpeed whose communication buffers come from a pool, from attach() until detach().

    Passes (a forward, with its backward if it has one) have PyTorch's memory and are recorded, until one follows the
    complete trace of DeepSpeed; the pool is planned and created before the next. A buffer that is not in the plan, or
    whose planned memory is in use, gets PyTorch's memory.

    Attributes:

    - plan, pool: None while passes are recorded
    - served: number of served buffers by role
    - plain: number of buffers that PyTorch allocated instead, since there is a pool
    - replans: why the pool was planned anew, for each time
    - peak_bytes: peak live bytes of the recorded passes: no pool takes less
    """

    def __init__(self, engine: Any, optimizer: Any, coordinator: Any, on_mismatch: str,
                 device: Optional[Device], name: Optional[str], pool_options: Dict[str, Any]) -> None:
        self.engine, self.on_mismatch = engine, on_mismatch
        self._optimizer, self._coordinator = optimizer, coordinator
        self._options = pool_options
        self._name = name or type(engine.module).__name__
        self._names = {id(each): label for label, each in engine.module.named_parameters()}
        self.torch_device = with_index(torch.device(engine.device))
        self.device = device_for(self.torch_device) if device is None else device
        self.plan: Optional[Plan] = None
        self.pool: Optional[Pool] = None
        self.served: Dict[str, int] = {"param": 0, "grad": 0}
        self.plain = 0
        self.replans: List[str] = []
        self._streams = Streams(self.device, self.torch_device)
        self._passes = Passes()
        self._recorded = 0  # passes before the plan
        self._requests: Dict[Tuple[str, str], List[Request]] = {}
        self._failure: Optional[Exception] = None
        self._in_use: Set[Buffer] = set()
        self._outputs: Set[Buffer] = set()  # of all-gathers that nobody has waited for
        self._collecting: Dict[torch.dtype, Buffer] = {}
        self._inputs: List[Buffer] = []  # of the reduce-scatter that runs
        self._differs = ""  # the first buffer of this pass that was not as planned, and why
        self._persistent = False  # this pass gathered persistent parameters, as the first ones do
        self._replaced: List[Tuple[Any, str, Any]] = []
        for parameter in engine.module.parameters():
            if hasattr(parameter, "all_gather_coalesced"):
                self._replace(parameter, "all_gather_coalesced", self._gather)
        self._replace(coordinator, "reset_step", self._reset)
        if optimizer is not None:
            self._replace(optimizer, _REDUCE, self._reduce)
            self._replace(optimizer, _SCATTER, self._scatter)
            if optimizer.contiguous_gradients:
                self._replace(optimizer, _ADD, self._add)

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        before = owner.__dict__.get(name)  # None: a method of the class
        setattr(owner, name, functools.partial(function, getattr(owner, name)))
        self._replaced.append((owner, name, before))

    # ---- buffers ---------------------------------------------------------------------------------------------------

    def _begin(self, unit: str, role: str, numel: int, dtype: torch.dtype, stream: Optional[Stream] = None) -> Buffer:
        """A buffer, with a request of the pool if there is one for it."""
        buffer = self._passes.buffer(unit, role, numel, dtype)
        if self.pool is not None:
            why, known = "it is not in the plan", self._requests.get((unit, role), [])
            for request in sorted(known, key=lambda each: self._passes.preference(each, buffer)):
                if request.size.dtype != dtype or request.size.numel < numel:
                    why = f"{numel} elements of {dtype}, planned {request.size.numel} of {request.size.dtype}"
                    continue
                stream = stream or self._streams.current()
                address = None if request.busy else request.prepared.try_acquire(stream)
                if address is not None:
                    self._streams.settle(stream)
                    request.busy, buffer.request, buffer.stream, buffer.address = True, request, stream, address
                    self.served[role] += 1
                    self._passes.current = request.of_pass
                    break
                why = "its planned memory is in use"
            else:
                self._unplanned(unit, role, why)
        self._in_use.add(buffer)
        self._passes.begin(buffer)
        return buffer

    def _unplanned(self, unit: str, role: str, why: str) -> None:
        what = f"{unit}, {'parameters' if role == 'param' else 'gradients'}: {why}"
        if self.on_mismatch == "error":
            raise Unplanned(f"{what}; attach() after a few steps of each kind, or with on_mismatch=\"replan\", which "
                            "plans anew between passes")
        self.plain += 1
        self._differs = self._differs or what

    def _end(self, buffer: Buffer, last: Optional[Stream] = None) -> None:
        """The end of a buffer, on any thread, so the next call raises errors. last: the stream that used it last; None:
        the current one.
        """
        if buffer not in self._in_use:
            return
        request, stream = buffer.request, buffer.stream
        if request is not None and stream is not None:
            try:
                last = last or self._streams.current()
                if last is not stream:
                    request.prepared.use(last)
                request.prepared.release(stream)
            except Exception as error:
                self._failure = error
            request.busy = False
        self._passes.end(buffer)
        self._in_use.discard(buffer)

    def _memory(self, buffer: Buffer, plain: Callable[[], torch.Tensor], numel: Optional[int] = None) -> torch.Tensor:
        """A tensor over the memory of a buffer, whose end is noted by the caller."""
        if buffer.request is None:
            return plain()
        return tensor_at(buffer.address, numel or buffer.numel, buffer.dtype, self.torch_device)

    def _until_freed(self, buffer: Buffer, memory: torch.Tensor) -> torch.Tensor:
        """A tensor over the memory of a buffer, which ends with its storage: autograd may have saved views."""

        def ended(plain: Optional[torch.Tensor] = memory if buffer.request is None else None) -> None:
            if plain is not None and plain.is_cuda:  # DeepSpeed does so for the tensor that it has
                plain.record_stream(torch.cuda.current_stream(plain.device))
            self._end(buffer)

        return tensor_at(memory.data_ptr(), buffer.numel, buffer.dtype, self.torch_device, ended)

    def _label(self, parameters: List[Any]) -> str:
        first, last = self._names[id(parameters[0])], self._names[id(parameters[-1])]
        return first if len(parameters) == 1 else f"{first} to {last} ({len(parameters)})"

    # ---- parameters ------------------------------------------------------------------------------------------------

    def _gather(self, original: Callable[..., Any], parameters: Any, *arguments: Any, **named: Any) -> _Handle:
        """all_gather_coalesced(), called for each process group and dtype, which DeepSpeed gathers apart too."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        apart: Dict[Any, List[Any]] = {}
        for each in sorted(parameters, key=lambda parameter: parameter.ds_id):
            apart.setdefault((id(each.ds_process_group), each.ds_tensor.dtype), []).append(each)
        waits: List[Callable[..., None]] = []
        for together in apart.values():
            self._persistent = self._persistent or any(each.ds_persist for each in together)
            alone = len(together) == 1 or self.engine.zero_allgather_sequential()
            outputs: List[Optional[Buffer]] = []
            with _Instead(torch.empty, functools.partial(self._output, together, alone, outputs)):
                handle = original(together, *arguments, **named)
            waits.append(handle.wait)
            for parameter, buffer in zip(together, outputs):
                if buffer is None:
                    continue
                if alone:  # gloo's threads have the tensor of the collective, not this one
                    whole = self._until_freed(buffer, parameter.data)
                    parameter.data = whole[:parameter.ds_numel].view(parameter.ds_shape)
                else:
                    self._outputs.add(buffer)
                    waits[-1] = functools.partial(self._wait, handle.handles[0], buffer)
        return _Handle(waits)

    def _output(self, together: List[Any], alone: bool, outputs: List[Optional[Buffer]], numel: int, *,
                dtype: torch.dtype, **named: Any) -> torch.Tensor:
        """torch.empty() of an all-gather's output."""
        plain = functools.partial(torch.empty, numel, dtype=dtype, **named)
        of = [together[len(outputs)]] if alone else together
        if alone and of[0].ds_persist:  # it stays gathered
            outputs.append(None)
            return plain()
        buffer = self._begin(self._label(of), "param", numel, dtype)
        outputs.append(buffer)
        return self._memory(buffer, plain)

    def _wait(self, handle: Any, output: Buffer, *arguments: Any, **named: Any) -> None:
        """Waits for an all-gather of several parameters, copies them out, and ends its output, which DeepSpeed keeps
        until it has waited for each of them.
        """
        if handle.complete:
            return
        parameters = iter(handle.params)
        with _Instead(torch.cat, lambda parts: self._copied(next(parameters), parts)):
            handle.wait(*arguments, **named)
        handle.partitions = handle.allgather_handle = None
        self._outputs.discard(output)
        self._end(output)

    def _copied(self, parameter: Any, parts: List[torch.Tensor]) -> torch.Tensor:
        """torch.cat() of the parts of a parameter."""
        if parameter.ds_persist:
            return torch.cat(parts)
        numel, dtype = sum(each.numel() for each in parts), parts[0].dtype
        buffer = self._begin(self._label([parameter]), "param", numel, dtype)
        plain = functools.partial(torch.empty, numel, dtype=dtype, device=self.torch_device)
        return torch.cat(parts, out=self._until_freed(buffer, self._memory(buffer, plain)))

    # ---- gradients -------------------------------------------------------------------------------------------------

    @property
    def _reduce_stream(self) -> Optional[Stream]:
        """The stream of DeepSpeed's reductions; None: the current one."""
        stream = self._optimizer.reduce_and_partition_stream
        return self._streams.imported(stream) if self.torch_device.type == "cuda" else None

    def _bucket_memory(self, dtype: torch.dtype) -> torch.Tensor:
        """The memory that DeepSpeed gives a bucket."""
        stream = self._optimizer.reduce_and_partition_stream
        with torch.cuda.stream(stream) if self.torch_device.type == "cuda" else contextlib.nullcontext():
            return torch.empty(self._optimizer.reduce_bucket_size, dtype=dtype, device=self.torch_device)

    def _add(self, original: Callable[..., Any], parameter: Any) -> None:
        """Adds a gradient to its bucket, whose memory is as large as the gradients planned for it."""
        dtype = self._optimizer.get_param_comm_dtype(parameter)
        bucket, numel = self._optimizer.ipg_buckets[dtype], parameter.grad.numel()
        whole = functools.partial(self._bucket_memory, dtype)
        self._end_stale()
        if bucket.elements + numel <= self._optimizer.reduce_bucket_size:
            unit = self._label([parameter])
            if not bucket.params:
                self._collecting[dtype] = buffer = self._begin(unit, "grad", numel, dtype, self._reduce_stream)
                if self.pool is not None:
                    planned = buffer.request.size.numel if buffer.request is not None else None
                    bucket.buffer = self._memory(buffer, whole, planned)
            elif bucket.elements + numel > bucket.buffer.numel():
                self._unplanned(unit, "grad", f"one more than the {bucket.buffer.numel()} planned elements in a bucket")
                bucket.buffer = whole()  # the gradients before stay in the planned memory
        original(parameter)

    def _end_stale(self) -> None:
        """Ends buffers whose gradients DeepSpeed has dropped, after a backward that raised."""
        for dtype in [each for each in self._collecting if not self._optimizer.ipg_buckets[each].params]:
            buffer = self._collecting.pop(dtype)
            self._end(buffer, buffer.stream)

    def _reduce(self, original: Callable[..., Any], dtype: torch.dtype) -> None:
        """Reduces the gradients of a bucket. Then DeepSpeed would write others into its memory."""
        bucket, buffer = self._optimizer.ipg_buckets[dtype], self._collecting.pop(dtype, None)
        if buffer is not None:
            buffer.numel = bucket.elements
        original(dtype)
        for each in [*self._inputs, *([] if buffer is None else [buffer])]:
            self._end(each, each.stream)
        self._inputs.clear()
        if self.pool is not None:
            bucket.buffer = None

    def _scatter(self, original: Callable[..., Any], parameters: List[Any], *arguments: Any) -> Any:
        with _Instead(torch.cat, functools.partial(self._input, self._label(parameters))):
            return original(parameters, *arguments)

    def _input(self, unit: str, parts: List[torch.Tensor]) -> torch.Tensor:
        """torch.cat() of the input of a reduce-scatter."""
        numel, dtype = sum(each.numel() for each in parts), parts[0].dtype
        buffer = self._begin(unit, "grad", numel, dtype)
        self._inputs.append(buffer)
        plain = functools.partial(torch.empty, numel, dtype=dtype, device=self.torch_device)
        return torch.cat(parts, out=self._memory(buffer, plain))

    # ---- passes and plans ------------------------------------------------------------------------------------------

    def _reset(self, original: Callable[..., Any]) -> None:
        """The begin of a forward, before which DeepSpeed waits for all-gathers in flight."""
        complete = self._coordinator.is_complete_trace()
        original()
        for each in list(self._outputs):  # of a forward that raised
            self._end(each)
        self._outputs.clear()
        self._end_stale()
        if self._in_use:
            self._passes.overflow()
        else:
            self._next_pass(complete)

    def _next_pass(self, complete: bool) -> None:
        if self.pool is None and self._passes:
            # DeepSpeed gathers persistent parameters with others in its first passes, and evaluation may end early.
            self._recorded += 1
            settled = complete and not self._persistent and (self._passes.gradients or self._optimizer is None)
            if settled or self._recorded == _MAX_RECORDED:
                self._passes.record()
                self._take(*self._planned())
        elif self._differs and self.on_mismatch == "replan" and len(self.replans) < _MAX_REPLANS:
            self._replan()
        self._passes.next(torch.is_grad_enabled())
        self._differs, self._persistent = "", False

    def _planned(self) -> Tuple[Planned, Plan]:
        planned = self._passes.planned(self._name)
        plan = Plan(planned.buckets, planned.schedule, joint=True)
        if not plan.feasible:
            raise Infeasible(f"policy {plan.policy}: {plan.infeasible_because}")
        return planned, plan

    def _replan(self) -> None:
        """A plan with this pass, too, unless one like it is in the plan: then it began as another one."""
        assert self.pool is not None and self.plan is not None
        if self.pool.addresses_known or not self._passes.record():
            return
        self.replans.append(self._differs)
        try:
            new = self._planned()
        except (ScheduleError, Infeasible, InvalidArgument) as error:
            self._passes.forget()
            self.replans[-1] += f"; kept the plan: {error}"
            return
        old = self._plan_of_pool, self.plan
        self.pool.close()
        try:
            self._take(*new)
        except NoDeviceMemory as error:
            self._passes.forget()
            self._take(*old)
            self.replans[-1] += f"; kept the plan: {error}"

    def _take(self, planned: Planned, plan: Plan) -> None:
        """Serves from a new pool of this plan."""
        self.pool = pool = Pool(self.device, plan, name=self._name, **self._options)
        self.plan, self._plan_of_pool, self._requests = plan, planned, {}
        for id, slot in enumerate(planned.slots):
            unit, of_pass, use = place_of(slot)
            request = Request(of_pass, use, planned.sizes[slot], Prepared(pool, id))
            self._requests.setdefault((unit, slot.role), []).append(request)
        for bucket in self._buckets.values():
            bucket.buffer = None

    @property
    def _buckets(self) -> Dict[torch.dtype, Any]:
        """DeepSpeed's buckets of gradients with contiguous memory, by dtype."""
        contiguous = self._optimizer is not None and self._optimizer.contiguous_gradients
        return self._optimizer.ipg_buckets if contiguous else {}

    # ---- for the caller --------------------------------------------------------------------------------------------

    @property
    def peak_bytes(self) -> int:
        return self._passes.peak_bytes

    def memory(self) -> Memory:
        """Bytes of the pool, and of PyTorch's allocator on its GPU, which does not count the pool."""
        return memory([] if self.pool is None else self.pool)

    def detach(self) -> None:
        """Restores DeepSpeed's own memory and closes the pool. Call it between steps; may be repeated. Raises
        ScheduleError while buffers are in use: a forward without a step leaves all-gathers in flight.
        """
        if self._in_use:
            buffer = next(iter(self._in_use))
            raise ScheduleError(f"detach: {len(self._in_use)} buffers are in use, among them one of {buffer.unit}; "
                                "call engine.empty_partition_cache() between steps first")
        for owner, name, before in self._replaced:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        self._replaced.clear()
        if self.pool is not None:
            for dtype, bucket in self._buckets.items():
                bucket.buffer = self._bucket_memory(dtype)
            self.pool.close()
            self.pool = None
        self._streams.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is None or not self._in_use:
            self.detach()


def _refuse(engine: Any, optimizer: Any, any_version: bool) -> None:
    """Raises Unsupported for options that make DeepSpeed gather or reduce in another way."""
    import deepspeed

    version = deepspeed.__version__
    if not any_version and not version.startswith(tuple(f"{each}." for each in KNOWN_VERSIONS)):
        raise Unsupported(f"DeepSpeed {version}: tested with {' and '.join(KNOWN_VERSIONS)}; use one of these, or "
                          "any_version=True, and compare losses with and without the pool")
    missing = [name for name in (_ADD, _REDUCE, _SCATTER, "ipg_buckets", "get_param_comm_dtype")
               if optimizer is not None and not hasattr(optimizer, name)]
    if missing:
        raise Unsupported(f"DeepSpeed {version}: {type(optimizer).__name__} has no {missing[0]}; use DeepSpeed "
                          f"{KNOWN_VERSIONS[-1]}")
    config = engine._config.zero_config
    offload = config.offload_param
    refused = {
        "zero_quantized_weights": config.zero_quantized_weights,
        "zero_quantized_nontrainable_weights": config.zero_quantized_nontrainable_weights,
        "zero_quantized_gradients": config.zero_quantized_gradients,
        "zero_hpz_partition_size": config.zero_hpz_partition_size > 1,
        "stage3_use_all_reduce_for_fetch_params": config.use_all_reduce_for_fetch_params,
        "offload_param to nvme": offload is not None and offload.device == "nvme",
        "reduce_scatter: false": optimizer is not None and not config.reduce_scatter,
        "zenflow": config.zenflow is not None,
        "torch_autocast": engine.torch_autocast_enabled(),
        "deepcompile": engine.is_deepcompile_enabled(),
    }
    for option, given in refused.items():
        if given:
            raise Unsupported(f"{type(engine.module).__name__}: option {option} of DeepSpeed has other buffers; "
                              "train without it, or without a pool")


def attach(engine: Any, *, on_mismatch: str = "replan", device: Optional[Device] = None, name: Optional[str] = None,
           any_version: bool = False, **pool_options: Any) -> Attachment:
    """Serves the communication buffers of a ZeRO-3 engine from a pool, after its first passes. Between steps.

    - engine: of deepspeed.initialize(), with ZeRO stage 3, with or without an optimizer
    - on_mismatch: for a buffer that is not as planned. "plain": PyTorch's memory, counted in `plain`; "replan": the
      same, and a new plan and pool before the next pass; "error": raises Unplanned
    - device: a device of the library; None: a new one for the engine's device
    - any_version: also with a DeepSpeed that has not been checked
    - pool_options: as in Pool (guard, fingerprint, ...)

    Raises InvalidArgument (not ZeRO-3, a second pool), Unsupported (quantized or secondary partitions, offload of
    parameters to NVMe, ...; another version of DeepSpeed).
    """
    check_options(attach, pool_options)
    if on_mismatch not in ("replan", "plain", "error"):
        raise InvalidArgument(f"on_mismatch: {on_mismatch!r}; use \"replan\", \"plain\" or \"error\"")
    stage = engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else None
    if stage != 3:
        raise InvalidArgument(f"{type(engine).__name__}: ZeRO stage {stage}, which gathers no parameters; pass the "
                              "engine of deepspeed.initialize() with zero_optimization.stage 3")
    offload = getattr(engine.optimizer, "parameter_offload", None)
    optimizer = engine.optimizer if offload is not None else None  # without an optimizer: the offload itself
    _refuse(engine, optimizer, any_version)
    coordinator = (offload or engine.optimizer).get_param_coordinator()
    if "reset_step" in vars(coordinator):
        raise InvalidArgument(f"{type(engine.module).__name__}: it has a pool; detach() it first")
    return Attachment(engine, optimizer, coordinator, on_mismatch, device, name, pool_options)
