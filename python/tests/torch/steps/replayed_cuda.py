# SPDX-License-Identifier: Apache-2.0
"""Plays a recording of bucketpool.torch.trace or of a GPU on PyTorch's CUDA allocator, over the emulated runtime and driver, natively
or with its plan served, from the first event on. Prints a JSON object.

Arguments: "native" or "served", the recording, and how many more steps follow that are like the last but one.
"""

import bisect
import collections
import ctypes
import gzip
import json
import os
import pickle
import sys
import tempfile

import torch

from bucketpool import _abi
from bucketpool._library import core, formats
from decorated import Decorated


class Recording:
    """Events: (action, address, bytes, stream); marks: events before which an optimizer has ended."""

    def __init__(self, path: str) -> None:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            snapshot = pickle.load(file)
        events = next(trace for trace in snapshot["device_traces"] if trace)
        self.events = [(e["action"], e["addr"], e["size"], e["stream"]) for e in events]
        times = [e["time_us"] for e in events]
        places = {stage: [bisect.bisect_left(times, a["time_us"]) for a in snapshot.get("external_annotations", ())
                          if a["name"].startswith(name) and a["stage"] == stage]
                  for name, stage in (("Optimizer.step#", "END"), (("ProfilerStep#", "step "), "START"))}
        self.marks = collections.Counter(places["END"])
        self.cuts = sorted(self.marks) or places["START"]

        self.early = {}  # live before the first event: bytes by address
        known = set()
        for action, address, size, _ in self.events:
            if action == "free_requested" and address not in known:
                self.early[address] = size
            known.add(address)
        for segment in snapshot["segments"]:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and address not in known:
                    self.early[address] = block.get("requested_size", block["size"])
                address += block["size"]

    def steady(self) -> list[tuple]:
        """The events between the last two cuts, whose frees are of this step or of the one before: (action, order, step, bytes, stream)."""
        steps = [self.events[a:b] for a, b in zip(self.cuts[-3:], self.cuts[-2:])]
        orders: dict[int, tuple[int, int]] = {}
        made = []
        for number, events in enumerate(steps):
            count = 0
            for action, address, size, stream in events:
                if action == "alloc":
                    orders[address] = (count, number)
                    count += 1
                    made.append((number, action, count - 1, 0, size, stream))
                elif action == "free_requested" and address in orders:
                    order, step = orders.pop(address)
                    made.append((number, "free", order, number - step, 0, 0))
        return [event[1:] for event in made if event[0] == 1]


def plan_of(path: str) -> _abi.bp_step_plan:
    plan = _abi.bp_step_plan()
    with tempfile.NamedTemporaryFile(suffix=".pickle") as plain:
        if path.endswith(".gz"):
            with gzip.open(path, "rb") as file:
                plain.write(file.read())
            plain.flush()
            path = plain.name
        status = formats().bp_step_plan_read_snapshot(path.encode(), 0, None, ctypes.byref(plan))
    assert status == 0, core().bp_error_detail()
    return plan


class Player:
    def __init__(self, decorated: Decorated | None) -> None:
        self.decorated, self.live, self.streams, self.planned = decorated, {}, {}, 0

    def allocate(self, size: int, stream: int) -> torch.Tensor:
        if stream not in self.streams:
            self.streams[stream] = torch.cuda.current_stream() if stream == 0 or not self.streams else torch.cuda.Stream()
        with torch.cuda.stream(self.streams[stream]):
            return torch.empty(size, dtype=torch.uint8, device="cuda")

    def play(self, recording: Recording) -> None:
        for address, size in recording.early.items():
            self.live[address] = self.allocate(size, 0)
        for number, (action, address, size, stream) in enumerate(recording.events):
            for _ in range(recording.marks[number]):
                self.mark()
            if action == "alloc":
                self.live[address] = self.allocate(size, stream)
            elif action == "free_requested":
                self.live.pop(address, None)

    def repeat(self, recording: Recording, steps: int) -> None:
        steady = recording.steady()
        made = [address for action, address, _, _ in recording.events[recording.cuts[-2]:recording.cuts[-1]] if action == "alloc"]
        late = {order for action, order, age, _, _ in steady if action == "free" and age}
        before = {order: self.live.pop(address) for order, address in enumerate(made) if order in late and address in self.live}
        for _ in range(steps):
            now: dict[int, torch.Tensor] = {}
            if recording.marks:
                self.mark()
            for action, order, age, size, stream in steady:
                if action == "alloc":
                    now[order] = self.allocate(size, stream)
                else:
                    (before if age else now).pop(order, None)
            before = now

    def mark(self) -> None:
        if self.decorated:
            self.decorated.mark()


def main(mode: str, path: str, steps: int) -> None:
    recording, decorated, planned = Recording(path), None, {}
    if mode == "served":
        plan, decorated = plan_of(path), Decorated("cuda")
        info = core().bp_step_plan_get_info(plan).contents
        is_from_start = any(kind.is_first for kind in info.kinds[:info.kind_count])
        planned = {"slab_bytes": info.bytes, "lower_bound_bytes": info.lower_bound_bytes, "kinds": info.kind_count,
                   "planned_peak_live_bytes": info.peak_live_bytes, "outside_bytes": info.outside_bytes,
                   "persistent_bytes": info.persistent_bytes, "is_from_start": is_from_start}
        decorated.serve(plan, 1 if is_from_start else info.persistent_bytes + info.outside_bytes + (64 << 20))
    player = Player(decorated)
    player.play(recording)
    first = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    before = decorated.statistics() if decorated else None
    torch.cuda.reset_peak_memory_stats()
    player.repeat(recording, steps)
    found = {"reserved_peak_first_bytes": first, "reserved_peak_bytes": torch.cuda.memory_stats()["reserved_bytes.all.peak"],
             "live_peak_bytes": torch.cuda.memory_stats()["allocated_bytes.all.peak"], **planned}
    if decorated and before:
        now = decorated.statistics()
        decorated.check()
        found.update(served_first=list(before.outcomes), served=[a - b for a, b in zip(now.outcomes, before.outcomes)],
                     waits=(now.waits - before.waits) / max(1, steps), resyncs=now.resyncs, kind_changes=now.kind_changes)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)
