# SPDX-License-Identifier: Apache-2.0
"""The run `torch`: bucketpool.torch on CUDA with the machine's own Python and PyTorch, first against fp64, then beside other implementations."""

import os
import re
import sys

import build
from parts import Part, absent, outcome_of, program

# ./check --torch runs all of them.
FEW = "golden or random_storage or in_place or strides or gaps or dlpack_protocol or test_layer or pluggable_functions"


class Python:
    """The machine's Python, or in a rehearsal one that has PyTorch, with our package and the libraries just built."""

    def __init__(self, context):
        self.context = context
        self.device = "cpu" if context.rehearse else "cuda"
        self.path, self.reason = None, "PyTorch was not looked for"

    def part(self):
        """Finds it: the first import of PyTorch on a machine may take long."""
        candidates = [sys.executable, *([os.path.join("build-check", "torch-venv", "bin", "python")] if self.context.rehearse else [])]

        def function(running):
            self.reason = "PyTorch is not installed"
            for path in filter(os.path.exists, candidates):
                code, text = running.command([path, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"])
                if code == 0:
                    version, has_gpu = text.split()[-2:]
                    self.path, running.run.results.document["torch"] = os.path.abspath(path), version
                    self.reason = None if self.context.rehearse or has_gpu == "True" else "PyTorch finds no GPU"
                    break
            return ("passed", "") if self.reason is None else ("skipped", self.reason)

        return Part("PyTorch", 120, function)

    def env(self, **more):
        """Without the library folders of our own programs: PyTorch brings its own."""
        folder = self.context.build.folders[0]
        found = [os.path.dirname(path) for path in map(self.context.build.find, self.context.build.libraries()) if path]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.path.abspath("python"), os.environ.get("PYTHONPATH")])),
                "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "BUCKETPOOL_BUILD": folder,
                "BUCKETPOOL_LIBRARY_PATH": ":".join(dict.fromkeys(found)), **({"OMP_NUM_THREADS": "1"} if self.context.rehearse else {}), **more}

    def script(self, name, seconds, path, *arguments, measuring=None, **env):
        """A part that is one of the programs of bench/torch. `measuring`: the seconds that it shall measure for, of a run of usual length."""
        if self.reason:
            return absent(name, self.reason)
        more = ["--rehearse"] if self.context.rehearse else []
        if measuring:
            more += ["--seconds", str(max(1, round(measuring * self.context.share)))]
        return program(name, seconds, [self.path, os.path.join("bench", "torch", path), "--device", self.device, *more, *arguments],
                       self.env(**env), with_document=True)


def build_part(context):
    """The shared libraries of the package; in a rehearsal also the emulated ones."""
    return Part("build", 300, lambda running: context.build.make(
        running, lambda made: [*made.libraries(), *made.command(), *([build.DRIVER, build.RUNTIME, build.NCCL, build.NVML] if made.emulated else ())]))


OUTCOME = re.compile(r"^(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)(?: +\((.*)\))?", re.MULTILINE)


def checks_in(text):
    """Outcomes of pytest -v, a line for each test: also of a run that was cut."""
    checks = [{"name": name.split("::", 1)[1], "outcome": {"PASSED": "passed", "XFAIL": "passed", "SKIPPED": "skipped"}.get(word, "failed"),
               "reason": reason} for name, word, reason in OUTCOME.findall(text)]
    messages = dict(re.findall(r"^FAILED \S+::(.+?) - (.*)", text, re.MULTILINE))
    for check in checks:
        check["reason"] = check["reason"] or messages.get(check["name"], "")
    return {"checks": checks}


def tests(python, room, name, seconds, *options):
    """A part that is a file of a folder of python/tests/torch."""
    if python.reason:
        return absent(name, python.reason)
    command = [python.path, "-m", "pytest", os.path.join("python", "tests", "torch", room, f"test_{name}.py"), "-v", "-rfE", "--tb=short",
               "--color=no", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=45", *options]

    def function(running):
        code, text = running.command(command, python.env(BUCKETPOOL_TEST_DEVICE=python.device, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"))
        running.entry.update(checks_in(text))
        seen = [check["outcome"] for check in running.entry["checks"]]
        counts = ", ".join(f"{seen.count(word)} {word}" for word in ("passed", "failed", "skipped") if word in seen)
        outcome, reason = outcome_of(code, text)
        if code == 5 or (code == 0 and "passed" not in seen):
            outcome = "skipped"
        return outcome, counts if outcome in ("passed", "failed") and seen else reason or counts

    return Part(f"tests {name}", seconds, function)


def parts(context):
    yield build_part(context)
    context.describe_emulated()
    python = Python(context)
    yield python.part()
    yield python.script("pool tensors", 20, "pool_tensors.py")
    yield python.script("host time of calls", 45, "calls.py")
    few = ["-k", FEW] if context.rehearse else []
    for room, names in (("logprob", ("logprob_device", "logprob_values", "logprob_autograd", "logprob_head", "logprob_saved")),
                        ("pools", ("views", "pluggable_allocator"))):
        for name in names:
            yield tests(python, room, name, 60, *few)
    peers = ["--peers", os.path.abspath(context.peers)] if context.peers else []
    hidden = "64" if context.rehearse else "4096"
    yield python.script("logprob, eager", 55, "logprob.py", "--eager", measuring=40)
    yield python.script("head, eager", 40, "logprob.py", "--eager", "--hidden", hidden, measuring=25)
    yield python.script("logprob", 135, "logprob.py", *peers, measuring=110)
    yield python.script("head", 95, "logprob.py", "--hidden", hidden, *peers, measuring=70)
    yield python.script("offload", 70, "offload.py", *peers, measuring=40)
    yield python.script("allocator", 30, "allocator.py")
    yield python.script("step memory", 60, "step_memory.py")
