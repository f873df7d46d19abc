# SPDX-License-Identifier: Apache-2.0
"""Trees in folders with odd names: `./check` and meson refuse at once those in which they cannot work, and scripts find the tree.

Argument: source directory.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "packaging"))
import roots  # noqa: E402

USABLE = ("a b", "-x", "é", "100%", "a;b", "a*b", "(x)", "l" * 200)
REFUSED = ("a:b", "a,b", "a#b", "a\\b", "a\nb", "it's", 'a"b', "$(touch made)")


class Paths(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def tree(self, name):
        """A folder with ./check, whose part for --quick prints its folder."""
        made = self.folder / name
        (made / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "check", made)
        (made / "scripts" / "quick.py").write_text("import os\nprint(os.getcwd())\n", encoding="utf-8")
        return made

    def check(self, name, **more):
        return subprocess.run(["sh", f"{name}/check", "--quick"], cwd=self.folder, capture_output=True, text=True, check=False, **more)

    def test_check(self):
        for name in USABLE:
            with self.subTest(name):
                made = self.tree(name)
                ran = self.check(f"./{name}")
                self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, f"{made}\n", ""))
        for name in REFUSED:
            with self.subTest(name):
                made = self.tree(name)
                ran = self.check(f"./{name}")
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertTrue(ran.stderr.startswith("check: the path of this tree has ") and ran.stderr.endswith(f"{made}\n"), ran.stderr)
        self.assertFalse(list(self.folder.rglob("made")))

    def test_cdpath(self):
        made = self.tree("tree")
        other = self.folder / "other"
        (other / "tree").mkdir(parents=True)
        ran = self.check("tree", env={**os.environ, "CDPATH": str(other)})
        self.assertEqual((ran.returncode, ran.stdout), (0, f"{made}\n"))

    @unittest.skipUnless(any(map(shutil.which, ("cc", "gcc", "clang"))), "a compiler for this machine is not installed")
    def test_meson(self):
        for name in ("a\\b", "a\nb"):
            with self.subTest(name):
                made = self.folder / name
                made.mkdir()
                for part in ("meson.build", "meson_options.txt"):
                    shutil.copy(ROOT / part, made)
                ran = subprocess.run(["meson", "setup", self.folder / "build", made], capture_output=True, text=True, check=False)
                self.assertNotEqual(ran.returncode, 0)
                self.assertIn("has a backslash or a newline", ran.stdout + ran.stderr)

    def test_places_in_roots(self):
        self.assertEqual(roots.place_of(Path("/a b/it's/$(x)/é/1.0-rc1_2+3")), "/root/a_b/it_s/__x_/_/1.0-rc1_2+3")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
