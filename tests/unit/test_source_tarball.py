# SPDX-License-Identifier: Apache-2.0
"""The source tarball (packaging/source.py): the same bytes from a repository, and from the tree that it unpacks to.

Argument: source directory."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "packaging"))
import source  # noqa: E402  pylint: disable=wrong-import-position


class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.tarball = source.build(cls.folder / "first", allow_dirty=True)

    def test_members(self):
        with tarfile.open(self.tarball) as tar:
            members = tar.getmembers()
        names = [member.name for member in members]
        self.assertEqual(names, sorted(names))
        prefix = f"bucketpool-{source.version()}/"
        self.assertTrue(all(name.startswith(prefix) for name in names))
        for wanted in ("check", "meson.build", "src/core/status.c", "python/bucketpool/__init__.py", "LICENSE", ".clang-tidy"):
            self.assertIn(prefix + wanted, names)
        self.assertFalse([name for name in names if re.match(r"(build|dist|\.git)[^/]*/|.*__pycache__", name.removeprefix(prefix))
                          and not name.startswith(prefix + ".github/")])
        self.assertEqual({(member.uid, member.gid, member.uname, member.mtime) for member in members}, {(0, 0, "", source.epoch())})
        modes = {member.name.removeprefix(prefix): member.mode for member in members}
        self.assertEqual((modes["check"], modes["meson.build"]), (0o755, 0o644))

    def test_tree_packs_itself(self):
        tree = source.unpack(self.tarball, self.folder / "elsewhere")
        shutil.copytree(tree / "tests", tree / "build" / "tests")  # builds are left out
        environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
        subprocess.run([sys.executable, tree / "packaging" / "source.py", self.folder / "second"], check=True, cwd="/", env=environment,
                       stdout=subprocess.DEVNULL)
        second = self.folder / "second" / self.tarball.name
        self.assertEqual(second.read_bytes(), self.tarball.read_bytes())

    def test_difference_from_the_commit(self):
        if not shutil.which("git"):
            self.skipTest("git is not installed")
        tree = source.unpack(self.tarball, self.folder / "repository")
        git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a", "-c", "core.hooksPath=/dev/null"]
        for command in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "-m", "all"]):
            subprocess.run([*git, *command], check=True)
        with open(tree / "README.md", "a", encoding="utf-8") as file:
            file.write("\n")
        refused = subprocess.run([sys.executable, "-B", tree / "packaging" / "source.py", self.folder / "third"], capture_output=True, text=True,
                                 check=False)
        self.assertEqual((refused.returncode, refused.stderr),
                         (1, "source: 1 files differ from the commit, README.md among them; commit or stash them\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
