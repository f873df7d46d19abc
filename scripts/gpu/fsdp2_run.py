# SPDX-License-Identifier: Apache-2.0
"""The run `fsdp2`: steps of a hybrid model and of a Llama sharded by FSDP2, and of the hybrid under Megatron-FSDP, in plain memory, with PyTorch's
allocator settings, and with pools."""

import os

from parts import Part, absent, document_path, outcome_of
from torch_run import Python, build_part

VARIANTS = ("plain", "scheduled", "max", "expandable_segments", "scheduled_expandable_segments", "cuda_malloc_async")
# Of bench/torch/steps/variants.py; three trainings of the Llama take 57 GiB.
LLAMA = ("steps llama, pools", ("plain", "expandable", "pool")), \
        ("steps llama, pools in expandable segments", ("plain", "pool, expandable", "pool, parameters, expandable"))
VARYING = LARGEST = ("plain", "scheduled", "expandable_segments", "scheduled_expandable_segments")


def parts(context):
    """Lazily, as what there is to run is known once it is built."""
    yield build_part(context)
    context.describe_emulated()
    python = Python(context)
    yield python.part()
    names = []

    def variant(name, seconds, *options):
        names.append(name)
        return python.script(name, seconds, "fsdp2/variant.py", *options)

    for each in VARIANTS:
        yield variant(f"steps {each}", 50, "--variant", each)
    yield compared(python, "same losses", names)
    for name, ways in LLAMA:
        if context.rehearse:  # a CPU has no expandable segments
            ways = [way for way in ways if way not in ("expandable", "pool, expandable")]
        yield python.script(name, 110, "steps/turns.py", *ways, "--model", "llama", "--plans", os.path.join(context.build.folders[0], "gpu-run", "fsdp2", "llama"))
    peers = ["--peers", os.path.abspath(context.peers)] if context.peers else []
    few = ["--allocators", "no double buffers", "scheduled"] if context.rehearse else []
    yield python.script("Megatron-FSDP", 230, "fsdp2/megatron_training.py", *peers, *few, measuring=220)
    yield python.script("two ranks", 75, "fsdp2/ranks.py")
    fewer = () if context.rehearse else ("--steps", "12")
    for each in VARYING:
        yield variant(f"varying lengths {each}", 40, "--variant", each, "--lengths", *fewer)
    yield compared(python, "same losses, varying lengths", names)
    for each in LARGEST:
        sizes = ["--start", "4", "--resolution", "8"] if context.rehearse else []
        yield python.script(f"largest batch {each}", 46, "fsdp2/largest_batch.py", "--variant", each, *sizes, measuring=40)
    yield example(context, python)
    yield python.script("captured step", 80, "fsdp2/capture.py", measuring=75)


def compared(python, name, names):
    """The losses of all variants so far, bit for bit."""
    if python.reason:
        return absent(name, python.reason)

    def function(running):
        files = [path for path in (document_path(running.run.folder, each) for each in names) if os.path.exists(path)]
        path = document_path(running.run.folder, name)
        code, text = running.command([python.path, os.path.join("bench", "torch", "fsdp2", "compare.py"), "--json", path, *files], python.env(),
                                     document=path)
        return outcome_of(code, text)

    return Part(name, 20, function)


def example(context, python):
    """examples/fsdp2_train.py with two ranks, which share the GPU."""
    name = "examples/fsdp2_train.py, two ranks"
    if python.reason:
        return absent(name, python.reason)

    def function(running):
        env = python.env(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29631")
        # Not by torchrun: its processes are in separate sessions and would outlive a part that is cut.
        both = 'RANK=1 LOCAL_RANK=1 "$@" & RANK=0 LOCAL_RANK=0 "$@" && wait $!'
        code, text = running.command(["sh", "-c", both, "sh", python.path, "examples/fsdp2_train.py", "--policy", "scheduled"], env)
        running.entry["report"] = text.splitlines()[-40:]
        return outcome_of(code, text)

    return Part(name, 60, function)
