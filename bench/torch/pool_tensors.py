# SPDX-License-Identifier: Apache-2.0
"""Memory after each statement of a program whose tensors are in a pool: by the driver, by PyTorch and by the library.

    python3 bench/torch/pool_tensors.py --device cuda --json FILE
    python3 bench/torch/pool_tensors.py --device cpu --rehearse

Runs the statements in rounds. `unaccounted_bytes` is the driver's used memory without the pool's slab and without PyTorch's segments
outside of it: the context, kernels (loaded at their first launch), streams, local memory. The first round loads; a later round
that keeps memory has lost it, and the statement that keeps it says who. On a CPU the statements run on the emulated runtime and
driver of a build with tests (BUCKETPOOL_BUILD), without kernels. Exits 77 without PyTorch or without a GPU for it."""

import argparse
import os
import subprocess
import sys

from report import SKIPPED, Report, skip_all

try:
    import torch
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

import bucketpool as bp
from bucketpool.torch.allocator import serving
from machine import machine

MIB = 1 << 20
SLAB, ROUNDS = 512 * MIB, 3
ALLOWED = 8 * MIB  # of a round that has loaded everything: the driver takes memory in pieces of 2 MiB
LIBRARY = "the library"


class Ledger:
    """A row for each statement; `kept`: by round and statement, how much `unaccounted_bytes` has grown."""

    def __init__(self, report):
        self.report, self.round, self.slab, self.memory, self.last, self.kept, self.owner = report, 0, 0, None, 0, {}, {}

    def figures(self):
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        served = self.memory.statistics.live_bytes if self.memory else 0
        return {"used_bytes": total - free, "torch_reserved_bytes": reserved, "torch_allocated_bytes": torch.cuda.memory_allocated(),
                "served_bytes": served, "slab_bytes": self.slab, "unaccounted_bytes": total - free - self.slab - (reserved - served)}

    def note(self, statement, owner="PyTorch"):
        figures = self.figures()
        grown, self.last = figures["unaccounted_bytes"] - self.last, figures["unaccounted_bytes"]
        if self.round:
            self.kept[self.round, statement] = grown
            self.owner[statement] = owner
        self.report.figure(f"round {self.round}", statement, owner=owner, **figures, unaccounted_growth_bytes=grown)

    def kept_in(self, number, owner=None):
        rows = {statement: grown for (at, statement), grown in self.kept.items()
                if at == number and grown and owner in (None, self.owner[statement])}
        named = ", ".join(f"{grown / MIB:+.1f} at {statement}" for statement, grown in rows.items())
        return sum(rows.values()), f"{sum(rows.values()) / MIB:.1f} MiB{f': {named}' if named else ''}"


def a_pool(device):
    """A pool with a persistent request for PyTorch's segments beside a bucket."""
    model = bp.Model("pool_tensors")
    model.add_bucket(model.add_unit("unit"), "bf16", 1000)
    buckets = bp.Buckets(model, bucketing="given", padding="given", roles=("param", ))
    plan = bp.Plan(buckets, bp.Schedule.training(buckets), policy="scheduled")
    pool = bp.Pool(device, plan, persistent_bytes=SLAB)
    return pool, pool.bind("", 0, "param", "fp8_e4m3", SLAB, placement="persistent")


