# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel while a step is recorded: its reducer, which PyTorch has in C++, with the same memory.

- one bucket with all gradients of a dtype in the first backward pass. Afterwards buckets of 1 MiB and 25 MiB
  (bucket_cap_mb), in the order in which gradients became ready; the old ones are freed first
- a gradient is copied into its bucket, and back after the all-reduce; with gradient_as_bucket_view it becomes a view
- the first broadcast of parameters flattens up to 250 MiB of them, twice at most
"""

from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed

from ...errors import Unsupported
from .kinds import COMMUNICATION, GRADIENTS

__all__ = ["replaced"]

_BUCKETS: Any = getattr(dist, "_compute_bucket_assignment_by_size")
_IN_FLIGHT = 2  # flattened buckets of a broadcast
_Mark = Callable[[str, Any], None]


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, parameters: List[Any], members: List[int]) -> None:
        sizes = [parameters[each].numel() for each in members]
        self.members, self.missing = members, len(members)
        first = parameters[members[0]]
        gradients: Any = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.gradients = gradients
        self.views: Dict[int, Any] = {}
        for member, part in zip(members, gradients.split(sizes)):
            like = parameters[member]
            self.views[member] = part.as_strided(like.size(), like.stride(), part.storage_offset())


class _Reducer:
    """Arguments of torch.distributed.Reducer."""

    def __init__(self, mark: _Mark, parameters: List[Any], bucket_indices: List[List[int]], _limits: Any, group: Any,
                 expect_sparse: List[bool], bucket_bytes_cap: int, find_unused: bool, as_view: bool, _names: Any = None,
                 first_bucket_bytes_cap: int = 1 << 20, _skip_unused: bool = False, _python: bool = False,
                 rebuilt_limits: Any = None) -> None:
        if any(expect_sparse):
            raise Unsupported("DistributedDataParallel: sparse gradients; use embeddings with sparse=False while you "
                              "record")
        self._mark, self._parameters, self._group, self._as_view = mark, parameters, group, as_view
        self._limits = list(rebuilt_limits or (first_bucket_bytes_cap, bucket_bytes_cap))
        self._rebuilds, self._find_unused, self._expects = not find_unused, find_unused, False
        self._ready: List[int] = []  # in the order of the backward pass
        self._allocate(bucket_indices)
        self._hooks = [each.register_post_accumulate_grad_hook(self._hook(i)) for i, each in enumerate(parameters)]

    def _allocate(self, bucket_indices: List[List[int]]) -> None:
        self._buckets: List[_Bucket] = []  # frees the old ones first
        self._bucket_of: Dict[int, _Bucket] = {}
        for members in bucket_indices:
            bucket = _Bucket(self._parameters, members)
            self._mark(GRADIENTS if self._as_view else COMMUNICATION, bucket.gradients)
            self._buckets.append(bucket)
            self._bucket_of.update((each, bucket) for each in members)

    def _hook(self, place: int) -> Callable[[Any], None]:
        def ready(parameter: Any) -> None:
            if self._expects:
                self._add(place, parameter)

        return ready

    def _add(self, place: int, parameter: Any) -> None:
        if self._find_unused and not self._ready:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        bucket = self._bucket_of[place]
        view = bucket.views[place]
        with torch.no_grad():
            torch.mul(parameter.grad, 1.0 / dist.get_world_size(self._group), out=view)
            if self._as_view:
                parameter.grad = view
        self._ready.append(place)
        bucket.missing -= 1
        if bucket.missing == 0:
            dist.all_reduce(bucket.gradients, group=self._group)
            if not self._find_unused and all(each.missing == 0 for each in self._buckets):
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._expects = False
        for bucket in self._buckets:
            if bucket.missing > 0:  # has gradients of unused parameters
                dist.all_reduce(bucket.gradients, group=self._group)
        if not self._as_view:
            with torch.no_grad():
                for place in self._ready:
                    self._parameters[place].grad.copy_(self._bucket_of[place].views[place])

    def prepare_for_forward(self) -> None:
        pass

    def prepare_for_backward(self, _outputs: Any) -> None:
        self._expects = True
        self._ready.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)

    def _rebuild_buckets(self) -> bool:
        """Before the second forward pass."""
        if not self._rebuilds or len(self._ready) != len(self._parameters):
            return False
        self._rebuilds = False
        buckets, _ = _BUCKETS(
            [self._parameters[each] for each in self._ready], self._limits, [False] * len(self._ready), self._ready)
        self._allocate(buckets)
        return True

    def set_logger(self, _logger: Any) -> None:
        pass

    def _delay_all_reduce(self) -> None:
        """Of the first step of a static graph: buckets are reduced as they are ready, with the same memory."""

    def _set_static_graph(self) -> None:
        self._rebuilds = True

    def _remove_autograd_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"DistributedDataParallel: {name.strip('_')} of its reducer is not recorded; leave this "
                          "option out while you record")


class _Logger:
    """torch.distributed.Logger, which writes nothing."""

    def __init__(self, _reducer: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: {}


def _broadcast(group: Any, tensors: List[Any], buffer_bytes: int, authoritative_rank: int = 0) -> None:
    """torch.distributed._broadcast_coalesced."""
    running: List[Tuple[Any, List[Any]]] = []

    def finish() -> None:
        flat, members = running.pop(0)
        for each, part in zip(members, flat.split([each.numel() for each in members])):
            each.copy_(part.view_as(each))

    buckets, _ = _BUCKETS(tensors, [buffer_bytes], [False] * len(tensors))
    for bucket in buckets:
        members = [tensors[each] for each in bucket]
        flat = [each.contiguous().view(-1) for each in members]
        running.append((flat[0] if len(flat) == 1 else torch.cat(flat), members))
        dist.broadcast(running[-1][0], dist.get_global_rank(group, authoritative_rank), group)
        del flat
        if len(running) == _IN_FLIGHT:
            finish()
    while running:
        finish()


def replaced(mark: _Mark) -> List[Tuple[Any, str, Any]]:
    """Replacements of attributes, for emulation.patched()."""

    def refused(*_: Any, **__: Any) -> None:
        raise Unsupported("DistributedDataParallel: communication hooks are not recorded; leave them out while you "
                          "record")

    return [(dist, "Reducer", lambda *given, **named: _Reducer(mark, *given, **named)), (dist, "Logger", _Logger),
            (dist, "_broadcast_coalesced", _broadcast), (dist, "_register_comm_hook", refused),
            (dist, "_register_builtin_comm_hook", refused),
            (distributed, "_verify_param_shape_across_processes", lambda *_, **__: None)]
