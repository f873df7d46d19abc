# SPDX-License-Identifier: Apache-2.0
"""The largest batch that trains when PyTorch may take a given amount of the GPU, by doubling and bisection. Each try is a process, forked after
PyTorch is imported. For the way "plan" a first process without the limit records the plan.

usage: python3 bench/torch/steps/largest.py WAY [--limit-mib N] [--length N] [--start N] [--resolution N] [--seconds N] [--json FILE]
       [--device cpu --rehearse]

A batch is a number of sequences of --length tokens. On a CPU, a try fails if its sampled memory grows by more than the limit. Exits 0, 1 (a check
failed) or 77 (nothing can run here)."""

import argparse
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "fsdp2"), os.path.dirname(HERE), os.path.join(HERE, "..", "..", "..", "python")]

import variants  # noqa: E402

CHOICES = ("plain", "expandable", "plan, expandable")
STEPS = 4
# option, default on a GPU, default with --rehearse
SIZES = (("limit_mib", 16384, 72), ("length", 128, 64), ("start", 48, 16), ("resolution", 1, 32))
GROUP = "steps: largest batch"


def train(options, batch, plan, limited):
    """A few steps of a process. plan: recorded if the process is not limited, otherwise served; None: neither. Raises when memory runs out."""
    import device as devices
    import torch
    import train as trainings
    from bucketpool.torch import steps

    device = devices.of(options.device)
    high = devices.HighWater(device)
    if limited and options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction((options.limit_mib << 20) / torch.cuda.get_device_properties(0).total_memory)
    elif limited:
        device.leave(options.limit_mib << 20)
    served = None
    if plan is not None:
        served = steps.serve(plan, device=options.device) if limited else steps.serve(record=3, save=plan, device=options.device)
    training = trainings.Training(trainings.parse(["--device", options.device, "--batch", str(batch), "--length", str(options.length),
                                                   *(["--rehearse"] if options.rehearse else [])]))
    for _ in range(STEPS):
        loss = training.step()
        if limited:
            device.check_limit(high)
    found = {"loss": loss.hex(), **device.counters()}
    if served is not None:
        served.stop()
        summary = served.summary()
        found |= {name: summary[name] for name in ("slab_bytes", "served", "allocations", "anywhere", "because")}
    return found


def tried(options, batch, plan, limited=True):
    """As train(), and says if memory ran out."""
    import device as devices
    try:
        return {"outcome": "fits", **train(options, batch, plan, limited)}
    except Exception as error:
        if devices.of(options.device).is_out_of_memory(error):
            return {"outcome": "out of memory", "said": str(error).split(". ", 1)[0][:300]}
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("way", choices=CHOICES)
    for name, usual, small in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{usual}; {small} with --rehearse")
    parser.add_argument("--seconds", type=float, default=300, help="time for all tries (300)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    for name, usual, small in SIZES:
        if getattr(options, name) is None:
            setattr(options, name, small if options.rehearse else usual)
    begin = time.monotonic()
    os.environ.update(variants.environment(options.way, options.device), PYTORCH_NVML_BASED_CUDA_CHECK="1")
    import torch

    import fake_group  # noqa: F401: imported once, before processes are forked
    import train as trainings
    from attempt import OUT_OF_TIME, attempt, gpu_is_there
    from largest_batch import search
    from bucketpool.torch import steps  # noqa: F401
    from report import Report, skip_all

    trainings.described(trainings.parse(["--rehearse"]))
    if options.device == "cuda" and not gpu_is_there():
        skip_all("PyTorch finds no GPU")
    if options.device == "cpu":
        torch.set_num_threads(1)
    report = Report(options.json, program="steps/largest", way=options.way, rehearsed=options.rehearse, limit_bytes=options.limit_mib << 20,
                    length=options.length, tries=[])
    plan = os.path.join(tempfile.mkdtemp(), "plan.json") if options.way.startswith("plan") else None
    longest = 0.0

    def left():
        return options.seconds - (time.monotonic() - begin)

    def one(batch, limited):
        error, result, took = attempt(tried, options, batch, plan, limited, seconds=max(0.1, left()))
        late = error is not None and error.startswith(OUT_OF_TIME)
        found = {"batch": batch, "limited": limited, "seconds": round(took, 2)}
        found |= {"outcome": OUT_OF_TIME if late else "failed", "said": error, "traceback": result} if error else result
        report.document["tries"].append(found)
        report.write()
        print(f"batch {batch}{'' if limited else ', recorded'}: {found['outcome']} after {took:.1f} s  {found.get('said', '')}", flush=True)
        return found

    def try_batch(batch):
        nonlocal longest
        start = time.monotonic()
        if left() < longest:
            return None
        if plan is not None:
            if os.path.exists(plan):
                os.remove(plan)
            recorded = one(batch, False)
            if recorded["outcome"] != "fits" or not os.path.exists(plan):
                return False if recorded["outcome"] == "out of memory" else None
        answer = {"fits": True, "out of memory": False}.get(one(batch, True)["outcome"])
        longest = max(longest, time.monotonic() - start)
        return answer

    fits, fails = search(try_batch, options.start, options.resolution)
    tries = report.document["tries"]
    best = next((each for each in tries if each["batch"] == fits and each["limited"]), {})
    report.figure(GROUP, options.way, largest_batch=fits, smallest_that_fails=fails, limit_bytes=options.limit_mib << 20, length=options.length,
                  complete=fails is not None and fails - fits <= options.resolution, tries=len(tries),
                  **{name: value for name, value in best.items() if name not in ("batch", "limited", "outcome", "seconds")})
    failed = [f"batch {each['batch']}: {each['said']}" for each in tries if each["outcome"] == "failed"]
    report.check("all failures are out of memory", not failed, "; ".join(failed))
    report.check("a batch fits", fits > 0, str(fits))
    if plan is not None:
        report.check("the plan served", best.get("served", 0) > 0, f"{best.get('served', 0):,} of {best.get('allocations', 0):,} allocations")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
