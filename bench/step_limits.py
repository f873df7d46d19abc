# SPDX-License-Identifier: Apache-2.0
"""The least memory in which recorded steps run with PyTorch's allocators, which release what they cache when the GPU has no more.

    BUCKETPOOL_BUILD=build python3 bench/step_limits.py RECORDING...

Bisects `bucketpool step --limit` to 10 MiB. Retries are those of all recorded steps in that memory. Seconds for each recording."""

import argparse
import json
import os
import subprocess
import sys

GIB = 1 << 30
STEP = 10 << 20
MODELS = ("default", "expandable")


def step(path, limit):
    command = os.path.join(os.environ.get("BUCKETPOOL_BUILD", "build"), "tools", "bucketpool")
    done = subprocess.run([command, "step", "--json", "--work", "1", "--lead", "0", "--limit", str(limit), path], check=True, capture_output=True,
                          text=True)
    return json.loads(done.stdout)["devices"][0]


def least(path, name, found):
    """Bytes, and retries in them. The peak of live bytes does not do; what is reserved without a limit does."""
    low, high, retries = found["peak_bytes"] // STEP - 1, -(-found[f"{name}_bytes"] // STEP), 0
    while high - low > 1:
        middle = (low + high) // 2
        model = step(path, middle * STEP)["limit"][name]
        if model["failures"]:
            low = middle
        else:
            high, retries = middle, model["retries"]
    return high * STEP, retries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", nargs="+")
    print("| recording, GiB | peak live | " + " | ".join(f"{name}: reserves | runs in, retries a step" for name in MODELS) + " |")
    print("|---|---|" + "---|---|" * len(MODELS))
    for path in parser.parse_args().recordings:
        found = step(path, 1 << 50)
        cells = [os.path.basename(path).split(".")[0], f"{found['peak_bytes'] / GIB:.2f}"]
        for name in MODELS:
            size, retries = least(path, name, found)
            cells += [f"{found[f'{name}_bytes'] / GIB:.2f}", f"{size / GIB:.2f}, {retries / len(found['steps']):.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
