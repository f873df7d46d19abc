# SPDX-License-Identifier: Apache-2.0
"""Snapshots as docs/reference/snapshot_files.md has them, made with Python's own pickle: training steps of a small
model, and PyTorch's kind.

As a program: `snapshots.py FILE [RANK [UNITS [STEPS [PROTOCOL]]]]` writes one.
"""

import pickle
import random
import sys

ACQUIRE, REF, USE, UNREF, RELEASE, CANCEL = range(1, 7)
MIB = 1 << 20
BASE = 0x7F2000000000
START_NS = 5_000_000_000
REALTIME_NS = 1_700_000_000_000_000_000


class Maker:
    """Plays forward and backward of a model with prefetch depth 1, and two buffers for parameters and for gradients."""

    def __init__(self, rank, units, slow):
        self.units, self.time, self.slow = units, START_NS, slow
        self.random = random.Random(rank)
        self.requests, self.events, self.addresses = [], [], {}
        self.places = {}
        size = {"dense": 24 * MIB, "experts": 40 * MIB}
        for unit in range(units):
            for role, base in (("param", 0), ("grad", 160 * MIB)):
                offset = base + 72 * MIB * (unit % 2)
                for ordinal, bucket in enumerate(("dense", "experts")):
                    bytes_ = size[bucket] if unit % 3 or bucket == "dense" else size[bucket] // 2
                    self.add(f"model.layers.{unit}", bucket, ordinal, role, bytes_, BASE + offset)
                    offset += size[bucket]
        self.add("", "bucket.0", 0, "param", 48 * MIB, BASE + 512 * MIB, "persistent")
        self.state = self.add("optimizer", "moments", 0, "optimizer", 60 * MIB, BASE + 576 * MIB, "persistent")
        self.scratch = self.add("", "scratch", 1, "grad_comm", 36 * MIB, BASE + 1024 * MIB, "dynamic")

    def add(self, unit, bucket, ordinal, role, bytes_, address, placement="planned"):
        self.requests.append({"unit": unit, "bucket": bucket, "ordinal": ordinal, "role": role, "dtype": "bf16",
                              "bytes": bytes_, "placement": placement, "references": 0})
        self.addresses[len(self.requests) - 1] = address
        return len(self.requests) - 1

    def event(self, kind, request, stream, step):
        self.time += self.random.randrange(2_000, 9_000)
        self.events.append([kind, request, stream, step, self.time, self.addresses[request]])

    def of(self, unit, role):
        return [i for i, r in enumerate(self.requests) if r["unit"] == f"model.layers.{unit}" and r["role"] == role]

    def all(self, kind, ids, stream, step):
        for request in ids:
            self.event(kind, request, stream, step)

    def compute(self, factor=1):
        self.time += int(self.random.randrange(250_000, 420_000) * factor * self.slow)

    def step(self, step):
        order = list(range(self.units))
        for backward, units in ((False, order), (True, order[::-1])):
            self.all(ACQUIRE, self.of(units[0], "param"), 1, step)
            for position, unit in enumerate(units):
                if position + 1 < len(units):
                    self.all(ACQUIRE, self.of(units[position + 1], "param"), 1, step)
                self.all(USE, self.of(unit, "param"), 0, step)
                if backward:
                    self.all(ACQUIRE, self.of(unit, "grad"), 0, step)
                    if unit == self.units // 2:
                        self.event(ACQUIRE, self.scratch, 2, step)
                self.compute(2 if backward else 1)
                if backward:
                    self.all(RELEASE, self.of(unit, "grad"), 2, step)
                    if unit == self.units // 2:
                        self.event(RELEASE, self.scratch, 2, step)
                self.all(RELEASE, self.of(unit, "param"), 0, step)
        self.time += 700_000


def ours(rank=0, ranks=1, units=12, steps=1, slow=1.0, lost=0, offload=True, scratch=None):
    maker = Maker(rank, units, slow)
    if scratch:
        maker.requests[maker.scratch]["bytes"] = scratch
    slab_events = []
    for step in range(steps):
        maker.step(step)
        if offload:
            slab_events.append([0, 2, maker.time])
            maker.time += 900_000
            slab_events.append([1, 2, maker.time])
    maker.requests[maker.state]["references"] = 1
    maker.requests[maker.state - 1]["references"] = 1
    live = [{"id": i, "address": maker.addresses[i], "stream": 0, "step": 0} for i in (maker.state - 1, maker.state)]
    acquires = sum(event[0] == ACQUIRE for event in maker.events)
    pool = {
        "name": "params+grads", "allocator": "scheduled", "fingerprint": "9f" * 32, "device": "host",
        "plan": {"bytes": 304 * MIB, "lower_bound_bytes": 256 * MIB, "optimal": False, "roles": [
            {"role": "param", "bytes": 136 * MIB, "lower_bound_bytes": 128 * MIB},
            {"role": "grad", "bytes": 136 * MIB, "lower_bound_bytes": 128 * MIB}]},
        "statistics": {"slab_bytes": 440 * MIB, "requests": len(maker.requests), "acquires": acquires, "waits": 17},
        "slabs": [
            {"address": BASE, "bytes": 320 * MIB, "planned_bytes": 304 * MIB, "group": "params", "resident": True},
            {"address": BASE + 512 * MIB, "bytes": 48 * MIB, "planned_bytes": 0, "group": "persistent",
             "resident": True},
            {"address": BASE + 576 * MIB, "bytes": 72 * MIB, "planned_bytes": 0, "group": "optimizer",
             "resident": True}],
        "requests": maker.requests,
        "streams": [{"number": 0, "name": "compute"}, {"number": 1, "name": "gather"}, {"number": 2, "name": "reduce"}],
        "live": live, "events": maker.events, "slab_events": slab_events, "lost_events": lost,
    }
    return {"segments": [], "device_traces": [[]], "allocator_settings": {}, "bucketpool": {
        "format": "bucketpool.snapshot/1", "version": "0.2.0", "rank": rank, "ranks": ranks,
        "coordinates": f"p0d{rank}t0",
        "step": 0, "label": "", "first_time_ns": START_NS - 100_000, "last_time_ns": maker.time + 200_000,
        "realtime_offset_ns": REALTIME_NS, "pools": [pool]}}


