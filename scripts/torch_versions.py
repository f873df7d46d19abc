# SPDX-License-Identifier: Apache-2.0
"""./check --torch --versions: a short suite with the newest patch of each minor release of PyTorch, and with every Python.

This machine's Python takes each release that has a wheel for it, with the libraries of a build; each other Python is that of a clean root
(packaging/roots.py, which needs root rights), with the wheel that packaging/wheel.py makes: the package's own tests, and those with the
release of PyTorch that ROOTS names. Of the libraries that PyTorch needs only CUDA's runtime and CUPTI are installed; stand_ins.py makes the others.
Wheels stay in build-check/torch-wheels; an environment is removed when its tests are done.

Words that follow choose rows: ./check --torch --versions 2.6.0 3.9, or `here`, or `roots`. Rows are kept in build-check/torch-versions, and the table
has the last of each, or what docs/start/install.md has. BUCKETPOOL_UPDATE_VERSIONS=1 writes it there."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import xml.etree.ElementTree
from pathlib import Path

import progress
import stand_ins
from progress import BUILDS, say

ROOT = Path.cwd()
sys.path.insert(0, str(ROOT / "packaging"))
import roots  # noqa: E402  pylint: disable=wrong-import-position

OLDEST = (2, 6)
WHEELS = Path(BUILDS, "torch-wheels")
WORK = Path(BUILDS, "torch-versions")
PAGE = ROOT / "docs" / "start" / "install.md"
MARKS = ("<!-- made by ./check --torch --versions -->\n", "<!-- end of what it made -->\n")
SUITE = {  # a column of the table: tests of python/tests/torch
    "log-probabilities": ["logprob/test_logprob_values.py", "logprob/test_linear_loss.py"],
    "FSDP2": ["fsdp2/test_fsdp2_versions.py", "fsdp2/test_fsdp2_parameters.py"],
    "trace": ["trace/test_trace.py::" + name for name in (
        "test_cpu_peak[mlp]", "test_cpu_peak[transformer-checkpoint]", "test_cuda[transformer]", "test_attention", "test_reductions", "test_sums_of_gradients",
        "test_streams", "test_kinds", "test_frames", "test_end")],
    # the decorators of PyTorch's allocators, with the headers of the release: its virtual methods, and a compilation
    "served steps": ["steps/test_virtuals.py::test_table_of_methods", "steps/test_build.py::test_decorators"],
}
SINCE = {"FSDP2": (2, 9), "trace": (2, 11)}  # the first release that is supported
UNSUPPORTED = "unsupported"
PACKAGE = "package"  # the column of python/tests/test_*.py
NOT_TRIED = "not tried"
WITH_BUILD = ("test_examples", "test_gpu_objects")  # their arguments are files of a build
COLUMNS = ["PyTorch", "Python", "system", PACKAGE, *SUITE, "processor time of the tests"]
ROOTS = {  # Python: its root, and the release of PyTorch that is tried there
    "3.9": ("debian-11", "2.6"), "3.10": ("ubuntu-22.04", ""), "3.11": ("debian-12", ""), "3.12": ("ubuntu-24.04", ""),
    "3.13": ("debian-13", ""), "3.14": ("ubuntu-26.04", "2.15"),
}
COMPILERS = ["g++", "libc6-dev", "libgomp1"]  # of the decorators
SECONDS = 1500  # of one row's tests
TIMED = '"$@"; code=$?; times >"$0"; exit $code'  # of sh: a command, and the time of its processes
NEED = 4e9  # bytes of a release: the wheel, and what it unpacks to


class Impossible(Exception):
    """A row cannot be had here, for this reason."""


# ---- places where a Python runs --------------------------------------------------------------------------------------------------


class Here:
    """This machine: tests run on the sources, with the libraries of a build."""

    system, python = "from source", f"{sys.version_info[0]}.{sys.version_info[1]}"

    def __init__(self, folder, variables):
        self.folder = self.inside = folder
        self.tree, self.variables, self.packages = ROOT, variables, []
        self.venv = [sys.executable, "-m", "venv", "--without-pip", folder / "env"]
        self.pip = [sys.executable, "-m", "pip", "--python", folder / "env/bin/python"]

    def run(self, title, words, log, **variables):
        environment = {**self.variables, **variables}
        return progress.execute(["timeout", str(SECONDS), *map(str, words)], log, title, env=environment)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Inside:
    """A clean root: tests run on the installed wheel."""

    tree, inside = Path("/tree"), Path("/tried")
    venv, pip = ["python3", "-m", "venv", "/tried/env"], ["/tried/env/bin/python", "-m", "pip"]

    def __init__(self, python, release, wheel):
        self.python, self.system = python, ROOTS[python][0]
        self.root = roots.Root(self.system)
        self.folder = self.root.path / "tried"
        self.folder.mkdir()
        (self.root.path / "tree").mkdir()
        self.root.install(["python3-venv", *(COMPILERS if release else [])])
        self.packages = [self.inside / Path(shutil.copy(wheel, self.folder)).name]
        self.variables = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, title, words, log, **variables):
        say(f"versions: {self.system}: {title}")
        with open(log, "a", encoding="utf-8") as file:
            return self.root.run(["timeout", str(SECONDS), *map(str, words)], cwd="/tried", env={**self.variables, **variables}, log=file, check=False,
                                 readable={ROOT: "/tree", WHEELS: str(WHEELS)}, binds={cache(): "/root/.cache/pip"}).returncode

    def close(self):
        self.root.__exit__()


def cache():
    folder = roots.KEPT / "pip"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- installing ------------------------------------------------------------------------------------------------------------------


def pip(place, log, title, *words):
    code = place.run(title, [*place.pip, "--retries", "1", "--disable-pip-version-check", *words], log)
    if code != 0:
        raise Impossible(f"pip {title}: exit status {code}; {os.path.relpath(log, ROOT)} has its output")


def requirements(metadata):
    """Requirements of a wheel of PyTorch, without those for GPUs: CUDA's packages and Triton."""
    lines = re.findall(r"^Requires-Dist: ([^;\n]+)(;.*)?$", metadata, re.MULTILINE)
    plain = [name + rest for name, rest in lines if "extra ==" not in rest and not re.match(r"nvidia-|cuda-|triton|pytorch-triton", name)]
    return [re.sub(r"\(([^)]*)\)", r"\1", line) for line in plain]  # older wheels: sympy (==1.13.1)


