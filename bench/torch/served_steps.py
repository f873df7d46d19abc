# SPDX-License-Identifier: Apache-2.0
"""Measures what PyTorch's own CUDA allocator reserves for recorded steps, with its default settings, with expandable segments, and with the
plan of the step served from its first allocation on. No GPU is needed: the recordings are played over the emulated runtime and driver of a build.

    BUCKETPOOL_BUILD=build BUCKETPOOL_LIBRARY_PATH=build/src python3 bench/torch/served_steps.py RECORDING... [--json FILE]

Recordings are those of examples/trace_step.py or of a GPU; one that lacks the beginning of the process is served from its second step
on. Prints a line each. Exits 77 without PyTorch."""

import argparse
import json
import os
import subprocess
import sys

from report import Report, skip_all

try:
    import torch
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = os.path.join(ROOT, "python", "tests", "torch", "steps")
GIB = 1 << 30
WAYS = {"default": ("native", ""), "expandable": ("native", "expandable_segments:True"), "served": ("served", "expandable_segments:True")}
MORE_STEPS = 3


def played(build, mode, settings, path):
    fakes = os.path.join(build, "tests", "fakes")
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join([os.path.join(ROOT, "python"), PROGRAMS]),
                   "LD_PRELOAD": f"{fakes}/cuda/libcuda.so.1:{fakes}/cudart/libcudart.so.13",
                   "FAKE_CUDA": f"memory={200 * GIB},granularity=2097152,poison=0"}
    done = subprocess.run([sys.executable, os.path.join(PROGRAMS, "replayed_cuda.py"), mode, path, str(MORE_STEPS)],
                          capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{path}, {mode}: {done.stderr.splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+", metavar="RECORDING")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    build = os.environ.get("BUCKETPOOL_BUILD", os.path.join(ROOT, "build"))
    if not os.path.exists(os.path.join(build, "tests", "fakes", "cudart", "libcudart.so.13")):
        skip_all(f"{build} has no emulated driver; set BUCKETPOOL_BUILD to a build with tests")
    report = Report(options.json, program="served_steps", torch=torch.__version__)
    for path in options.recordings:
        name = os.path.basename(path).partition(".")[0]
        found = {way: played(build, mode, settings, path) for way, (mode, settings) in WAYS.items()}
        peaks = ["reserved_peak_bytes"] + ["reserved_peak_first_bytes"] * found["served"]["is_from_start"]
        reserved = {way: max(each[peak] for peak in peaks) for way, each in found.items()}
        served, live = found["served"], found["served"]["planned_peak_live_bytes"]
        asked = [first + more for first, more in zip(served["served_first"], served["served"])]
        report.figure("reserved, GiB", name, **{way: round(bytes_ / GIB, 2) for way, bytes_ in reserved.items()},
                      peak_live=round(live / GIB, 2), served_to_peak=round(reserved["served"] / live, 3),
                      less_than_default=f"{1 - reserved['served'] / reserved['default']:.1%}",
                      less_than_expandable=f"{1 - reserved['served'] / reserved['expandable']:.1%}",
                      allocations=sum(asked), served_allocations=asked[0], outside=asked[3], others=sum(asked) - asked[0] - asked[3],
                      waits_a_step=served["waits"], from_the_first_step=served["is_from_start"])
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
