# SPDX-License-Identifier: Apache-2.0
"""scripts/torch_versions.py, stand_ins.py and packaging/installs.py: libraries that stand in, counts, and the tables of docs/start/install.md.

Argument: the source directory."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(sys.argv[1]).resolve()
os.chdir(SOURCE)
sys.dont_write_bytecode = True
sys.path[:0] = [str(SOURCE / "scripts"), str(SOURCE / "packaging")]
import installs  # noqa: E402
import stand_ins  # noqa: E402
import torch_versions as versions  # noqa: E402

REPORT = """<testsuites><testsuite>
<testcase classname="logprob.test_logprob_values" name="a"/><testcase classname="" name="steps.test_build"><error/></testcase>
<testcase classname="logprob.test_linear_loss" name="b"><skipped/></testcase><testcase name="c"><failure/></testcase><testcase name="d"/>
</testsuite></testsuites>"""


def rows(marks):
    """Cells of the table between marks of the page."""
    text = versions.PAGE.read_text(encoding="utf-8").split(marks[0])[1].split(marks[1])[0]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.split("\n") if line]


class StandIns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def library(self, name, text, *options):
        (self.folder / "source.c").write_text(text, encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", name, "source.c", *options], cwd=self.folder, check=True)

    def test_call(self):
        """A library links to two others, with and without versions of symbols. With stand-ins in their places it loads; a call ends the process."""
        (self.folder / "map").write_text("one_12 { global: one; };\n", encoding="utf-8")
        self.library("libone.so.12", "int one(void) { return 1; }", "-Wl,--version-script=map")
        self.library("libtwo.so.2", "int twoMore = 2; int two(void) { return 2; }")
        self.library("libtorch_x.so", "#include <stdlib.h>\nint one(void); int two(void); int sum(void) { return abs(-1) + one(); } int (*taken)(void) = two;",
                     "libone.so.12", "libtwo.so.2")
        for name in ("libone.so.12", "libtwo.so.2"):
            (self.folder / name).unlink()
        self.assertEqual(stand_ins.needed_by(self.folder) & {"libone.so.12", "libtwo.so.2", "libtorch_x.so"}, {"libone.so.12", "libtwo.so.2"})
        self.assertEqual(stand_ins.write(self.folder, self.folder), ["libone.so.12", "libtwo.so.2"])
        program = "import ctypes, sys\nx = ctypes.CDLL('./libtorch_x.so')\nprint('loaded', flush=True)\nx.sum()"
        done = subprocess.run([sys.executable, "-c", program], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "LD_LIBRARY_PATH": str(self.folder)})
        self.assertEqual(done.stdout, "loaded\n", done.stderr)
        self.assertEqual(done.stderr, "stand-in of libone.so.12: one was called; it needs a GPU\n")
        self.assertEqual(done.returncode, -6)


class Rows(unittest.TestCase):
    def test_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            report.write_text(REPORT, encoding="utf-8")
            self.assertEqual(versions.counted(report), (2, 2, 1))
        self.assertEqual([versions.cell(counts) for counts in ([3, 0, 0], [3, 1, 2], [0, 0, 4], [0, 2, 0])],
                         ["3 passed", "1 FAILED, 3 passed, 2 skipped", "4 skipped", "2 FAILED, 0 passed"])

    def test_timeout(self):
        """Tests that run for too long, and leave neither a report nor their time, have failed."""
        def run(_title, _words, log, **_variables):
            Path(log).write_text("", encoding="utf-8")
            return 124

        with tempfile.TemporaryDirectory() as folder:
            place = mock.Mock(folder=Path(folder), inside=Path(folder), tree=SOURCE, python="3.11", run=run)
            with mock.patch.object(versions, "WORK", Path(folder)), mock.patch("builtins.print"):
                cells, counts = versions.row(place, "2.15.0")
        self.assertEqual((cells[3:], counts), (["", *["1 FAILED, 0 passed"] * 4, "0 s"], [0, 4, 0]))

    def test_requirements(self):
        """Of older wheels and of newer ones: neither CUDA's packages nor Triton, nor extras."""
        metadata = ("Requires-Dist: sympy (==1.13.1) ; python_version >= \"3.9\"\nRequires-Dist: typing-extensions>=4.10.0\nRequires-Dist: filelock\n"
                    "Requires-Dist: nvidia-nccl-cu12 (==2.21.5) ; platform_system == \"Linux\"\nRequires-Dist: cuda-toolkit[cudart]==13.2.2; x == \"y\"\n"
                    "Requires-Dist: triton~=3.9.0\nRequires-Dist: optree>=0.13.0; extra == \"optree\"\n")
        self.assertEqual(versions.requirements(metadata), ['sympy ==1.13.1 ; python_version >= "3.9"', "typing-extensions>=4.10.0", "filelock"])

    def test_chosen(self):
        found = ["2.6.0", "2.15.0"]
        self.assertEqual(versions.wanted_rows(found, ["here"]), [(release, versions.Here.python, False) for release in found])
        self.assertEqual(versions.wanted_rows(found, ["3.9", "roots"]), [("", "3.9", True), ("2.6.0", "3.9", True)])


