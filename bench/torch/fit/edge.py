# SPDX-License-Identifier: Apache-2.0
"""A training at the edge of a memory limit: the largest micro-batch by `fit` runs, one more does not; peaks beside those of `fit`.

usage: python3 bench/torch/fit/edge.py CASE --predictions FILE [--snapshots FOLDER] [--json FILE] [--device cpu --rehearse]

FILE is made by edges.py. For each allocator a process imports PyTorch and forks three: the largest micro-batch without a limit, in the limit,
and one more in the limit; all at the same time by torch.cuda.set_per_process_memory_fraction, and for expandable segments one after the other on
a GPU with so much free memory. Where fit is wrong, the next ones follow, up to three. --snapshots: folder for the allocator's events of the run without a limit, fit-CASE.pickle.gz. Without an allocator, a rehearsal limits
the bytes of tensors. Exits 0, 1 (a check failed) or 77 (nothing can run here)."""

import argparse
import fcntl
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, ".."), os.path.join(HERE, "..", "steps"), os.path.join(HERE, "..", "fsdp2")]

import edges  # noqa: E402
import variants  # noqa: E402
from report import SKIPPED, Report  # noqa: E402

WITHIN = 0.01
BEYOND = 3  # micro-batches that are tried where fit is wrong
TRY_SECONDS = 240
GIB = 1 << 30
WAYS = {"default": "plain", "expandable": "expandable"}  # of variants.py


# ---- a process of an allocator ---------------------------------------------------------------------------------------------------


def alone(options, name, batch, limit_bytes, snapshot):
    """In a forked process."""
    import runs
    return runs.train(runs.device_of(name), options, batch, limit_bytes, snapshot=snapshot)


class Tries:
    """Runs of an allocator, written to a file at each change."""

    def __init__(self, options, case_options, limit_bytes):
        self.options, self.case, self.limit, self.found = options, case_options, limit_bytes, []

    def start(self, batch, limited=True, snapshot=None):
        from attempt import Attempt
        return Attempt(alone, self.case, self.options.device, batch, self.limit if limited else None, snapshot), batch, limited

    def end(self, started):
        """Returns whether it ran; None: it failed in another way."""
        from attempt import OUT_OF_TIME
        run, batch, limited = started
        error, result, took = run.result(TRY_SECONDS)
        entry = {"batch": batch, "limited": limited, "seconds": round(took, 1)}
        late = error is not None and error.startswith(OUT_OF_TIME)
        entry |= {"outcome": OUT_OF_TIME if late else "failed", "said": error, "traceback": result} if error else result
        self.found.append(entry)
        print(f"{self.options.allocator}, micro-batch {batch}{'' if limited else ', no limit'}: {entry['outcome']} after {took:.1f} s  "
              f"{entry.get('at', '')} {entry.get('said') or ''}", flush=True)
        if entry["outcome"] == "failed":
            print(result, flush=True)
        with open(self.options.result + ".new", "w", encoding="utf-8") as file:
            json.dump(self.found, file)
        os.replace(self.options.result + ".new", self.options.result)
        return {"runs": True, "out of memory": False}.get(entry["outcome"])


