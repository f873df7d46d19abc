#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The conda recipe of a release: packaging/conda/recipe.yaml with its version and the sum of its source tarball.

usage: conda.py SOURCE OUTPUT [--check]

SOURCE: the unpacked source tarball or a clone without changes. --check: rattler-build makes, installs and tests the packages of the recipe
in a clean root. conda-forge's tools and libraries are replaced by the system's there (packaging/conda/build.py)."""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

import debian
import roots
from source import epoch as epoch_of

SYSTEM = "debian-12"
TOOLS = ["build-essential", "ca-certificates", "cmake", "libjansson-dev", "libsmartcols-dev", "meson", "ninja-build", "patchelf",
         "pkg-config", "python3-dev", "python3-venv", "scdoc"]
RATTLER_BUILD = "py-rattler-build==0.73.0"


def build(source: Path, output: Path, epoch: int) -> list[Path]:
    """Writes recipe.yaml, and the source tarball beside it where it is not there."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tarball = Path(shutil.copy(debian.tarball_of(source, Path(scratch), epoch), output))
    text = (source / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = output / "recipe.yaml"
    recipe.write_text(text.replace("@RELEASE@", tarball.name[len("bucketpool-"):-len(".tar.xz")])
                      .replace("@SHA256@", hashlib.sha256(tarball.read_bytes()).hexdigest()), encoding="utf-8")
    return [recipe]


def check(recipes: list[Path], log_folder: Path) -> list[debian.Result]:
    """Makes the packages of a recipe from the tarball beside it, installs each into a prefix and runs its tests there."""
    recipe, = recipes
    tarball, = recipe.parent.glob("bucketpool-*.tar.xz")
    local = re.sub(r"url: .*", f"url: file:///root/conda/{tarball.name}", recipe.read_text(encoding="utf-8"))

    def made(log: IO[str]) -> str:
        with roots.Root(SYSTEM) as root:
            place = root.path / "root" / "conda"
            place.mkdir()
            shutil.copy(tarball, place)
            shutil.copy(Path(__file__).parent / "conda" / "build.py", place)
            (place / "recipe.yaml").write_text(local, encoding="utf-8")
            root.install(TOOLS, log=log)
            root.run(f"python3 -m venv venv && venv/bin/pip install -q {RATTLER_BUILD}", log=log)
            root.run("cd conda && ../venv/bin/python build.py recipe.yaml output", log=log, offline=True)
        return ""

    return [debian.trial(SYSTEM, "recipe: packages built, installed and tested by rattler-build, without conda-forge", log_folder, made)]


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    source, output = options.source.resolve(), options.output.resolve()
    try:
        recipes = build(source, output, epoch_of(source))
        results = check(recipes, output) if options.check else []
    except (roots.Missing, roots.Failed) as error:
        print(error, file=sys.stderr)
        return 77 if isinstance(error, roots.Missing) else 1
    return debian.report(recipes, results)


if __name__ == "__main__":
    sys.exit(main())
