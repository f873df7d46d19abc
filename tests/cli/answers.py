"""Assertions on the output of the command: errors of one line, golden texts."""

import os
import shutil
import tempfile
import unittest

os.environ["BUCKETPOOL_PROGRESS"] = "0"  # however slow the machine is
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")


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
