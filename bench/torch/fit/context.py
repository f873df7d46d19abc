# SPDX-License-Identifier: Apache-2.0
"""Measures contexts and libraries on a GPU: the driver's used bytes less PyTorch's reserved ones, beside the reserves of `fit` (fitting/gpus.py).

usage: python3 bench/torch/fit/context.py --predictions FILE [--json FILE] [--device cpu --rehearse]

A process for each training, alone on the GPU: other processes would count. With one GPU a communicator has one rank, and no buffers for peers.
Exits 0, 1 (a reserve is too small) or 77 (nothing can run here)."""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]

import edges  # noqa: E402
from report import Report, skip_all  # noqa: E402

GROUP = "fit: beside PyTorch's memory"
TRAININGS = ("dense", "fsdp2")
TRY_SECONDS = 120
GIB = 1 << 30


def beside(device):
    return device.used_bytes() - device.reserved_bytes()


def communicate(device):
    """A communicator of one rank, made and used."""
    import torch
    import torch.distributed as dist
    where = torch.device(device.name, 0 if device.name == "cuda" else None)
    dist.init_process_group("nccl" if device.name == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = torch.ones(1 << 24, device=where)
    dist.all_reduce(data)
    dist.all_gather_into_tensor(torch.empty_like(data), data)
    dist.reduce_scatter_tensor(torch.empty_like(data), data)


def measured(options, name, batch):
    """In a forked process."""
    import runs
    import torch
    device, found = runs.device_of(name), {}
    torch.ones(1, device=name)
    found["context"] = beside(device)

    def after():
        found["training"] = beside(device)
        communicate(device)
        found["NCCL"] = beside(device)

    result = runs.train(device, options, batch, steps=2, after=after)
    total = torch.cuda.mem_get_info(0)[1] if name == "cuda" else None
    return {**found, "total_bytes": total, "outcome": result["outcome"], "said": result.get("said")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predictions", required=True, metavar="FILE")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    try:
        known = {case: edges.read(options.predictions, case, options.rehearse)[1] for case in TRAININGS}
    except (OSError, ValueError, KeyError) as error:
        skip_all(f"no predictions: {error}")
    import runs
    from attempt import attempt, gpu_is_there
    if options.device == "cuda" and not gpu_is_there():
        skip_all("PyTorch finds no GPU")
    from bucketpool.torch.fitting import gpus
    report = Report(options.json, program="fit/context", rehearsed=options.rehearse, versions=edges.versions())
    for case in TRAININGS:
        batch = max(1, known[case]["allocators"]["default"]["largest"])
        training = edges.options_of(case, options.rehearse, os.path.dirname(os.path.abspath(options.predictions)))
        runs.load(training)
        error, found, _ = attempt(measured, training, options.device, batch, seconds=TRY_SECONDS)
        if error or found["outcome"] != "runs":
            print(found if error else "", flush=True)
            report.check(f"{case}: runs", False, error or found["said"])
            continue
        report.document["total_bytes"] = found["total_bytes"]
        for key, title, reserve in (("context", f"context, before {case}", gpus.ALONE), ("training", f"{case}, micro-batch {batch}", gpus.ALONE),
                                    ("NCCL", f"{case} and a communicator of one rank", gpus.WITH_NCCL)):
            report.figure(GROUP, title, beside_bytes=found[key], fit_reserve_bytes=reserve, total_bytes=found["total_bytes"])
            if options.device == "cuda":
                report.check(f"the reserve of fit is enough: {title}", found[key] <= reserve, f"{found[key] / GIB:.3f} GiB, reserve {reserve / GIB:.3f}")
            else:
                report.skip(f"the reserve of fit is enough: {title}", "a CPU has no driver")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