def of_allocator(options):
    """The process of one allocator; PyTorch reads its settings when it is imported."""
    document, found = edges.read(options.predictions, options.case, options.rehearse)
    largest = found["allocators"][options.allocator]["largest"]
    import runs
    from attempt import end_with_parent, gpu_is_there
    end_with_parent()
    case = edges.options_of(options.case, options.rehearse, os.path.dirname(os.path.abspath(options.predictions)))
    runs.load(case)
    if options.device == "cuda" and not gpu_is_there():
        print("PyTorch finds no GPU")
        return SKIPPED
    tries = Tries(options, case, document["limit_bytes"])
    # the program requests the same from each allocator
    snapshot = os.path.join(options.snapshots, f"fit-{options.case}.pickle") if options.snapshots and options.allocator == "default" else None
    with open(options.predictions, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other allocator's process imports PyTorch meanwhile; the GPU has no room for both
        asked = [(largest, False, snapshot), (largest, ), (largest + 1, )] if largest else [(largest + 1, )]
        if options.allocator == "expandable" and options.device == "cuda":  # its limit is on the whole GPU
            answers = [tries.end(tries.start(*each)) for each in asked]
        else:
            answers = [tries.end(each) for each in [tries.start(*each) for each in asked]]
        more, runs_there = answers[-1], answers[-2] if largest else True
        batch = largest + 2 if more else largest - 1
        while 0 < batch <= largest + 1 + BEYOND and batch >= largest - BEYOND and (more or runs_there is False):
            answer = tries.end(tries.start(batch))
            if answer is None or answer != bool(more):
                break
            batch += 1 if more else -1
    return 0


# ---- figures and checks ----------------------------------------------------------------------------------------------------------


def percent(value, truth):
    """By how much fit is above what was measured."""
    return None if not truth or value is None else round(100 * (value / truth - 1), 3)


def compare(report, case, name, said, tries, limit_bytes):
    """The row of an allocator, and its checks."""
    largest = said["largest"]
    by = {(each["batch"], each["limited"]): each for each in tries}
    free, limited, more = (by.get(key, {}) for key in ((largest, False), (largest, True), (largest + 1, True)))
    ran = [each["batch"] for each in tries if each["limited"] and each["outcome"] == "runs"]
    stopped = [each["batch"] for each in tries if each["limited"] and each["outcome"] == "out of memory"]
    row, last, inside = said["rows"].get(str(largest), {}), (free.get("counters") or [{}])[-1], (limited.get("counters") or [{}])[-1]
    off = {key: percent(row.get(key), last.get(key)) for key in ("reserved_bytes", "peak_bytes")}
    report.figure(f"fit: {case}", name, fit_largest=largest, largest_batch=max(ran, default=0), smallest_that_fails=min(stopped, default=None),
                  limit_bytes=limit_bytes, fit_reserved_bytes=row.get("reserved_bytes"), torch_peak_reserved_bytes=last.get("reserved_bytes"),
                  reserved_percent=off["reserved_bytes"], fit_peak_bytes=row.get("peak_bytes"), torch_peak_allocated_bytes=last.get("peak_bytes"),
                  peak_percent=off["peak_bytes"], torch_peak_requested_bytes=last.get("requested_bytes"), fit_retries=row.get("retries"),
                  num_alloc_retries=inside.get("retries"), reserved_in_limit_bytes=inside.get("reserved_bytes"), tries=tries)
    failed = [f"micro-batch {each['batch']}: {each['said']}" for each in tries if each["outcome"] not in ("runs", "out of memory")]
    report.check(f"{name}: all failures are out of memory", not failed, "; ".join(failed))
    if largest:
        report.check(f"{name}: micro-batch {largest} runs", limited.get("outcome") == "runs", limited.get("said") or limited.get("outcome", "was not tried"))
        report.check(f"{name}: weights are finite", free.get("finite") is True, free.get("said") or "")
    report.check(f"{name}: micro-batch {largest + 1} does not", more.get("outcome") == "out of memory",
                 f"the largest that ran: {max(ran, default=0)}" if more.get("outcome") == "runs" else more.get("said") or "was not tried")
    for key, what in (("peak_bytes", "peak allocated"), ("reserved_bytes", "reserved")):
        title = f"{name}: {what} within {100 * WITHIN:.0f} %"
        if off[key] is None:
            report.skip(title, "no figure" if largest else "no micro-batch fits")
        elif key == "reserved_bytes" and last["retries"]:
            report.skip(title, f"{last['retries']} retries without a limit: the GPU was full")
        else:
            report.check(title, abs(off[key]) <= 100 * WITHIN, f"{row[key] / GIB:.3f} GiB by fit, {last[key] / GIB:.3f} measured, {off[key]:+.2f} %")
    if largest and row.get("retries") is not None and inside.get("retries") is not None:
        # both count steps from the first; fit recorded two
        counted = (limited["counters"][1] if len(limited["counters"]) > 1 else inside)["retries"]
        report.check(f"{name}: retries in the limit only where fit says so", (counted > 0) == (row["retries"] > 0),
                     f"{row['retries']} by fit, {counted} in two steps, {inside['retries']} in {len(limited['counters'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("case", choices=edges.CASES)
    parser.add_argument("--predictions", required=True, metavar="FILE")
    parser.add_argument("--snapshots", metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--allocator", choices=edges.ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.allocator:
        return of_allocator(options)
    try:
        document, found = edges.read(options.predictions, options.case, options.rehearse)
    except (OSError, ValueError, KeyError) as error:
        print(f"no predictions: {error}")
        return SKIPPED
    report = Report(options.json, program="fit/edge", case=options.case, rehearsed=options.rehearse, limit_bytes=document["limit_bytes"],
                    options=found["options"], predicted_with=document["versions"])
    processes, statuses = [], []
    for name in edges.ALLOCATORS:
        result = f"{options.json or options.predictions}.{options.case}-{name}"
        if os.path.exists(result):
            os.remove(result)
        processes.append((name, result, subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--allocator", name,
                                                          "--result", result], env=variants.environment(WAYS[name], options.device))))
    for name, result, process in processes:
        statuses.append(process.wait())
        try:
            with open(result, encoding="utf-8") as file:
                tries = json.load(file)
        except (OSError, ValueError):
            tries = []
        if tries:
            compare(report, options.case, name, found["allocators"][name], tries, document["limit_bytes"])
        elif statuses[-1] != SKIPPED:
            report.check(f"{name}: runs", False, f"exit {statuses[-1]}")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
