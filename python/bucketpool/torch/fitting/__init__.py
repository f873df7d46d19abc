# SPDX-License-Identifier: Apache-2.0
"""Tells whether a training fits on a GPU, without one.

    from bucketpool.torch import fit

    def build():
        model = torch.nn.Sequential(torch.nn.Linear(4096, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 4096)).cuda()
        return model, torch.optim.AdamW(model.parameters())

    def step(built, batch):
        model, optimizer = built
        model(torch.randn(batch, 4096, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    answer = fit(build, step, gpu="h100")
    print(answer.largest)          # {"default": 335872, "expandable": ..., "served": ...}
    print(answer.report())         # what `bucketpool fit` prints

`bucketpool fit MODEL` does so for models of transformers (training.py). docs/guides/fit.md describes both.
"""

import os
import time
import types
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from ...errors import InvalidArgument
from ...names import shown, whole
from .answer import Change, Fit, explore
from .cache import recording_path, versions
from .gpus import find
from .jobs import Jobs
from .measured import Program

__all__ = ["Change", "Fit", "cores", "fit"]

Pair = Tuple[Callable[[], Any], Callable[[Any, int], None]]
Count = Callable[[Any], int]


def cores() -> int:
    """Recordings that run side by side: each takes a core and 0.3 to 0.6 GiB."""
    return min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def fit(build: Callable[[], Any], step: Callable[[Any, int], None], *, gpu: Optional[str] = None,
        memory: Optional[int] = None, reserve: Optional[int] = None, ranks: int = 1, batch: Optional[int] = None,
        changes: Optional[Mapping[str, Pair]] = None, name: str = "",
        nonzero: Union[None, Count, Mapping[str, Count]] = None, item: Optional[Callable[[Any], Any]] = None,
        attention: str = "auto", progress: Optional[Callable[[str, int, int], None]] = None) -> Fit:
    """Finds the largest micro-batches of a training that fit on a GPU, on fake tensors, in forked processes.

    - build: makes model, optimizer and what else, on torch.device("cuda")
    - step: step(built, batch) runs a training step of `batch` sequences or samples: forward, backward, optimizer, zero_grad
    - gpu: a name such as "h100" (the default), or memory: bytes of another; reserve: bytes of context and libraries
      instead of measured ones
    - ranks: of the fake process group around build and step; they see rank 0
    - batch: this micro-batch alone
    - changes: other ways to train by name, pairs (build, step), whose bytes are compared
    - nonzero: nonzero(tensor) gives the number of its elements that are true where sizes depend on values, such as tokens
      of an expert; or {"uniform": ..., "skewed": ...}, two of them: each row has both, and the larger decides
    - item, attention: as of trace.record

    Raises InvalidArgument, Unsupported (the step cannot be recorded; the message names operator and module).
    """
    ranks, batch = whole(ranks, 31, "ranks"), batch if batch is None else whole(batch, 31, "batch")
    if not callable(build) or not callable(step):
        raise InvalidArgument(f"build and step: expected functions, got {shown(build)} and {shown(step)}")
    if ranks < 1 or (batch is not None and batch < 1):
        raise InvalidArgument("ranks and batch: pass 1 or more")
    begin = time.monotonic()
    device = find(gpu, memory, reserve, ranks)

    counts = dict(nonzero) if isinstance(nonzero, Mapping) else {"": nonzero}
    if list(counts) not in ([""], ["uniform", "skewed"]) or not all(each is None or callable(each) for each in counts.values()):
        raise InvalidArgument(f"nonzero: expected a function, or those of 'uniform' and 'skewed', got {shown(nonzero)}")

    def program(pair: Pair) -> Program:
        training = types.SimpleNamespace(build=pair[0], step=pair[1], ranks=ranks, routings=tuple(counts))
        return Program(training, device.capability, hooks={"item": item, "attention": attention}, counts=counts)

    others = [Change(what, "", program(pair)) for what, pair in (changes or {}).items()]
    found = explore(Jobs(cores(), progress), device, [program((build, step))], lambda _: others, batch, recording_path)
    return Fit(document(name or getattr(build, "__qualname__", "model"), {}, device, found, time.monotonic() - begin))


def document(name: str, options: Dict[str, Any], gpu: Any, found: Dict[str, Any], seconds: float) -> Dict[str, Any]:
    """bucketpool.fit/1."""
    return {"format": "bucketpool.fit/1", "model": name, "parameters": found["parameters"], "options": options,
            "sequence": options.get("sequence"), "versions": versions(),
            "gpu": {"name": gpu.name, "bytes": gpu.bytes, "reserve_bytes": gpu.reserve_bytes, "source": gpu.source},
            "limit_bytes": gpu.limit_bytes, **{key: value for key, value in found.items() if key != "parameters"},
            "seconds": round(seconds, 1), "is_cached": False}
