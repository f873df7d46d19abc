# SPDX-License-Identifier: Apache-2.0
"""The unsharded parameters of FSDP2 in a pool.

FSDP2 copies each all-gather out into one tensor for each parameter, `all_gather_outputs`. It allocates and frees them
by resizing their storages, because autograd saves views of them. The list is filled once; FSDP2 uses tensors that it
has already. So it gets tensors over the memory of a pool, whose untyped_storage() is an object that acquires and
releases where FSDP2 resizes. Nothing of PyTorch is replaced. docs/guides/fsdp2.md#unsharded-parameters has the limits.
"""

import functools
from typing import Any, Callable, Dict, List, Optional, Set

import torch
from torch import nn

from ...device import Device
from ...errors import Infeasible, InvalidArgument, ScheduleError, Unsupported
from ...plan import Plan
from ...pool import Pool, Prepared, check_options
from ..accounting import Memory, memory
from ..capture import follow
from ..memory import device_for, tensor_at
from ..streams import Streams
from ..timeline import Planned, Slot, Timeline
from .groups import Group, _field, groups_of
from .predict import predict

__all__ = ["Parameters", "attach_parameters"]

_ALIGNMENT = 256  # of each parameter in the memory of its group


class _Storage:
    """The storage of an output as FSDP2 sees it: full or empty."""

    __slots__ = ("bytes", "full", "begin", "end")

    def __init__(self, bytes: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self.bytes, self.full, self.begin, self.end = bytes, False, begin, end

    def size(self) -> int:
        return self.bytes if self.full else 0

    def resize_(self, bytes: int) -> None:
        (self.begin if bytes else self.end)()
        self.full = bytes > 0


class _Output(torch.Tensor):
    """An output over memory of a pool. What is computed from it is a plain tensor."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    storage_of_pool: _Storage

    def untyped_storage(self) -> Any:
        return self.storage_of_pool


class _Held:
    """The parameters of a group, in one request."""

    def __init__(self, group: Group) -> None:
        self.name, self.params = group.name, _field(group.handle, "fsdp_params")
        self.numels, self.dtypes, self.offsets = [], [], []
        self.bytes = 0
        for each in self.params:
            if any(isinstance(output, _Output) for output in _field(each, "all_gather_outputs")):
                raise InvalidArgument(f"{group.name}: its parameters are in a pool; detach() it first")
            if hasattr(_field(each, "_sharded_local_tensor"), "fsdp_pre_all_gather"):
                raise Unsupported(f"{group.name}: its parameters have all-gather extensions (float8), which allocate "
                                  "them; leave attach_parameters out")
            if _field(each, "is_dtensor"):
                raise Unsupported(f"{group.name}: its parameters are sharded by tensor parallelism, too; leave "
                                  "attach_parameters out")
            dtype = _field(each, "mp_policy").param_dtype or each.sharded_param.dtype
            self.numels.append(group.ranks * _field(each, "padded_sharded_param_size").numel())
            self.dtypes.append(dtype)
            self.offsets.append(self.bytes)
            self.bytes += -(-self.numels[-1] * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.request: Optional[Prepared] = None
        self.full = 0  # outputs
        self.stream: Any = None

    def use(self, outputs: List[List[torch.Tensor]]) -> None:
        """Makes FSDP2 copy gathers out into these tensors. Its parameters become views of them."""
        for each, tensors in zip(self.params, outputs):
            each.all_gather_outputs = tensors
            unsharded = getattr(each, "_unsharded_param", None)
            if unsharded is not None and tensors:
                unsharded.data = torch.as_strided(tensors[0], unsharded.size(), unsharded.stride(), 0)


class _Noting(Set[str]):
    """The set of unsharded groups of a prediction, as a timeline of their parameters."""

    def __init__(self, timeline: Timeline, bytes: Dict[str, int]) -> None:
        super().__init__()
        self.timeline, self.bytes = timeline, bytes
        self._slots: Dict[str, Slot] = {}

    def add(self, name: str) -> None:
        if name not in self and name in self.bytes:
            self._slots[name] = self.timeline.acquire(name, "param", "", self.bytes[name], torch.uint8)
        super().add(name)

    def discard(self, name: Any) -> None:
        if name in self._slots:
            self.timeline.release(self._slots.pop(name))
        super().discard(name)


class Parameters:
    """A module whose unsharded parameters are in a pool, from attach_parameters() until detach().

    Attributes: plan, pool; served, number of unshards of a group; peak_bytes, FSDP2's own peak, each parameter rounded.

    A group's parameters are acquired on the stream that copies them out, and released on the stream that reshards. They
    have one address, so views that autograd saved stay valid from forward to backward. Reading a parameter after its
    reshard finds other data, where plain FSDP2 raises an error.
    """

    def __init__(self, module: nn.Module, policy: str, device: Optional[Device], name: Optional[str], any_version: bool,
                 pool_options: Dict[str, Any]) -> None:
        groups = groups_of(module, any_version)
        self.torch_device = groups[0].device
        pooled = [each for each in groups if _field(each.handle, "reshard_after_backward")]
        self._held = [_Held(each) for each in pooled]
        for group in pooled:  # a forward may have left parameters gathered
            group.module.reshard()
        sizes = {each.name: each.bytes for each in self._held}
        timeline = Timeline([group.name for group in groups])
        predict(module, any_version, unsharded=_Noting(timeline, sizes))
        name = name or type(module).__name__.replace("FSDP", "", 1) + " parameters"
        planned = Planned(name, [timeline])
        self.plan = Plan(planned.buckets, planned.schedule, policy=policy)
        if not self.plan.feasible:
            raise Infeasible(f"policy {self.plan.policy}: {self.plan.infeasible_because}")
        self.peak_bytes = timeline.joint_peak_bytes
        self.served = 0
        self.device = device_for(self.torch_device) if device is None else device
        self._streams = Streams(self.device, self.torch_device)
        self.pool = Pool(self.device, self.plan, name=name, **pool_options)
        by_name = {each.name: each for each in self._held}
        for request, slot in enumerate(planned.slots):
            held = by_name[slot.unit]
            held.request = Prepared(self.pool, request)
            held.use(self._outputs(held, self.pool.address(request)[0]))
        follow(self._in_captures)

    def _in_captures(self) -> Any:
        return None if self.pool.closed else (self.pool, self._streams)

    def _outputs(self, held: _Held, address: int) -> List[List[torch.Tensor]]:
        made: List[List[torch.Tensor]] = []
        for numel, dtype, offset in zip(held.numels, held.dtypes, held.offsets):
            output = tensor_at(address + offset, numel, dtype, self.torch_device).as_subclass(_Output)
            output.storage_of_pool = _Storage(numel * dtype.itemsize, functools.partial(self._begin, held),
                                              functools.partial(self._end, held))
            made.append([output])
        return made

    def _begin(self, held: _Held) -> None:
        if held.full == 0:
            assert held.request is not None
            held.stream = self._streams.current()
            if held.request.try_acquire(held.stream) is None:
                raise ScheduleError(
                    f"{held.name}: the planned memory of its unsharded parameters is in use, because modules run in "
                    "another order than planned, and autograd may have views of them, so they cannot move; detach() "
                    "and train without attach_parameters"
                )
            self._streams.settle(held.stream)
            self.served += 1
        held.full += 1

    def _end(self, held: _Held) -> None:
        held.full -= 1
        if held.full == 0:
            assert held.request is not None
            stream = self._streams.current()
            if stream is not held.stream:
                held.request.use(stream)
            held.request.release(held.stream)

    def memory(self) -> Memory:
        """Bytes of the pool, and of PyTorch's allocator on its GPU, which does not count the pool."""
        return memory(self.pool)

    def detach(self) -> None:
        """Moves the parameters back into PyTorch's memory and closes the pool. Between steps; may be repeated. Raises
        ScheduleError while parameters are unsharded.
        """
        if self.pool.closed:
            return
        for held in self._held:
            if held.full:
                raise ScheduleError(f"detach: the parameters of {held.name} are unsharded; reshard() the module, or "
                                    "detach between steps")
        for held in self._held:
            outputs = [[torch.empty(numel, dtype=dtype, device=self.torch_device)]
                       for numel, dtype in zip(held.numels, held.dtypes)]
            held.use(outputs)
            for output, in outputs:
                output.untyped_storage().resize_(0)
        self._streams.close()
        self.pool.close()

    def __enter__(self) -> "Parameters":
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is None or not any(held.full for held in self._held):
            self.detach()


def attach_parameters(module: nn.Module, *, policy: str = "scheduled", device: Optional[Device] = None,
                      name: Optional[str] = None, any_version: bool = False, **pool_options: Any) -> Parameters:
    """Serves the unsharded parameters of a fully_shard'ed module from a pool. Between steps; with or without attach().

    - module: the root, on its device; its layers run once, in the order of registration (as predict())
    - policy: "scheduled", "max" or "fixed"
    - device, any_version, pool_options: as in attach()

    Groups that backward does not reshard keep PyTorch's memory. Raises as predict(); Unsupported (all-gather
    extensions, tensor parallelism), InvalidArgument (another policy, a second pool), Infeasible, and as Plan and Pool.
    """
    check_options(attach_parameters, pool_options)
    if policy not in ("scheduled", "max", "fixed"):
        raise InvalidArgument(f"policy {policy!r}: its requests have no fixed address; use \"scheduled\", \"max\" or "
                              "\"fixed\"")
    return Parameters(module, policy, device, name, any_version, pool_options)
