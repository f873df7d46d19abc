# SPDX-License-Identifier: Apache-2.0
"""Compares losses of all variants, bit for bit, from the files of variant.py.

usage: python3 bench/torch/fsdp2/compare.py [--json FILE] RESULT.json...

Each file is compared with the first one of the same settings, up to the shorter length, as a killed program leaves the completed steps.
Exits 0, 1 (losses differ, or a file has none) or 77 (fewer than two files with losses)."""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from report import Report, skip_all  # noqa: E402


def losses_of(path):
    """The settings that determine the losses, the variant, and the losses as hexadecimal text."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    decide = {name: value for name, value in document["settings"].items() if name not in ("steps", "warmup")}
    return decide, document["variant"], [step["loss"] for step in document["steps"]]


def first_difference(one, other):
    return next((step for step, (a, b) in enumerate(zip(one, other)) if a != b), None)


def compare(report, results):
    """One check per file, except for the first of its settings."""
    firsts = []
    for decide, variant, losses in results:
        base = next((first for first in firsts if first[0] == decide), None)
        if base is None:
            firsts.append((decide, variant, losses))
            continue
        steps, at = min(len(losses), len(base[2])), first_difference(losses, base[2])
        kind = "varying lengths" if decide["lengths"] else "one length"
        reason = f"{steps} steps" if at is None else f"step {at}: {losses[at]} and {base[2][at]}, {float.fromhex(losses[at])!r} and " \
                                                     f"{float.fromhex(base[2][at])!r}"
        report.check(f"{kind}: losses of {variant} are those of {base[1]}, bit for bit", at is None and steps > 0, reason)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("results", nargs="+")
    options = parser.parse_args()
    report, results = Report(options.json, program="fsdp2/compare"), []
    for path in options.results:
        try:
            decide, variant, losses = losses_of(path)
        except (OSError, ValueError, KeyError) as error:
            report.skip(os.path.basename(path), f"file without losses: {error!r}")
            continue
        results.append((decide, variant, losses))
    compare(report, results)
    if not report.document["checks"]:
        skip_all("losses: fewer than two results of the same settings")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
