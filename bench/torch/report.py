# SPDX-License-Identifier: Apache-2.0
"""Results of a PyTorch benchmark program: one JSON document, replaced at each result, so that a killed program leaves
all completed measurements. Replacement is atomic: a temporary file is renamed."""

import json
import os
import statistics
import sys

SKIPPED = 77


class Report:
    """Figures, checks and skips of one program. `path` None: printed only."""

    def __init__(self, path, **head):
        self.path = path
        self.document = {"format": "bucketpool.bench/1", **head, "figures": [], "checks": [], "skipped": []}
        self.write()

    @classmethod
    def continued(cls, path, **head):
        """Continues the document at `path` after a restart of the program."""
        try:
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
        except (OSError, TypeError, ValueError):
            before = {}
        made = cls(path, **head)
        for key in ("figures", "checks", "skipped"):
            made.document[key] = before.get(key, [])
        made.write()
        return made

    def write(self):
        if self.path is None:
            return
        temporary = f"{self.path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self.document, file, indent=1)
        os.replace(temporary, self.path)

    def figure(self, group, name, values_ns=(), baseline_ns=(), to=None, **more):
        """One row. `values_ns`: nanoseconds of each turn; `baseline_ns`: those of the entry called `to` in the same turns, for the ratio."""
        row = {"group": group, "name": name}
        if values_ns:
            row |= {"ns_min": min(values_ns), "ns_median": statistics.median(values_ns), "windows": len(values_ns)}
        if baseline_ns:
            ratios = [value / base for value, base in zip(values_ns, baseline_ns)]
            row |= {"ratio_median": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios), "ratio_to": to}
        row |= more
        self.document["figures"].append(row)
        time = f"{row['ns_median'] / 1e6:.3f} ms" if values_ns else ""
        print(f"figure   {group}: {name}  {time}  {' '.join(f'{key}={value}' for key, value in more.items())}", flush=True)
        self.write()

    def check(self, name, passed, reason="", **more):
        """One check: passed, or failed with the numbers."""
        self.document["checks"].append({"name": name, "outcome": "passed" if passed else "failed", "reason": reason, **more})
        print(f"{'passed' if passed else 'FAILED':8} {name}{': ' + reason if reason else ''}", flush=True)
        self.write()

    def skip(self, name, reason):
        """A case that cannot run here."""
        self.document["skipped"].append({"name": name, "reason": reason})
        print(f"skipped  {name}: {reason}", flush=True)
        self.write()

    def status(self):
        """The exit status: 1 if a check failed, 77 if nothing could run, else 0."""
        if any(check["outcome"] == "failed" for check in self.document["checks"]):
            return 1
        return 0 if self.document["checks"] or self.document["figures"] else SKIPPED


def skip_all(reason):
    """Ends the program because nothing can run here."""
    print(reason)
    sys.exit(SKIPPED)
