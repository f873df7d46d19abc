# SPDX-License-Identifier: Apache-2.0
"""Memory variants, the options that the programs share, and the environment, which is set before PyTorch is imported."""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "..", "python")]

# variant: PyTorch's allocator settings, policy of the pool
VARIANTS = {
    "plain": ("", None),
    "expandable_segments": ("expandable_segments:True", None),
    "cuda_malloc_async": ("backend:cudaMallocAsync", None),
    "scheduled": ("", "scheduled"),
    "max": ("", "max"),
    "scheduled_expandable_segments": ("expandable_segments:True", "scheduled"),
}

# Of the model and the step: name, default on a GPU, default with --rehearse.
SIZES = (("width", 2048, 64), ("heads", 16, 2), ("repeats", 10, 1), ("vocabulary", 32768, 512), ("sequence", 4096, 64), ("batch", 4, 2),
         ("steps", 20, 4), ("warmup", 3, 1))


def parser(description):
    """The options of all programs."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", help="file of the results, rewritten after each")
    made.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    made.add_argument("--rehearse", action="store_true", help="small sizes")
    made.add_argument("--variant", choices=list(VARIANTS), default="plain")
    made.add_argument("--lengths", action="store_true", help="the sequence length varies by step")
    for name, usual, small in SIZES:
        made.add_argument(f"--{name}", type=int, help=f"{usual}; {small} with --rehearse")
    return made


def complete(options, sizes=()):
    """Fills in missing sizes and sets the environment of the variant. sizes: of a program with other or additional ones."""
    for name, usual, small in (*sizes, *SIZES):
        if getattr(options, name) is None:
            setattr(options, name, small if options.rehearse else usual)
    allocator = VARIANTS[options.variant][0]
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.pop(name, None)
        if allocator and options.device == "cuda":
            os.environ[name] = allocator
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # processes are forked before CUDA is initialized
    if options.device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    return options


def needs_timed_steps(options):
    if options.steps <= options.warmup:
        sys.exit(f"--steps {options.steps}: expected more than --warmup {options.warmup}")


def described(options):
    """The header of a report."""
    return {"variant": options.variant, "settings": {name: getattr(options, name) for name, _, _ in SIZES} |
            {"device": options.device, "rehearsed": options.rehearse, "lengths": options.lengths}}
