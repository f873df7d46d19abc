# SPDX-License-Identifier: Apache-2.0
"""STAlloc's planner (EuroSys 2026, github.com/infinigence/STAlloc) beside ours, on the same recorded steps.

    bench/step_stalloc.py TOOL STALLOC SNAPSHOT...      STALLOC: a copy of its repository

For each recording, the bytes that each plan takes, the peak live bytes, and the fragmentation: the share of the plan that
is not live at the peak. STAlloc plans three iterations, with their parameters and optimizer state. It gets the three
steps before the last one, in the form of its traces; forward ends at the peak. Its two algorithms are run, and the
better plan counts ("autotune")."""

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time


def device_of(tool, path):
    result = subprocess.run([tool, "step", path, "--json"], capture_output=True, text=True, check=True)
    (device,) = json.loads(result.stdout)["devices"]
    return device


def forward_of(events, step):
    """The event at which forward begins: behind the frees of what an earlier step allocated, as far as they come before
    the peak. STAlloc knows no passes after the last iteration, when the last step's allocations of that kind are freed.
    """
    made, forward = set(), step["begin_event"]
    for index in range(step["begin_event"], step["peak_event"]):
        event = events[index]
        if event["action"] == "alloc":
            made.add(event["addr"])
        elif event["action"] == "free_completed" and event["addr"] not in made:
            forward = index + 1
    return forward


def write_trace(events, steps, file):
    """Lines "1 address size stream" and "0 address size stream", and the beginnings of iterations and passes."""
    marks = {}
    for index, step in enumerate(steps):
        marks.setdefault(step["begin_event"], []).append(f"Iteration Index : {index}")
        marks.setdefault(forward_of(events, step), []).append("micro-batch : F")
        marks.setdefault(step["peak_event"] + 1, []).append("micro-batch : B")
    marks.setdefault(steps[-1]["end_event"], []).append("Iteration Index : end")
    live, first = {}, steps[0]["begin_event"]
    for event in events[:first]: # of what came before, only what is still live
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    for address, size in live.items():
        print(1, hex(address), size, 0, file=file)
    for index in range(first, len(events)):
        for mark in marks.get(index, ()):
            print(mark, file=file)
        event = events[index]
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            print(1, hex(event["addr"]), event["size"], event["stream"], file=file)
        elif event["action"] == "free_completed" and event["addr"] in live:
            print(0, hex(event["addr"]), live.pop(event["addr"]), event["stream"], file=file)
    for address, size in live.items():
        print(0, hex(address), size, 0, file=file)


def stalloc(folder, synthesizer):
    """(allocated, reserved) in bytes, as it prints them, rounded to 10 MB; seconds."""
    begin = time.monotonic()
    result = subprocess.run([sys.executable, "main.py", "--model-memory-dir", folder, "--devices", "1", "--static-algo",
                             "autotune"], cwd=synthesizer, capture_output=True, text=True)
    found = re.search(r"max_allocated=([\d.]+)(\w+), max_reserved=([\d.]+)(\w+)", result.stdout)
    if not found:
        return None, (result.stderr or result.stdout).strip().splitlines()[-1:]
    units = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
    return (float(found[1]) * units[found[2]], float(found[3]) * units[found[4]]), time.monotonic() - begin


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    tool, copy, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    print(f"{'RECORDING':32} {'PEAK LIVE':>11} {'OURS':>11} {'FRAG':>6} {'STALLOC':>11} {'FRAG':>6} {'SECONDS':>8}")
    for path in paths:
        device = device_of(tool, path)
        with open(path, "rb") as file:
            events = pickle.load(file)["device_traces"][device["device"]]
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "trace"))
            with open(os.path.join(folder, "trace", "mem_log_dev0.txt"), "w", encoding="utf-8") as file:
                write_trace(events, device["steps"][-4:-1], file)
            theirs, seconds = stalloc(folder, os.path.join(copy, "Synthesizer"))
        # Without windows: STAlloc has no streams.
        peak, ours = device["peak_bytes"], device["plan"]["total_bytes"] - device["plan"]["windows_bytes"]
        name = os.path.basename(path)[:32]
        if theirs is None:
            print(f"{name:32} {peak / 2**30:7.3f} GiB {ours / 2**30:7.3f} GiB {1 - peak / ours:6.1%} {seconds}")
            continue
        print(f"{name:32} {peak / 2**30:7.3f} GiB {ours / 2**30:7.3f} GiB {1 - peak / ours:6.1%} "
              f"{theirs[1] / 2**30:7.2f} GiB {1 - theirs[0] / theirs[1]:6.1%} {seconds:8.1f}", flush=True)


main()
