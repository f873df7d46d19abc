# SPDX-License-Identifier: Apache-2.0
"""The run `step`: training steps served at planned addresses, beside PyTorch's own allocator. Parts are in the order of their value."""

import os

from parts import Part, absent, document_path, outcome_of
from torch_run import Python, build_part

STEPS = ("steps llama, in process", ("plain", "in process", "in process, no windows")), \
        ("steps llama, plans", ("plain", "expandable", "plan", "plan, no windows"))
LARGEST = ("expandable", "plan, expandable", "plain")
EXPERTS = ("plain", "expandable", "in process")


def parts(context):
    """Lazily, as what there is to run is known once it is built."""
    yield build_part(context)
    context.describe_emulated()
    python = Python(context)
    yield python.part()
    folder = os.path.join(context.build.folders[0], "gpu-run", "step")
    names = []

    def turns(name, seconds, ways, model):
        names.append(name)
        if context.rehearse:  # a CPU has no expandable segments and no side streams
            ways = [way for way in ways if way in ("plain", "in process", "plan")]
        return python.script(name, seconds, "steps/turns.py", *ways, "--model", model, "--plans", os.path.join(folder, model), "--profile")

    for name, ways in STEPS:
        yield turns(name, 110, ways, "llama")
    yield wanted(python, "wanted of steps", names)
    for way in LARGEST[1:] if context.rehearse else LARGEST:
        names.append(f"largest batch {way}")
        yield python.script(names[-1], 65, "steps/largest.py", way, measuring=55)
    yield wanted(python, "wanted of batches", names[len(STEPS):])
    yield turns("steps experts", 100, EXPERTS, "experts")
    yield wanted(python, "wanted of experts", names[-1:])
    yield python.script("captures", 120, "steps/captured.py", measuring=110)
    yield python.script("shared tensors", 45, "steps/shared.py")
    yield memcheck(context, python, folder)


def wanted(python, name, names):
    """Compares the figures of parts with what is wanted."""
    if python.reason:
        return absent(name, python.reason)

    def function(running):
        path = document_path(running.run.folder, name)
        files = [document_path(running.run.folder, each) for each in names]
        code, text = running.command([python.path, os.path.join("bench", "torch", "steps", "wanted.py"), "--device", python.device, "--json", path, *files],
                                     python.env(), document=path)
        return outcome_of(code, text)

    return Part(name, 20, function)


def memcheck(context, python, folder):
    """Served steps of a toy under compute-sanitizer: accesses outside of the slab and of PyTorch's segments."""
    name, tool = "compute-sanitizer memcheck: served steps", context.find_tool("compute-sanitizer")
    if python.reason or tool is None:
        return absent(name, python.reason or "compute-sanitizer is not installed")

    def function(running):
        report = os.path.join(folder, "memcheck-report.json")
        program = [os.path.join("bench", "torch", "steps", "train.py"), "--rehearse", "--device", python.device, "--steps", "8"]
        code, text = running.command([tool, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", python.path, "-m",
                                      "bucketpool.torch.steps", "--device", python.device, "--report", report, *program], python.env())
        if "Device not supported" in text:
            return "skipped", "compute-sanitizer does not support this device or system"
        if code == 0 and "ERROR SUMMARY: 0 errors" not in text:
            return "failed", "compute-sanitizer printed no summary"
        if code == 0 and "of 0 allocations served" in text or "allocations served in" not in text:
            return "failed", "the program served no steps"
        return outcome_of(code, text)

    return Part(name, 120, function)
