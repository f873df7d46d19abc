# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP v2 (megatron_fsdp.experimental): unsharded parameters and partial gradients from a pool.

v2 has two places that allocate: DBuffer.reallocate_storage() of the unsharded parameters of a group, released by
release_storage(), and allocate_partial_grad_buffer(), the input of the reduce-scatter, dropped after it. Autograd saves
views of the parameters, so their storage must stay the same object. With a pool it has one address as long as the pool
is attached, and the two calls acquire and release it.
"""

import functools
import inspect
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import nn

from ...device import Device
from ...errors import InvalidArgument, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool, Prepared, check_options
from ..accounting import Memory, memory
from ..memory import device_for, tensors_of, tracked, with_index
from ..replanner import Replanner
from ..streams import Streams
from ..timeline import Size, Slot, phase_of

__all__ = ["Attachment", "attach"]


class _Gradient:
    """A planned input of a group's reduce-scatter."""

    def __init__(self, slot: Slot, size: Size, request: Prepared, device: torch.device,
                 ended: Callable[["_Gradient"], None]) -> None:
        self.slot, self.size, self.request = slot, size, request
        self.stream: Any = None  # of its acquire
        self.tensor = tensors_of(request, size.dtype, device, functools.partial(ended, self))


class _Group:
    """A parameter group of v2 with its two places."""

    def __init__(self, name: str, group: Any) -> None:
        for attribute in ("_unsharded_model_weight", "allocate_partial_grad_buffer", "requires_grad"):
            if not hasattr(group, attribute):
                raise Unsupported(f"{name}: {type(group).__name__} has no {attribute}, which this adapter replaces; use "
                                  "the experimental package of megatron-fsdp 0.6.1, or a newer version of this one")
        if getattr(group, "_symm_mem_pool", None) is not None:
            raise Unsupported(f"{name}: PyTorch owns its buffers, in symmetric memory; leave use_symm_mem out, and "
                              "register the pool instead")
        self.name, self.group, self.weight = name, group, group._unsharded_model_weight
        self.plain = self.weight.local_buffer  # PyTorch's memory, resized to 0 while it is not in use
        self.numel, self.dtype = self.plain.numel(), self.plain.dtype
        self.param: Optional[Prepared] = None
        self.grads: List[_Gradient] = []
        self.stream: Any = None  # of the acquired parameters
        self.in_use = False
        self.like: Any = None  # a partial gradient buffer, without its memory

    @property
    def parameters(self) -> List[torch.Tensor]:
        """The unsharded parameters, in the order of the buffer."""
        if hasattr(self.group, "fsdp_parameters"):
            return [each.unsharded for each in self.group.fsdp_parameters]
        return list(self.group.unsharded_parameters)

    def use(self, memory: torch.Tensor) -> None:
        """Makes this the memory of the parameters. No view may be saved."""
        self.weight.local_buffer = memory
        for index, parameter in enumerate(self.parameters):
            parameter.data = self.weight.get_local_tensor(index)


