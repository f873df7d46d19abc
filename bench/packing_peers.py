# SPDX-License-Identifier: Apache-2.0
"""Compares `bucketpool pack` with other packers: bytes above the lower bound, and processor time as a multiple of ours.

    packing_peers.py TOOL [--minimalloc PROGRAM] [--idealloc PROGRAM] [--cp-sat SECONDS] [--capacity N] [--turns N] [--growth]
                     [FILE|FOLDER]...

Without files the instances are generated: training steps, pipeline schedules (1F1B) and random live ranges. Peers run
where they are found: google/minimalloc (its `minimalloc`, which decides a capacity: --capacity or the lower bound; 60 s
at most), cappadokes/idealloc (its `idealloc`), and CP-SAT of OR-tools with one thread, if this Python has it, on up to
2,000 items. Peers take turns in a random order, and times are medians. An equals sign marks totals that are proven to be
minimal. --growth prints the exponents of time over size.
"""

import argparse
import csv
import importlib.util
import math
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TIME_LIMIT = 60
MAX_SOLVED = 2000  # items, for CP-SAT


# ---- instances -----------------------------------------------------------------------------------------------------


def training_step(rng, layers, operations=20):
    """Forward keeps four activations in ten until backward, which also makes short-lived gradients."""
    rows, kept, time_ = [], [], 0
    for _ in range(layers):
        kept.append([])
        for _ in range(operations):
            size = 4096 * rng.choice((1, 2, 4, 8, 16, 24, 32, 64)) * rng.choice((1, 3, 7, 13))
            if rng.random() < 0.4:
                kept[-1].append((time_, size))
            else:
                rows.append((time_, time_ + rng.randint(1, 4), size))
            time_ += 1
    for layer in reversed(kept):
        for begin, size in reversed(layer):
            rows.append((begin, time_ + 1, size))
            rows += [(time_, time_ + rng.randint(1, 5), rng.choice((size, 2 * size, size // 2))) for _ in range(2)]
            time_ += 1
        rows.append((time_ - len(layer), time_ + 1, 1 << 20))
    return rows


def pipeline(rng, stages, microbatches, operations):
    """The first stage of 1F1B: as many forwards as stages, then one backward and one forward in turns."""
    sizes = [65536 * rng.choice((1, 2, 3, 4, 6, 8, 12)) + rng.choice((0, 512, 4096)) for _ in range(operations)]
    warm_up = min(stages, microbatches)
    order = [("forward", i) for i in range(warm_up)]
    for i in range(microbatches):
        order.append(("backward", i))
        if warm_up + i < microbatches:
            order.append(("forward", warm_up + i))
    rows, kept, time_ = [], {}, 0
    for phase, i in order:
        if phase == "forward":
            kept[i] = []
            for operation, size in enumerate(sizes):
                if operation % 3 == 0:
                    rows.append((time_, time_ + 2, size))
                else:
                    kept[i].append((time_, size))
                time_ += 1
        else:
            for begin, size in reversed(kept.pop(i)):
                rows += [(begin, time_ + 1, size), (time_, time_ + rng.randint(1, 3), size)]
                time_ += 1
    return rows


def random_ranges(rng, items):
    begins = [rng.randrange(2 * items) for _ in range(items)]
    return [(begin, begin + rng.randint(1, 2000), 256 * rng.randint(1, 1000)) for begin in begins]


def write(rows, path):
    with open(path, "w", encoding="utf-8") as file:
        file.write("id,lower,upper,size\n")
        file.writelines(f"{i},{begin},{end},{size}\n" for i, (begin, end, size) in enumerate(rows))
    return path


def generated(folder):
    made = {"training-900": training_step(random.Random(1), 24), "training-100k": training_step(random.Random(1), 2600),
            "1f1b-900": pipeline(random.Random(2), 8, 32, 17), "1f1b-90k": pipeline(random.Random(2), 8, 64, 850),
            "random-100k": random_ranges(random.Random(5), 100_000)}
    return [write(rows, os.path.join(folder, name + ".csv")) for name, rows in made.items()]


def read(path):
    """Size and live ranges of each item."""
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            begin, ranges = int(row["lower"]), []
            for end, following in sorted(tuple(map(int, gap.split("-"))) for gap in (row.get("gaps") or "").split()):
                ranges.append((begin, end))
                begin = following
            yield int(row["size"]), [*ranges, (begin, int(row["upper"]))]


def peak(path):
    """Items and peak live bytes."""
    changes, items = {}, 0
    for size, ranges in read(path):
        items += 1
        for begin, end in ranges:
            changes[begin] = changes.get(begin, 0) + size
            changes[end] = changes.get(end, 0) - size
    live = most = 0
    for at in sorted(changes):
        live += changes[at]
        most = max(most, live)
    return items, most


# ---- packers -------------------------------------------------------------------------------------------------------


def run(command):
    """Output of a program, None where it failed or took too long, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False,
                              env={**os.environ, "BUCKETPOOL_PROGRESS": "0"})
        output = done.stdout + done.stderr if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        output = None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return output, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(tool, path, _bound, *options):
    output, seconds = run([tool, "pack", path, *options])
    found = re.search(r"(?m)^total +(\d+)", output or "")
    return int(found.group(1)) if found else None, "proven optimal" in (output or ""), seconds


def minimalloc(program, path, bound):
    with tempfile.NamedTemporaryFile(suffix=".csv") as placed:
        output, seconds = run([program, f"--capacity={bound}", f"--input={path}", f"--output={placed.name}"])
        return bound if output is not None and os.path.getsize(placed.name) > 0 else None, False, seconds


def idealloc(program, path, _bound):
    """With doubled times: it expects open intervals of whole steps, and one of a single step would be empty."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as doubled:
        write([(2 * lives[0][0], 2 * lives[-1][1], size) for size, lives in read(path)], doubled.name)
        output, seconds = run([program, "--input", doubled.name, "ex-csv"])
    found = re.search(r"(?i)makespan:\s*(\d+)", output or "")
    return int(found.group(1)) if found else None, False, seconds


def cp_sat(seconds, path, bound):
    if sum(1 for _ in read(path)) > MAX_SOLVED:
        return None, False, 0
    output, spent = run([sys.executable, os.path.abspath(__file__), "--solve", path, str(bound), str(seconds)])
    total, proven = map(int, output.split()) if output else (None, None)
    return total, total is not None and total == proven, spent


def solve(path, bound, seconds):
    """Prints the total that CP-SAT finds: no-overlap in two dimensions, with one offset for all live ranges of an item."""
    from ortools.sat.python import cp_model  # a peer, not a dependency

    model, most = cp_model.CpModel(), 2 * bound
    height = model.NewIntVar(bound, most, "")
    ranges, extents = [], []
    for size, lives in read(path):
        offset = model.NewIntVar(0, most - size, "")
        model.Add(offset + size <= height)
        extent = model.NewFixedSizeIntervalVar(offset, size, "")
        for begin, end in lives:
            ranges.append(model.NewFixedSizeIntervalVar(begin, end - begin, ""))
            extents.append(extent)
    model.AddNoOverlap2D(ranges, extents)
    model.Minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.max_time_in_seconds = 1, seconds
    if solver.Solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        sys.exit(1)
    print(int(solver.ObjectiveValue()), int(solver.BestObjectiveBound()))


# ---- reports -------------------------------------------------------------------------------------------------------


def compare(paths, packers, turns):
    rng = random.Random(0)
    print(f"{'INSTANCE':28}{'ITEMS':>8}  " + "".join(f"{name:>32}" for name in packers))
    for path in paths:
        items, bound = peak(path)
        times, totals, proven = {name: [] for name in packers}, {}, {}
        for _ in range(turns):
            for name in rng.sample(sorted(packers), len(packers)):
                totals[name], proven[name], seconds = packers[name](path, bound)
                times[name].append(seconds)
        median = {name: statistics.median(values) for name, values in times.items()}
        row = f"{os.path.basename(path):28}{items:>8}  "
        for name in packers:
            above = "none" if totals[name] is None else f"{100 * (totals[name] / bound - 1):.4f} %"
            above = "= " + above if proven[name] or totals[name] == bound else above
            ratio = "" if name == "bucketpool" else f" ({median[name] / max(median['bucketpool'], 1e-3):.1f} x)"
            row += f"{f'{above} {median[name]:.2f} s{ratio}':>32}"
        print(row, flush=True)


def growth(tool, folder, turns):
    """Exponent of the time of one pass between 10,000 and 100,000 items, and of a plan between as many units."""
    def seconds(make, sizes, command):
        medians = []
        for size in sizes:
            path = make(size)
            medians.append(statistics.median(run([tool, *command, path])[1] for _ in range(turns)))
        return medians

    def units(count):
        rng = random.Random(3)
        path = os.path.join(folder, f"units-{count}.json")
        with open(path, "w", encoding="utf-8") as file:
            buckets = (f'{{"name": "{i}", "buckets": [{{"name": "w", "dtype": "bf16", "numel": {2048 * rng.randint(1, 5000)}}}]}}'
                       for i in range(count))
            file.write('{"format": "bucketpool.units/1", "model": "random", "units": [' + ", ".join(buckets) + "]}")
        return path

    sizes = (10_000, 100_000)
    for name, make, command in (
            ("pack, one pass, random", lambda n: write(random_ranges(random.Random(5), n), os.path.join(folder, f"r{n}.csv")),
             ["pack", "--work", "1"]),
            ("pack, one pass, training", lambda n: write(training_step(random.Random(1), n // 37), os.path.join(folder, f"t{n}.csv")),
             ["pack", "--work", "1"]),
            ("plan, prefetch 1", units, ["plan", "--policy", "scheduled"]),
            ("plan, prefetch 2", units, ["plan", "--policy", "scheduled", "--prefetch", "2"])):
        few, many = seconds(make, sizes, command)
        print(f"{name:28}{sizes[0]} {few:.2f} s, {sizes[1]} {many:.2f} s, exponent {math.log10(many / few):.2f}", flush=True)


def main():
    if sys.argv[1:2] == ["--solve"]:
        solve(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--minimalloc", default=shutil.which("minimalloc"))
    parser.add_argument("--idealloc", default=shutil.which("idealloc"))
    parser.add_argument("--cp-sat", type=float, default=10 if importlib.util.find_spec("ortools") else 0)
    parser.add_argument("--capacity", type=int)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_intermixed_args()
    capacity = ["--capacity", str(options.capacity)] if options.capacity else []
    packers = {"bucketpool": lambda path, bound: ours(options.tool, path, bound, *capacity),
               "one pass": lambda path, bound: ours(options.tool, path, bound, "--work", "1")}
    if options.minimalloc:
        packers["minimalloc"] = lambda path, bound: minimalloc(options.minimalloc, path, options.capacity or bound)
    if options.idealloc:
        packers["idealloc"] = lambda path, bound: idealloc(options.idealloc, path, bound)
    if options.cp_sat:
        packers["CP-SAT"] = lambda path, bound: cp_sat(options.cp_sat, path, bound)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if options.growth:
            growth(options.tool, folder, options.turns)
            return
        paths = []
        for path in options.paths:
            names = sorted(os.listdir(path)) if os.path.isdir(path) else [""]
            paths += [os.path.join(path, name) if name else path for name in names if not name or name.endswith(".csv")]
        compare(paths or generated(folder), packers, options.turns)
    print(f"{time.monotonic() - began:.0f} s, medians of {options.turns} turns; x: processor time over bucketpool's")


if __name__ == "__main__":
    main()
