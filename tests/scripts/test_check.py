# SPDX-License-Identifier: Apache-2.0
"""./check, ./quickstart and scripts/packages while they work: they speak at once, say how far they are, and end with the counted line.

Argument: the source directory."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

SOURCE = sys.argv[1]
SCRIPTS = os.path.join(SOURCE, "scripts")

LONG = """
import sys
sys.path.insert(0, sys.argv[1])
import progress
progress.PAUSE = 0.2
progress.say(progress.announce("check", "about a while", lambda: "7 checks counted"))
code = progress.execute(["sh", "-c", "echo '[3/9] cc a.c'; sleep 0.7; echo '[8/9] cc b.c'; sleep 0.7; exit 5"], "long.log", "plain")
progress.execute(["sleep", "0.5"], "other.log", "static")
progress.record("check")
progress.say(f"{code} passed")
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, stat.S_IRWXU)
        return path

    def run_long(self, **more):
        os.makedirs(os.path.join(self.folder, "build-check"), exist_ok=True)
        return subprocess.run([sys.executable, "-B", "-c", LONG, SCRIPTS], cwd=self.folder, check=True, timeout=60, **more)


class Progress(InFolder):
    def test_without_a_terminal(self):
        lines = self.run_long(capture_output=True, text=True).stdout.splitlines()
        self.assertEqual((lines[0], lines[-1]), ("about a while", "5 passed"))
        self.assertTrue(any("plain 3 of 9; 7 checks counted" in line for line in lines), lines)
        self.assertTrue(any("plain 8 of 9; 7 checks counted" in line for line in lines), lines)
        self.assertTrue(any("; static 0 s;" in line for line in lines), lines)  # a command that counts nothing
        self.assertLess(len(lines), 14)

    def test_the_last_run_is_the_estimate(self):
        self.run_long(capture_output=True)
        with open(os.path.join(self.folder, "build-check", "times.json"), "r+", encoding="utf-8") as file:
            self.assertIn(json.load(file)["check"], range(1, 60))
            file.seek(0)
            json.dump({"check": 1500}, file)
            file.truncate()
        lines = self.run_long(capture_output=True, text=True).stdout.splitlines()
        self.assertEqual(lines[0], "the last run here took 25 min")
        self.assertIn(" of about 25 min; plain 3 of 9", lines[1])

    def test_unreadable_estimates(self):
        for text in ("", "[]", '{"check": "long"}', '{"check": null}'):
            self.write("build-check/times.json", text)
            self.assertEqual(self.run_long(capture_output=True, text=True).stdout.splitlines()[0], "about a while", text)

    def test_on_a_terminal(self):
        main, side = os.openpty()
        self.run_long(stdout=side)
        os.close(side)
        data = b""
        try:
            while piece := os.read(main, 65536):
                data += piece
        except OSError:
            pass
        os.close(main)
        lines = data.decode().replace("\r\n", "\n").split("\n")
        self.assertIn("\r  1 s; plain", lines[1])
        self.assertEqual(len(lines), 3, lines)  # what is announced, and one line that moves until the last takes its place
        self.assertTrue(lines[1].endswith("\r\x1b[K5 passed"), lines)


class Legs(InFolder):
    def run_tests(self, recorded):
        """check.run_tests with a meson that announces three tests and records some."""
        self.write("build/meson-logs/testlog.json", "".join(json.dumps({"name": name, "result": "OK", "duration": 1.0}) + "\n" for name in recorded))
        self.write("bin/meson", "#!/bin/sh\necho '1/3 a OK 1.0s'\n")
        program = ("import sys; sys.argv, scripts = ['check.py'], sys.argv[1]; sys.path.insert(0, scripts); import check; "
                   "check.run_tests('build', 'plain.log', 'plain: tests', (), ()); sys.exit(check.finish())")
        path = os.path.join(self.folder, "bin") + os.pathsep + os.environ["PATH"]
        return subprocess.run([sys.executable, "-B", "-c", program, SCRIPTS], cwd=self.folder, env={**os.environ, "PATH": path}, capture_output=True,
                              text=True, check=False, timeout=60)

    def test_all_tests(self):
        result = self.run_tests("abc")
        self.assertEqual((result.returncode, result.stdout.splitlines()[-1]), (0, "3 passed, 0 failed, 0 skipped"), result.stderr)

    def test_killed_half_way(self):
        result = self.run_tests("a")
        self.assertEqual((result.returncode, result.stdout.splitlines()[-1]), (1, "1 passed, 1 failed, 0 skipped"), result.stderr)
        self.assertIn("plain: tests (ended after 1 of 3 tests)", result.stdout)


