"""Figures of PyTorch's caching allocator, in the sizes and the order of bench/gpu_memory.c: layer after layer, each stays while the next is
there. Prints JSON; exits 77 where there is no PyTorch or no GPU for it.

usage: python3 bench/torch/allocator.py [--json FILE] [--turns N]"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    print(f"PyTorch is not installed: {error}")
    sys.exit(77)

MIB = 1 << 20
LAYERS = 64  # of a window


def layers_in_turn(size):
    """Nanoseconds for each layer. Through torch.empty: what a runtime written in Python pays."""
    before = None
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.empty(size, dtype=torch.uint8, device="cuda")
        before = now  # the layer before goes
    before = now = None
    return (time.perf_counter_ns() - begin) / LAYERS


def raw_in_turn(size):
    """The allocator by itself, without tensors."""
    before = 0
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.cuda.caching_allocator_alloc(size)
        if before:
            torch.cuda.caching_allocator_delete(before)
        before = now
    torch.cuda.caching_allocator_delete(before)
    return (time.perf_counter_ns() - begin) / LAYERS


def across_streams(size):
    """Each layer is used on another stream, and says so: record_stream."""
    other = torch.cuda.Stream()
    before = None
    begin = time.perf_counter_ns()
    for _ in range(LAYERS):
        now = torch.empty(size, dtype=torch.uint8, device="cuda")
        now.record_stream(other)
        before = now
    before = now = None
    return (time.perf_counter_ns() - begin) / LAYERS


def fresh(size):
    """Memory that the allocator does not have yet, and gives back."""
    torch.cuda.empty_cache()
    begin = time.perf_counter_ns()
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    took = time.perf_counter_ns() - begin
    del tensor
    torch.cuda.empty_cache()
    return took


def figure(name, size, run, turns):
    values = []
    for _ in range(turns):
        values.append(run(size))
        torch.cuda.synchronize()
    median = statistics.median(values)
    return {"group": f"torch: {size // MIB} MiB", "name": name, "ns_min": round(min(values), 1), "ns_median": round(median, 1),
            "bytes": size, "us_per_gib_median": round(median / 1e3 * (1 << 30) / size, 3), "windows": turns}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--turns", type=int, default=51)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        return 77
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    figures = []
    for size in (16 * MIB, 256 * MIB):
        if 4 * size > free / 2:
            continue
        figures.append(figure("torch.empty, del: layers in turn", size, layers_in_turn, options.turns))
        figures.append(figure("caching allocator alone: layers in turn", size, raw_in_turn, options.turns))
        figures.append(figure("torch.empty, record_stream, del: layers in turn", size, across_streams, options.turns))
    for size in (32 * MIB, 1024 * MIB, 8192 * MIB):
        if size <= free / 4:
            figures.append(figure("torch.empty of memory that is not cached", size, fresh, 15))
    document = {"format": "bucketpool.bench/1", "torch": torch.__version__, "cuda": torch.version.cuda,
                "device": torch.cuda.get_device_name(0), "figures": figures}
    text = json.dumps(document, indent=2)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            print(text, file=file)
    else:
        print(text)
    return 0


sys.exit(main())