class Attachment:
    """A module of Megatron-FSDP v2 whose buffers come from a pool, from attach() until detach().

    The first pass (a microbatch with its backward) has PyTorch's memory and is recorded; the pool is planned and
    created before the second. A pass that needs more than planned takes PyTorch's memory for its gradients and is
    planned, too; parameters whose memory is in use raise ScheduleError, because saved tensors cannot move.

    Attributes: plan, pool (None before the second pass); served, by role; plain, number of buffers that PyTorch
    allocated; replans, why the pool was planned anew.
    """

    def __init__(self, module: nn.Module, policy: str, device: Optional[Device], name: Optional[str],
                 pool_options: Dict[str, Any]) -> None:
        self.module = module
        self.groups = _groups_of(module)
        self.torch_device = with_index(self.groups[0].plain.device)
        self.device = device_for(self.torch_device) if device is None else device
        self._replanner = Replanner(name or type(module).__name__, [each.name for each in self.groups], self.device,
                                    {"policy": policy, "joint": policy == "scheduled"}, pool_options)
        self.served: Dict[str, int] = {"param": 0, "grad": 0}
        self.plain = 0
        self.replans = self._replanner.replans
        self._streams = Streams(self.device, self.torch_device)
        self._live = 0
        self._failure: Optional[Exception] = None
        for group in self.groups:
            group.weight.reallocate_storage = functools.partial(self._reallocate, group)
            group.weight.release_storage = functools.partial(self._release, group)
            group.group.allocate_partial_grad_buffer = functools.partial(
                self._partial, group, type(group.group).allocate_partial_grad_buffer)

    @property
    def plan(self) -> Optional[Plan]:
        return self._replanner.plan

    @property
    def pool(self) -> Optional[Pool]:
        return self._replanner.pool

    # ---- parameters ------------------------------------------------------------------------------------------------

    def _reallocate(self, group: _Group) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._live == 0 and self._replanner.begins(group.name, phase_of("param")):
            self._replanner.next_pass(self._take, self._leave)
        if group.param is None:
            self._resize(group, group.numel)
            self.plain += self.pool is not None
            self._replanner.differs(f"{group.name}: its parameters are not in the plan")
        else:
            group.stream = self._streams.current()
            if group.param.try_acquire(group.stream) is None:
                raise ScheduleError(f"{group.name}: the planned memory of its parameters is in use, and autograd may "
                                    "have saved views of it, so they cannot move; detach(), and attach() for this order")
            self._streams.settle(group.stream)
            self.served["param"] += 1
        group.in_use = True
        self._live += 1
        self._replanner.asked(group, group.name, "param", "", group.numel, group.dtype)

    def _release(self, group: _Group) -> None:
        if not group.in_use:
            return
        if group.param is None:
            self._resize(group, 0)
        else:
            stream = self._streams.current()
            if stream is not group.stream:
                group.param.use(stream)
            group.param.release(group.stream)
        group.in_use = False
        self._live -= 1
        self._replanner.released(group)

    @staticmethod
    def _resize(group: _Group, numel: int) -> None:
        group.plain.untyped_storage().resize_(numel * group.plain.element_size())

    # ---- gradients -------------------------------------------------------------------------------------------------

    def _partial(self, group: _Group, original: Callable[[Any], Any]) -> Any:
        """The input of a reduce-scatter, released at the end of its storage, on the stream of its allocation, as memory
        of PyTorch is.
        """
        gradients = [parameter.grad for parameter in group.parameters]
        if group.like is not None and all(gradient is not None for gradient in gradients):
            served = self._served_grad(group, gradients[0].dtype)  # type: ignore[union-attr]
            if served is not None:
                return served
        made = original(group.group)  # raises its error where a gradient is missing
        group.like = made.mesh, made.placements, tuple(made.layout.tensor_shapes)
        self._replanner.differs(f"{group.name}: its gradients are not as planned")
        return self._tracked(group, made)

    def _served_grad(self, group: _Group, dtype: torch.dtype) -> Any:
        for each in group.grads:
            if each.size.dtype != dtype or each.size.numel < group.numel:
                continue
            stream = self._streams.current()
            tensor = each.tensor(stream, group.numel)
            if tensor is not None:
                self._streams.settle(stream)
                each.stream = stream
                self.served["grad"] += 1
                self._live += 1
                self._replanner.asked(each, group.name, "grad", "", group.numel, dtype)
                return self._dbuffer(group, tensor)
        return None

    def _tracked(self, group: _Group, made: Any) -> Any:
        """A buffer in PyTorch's memory, whose end is noted."""
        self.plain += self.pool is not None
        self._live += 1
        token, memory = object(), made.local_buffer
        self._replanner.asked(token, group.name, "grad", "", memory.numel(), memory.dtype)

        def ended() -> None:
            self._live -= 1
            self._replanner.released(token)

        return self._dbuffer(group, tracked(memory, ended), made)

    @staticmethod
    def _dbuffer(group: _Group, memory: torch.Tensor, made: Any = None) -> Any:
        kind = type(group.weight)
        if made is not None:
            made.local_buffer = memory
            return made
        mesh, placements, shapes = group.like
        named = {}
        if "allocation_stream" in inspect.signature(kind.from_local).parameters:
            named["allocation_stream"] = torch.cuda.current_stream(memory.device) if memory.is_cuda else None
        return kind.from_local(memory, mesh, placements, shapes, **named)

    def _ended(self, gradient: _Gradient) -> None:
        """Called at the end of the storage, on any thread, so the next call raises errors."""
        self._live -= 1
        self._replanner.released(gradient)
        try:
            gradient.request.release(gradient.stream)
        except Exception as error:
            self._failure = error

    # ---- plans -----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        planned, _, pool = self._replanner.current
        by_name = {group.name: group for group in self.groups}
        for request, slot in enumerate(planned.slots):
            group, prepared = by_name[slot.unit], Prepared(pool, request)
            if slot.role == "grad":
                group.grads.append(_Gradient(slot, planned.sizes[slot], prepared, self.torch_device, self._ended))
                continue
            view, = pool.acquire([request], self._streams.current())
            group.param = prepared
            group.use(view._new_tensor(group.dtype, wait=True)[:group.numel])
            view.release()

    def _leave(self) -> None:
        """Parameters get PyTorch's memory again."""
        for group in self.groups:
            if group.param is not None:
                self._resize(group, group.numel)  # views need it
                group.use(group.plain)
                self._resize(group, 0)
            group.param, group.grads = None, []

    # ---- for the caller --------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """Bytes of the pool, and of PyTorch's allocator on its GPU, which does not count the pool."""
        return memory([] if self.pool is None else self.pool)

    def detach(self) -> None:
        """Restores v2's own memory and closes the pool. Call it between steps; may be repeated. Raises ScheduleError
        while buffers are in use.
        """
        if self._live:
            raise ScheduleError(f"detach: {self._live} buffers are in use; detach between steps")
        for group in self.groups:
            for owner, name in ((group.weight, "reallocate_storage"), (group.weight, "release_storage"),
                                (group.group, "allocate_partial_grad_buffer")):
                owner.__dict__.pop(name, None)
        self._leave()
        self._replanner.close()
        self._streams.close()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is None or not self._live:
            self.detach()