class Page(unittest.TestCase):
    def test_versions(self):
        """A row of each release from the oldest to the newest that the adapter of FSDP2 names, and of each Python from the package's oldest. Each
        was tried without a failure, or says that it was not; the oldest and the newest were."""
        header, _, *table = rows(versions.MARKS)
        self.assertEqual(header, versions.COLUMNS)
        known = re.search(r"KNOWN_VERSIONS = (.*)", (SOURCE / "python/bucketpool/torch/fsdp2/groups.py").read_text(encoding="utf-8"))[1]
        known = [tuple(map(int, pair)) for pair in re.findall(r"\((\d+), (\d+)\)", known)]
        self.assertEqual(versions.SINCE["FSDP2"], known[0])
        project = (SOURCE / "pyproject.toml").read_text(encoding="utf-8")
        self.assertIn('torch = ["torch>=%d.%d"]' % versions.OLDEST, project)
        minors = [tuple(map(int, row[0].split(".")[:2])) for row in table if row[0] != "none" and row[2] == versions.Here.system]
        self.assertEqual(minors, [(2, minor) for minor in range(versions.OLDEST[1], known[-1][1] + 1)])
        pythons = [row[1] for row in table if row[0] == "none"]
        self.assertEqual(pythons, list(versions.ROOTS))
        self.assertIn(f'requires-python = ">={pythons[0]}"', project)
        tried = [row for row in table if row[3] != versions.NOT_TRIED]
        for end in (minors[0], minors[-1]):
            self.assertTrue(any(row[0].startswith("%d.%d." % end) for row in tried), end)
        for row in tried:
            cells = dict(zip(header, row))
            self.assertNotIn("FAILED", " ".join(row))
            self.assertRegex(row[-1], r"^[1-9]\d* s$")
            for name in [versions.PACKAGE] if row[0] == "none" else versions.SUITE:
                if row[0] == "none" or versions.supported(name, row[0]):
                    self.assertRegex(cells[name], r"^[1-9]\d* passed", (row[:3], name))
                else:
                    self.assertEqual(cells[name], versions.UNSUPPORTED, (row[:3], name))
        for name in versions.SUITE:  # as many tests in each row: of one suite
            cells = {dict(zip(header, row))[name] for row in tried} - {"", versions.UNSUPPORTED}
            self.assertEqual(len({sum(map(int, re.findall(r"\d+", cell))) for cell in cells}), 1, (name, cells))

    def test_kept(self):
        """Rows that ran here replace those of the page, which keeps the others; another patch of a release was never tried."""
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.md")
            page.write_text("above\n" + "".join(versions.MARKS) + "below\n", encoding="utf-8")
            with mock.patch.multiple(versions, PAGE=page, WORK=Path(folder)):
                versions.write([[name, "3.11", "from source", "", "8 passed", "", "", "", "9 s"] for name in ("2.6.0", "2.7.1")])
                versions.keep(["2.7.1", "3.11", "from source", "", "9 passed", "", "", "", "7 s"])
                found = versions.shown([(name, "3.11", False) for name in ("2.6.0", "2.7.1", "2.7.2")])
        self.assertEqual([row[4] for row in found], ["8 passed", "9 passed", ""])
        self.assertEqual([row[3] for row in found], ["", "", versions.NOT_TRIED])

    def test_installs(self):
        header, _, *table = rows(installs.MARKS)
        self.assertEqual(header, installs.COLUMNS)
        self.assertEqual([row[:3] for row in table], [[way.has, f"`{way.typed}`", way.gets] for way in installs.WAYS.values()])
        for row in table:
            if row[3] != installs.NOT_MEASURED:
                self.assertRegex(row[3], r"^[\d.]+ s$")
                for size in row[4:6]:
                    expected = "^not measured$" if "rattler" in row[1] else r"^(?!0\.0 )[\d.]+ MB$"
                    self.assertRegex(size, expected)

    def test_page(self):
        """Measured rows replace those of the page, which keeps the others."""
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.md")
            page.write_text("above\n" + "".join(installs.MARKS) + "below\n" + installs.MARKS[1], encoding="utf-8")
            installs.write(page, {"pip": ["1.5 s", "2.0 MB", "3.0 MB", "debian-12"]})
            installs.write(page, {"uvx": ["2.5 s", "2.0 MB", "4.0 MB", "debian-12"]})
            lines = page.read_text(encoding="utf-8").splitlines()
        self.assertEqual((lines[0], lines[-2], len(lines)), ("above", "below", 9 + len(installs.WAYS)))
        self.assertIn("| 1.5 s | 2.0 MB | 3.0 MB | debian-12 |", lines[5])
        self.assertIn("| 2.5 s | 2.0 MB | 4.0 MB | debian-12 |", lines[6])
        self.assertIn("| not measured |", lines[7])

    def test_files(self):
        """Of all files of a release, one wheel, and the packages of one processor."""
        names = {"pip": ["bucketpool-1.0.0-py3-none-manylinux_2_28_x86_64.whl"], "debian": ["bucketpool_1.0.0-1_amd64.deb"], "quickstart": []}
        others = ["bucketpool-1.0.0-py3-none-manylinux_2_28_aarch64.whl", "bucketpool-1.0.0+cpu-py3-none-manylinux_2_28_x86_64.whl", "bucketpool_1.0.0-1_arm64.deb"]
        with tempfile.TemporaryDirectory() as folder:
            for name in [*sum(names.values(), []), *others]:
                Path(folder, name).touch()
            found = {name: [path.name for path in installs.files_of(installs.WAYS[name], Path(folder))] for name in names}
            self.assertEqual(found, names)
            Path(folder, names["pip"][0]).unlink()
            self.assertEqual([path.name for path in installs.files_of(installs.WAYS["uvx"], Path(folder))], [others[1]])

    def test_sizes(self):
        printed = ("Need to get 1,234 kB/2,345 kB of archives.\nNeed to get 12.5 MB of archives.\n"
                   "packages: installs gcc meson (29 packages, 9 MB to download)\n  Downloading meson-1.11.2-py3-none-any.whl (1.1 MB)\n  Using cached wheel-0.48.0.whl.metadata (2.3 kB)\n")
        self.assertEqual(installs.downloaded(printed, []), 2345000 + 12500000 + 9000000 + 1100000 + 2300)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
