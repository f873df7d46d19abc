# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of *_cases.py on several processes with gloo. As a program: one of these processes."""

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta

from places import TESTS

MODULES = ("logprob_cases", "cp_cases", "failure_cases", "loss_cases", "argument_cases", "function_cases",
           "label_cases")
SECONDS = 100  # for all cases of a number of ranks


def case_names():
    """(module, case) of all modules."""
    return [(module, name) for module in MODULES for name in sorted(vars(importlib.import_module(module)))
            if name.startswith("case_")]


@functools.lru_cache(maxsize=None)
def outcome(ranks):
    """{"module.case": [errors by rank]} of one start of `ranks` processes; [] without errors."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.path.dirname(TESTS), environment.get("PYTHONPATH")]))
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(ranks), folder], env=environment, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True) for rank in range(ranks)
        ]
        ends = [_end(process) for process in processes]
        wrong = {f"{module}.{name}": [] for module, name in case_names()}
        for rank, (status, output) in enumerate(ends):
            path = os.path.join(folder, f"result{rank}.json")
            told = json.load(open(path)) if os.path.exists(path) else {}
            for case in wrong:
                if case not in told:
                    wrong[case].append(f"rank {rank} did not get here; it ended with {status}:\n{output[-2000:]}")
                elif told[case]:
                    wrong[case].append(f"rank {rank}: {told[case]}")
            if status != 0:
                wrong.setdefault("end", []).append(f"rank {rank} ended with {status}:\n{output[-2000:]}")
        return wrong


def _end(process):
    try:
        output, _ = process.communicate(timeout=SECONDS)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
        return "a time-out", process.communicate()[0]


def main():
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
                            timeout=timedelta(seconds=20))
    told = {}
    for module, name in case_names():
        try:
            torch.manual_seed(1)
            getattr(importlib.import_module(module), name)(rank, ranks)
            told[f"{module}.{name}"] = ""
        except BaseException:  # the others continue
            told[f"{module}.{name}"] = traceback.format_exc()
        with open(f"{folder}/result{rank}.json", "w") as file:
            json.dump(told, file)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
