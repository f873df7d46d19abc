# SPDX-License-Identifier: Apache-2.0
"""Recording: a step with plain memory, in which the live range of every buffer is recorded."""

import contextlib
import math
from typing import Any, Iterator, Sequence

import torch
from torch import nn

from ..timeline import Timeline, phase_of
from .comms import Source, install, uninstall
from .groups import _field, groups_of


class _Recorder(Source):
    """Serves plain memory, and records each buffer from its allocation to the end of its storage."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.timeline = timeline

    def serve(self, comm: Any, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        numel = math.prod(size)
        memory: torch.Tensor = comm.plain.allocate((numel,), dtype=dtype, device=device)
        if numel == 0:
            return memory.view(tuple(size))
        slot = self.timeline.acquire(comm.group.name, comm.role, phase_of(comm.role), numel, dtype)
        return self.track(memory, lambda _buffer: self.timeline.release(slot))[1].view(tuple(size))


@contextlib.contextmanager
def record(module: nn.Module, any_version: bool = False) -> Iterator[Timeline]:
    """Records the communication buffers of the steps in the block: run one whole step of each kind in it.

    - module: the root, on its device
    - any_version: also with a PyTorch that has not been checked

    A whole step has all its micro-batches and the last backward. Buffers are plain memory, so losses and memory
    are unchanged; peak_bytes and joint_peak_bytes of the timeline are those of FSDP2. Parameters that an earlier
    forward left gathered are resharded first.

    Raises as groups_of; InvalidArgument (the module has a pool or is being recorded).
    """
    groups = groups_of(module, any_version)
    timeline = Timeline(group.name for group in groups)
    for group in groups:
        if _field(group.handle, "reshard_after_backward"):
            group.module.reshard()
    install(groups, _Recorder(timeline))
    try:
        yield timeline
    finally:
        uninstall(groups)
