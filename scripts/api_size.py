# SPDX-License-Identifier: Apache-2.0
"""Prints the size of the public interface: headers, functions and types of each group, and each header's.

usage: python3 scripts/api_size.py [--most N]     --most: fails where there are more functions without the clients'"""

import argparse
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = [os.path.join(ROOT, part, "include", "bucketpool") for part in ("", "clients/logprob")]

# As bucketpool.h explains them. Providers: tables for programs that bring a device or a communicator.
GROUPS = {
    "plan": ("status", "dtype", "model", "schedule", "plan", "pack", "whatif", "formats"),
    "serve": ("device", "cuda", "pool", "capture", "comm", "nccl", "comm_mpi", "offload", "pinned", "profile", "dlpack",
              "torch_allocator", "device_ops", "comm_ops", "kernels"),
    "clients": ("logprob", "lm_head", "cp", "loss"),
}


def size(path):
    """Functions and types that a header declares."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    functions = re.findall(r"\bBP_API\b[^;{]*?\b(bp_\w+)\s*\(", text)
    types = re.findall(r"^typedef\b", text, flags=re.MULTILINE)
    return len(functions), len(types)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--most", type=int, help="fail where there are more functions without the clients'")
    most = parser.parse_args().most
    paths = {name[:-2]: os.path.join(folder, name) for folder in HEADERS for name in os.listdir(folder) if name.endswith(".h")}
    there = set(paths) - {"bucketpool"}
    different = there ^ {name for group in GROUPS.values() for name in group}
    if different:
        sys.exit(f"scripts/api_size.py lists headers that are not there, or lacks some that are: {', '.join(sorted(different))}")
    sums = {}
    for group, names in GROUPS.items():
        rows = [(name, *size(paths[name])) for name in names]
        sums[group] = [len(rows), sum(row[1] for row in rows), sum(row[2] for row in rows)]
        print(f"{group:8} {sums[group][0]:3} headers {sums[group][1]:4} functions {sums[group][2]:4} types")
        for name, functions, types in rows:
            print(f"    {name + '.h':18} {functions:4} {types:14}")
    functions = sum(row[1] for group, row in sums.items() if group != "clients")
    print(f"{functions} functions without the clients'")
    if most is not None and functions > most:
        sys.exit(f"{functions} functions without the clients'; at most {most} are wanted")


if __name__ == "__main__":
    main()