def _groups_of(module: nn.Module) -> List[_Group]:
    groups = []
    for name, part in module.named_modules():
        found = getattr(part, "_parameter_groups", None)
        if found is None or not hasattr(part, "_unshard_parameter_groups"):
            continue
        for index, group in enumerate(found):
            label = (name or "(root)") + (f"[{index}]" if len(found) > 1 else "")
            if group._unsharded_model_weight.local_buffer.numel():
                groups.append(_Group(label, group))
    if not groups:
        raise InvalidArgument(f"{type(module).__name__}: it is not sharded; call megatron_fsdp.experimental.fully_shard "
                              "on its parts and on it first")
    for each in groups:
        if "reallocate_storage" in each.weight.__dict__:
            raise InvalidArgument(f"{each.name}: it has a pool; detach() it first")
        if each.plain.device != groups[0].plain.device:
            raise InvalidArgument(f"{each.name}: on {each.plain.device}, {groups[0].name} on {groups[0].plain.device}; "
                                  "a pool has memory of one device")
    return groups


def attach(module: nn.Module, *, policy: str = "scheduled", device: Optional[Device] = None, name: Optional[str] = None,
           **pool_options: Any) -> Attachment:
    """Serves the buffers of a module of Megatron-FSDP v2 from a pool, from its second pass on. Between steps.

    - module: the outermost module of megatron_fsdp.experimental.fully_shard
    - policy: "scheduled", "max" or "fixed"
    - device: a device of the library; None: a new one for the module's device
    - pool_options: as in Pool (guard, fingerprint, ...)

    Raises InvalidArgument (not sharded, a second pool, several devices), Unsupported (symmetric memory, another version
    of v2).
    """
    check_options(attach, pool_options)
    if policy not in ("scheduled", "max", "fixed"):
        raise InvalidArgument(f"policy {policy!r}: its requests have no fixed address; use \"scheduled\", \"max\" or "
                              "\"fixed\"")
    return Attachment(module, policy, device, name, pool_options)
