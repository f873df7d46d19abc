# SPDX-License-Identifier: Apache-2.0
"""The workflows of .github, and the program that runs them: everything in them is emulated, and what is not emulated is an error.

Argument: the source directory. Skipped without PyYAML."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "packaging"))
try:
    import yaml  # noqa: F401  pylint: disable=unused-import
except ImportError:
    print("PyYAML is not installed")
    sys.exit(77)
import workflows  # noqa: E402  pylint: disable=wrong-import-position

STEP = "    steps:\n      - run: ./check\n"
HEAD = "on: push\npermissions:\n  contents: read\nconcurrency: one\n"
JOB = HEAD + "jobs:\n  one:\n    runs-on: ubuntu-24.04\n    container: debian:12\n    timeout-minutes: 5\n"


class Workflows(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "some.yml"
            path.write_text(text, encoding="utf-8")
            return workflows.declared(path, "push"), workflows.faults(path)

    def refused(self, text, reason):
        with self.assertRaises(workflows.Unsupported) as caught:
            self.read(text)
        self.assertIn(reason, str(caught.exception))

    def test_ours(self):
        done = subprocess.run([sys.executable, ROOT / "packaging" / "workflows.py", "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        jobs = workflows.all_jobs("push", "", [])
        self.assertEqual({job.system for job in jobs if job.key == "systems"}, {"debian-12", "debian-13", "ubuntu-24.04"})

    def test_refused(self):
        self.refused(JOB + "    services: {}\n" + STEP, "services is not emulated in a job")
        self.refused(JOB + STEP + "        continue-on-error: true\n", "continue-on-error is not emulated in a step")
        self.refused(JOB + "    steps:\n      - uses: actions/setup-python@v5\n", "action actions/setup-python@v5 is not emulated")
        self.refused(JOB + "    steps:\n      - uses: actions/checkout@v6\n        with: {submodules: true}\n", "option submodules of checkout is not emulated")
        self.refused(JOB + "    steps:\n      - run: echo a=b >> $GITHUB_ENV\n", "are not emulated")
        self.refused(JOB + "    steps:\n      - run: ls\n        shell: pwsh\n", 'shell "pwsh" is not emulated')
        self.refused(JOB + "    steps:\n      - run: echo ${{ secrets.KEY }}\n", "secrets.KEY has no value here")
        self.refused(JOB.replace("debian:12", "fedora:41") + STEP, 'no root for runner "ubuntu-24.04" with container "fedora:41"')
        self.refused(JOB.replace("ubuntu-24.04", "macos-15") + STEP, 'no root for runner "macos-15"')
        self.refused(JOB + "    needs: two\n" + STEP, "job one needs two, which does not exist")

    def test_faults(self):
        def faults(text):
            return self.read(text)[1]

        self.assertEqual(faults(JOB + STEP), [])
        self.assertEqual(faults(JOB + "    steps:\n      - run: scripts/gone --now\n"), ["some: one: scripts/gone does not exist"])
        self.assertEqual(faults((JOB + STEP).replace("    timeout-minutes: 5\n", "")), ["some.yml: job one: timeout-minutes is missing"])
        self.assertIn("no commas", faults(JOB + "    steps:\n      - uses: actions/cache@" + 40 * "0" + " # v4\n        with: {path: a, key: 'b,c'}\n")[0])
        self.assertIn("permissions must be", faults((JOB + STEP).replace("read", "write"))[0])
        self.assertIn("pin the action", faults(JOB + "    steps:\n      - uses: actions/checkout@v6\n")[0])

    def test_matrix(self):
        matrix = {"system": ["a", "b"], "compiler": ["x", "y"], "exclude": [{"system": "b", "compiler": "y"}],
                  "include": [{"compiler": "x", "more": "1"}, {"system": "c"}, {"system": "b", "compiler": "x", "last": "2"}]}
        self.assertEqual(workflows.combinations(matrix), [
            {"system": "a", "compiler": "x", "more": "1"}, {"system": "a", "compiler": "y"},
            {"system": "b", "compiler": "x", "more": "1", "last": "2"}, {"system": "c"}])
        self.assertEqual(workflows.combinations({"include": [{"a": "1"}, {"a": "2"}]}), [{"a": "1"}, {"a": "2"}])

    def test_conditions(self):
        contexts = {"github": {"ref": "refs/tags/v1", "event_name": "push"}, "matrix": {"n": 3}}
        for text, failed, expected in (
                ("always()", True, True), ("failure()", True, True), ("failure()", False, False), ("success()", True, False),
                ("github.event_name == 'Push'", False, True), ("github.event_name == 'push'", True, False),
                ("startsWith(github.ref, 'refs/tags/') && matrix.n == 3", False, True), ("!(matrix.n != 3) || failure()", False, True),
                ("${{ always() && github.ref == 'other' }}", True, False)):
            self.assertEqual(workflows.holds(text, contexts, failed), expected, text)
        for text in ("matrix.other", "hashFiles('a')", "matrix.n ==", "matrix.n 3", "a ~ b"):
            with self.assertRaises(workflows.Unsupported, msg=text):
                workflows.holds(text, contexts, False)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
