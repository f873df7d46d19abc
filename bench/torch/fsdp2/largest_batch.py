# SPDX-License-Identifier: Apache-2.0
"""The largest batch that trains in a given amount of memory, by doubling and bisection. Every try is a process, because FSDP2's state is undefined
after running out of memory.

usage: python3 bench/torch/fsdp2/largest_batch.py --variant NAME [--seconds N] [--limit-mib N] [--start N] [--resolution N] [--sequence N]
       [--lengths] [--json FILE] [--device cpu --rehearse]

--limit-mib is the memory of a try, without its CUDA context. A try allocates the rest of the GPU beforehand, which keeps batches small and steps
short. On a CPU, a try fails if its sampled memory grows by more. Exits 0, 1 (a check failed) or 77 (nothing can run here)."""

import sys
import time

import options as settings

MIN_SECONDS = 2  # per try
SIZES = (("sequence", 2048, 256), ("steps", 3, 2), ("limit_mib", 16384, 64), ("start", 16, 8), ("resolution", 1, 4))


def tried(options, batch):
    """Trains a few steps. Returns the memory they took, or that it ran out; raises other failures."""
    import device as devices
    from bucketpool.errors import NoDeviceMemory, NoHostMemory
    from training import Training

    device = devices.of(options.device)
    options.batch = batch
    device.leave(options.limit_mib << 20)
    high, before = devices.HighWater(device), device.used_bytes()
    device.forget()
    high.start()
    try:
        training = Training(options, device)
        for step in range(options.steps):
            loss = training.backward(training.tokens(step))
            training.update()
            device.synchronize()
            device.check_limit(high)
    except Exception as error:
        if isinstance(error, (NoDeviceMemory, NoHostMemory)) or device.is_out_of_memory(error):
            return {"outcome": "out of memory", "said": str(error).split(". ", 1)[0][:300], **device.counters()}
        raise
    return {"outcome": "fits", "loss": loss.item().hex(), "used_bytes_of_the_training": high.now() - before, **device.counters(),
            **training.described()}


def search(try_batch, start, resolution):
    """The largest batch that fits and the smallest that does not, or None. try_batch returns True, False, or None to stop."""
    fits, fails = 0, None
    while fails is None or fails - fits > resolution:
        batch = start if not fits and fails is None else 2 * fits if fails is None else (fits + fails) // 2
        answer = try_batch(batch)
        if answer is None:
            break
        fits, fails = (batch, fails) if answer else (fits, batch)
    return fits, fails


def main():
    parser = settings.parser(__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("--limit-mib", type=int, help="16384; 64 with --rehearse")
    parser.add_argument("--start", type=int, help="the first batch: 16; 8 with --rehearse")
    parser.add_argument("--resolution", type=int, help="difference of batches at which the search ends: 1; 4 with --rehearse")
    parser.add_argument("--seconds", type=float, default=60, help="time for all tries")
    options = settings.complete(parser.parse_args(), SIZES)
    begin = time.monotonic()
    import torch

    import training  # noqa: F401: imported once, before processes are forked
    from attempt import OUT_OF_TIME, attempt, gpu_is_there
    from report import Report, skip_all

    if options.device == "cuda" and not gpu_is_there():
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="fsdp2/largest_batch", torch=torch.__version__, cuda=torch.version.cuda,
                    **settings.described(options), limit_bytes=options.limit_mib << 20, seconds=options.seconds, tries=[])
    longest = 0.0

    def try_batch(batch):
        nonlocal longest
        left = options.seconds - (time.monotonic() - begin)
        if left < max(MIN_SECONDS, longest):
            return None
        error, result, took = attempt(tried, options, batch, seconds=left)
        longest = max(longest, took)
        entry = {"batch": batch, "seconds": round(took, 2)}
        late = error is not None and error.startswith(OUT_OF_TIME)
        entry |= {"outcome": OUT_OF_TIME if late else "failed", "said": error, "traceback": result} if error else result
        report.document["tries"].append(entry)
        report.write()
        print(f"batch {batch}: {entry['outcome']} after {took:.1f} s  {entry.get('said', '')}", flush=True)
        # Without memory, a process may end by a signal.
        died = error is not None and error.startswith("the process ended with")
        return {"fits": True, "out of memory": False}.get(entry["outcome"], False if died else None)

    fits, fails = search(try_batch, options.start, options.resolution)
    tries = report.document["tries"]
    best = next((each for each in tries if each["batch"] == fits), {})
    kept = ("used_bytes_of_the_training", "torch_peak_reserved_bytes", "num_alloc_retries", "pool_bytes", "loss")
    report.figure("fsdp2: largest batch before out of memory", options.variant, largest_batch=fits, smallest_that_fails=fails,
                  complete=fails is not None and fails - fits <= options.resolution, tries=len(tries), limit_bytes=options.limit_mib << 20,
                  sequence=options.sequence, **{name: best.get(name) for name in kept})
    failed = [f"batch {each['batch']}: {each['said']}" for each in tries if each["outcome"] == "failed"]
    report.check("all failures are out of memory", not failed, "; ".join(failed))
    report.check("a batch fits", fits > 0, f"{fits}")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