def torch():
    """A snapshot of PyTorch's allocator, with shared frames as there."""
    def frames(name, line):
        return [{"name": "c10::alloc", "filename": "??", "line": 0},
                {"name": name, "filename": "train.py", "line": line}]
    weights, forward, backward = frames("weights", 7), frames("forward", 20), frames("backward", 31)
    base, trace = 0x7F0000000000, []

    def event(action, address, size, who, time):
        trace.append({"action": action, "addr": address, "size": size, "stream": 0,
                      "time_us": 1_700_000_000_000_000 + time, "frames": who})
    event("segment_alloc", base + 64 * MIB, 20 * MIB, forward, 10)
    event("alloc", base + 64 * MIB, 12 * MIB, forward, 12)
    event("alloc", base + 76 * MIB, 4 * MIB, backward, 30)
    event("free_requested", base + 64 * MIB, 12 * MIB, backward, 40)
    event("free_completed", base + 64 * MIB, 12 * MIB, backward, 44)
    event("free_completed", base + 8 * MIB, 6 * MIB, backward, 50)
    event("alloc", base + 8 * MIB, 5 * MIB, forward, 60)
    event("snapshot", 0, 0, [], 99)

    def block(address, size, state, who):
        return {"address": address, "size": size, "requested_size": size, "state": state, "frames": who}
    segments = [
        {"device": 0, "address": base, "total_size": 20 * MIB, "stream": 0, "segment_type": "large", "blocks": [
            block(base, 8 * MIB, "active_allocated", weights),
            block(base + 8 * MIB, 5 * MIB, "active_allocated", forward),
            block(base + 13 * MIB, 7 * MIB, "inactive", [])]},
        {"device": 0, "address": base + 64 * MIB, "total_size": 20 * MIB, "stream": 0, "segment_type": "large",
         "blocks": [
            block(base + 64 * MIB, 12 * MIB, "inactive", []),
            block(base + 76 * MIB, 4 * MIB, "active_pending_free", backward),
            block(base + 80 * MIB, 4 * MIB, "inactive", [])]}]
    return {"segments": segments, "device_traces": [trace, []], "allocator_settings": {}, "external_annotations": []}


def torch_training(events, depth=0, seed=1):
    """A trace of PyTorch's allocator with this number of entries, as in training: blocks of all sizes in segments, most
    of them freed soon, some at the end of the step. With `depth`, every entry has a separate list of shared frames
    (torch/csrc/cuda/Module.cpp).
    """
    chance = random.Random(seed)
    known = [{"name": f"forward_{i}" if i % 4 else "c10::alloc",
              "filename": f"/train/model_{i % 40}.py" if i % 4 else "??", "line": i}
             for i in range(4000)]
    trace, live, time = [], [], 1_700_000_000_000_000
    segment = 512 * MIB
    base, step = 0x7F0000000000, MIB
    free = [base + i * step for i in range(4 * segment // step)][::-1]
    for i in range(4):
        trace.append({"action": "segment_alloc", "addr": base + i * segment, "size": segment, "stream": 0,
                      "time_us": time, "frames": []})

    def event(action, address, size):
        first = chance.randrange(len(known) - depth) if depth else 0
        trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": time,
                      "frames": known[first:first + depth], "compile_context": "N/A", "user_metadata": ""})
    while len(trace) < events:
        time += chance.randrange(3, 40)
        if free and (len(live) < 1000 or chance.random() < 0.5):
            block = (free.pop(), chance.randrange(512, step, 512))
            live.append(block)
            event("alloc", *block)
        else:
            at = -1 - min(int(chance.expovariate(0.05)), len(live) - 1)
            block = live.pop(at)
            event("free_requested", *block)
            event("free_completed", *block)
            free.append(block[0])
    blocks = sorted(live)
    segments = [{"device": 0, "address": base + i * segment, "total_size": segment, "stream": 0,
                 "segment_type": "large", "frames": [], "blocks": []}
                for i in range(4)]
    for address, size in blocks:
        segments[(address - base) // segment]["blocks"].append(
            {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": []})
    return {"segments": segments, "device_traces": [trace, []], "allocator_settings": {}, "external_annotations": []}


def write(path, snapshot, protocol=2):
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=protocol)
    return path


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]] + [0, 12, 1, 2][len(sys.argv) - 2:]
    write(sys.argv[1], ours(rank=numbers[0], ranks=4, units=numbers[1], steps=numbers[2]), numbers[3])
