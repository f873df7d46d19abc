# SPDX-License-Identifier: Apache-2.0
"""-Dkernels_arch: the GPUs that clients/logprob/src/cuda/meson.build compiles kernels for, with an nvcc and an nvidia-smi of the test's own.

Argument: the source directory."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv[1]
MESON = shutil.which("meson")
if MESON is None:
    print("meson is not on PATH")
    sys.exit(77)
PROJECT = """project('kernels', meson_version: '>=1.0.0')
logprob_sources = []
include_flags = []
subdir('cuda')
"""
EVERY = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"


class Architectures(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(SOURCE, "clients", "logprob", "src", "cuda"), os.path.join(self.folder, "source", "cuda"))
        os.mkdir(os.path.join(self.folder, "bin"))
        with open(os.path.join(SOURCE, "meson_options.txt"), encoding="utf-8") as file:
            options = re.findall(r"^option\('kernels\w*',.*?\)$", file.read(), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(options), 2)
        self.write("source/meson_options.txt", "\n".join(options))
        self.write("source/meson.build", PROJECT)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)

    def configure(self, *options, gpus=(), nvcc=EVERY):
        """Configures, and returns what meson says of the kernels. `gpus`: compute capabilities of this machine's; `nvcc`: the codes that it knows."""
        self.write("bin/nvcc", f"#!/bin/sh\n[ \"$1\" = --list-gpu-code ] && printf '%s\\n' {nvcc}\nexit 0\n")
        self.write("bin/nvidia-smi", "#!/bin/sh\n" + "".join(f"echo {gpu}\n" for gpu in gpus) + ("" if gpus else "echo no devices were found\nexit 6\n"))
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        build = os.path.join(self.folder, "build")
        shutil.rmtree(build, ignore_errors=True)
        done = subprocess.run([MESON, "setup", build, os.path.join(self.folder, "source"), *options], env={**os.environ, "PATH": path},
                              capture_output=True, text=True, check=False, timeout=100)
        found = re.search(r"^ *CUDA kernels: *(.*)$", done.stdout, re.MULTILINE)
        return found[1] if done.returncode == 0 and found else done.stdout + done.stderr

    def test_of_this_machine(self):
        self.assertEqual(self.configure(gpus=["9.0", "9.0"]), "sm_90")
        self.assertEqual(self.configure(gpus=["10.3", "8.6"]), "sm_80, sm_100")

    def test_without_a_gpu(self):
        """And with one that runs PTX: one architecture, which others than the building machine run."""
        self.assertEqual(self.configure(), "sm_90")
        self.assertEqual(self.configure(gpus=["12.0"]), "sm_90")
        self.assertEqual(self.configure(nvcc="sm_75 sm_80"), "sm_80")

    def test_named(self):
        self.assertEqual(self.configure("-Dkernels_arch=all", gpus=["9.0"]), "sm_80, sm_90, sm_100")
        self.assertEqual(self.configure("-Dkernels_arch=80,100", gpus=["9.0"]), "sm_80, sm_100")
        for wrong in ("70", "80,"):
            self.assertIn("what nvcc and the kernels know: 80, 90, 100", self.configure("-Dkernels_arch=" + wrong), wrong)

    def test_speaks_of_the_time(self):
        self.configure(gpus=["9.0"])
        with open(os.path.join(self.folder, "build", "meson-logs", "meson-log.txt"), encoding="utf-8") as file:
            self.assertIn("CUDA kernels for sm_90, a minute of nvcc each", file.read())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
