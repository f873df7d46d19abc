# SPDX-License-Identifier: Apache-2.0
"""Trainings that GPUs ran, recorded on fake tensors: what PyTorch would reserve and have live, beside what was measured.

    python3 bench/torch/fit/measured.py [--case NAME] [--keep FOLDER] [--json FILE]

Each training is the program that ran, for as many steps; `bucketpool step` (BUCKETPOOL_BUILD) plays its recording. Exits 1 if a figure is
off by more than 1 %, 77 without PyTorch, transformers or the command."""

import argparse
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
GIB = 1 << 30


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
    "llama": Case("llama", "an H100, docs/guides/step_memory.md", round(17.354 * GIB), round(17.994 * GIB), round(14.763 * GIB)),
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
    parser.add_argument("--case", action="append", choices=CASES, default=[])
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="folder for the recordings")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.record:
        record(*options.record)
        return 0
    command = os.path.join(os.environ.get("BUCKETPOOL_BUILD", os.path.join(ROOT, "build")), "tools", "bucketpool")
    failed = False
    print(f"{'TRAINING':16} {'FIGURE':10} {'RECORDED':>9} {'MEASURED':>9}  GiB")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.case or CASES:
            path = os.path.join(options.keep or folder, f"{name}.pickle")
            subprocess.run([sys.executable, os.path.abspath(__file__), "--record", name, path], check=True)
            for figure, value in figures(command, path).items():
                truth = getattr(CASES[name], figure)
                off = value / truth - 1
                failed |= abs(off) > WITHIN
                print(f"{name:16} {figure:10} {value / GIB:9.3f} {truth / GIB:9.3f} {100 * off:+7.2f} %", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