def install_torch(place, release, log):
    """The release from the folder of wheels, its requirements, and stand-ins for the libraries that a GPU would need."""
    packages = next(iter((place.folder / "env/lib").glob("python3*/site-packages")))
    pip(place, log, f"unpacks PyTorch {release}", "install", "-q", "--no-deps", "--no-compile", "--no-index", "--find-links", WHEELS, f"torch=={release}")
    wanted = requirements(next(packages.glob("torch-*.dist-info/METADATA")).read_text(encoding="utf-8"))
    libraries = packages / "torch" / "lib"
    twelve = "libcudart.so.12" in stand_ins.needed_by(libraries)
    real = ["nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12"] if twelve else ["nvidia-cuda-runtime==13.*", "nvidia-cuda-cupti==13.*", "nvidia-cuda-crt==13.*"]
    pip(place, log, "installs what PyTorch requires", "install", "-q", "--no-compile", *wanted, *real)
    stand_ins.write(libraries, libraries)


def download(release, python, log):
    """The wheel of a release for a Python, into the folder of wheels."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    if not list(WHEELS.glob(f"torch-{release}-*cp{python.replace('.', '')}-*.whl")):
        if shutil.disk_usage(WHEELS).free < NEED:
            raise Impossible(f"less than {NEED / 1e9:.0f} GB are free in {WHEELS}")
        code = progress.execute([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--retries", "1", "--progress-bar", "off",
                                 "--python-version", python, "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux1_x86_64",
                                 "-d", str(WHEELS), f"torch=={release}"], log, f"downloads PyTorch {release} for Python {python}")
        if code != 0:
            raise Impossible(f"the package index has no wheel of PyTorch {release} for Python {python} on x86-64")


def releases():
    """The newest patch of each minor release from OLDEST on, by what the package index says."""
    asked = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch", "--retries", "1"], capture_output=True, text=True)
    found = {}
    for version in re.findall(r"\b\d+\.\d+\.\d+\b", asked.stdout):
        number = tuple(map(int, version.split(".")))
        if number[:2] >= OLDEST:
            found[number[:2]] = max(found.get(number[:2], number), number)
    if not found:
        raise Impossible(f"the package index names no releases of PyTorch: {(asked.stderr.strip() or 'no answer').splitlines()[-1]}")
    return [".".join(map(str, found[minor])) for minor in sorted(found)]


# ---- a row -----------------------------------------------------------------------------------------------------------------------


def counted(report):
    """(passed, failed, skipped) of pytest's report."""
    counts = [0, 0, 0]
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        counts[1 if kinds & {"failure", "error"} else 2 if "skipped" in kinds else 0] += 1
    return tuple(counts)