class Packages(InFolder):
    """With an apt-get that takes its time; `sleep` of the scripts is short."""

    def setUp(self):
        super().setUp()
        self.sleep = shutil.which("sleep")
        os.mkdir(os.path.join(self.folder, "bin"))
        for name in ("awk", "date", "dirname", "grep", "mktemp", "rm", "tail"):  # no compiler: packages are missing
            os.symlink(shutil.which(name), os.path.join(self.folder, "bin", name))
        self.write("bin/sleep", f"#!/bin/sh\nexec {self.sleep} 0.05\n")
        self.write("bin/apt-cache", "#!/bin/sh\n")
        self.write("bin/id", "#!/bin/sh\necho 0\n")

    def apt_get(self, text):
        self.write("bin/apt-get", f"#!/bin/sh\ncase \" $* \" in *print-uris*) exit 0 ;; esac\n{text}\n")

    def packages(self):
        return subprocess.Popen([shutil.which("sh"), os.path.join(SCRIPTS, "packages"), "build"], env={"PATH": os.path.join(self.folder, "bin")},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_says_how_far_apt_is(self):
        self.apt_get(f"echo Get:1 a; echo Get:2 b; echo Unpacking a; {self.sleep} 0.5; echo Setting up a; {self.sleep} 0.5")
        with self.packages() as process:
            text, errors = process.communicate(timeout=60)
        lines = text.splitlines()
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(lines[0], "packages: looks for what this needs")
        self.assertRegex(lines[1], "^packages: missing: gcc ")
        self.assertTrue(any(line.endswith("2 downloaded, 1 unpacked, 0 set up") for line in lines), lines)
        self.assertTrue(any(line.endswith("2 downloaded, 1 unpacked, 1 set up") for line in lines), lines)

    def test_failure(self):
        self.apt_get(f"[ $1 = update ] && exit 0; {self.sleep} 0.2; echo 'E: no such package'; exit 100")
        with self.packages() as process:
            self.assertIn("apt-get install failed: E: no such package", process.communicate(timeout=60)[1])
        self.assertEqual(process.returncode, 1)

    def test_speaks_at_once(self):
        """Before apt-get has ended, which waits for a file."""
        go = os.path.join(self.folder, "go")
        self.apt_get(f"until [ -e {go} ]; do {self.sleep} 0.05; done")
        with self.packages() as process:
            self.assertRegex(process.stdout.readline(), "^packages: looks for ")
            self.assertRegex(process.stdout.readline(), "^packages: missing: gcc ")
            self.assertRegex(process.stdout.readline(), "^packages: [0-9]+ s, 0 downloaded")
            self.assertIsNone(process.poll())
            with open(go, "w", encoding="utf-8"):
                pass
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)


class Quickstart(InFolder):
    def test_announces_itself_first(self):
        """Before anything is looked for."""
        tree = os.path.join(self.folder, "tree")
        os.makedirs(os.path.join(tree, "scripts"))
        for name in ("quickstart", "scripts/while_running"):
            shutil.copy(os.path.join(SOURCE, name), os.path.join(tree, name))
        self.write("tree/scripts/packages", "#!/bin/sh\necho packages are missing >&2\nexit 1\n")
        result = subprocess.run(["sh", os.path.join(tree, "quickstart")], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((result.returncode, result.stderr), (1, "packages are missing\n"))
        self.assertRegex(result.stdout, r"^quickstart: installs what is missing, .* minutes on two cores\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
