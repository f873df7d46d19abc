# SPDX-License-Identifier: Apache-2.0
"""The run `fit`: trainings at the edge of a memory limit run as `bucketpool fit` says. Parts are in the order of their value."""

import os
import shutil

import build
from parts import Part, absent, document_path, outcome_of
from torch_run import Python, build_part

CASES = ("dense", "fsdp2", "logprobs", "experts", "checkpointing", "client")  # of bench/torch/fit/edges.py
CARRIED = "fit-predictions.json"  # in the build folder: made on another machine


def parts(context):
    """Lazily, as what there is to run is known once it is built."""
    yield build_part(context)
    context.describe_emulated()
    python = Python(context)
    yield python.part()
    path = os.path.join(context.build.folders[0], "gpu-run", "fit", "predictions.json")
    snapshots = os.path.dirname(os.path.abspath(context.results.path))
    yield predictions(context, python, path)
    for number, case in enumerate(CASES):
        yield python.script(f"edge {case}", 60, "fit/edge.py", case, "--predictions", path, "--snapshots", snapshots)
        if number == 1:
            yield python.script("context and libraries", 40, "fit/context.py", "--predictions", path)


def predictions(context, python, path):
    """Asks fit, on this machine's processors, or copies the answers of another machine."""
    name = "predictions"
    if python.reason:
        return absent(name, python.reason)

    def function(running):
        carried, command = (context.build.find(file) for file in (CARRIED, build.COMMAND))
        if carried and not context.rehearse:
            shutil.copyfile(carried, path)
            return "passed", f"{carried}, made before"
        if command is None:
            return "skipped", f"{context.build.folders[0]} has neither {build.COMMAND} nor {CARRIED}, which bench/torch/fit/edges.py makes"
        document = document_path(running.run.folder, name)
        more = ["--rehearse"] if context.rehearse else []
        return outcome_of(*running.command([python.path, os.path.join("bench", "torch", "fit", "edges.py"), "--predictions", path, "--json", document,
                                            "--device", python.device, *more], python.env(PYTHONHASHSEED="0"), document=document))

    return Part(name, 120, function)
