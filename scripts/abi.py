# SPDX-License-Identifier: Apache-2.0
"""Compares the libraries of two versions (libabigail's abidiff): changes that a program linked with the older one would meet.

usage: python3 scripts/abi.py PREFIX FOLDER       the last release tag with this tree, which is installed in PREFIX
       python3 scripts/abi.py TAG TAG FOLDER      two tags
FOLDER is for the builds of tags, kept for next time.

Compatible: new functions, new values of enumerations, new fields at the end of structs that carry their size or that only the library makes
(bp_..._info), unless they are the elements of an array, whose older readers would look for the second one too early. Everything else fails as long as both versions are of one series: the major version, before 1.0 major.minor. A release candidate
(v1.0.0-rc1) comes before its release, and what it had may change.

Exit code 77: nothing to compare with (no abidiff, no release, another series), or a change that the series or a candidate allows."""

import glob
import os
import re
import shutil
import subprocess
import sys

LIBRARIES = ("bucketpool", "bucketpool-formats", "bucketpool-logprob", "bucketpool-mpi")
SKIPPED = 77
CHANGED = 4  # bits of abidiff's exit code: a change that may be compatible
BEYOND = ~CHANGED  # an error, or a removed symbol
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:-([a-z]+)\.?(\d+))?$")

# Exported for our own libraries of the same version only.
SUPPRESSED = "[suppress_function]\n  symbol_version_regexp = BUCKETPOOL_PRIVATE\n"


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def order_of(tag):
    """A key that sorts tags by version, pre-releases before their release."""
    major, minor, patch, kind, number = TAG.match(tag).groups()
    return int(major), int(minor), int(patch), kind is None, kind or "", int(number or 0)


def is_candidate(tag):
    return TAG.match(tag).group(4) is not None


def series_of(version):
    return re.match(r"v?(0\.\d+|\d+)", version).group(1)


def git(*words):
    """The lines of git's output; none where it fails or is not installed."""
    if not shutil.which("git"):
        return []
    result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return result.stdout.split("\n") if result.returncode == 0 else []


def last_tag():
    tags = [tag for tag in git("tag", "--merged", "HEAD") if TAG.match(tag) and not is_candidate(tag)]
    if not tags:
        skip("no tag of a release to compare with")
    return max(tags, key=order_of)


def install(tag, folder):
    """The tag's prefix, built where it was not yet."""
    prefix = os.path.join(folder, tag, "prefix")
    if os.path.exists(os.path.join(prefix, "done")):
        return prefix
    shutil.rmtree(os.path.join(folder, tag), ignore_errors=True)
    source, build = os.path.join(folder, tag, "source"), os.path.join(folder, tag, "build")
    os.makedirs(source)
    archive = subprocess.run(["git", "archive", tag], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", source], check=True, input=archive)
    for command in (["meson", "setup", build, source, "--prefix", prefix, "-Dtests=disabled", "-Dbenchmarks=disabled",
                     "-Dkernels=disabled"], ["meson", "install", "-C", build, "--quiet"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(prefix, "done"), "w", encoding="utf-8"):
        return prefix


def growing_structs(prefix):
    """Names of the structs that may get fields at their end."""
    names, elements = set(), set()
    for header in glob.glob(os.path.join(prefix, "include", "**", "*.h"), recursive=True):
        with open(header, encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        names |= set(re.findall(r"typedef struct (\w+) \{\s*size_t size;", text)) | set(re.findall(r"typedef struct (\w+_info) \{", text))
        for fields in re.findall(r"^typedef struct \w+ \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            elements |= {name for found in re.findall(r"_count;\s+(?:const )?(bp_\w+) \*\w+;|^ +(?:const )?(bp_\w+) \w+\[\w+\];", fields, re.MULTILINE) for name in found}
    return names - elements


def is_growth(block, growing):
    """True if a block of the report says no more than that such a struct has new fields after its old end."""
    name = re.match(r"'struct (\w+) at ", block)
    size = re.search(r"^  type size changed from (\d+) to \d+ \(in bits\)$", block, re.MULTILINE)
    offsets = [int(offset) for offset in re.findall(r"^    '.*', at offset (\d+) \(in bits\)", block, re.MULTILINE)]
    lines = len(block.rstrip().split("\n"))
    return bool(name and name.group(1) in growing and size and offsets and min(offsets) >= int(size.group(1))
                and lines == 3 + len(offsets))  # header, size, number of insertions


def compare(names, prefixes, suppressions):
    """Prints the differences; the number of incompatible libraries."""
    before, after = prefixes
    growing, failed = growing_structs(before), 0
    for library in LIBRARIES:
        paths = [os.path.join(root, "lib", f"lib{library}.so") for root in prefixes]
        if not os.path.exists(paths[0]):
            continue
        if not os.path.exists(paths[1]):
            print(f"{library}: only in {names[0]}, or not built")
            continue
        found = subprocess.run(["abidiff", "--leaf-changes-only", "--no-added-syms", "--suppressions", suppressions, "--headers-dir1",
                                os.path.join(before, "include"), "--headers-dir2", os.path.join(after, "include"), *paths],
                               capture_output=True, text=True, check=False)
        changed = re.search(r"^Leaf changes summary: (\d+) artifacts? changed", found.stdout, re.MULTILINE)
        grown = [block for block in re.split(r"\n(?=\S)", found.stdout) if is_growth(block, growing)]
        bad = bool(found.returncode & BEYOND) or (bool(found.returncode & CHANGED) and (not changed or int(changed.group(1)) != len(grown)))
        failed += bad
        print(f"{library}: {names[1]} is {'incompatible' if bad else 'compatible'} with {names[0]}{', with longer structs' if grown else ''}")
        print(found.stdout if found.returncode else "", found.stderr if bad else "", sep="", end="")
    return failed


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    *versions, folder = sys.argv[1:]
    if not shutil.which("abidiff"):
        skip("abidiff (libabigail) is not installed")
    folder = os.path.abspath(folder)
    if len(versions) == 2:
        for tag in versions:
            if not TAG.match(tag) or not git("rev-parse", "--verify", f"refs/tags/{tag}"):
                sys.exit(f"unknown tag {tag}; expected a tag such as v1.0.0 or v1.0.0-rc1")
        names = sorted(versions, key=order_of)
    else:
        with open("meson.build", encoding="utf-8") as file:
            names = [last_tag(), re.search(r"version: '([^']+)'", file.read()).group(1)]
    free = "" if series_of(names[0]) == series_of(names[1]) else f"{names[0]} is of another series than {names[1]}: its interface need not be kept"
    if is_candidate(names[0]):
        free = f"{names[0]} is a release candidate: its interface need not be kept"
    if free and len(versions) == 1:
        skip(free)
    os.makedirs(folder, exist_ok=True)
    prefixes = [install(names[0], folder), install(names[1], folder) if len(versions) == 2 else os.path.abspath(versions[0])]
    suppressions = os.path.join(folder, "suppressions.ini")
    with open(suppressions, "w", encoding="utf-8") as file:
        file.write(SUPPRESSED)
    if not compare(names, prefixes, suppressions):
        return
    if free:
        skip(free)
    sys.exit(1)


if __name__ == "__main__":
    main()
