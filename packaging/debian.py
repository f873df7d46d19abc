#!/usr/bin/env python3
"""Debian packages: a source package and what Debian 12 builds from it, made and tried in clean roots.

The original tarball is the release's source tarball; packaging/debian is the rest. The packages of a system need its libraries
(Open MPI's differ), so Debian 13 and Ubuntu 24.04 build the same source package.

usage: debian.py SOURCE OUTPUT [--system SYSTEM] [--check]

SOURCE: the unpacked source tarball or a clone without changes. --system: builds for another one of roots.py.
--check: builds again in another folder and compares bytes, runs lintian, and installs, tries and removes the packages of each system."""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Callable, NamedTuple

import roots

SYSTEM = "debian-12"
REBUILT = ("debian-13", "ubuntu-24.04")
REVISION = "1~upstream1"  # a distribution's first package, revision 1, replaces it
CHANGELOG = """bucketpool ({version}) unstable; urgency=medium

  * Release {release}. CHANGELOG.md names its changes.

 -- {maintainer}  {date}
"""


class Row(NamedTuple):
    """One line of a table: an artefact, the systems on which it was tried, and what."""
    name: str
    size: int
    sha256: str
    systems: str
    tried: str
    seconds: float
    passed: bool


def tarball_of(source: Path, folder: Path, epoch: int) -> Path:
    """The source tarball, packed by the sources themselves: the same bytes as the release's."""
    subprocess.run([sys.executable, source / "packaging" / "source.py", folder], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"})
    return next(folder.glob("bucketpool-*.tar.xz"))


def epoch_of(source: Path) -> int:
    """SOURCE_DATE_EPOCH, else the time of the commit or, of an unpacked tarball, of its files."""
    command = ["git", "-C", str(source), "-c", f"safe.directory={source}", "log", "-1", "--format=%ct"]
    committed = subprocess.run(command, check=True, capture_output=True, text=True).stdout if (source / ".git").exists() else ""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or committed or (source / "meson.build").stat().st_mtime)


def debianize(tarball: Path, folder: Path, epoch: int) -> Path:
    """Writes the original tarball into a folder and unpacks it there, with debian/ added; returns the tree."""
    release = tarball.name[len("bucketpool-"):-len(".tar.xz")]
    upstream = release.replace("-", "~")  # 1.0.0~rc1 sorts before 1.0.0
    shutil.copy(tarball, folder / f"bucketpool_{upstream}.orig.tar.xz")
    subprocess.run(["tar", "-x", "-f", tarball, "-C", folder, "--no-same-owner"], check=True)
    tree = folder / f"bucketpool-{release}"
    shutil.copytree(tree / "packaging" / "debian", tree / "debian")
    maintainer = re.search(r"^Maintainer: (.*)$", (tree / "debian" / "control").read_text(encoding="utf-8"), re.MULTILINE)
    assert maintainer
    date = datetime.fromtimestamp(epoch, timezone.utc).strftime("%a, %d %b %Y %H:%M:%S +0000")
    (tree / "debian" / "changelog").write_text(CHANGELOG.format(
        version=f"{upstream}-{REVISION}", release=release, maintainer=maintainer[1], date=date), encoding="utf-8")
    return tree


def build(source: Path, output: Path, epoch: int, system: str = SYSTEM, folder: str = "build", tests: bool = True) -> list[Path]:
    """Builds the packages in a folder below the root's /root, without network; returns the source package and the packages.

    tests: also runs the quick suites. The log and the files that dpkg-buildpackage describes its work in are in OUTPUT, too."""
    output.mkdir(parents=True, exist_ok=True)
    with roots.Root(system) as root, tempfile.TemporaryDirectory() as scratch, \
            open(output / "build.log", "w", encoding="utf-8") as log:
        place = root.path / "root" / folder
        place.mkdir(parents=True)
        tree = debianize(tarball_of(source, Path(scratch), epoch), place, epoch)
        inside = f"/root/{folder}/{tree.name}"
        root.install(["build-essential"], log=log)
        nocheck = "" if tests else "nocheck"
        env = {"DEB_BUILD_OPTIONS": f"noautodbgsym parallel={os.cpu_count()} {nocheck}", "DEB_BUILD_PROFILES": nocheck}
        root.run(["apt-get", "build-dep", "-y", "-qq", "--no-install-recommends", "./"], cwd=inside, env=env, log=log)
        root.run(["dpkg-buildpackage", "-us", "-uc"], cwd=inside, env=env, log=log, offline=True)
        made = [Path(shutil.copy(path, output)) for path in sorted(place.iterdir()) if path.is_file()]
    return [path for path in made if path.suffix not in (".buildinfo", ".changes")]


