# SPDX-License-Identifier: Apache-2.0
"""A training step as PyTorch records it on a GPU, beside its recording on fake tensors and the model of the allocator.

    python3 bench/torch/step_memory.py --device cuda --json FILE
    python3 bench/torch/step_memory.py --device cpu --rehearse

The snapshot of the GPU is kept beside FILE, as FILE.pickle; a small one belongs into tests/data/snapshots. `bucketpool step`
is run if the command was built (BUCKETPOOL_BUILD). On a CPU there is the recording on fake tensors only. Exits 77 without
PyTorch or without a GPU for it."""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from report import Report, skip_all

try:
    import torch
    from torch import nn
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

from machine import machine

WITHIN = 0.02  # of the peak: recording against the GPU


def train(step, layers, width, sequence):
    """Three steps of encoder layers, on the GPU or on fake tensors; step() is called before each."""
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
                                for _ in range(layers)))
        x = torch.randn(4, sequence, width)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        step()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def record_real(path, sizes):
    """The snapshot of a run on the GPU, from its first allocation."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    train(lambda: None, *sizes)
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(path)
    torch.cuda.memory._record_memory_history(enabled=None)


def record_fake(path, sizes):
    from bucketpool.torch import trace

    with trace.record(device="cuda") as recorded:
        train(recorded.step, *sizes)
    recorded.write(path)


def analysis(report, name, path):
    """The device that `bucketpool step` reports; None without the command."""
    tool = os.path.join(os.environ.get("BUCKETPOOL_BUILD", ""), "tools", "bucketpool")
    if not os.path.exists(tool):
        report.skip(f"step: {name}", "the command was not built")
        return None
    result = subprocess.run([tool, "step", path, "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        report.check(f"step: {name}", False, result.stderr.strip()[:300])
        return None
    (device,) = json.loads(result.stdout)["devices"]
    report.figure("step", name, peak=device["peak_bytes"], recorded=device["recorded_bytes"] or 0,
                  default=device["default_bytes"], expandable=device["expandable_bytes"],
                  planned=device["plan"]["total_bytes"], steps=len(device["steps"]))
    report.check(f"{name}: its steps repeat", device["steps_from"] != "whole")
    return device


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="small sizes")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    on = machine(options.device)
    if on is None:
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="step_memory", **on.head())
    sizes = (2, 128, 64) if options.rehearse else (4, 512, 512)
    with tempfile.TemporaryDirectory() as folder:
        fake = os.path.join(folder, "fake.pickle")
        record_fake(fake, sizes)
        predicted = analysis(report, "recorded on fake tensors", fake)
        if on.name != "cuda":
            report.skip("step: recorded on the GPU", "PyTorch records the memory of GPUs only")
            return report.status()
        real = f"{options.json}.pickle" if options.json else os.path.join(folder, "real.pickle")
        record_real(real, sizes)
        found = analysis(report, "recorded on the GPU", real)
    if found:
        report.check("the model of the caching allocator reproduces the recording", found["model_departures"] == 0,
                     f"{found['model_reproduced']} addresses and segments, {found['model_departures']} departures")
    if found and predicted:
        share = predicted["peak_bytes"] / found["peak_bytes"] - 1
        report.check("the recording on fake tensors has the peak of the GPU", abs(share) <= WITHIN,
                     f"{predicted['peak_bytes']} bytes, {share:+.2%}")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
