# SPDX-License-Identifier: Apache-2.0
"""./check --torch --peers DIR: tests of other projects, on our functions and with our pools.

    python run.py DIR [OPTION OF PYTEST]...

DIR contains copies of the projects, as `git clone` makes them: DIR/SkyRL, DIR/AReaL, DIR/verl, DIR/Liger-Kernel and
DIR/trl, whose functions are replaced by ours (functions.py), DIR/Megatron-LM and DIR/pytorch, to whose modules pools
are attached (runtimes.py). A copy that is missing is skipped by name. The files of tests are theirs and unchanged.

A test counts if it uses ours, in its process or in one that it starts. Each failure needs a row in DEVIATIONS, and each
row a failure: an unexpected failure, an unexpected pass and a row without a failure all fail the run. With options of
pytest, which may select tests, a row without a failure is accepted.

Ends with the numbers of tests by kind of deviation, the table of docs/guides/log_probabilities_setup.md; where copies
of all projects have run whole, another table in the guide fails the run."""

import os
import re
import signal
import sys

import functions
import runtimes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
GUIDE = os.path.join(ROOT, "docs", "guides", "log_probabilities_setup.md")
PEERS = {**functions.PEERS, **runtimes.SUITES}
DEVIATIONS = functions.DEVIATIONS + runtimes.DEVIATIONS


def listed(rows, test, result):
    """The row of a test, or None."""
    return next((row for row in rows if (re.search(row.tests, test) if row.tests else
                                         result.outcome == "failed" and re.search(row.said, result.said))), None)


def judge(name, found, whole=True):
    """Prints deviations, what is unexpected, and a line of counts. `whole`: all tests have run, so that each row needs
    a failure. Returns (passed, unexpected, skipped, deviating), and the number of tests of each kind.
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
            unexpected("PASSED", test, f"listed as a deviation: {row.kind.because}")
        else:
            counts["passed" if result.uses else "idle"] += 1
    for row in rows:
        if counts[row]:
            print(f"  {counts[row]:4} deviate: {row.kind.name}: {row.kind.because}")
        elif whole:
            unexpected("NO TEST", row.tests or row.said, row.kind.because)
    if whole and not counts["passed"]:
        unexpected("FAILED", name, "no test that passed used ours")
    deviating = sum(counts[row] for row in rows)
    print(f"{name}: {counts['passed']} passed with ours, {deviating} deviate as listed, {counts['unexpected']} "
          f"unexpected, {counts['skipped']} skipped by the peer, {counts['idle']} use nothing of ours", flush=True)
    kinds = {kind: sum(counts[row] for row in rows if row.kind == kind) for kind in {row.kind for row in rows}}
    return (counts["passed"], counts["unexpected"], counts["skipped"], deviating), kinds


def table(passed, kinds):
    """Lines of a table. passed: tests of each peer; kinds: of each peer, the tests of each kind."""
    rows = [("pass", passed, "")]
    for kind in dict.fromkeys(row.kind for row in DEVIATIONS):
        counts = {peer: kinds[peer].get(kind) for peer in passed}
        if any(counts.values()):
            rows.append((kind.name, counts, kind.because))
    lines = [f"| tests | {' | '.join(passed)} | ours differs because |", "|---" * (len(passed) + 2) + "|"]
    for name, counts, because in rows:
        lines.append(f"| {name} | {' | '.join(str(counts[peer] or '') for peer in passed)} | {because} |")
    return lines


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        print(f"peers: expected a folder with copies of {', '.join(PEERS)}, got {' '.join(sys.argv[1:2]) or 'none'}")
        return 2
    folder, options = os.path.abspath(sys.argv[1]), sys.argv[2:]
    totals, passed, kinds = [0, 0, 0, 0], {}, {}
    for name, peer in PEERS.items():
        if not os.path.isdir(os.path.join(folder, name)):
            print(f"{name}: skipped: {folder} has no {name}")
            totals[2] += 1
            continue
        module = functions if name in functions.PEERS else runtimes
        found, output = module.results(folder, name, peer, options)
        counts, of_kinds = judge(name, found, whole=not options)
        if name in functions.PEERS:
            passed[name], kinds[name] = counts[0], of_kinds
        if counts[1]:
            print("\n".join(output.splitlines()[-40:]))
        totals = [total + count for total, count in zip(totals, counts)]
    lines = table(passed, kinds)
    print("\n".join(lines) if passed else "no peer's functions were tested")
    with open(GUIDE, encoding="utf-8") as page:
        differs = not options and list(passed) == list(functions.PEERS) and "\n".join(lines) not in page.read()
    if differs:
        print(f"FAILED {os.path.relpath(GUIDE, ROOT)}: it has another table; replace it with these lines")
        totals[1] += 1
    print(f"{totals[3]} deviate as listed")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0 if totals[0] else 77


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the tests
    sys.exit(main())
