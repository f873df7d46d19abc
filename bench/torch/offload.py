# SPDX-License-Identifier: Apache-2.0
"""Offloading a tensor from a GPU and restoring it: bucketpool, torch_memory_saver, and plain copies to pinned memory.

    python3 bench/torch/offload.py --device cuda --peers DIR --json FILE
    python3 bench/torch/offload.py --device cpu --rehearse

Each way has a tensor of the same size; torch_memory_saver's two run after the others. In a turn each is offloaded and restored once, in random
order, and its bytes are checked. The first turn pins host memory and has separate rows. `freed_bytes`: increase of the driver's free memory while
the bytes are offloaded (on a CPU: of the process's memory, which is imprecise). Exit 0, 1 if bytes differ, 77 if nothing could run."""

import argparse
import ctypes
import random
import statistics
import sys
import time

from report import Report, skip_all

try:
    import torch
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

from machine import machine
from peers import Unavailable, attribute, unpack

GIB, MIB = 1 << 30, 1 << 20


class PlainCopy:
    """A copy to pinned memory and back; the tensor stays allocated."""

    name, fails_program = "torch: a copy to pinned memory", True

    def __init__(self, on, count):
        self.on, self.count = on, count
        self.tensor = torch.empty(count, dtype=torch.uint8, device=on.device)
        self.host = None

    def out(self):
        if self.host is None:
            self.host = self.on.pinned(self.count)
        self.host.copy_(self.tensor, non_blocking=True)
        self.on.synchronize()

    def back(self):
        self.tensor.copy_(self.host, non_blocking=True)
        self.on.synchronize()

    def close(self):
        self.tensor = self.host = None


class FreedCopy(PlainCopy):
    """The same with the tensor freed: it is restored at another address."""

    name = "torch: a copy to pinned memory, freed"

    def out(self):
        super().out()
        self.tensor = None
        self.on.trim()

    def back(self):
        self.tensor = torch.empty(self.count, dtype=torch.uint8, device=self.on.device)
        super().back()


class Bucketpool:
    """A release group of a pool: the persistent memory, with one request in it."""

    name, fails_program = "bucketpool: a release group", True

    def __init__(self, on, count):
        import bucketpool as bp
        from bucketpool import _abi
        from bucketpool._library import call, core, made

        self.abi, self.call, self.core = _abi, call, core()
        model = bp.Model("offload")
        model.add_bucket(model.add_unit("u0"), "uint8", 4096)
        buckets = bp.Buckets(model, bucketing="given", padding="given", roles=["param"])
        self.device = bp.Device.cuda(0) if on.name == "cuda" else bp.Device.host()
        self.pool = bp.Pool(self.device, bp.Plan(buckets, bp.Schedule.training(buckets)), persistent_bytes=count)
        request = self.pool.bind("", 0, "param", "uint8", count, placement="persistent")
        self.stream = self.device.stream("offload")
        self.view, = self.pool.acquire([request], self.stream)
        self.tensor = self.view.torch("uint8")
        self.offload = made(self.core.bp_offload_create, self.pool.handle, None)

    def out(self):
        self.call(self.core.bp_offload_begin, self.offload, b"persistent", self.abi.BP_OFFLOAD_KEEP)
        self.call(self.core.bp_offload_finish, self.offload, b"persistent")

    def back(self):
        self.call(self.core.bp_restore_begin, self.offload, b"persistent", self.abi.BP_RESTORE_LEAVE)
        self.call(self.core.bp_restore_finish, self.offload, b"persistent")

    def close(self):
        self.tensor = None
        self.core.bp_offload_destroy(ctypes.byref(self.offload))
        self.view.release(self.stream)
        self.pool.close()


class MemorySaver:
    """torch_memory_saver with its allocator in a MemPool, which avoids preloading."""

    name, tag, fails_program = "torch_memory_saver", "bench", False
    retains = False

    def __init__(self, on, count):
        if on.name != "cuda":
            raise Unavailable("needs a GPU")
        self.saver = attribute("torch_memory_saver", "torch_memory_saver")
        if self.saver._impl is None:
            self.saver.hook_mode = "torch"
        with self.saver.region(tag=self.tag, enable_cpu_backup=True):
            self.tensor = torch.empty(count, dtype=torch.uint8, device=on.device)

    def out(self):
        self.saver.retain_cpu_backup = self.retains
        self.saver.pause(self.tag)

    def back(self):
        self.saver.retain_cpu_backup = self.retains
        self.saver.resume(self.tag)

    def close(self):
        self.tensor = None
        pools, library = self.saver._impl._mem_pools, self.saver._impl._binary_wrapper.cdll
        library.tms_set_interesting_region(True)  # else it ends the process
        for key in [key for key in pools if key[0] == self.tag]:
            del pools[key]  # before the CUDA runtime ends
        library.tms_set_interesting_region(False)


