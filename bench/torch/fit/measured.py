# SPDX-License-Identifier: Apache-2.0
"""Trainings that GPUs ran, recorded on fake tensors: what PyTorch would reserve and have live, beside what was measured.

    python3 bench/torch/fit/measured.py [--cpu] [--case NAME] [--keep FOLDER]

Each training is the program that ran, for as many steps; `bucketpool step` (BUCKETPOOL_BUILD) plays its recording. --cpu: trainings of
cpu_trainings.py, which run now on one rank or on two with gloo, in recordings of the CPU; the rank with the smaller peak counts, because gloo
keeps buffers a little longer on a rank that is behind. Exits 1 if a figure is off by more than 1 %, 77 without PyTorch, transformers or the
command."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.join(HERE, "..", "fsdp2"), os.path.join(HERE, "..", "steps"), os.path.join(HERE, ".."), os.path.join(ROOT, "python")]

WITHIN = 0.01
MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Case:
    """default, expandable: reserved at most, peak: allocated at most, as torch.cuda.memory_stats had them. source: where they are from."""

    record: str  # function below
    source: str
    default: int
    expandable: int
    peak: int
    options: dict = field(default_factory=dict)


H200 = "bench/results/nvidia-h200-fsdp2-2026-11-27T101448.json"
CASES = {
    "llama": Case("llama", "bench/results/nvidia-h100-80gb-hbm3-fsdp2-2026-11-28.json", round(17.354 * GIB), round(17.994 * GIB), round(14.763 * GIB)),
    "hybrid": Case("hybrid", H200 + " (an H100 the same)", 10917773312, 10028580864, 8389242368),
    "hybrid-lengths": Case("hybrid", H200, 10464788480, 9818865664, 8112409088, {"steps": 12, "lengths": True}),
    "hybrid-batch-16": Case("hybrid", H200, 13535019008, 12708741120, 11254253056, {"batch": 16, "sequence": 2048, "steps": 3}),
}


def hybrid(recorded, **sizes):
    """bench/torch/fsdp2/variant.py and largest_batch.py, plain."""
    import options as settings
    options = settings.parser("").parse_args([])
    for name, value in sizes.items():
        setattr(options, name, value)
    settings.complete(options)
    import device as devices
    from training import Training

    training = Training(options, devices.Gpu())
    for step in range(options.steps):
        recorded.step()
        tokens = training.tokens(step)
        loss = training.backward(tokens)
        training.update()
        loss.item()


def llama(recorded):
    """bench/torch/steps/train.py, with the algorithms that PyTorch chooses."""
    import train
    training = train.Training(train.parse([]))
    train.torch.use_deterministic_algorithms(False)
    for _ in range(8):
        recorded.step()
        training.step()


def record(name, path):
    """In a process for each training: options of PyTorch's environment differ."""
    from bucketpool.torch import trace
    case = CASES[name]
    with trace.record(device="cuda") as recorded:
        globals()[case.record](recorded, **case.options)
    recorded.write(path)
    for note in recorded.notes:
        print(f"note: {note}", file=sys.stderr)


def figures(command, path):
    found, = json.loads(subprocess.run([command, "step", "--json", path], check=True, capture_output=True).stdout)["devices"]
    return {"default": found["default_bytes"], "expandable": found["expandable_bytes"], "peak": found["peak_bytes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="trainings on the CPU")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help=f"of {', '.join(CASES)}, or with --cpu of cpu_trainings.py")
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="folder for the recordings")
    options = parser.parse_args()
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        print("PyTorch or transformers is not installed")
        return 77
    if options.record:
        record(*options.record)
        return 0
    if options.cpu:
        import cpu_trainings
        return compared(options.case or cpu_trainings.CASES, MIB, "MiB",
                        lambda name: [("peak", cpu_trainings.recorded(name), min(cpu_trainings.real(name)))])
    command = os.path.join(os.environ.get("BUCKETPOOL_BUILD", os.path.join(ROOT, "build")), "tools", "bucketpool")
    if not os.path.exists(command):
        print(f"{command} is not there: build it, or set BUCKETPOOL_BUILD")
        return 77
    with tempfile.TemporaryDirectory() as folder:

        def on_gpu(name):
            path = os.path.join(options.keep or folder, f"{name}.pickle")
            subprocess.run([sys.executable, os.path.abspath(__file__), "--record", name, path], check=True)
            return [(figure, value, getattr(CASES[name], figure)) for figure, value in figures(command, path).items()]

        return compared(options.case or CASES, GIB, "GiB", on_gpu)


def compared(names, unit, unit_name, figures_of):
    """Prints rows. Returns 1 if one is off by more than WITHIN."""
    failed = False
    print(f"{'TRAINING':28} {'FIGURE':10} {'RECORDED':>9} {'MEASURED':>9}  {unit_name}")
    for name in names:
        for figure, value, truth in figures_of(name):
            off = value / truth - 1
            failed |= abs(off) > WITHIN
            print(f"{name:28} {figure:10} {value / unit:9.3f} {truth / unit:9.3f} {100 * off:+7.2f} %", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
