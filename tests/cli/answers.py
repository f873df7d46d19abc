# SPDX-License-Identifier: Apache-2.0
"""Assertions on the output of the command: errors of one line, golden texts."""

import atexit
import fcntl
import glob
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

os.environ["BUCKETPOOL_PROGRESS"] = "0"  # however slow the machine is
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")


def run(*arguments, **more):
    """The command, in the source directory: the first arguments of a test are that directory and the command."""
    settings = {"capture_output": True, "text": True, "cwd": sys.argv[1], "timeout": 600, "check": False, **more}
    return subprocess.run([os.path.abspath(sys.argv[2]), *arguments], **settings)


def document(*arguments):
    """The answer to --json."""
    result = run(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, ""), (arguments, result.stderr)
    return json.loads(result.stdout)


def readable_copies(source, program, inputs):
    """A folder that every user may enter, whatever the umask and wherever the clone is: with the inputs, and the command beside its libraries as in
    its build folder. Returns the folder and the command in it."""
    place = tempfile.mkdtemp(dir="/tmp")
    atexit.register(shutil.rmtree, place)
    for name in inputs:
        shutil.copytree(os.path.join(source, name), os.path.join(place, name))
    build = os.path.dirname(os.path.dirname(program))
    libraries = [path for part in ("src", "clients") for path in glob.glob(os.path.join(build, part, "**", "*.so.*"), recursive=True)]
    for path in (program, *libraries):
        copy = os.path.join(place, "build", os.path.relpath(path, build))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.isfile(path):  # beside them meson has folders of objects
            shutil.copy(path, copy)
    let_all_read(place)
    return place, os.path.join(place, "build", os.path.relpath(program, build))


def let_all_read(place):
    for folder, _, names in os.walk(place):
        os.chmod(folder, 0o755)
        for name in names:
            path = os.path.join(folder, name)
            os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)


class Answers(unittest.TestCase):
    maxDiff = None

    def one_line(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("bucketpool: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def refused(self, result, code, *words):
        self.one_line(result, code, *words)
        self.assertEqual(result.stdout, "")

    def on_terminal(self, command, *streams, typed=b"", columns=0, **options):
        """Runs a command whose `streams` ("stderr", ...) are a terminal: exit code and the terminal's bytes."""
        try:
            main, side = pty.openpty()
        except OSError as error:
            self.skipTest(f"no pseudo-terminal: {error}")
        if columns > 0:
            fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        data = b""
        with subprocess.Popen(command, **{stream: side for stream in streams}, **options) as process:
            os.close(side)
            os.write(main, typed)
            try:
                while chunk := os.read(main, 65536):
                    data += chunk
            except OSError:
                pass
            process.communicate(timeout=600)
        os.close(main)
        return process.returncode, data

    def golden(self, name, text):
        path = os.path.join(GOLDEN, name)
        if os.environ.get("UPDATE_GOLDEN"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), text)


class InFolder(Answers):
    """Each test gets a temporary folder."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)
