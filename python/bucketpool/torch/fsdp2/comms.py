"""Communication objects for FSDP2's modules: buffers from a source, collectives unchanged. Internal."""

import abc
import math
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ...errors import InvalidArgument, ScheduleError, Unsupported
from ..memory import call_at_end, tensor_at, tracked
from .groups import Group


class Buffer:
    """A served buffer while it is in use, and tensors over it for collectives."""

    __slots__ = ("begin", "end", "_aliases")

    def __init__(self, begin: int = 0, end: int = 0) -> None:
        self.begin, self.end = begin, end
        self._aliases: Dict[Any, torch.Tensor] = {}

    def moved(self, begin: int, bytes: int) -> None:
        """The buffer is at another address."""
        self.begin, self.end = begin, begin + bytes
        self._aliases.clear()

    def alias(self, address: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over the memory of a contiguous tensor at this address, that does not keep its storage."""
        key = (address, tensor.dtype, tensor.shape)
        alias = self._aliases.get(key)
        if alias is None:
            alias = tensor_at(address, tensor.numel(), tensor.dtype, tensor.device).view(tensor.shape)
            self._aliases[key] = alias
        return alias


class Source(abc.ABC):
    """A source of buffers: a pool, or plain memory that is counted."""

    @abc.abstractmethod
    def serve(self, comm: "_Comm", numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for the current stream of `device`; comm.plain allocates one as FSDP2 would."""

    def __init__(self) -> None:
        self._in_use: Dict[int, Buffer] = {}  # served buffers by address

    def holder(self, address: int) -> Optional[Buffer]:
        """The served buffer in use that contains the address."""
        buffer = self._in_use.get(address)
        if buffer is None:
            for each in list(self._in_use.values()):
                if each.begin <= address < each.end:
                    return each
        return buffer

    def track(self, memory: torch.Tensor, ended: Callable[[Buffer], None]) -> Tuple[Buffer, torch.Tensor]:
        """Plain memory as a buffer, and the tensor to serve. ended: called at the end of its storage."""
        begin = memory.data_ptr()
        buffer = self._in_use[begin] = Buffer(begin, begin + memory.nbytes)

        def end() -> None:
            del self._in_use[begin]
            ended(buffer)

        return buffer, tracked(memory, end)

    def communicates(self, buffer: Buffer) -> None:
        """Called before a collective in a buffer is enqueued on the current stream."""


class _Comm:
    """Base of AllGather and ReduceScatter. FSDP2 uses `allocate` and the call, with or without keywords, and nothing
    else of PyTorch's abstract classes.
    """

    role = ""

    def __init__(self, source: Source, group: Group, plain: Any) -> None:
        self.source, self.group, self.plain = source, group, plain

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        numel = size[0] if len(size) == 1 else math.prod(size)
        if numel == 0:
            plain: torch.Tensor = self.plain.allocate(size, dtype=dtype, device=device)
            return plain
        served = self.source.serve(self, numel, dtype, device)
        return served if len(size) == 1 else served.view(tuple(size))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the module's collective, with aliases of served buffers.

        gloo's threads drop their tensors some time after the wait for the collective has returned; with aliases that
        does not extend the live range of a buffer. An asynchronous collective keeps its buffers until its work object
        is dropped, which FSDP2 does after waiting for it.
        """
        served: List[torch.Tensor] = []
        given = [self._given(value, served) for value in arguments]
        work = self.plain(*given, **{name: self._given(value, served) for name, value in named.items()})
        if work is not None:
            call_at_end(work, served.clear)
        return work

    def _given(self, value: Any, served: List[torch.Tensor]) -> Any:
        if isinstance(value, torch.Tensor) and value.numel():
            address = value.data_ptr()
            buffer = self.source.holder(address)
            if buffer is not None:
                served.append(value)
                self.source.communicates(buffer)
                return buffer.alias(address, value)
        return value


class AllGather(_Comm):
    """Serves the outputs. FSDP2 copies them into the memory of the parameters and keeps no reference."""

    role = "param"


class ReduceScatter(_Comm):
    """Serves the inputs. Outputs become .grad as views, so PyTorch allocates them.

    FSDP2 allocates the input, then the output while the input is live, then calls. allocate() tells the two apart by
    that order and by their sizes; the call checks the result before the collective runs.
    """

    role = "grad"
    _input: Optional["weakref.ref[torch.Tensor]"] = None
    _input_numel = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        numel = math.prod(size)
        expects_output = self._input is not None and self._input() is not None
        if expects_output and numel * self.group.ranks == self._input_numel:
            self._input = None
            output: torch.Tensor = self.plain.allocate(size, dtype=dtype, device=device)
            return output
        served = super().allocate(size, dtype=dtype, device=device)
        self._input, self._input_numel = weakref.ref(served), numel
        return served

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        output = named["output_tensor"] if "output_tensor" in named else arguments[0]
        if self.source.holder(output.data_ptr()) is not None:
            raise ScheduleError(
                f"{self.group.name}: the output of the reduce-scatter was allocated before its input, as "
                "after a step that was aborted in its backward; start from a fresh model"
            )
        return super().__call__(*arguments, **named)


def install(groups: List[Group], source: Source) -> None:
    """Sets communication objects of `source` on every group.

    Changes nothing on errors: InvalidArgument (a group has a pool or is being recorded), Unsupported (a group
    allocates symmetric memory).
    """
    for group in groups:
        if isinstance(group.all_gather, _Comm) or isinstance(group.reduce_scatter, _Comm):
            raise InvalidArgument(f"{group.name}: it has a pool or is being recorded; detach() the pool or leave the "
                                  "record() block first")
    for group in groups:
        for comm in (group.all_gather, group.reduce_scatter):
            if any(each.__name__ == "SymmMemAllocMixin" for each in type(comm).__mro__):
                raise Unsupported(f"{group.name}: PyTorch owns its buffers, in symmetric memory "
                                  "(set_symm_mem_for_comm); leave that out, and register() the pool instead")
    for group in groups:
        _give(group, AllGather(source, group, group.all_gather), ReduceScatter(source, group, group.reduce_scatter))


def uninstall(groups: List[Group]) -> None:
    """Restores the communication objects that the groups had before install()."""
    for group in groups:
        _give(group, group.all_gather, group.reduce_scatter)


def _give(group: Group, all_gather: Any, reduce_scatter: Any) -> None:
    """Sets communication objects of a group. FSDP2's setters refuse modules of several groups, because all groups would
    share one object; here each group has its own pair.
    """
    if group.siblings == 1:
        group.module.set_custom_all_gather(all_gather)
        group.module.set_custom_reduce_scatter(reduce_scatter)
    else:
        group.handle._all_gather_comm, group.handle._reduce_scatter_comm = all_gather, reduce_scatter
