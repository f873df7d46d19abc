# SPDX-License-Identifier: Apache-2.0
"""./check --gpu: runs bucketpool on this machine's GPU within a given time, and leaves results whatever happens. docs/internals/gpu.md is its manual."""

import argparse
import os
import re
import shutil
import sys

import build
import fit_run
import fsdp2_run
import machine
import proof
import results
import step_run
import torch_run
from parts import PREPARATIONS, Run

RUNS = {"proof": proof.parts, "torch": torch_run.parts, "fsdp2": fsdp2_run.parts, "step": step_run.parts, "fit": fit_run.parts}
USUAL_SECONDS = 540


class Context:
    """The options and the machine, as parts use them."""

    def __init__(self, options):
        self.rehearse, self.peers = options.rehearse, options.peers
        self.patience = 5 if options.rehearse else 1  # rehearsals also run on busy machines
        self.share = self.patience * min(1, options.seconds / USUAL_SECONDS)  # of the time that programs may measure for
        self.build = build.Build(options.build, options.keep, options.carried, options.rehearse)
        self.nccl = None if self.rehearse else machine.find_nccl()
        self.telemetry, self.results = machine.Telemetry(), None

    def describe_emulated(self):
        """In a rehearsal: the machine is the emulated one, known once it is built."""
        if not self.rehearse or self.nccl is not None:
            return
        self.nccl = self.build.find(build.NCCL)
        facts, reason = machine.query_driver(self.build.find(build.DRIVER))
        self.results.document.update(facts or {"device": reason}, nccl=os.path.basename(build.NCCL), nccl_version=machine.nccl_version(self.nccl))
        self.telemetry.open(self.build.find(build.NVML))

    def env(self, kernels=build.RULES_KERNELS, **more):
        """The environment of our own programs: libraries where the loader does not look, and in a rehearsal the emulated driver with a
        library of kernels. Python children are given the original environment instead: PyTorch brings its own libraries."""
        folders = [machine.find_cublas()]
        if self.nccl and "/" in self.nccl:
            folders.insert(0, os.path.dirname(self.nccl))
        env = {**os.environ, "BP_TEST_DRIVER": "real", "BUCKETPOOL_BRIEF": "1", **({"BP_TEST_NCCL": self.nccl} if self.nccl else {})}
        if self.rehearse:
            folders = [os.path.dirname(self.build.find(path) or "") for path in (build.DRIVER, build.NCCL, build.CUBLAS)]
            env["FAKE_CUDA"] = f"memory=64g,kernels={self.build.find(kernels)}"
        folders.append(os.environ.get("LD_LIBRARY_PATH", ""))
        env["LD_LIBRARY_PATH"] = ":".join(os.path.abspath(folder) for folder in folders if folder)
        return {**env, **more}

    def find_tool(self, name):
        """A program of NVIDIA's toolkit, or in a rehearsal its stand-in; None where it is not installed."""
        if self.rehearse:
            return os.path.abspath(os.path.join("tests", "fakes", "tools", name))
        beside = os.path.join("/usr/local/cuda/bin", name)
        return shutil.which(name) or (beside if os.path.exists(beside) else None)


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not a regular expression: {error}') from error


def parse(arguments):
    parser = argparse.ArgumentParser(prog="./check --gpu", description=__doc__)
    parser.add_argument("run", nargs="?", choices=list(RUNS), default="proof", help="kernels and pools (default), PyTorch, PyTorch's FSDP2, served steps, or fit")
    parser.add_argument("--output", metavar="DIR", help="where results go (default: bench/results; of a rehearsal: the build folder's name with -results)")
    parser.add_argument("--seconds", type=float, default=USUAL_SECONDS, help=f"time of the whole run (default: {USUAL_SECONDS})")
    parser.add_argument("--build", metavar="DIR", default="build-gpu", help="build folder (default: build-gpu)")
    parser.add_argument("--keep", action="store_true", help="continue with the programs in the build folder instead of building anew")
    parser.add_argument("--carried", action="store_true", help="run the programs in the build folder, which another machine built; build nothing")
    parser.add_argument("--only", metavar="PATTERN", type=pattern, help="run only parts whose name this regular expression finds, after the build")
    parser.add_argument("--commit", metavar="ID", help="the commit that is measured, where there is no .git")
    parser.add_argument("--peers", metavar="DIR", help="wheels and copies of peers (run torch)")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: every part on the emulated driver or the CPU, in small sizes")
    options = parser.parse_args(arguments)
    options.build = os.path.abspath(options.build)
    options.output = options.output or (options.build + "-results" if options.rehearse else os.path.join("bench", "results"))
    return options


def main(arguments):
    options = parse(arguments)
    facts, reason = ({"device": "emulated", "devices": 1, "driver_version": 0}, None) if options.rehearse else machine.query_driver()
    if facts is None:
        print(f"./check --gpu is skipped: {reason}")
        return 77
    context = Context(options)
    head = {**machine.describe(facts, options.run, options.commit, context.nccl), "rehearsal": options.rehearse, "budget_seconds": options.seconds,
            "only": options.only.pattern if options.only else None, "carried": options.carried}
    os.makedirs(options.build, exist_ok=True)
    context.results = results.Results(options.output, f"rehearsal-{options.run}" if options.rehearse else results.file_stem(head), head)
    if options.rehearse:
        print("REHEARSAL: no GPU takes part; outcomes and figures say nothing about one.")
    print(f"{options.run}: {head['device']}, {head['commit']}, {options.seconds:.0f} s; results: {context.results.path}", flush=True)
    missing = None if options.rehearse else context.telemetry.open()
    if missing:
        print(f"without clocks, power and temperature: {missing}")
    run = Run(context.results, context.telemetry, os.path.join(options.build, "gpu-run", options.run), options.seconds,
              patience=context.patience)
    parts = RUNS[options.run](context)
    run.execute(part for part in parts if not options.only or part.name in PREPARATIONS or options.only.search(part.name))
    if options.only and all(part["name"] in PREPARATIONS for part in context.results.document["parts"]):
        print(f"--only: no part has a name with {options.only.pattern}")
        return 1
    count = context.results.count
    failed = count("failed") + count("cut")
    print(f"{context.results.path}: {context.results.document['seconds']:.0f} s, {count('differs')} differ, {count('not run')} not run")
    print(f"{count('passed') + count('differs')} passed, {failed} failed, {count('skipped') + count('not run')} skipped")
    return 1 if failed or not count("passed") else 0


sys.exit(main(sys.argv[1:]))
