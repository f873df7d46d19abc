# SPDX-License-Identifier: Apache-2.0
"""Figures of PyTorch's caching allocator, in the sizes and order of bench/gpu/memory.c: a sequence of layers, two live at a time.

    python3 bench/torch/allocator.py --device cuda --json FILE
    python3 bench/torch/allocator.py --device cpu --rehearse

On a CPU, tensors come from the C library's allocator, and cases of the caching allocator are skipped. Exits 77 without
PyTorch or without a GPU for it."""

import argparse
import sys
import time

from report import Report, skip_all

try:
    import torch
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

from machine import machine

MIB, GIB = 1 << 20, 1 << 30
LAYERS = 64  # per window


def layers_in_turn(on, size):
    """Nanoseconds per layer through torch.empty, the cost to a Python runtime."""
    before = None
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.empty(size, dtype=torch.uint8, device=on.device)
        before = now  # frees the previous layer
    before = now = None  # noqa: F841
    return (time.perf_counter_ns() - begin) / LAYERS


def raw_in_turn(on, size):
    """The caching allocator alone, without tensors."""
    before = 0
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.cuda.caching_allocator_alloc(size)
        if before:
            torch.cuda.caching_allocator_delete(before)
        before = now
    torch.cuda.caching_allocator_delete(before)
    return (time.perf_counter_ns() - begin) / LAYERS


def across_streams(on, size):
    """Each layer is used on another stream and announced by record_stream."""
    other = torch.cuda.Stream()
    before = None
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.empty(size, dtype=torch.uint8, device=on.device)
        now.record_stream(other)
        before = now
    before = now = None  # noqa: F841
    return (time.perf_counter_ns() - begin) / LAYERS


def fresh(on, size):
    """Memory that is not cached, and is returned to the driver."""
    on.trim()
    begin = time.perf_counter_ns()
    tensor = torch.empty(size, dtype=torch.uint8, device=on.device)
    took = time.perf_counter_ns() - begin
    del tensor
    on.trim()
    return took


CASES = [("torch.empty, del: layers in turn", layers_in_turn, False), ("caching allocator alone: layers in turn", raw_in_turn, True),
         ("torch.empty, record_stream, del: layers in turn", across_streams, True)]
FRESH = "torch.empty of memory that is not cached"


def figure(report, on, name, size, run, turns):
    group = f"torch: {size // MIB} MiB"
    try:
        values = []
        for _ in range(turns):
            values.append(run(on, size))
            on.synchronize()
    except (torch.OutOfMemoryError, MemoryError) as error:
        report.skip(f"{group}: {name}", f"out of memory: {error}"[:300])
        on.free()
        return
    median = sorted(values)[len(values) // 2]
    report.figure(group, name, values, bytes=size, us_per_gib_median=round(median / 1e3 * GIB / size, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, 3 turns")
    parser.add_argument("--turns", type=int, default=51)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    on = machine(options.device)
    if on is None:
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="allocator", **on.head())
    free = torch.cuda.mem_get_info()[0] if on.name == "cuda" else 64 * GIB
    layers, large = ([MIB], [2 * MIB]) if options.rehearse else ([16 * MIB, 256 * MIB], [32 * MIB, GIB, 8 * GIB])
    turns = 3 if options.rehearse else options.turns
    for size in layers:
        for name, run, cached in CASES:
            where = f"torch: {size // MIB} MiB: {name}"
            if cached and on.name != "cuda":
                report.skip(where, "CPUs have no caching allocator")
            elif 4 * size > free / 2:
                report.skip(where, f"{free} bytes are free")
            else:
                figure(report, on, name, size, run, turns)
    for size in large:
        if size > free / 4:
            report.skip(f"torch: {size // MIB} MiB: {FRESH}", f"{free} bytes are free")
        else:
            figure(report, on, FRESH, size, fresh, min(turns, 15))
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
