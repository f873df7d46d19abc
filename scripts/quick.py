# SPDX-License-Identifier: Apache-2.0
"""./check --quick: one build that is kept, brought up to date, and the suites that reach the files that changed since the last pass.

It is a loop for editing, not a proof: it builds only the programs of these suites, in one way, without sanitizers; src/core reaches everything,
and the suites nearest to it are run; suite "once" is left out, and random repetitions are few (BUCKETPOOL_BRIEF)."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

import check

BUILD = os.path.join(check.BUILDS, "quick")
PASSED = os.path.join(check.BUILDS, "quick.json")  # digests of all files when their suites had last passed
EVERY = ("unit", "packing", "planner", "steps", "contract", "comms", "cuda", "kernels", "cli", "fuzz", "examples", "python", "properties")

# Suites by the beginning of a path: the first that fits. "": none, as nothing that is tested is made of it.
REACHES = (
    ("src/core/", "unit packing planner contract comms"),
    ("src/devices/pinned/", "unit contract"), ("src/devices/nvtx/", "contract"), ("src/devices/", "unit contract cuda"),
    ("src/planner/packing/", "packing planner cli"), ("src/planner/", "unit planner cli"),
    ("src/allocators/torch/", "cuda"), ("src/allocators/profile/", "unit"), ("src/allocators/serve/", "steps fuzz"), ("src/allocators/", "unit contract cuda"),
    ("src/comms/mpi/", "mpi"), ("src/comms/", "comms cuda"),
    ("src/formats/", "unit fuzz cli"),
    ("clients/", "kernels"),
    ("include/", "unit contract python"),
    ("python/", "python properties"),
    ("tools/step/allocator/", "steps cli"), ("tools/", "cli"), ("examples/", "examples"),
    ("tests/cli/", "cli"), ("tests/comms/", "comms"), ("tests/contract/", "contract"), ("tests/cuda/", "cuda"), ("tests/examples/", "examples"),
    ("tests/fakes/", "cuda comms"), ("tests/fuzz/", "fuzz"), ("tests/mpi/", "mpi"),
    ("tests/offload/", "contract"), ("tests/packing/", "packing"), ("tests/planner/", "planner"), ("tests/pinned/", "unit"),
    ("tests/profile/", "unit"), ("tests/properties/", "properties"), ("tests/support/", "unit contract"), ("tests/abi/", "unit"), ("tests/unit/", "unit"), ("tests/soak/", ""), ("tests/steps/", "steps"), ("tests/serve/", "steps fuzz"), ("tests/hardening/", "unit"),
    ("tests/data/architectures/", "planner"), ("tests/data/packing/", "packing"),
    ("docs/", "cli"), ("README.md", "cli"), ("CONTRIBUTING.md", "cli"), ("bench/", ""), ("scripts/", "unit"), ("tests/scripts/", "unit"), ("tests/gpu/", "cuda"),
    (".github/", "unit"), ("packaging/", "unit"),
)


def states():
    """A digest of each file of the project."""
    digests = {}
    for path in check.tracked(""):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                digests[path] = hashlib.sha256(file.read()).hexdigest()
    return digests


def suites_of(files):
    """Those that reach a file, and the files that no rule names: for these every suite is run."""
    suites, unknown = set(), []
    for file in files:
        rule = next((names for beginning, names in REACHES if file.startswith(beginning)), None)
        if rule is None:
            unknown.append(file)
        suites.update(EVERY if rule is None else rule.split())
    return sorted(suites), unknown


def shown(files):
    return ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")


def build_and_test(suites):
    """Builds what the suites run, and runs them."""
    log = os.path.join(check.BUILDS, "quick.log")
    if os.path.exists(log):
        os.remove(log)
    options = ["-Dwerror=" + check.werror(), "-Doptimization=1", "-Dtests=enabled", "-Ddocs=disabled", *check.LINES, *check.linker()]
    good = os.path.exists(os.path.join(BUILD, "build.ninja")) or check.run(["meson", "setup", BUILD, *options], log)
    environment = {**os.environ, "BUCKETPOOL_BRIEF": "1", "BUCKETPOOL_EXAMPLES": "20"}
    good = good and check.run_tests(BUILD, log, "quick", suites, ["once"], env=environment)
    check.count("builds and runs its tests", "passed" if good else "failed")


def formatted(files):
    sources = [file for file in files if file.endswith((".c", ".h")) and os.path.exists(file)]
    if sources:
        good = subprocess.run(["clang-format-14", "--dry-run", "-Werror", *sources], check=False).returncode == 0
        check.count("clang-format", "passed" if good else "failed")


def main():
    begin = time.monotonic()
    os.makedirs(check.BUILDS, exist_ok=True)
    now, before = states(), None
    if os.path.exists(PASSED):
        with open(PASSED, encoding="utf-8") as file:
            before = json.load(file)
    if before is None:
        check.say("quick: the first time all suites are run, and everything that they need is compiled: some ten minutes on two cores")
        changed, suites, unknown = sorted(now), list(EVERY), []
    else:
        changed = sorted(file for file in {*now, *before} if now.get(file) != before.get(file))
        suites, unknown = suites_of(changed)
        check.say(f"quick: {len(changed)} files changed since the last pass{': ' + shown(changed) if changed else ''}")
    if unknown:
        check.say(f"quick: every suite, as no rule of scripts/quick.py names {shown(unknown)}")
    check.say(f"quick: suites {', '.join(suites) or 'none'}")
    if suites:
        build_and_test(suites)
    else:
        check.count("nothing that is tested has changed", "passed")
    if before is not None and shutil.which("clang-format-14"):
        formatted(changed)
    if not check.failures:
        with open(PASSED, "w", encoding="utf-8") as file:
            json.dump(now, file)
    check.say(f"quick: {time.monotonic() - begin:.0f} s")
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
