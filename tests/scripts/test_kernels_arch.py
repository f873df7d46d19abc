# SPDX-License-Identifier: Apache-2.0
"""-Dkernels_arch, -Dkernels_ptxas and -Dkernels_image: what clients/logprob/src/cuda/meson.build compiles kernels for, and with what, with a
toolkit and an nvidia-smi of the test's own.

Argument: the source directory."""

import contextlib
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE, "clients", "logprob", "src", "cuda"))
import fatbin as reader  # noqa: E402

MESON = shutil.which("meson")
if MESON is None:
    print("meson is not on PATH")
    sys.exit(77)
PROJECT = """project('kernels', meson_version: '>=1.0.0')
logprob_sources = []
include_flags = []
subdir('cuda')
"""
EVERY = "'sm_75','sm_80','sm_86','sm_90','sm_90a','sm_100','sm_120'"
SCRIPT = "#!/bin/sh\n"
LZ4 = b"\xf0\x0d.version 7.0\n.target sm_80\n\0\x01\x00\x10x"  # 28 bytes, the last one four times more, and one byte


def fatbin(text, flags=0x11):
    """A fatbin of one entry, as fatbinary packs PTX; of `flags` with a compression, all of `text` is compressed."""
    padded = text + b"\0" * (-len(text) % 8)
    entry = struct.pack("<HHIQIIHHI8xQQQ", 1, 0x101, 64, len(padded), len(text) if flags & 0xa000 else 0, 0, 0, 7, 80, flags, 0, 0) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


