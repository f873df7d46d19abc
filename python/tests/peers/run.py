# SPDX-License-Identifier: Apache-2.0
"""./check --torch --peers DIR: tests of other projects, on our functions and with our pools.

    python run.py DIR [OPTION OF PYTEST]...

DIR contains copies of the projects, as `git clone` makes them: DIR/SkyRL, DIR/AReaL, DIR/verl, DIR/Liger-Kernel and
DIR/trl, whose functions are replaced by ours (functions.py), DIR/Megatron-LM and DIR/pytorch, to whose modules pools
are attached (runtimes.py). A copy that is missing is skipped by name. The files of tests are theirs and unchanged.

A test counts if it uses ours, in its process or in one that it starts. Each failure needs a row in DEVIATIONS, and each
row a failure: an unexpected failure, an unexpected pass and a row without a failure all fail the run. With options of
pytest, which may select tests, a row without a failure is accepted."""

import os
import re
import signal
import sys

import functions
import runtimes

PEERS = {**functions.PEERS, **runtimes.SUITES}
DEVIATIONS = functions.DEVIATIONS + runtimes.DEVIATIONS


def listed(rows, test, result):
    """The row of a test, or None."""
    return next((row for row in rows if (re.search(row.tests, test) if row.tests else
                                         result.outcome == "failed" and re.search(row.said, result.said))), None)


def judge(name, found, whole=True):
    """Prints deviations, what is unexpected, and a line of counts. `whole`: all tests have run, so that each row needs
    a failure. Returns (passed, unexpected, skipped, deviating).
    """
    rows = [row for row in DEVIATIONS if row.peer == name]
    counts = dict.fromkeys(("passed", "unexpected", "skipped", "idle", *rows), 0)

    def unexpected(word, test, said):
        counts["unexpected"] += 1
        print(f"  {word:9} {test}: {said.splitlines()[0][:200] if said else ''}")

    for test, result in sorted(found.items()):
        row = listed(rows, test, result)
        if result.outcome == "skipped":
            counts["skipped"] += 1
        elif result.outcome == "failed":
            if row:
                counts[row] += 1
            else:
                unexpected("FAILED", test, result.said)
        elif row:
            unexpected("PASSED", test, f"listed as a deviation: {row.reason}")
        else:
            counts["passed" if result.uses else "idle"] += 1
    for row in rows:
        if counts[row]:
            print(f"  {counts[row]:4} deviate: {row.reason}")
        elif whole:
            unexpected("NO TEST", row.tests or row.said, row.reason)
    if whole and not counts["passed"]:
        unexpected("FAILED", name, "no test that passed used ours")
    deviating = sum(counts[row] for row in rows)
    print(f"{name}: {counts['passed']} passed with ours, {deviating} deviate as listed, {counts['unexpected']} "
          f"unexpected, {counts['skipped']} skipped by the peer, {counts['idle']} use nothing of ours", flush=True)
    return counts["passed"], counts["unexpected"], counts["skipped"], deviating


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        print(f"peers: expected a folder with copies of {', '.join(PEERS)}, got {' '.join(sys.argv[1:2]) or 'none'}")
        return 2
    folder, options = os.path.abspath(sys.argv[1]), sys.argv[2:]
    totals = [0, 0, 0, 0]
    for name, peer in PEERS.items():
        if not os.path.isdir(os.path.join(folder, name)):
            print(f"{name}: skipped: {folder} has no {name}")
            totals[2] += 1
            continue
        module = functions if name in functions.PEERS else runtimes
        found, output = module.results(folder, name, peer, options)
        counts = judge(name, found, whole=not options)
        if counts[1]:
            print("\n".join(output.splitlines()[-40:]))
        totals = [total + count for total, count in zip(totals, counts)]
    print(f"{totals[3]} deviate as listed")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0 if totals[0] else 77


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the tests
    sys.exit(main())
