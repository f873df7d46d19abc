"""Hardening: how binaries are linked, and environment variables in privileged processes.

Arguments: source directory, "fortified" or "", a program linked to the archives, the NVTX tool of the tests or "", the
command, the libraries.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT, FORTIFIED, PROGRAM, NVTX, COMMAND = sys.argv[1:6]
BINARIES = sys.argv[5:]
NOBODY = 65534


def output(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


class Binaries(unittest.TestCase):
    def test_link_flags(self):
        self.assertGreater(len(BINARIES), 1)
        for path in BINARIES:
            with self.subTest(path):
                self.assertRegex(output("readelf", "-dW", path), r"\((FLAGS|FLAGS_1|BIND_NOW)\).*NOW")
                segments = output("readelf", "-lW", path)
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(segments, r"GNU_STACK.* RW ")
                self.assertIn("DYN", output("readelf", "-hW", path))

    def test_checked_functions(self):
        for path in BINARIES:
            wanted = set(re.findall(r" U (\w+)", output("nm", "-D", path)))
            with self.subTest(path):
                self.assertIn("__stack_chk_fail", wanted)
                if FORTIFIED:
                    self.assertTrue([name for name in wanted if name.startswith("__") and name.endswith("_chk")])


class Variables(unittest.TestCase):
    def test_getenv(self):
        command = ["grep", "-rnE", r"(^|[^_[:alnum:]])getenv\(", os.path.join(ROOT, "src"), os.path.join(ROOT, "tools"),
                   "--include=*.[ch]"]
        self.assertEqual(subprocess.run(command, capture_output=True, text=True, check=False).stdout, "")

    def test_documented_variables(self):
        text = output("grep", "-rhoE", r"\"BUCKETPOOL_[A-Z_]+\b",
                      *(os.path.join(ROOT, folder) for folder in ("src", "tools", "python/bucketpool")),
                      "--include=*.[ch]", "--include=*.py")
        names = {line.strip('"') for line in text.split()} - {"BUCKETPOOL_SNAPSHOTS"}  # a mark in the page of `view`
        self.assertGreater(len(names), 5)
        with open(os.path.join(ROOT, "docs", "reference", "environment.md"), encoding="utf-8") as file:
            documented = set(re.findall(r"^\| `(BUCKETPOOL_[A-Z_]+)", file.read(), re.MULTILINE))
        self.assertEqual(documented, names)

    def buckets(self, program, folder, **variables):
        report = os.path.join(folder, "report")
        result = output(program, os.path.join(folder, "plan.json"), env={"FAKE_NVTX_REPORT": report, **variables},
                        user=NOBODY, cwd="/")
        listened = os.path.exists(report)
        if listened:
            os.remove(report)
        return int(re.search(r"from (\d+) bytes", result)[1]), listened

    def test_privileged_process(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a set-user-id program of another user")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            output(COMMAND, "plan", "Qwen3-0.6B", "-o", os.path.join(folder, "plan.json"))
            plain, privileged = (os.path.join(folder, name) for name in ("plain", "privileged"))
            shutil.copy(PROGRAM, plain)
            shutil.copy(PROGRAM, privileged)
            os.chmod(privileged, 0o4755)
            if os.statvfs(folder).f_flag & os.ST_NOSUID:
                self.skipTest(f"{folder} is mounted nosuid")
            variables = {"BUCKETPOOL_GUARD": "1", **({"NVTX_INJECTION64_PATH": shutil.copy(NVTX, folder)} if NVTX
                                                     else {})}
            usual = self.buckets(plain, folder)
            guarded = self.buckets(plain, folder, **variables)
            self.assertGreater(guarded[0], usual[0])
            self.assertEqual(guarded[1], bool(NVTX))
            self.assertEqual(self.buckets(privileged, folder, **variables), usual)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
