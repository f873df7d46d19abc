#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times every way to install bucketpool in a clean root, and weighs it; makes the table of docs/start/install.md.

usage: installs.py SOURCE DIST [--page] [WAY]...

SOURCE: a clone. DIST: what scripts/release makes; a way without its files is left out, by name. WAY: pip, uvx, debian, conda, source,
quickstart; none: all. --page: writes what was measured into the page. What a way presupposes (pip, a compiler, uv) is installed before and not counted. Processor
time, because it does not depend on what else the machine does; downloads are those that a new system makes."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import conda
import roots

PAGE = Path("docs/start/install.md")
MARKS = ("<!-- made by packaging/installs.py -->\n", "<!-- end of what it made -->\n")
NOT_MEASURED = "not measured"
COLUMNS = ["you have", "you type", "you get", "processor time", "download", "installed", "measured in"]
PLAN = "bucketpool plan Llama-3.1-8B"
COMPILE = ["python3-venv", "gcc", "libc6-dev", "pkg-config", "libjansson-dev", "libsmartcols-dev", "libpython3-dev"]
UV = "uv==0.13.9"


class Way(NamedTuple):
    """has, typed, gets: of a user. prepare, install, use: shell commands in the root, where /dist has the files and /tree is the clone."""

    has: str
    typed: str
    gets: str
    system: str
    files: str  # of DIST that the way installs, as a pattern; the size of its download, unless apt or pip say more
    packages: list[str]
    prepare: str
    install: str
    use: str
    binds_pip: bool = False


PACKAGE = "the Python package, with the libraries and the command in it"
WAYS = {
    "pip": Way(
        "a release, a virtual environment", "pip install bucketpool-*.whl", PACKAGE,
        "debian-12", "*.whl", ["python3-venv"], "python3 -m venv /venv",
        "/venv/bin/pip install --no-index /dist/*.whl", f"/venv/bin/{PLAN}"),
    "uvx": Way(
        "a release, uv", f"uvx --from ./bucketpool-*.whl {PLAN}", "the output of the command; an entry in uv's cache",
        "debian-12", "*.whl", ["python3-venv"], f"python3 -m venv /uv; /uv/bin/pip install -q {UV}",
        f"/uv/bin/uvx --offline --from /dist/*.whl {PLAN}", f"/uv/bin/uvx --offline --from /dist/*.whl {PLAN}", True),
    "debian": Way(
        "a release, Debian 12", "apt install ./*.deb", "the command, the libraries with headers, MPI's, and `python3-bucketpool`",
        "debian-12", "*.deb", [], "apt-get update -qq",
        "apt-get install -y --no-install-recommends /dist/*.deb", PLAN),
    "conda": Way(
        "a release, rattler-build", "rattler-build build --recipe recipe.yaml", "conda packages, built and tested",
        conda.SYSTEM, "recipe.yaml", conda.TOOLS, f"cp -r /dist /conda; python3 -m venv /venv; /venv/bin/pip install -q {conda.RATTLER_BUILD}",
        "cd /conda; /venv/bin/python /packaging/conda/build.py recipe.yaml /output", "ls /output/*/bucketpool-*", True),
    "source": Way(
        "a clone, a compiler, a virtual environment", "pip install -v .", f"{PACKAGE}, compiled",
        "debian-12", "", COMPILE, "python3 -m venv /venv",
        "cp -r /tree /source; cd /source; /venv/bin/pip install -v .; rm -rf /source", f"/venv/bin/{PLAN}", True),
    "quickstart": Way(
        "a clone, Debian or Ubuntu", "./quickstart", "`build/tools/bucketpool`, and the compiler that built it",
        "debian-12", "", [], "apt-get clean", "cp -r /tree /source; cd /source; ./quickstart", f"/source/build/tools/{PLAN}"),
}
IGNORED = ["var/cache", "var/lib/apt", "var/log", "root/.cache/pip", "tmp", "source/.git"]


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e7 else f"{count / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def weight(root: roots.Root) -> int:
    """Bytes on the disk of a root, without what package managers keep."""
    excluded = [f"--exclude={root.path}/{name}" for name in IGNORED]
    return int(subprocess.run(["du", "-skx", *excluded, root.path], capture_output=True, text=True, check=True).stdout.split()[0]) * 1024


def downloaded(printed: str, files: list[Path]) -> int:
    """Bytes of the files, and of the downloads that apt, pip and scripts/packages announce."""
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    said = sum(float(number.replace(",", "")) * units[unit] for number, unit in re.findall(r"Need to get (?:[\d,.]+ \w+/)?([\d,.]+) (\w+) of archives", printed))
    said += sum(float(number) * units["MB"] for number in re.findall(r"\d+ packages, (\d+) MB to download", printed))
    said += sum(float(number) * units[unit] for number, unit in
                re.findall(r"(?:Downloading|Using cached) \S+\.(?:whl|tar\.gz)(?:\.metadata)? \(([\d.]+) (\w+)\)", printed))
    return int(said) + sum(path.stat().st_size for path in files)


