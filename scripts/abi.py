# SPDX-License-Identifier: Apache-2.0
"""Compares installed libraries with the interface of the last version, which tests/abi/baseline has as XML (libabigail's abidw and abidiff).

usage: python3 scripts/abi.py PREFIX            finds changes that a program linked with that version would meet
       python3 scripts/abi.py --write PREFIX    makes these libraries, with debug information, the baseline: at each release

Compatible: new functions, new values of enumerations, new fields at the end of structs that carry their size or that only the library makes
(bp_..._info), unless they are the elements of an array, whose older readers would look for the second one too early.

Everything else fails. A release candidate may change what its predecessor had, and a major version what the one before had: then --write
renews the baseline, and the changelog says what changed. Between the releases of a major version it refuses.

Exit code 77: not possible here (no libabigail, another processor)."""

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

LIBRARIES = ("bucketpool", "bucketpool-formats", "bucketpool-logprob", "bucketpool-mpi")
OPTIONAL = "bucketpool-mpi"  # not built without MPI
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASELINE = os.environ.get("BUCKETPOOL_ABI_BASELINE", os.path.join(ROOT, "tests", "abi", "baseline"))  # the test has another one
SKIPPED = 77
CHANGED = 4  # bits of abidiff's exit code: a change that may be compatible
BEYOND = ~CHANGED  # an error, or a removed symbol
PLAIN = ("--no-corpus-path", "--no-comp-dir-path", "--short-locs", "--no-elf-needed", "--no-parameter-names",
         "--exported-interfaces-only", "--drop-private-types", "--type-id-style", "hash")
PRIVATE = "BUCKETPOOL_PRIVATE"  # exported for our own libraries of the same version only
SUPPRESSED = f"[suppress_function]\n  symbol_version_regexp = {PRIVATE}\n  drop = yes\n"


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def installed(prefix, library):
    path = os.path.join(prefix, "lib", f"lib{library}.so")
    return path if os.path.exists(path) else None


def check_debug_information(path):
    """Without it abidiff compares names alone, and abidw writes nothing else."""
    if " .debug_info " not in subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout:
        sys.exit(f"{path} has no debug information; build with -Dbuildtype=debugoptimized, and install without --strip")


def baseline_of(library):
    return os.path.join(BASELINE, f"lib{library}.xml")


def version_of(prefix):
    with open(os.path.join(prefix, "lib", "pkgconfig", "bucketpool.pc"), encoding="utf-8") as file:
        return re.search(r"^Version: (.+)$", file.read(), re.MULTILINE).group(1)


def baseline_version():
    with open(os.path.join(BASELINE, "VERSION"), encoding="utf-8") as file:
        return file.read().strip()


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
    name = re.match(r"'struct (\w+)( at [^']*)?'", block)
    size = re.search(r"^  type size changed from (\d+) to \d+ \(in bits\)$", block, re.MULTILINE)
    offsets = [int(offset) for offset in re.findall(r"^    '.*', at offset (\d+) \(in bits\)", block, re.MULTILINE)]
    lines = len(block.rstrip().split("\n"))
    return bool(name and name.group(1) in growing and size and offsets and min(offsets) >= int(size.group(1))
                and lines == 3 + len(offsets))  # header, size, number of insertions


def headers(option, prefix):
    return [option, os.path.join(prefix, "include")]


def compare(prefix, suppressions):
    """Prints the differences of the installed libraries from the baseline; the number of those that are incompatible or gone."""
    growing, failed = growing_structs(prefix), 0
    for library in LIBRARIES:
        path, before = installed(prefix, library), baseline_of(library)
        if path is None or not os.path.exists(before):
            failed += path is None and library != OPTIONAL
            print(f"{library}: {'not installed' if path is None else 'new'}")
            continue
        check_debug_information(path)
        found = subprocess.run(["abidiff", "--leaf-changes-only", "--no-added-syms", "--suppressions", suppressions,
                                *headers("--headers-dir2", prefix), before, path], capture_output=True, text=True, check=False)
        changed = re.search(r"^Leaf changes summary: (\d+) artifacts? changed", found.stdout, re.MULTILINE)
        grown = [block for block in re.split(r"\n(?=\S)", found.stdout) if is_growth(block, growing)]
        bad = bool(found.stderr) or bool(found.returncode & BEYOND) or (bool(found.returncode & CHANGED) and (not changed or int(changed.group(1)) != len(grown)))
        failed += bad
        print(f"{library}: {version_of(prefix)} is {'incompatible' if bad else 'compatible'} with {baseline_version()}{', with longer structs' if grown else ''}")
        print(found.stdout if found.returncode else "", found.stderr if bad else "", sep="", end="")
    return failed


def public(text):
    """The XML without private functions, and without lines of headers, which change more often than what they declare."""
    root = xml.etree.ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.get("version") == PRIVATE or child.get("elf-symbol-id", "").endswith(PRIVATE):
                parent.remove(child)
            elif child.get("line"):
                child.attrib.update(line="1", column="1")
    root[:] = sorted(root, key=lambda child: (child.tag == "abi-instr", child.get("path", "")))  # one order, whatever the build's
    xml.etree.ElementTree.indent(root)
    return xml.etree.ElementTree.tostring(root, encoding="unicode")


def write(prefix, suppressions):
    os.makedirs(BASELINE, exist_ok=True)
    for library in LIBRARIES:
        path = installed(prefix, library)
        if path is None:
            sys.exit(f"{prefix} has no lib{library}.so; the baseline is of all libraries")
        check_debug_information(path)
        text = subprocess.run(["abidw", *PLAIN, "--suppressions", suppressions, *headers("--headers-dir", prefix), path], check=True,
                              capture_output=True, text=True).stdout
        with open(baseline_of(library), "w", encoding="utf-8") as file:
            file.write(public(text) + "\n")
    with open(os.path.join(BASELINE, "VERSION"), "w", encoding="utf-8") as file:
        file.write(version_of(prefix) + "\n")


def is_kept(before, after):
    """True if a version must keep the interface of an earlier one: a release of the same major version."""
    return "-" not in before and before.split(".", maxsplit=1)[0] == after.split(".", maxsplit=1)[0]


def main():
    writes, (prefix, *more) = sys.argv[1:2] == ["--write"], sys.argv[1 + (sys.argv[1:2] == ["--write"]):] or [""]
    if not prefix or more:
        sys.exit(__doc__)
    if not shutil.which("abidiff"):
        skip("abidiff (libabigail) is not installed")
    if platform.machine() != "x86_64":
        skip(f"the baseline is of x86-64, this is {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        suppressions = os.path.join(folder, "suppressions.ini")
        with open(suppressions, "w", encoding="utf-8") as file:
            file.write(SUPPRESSED)
        has_baseline = os.path.exists(os.path.join(BASELINE, "VERSION"))
        failed = compare(prefix, suppressions) if has_baseline else 0
        if not writes:
            sys.exit(f"incompatible with {baseline_version()}" if failed else 0 if has_baseline else f"{BASELINE} has no baseline")
        if failed and is_kept(baseline_version(), version_of(prefix)):
            sys.exit(f"{version_of(prefix)} must keep the interface of {baseline_version()}; the baseline is as before")
        write(prefix, suppressions)


if __name__ == "__main__":
    main()
