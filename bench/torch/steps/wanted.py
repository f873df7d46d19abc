# SPDX-License-Identifier: Apache-2.0
"""Compares served steps with what is wanted of them, from the files of turns.py and largest.py.

usage: python3 bench/torch/steps/wanted.py [--json FILE] [--device cpu --rehearse] RESULT.json...

Wanted: reserved bytes at most 1.03 of the bytes live at the peak without serving; a step at most 1 % longer than of the fastest way; a largest
batch at least 15 % above that of expandable segments; as much overlap of communication with windows as without serving. Exits 0, 1 (something is
not reached) or 77 (nothing can be said: a CPU reserves nothing). Needs no PyTorch."""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from report import Report  # noqa: E402

RESERVED, LONGER, LARGER, OVERLAP = 1.03, 1.01, 1.15, 0.95
SERVED = "plan"  # the way that is compared
BATCH = "steps: largest batch"


def figures_in(paths):
    """Rows by group and name."""
    found = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                found.update({(row["group"], row["name"]): row for row in json.load(file)["figures"]})
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: {error!r}")
    return found


def compare(report, rows):
    """A check for each wish that the figures can decide; the others are skipped by name."""

    def decide(name, known, function):
        if all(value is not None for value in known):
            report.check(name, *function(*known))
        else:
            report.skip(name, "the figures are missing")

    def value(group, name, key):
        return rows.get((group, name), {}).get(key)

    models = sorted({group for group, name in rows if group.startswith("steps: ") and group != BATCH})
    for group in models:
        ways = [name for other, name in rows if other == group]
        served = next((name for name in (SERVED, "in process") if name in ways), None)
        if served is None:
            continue
        model = group.removeprefix("steps: ")
        decide(f"{model}: reserved at most {RESERVED} of peak live", [value(group, served, "reserved_peak_bytes"), value(group, "plain", "live_peak_bytes")],
               lambda reserved, live: (reserved <= RESERVED * live, f"{served}: {reserved / live:.3f}, {reserved / 2**30:.2f} of {live / 2**30:.2f} GiB"))
        times = {name: value(group, name, "ns_median") for name in ways if value(group, name, "reserved_peak_bytes") is not None}
        decide(f"{model}: a step at most {LONGER} of the fastest way's", [times.get(served)],
               lambda mine: (mine <= LONGER * min(times.values()), ", ".join(f"{name} {ns / 1e6:.1f} ms" for name, ns in times.items())))
        shares = {name: (value(group, name, "profile") or {}).get("covered_share") for name in ways}
        if any(share is not None for share in shares.values()):
            decide(f"{model}: overlap of communication at least {OVERLAP} of plain's", [shares.get(served), shares.get("plain")],
                   lambda mine, plain: (mine >= OVERLAP * plain, ", ".join(f"{name} {share:.2f}" for name, share in shares.items() if share is not None)))
    batches = {name: row for (group, name), row in rows.items() if group == BATCH and row.get("complete") and row.get("largest_batch")}
    if any(group == BATCH for group, _ in rows):
        mine, other = (batches.get(name, {}).get("largest_batch") for name in ("plan, expandable", "expandable"))
        decide(f"largest batch at least {LARGER} of expandable segments'", [mine, other],
               lambda mine, other: (mine >= LARGER * other, ", ".join(f"{name} {row['largest_batch']}" for name, row in batches.items())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("results", nargs="+")
    options = parser.parse_args()
    report = Report(options.json, program="steps/wanted")
    compare(report, {} if options.device == "cpu" else figures_in(options.results))
    if not report.document["checks"]:
        print("nothing to compare: " + ("a CPU reserves nothing" if options.device == "cpu" else "no figures of a GPU"))
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
