# SPDX-License-Identifier: Apache-2.0
"""Ways to run a program with PyTorch's allocator or with served steps: the command and the environment of each. Needs no PyTorch."""

import os
import sys

EXPANDABLE = "expandable_segments:True"
# way: PyTorch's allocator settings; options of the launcher, or None: the program by itself. {plans} is a folder and the model's name.
WAYS = {
    "plain": ("", None),
    "expandable": (EXPANDABLE, None),
    "in process": (EXPANDABLE, ["--record", "3", "--save", "{plans}-windows.json"]),
    "in process, no windows": (EXPANDABLE, ["--record", "3", "--lead", "0", "--save", "{plans}-no-windows.json"]),
    "plan": ("", ["--plan", "{plans}-windows.json"]),
    "plan, expandable": (EXPANDABLE, ["--plan", "{plans}-windows.json"]),
    "plan, no windows": ("", ["--plan", "{plans}-no-windows.json"]),
    "pool": ("", None),
    "pool, expandable": (EXPANDABLE, None),
    "pool, parameters, expandable": (EXPANDABLE, None),
}


def is_served(way):
    return WAYS[way][1] is not None


def plan_of(way, plans):
    """The file of the plan that a way writes or reads; None without one."""
    return next((option.format(plans=plans) for option in WAYS[way][1] or () if "{plans}" in option), None)


def environment(way, device="cuda"):
    """PyTorch is told of its allocator before it is imported."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    made = {name: value for name, value in os.environ.items() if name not in names}
    if WAYS[way][0] and device == "cuda":
        made |= {name: WAYS[way][0] for name in names}
    return made | ({"OMP_NUM_THREADS": "1"} if device == "cpu" else {})


def command(way, device, plans, report, program):
    """The program with its arguments, by the launcher where steps are served."""
    options = WAYS[way][1]
    if way.startswith("pool"):
        program = [*program, "--pool", "parameters" if "parameters" in way else "buckets"]
    if options is None:
        return [sys.executable, *program]
    return [sys.executable, "-m", "bucketpool.torch.steps", "--device", device, "--report", report,
            *(option.format(plans=plans) for option in options), *program]