def processor_time(times):
    """Seconds of the processes that a shell ended, by its `times`."""
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", times.splitlines()[-1]))


def cell(counts):
    passed, failed, skipped = counts
    return ", ".join([f"{failed} FAILED"] * bool(failed) + [f"{passed} passed"] * bool(passed or not skipped) + [f"{skipped} skipped"] * bool(skipped))


def install(place, release, log):
    """An environment with what the tests of a row need."""
    if release:
        download(release, place.python, log)
    if place.run("makes an environment", place.venv, log) != 0:
        raise Impossible("python3 -m venv fails")
    pip(place, log, "installs pytest", "install", "-q", "--no-compile", "numpy", "pytest", *place.packages)
    if release:
        install_torch(place, release, log)


def supported(name, release):
    return tuple(map(int, release.split(".")[:2])) >= SINCE.get(name, OLDEST)


def tests(place, release):
    """{column: (passed, failed, skipped)}, and seconds of processors: side by side, a process of pytest for each column, or file; logs are in WORK."""
    found, used, folder = {}, {}, place.tree / "python/tests"
    asked = [(name, name, [folder / "torch" / one for one in names]) for name, names in SUITE.items() if supported(name, release)] if release else \
        [(PACKAGE, path.stem, [folder / path.name]) for path in sorted((ROOT / "python/tests").glob("test_*.py")) if path.stem not in WITH_BUILD]

    def run(column, name, nodes):
        report = f"{name}.xml".replace(" ", "-")
        log = WORK / f"{release or 'none'}-{place.python}-{report}.log"
        code = place.run(f"PyTorch {release or 'none'}, Python {place.python}, {name}: tests",
                         ["sh", "-c", TIMED, place.inside / f"{report}.times", place.inside / "env/bin/python", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", place.tree,
                          "--junitxml", place.inside / report, *nodes], log)
        counts = counted(place.folder / report) if (place.folder / report).exists() else (0, 0, 0)
        times = place.folder / f"{report}.times"
        used[name] = processor_time(times.read_text(encoding="utf-8")) if times.exists() else 0.0  # not of what SECONDS ended
        counts = counts if code in (0, 5) or counts[1] else (counts[0], 1, counts[2])  # it ended otherwise than by a test that fails
        if counts[1]:
            progress.show_end(log)
        with progress.lock:
            found[column] = tuple(map(sum, zip(counts, found.get(column, (0, 0, 0)))))

    threads = [threading.Thread(target=run, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, sum(used.values())


def row(place, release):
    """The cells of a row, whose environment is installed, and its sums of (passed, failed, skipped)."""
    found, seconds = tests(place, release)
    cells = [cell(found[name]) if name in found else UNSUPPORTED if release and name != PACKAGE else "" for name in (PACKAGE, *SUITE)]
    total = [sum(column) for column in zip(*found.values())]
    say(f"versions: PyTorch {release or 'none'}, Python {place.python}: {cell(total)}")
    return [release or "none", place.python, place.system, *cells, f"{seconds:.0f} s"], total


def keep(cells):
    """Keeps the cells of a row in place of older ones."""
    rows = [row for row in kept() if row[:3] != cells[:3]] + [cells]
    (WORK / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def kept():
    path = WORK / "rows.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def of_page():
    """The rows that the page has, of whoever ran them."""
    lines = PAGE.read_text(encoding="utf-8").split(MARKS[0])[1].split(MARKS[1])[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line.startswith("| ")][2:]


def shown(wanted):
    """The last cells of each row, else those of the page; of one that was never tried, these words."""
    found = {tuple(row[:3]): row for row in of_page() + kept()}
    names = [(release or "none", python, ROOTS[python][0] if in_root else Here.system) for release, python, in_root in wanted]
    return [found.get(name, [*name, NOT_TRIED] + [""] * (len(COLUMNS) - 4)) for name in names]


def table(rows):
    return "".join(f"| {' | '.join(words)} |\n" for words in [COLUMNS, ["---"] * len(COLUMNS), *rows])


def write(rows):
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + "\n" + table(rows) + "\n" + MARKS[1] + rest.split(MARKS[1], 1)[1], encoding="utf-8")


def wheel(log):
    """The wheel of this tree, without kernels."""
    say("versions: builds the wheel for the clean roots (minutes)")
    folder = WORK / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    if progress.execute([sys.executable, "packaging/wheel.py", ".", str(folder), "--no-kernels"], log, "builds the wheel") != 0:
        raise Impossible(f"the wheel is not built; {os.path.relpath(log, ROOT)} has the reason")
    return next(folder.glob("*.whl"))


def wanted_rows(found, chosen):
    """(PyTorch or "", Python, whether in a root)."""
    minors = {release.rpartition(".")[0]: release for release in found}
    here = [(release, Here.python, False) for release in found]
    rooted = [(release, python, True) for python, (_, minor) in ROOTS.items() for release in ["", *filter(None, [minors.get(minor)])]]
    versions = [word for word in chosen if word not in ("here", "roots")]
    return [one for one in here + rooted if (not versions or (one[0] or "none") in versions or one[1] in versions)
            and not ("here" in chosen and one[2]) and not ("roots" in chosen and not one[2])]


def main(variables, chosen, log):
    """Runs the rows; the exit status."""
    totals, tried, missing, made = [0, 0, 0], 0, [], {}
    try:
        found = releases()
        wanted = wanted_rows(found, chosen)
    except Impossible as reason:
        say(f"./check --torch --versions is skipped: {reason}")
        return 77
    WORK.mkdir(parents=True, exist_ok=True)
    say(f"versions: {len(wanted)} rows; stand-ins take the place of CUDA's libraries, so nothing that needs a GPU is tested")
    for number, (release, python, in_root) in enumerate(wanted):
        say(f"versions: {number + 1} of {len(wanted)}: PyTorch {release or 'none'}, Python {python}{f' in {ROOTS[python][0]}' if in_root else ''}")
        try:
            if in_root:
                roots.require()
                made["wheel"] = made.get("wheel") or wheel(log)
                place = Inside(python, release, made["wheel"])
            else:
                folder = WORK / release
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                place = Here(folder, variables)
            try:
                install(place, release, log)
                cells, counts = row(place, release)
            finally:
                place.close()
            keep(cells)
            tried += 1
            totals = [sum(pair) for pair in zip(totals, counts)]
        except (Impossible, roots.Missing, roots.Failed, OSError) as reason:
            missing.append(f"PyTorch {release or 'none'}, Python {python}: not tried: {str(reason).splitlines()[0]}")
            say(missing[-1])
    if not tried:
        say(f"./check --torch --versions is skipped: {missing[0] if missing else 'no row is named so'}")
        return 77
    rows = shown(wanted_rows(found, []))
    say(table(rows), *missing, sep="\n")
    say(", ".join(f"{count} {name}" for count, name in zip(totals, ("passed", "failed", "skipped"))) + (f", {len(missing)} rows not tried" if missing else ""))
    if os.environ.get("BUCKETPOOL_UPDATE_VERSIONS"):
        write(rows)
    return 1 if totals[1] else 0
