# SPDX-License-Identifier: Apache-2.0
"""Plans every model of a folder with many options, and lists the plans that are not proven to be minimal.

    planning_survey.py TOOL FOLDER [--prefetch 1,2,3,4,5,6] [--ep 1,8,32,64] [--work N]

Each model is planned with policy `scheduled` for each prefetch depth, both kinds of streams, a slab for each role and a
joint one; mixtures of experts also for each expert-parallel degree that divides their experts. Plans that differ in nothing
but options without effect are listed once.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys


def plan(tool, folder, choice, work):
    """Policy `scheduled` of a plan; None where the model cannot be planned so (the degree does not divide its experts)."""
    model, ep, depth, streams, joint = choice
    command = [tool, "plan", os.path.join(folder, model), "--ep", str(ep), "--prefetch", str(depth), "--streams", streams,
               "--policy", "scheduled", "--json", *(["--joint"] if joint else []), *(["--work", work] if work else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["models"][0]["policies"][0] if done.returncode == 0 else None


def choices(folder, depths, degrees):
    for model in sorted(os.listdir(folder)):
        with open(os.path.join(folder, model, "config.json"), encoding="utf-8") as file:
            has_experts = "expert" in file.read()
        yield from itertools.product([model], degrees if has_experts else [1], depths, ("separate", "unified"), (False, True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("folder")
    parser.add_argument("--prefetch", default="1,2,3,4,5,6")
    parser.add_argument("--ep", default="1,8,32,64")
    parser.add_argument("--work")
    options = parser.parse_args()
    every = list(choices(options.folder, options.prefetch.split(","), [int(degree) for degree in options.ep.split(",")]))
    plans = not_proven = far = 0
    listed = set()
    print(f"{'MODEL':36}{'EP':>3}{'PREFETCH':>9} {'SLAB':12}{'TOTAL':>14}{'BOUND':>14}{'x BOUND':>9}{'x PROVEN':>9}")
    for number, choice in enumerate(every):
        if sys.stderr.isatty():
            print(f"\r{number} of {len(every)} plans, {not_proven} not proven ", end="", file=sys.stderr, flush=True)
        found = plan(options.tool, options.folder, choice, options.work)
        if found is None:
            continue
        plans += 1
        slabs = [slab for slab in found["roles"] if slab["bytes"] > slab["proven_bytes"]]
        not_proven += bool(slabs)
        far += found["bytes"] > 1.005 * sum(slab["proven_bytes"] for slab in found["roles"])
        for slab in slabs:
            row = (choice[0], choice[1], slab["bytes"], slab["lower_bound_bytes"])
            if row in listed:
                continue
            listed.add(row)
            name = "+".join(slab["roles"]) if choice[4] else slab["role"]
            print(f"{choice[0]:36}{choice[1]:>3}{choice[2]:>9} {name:12}{slab['bytes']:>14}{slab['lower_bound_bytes']:>14}"
                  f"{slab['bytes'] / slab['lower_bound_bytes']:>9.4f}{slab['bytes'] / slab['proven_bytes']:>9.4f}", flush=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{plans} plans, {not_proven} not proven, {far} of them more than 0.5 % above the proven minimum; "
          f"{spent.ru_utime + spent.ru_stime:.0f} s of processor time")


if __name__ == "__main__":
    main()
