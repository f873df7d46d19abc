# SPDX-License-Identifier: Apache-2.0
"""Communication objects for FSDP2's modules: buffers from a source, collectives unchanged. Internal."""

import abc
import functools
import math
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from ...errors import InvalidArgument, ScheduleError, Unsupported
from ..memory import call_at_end, tensor_at, tracked
from .groups import Group


class Buffer:
    """A served buffer while it is in use, and tensors over it for collectives."""

    __slots__ = ("begin", "end", "aliases")

    def __init__(self, begin: int = 0, end: int = 0) -> None:
        self.begin, self.end = begin, end
        self.aliases: Dict[Tuple[int, int], torch.Tensor] = {}  # by address and elements; rank 0's input is at the output's

    def moved(self, begin: int, bytes: int) -> None:
        """The buffer is at another address."""
        self.begin, self.end = begin, begin + bytes
        self.aliases.clear()

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new alias: a tensor over the memory of a contiguous tensor in the buffer that does not keep its storage.
        Other tensors are returned as they are.
        """
        address = tensor.data_ptr()
        if not self.begin <= address < self.end or not tensor.numel():
            return tensor
        alias = tensor_at(address, tensor.numel(), tensor.dtype, tensor.device).view(tensor.shape)
        self.aliases[address, tensor.numel()] = alias
        return alias


class Source(abc.ABC):
    """A source of buffers: a pool, or plain memory that is counted."""

    @abc.abstractmethod
    def serve(self, comm: "_Comm", size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for the current stream of `device`; comm.plain allocates one as FSDP2 would."""

    def __init__(self) -> None:
        self._in_use: Dict[int, Buffer] = {}  # served buffers by address
        self.holder = self._in_use.get  # the served buffer in use at an address, or None
        # Called before a collective in a buffer is enqueued on the current stream.
        self.communicates: Optional[Callable[[Buffer], None]] = None

    def track(self, memory: torch.Tensor, ended: Callable[[Buffer], None]) -> Tuple[Buffer, torch.Tensor]:
        """Plain memory as a buffer, and the tensor to serve. ended: called at the end of its storage."""
        begin = memory.data_ptr()
        buffer = self._in_use[begin] = Buffer(begin, begin + memory.nbytes)

        def end() -> None:
            del self._in_use[begin]
            ended(buffer)

        return buffer, tracked(memory, end)


class _Comm:
    """Base of AllGather and ReduceScatter. FSDP2 uses `allocate` and the call, with or without keywords, and nothing
    else of PyTorch's abstract classes. In a step each Python frame costs microseconds, so there are few.
    """

    role = ""

    def __init__(self, source: Source, group: Group, plain: Any) -> None:
        self.source, self.group, self.plain, self.name = source, group, plain, group.name
        self.allocate: Callable[..., torch.Tensor] = functools.partial(source.serve, self)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        """Runs the module's collective, with aliases of served tensors.

        gloo's threads drop their tensors some time after the wait for the collective has returned; with aliases that
        does not extend the live range of a buffer. An asynchronous collective keeps its buffer until its work object
        is dropped, which FSDP2 does after waiting for it.
        """
        source = self.source
        buffer, served = source.holder(output_tensor.data_ptr()), output_tensor
        if self.role == "grad":
            if buffer is not None:
                raise ScheduleError(
                    f"{self.name}: the output of the reduce-scatter was allocated before its input, as "
                    "after a step that was aborted in its backward; start from a fresh model"
                )
            buffer, served = source.holder(input_tensor.data_ptr()), input_tensor
        if buffer is None:
            return self.plain(output_tensor, input_tensor, *arguments, **named)
        if source.communicates is not None:
            source.communicates(buffer)
        aliases = buffer.aliases
        if served is output_tensor:
            alias = aliases.get((output_tensor.data_ptr(), output_tensor.numel()))
            same = alias is not None and alias.shape == output_tensor.shape and alias.dtype is output_tensor.dtype
            output_tensor = alias if same else buffer.alias(output_tensor)  # type: ignore[assignment]
        alias = aliases.get((input_tensor.data_ptr(), input_tensor.numel()))
        same = alias is not None and alias.shape == input_tensor.shape and alias.dtype is input_tensor.dtype
        input_tensor = alias if same else buffer.alias(input_tensor)  # type: ignore[assignment]
        work = self.plain(output_tensor, input_tensor, *arguments, **named)
        if work is not None:
            call_at_end(work, [served].clear)
        return work


class AllGather(_Comm):
    """Serves the outputs, of which the inputs are slices. FSDP2 copies them into the memory of the parameters and keeps
    no reference.
    """

    role = "param"


class ReduceScatter(_Comm):
    """Serves the inputs. Outputs become .grad as views, so PyTorch allocates them.

    FSDP2 allocates the input, then the output while the input is live, then calls. allocate() tells the two apart by
    that order and by their sizes; the call checks the result before the collective runs.
    """

    role = "grad"

    def __init__(self, source: Source, group: Group, plain: Any) -> None:
        super().__init__(source, group, plain)
        self._serve, self.allocate = self.allocate, self._allocate
        self._input: Optional["weakref.ref[torch.Tensor]"] = None
        self._input_numel = 0

    def _allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        numel = size[0] if len(size) == 1 else math.prod(size)
        if self._input is not None and numel * self.group.ranks == self._input_numel and self._input() is not None:
            self._input = None
            output: torch.Tensor = self.plain.allocate(size, dtype=dtype, device=device)
            return output
        served = self._serve(size, dtype=dtype, device=device)
        self._input, self._input_numel = weakref.ref(served), numel
        return served


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
