# SPDX-License-Identifier: Apache-2.0
"""The example programs of the documents, and their output.

Arguments: the C program of examples/use_in_runtime.c, the command.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from support import MODELS, SOURCES

PROGRAM, COMMAND = sys.argv[1:3]
MODEL = os.path.join(MODELS, "Qwen3-0.6B")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **more)


class Examples(unittest.TestCase):
    def served(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return tuple(map(int, re.fullmatch(r"(\d+) buckets from (\d+) bytes\n", result.stdout).groups()))

    def test_c_and_python_output(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = os.path.join(folder, "plan.json")
            run(COMMAND, "plan", MODEL, "--dp", "8", "--roles", "param", "--policy", "scheduled", "--layout", "hf",
                "-o", plan, check=True)
            buckets, from_c = self.served(run(PROGRAM, plan))
        served, from_python = self.served(run(sys.executable, os.path.join(SOURCES, "examples", "use_in_runtime.py"),
                                              MODEL))
        self.assertEqual(from_c, from_python)
        self.assertEqual((buckets, served), (28, 55))  # each once; forward and backward, the last unit in one piece

    def test_missing_file(self):
        result = run(PROGRAM, "no.json")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no.json", result.stderr)
        result = run(sys.executable, os.path.join(SOURCES, "examples", "use_in_runtime.py"), "no.json")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.splitlines()[-1], r"^bucketpool\.errors\.FileError: .*no\.json")



if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
