# SPDX-License-Identifier: Apache-2.0
"""Hardening: how binaries are compiled, linked and installed, and environment variables in privileged processes.

Arguments: source directory, build directory, the compiler's flags for hardening, the program privileged.c, the command linked to the archives,
folder of the emulated CUDA driver, the NVTX tool of the tests or "", the shipped binaries.
"""

import glob
import json
import os
import platform
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD, FLAGS, PROGRAM, COMMAND, DRIVERS, NVTX = sys.argv[1:8]
BINARIES = sys.argv[8:]
NOBODY = 65534
BRANCH_TARGET = {"x86_64": "endbr64", "aarch64": "paciasp|bti"}.get(platform.machine())


def output(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


class Binaries(unittest.TestCase):
    def check_links(self, path):
        dynamic, segments = output("readelf", "-dW", path), output("readelf", "-lW", path)
        self.assertRegex(dynamic, r"\((FLAGS|FLAGS_1|BIND_NOW)\).*NOW")
        self.assertNotRegex(dynamic, r"TEXTREL|\(RPATH\)")
        self.assertIn("GNU_RELRO", segments)
        self.assertRegex(segments, r"GNU_STACK.* RW ")
        self.assertNotRegex(segments, r"LOAD.* RWE ")
        self.assertIn("DYN", output("readelf", "-hW", path))
        return [folder for folders in re.findall(r"\(RUNPATH\).*\[(.*)\]", dynamic) for folder in folders.split(":")]

    def test_link_flags(self):
        self.assertGreater(len(BINARIES), 1)
        for path in BINARIES:
            with self.subTest(path):
                self.check_links(path)

    def test_checked_functions(self):
        for path in BINARIES:
            wanted = set(re.findall(r" U (\w+)", output("nm", "-D", path)))
            with self.subTest(path):
                self.assertIn("__stack_chk_fail", wanted)
                if "_FORTIFY_SOURCE" in FLAGS and os.path.basename(path) != "_binding.abi3.so":  # which calls no such function
                    self.assertTrue([name for name in wanted if name.startswith("__") and name.endswith("_chk")])

    def test_compiled_with_all_flags(self):
        with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
            commands = {os.path.relpath(os.path.join(BUILD, entry["file"]), ROOT): shlex.split(entry["command"]) for entry in json.load(file)}
        shipped = [name for name in commands if name.startswith(("src/", "clients/logprob/src/", "tools/", "python/")) and name.endswith(".c")]
        self.assertGreater(len(shipped), 150)
        for name in shipped:
            self.assertEqual([flag for flag in FLAGS.split() if flag not in commands[name]], [], name)

    @unittest.skipUnless(BRANCH_TARGET and re.search("-fcf-protection|-mbranch-protection", FLAGS), "not supported by the compiler or the processor")
    def test_branch_targets(self):
        """The first instruction of a function that others call."""
        for path in BINARIES:
            symbols = re.findall(r" T (\w+)", output("nm", "-D", "--defined-only", path)) or re.findall(r" [Tt] (main)\b", output("nm", path))
            with self.subTest(path):
                code = output("objdump", "-d", "--no-show-raw-insn", f"--disassemble={symbols[0]}", path)
                self.assertRegex(code, rf"<{symbols[0]}.*>:\n.*\b({BRANCH_TARGET})\b")

    @unittest.skipUnless(shutil.which("meson"), "needs meson")
    def test_installed_run_paths(self):
        """Relative to the binary, and inside of what is installed."""
        with tempfile.TemporaryDirectory() as folder:
            output("meson", "install", "-C", BUILD, "--no-rebuild", "--tags", "runtime", "--destdir", folder, stdin=subprocess.DEVNULL)
            found = 0
            for path in glob.glob(os.path.join(folder, "**", "*"), recursive=True):
                with open(path if os.path.isfile(path) else os.devnull, "rb") as file:
                    if os.path.islink(path) or file.read(4) != b"\x7fELF":
                        continue
                with self.subTest(path):
                    found += 1
                    for run_path in self.check_links(path):
                        self.assertRegex(run_path, r"^\$ORIGIN(/|$)")
                        resolved = os.path.realpath(run_path.replace("$ORIGIN", os.path.dirname(path)))
                        self.assertTrue(resolved.startswith(os.path.realpath(folder) + "/"), run_path)
                        self.assertTrue(glob.glob(os.path.join(resolved, "libbucketpool*.so*")), run_path)
            self.assertGreaterEqual(found, len([path for path in BINARIES if not path.endswith("abi3.so")]))


def sources_with(expression, *folders):
    """Files of C with a match, and the lines."""
    command = ["grep", "-rnE", expression, *(os.path.join(ROOT, folder) for folder in folders), "--include=*.[ch]"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


# Value of each variable, and the line of the program that it changes.
IN_LIBRARIES = {
    "BUCKETPOOL_GUARD": ("1", "guard"), "BUCKETPOOL_CHECK_CAPTURE": ("1", "check"), "BUCKETPOOL_TORCH_BYTES": ("many", "segments"),
    "BUCKETPOOL_COMM_TIMEOUT": ("7", "timeout"), "BUCKETPOOL_CACHE_BYTES": ("12345", "cache"),
    "NCCL_CUMEM_ENABLE": ("0", "window"), "NCCL_WIN_ENABLE": ("0", "window"), "NCCL_LOCAL_REGISTER": ("0", "window"),
    "LD_LIBRARY_PATH": ("FOLDER/drivers", "driver"),
    **({"BUCKETPOOL_NVTX": ("1", "annotated"), "NVTX_INJECTION64_PATH": ("FOLDER/tool.so", "annotated")} if NVTX else {}),
}
IN_COMMAND = ("BUCKETPOOL_MODELS", "BUCKETPOOL_PROGRESS", "BUCKETPOOL_PYTHON", "NO_COLOR", "TERM")
IN_PYTHON = {"BUCKETPOOL_LIBRARY_PATH", "BUCKETPOOL_BINDING", "BUCKETPOOL_COMMAND"}  # read in every process, as PYTHONPATH is


class Variables(unittest.TestCase):
    def test_getenv(self):
        self.assertEqual(sources_with(r"(^|[^_[:alnum:]])getenv\(", "src", "clients/logprob/src", "tools", "python"), "")

    def test_names_of_libraries(self):
        """No file that loads libraries reads the environment."""
        loading, reading = (set(re.findall(r"^([^:]+):", sources_with(call, "src", "clients/logprob/src", "tools", "python"), re.MULTILINE))
                            for call in (r"\bdlopen\(", r"secure_getenv\("))
        self.assertGreater(len(loading), 3)
        self.assertEqual(loading & reading, set())

    def test_documented_variables(self):
        text = output("grep", "-rhoE", r"\"BUCKETPOOL_[A-Z_]+\b",
                      *(os.path.join(ROOT, folder) for folder in ("src", "tools", "python/bucketpool")),
                      "--include=*.[ch]", "--include=*.py")
        names = {line.strip('"') for line in text.split()} - {"BUCKETPOOL_SNAPSHOTS"}  # a mark in the page of `view`
        self.assertGreater(len(names), 5)
        with open(os.path.join(ROOT, "docs", "reference", "environment.md"), encoding="utf-8") as file:
            documented = set(re.findall(r"^\| `(BUCKETPOOL_[A-Z_]+)", file.read(), re.MULTILINE))
        self.assertEqual(documented, names)
        tested = IN_LIBRARIES.keys() | set(IN_COMMAND) | IN_PYTHON | {"BUCKETPOOL_NVTX"}  # without NVTX: not built
        self.assertEqual(names - tested, set())


def add_capability(path):
    """The lowest capability that processes here may have, for whoever runs the file."""
    with open("/proc/self/status", encoding="utf-8") as file:
        bounds = int(re.search(r"CapBnd:\s*(\w+)", file.read())[1], 16)
    permitted = bounds & -bounds
    revision_2_and_effective = 0x02000001
    os.setxattr(path, "security.capability", struct.pack("<IIIII", revision_2_and_effective, permitted & 0xffffffff, 0, permitted >> 32, 0))


@unittest.skipIf(os.geteuid() != 0, "only root can make a privileged program of another user")
class Privileged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir="/tmp")  # TMPDIR may be root's own
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.addClassCleanup(os.umask, os.umask(0o022))  # others read the copies, even of a clone that only root may read
        os.chmod(cls.folder, 0o777)
        if os.statvfs(cls.folder).f_flag & os.ST_NOSUID:
            raise unittest.SkipTest(f"{cls.folder} is mounted nosuid")
        cls.kinds = ["usual", "set-user-id"]
        for program in (PROGRAM, COMMAND):
            name = os.path.join(cls.folder, os.path.basename(program))
            for kind in ("usual", "set-user-id", "capabilities"):
                os.chmod(shutil.copy(program, f"{name}.{kind}"), 0o4755 if kind == "set-user-id" else 0o755)
        for name in glob.glob(os.path.join(cls.folder, "*.capabilities")):
            try:
                add_capability(name)
            except OSError as error:
                print(f"without file capabilities: {error}")
                break
        else:
            cls.kinds.append("capabilities")
        os.mkdir(os.path.join(cls.folder, "drivers"))
        for copy in ("driver.so", os.path.join("drivers", "libcuda.so.1")):
            shutil.copyfile(os.path.join(DRIVERS, "libcuda.so.1"), os.path.join(cls.folder, copy))
        if NVTX:
            shutil.copyfile(NVTX, os.path.join(cls.folder, "tool.so"))
        for model in ("plain", os.path.join("models", "Private")):
            os.makedirs(os.path.join(cls.folder, model))
            shutil.copyfile(os.path.join(ROOT, "examples", "models", "Qwen3-0.6B", "config.json"), os.path.join(cls.folder, model, "config.json"))

    def copy_of(self, program, kind):
        return os.path.join(self.folder, f"{os.path.basename(program)}.{kind}")

    def lines(self, kind, **variables):
        """Lines of the program by their first word; "tool": an NVTX tool was loaded."""
        report = os.path.join(self.folder, "report")
        text = output(self.copy_of(PROGRAM, kind), os.path.join(self.folder, "driver.so"), env={"FAKE_NVTX_REPORT": report, **variables}, user=NOBODY, cwd="/")
        lines = dict(line.partition(" ")[::2] for line in text.splitlines())
        lines["tool"] = os.path.exists(report)
        if lines["tool"]:
            os.remove(report)
        self.assertEqual(lines.pop("privileged"), "0" if kind == "usual" else "1")
        return lines

    def test_libraries(self):
        usual = {kind: self.lines(kind) for kind in self.kinds}
        for variable, (value, line) in IN_LIBRARIES.items():
            for kind in self.kinds:
                with self.subTest(variable, kind=kind):
                    lines = self.lines(kind, **{variable: value.replace("FOLDER", self.folder)})
                    if kind == "usual":
                        self.assertNotEqual(lines[line], usual[kind][line])
                        self.assertEqual(lines["tool"], variable == "NVTX_INJECTION64_PATH")
                    else:
                        self.assertEqual(lines, usual[kind])

    def command(self, kind, *words, **variables):
        return subprocess.run([self.copy_of(COMMAND, kind), *words], capture_output=True, text=True, user=NOBODY, cwd=self.folder, env=variables, check=False)

    def test_models_of_the_command(self):
        for kind in self.kinds:
            with self.subTest(kind=kind):
                found = self.command(kind, "plan", "Private", BUCKETPOOL_MODELS=os.path.join(self.folder, "models"))
                self.assertEqual(found.returncode == 0, kind == "usual", found.stderr)

    def test_progress_of_the_command(self):
        for kind in self.kinds:
            with self.subTest(kind=kind):
                run = self.command(kind, "run", "plain", "--scale", "4096", "--steps", "1", BUCKETPOOL_PROGRESS="0.000001")
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertEqual("bucketpool: step" in run.stderr, kind == "usual")

    def has_colors(self, kind, **variables):
        controller, terminal = pty.openpty()
        try:
            process = subprocess.Popen([self.copy_of(COMMAND, kind), "plan", "plain"], stdout=terminal, user=NOBODY, cwd=self.folder, env=variables)
            os.close(terminal)
            text = b""
            try:
                while piece := os.read(controller, 65536):
                    text += piece
            except OSError:  # the other end is closed
                pass
            self.assertEqual(process.wait(), 0)
            return b"\x1b[" in text
        finally:
            os.close(controller)

    def test_colors_of_the_command(self):
        for kind in self.kinds:
            with self.subTest(kind=kind):
                self.assertTrue(self.has_colors(kind))
                self.assertEqual(self.has_colors(kind, NO_COLOR="1"), kind != "usual")
                self.assertEqual(self.has_colors(kind, TERM="dumb"), kind != "usual")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
