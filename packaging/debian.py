#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian packages: a source package and what Debian 12 builds from it, made and tried in clean roots.

The original tarball is the release's source tarball; packaging/debian is the rest. The packages of a system need its libraries
(Open MPI's differ), so Debian 13 and Ubuntu 24.04 build the same source package. Packages for arm64 are cross-compiled, and tried by qemu.

usage: debian.py SOURCE OUTPUT [--system SYSTEM] [--architecture arm64] [--check]

SOURCE: the unpacked source tarball or a clone without changes. --system: builds for another one of roots.py.
--check: builds again without tests in another folder and compares bytes, runs lintian, and installs, tries and removes the packages of
each system. The logs are in OUTPUT, too."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Callable

import roots
from source import epoch as epoch_of

SYSTEM = "debian-12"
REBUILT = ("debian-13", "ubuntu-24.04")
REVISION = "1~upstream1"  # a distribution's first package, revision 1, replaces it
CHANGELOG = """bucketpool ({version}) unstable; urgency=medium

  * Release {release}. CHANGELOG.md names its changes.

 -- {maintainer}  {date}
"""
Result = tuple[str, str, bool]  # system, what was tried, and whether it passed


def tarball_of(source: Path, folder: Path, epoch: int) -> Path:
    """The source tarball, packed by the sources themselves: the same bytes as the release's."""
    packed = subprocess.run([sys.executable, source / "packaging" / "source.py", folder], check=False, capture_output=True, text=True,
                            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"})
    if packed.returncode != 0:
        raise roots.Failed(packed.stderr.strip())
    return next(folder.glob("bucketpool-*.tar.xz"))


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


def build(source: Path, output: Path, epoch: int, system: str = SYSTEM, tests: bool = True, log: IO[str] | None = None,
          architecture: str = "") -> list[Path]:
    """Builds without network, in the folder of the root that the sources have here; returns the source package and the packages.

    tests: also runs the quick suites. Without a log, a failure shows the end of the output. architecture: cross-compiles for it, without tests."""
    output.mkdir(parents=True, exist_ok=True)
    with roots.Root(system) as root, tempfile.TemporaryDirectory() as scratch:
        inside = roots.place_of(source.resolve().parent)
        place = root.path / inside[1:]
        place.mkdir(parents=True)
        tree = debianize(tarball_of(source, Path(scratch), epoch), place, epoch)
        nocheck = "" if tests and not architecture else "nocheck"
        env = {"DEB_BUILD_OPTIONS": f"noautodbgsym parallel={os.cpu_count()} {nocheck}", "DEB_BUILD_PROFILES": f"{nocheck} {architecture and 'cross'}"}
        host = ["-a", architecture] if architecture else []
        if architecture:
            roots.emulate()  # the command prints its man page
            root.run(["dpkg", "--add-architecture", architecture], log=log)
        root.install([f"crossbuild-essential-{architecture}" if architecture else "build-essential"], log=log)
        root.run(["apt-get", "build-dep", *host, "-y", "-qq", "--no-install-recommends", "./"], cwd=f"{inside}/{tree.name}", env=env, log=log)
        root.run(["dpkg-buildpackage", *host, "-us", "-uc"], cwd=f"{inside}/{tree.name}", env=env, log=log, offline=True)
        made = sorted(path for path in place.iterdir() if path.suffix in (".deb", ".dsc", ".xz"))
        return [Path(shutil.copy(path, output)) for path in made]


def tree_of(packages: list[Path], folder: Path) -> tuple[Path, int]:
    """The source tree of a built source package, and its epoch: the time of its files."""
    original, = (path for path in packages if ".orig." in path.name)
    with tarfile.open(original) as tar:
        tar.extractall(folder)
        return folder / tar.getnames()[0].split("/")[0], int(tar.getmembers()[0].mtime)


def different(packages: list[Path], others: list[Path]) -> str:
    """Names of files that only one has, or that have other bytes."""
    first, second = ({path.name: path.read_bytes() for path in paths} for paths in (packages, others))
    return " ".join(sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name)))


def lintian(packages: list[Path], log: IO[str]) -> str:
    """Tags of the packages and their source package; nothing where lintian is content."""
    files = " ".join(f"/packages/{path.name}" for path in packages if path.suffix in (".deb", ".dsc"))
    with roots.Root(SYSTEM) as root:
        root.install(["lintian"], log=log)
        shown = root.run(f"lintian -i -I --pedantic --fail-on error,warning --allow-root {files}",
                         readable={packages[0].parent: "/packages"}, check=False)
        log.write(shown.stdout)
        return "" if shown.returncode == 0 else "; ".join(re.findall(r"^[EW]: .*$", shown.stdout, re.MULTILINE)) or shown.stdout[-500:]


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


def trial(system: str, what: str, log_folder: Path, function: Callable[[IO[str]], str]) -> Result:
    """Runs a function that names the faults, with a log for its details."""
    with open(log_folder / f"{what.split(':')[0].replace(' ', '-')}-{system}.log", "w", encoding="utf-8") as log:
        try:
            fault = function(log)
        except roots.Failed as error:
            fault = str(error).splitlines()[0]
    return system, f"{what}: {fault}" if fault else what, not fault


def check(packages: list[Path], log_folder: Path, architecture: str = "") -> list[Result]:
    """Tries what build() made: lintian, and the packages of each system, installed, tried and removed. The logs are kept.

    architecture: of packages that were cross-compiled, which are tried on their system alone."""
    system, rebuilds = (f"{SYSTEM}-{architecture}", ()) if architecture else (SYSTEM, REBUILT)

    def rebuilt(system: str, log: IO[str]) -> str:
        return installed(build(tree, Path(scratch, system), epoch, system, tests=False, log=log), system, log)

    with tempfile.TemporaryDirectory() as scratch:
        tree, epoch = tree_of(packages, Path(scratch))
        uses = "command, pkg-config, CMake, MPI, Python (autopkgtest); purged"
        return [trial(SYSTEM, "lintian", log_folder, functools.partial(lintian, packages)),
                trial(system, f"installed: {uses}", log_folder, functools.partial(installed, packages, system)),
                *(trial(other, f"rebuilt and installed: {uses}", log_folder, functools.partial(rebuilt, other)) for other in rebuilds)]


def report(made: list[Path], results: list[Result]) -> int:
    """Prints what was built and tried; the exit status."""
    print(*made, sep="\n")
    print(*(f"{'passed' if passed else 'FAILED'}  {system:13} {what}" for system, what, passed in results), sep="\n")
    return 0 if all(passed for _, _, passed in results) else 1


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--system", choices=roots.SYSTEMS, default=SYSTEM)
    parser.add_argument("--architecture", choices=["arm64"], default="")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    source, output = options.source.resolve(), options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    try:
        with open(output / "debian-build.log", "w", encoding="utf-8") as log:
            packages = build(source, output, epoch_of(source), options.system, log=log, architecture=options.architecture)
        if options.check:
            with tempfile.TemporaryDirectory() as scratch:
                tree, epoch = tree_of(packages, Path(scratch))
                again = functools.partial(build, tree, Path(scratch, "again"), epoch, options.system, False, architecture=options.architecture)
                results = [trial(options.system, "same bytes without tests in another folder", output, lambda log: different(packages, again(log=log)))]
            results += check(packages, output, options.architecture)
    except (roots.Missing, roots.Failed) as error:
        print(error, file=sys.stderr)
        return 77 if isinstance(error, roots.Missing) else 1
    return report(packages, results)


if __name__ == "__main__":
    sys.exit(main())
