#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The source tarball: the files of a commit, and nothing of the machine that packs them.

Owners, times and order of its members depend on the commit alone. It is a complete tree: `./check` and `scripts/release`
work in it without git, and packing it again gives the same bytes.

usage: source.py OUTPUT [--check]     --check: passes ./check and builds the examples in a clean root, without network"""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import roots

PROJECT = Path(__file__).resolve().parent.parent
SYSTEM = "debian-12"
MAX_SECONDS = 90 * 60


class Dirty(Exception):
    """The tree differs from its commit."""


def git(*command: str, tree: Path = PROJECT) -> str | None:
    """The output of git in a tree, this project's unless it is given; none in a source tarball."""
    if not (tree / ".git").exists():
        return None
    return subprocess.run(["git", "-C", tree, "-c", f"safe.directory={tree}", *command], check=True, capture_output=True, text=True).stdout


def version() -> str:
    """As semantic versions are written: 1.0.0-rc1."""
    found = re.search(r"^  version: '([^']+)'", (PROJECT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


def epoch(tree: Path = PROJECT) -> int:
    """SOURCE_DATE_EPOCH, else seconds since 1970 of a tree's commit or, in a source tarball, of its files."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    committed = None if given else git("log", "-1", "--format=%ct", tree=tree)
    return int(given or committed or (tree / "meson.build").stat().st_mtime)


def members() -> list[str]:
    known = git("ls-files", "-z")
    if known is not None:
        return sorted(filter(None, known.split("\0")))
    files = (path.relative_to(PROJECT) for path in PROJECT.rglob("*") if path.is_file())
    return sorted(str(path) for path in files if not re.match(r"build|dist$|\.git$", path.parts[0]) and "__pycache__" not in path.parts)


def build(output: Path, allow_dirty: bool = False) -> Path:
    """Writes bucketpool-VERSION.tar.xz into a folder."""
    changed = (git("status", "--porcelain", "-z") or "").split("\0")[:-1]
    if changed and not allow_dirty:
        raise Dirty(f"{len(changed)} files differ from the commit, {changed[0][3:]} among them; commit or stash them")
    name = f"bucketpool-{version()}"
    seconds, buffer = epoch(), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in members():
            member = tarfile.TarInfo(f"{name}/{path}")
            content = (PROJECT / path).read_bytes()
            member.size, member.mtime = len(content), seconds
            member.mode = 0o755 if os.access(PROJECT / path, os.X_OK) else 0o644
            tar.addfile(member, io.BytesIO(content))
    output.mkdir(parents=True, exist_ok=True)
    tarball = output / f"{name}.tar.xz"
    tarball.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
    return tarball


def unpack(tarball: Path, folder: Path) -> Path:
    """The tree in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-f", tarball, "-C", folder, "--no-same-owner"], check=True)
    return next(folder.iterdir())


INSTALLED = """
meson setup /tmp/build --prefix=/usr/local --buildtype=release -Dformats=enabled
meson install -C /tmp/build --quiet
cd examples/models/Llama-3.1-8B
bucketpool --version
bucketpool plan .
cc -std=c17 ../../plan_model.c $(pkg-config --cflags --libs bucketpool-formats) -o /tmp/plan_model
/tmp/plan_model
cmake -G Ninja -S ../../cmake -B /tmp/cmake
cmake --build /tmp/cmake
/tmp/cmake/plan_model
/tmp/cmake/logprob
PYTHONPATH=../../../python python3 ../../use_in_runtime.py .
"""


def check(paths: list[Path], logs: Path) -> list[tuple[str, str, bool]]:
    """(system, what was tried, whether it passed). The log is kept in a folder."""
    tarball, results = paths[0], []
    with roots.Root(SYSTEM) as root, open(logs / "source.log", "w", encoding="utf-8") as log:
        tree = unpack(tarball, root.path / "root" / "source")
        place = f"/root/source/{tree.name}"
        root.run(["scripts/packages", "check"], cwd=place, log=log)
        has_git = root.run(["which", "git"], check=False).returncode == 0
        tried = root.run(["timeout", str(MAX_SECONDS), "./check"], cwd=place, log=log, offline=True, check=False)
        log.flush()
        counted = re.findall(r"^\d+ passed, \d+ failed, \d+ skipped$", Path(log.name).read_text(encoding="utf-8"), re.MULTILINE)
        results.append((SYSTEM, f"./check without git and network: {counted[-1] if counted else 'no result'}", tried.returncode == 0 and not has_git))
        tried = root.run(INSTALLED, cwd=place, log=log, offline=True, check=False)
        results.append((SYSTEM, "installed: command, pkg-config, CMake, Python", tried.returncode == 0))
        again = root.run(["python3", "packaging/source.py", "/tmp/again"], cwd=place, log=log, offline=True, check=False)
        same = again.returncode == 0 and (root.path / "tmp/again" / tarball.name).read_bytes() == tarball.read_bytes()
        results.append((SYSTEM, "packs itself to the same bytes", same))
    return results


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    try:
        tarball = build(Path(sys.argv[1]))
    except Dirty as error:
        sys.exit(f"source: {error}")
    print(tarball)
    if sys.argv[2:]:
        results = check([tarball], Path(sys.argv[1]))
        print(*(f"{system}: {what}: {'passed' if passed else 'failed'}" for system, what, passed in results), sep="\n")
        return 0 if all(passed for _, _, passed in results) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