def files_of(way: Way, dist: Path) -> list[Path]:
    """Chooses those that a user of x86-64 installs from a release; of two wheels the one with kernels."""
    found = [path for path in sorted(dist.glob(way.files)) if not re.search("_aarch64[.]whl|_arm64[.]deb", path.name)] if way.files else []
    return [path for path in found if "+cpu-" not in path.name] or found


def measure(name: str, source: Path, dist: Path) -> list[str]:
    """Processor time, download, growth and system. Raises roots.Failed, and roots.Missing where DIST lacks its files."""
    way = WAYS[name]
    files = files_of(way, dist)
    if way.files and not files:
        raise roots.Missing(f"{dist} has no {way.files}")
    with tempfile.TemporaryDirectory() as scratch, roots.Root(way.system) as root:
        for path in [*files, *(dist.glob("bucketpool-*.tar.xz") if name == "conda" else [])]:
            shutil.copy(path, scratch)
        if name == "conda":
            recipe, = files
            tarball, = Path(scratch).glob("bucketpool-*.tar.xz")
            Path(scratch, "recipe.yaml").write_text(re.sub(r"url: .*", f"url: file:///conda/{tarball.name}", recipe.read_text(encoding="utf-8")), encoding="utf-8")
        tree = Path(scratch, "tree")
        if name in ("source", "quickstart"):
            subprocess.run(["git", "clone", "-q", "--depth", "1", source.as_uri(), tree], check=True)
        cache = roots.KEPT / "pip"
        cache.mkdir(parents=True, exist_ok=True)
        binds: dict[str | Path, str] = {cache: "/root/.cache/pip"} if way.binds_pip else {}
        for place in ("dist", "tree", "packaging"):
            (root.path / place).mkdir()
        readable: dict[str | Path, str] = {scratch: "/dist", Path(__file__).parent: "/packaging", **({tree: "/tree"} if tree.exists() else {})}
        if way.packages:
            root.install(way.packages)
        root.run(way.prepare, binds=binds, readable=readable)
        before, began = weight(root), time.monotonic()
        printed = root.run(f"{way.install}; times", binds=binds, readable=readable).stdout
        wall = time.monotonic() - began
        processor = sum(60 * int(minutes) + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", printed.splitlines()[-1]))
        grown = weight(root) - before
        shown = root.run(way.use, binds=binds, readable=readable, offline=True).stdout
        if name != "conda" and "scheduled" not in shown:
            raise roots.Failed(f"{name}: the command prints no plan: {shown[-300:]}")
    download = downloaded(printed, files)
    if download == 0:
        raise roots.Failed(f"{name}: its output does not say what it downloads: {printed[-300:]}")
    sizes = [megabytes(download), megabytes(grown)] if name != "conda" else [NOT_MEASURED] * 2  # conda-forge's packages are stand-ins here
    cells = [duration(processor), *sizes, way.system]
    print(f"{name}: {wall:.1f} s, processors {cells[0]}, downloaded {cells[1]}, installed {cells[2]}", flush=True)
    return cells


def table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows])


def write(page: Path, measured: dict[str, list[str]]) -> None:
    """Writes the table of all ways into a page: measured ones, else the cells that it has, else NOT_MEASURED."""
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    old, after = rest.split(MARKS[1], 1)
    known = {cells[1]: cells for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in old.splitlines()) if len(cells) == len(COLUMNS)}
    rows = []
    for name, way in WAYS.items():
        said = [way.has, f"`{way.typed}`", way.gets]
        cells = measured.get(name) or known.get(said[1], [])[3:] or [NOT_MEASURED, "", "", ""]
        rows.append([*said, *cells])
    page.write_text(before + MARKS[0] + "\n" + table(rows) + "\n" + MARKS[1] + after, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("ways", nargs="*", metavar="WAY")
    options = parser.parse_intermixed_args()
    unknown = [name for name in options.ways if name not in WAYS]
    if unknown:
        parser.error(f'unknown way "{unknown[0]}"; one of {", ".join(WAYS)}')
    measured: dict[str, list[str]] = {}
    failed = 0
    for name in options.ways or WAYS:
        try:
            measured[name] = measure(name, options.source.resolve(), options.dist.resolve())
        except (roots.Missing, roots.Failed) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed += isinstance(error, roots.Failed)
    if options.page:
        write(options.source / PAGE, measured)
    return 1 if failed else 0 if measured else 77


if __name__ == "__main__":
    sys.exit(main())
