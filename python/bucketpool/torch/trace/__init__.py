# SPDX-License-Identifier: Apache-2.0
"""The memory of a training step without a GPU: records what any PyTorch program would allocate, on fake tensors.

    from bucketpool.torch import trace

    with trace.record(device="cuda") as recorded:
        model = build()                                     # on torch.device("cuda"); nothing is allocated
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):                                  # the first step makes the optimizer's state
            recorded.step()                                 # annotated as "ProfilerStep#0" and so on
            model(tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    recorded.write("step.pickle")                           # for bucketpool view and pytorch.org/memory_viz
    print(recorded.peak_bytes)

docs/guides/step_memory.md describes recordings and their assumptions.
"""

import contextlib
import re
from typing import Any, Callable, Iterator, Optional, Tuple

import torch

from ...errors import InvalidArgument, Unsupported
from .kernels import ATTENTION
from .recorder import recorded
from .recording import Allocation, Recording
from .storages import Options

__all__ = ["Allocation", "Recording", "record"]

OLDEST = (2, 11)  # with "cuda": what older ones ask a GPU for is not emulated
_active = False


@contextlib.contextmanager
def record(device: str = "cuda", *, capability: Tuple[int, int] = (9, 0), attention: str = "auto",
           frames: int = 24, item: Optional[Callable[[Any], Any]] = None,
           nonzero: Optional[Callable[[Any], int]] = None) -> Iterator[Recording]:
    """Records the program in the `with` block, which must also make its optimizer and its inputs, and should make its
    model: one that was made before counts from its move to the device, and has fake tensors afterwards.

    - device: "cuda", or "cpu" for a program that trains on the CPU. Tensors of the recorded device are fake: they have
      sizes, and values only where those are known. With "cuda", tensors of the CPU up to 1 MiB have values
    - capability: of the GPU, for sizes of workspaces, and for programs that ask
    - attention: kernel of scaled_dot_product_attention on "cuda": "cudnn", "flash", "efficient", "math", or "auto": the
      choice of PyTorch
    - frames: Python frames of each allocation at most
    - item: item(tensor) gives the value of a tensor whose value is unknown, for tensor.item() and copies to the CPU;
      None: 1, or True
    - nonzero: nonzero(tensor) gives the number of elements that are true (of unique(): that differ), where the size of
      a result depends on values: nonzero, where, masked_select, boolean indices, unique. None: Unsupported

    No GPU is used or needed. One recording at a time, in the thread that began it. Backward runs in this thread, too.
    Raises InvalidArgument, Unsupported with "cuda" before PyTorch 2.11, and in the block Unsupported where sizes depend
    on unknown values, or PyTorch needs a GPU.
    """
    global _active
    if device not in ("cuda", "cpu"):
        raise InvalidArgument(f"device: {device!r}; pass 'cuda' or 'cpu', without an index")
    if attention not in ATTENTION:
        raise InvalidArgument(f"attention: {attention!r}; pass one of {', '.join(ATTENTION)}")
    if frames < 0:
        raise InvalidArgument(f"frames: {frames}; pass 0 or more")
    release = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if device == "cuda" and release and tuple(map(int, release.groups())) < OLDEST:
        raise Unsupported(f"record: without a GPU, steps on cuda need PyTorch {'.'.join(map(str, OLDEST))} or later, and "
                          f"this is {torch.__version__}; record with a newer one")
    if _active:
        raise InvalidArgument("record: another recording is active in this process; end its with block first")
    recording = Recording(device)
    _active = True
    try:
        with recorded(recording, Options(device, capability, attention, frames, item, nonzero)):
            yield recording
    finally:
        _active = False
