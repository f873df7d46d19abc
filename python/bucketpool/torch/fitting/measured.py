# SPDX-License-Identifier: Apache-2.0
"""One micro-batch of a training: recorded without a GPU, and what allocators take for the recording."""

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...__main__ import command_path
from ...errors import InternalError, Unsupported
from .. import trace
from ..trace import Recording
from .scaling import repeated, repeats

__all__ = ["ALLOCATORS", "Amounts", "Measured", "Program", "Totals", "command", "measure", "record", "traced"]

ALLOCATORS = ("default", "expandable", "served")
STEPS, EVENTS = 16, 400_000  # played, where a step needs retries: each leaves other gaps, and a later one may find no memory


class Program:
    """A training to record, and how it is called in a table. training: has build() and step(built, batch), and may have

    - ranks: of the fake process group around them, 1: none
    - routings: names of assumptions on sizes that depend on values, of which `routing` is set to one before build()
    - device: "cuda" (the default) or "cpu"; notes: what is assumed; parameters: their number, after build()
    """

    def __init__(self, training: Any, capability: Tuple[int, int] = (9, 0), name: str = "",
                 hooks: Optional[Dict[str, Any]] = None, counts: Optional[Dict[str, Any]] = None) -> None:
        self.training, self.capability, self.name, self.hooks = training, capability, name, hooks or {}
        self.counts = counts or {}  # nonzero of trace.record, by routing
        self.ranks: int = getattr(training, "ranks", 1)
        self.routings: Tuple[str, ...] = getattr(training, "routings", ("", ))


class Totals(NamedTuple):
    """Bytes of the GPU with PyTorch's allocator as it is, with expandable segments, and with the step served at planned
    addresses; live bytes at the peak, rounded to 512, below which no allocator gets. Where the GPU has less, PyTorch
    releases what it caches and tries again: how often in two steps, or None where that does not help, in these or later ones.
    """

    default: int
    expandable: int
    served: int
    peak: int
    default_retries: Optional[int]
    expandable_retries: Optional[int]


class Amounts(NamedTuple):
    """A micro-batch: totals for each routing, kinds of memory at the peak of the last one."""

    totals: Tuple[Totals, ...]
    kinds: Tuple[Tuple[str, int], ...]

    @property
    def worst(self) -> Totals:
        worst: List[Any] = [None if None in values else max(values) for values in zip(*self.totals)]
        return Totals(*worst)


class Measured(NamedTuple):
    """recordings: of each routing; repeats_itself: their second step follows from the first."""

    recordings: Tuple[Recording, ...]
    amounts: Amounts
    notes: Tuple[str, ...]
    parameters: int
    repeats_itself: bool


def record(program: Program, batch: int, routing: str = "", steps: int = 2) -> Recording:
    """The recording of the first steps, of which the very first makes the optimizer's state."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    if program.ranks > 1:
        dist.init_process_group("fake", rank=0, world_size=program.ranks, store=FakeStore())
    try:
        training = program.training
        if len(program.routings) > 1:
            training.routing = routing
        with trace.record(device=getattr(training, "device", "cuda"), capability=program.capability, frames=0,
                          nonzero=program.counts.get(routing), **program.hooks) as recorded:
            built = training.build()
            for _ in range(steps):
                recorded.step()
                training.step(built, batch)
        return recorded
    finally:
        if program.ranks > 1:
            dist.destroy_process_group()


def command() -> str:
    """The path of the command, which has the models of allocators. Raises Unsupported."""
    path = os.environ.get("BUCKETPOOL_COMMAND") or command_path()
    if path is None:
        raise Unsupported("fit needs the command bucketpool for its models of allocators; install the wheel, or set "
                          "BUCKETPOOL_COMMAND to its path")
    return path


def measure(recordings: Tuple[Recording, ...], limit_bytes: int) -> Amounts:
    """By the models of `bucketpool step`."""
    totals, kinds = [], []
    for recording in recordings:
        device = _evaluated(recording, limit_bytes)
        retries = _retries(device)
        if any(retries):
            retries = [None if later is None else count for count, later in zip(retries, _later_retries(recording, limit_bytes))]
        totals.append(Totals(device["default_bytes"], device["expandable_bytes"], device["plan"]["total_bytes"],
                             device["peak_bytes"], *retries))
        kinds = [(each["kind"], each["bytes"]) for each in device["kinds"]]
    return Amounts(tuple(totals), tuple(kinds))


def _retries(device: Dict[str, Any]) -> List[Optional[int]]:
    """With the default allocator and with expandable segments; None: an allocation fails."""
    models = (device["limit"]["default"], device["limit"]["expandable"])
    return [None if model["failures"] else int(model["retries"]) for model in models]


def _later_retries(recording: Recording, limit_bytes: int) -> List[Optional[int]]:
    """Of many steps, if they are like the second one."""
    steps = max(3, min(STEPS, EVENTS // max(1, recording.event_count)))
    longer = repeated(recording, steps) if repeats(recording) else None
    return _retries(_evaluated(longer or recording, limit_bytes, "--work", "1", "--lead", "0"))


def _evaluated(recording: Recording, limit_bytes: int, *options: str) -> Dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "recording.pickle")
        recording.write(path)
        done = subprocess.run([command(), "step", "--json", "--limit", str(limit_bytes), *options, path], capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        raise InternalError(f"bucketpool step --json: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    devices: List[Dict[str, Any]] = json.loads(done.stdout)["devices"]
    return devices[0]


def traced(program: Program, batch: int, limit_bytes: int, repeats_itself: bool = False) -> Measured:
    """Records two steps and measures; for a separate process. repeats_itself: the second step follows from the first."""
    recordings = tuple(_recorded(program, batch, routing, repeats_itself) for routing in program.routings)
    notes = dict.fromkeys(getattr(program.training, "notes", []))
    for recorded in recordings:
        notes.update(dict.fromkeys(note for note in recorded.notes if not note.startswith("stream ")))
    return Measured(recordings, measure(recordings, limit_bytes), tuple(notes), int(getattr(program.training, "parameters", 0)),
                    all(map(repeats, recordings)))


def _recorded(program: Program, batch: int, routing: str, repeats_itself: bool) -> Recording:
    made = repeated(record(program, batch, routing, steps=1)) if repeats_itself else None
    return made if made is not None else record(program, batch, routing)