class RetainingSaver(MemorySaver):
    """Keeps its pinned memory for the next offload, as bucketpool does."""

    name, tag, retains = "torch_memory_saver, host memory retained", "retained", True


WAYS = [Bucketpool, PlainCopy, FreedCopy]
SAVERS = [MemorySaver, RetainingSaver]  # last, because they replace allocators of the process


def pattern(tensor, value):
    """Rows of 1 MiB, and the byte that fills each."""
    rows = tensor.view(-1, MIB)
    return rows, ((value + 7 * torch.arange(len(rows), device=tensor.device)) % 251).to(torch.uint8)[:, None]


def write(tensor, value):
    rows, bytes_of = pattern(tensor, value)
    rows.copy_(bytes_of.expand_as(rows))


def holds(tensor, value):
    return all(bool((part == wanted).all()) for part, wanted in zip(*(each.split(64) for each in pattern(tensor, value))))


def turn(on, way, number):
    """Nanoseconds of offload and restore, the bytes freed in between, and True if the bytes were restored."""
    write(way.tensor, number)
    on.synchronize()
    before, begin = on.used_bytes(), time.perf_counter_ns()
    way.out()
    out, freed = time.perf_counter_ns() - begin, before - on.used_bytes()
    begin = time.perf_counter_ns()
    way.back()
    on.synchronize()
    back = time.perf_counter_ns() - begin
    return out, back, freed, holds(way.tensor, number)


def row(report, way, count, turns, suffix=""):
    outs, backs, freed, _ = zip(*turns)
    group = f"offload of {count // MIB} MiB"
    for direction, values in (("out", outs), ("back", backs)):
        median = statistics.median(values)
        report.figure(group, f"{way.name}: {direction}{suffix}", values, bytes=count, seconds=median / 1e9,
                      gib_per_s=round(count / GIB / (median / 1e9), 3), **({"freed_bytes": statistics.median(freed)} if direction == "out" else {}))


def check(report, way, name, passed, reason=""):
    """Failures of torch_memory_saver invalidate its rows, but do not fail the program."""
    if passed or way.fails_program:
        report.check(f"{way.name}: {name}", passed, reason)
    else:
        report.skip(f"{way.name}: {name}", reason or "bytes differ")


def measured(report, on, count, kinds, turns, until):
    """All turns of ways that exist at the same time, and their rows."""
    ways, figures, shuffle = [], {}, random.Random(0)
    for kind in kinds:
        try:
            way = kind(on, count)
            first = turn(on, way, 1)
        except Exception as error:
            report.skip(kind.name, str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}")
            if kind.fails_program:
                report.check(f"{kind.name}: the first turn", False, str(error))
            continue
        check(report, way, "its bytes are restored", first[3])
        row(report, way, count, [first], ", first time")
        ways.append(way)
        figures[way] = []
    order = list(ways)
    for number in range(turns):
        if number and time.monotonic() > until:
            break
        shuffle.shuffle(order)
        for way in list(order):
            try:
                figures[way].append(turn(on, way, number + 2))
            except Exception as error:
                order.remove(way)
                check(report, way, f"turn {number + 2}", False, f"{type(error).__name__}: {error}")
    for way in ways:
        if figures[way]:
            row(report, way, count, figures[way])
            check(report, way, "its bytes are restored each time", all(one[3] for one in figures[way]))
    for way in ways:
        way.close()
    on.free()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="64 MiB, 2 turns")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--turns", type=int, default=5, help="maximum number of turns after the first")
    parser.add_argument("--seconds", type=float, default=60, help="after so many seconds no further turn starts")
    parser.add_argument("--peers", metavar="DIR", help="folder with the wheel of torch_memory_saver")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    on = machine(options.device)
    if on is None:
        skip_all("PyTorch finds no GPU")
    count = 64 * MIB if options.rehearse else int(options.gib * GIB) // (2 * MIB) * (2 * MIB)
    report = Report(options.json, program="offload", **on.head(), peers=unpack(options.peers))
    begin = time.monotonic()
    for number, kinds in enumerate((WAYS, SAVERS)):
        until = begin + options.seconds * (number + 1) / 2
        measured(report, on, count, kinds, 2 if options.rehearse else options.turns, until)
    print(f"{time.monotonic() - begin:.1f} s")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
