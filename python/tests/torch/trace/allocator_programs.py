# SPDX-License-Identifier: Apache-2.0
"""Random programs on PyTorch's caching allocator, whose snapshots the model has to reproduce. Runs on the emulated runtime
and driver; prints a JSON object.

Arguments: a JSON object of Options. Work on the streams is sleep, so that frees of blocks that other streams used are
completed late.
"""

import argparse
import ctypes
import dataclasses
import json
import os
import random
import sys
import tempfile

import torch

import allocator_model

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)


@dataclasses.dataclass
class Options:
    first: int = 0  # seed
    programs: int = 1
    operations: int = 300
    ring: int = 100000  # events that PyTorch keeps
    pools: bool = True
    most_bytes: int = 400 * MIB
    most_live: int = 60
    limit_bytes: int = 0
    settings: dict[str, int] = dataclasses.field(default_factory=dict)  # that snapshots lack
    keep: str = ""  # a folder for the snapshots
    context: str | None = None  # call stacks that PyTorch records
    empty_cache: float = 0.005  # share of operations
    plays: bool = False  # the trace is also played through a new allocator, on a device of `memory` bytes
    memory: int = 0


def sleep(stream: torch.cuda.Stream, microseconds: int) -> None:
    driver.cuLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), libc.usleep, ctypes.c_void_p(microseconds))


def random_bytes(rng: random.Random, most: int) -> int:
    kind = rng.random()
    if kind < 0.35:
        return rng.randrange(1, 1 << rng.randrange(5, 21))
    if kind < 0.6:
        return rng.randrange(MIB, 10 * MIB)
    return min(rng.randrange(10 * MIB, (80 if kind < 0.9 else 400) * MIB), most)


class Program:
    def __init__(self, seed: int, options: Options, streams: list[torch.cuda.Stream]) -> None:
        self.rng = random.Random(seed)
        self.options = options
        self.streams = streams
        self.live: list[torch.Tensor] = []
        self.pool: torch.cuda.MemPool | None = None
        self.repeated = [random_bytes(self.rng, options.most_bytes) for _ in range(12)]
        self.failures = 0
        self.empty_caches = 0  # that released memory

    def tensor(self, bytes_: int) -> torch.Tensor:
        return torch.empty(bytes_, dtype=torch.uint8, device="cuda")

    def allocate(self) -> None:
        rng = self.rng
        stream = rng.choice(self.streams)
        bytes_ = rng.choice(self.repeated) if rng.random() < 0.6 else random_bytes(rng, self.options.most_bytes)
        try:
            with torch.cuda.stream(stream):
                if self.options.pools and rng.random() < 0.08:
                    self.pool = self.pool or torch.cuda.MemPool()
                    with torch.cuda.use_mem_pool(self.pool):
                        self.live.append(self.tensor(bytes_))
                else:
                    self.live.append(self.tensor(bytes_))
        except torch.OutOfMemoryError:
            self.failures += 1
            for _ in range(len(self.live) // 2):
                self.free()

    def free(self) -> None:
        self.live.pop(self.rng.randrange(len(self.live)))

    def use(self) -> None:
        """Another stream uses a block, which is free only after the work of that stream."""
        stream = self.rng.choice(self.streams)
        if self.rng.random() < 0.7:
            sleep(stream, self.rng.choice((0, 200, 2000, 10000)))
        self.rng.choice(self.live).record_stream(stream)

    def empty_cache(self) -> None:
        before = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        self.empty_caches += torch.cuda.memory_reserved() < before

    def run(self) -> None:
        for _ in range(self.options.operations):
            choice = self.rng.random()
            if choice < self.options.empty_cache:
                self.empty_cache()
            elif choice < 0.1 and self.live:
                self.use()
            elif not self.live or (len(self.live) < self.options.most_live and self.rng.random() < 0.55):
                self.allocate()
            else:
                self.free()


def statistics_fault(counters: allocator_model.Counters) -> str:
    """PyTorch's statistics of the whole program against those of the model."""
    real = torch.cuda.memory_stats()
    for name, key in (("peak_reserved_bytes", "reserved_bytes.all.peak"), ("peak_active_bytes", "active_bytes.all.peak"),
                      ("peak_requested_bytes", "requested_bytes.all.peak"), ("segments", "segment.all.current"),
                      ("active_bytes", "active_bytes.all.current"), ("device_allocations", "num_device_alloc"),
                      ("device_releases", "num_device_free"), ("failures", "num_ooms")):
        if getattr(counters, name) != real[key]:
            return f"{name}: {getattr(counters, name)}, PyTorch counts {real[key]}"
    return ""


def play_fault(path: str, options: Options, program: Program) -> str:
    """A new allocator has as much memory as PyTorch's had: it releases what empty_cache released, and nothing for allocations
    that find memory. On a full device its addresses and retries differ, but not the calls of empty_cache.
    """
    played, real = allocator_model.play(path, options.memory), torch.cuda.memory_stats()
    for name, model, torch_ in (
        ("empty_cache", played.empty_caches, program.empty_caches),
        ("unclear releases", played.oddities.unclear_releases if options.context == "all" else 0, 0),
        ("peak_reserved_bytes", played.counters.peak_reserved_bytes, real["reserved_bytes.all.peak"]),
        ("reserved_bytes", played.counters.reserved_bytes, real["reserved_bytes.all.current"]),
    ):
        if model != torch_ and not ("reserved" in name and program.failures + real["num_alloc_retries"] > 0):
            return f"{name}: {model}, in PyTorch {torch_}"
    return ""


def main(options: Options) -> None:
    streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(3)]
    found = {"allocations": 0, "segment_events": 0, "failures": 0, "retries": 0, "empty_caches": 0}
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.programs):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.reset_accumulated_memory_stats()
            torch.cuda.memory._record_memory_history(max_entries=options.ring, context=options.context, clear_history=True)
            program = Program(seed, options, streams)
            program.run()
            path = os.path.join(options.keep or folder, f"{seed}.pickle")
            torch.cuda.memory._dump_snapshot(path)
            torch.cuda.memory._record_memory_history(enabled=None)
            result = allocator_model.check(path, options.limit_bytes, **options.settings)
            fault = result.fault()
            if not fault and options.ring >= 100000 and not result.oddities.unclear_failures:
                fault = statistics_fault(result.counters)
            if not fault and options.plays:
                fault = play_fault(path, options, program)
            if fault:
                faults.append(f"seed {seed}: {fault}")
            found["allocations"] += result.allocations
            found["segment_events"] += result.segment_events
            found["failures"] += program.failures
            found["retries"] += torch.cuda.memory_stats()["num_alloc_retries"]
            found["empty_caches"] += program.empty_caches
            del program  # the pool must not end while the next one is recorded
    print(json.dumps({**found, "faults": faults}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", type=lambda text: Options(**json.loads(text)))
    main(parser.parse_args().options)
    sys.stdout.flush()
    os._exit(0)  # PyTorch's streams outlive the emulated driver's threads
