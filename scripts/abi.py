"""Compares the installed libraries with those of the last release tag (libabigail's abidiff): what a program that was linked with that release
would find changed. Removed or changed functions and types are failures as long as the version is of the tag's series, major.minor.

usage: python3 scripts/abi.py PREFIX FOLDER     PREFIX: where this tree is installed; FOLDER: for the release's own build, kept for next time

Exit code 77: nothing to compare with (no abidiff, no tag, another series)."""

import os
import re
import shutil
import subprocess
import sys

LIBRARIES = ("bucketpool", "bucketpool-formats", "bucketpool-logprob", "bucketpool-mpi")
SKIPPED = 77
INCOMPATIBLE = 8  # a bit of abidiff's exit code
ERROR = 1

# Exported for our own libraries of the same version only.
SUPPRESSED = "[suppress_function]\n  symbol_version_regexp = BUCKETPOOL_PRIVATE\n"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def install(tag, folder):
    """The release's prefix, built where it was not yet."""
    prefix = os.path.join(folder, tag, "prefix")
    if os.path.exists(os.path.join(prefix, "done")):
        return prefix
    shutil.rmtree(os.path.join(folder, tag), ignore_errors=True)
    source, build = os.path.join(folder, tag, "source"), os.path.join(folder, tag, "build")
    os.makedirs(source)
    archive = subprocess.run(["git", "archive", tag], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], check=True, input=archive)
    for command in (["meson", "setup", build, source, "--prefix", prefix, "-Dtests=disabled", "-Dbenchmarks=disabled",
                     "-Dcairo=disabled", "-Dkernels=disabled"], ["meson", "install", "-C", build, "--quiet"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(prefix, "done"), "w", encoding="utf-8"):
        return prefix


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    prefix, folder = (os.path.abspath(path) for path in sys.argv[1:])
    if not shutil.which("abidiff"):
        skip("abidiff (libabigail) is not installed")
    tags = subprocess.run(["git", "tag", "--merged", "HEAD", "--sort=-v:refname", "--list", "v[0-9]*"], capture_output=True, text=True)
    if tags.returncode != 0 or not tags.stdout.split():
        skip("no release tag to compare with")
    tag = tags.stdout.split()[0]
    with open("meson.build", encoding="utf-8") as file:
        version = re.search(r"version: '(\d+\.\d+)", file.read()).group(1)
    if not tag.startswith(f"v{version}."):
        skip(f"{tag} is of another series than {version}: its interface need not be kept")
    before = install(tag, folder)
    suppressions = os.path.join(folder, "suppressions.ini")
    with open(suppressions, "w", encoding="utf-8") as file:
        file.write(SUPPRESSED)
    failed = 0
    for library in LIBRARIES:
        paths = [os.path.join(root, "lib", f"lib{library}.so") for root in (before, prefix)]
        if not all(map(os.path.exists, paths)):
            continue
        found = subprocess.run(["abidiff", "--suppressions", suppressions, "--headers-dir1", os.path.join(before, "include"), "--headers-dir2",
                                os.path.join(prefix, "include"), *paths], capture_output=True, text=True)
        bad = found.returncode & (ERROR | INCOMPATIBLE)
        failed += bad != 0
        print(f"{library}: {'incompatible with' if bad else 'compatible with' if found.returncode else 'as in'} {tag}")
        print(found.stdout if found.returncode else "", found.stderr if bad & ERROR else "", sep="", end="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