class Architectures(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(SOURCE, "clients", "logprob", "src", "cuda"), os.path.join(self.folder, "source", "cuda"))
        os.mkdir(os.path.join(self.folder, "bin"))
        with open(os.path.join(SOURCE, "meson_options.txt"), encoding="utf-8") as file:
            options = re.findall(r"^option\('kernels\w*',.*?\)$", file.read(), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(options), 4)
        self.write("source/meson_options.txt", "\n".join(options))
        self.write("source/meson.build", PROJECT)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)

    def configure(self, *options, gpus=(), ptxas=EVERY, fatbinary=""):
        """Configures, and returns what meson says of the kernels. `gpus`: compute capabilities of this machine's; `ptxas`: the codes that it knows."""
        self.write("bin/nvcc", SCRIPT)
        self.write("bin/fatbinary", SCRIPT + f"echo '{fatbinary}'\n")
        self.write("bin/ptxas", SCRIPT + f"echo \"Allowed values for this option: 'compute_80',{ptxas}.\"\n")
        self.write("bin/nvidia-smi", SCRIPT + "".join(f"echo {gpu}\n" for gpu in gpus) + ("" if gpus else "echo no devices were found\nexit 6\n"))
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        build = os.path.join(self.folder, "build")
        shutil.rmtree(build, ignore_errors=True)
        done = subprocess.run([MESON, "setup", build, os.path.join(self.folder, "source"), *options], env={**os.environ, "PATH": path},
                              capture_output=True, text=True, check=False, timeout=100)
        found = re.search(r"^ *CUDA kernels *: *(.*)$", done.stdout, re.MULTILINE)
        return found[1] if done.returncode == 0 and found else done.stdout + done.stderr

    def test_of_this_machine(self):
        self.assertEqual(self.configure(gpus=["9.0", "9.0"]), "sm_90, compute_80")
        self.assertEqual(self.configure(gpus=["10.3", "8.6"]), "sm_80, sm_100, compute_80")
        self.assertEqual(self.configure(gpus=["12.1"]), "sm_120, compute_80")

    def test_without_a_gpu(self):
        """And with one that runs PTX: one architecture, which others than the building machine run."""
        self.assertEqual(self.configure(), "sm_90, compute_80")
        self.assertEqual(self.configure(gpus=["11.0"]), "sm_90, compute_80")
        self.assertEqual(self.configure(ptxas="'sm_75','sm_80'"), "sm_80, compute_80")
        self.assertIn("ptxas knows none of sm_80", self.configure("-Dkernels=enabled", ptxas="'sm_75','sm_90a'"))

    def test_named(self):
        self.assertEqual(self.configure("-Dkernels_arch=all", gpus=["9.0"]), "sm_80, sm_90, sm_100, sm_120, compute_80")
        self.assertEqual(self.configure("-Dkernels_arch=80,100", gpus=["9.0"]), "sm_80, sm_100, compute_80")
        for wrong in ("70", "80,"):
            self.assertIn("what ptxas and the kernels know: 80, 90, 100, 120", self.configure("-Dkernels_arch=" + wrong), wrong)

    def test_speaks_of_the_time(self):
        self.configure(gpus=["9.0"])
        with open(os.path.join(self.folder, "build", "meson-logs", "meson-log.txt"), encoding="utf-8") as file:
            self.assertIn("CUDA kernels for sm_90: a minute, and half of one for each", file.read())

    def command_of(self, output):
        """The command that makes a file of the build folder."""
        with open(os.path.join(self.folder, "build", "build.ninja"), encoding="utf-8") as file:
            return re.search(rf"^build cuda/{re.escape(output)}:.*?^ COMMAND = (.*?)$", file.read(), re.MULTILINE | re.DOTALL)[1].replace("$ ", " ")

    def test_named_ptxas(self):
        """The tools beside nvcc, unless one is named; contraction is off for all of them, and for the driver that compiles the PTX."""
        self.configure("-Dkernels_arch=80,90")
        for code in ("80", "90"):
            self.assertTrue(self.command_of(f"kernels-sm_{code}.cubin").startswith(
                f"{self.folder}/bin/ptxas -arch=sm_{code} -m64 --fmad false cuda/kernels.ptx -o"))
        self.assertIn("'--cmdline= --fmad false '", self.command_of("kernels.fatbin"))
        self.assertIn(" -fmad=false ", self.command_of("kernels-nvcc.ptx"))
        self.write("older", SCRIPT + "echo \"'sm_80'\"\n")
        self.assertEqual(self.configure("-Dkernels_arch=all", f"-Dkernels_ptxas={self.folder}/older"), "sm_80, compute_80")
        self.assertTrue(self.command_of("kernels-sm_80.cubin").startswith(self.folder + "/older "))
        self.assertTrue(self.command_of("kernels.ptx").endswith(self.folder + "/older"))
        self.assertIn("absent", self.configure(f"-Dkernels_ptxas={self.folder}/absent"))

    def test_compression(self):
        """LZ4, where fatbinary has a choice: drivers before CUDA 12.4 do not read zstd, its default."""
        for help_text, expected in ("", False), ("--compress-mode [default,size,speed]", True):
            self.assertEqual(self.configure(fatbinary=help_text), "sm_90, compute_80")
            self.assertEqual("--compress-mode=speed" in self.command_of("kernels.fatbin"), expected)

    def test_given_image(self):
        """An image of another build takes the place of nvcc; what drivers would not read is refused."""
        path, given = os.path.join(self.folder, "given.fatbin"), f"-Dkernels_image={self.folder}/given.fatbin"

        def configured(content):
            with open(path, "wb") as file:
                file.write(content)
            return self.configure(given)

        self.assertEqual(configured(fatbin(b".version 7.0\n.target sm_80\n")), "compute_80")
        self.assertIn("not a fatbin", configured(b"PTX"))
        self.assertIn("compressed by zstd, which drivers before CUDA 12.4 do not read", configured(fatbin(b"\x28\xb5\x2f\xfd", 0x8011)))
        self.assertIn("a fatbin without code", configured(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)))
        self.assertIn("a damaged fatbin: entry 1, at byte 16 of 96", configured(fatbin(b"\xff" * 16, 0x2011)))
        self.assertIn("compute_80: PTX that begins with", configured(fatbin(b".version 7.0\n.target sm_90\n")))
        shutil.copy(path, os.path.join(self.folder, "source", "copy"))
        self.assertIn("compute_80: PTX", self.configure("-Dkernels_image=copy"))
        self.assertIn("-Dkernels=disabled refuses them", self.configure(given, "-Dkernels=disabled"))
        for compiling in "-Dkernels_arch=80", "-Dkernels_ptxas=ptxas":
            self.assertIn("leave out -Dkernels_arch and -Dkernels_ptxas", self.configure(given, compiling))
        os.remove(path)
        self.assertIn("given.fatbin", self.configure(given))


class Damaged(unittest.TestCase):
    """Each byte of a fatbin, changed: an answer, or ValueError."""

    def test_bytes(self):
        whole = reader.entries(fatbin(LZ4, 0x2011))
        self.assertEqual([(each.code, each.compression) for each in whole], [("compute_80", "LZ4")])
        image = fatbin(LZ4, 0x2011)
        for place in range(len(image)):
            for value in (0, 1, 0x7f, 0xff):
                with contextlib.suppress(ValueError):
                    reader.entries(image[:place] + bytes([value]) + image[place + 1:])
            with self.assertRaises(ValueError):
                reader.entries(image[:place])
        for stored, padded in ((41, 40), (34, 48)):  # longer than its place; beyond the end
            with self.assertRaisesRegex(ValueError, "a damaged fatbin"):
                reader.entries(image[:24] + struct.pack("<QI", padded, stored) + image[36:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