def tree_of(packages: list[Path], folder: Path) -> tuple[Path, int]:
    """The source tree of a built source package, and its epoch: the time of its files."""
    original, = (path for path in packages if ".orig." in path.name)
    with tarfile.open(original) as tar:
        tar.extractall(folder)
        return folder / tar.getnames()[0].split("/")[0], int(tar.getmembers()[0].mtime)


def different(packages: list[Path], others: list[Path]) -> list[str]:
    """Names of files that only one has, or that have other bytes."""
    bytes_of = [{path.name: path.read_bytes() for path in paths} for paths in (packages, others)]
    return sorted(name for name in bytes_of[0].keys() | bytes_of[1].keys() if bytes_of[0].get(name) != bytes_of[1].get(name))


def lintian(packages: list[Path], log: IO[str]) -> str:
    """The end of lintian's output on the packages and their source package; nothing where it is content."""
    with roots.Root(SYSTEM) as root:
        root.install(["lintian"], log=log)
        shown = root.run("lintian -i -I --pedantic --fail-on error,warning --allow-root /packages/*.changes",
                         readable={packages[0].parent: "/packages"}, check=False)
        log.write(shown.stdout)
        return "" if shown.returncode == 0 else shown.stdout[-2000:]


def installed(packages: list[Path], system: str, log: IO[str]) -> str:
    """Installs packages, runs debian/tests of their source package, purges them; what failed."""
    with roots.Root(system) as root:
        inside = root.path / "root" / "packages"
        inside.mkdir()
        for path in packages:
            shutil.copy(path, inside)
        names = [path.name.split("_")[0] for path in packages if path.suffix == ".deb"]
        root.install([f"/root/packages/{path.name}" for path in packages if path.suffix == ".deb"], log=log)
        root.install(["autopkgtest"], log=log)
        tests = root.run("autopkgtest --no-built-binaries packages/*.dsc -- null", log=log, check=False)
        root.run(["apt-get", "purge", "-y", "-qq", *names], log=log)
        left = root.run("find / -xdev \\( -path /proc -o -path /root -o -path /tmp \\) -prune -o -iname '*bucketpool*' -print").stdout.split()
        return f"autopkgtest: exit status {tests.returncode}" if tests.returncode else f"left by purge: {' '.join(left)}" if left else ""


def check(packages: list[Path]) -> list[Row]:
    """Tries what build() made: its bytes in a second build, lintian, and the packages of each system. Logs are kept beside them."""
    folder = packages[0].parent
    steps: list[tuple[str, float, str]] = []  # what, seconds, fault

    def step(what: str, function: Callable[[IO[str]], str]) -> None:
        begun = time.monotonic()
        with open(folder / f"{what.replace(' ', '-')}.log", "w", encoding="utf-8") as log:
            try:
                fault = function(log)
            except roots.Failed as error:
                fault = str(error)
        steps.append((what, time.monotonic() - begun, fault))
        print(f"debian: {what}: {fault or 'passed'} ({steps[-1][1]:.0f} s)", file=sys.stderr, flush=True)

    def rebuilt(system: str, log: IO[str]) -> str:
        return installed(build(tree, folder / system, epoch, system, tests=False), system, log)

    with tempfile.TemporaryDirectory() as scratch:
        tree, epoch = tree_of(packages, Path(scratch))
        step("same bytes without tests in another folder", lambda _: " ".join(different(packages, build(
            tree, Path(scratch, "again"), epoch, folder="another/folder", tests=False))))
        step("lintian", lambda log: lintian(packages, log))
        step(f"installed on {SYSTEM}", lambda log: installed(packages, SYSTEM, log))
        for system in REBUILT:
            step(f"rebuilt and installed on {system}", functools.partial(rebuilt, system))
    faults = "; ".join(f"{what}: {fault.splitlines()[0]}" for what, _, fault in steps if fault)
    return [Row(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(), ", ".join((SYSTEM, *REBUILT)),
                faults or ", ".join(what for what, _, _ in steps), sum(seconds for _, seconds, _ in steps), not faults) for path in packages]


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--system", choices=roots.SYSTEMS, default=SYSTEM)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    output, source = options.output.resolve(), options.source.resolve()
    try:
        packages = build(source, output, epoch_of(source), options.system)
        rows = check(packages) if options.check else []
    except (roots.Missing, roots.Failed) as error:
        print(error, file=sys.stderr)
        return 77 if isinstance(error, roots.Missing) else 1
    print(*rows or packages, sep="\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
