# SPDX-License-Identifier: Apache-2.0
"""Builds the programs of a GPU run, with a C compiler, meson and ninja alone."""

import json
import os
import re
import shutil
import subprocess
import sys

from machine import output_of
from parts import last_line

# The emulated driver and what stands in for NVIDIA's other libraries: a rehearsal's GPU.
DRIVER, NCCL, NVML = "tests/fakes/cuda/libcuda.so.1", "tests/fakes/nccl/libnccl.so.2", "tests/fakes/nvml/libnvidia-ml.so.1"
RUNTIME = "tests/fakes/cudart/libcudart.so.13"  # of PyTorch's allocator
CUBLAS = "tests/fakes/cublas/libcublas.so.13"
RULES_KERNELS, LOGPROB_KERNELS = "tests/fakes/cuda/libfake_cuda_kernels.so", "clients/logprob/tests/simt/libfake_logprob_kernels.so"
TRAIN_KERNELS = "tests/libfake_train_kernels.so"
EMULATION = [DRIVER, NCCL, NVML, CUBLAS, RULES_KERNELS, LOGPROB_KERNELS, TRAIN_KERNELS]
BENCH, TRAIN, COMMAND = "bench/bench_gpu", "examples/fsdp_train", "tools/bucketpool"

OPTIONS = ["-Dtests=enabled", "-Dbenchmarks=auto", "-Dformats=disabled", "-Dmpi=disabled", "-Ddocs=disabled", "-Dcmocka=stand-in",
           "-Dwerror=false"]


def tool(name, module):
    return [name] if shutil.which(name) else [sys.executable, "-m", module]


def find_ninja():
    """The program of Python's package ninja; "" where there is none."""
    return output_of(sys.executable, "-c", "import ninja, os; print(os.path.join(ninja.BIN_DIR, 'ninja'))")


MESON, NINJA = tool("meson", "mesonbuild.mesonmain"), tool("ninja", "ninja")
UNFINISHED = {"gpu-run", "meson-private", "meson-logs", "meson-info"}  # leftovers of a failed configuration


class Build:
    """A build folder and, where its kernels do not compile, a second one without kernels. `carried`: the folder was built by another machine,
    perhaps at another path, and nothing is built here."""

    def __init__(self, folder, keep, carried, emulated):
        self.folders, self.carried, self.emulated = [folder], carried, emulated
        self.nvcc = shutil.which("nvcc") or next(filter(os.path.exists, ["/usr/local/cuda/bin/nvcc"]), None)
        if not keep and not carried and os.path.exists(folder):
            if not set(os.listdir(folder)) <= UNFINISHED and not os.path.exists(os.path.join(folder, "build.ninja")):
                raise SystemExit(f"{folder}: not a build folder; name another one with --build, or remove it")
            shutil.rmtree(folder)

    def find(self, path):
        """The built file, or None where it could not be built."""
        return next((os.path.join(f, path) for f in self.folders if os.path.exists(os.path.join(f, path))), None)

    def tests(self):
        """Name, command and environment of the tests that meson knows for a GPU."""
        return {t["name"].removeprefix("gpu-"): (os.path.relpath(t["cmd"][0], self.folders[0]), t["cmd"][1:], t["env"])
                for t in self._introspect("tests") if any(s.split(":")[-1] == "gpu" for s in t["suite"])}

    def libraries(self):
        """The shared libraries that the Python package loads."""
        paths = [os.path.relpath(t["filename"][0], self.folders[0]) for t in self._targets() if t["type"] == "shared library"]
        return [path for path in paths if not path.startswith("tests/")]

    def command(self):
        """The command `bucketpool`, where the build has it (formats)."""
        return [COMMAND for target in self._targets() if os.path.join(self.folders[0], COMMAND) in target["filename"]]

    def _targets(self):
        return self._introspect("targets")

    def _introspect(self, what):
        """Reads meson's description of the folder, with today's paths in place of those of the configuration; empty without one."""
        try:
            with open(os.path.join(self.folders[0], "meson-info", "meson-info.json"), encoding="utf-8") as file:
                written = json.load(file)["directories"]
            with open(os.path.join(self.folders[0], "meson-info", f"intro-{what}.json"), encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return []
        return json.loads(re.sub(r"(?<![\w./-])(" + "|".join(re.escape(written[key]) for key in ("build", "source")) + r")(?=[/\":])",
                                 lambda found: self.folders[0] if found.group() == written["build"] else os.getcwd(), text))

    def _lacks_kernels(self):
        """True if nvcc is installed and kernels are not disabled, but the build has none."""
        refused = any(option["name"] == "kernels" and option["value"] == "disabled" for option in self._introspect("buildoptions"))
        return self.nvcc is not None and not refused and not any(target["name"] == "kernels-image" for target in self._targets())

    def _configure(self, running, folder, *more):
        if os.path.exists(os.path.join(folder, "build.ninja")):
            return 0, ""
        return running.command([*MESON, "setup", folder, *OPTIONS, *more], {**os.environ, "NINJA": shutil.which("ninja") or find_ninja()})

    def make(self, running, programs):
        """A part: configures and builds. `programs`: a function that names what is wanted, called once configured. What does not compile
        costs only what needs it."""
        if self.carried:
            missing = [path for path in programs(self) if self.find(path) is None]
            return ("failed", f"not in {self.folders[0]}: {' '.join(missing)}") if missing else "passed"
        code, text = self._configure(running, self.folders[0])
        if code != 0:
            return "failed", last_line(text)
        wanted = programs(self)
        code, text = running.command([*NINJA, "-C", self.folders[0], "-k", "0", *wanted])
        if code == 0 and self._lacks_kernels():
            return "failed", f"{self.nvcc} is installed, but meson found that it does not compile our kernels (meson-logs/meson-log.txt)"
        if code == 0:
            return "passed"
        for path in wanted:  # a kept folder has those of another source
            if subprocess.run([*NINJA, "-C", self.folders[0], "-n", path], capture_output=True, text=True).stdout.count("no work to do") == 0:
                _remove(os.path.join(self.folders[0], path))
        missing = [path for path in wanted if self.find(path) is None]
        reason = next((line for line in text.splitlines() if "error" in line.lower()), last_line(text))
        self.folders.append(self.folders[0].rstrip("/") + "-without-kernels")
        shutil.rmtree(self.folders[1], ignore_errors=True)
        code, _ = self._configure(running, self.folders[1], "-Dkernels=disabled")
        if code == 0:
            running.command([*NINJA, "-C", self.folders[1], "-k", "0", *missing])
        still = [path for path in wanted if self.find(path) is None]
        return "failed", f"{reason} ({len(wanted) - len(still)} of {len(wanted)} targets were built, {len(missing) - len(still)} without kernels)"


def _remove(path):
    if os.path.exists(path):
        os.remove(path)