def one_round(ledger, kernels):
    """The statements; the tensors' values are checked where kernels run."""
    note = ledger.note

    def of(numel, number):
        where = dict(dtype=torch.int32, device="cuda")
        return torch.full((numel, ), number, **where) if kernels else torch.empty(numel, **where)

    def equal(tensor, number):
        return not kernels or bool((tensor == number).all())

    device = bp.Device.cuda(0)
    note("Device.cuda", LIBRARY)
    pool, request = a_pool(device)
    (address, size), ledger.slab = pool.address(request), sum(slab.bytes for slab in pool.slabs)
    note("Pool", LIBRARY)
    memory = ledger.memory = serving(pool=pool, request=request)
    note("serving", LIBRARY)
    with torch.cuda.use_mem_pool(memory.mem_pool):
        tensors = [of(numel, number) for number, numel in enumerate([5, 1 << 20, 20 << 20, 3333])]
        note("tensors in the pool")
        try:
            torch.empty(2 * SLAB, dtype=torch.uint8, device="cuda")
            raise AssertionError("1 GiB came from a slab of 512 MiB")
        except torch.OutOfMemoryError:
            pass
        note("a tensor that does not fit")
    outside = torch.zeros(1 << 20, device="cuda") if kernels else torch.empty(1 << 20, device="cuda")
    note("a tensor outside")
    assert not address <= outside.data_ptr() < address + size
    for number, tensor in enumerate(tensors):
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        assert address <= begin and end <= address + size, (begin, end, address, size)
        assert equal(tensor, number), number
    note("comparisons")
    assert memory.statistics.live_segments > 0 and memory.statistics.refused > 0
    side = torch.cuda.Stream()
    note("torch.cuda.Stream")
    with torch.cuda.use_mem_pool(memory.mem_pool), torch.cuda.stream(side):
        if kernels:
            torch.cuda._sleep(3_000_000)
            note("torch.cuda._sleep")
        late = of(20 << 20, 9)
        note("a tensor of the stream")
    side.synchronize()
    assert equal(late, 9) and address <= late.data_ptr() < address + size
    note("comparison")
    del tensor, tensors, late, outside
    torch.cuda.empty_cache()
    note("del, empty_cache")
    memory.stop()
    ledger.memory = None
    note("serving.stop", LIBRARY)
    pool.close()
    ledger.slab = 0
    note("Pool.close", LIBRARY)
    del pool, memory
    device.close()
    note("Device.close", LIBRARY)


def judge(ledger, end):
    """Checks after the rounds. `end`: the figures after each."""
    check = ledger.report.check
    held = [figures["torch_reserved_bytes"] for figures in end]
    check("PyTorch's allocator holds nothing after a round", not any(held), f"{held} bytes")
    for number in range(1, ROUNDS + 1):
        bytes_, said = ledger.kept_in(number, LIBRARY)
        allowed = ALLOWED if number > 1 else 64 * MIB  # the driver's own, of the first mapping and stream
        check(f"round {number}: the library's statements keep nothing", bytes_ <= allowed, said)
    for number in range(2, ROUNDS + 1):
        check(f"round {number} keeps nothing", end[number - 1]["used_bytes"] - end[number - 2]["used_bytes"] <= ALLOWED, ledger.kept_in(number)[1])
    ledger.report.figure("first round", "kept by the driver", bytes=ledger.kept_in(1)[0], statements=ledger.kept_in(1)[1])


def emulated(arguments):
    """The same program on the emulated driver and runtime."""
    fakes = os.path.join(os.environ.get("BUCKETPOOL_BUILD", "build"), "tests", "fakes")
    libraries = [os.path.join(fakes, *parts) for parts in (("cuda", "libcuda.so.1"), ("cudart", "libcudart.so.13"))]
    for path in libraries:
        if not os.path.exists(path):
            skip_all(f"{path} was not built; set BUCKETPOOL_BUILD to a build with tests")
    return subprocess.call([sys.executable, __file__, "--device", "cuda", "--without-kernels", *arguments],
                           env={**os.environ, "LD_PRELOAD": ":".join(libraries), "FAKE_CUDA": f"memory={8 << 30},granularity={2 * MIB},poison=0"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="no effect: a CPU has the emulated driver")
    parser.add_argument("--without-kernels", action="store_true", help="tensors are not filled: for the emulated runtime")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.device == "cpu":
        return emulated(["--json", options.json] if options.json else [])
    on = machine("cuda")
    if on is None:
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="pool_tensors", **on.head())
    ledger = Ledger(report)
    ledger.note("context")
    end = []
    for ledger.round in range(1, ROUNDS + 1):
        one_round(ledger, not options.without_kernels)
        end.append(ledger.figures())
    judge(ledger, end)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
