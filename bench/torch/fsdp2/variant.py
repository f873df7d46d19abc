# SPDX-License-Identifier: Apache-2.0
"""One memory variant: training steps, their losses bit for bit, times, and memory.

usage: python3 bench/torch/fsdp2/variant.py --variant plain|expandable_segments|cuda_malloc_async|scheduled|
       scheduled_expandable_segments|max [--lengths] [--json FILE] [--device cpu --rehearse]

A pool's memory is not in PyTorch's counters; the driver's figure includes it. Exits 0, 1 (a check failed) or
77 (nothing can run here)."""

import math
import sys
import time
import traceback

import options as settings

NOT_COUNTED = "PyTorch's counters do not include the pool's slab; the driver's figure does"


def measure(options, device, report):
    """The training: writes each step to the document, then the figure and the checks."""
    from device import HighWater
    from training import Training

    high, before = HighWater(device), device.used_bytes()
    begin = time.perf_counter()
    training = Training(options, device)
    device.synchronize()
    after_model, build_s = high.now(), time.perf_counter() - begin
    times = []
    for step in range(options.steps):
        if step == 0:
            high.start()  # during the warm-up steps
        elif step == options.warmup:
            high.stop()
        tokens = training.tokens(step)
        device.synchronize()
        start = time.perf_counter_ns()
        loss = training.backward(tokens)
        training.update()
        value = loss.item()
        device.synchronize()
        took = time.perf_counter_ns() - start
        high.now()
        if step >= options.warmup:
            times.append(took)
        report.document["steps"].append({"step": step, "loss": value.hex(), "ns": took, "tokens": tokens.shape[0] * (tokens.shape[1] - 1),
                                         "used_bytes": device.used_bytes(), "warmup": step < options.warmup,
                                         "num_alloc_retries": device.counters()["num_alloc_retries"]})
        report.write()
    losses = [float.fromhex(step["loss"]) for step in report.document["steps"]]
    tokens = [step["tokens"] for step in report.document["steps"] if not step["warmup"]]
    report.figure("fsdp2: varying lengths" if options.lengths else "fsdp2: one length", options.variant, times,
                  tokens_per_s=round(sum(tokens) / sum(times) * 1e9), losses=[loss.hex() for loss in losses],
                  used_bytes_before=before, used_bytes_after_model=after_model, used_bytes_peak=high.bytes,
                  used_bytes_of_the_training=high.bytes - before, used_bytes_source=device.memory_source,
                  used_bytes_sampled="by a thread in the steps of the warm-up, then after each step", build_s=round(build_s, 2),
                  **device.counters(), torch_counters=NOT_COUNTED, **training.described())
    report.check("losses are finite", all(map(math.isfinite, losses)), f"{losses[0]:.6f} to {losses[-1]:.6f}")
    training.check(report, options.steps)
    training.close()


def main():
    options = settings.complete(settings.parser(__doc__.splitlines()[0]).parse_args())
    settings.needs_timed_steps(options)
    import torch

    import device as devices
    from report import Report, skip_all

    if options.device == "cuda" and not torch.cuda.is_available():
        skip_all("PyTorch finds no GPU")
    device = devices.of(options.device)
    report = Report(options.json, program="fsdp2/variant", torch=torch.__version__, cuda=torch.version.cuda, device=device.name,
                    allocator=device.backend, **settings.described(options), steps=[])
    if options.device == "cuda":
        wanted = "cudaMallocAsync" if options.variant == "cuda_malloc_async" else "native"
        report.check("the allocator is the variant's", device.backend == wanted, device.backend)
    try:
        measure(options, device, report)
    except Exception as error:  # the document keeps the previous steps
        traceback.print_exc()
        report.check(f"{options.variant} trains", False, f"{type(error).__name__}: {error}"[:500])
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
