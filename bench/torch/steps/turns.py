# SPDX-License-Identifier: Apache-2.0
"""Steps of a training in several ways, each a process of bench/torch/steps/train.py. All are started, then take turns of a few steps in
shuffled order, so that clocks and temperature are the same for all. Losses are compared bit for bit.

usage: python3 bench/torch/steps/turns.py WAY... --plans PREFIX [--model llama|experts|small] [--ranks N] [--steps N] [--profile] [--json FILE]
       [--device cpu --rehearse]

WAYs are those of variants.py: "in process" writes the plan that "plan" serves. Exits 0, 1 (a check failed) or 77 (nothing can run here)."""

import argparse
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE), os.path.join(HERE, "..", "..", "..", "python")]

import variants  # noqa: E402
from report import SKIPPED, Report  # noqa: E402

TURN = 4  # steps
WARMUP = 7  # steps before those that count, as in train.py
TURN_SECONDS = 300  # for an answer


class Process:
    """A training that waits for its turn. failed: why it takes no more turns."""

    def __init__(self, way, options):
        self.way, self.failed, self.steps, self.first, self.memory, self.profile = way, "", [], {}, {}, {}
        self.report_file = f"{options.plans}-{way.replace(' ', '-').replace(',', '')}-report.json"
        if os.path.exists(self.report_file):
            os.remove(self.report_file)
        program = [os.path.join(HERE, "train.py"), "--model", options.model, "--ranks", str(options.ranks), "--device", options.device, "--paced",
                   "--trace", self.report_file + ".trace", *(["--rehearse"] if options.rehearse else [])]
        self.process = subprocess.Popen(variants.command(way, options.device, options.plans, self.report_file, program), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=variants.environment(way, options.device))
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.last = ""

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds):
        """The next line of JSON; None if the process has failed."""
        end = time.monotonic() + seconds
        while not self.failed:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                self.failed = f"no answer for {seconds:.0f} s"
                break
            if line is None:
                self.failed = f"exit {self.process.wait()}: {self.last}"
            elif line.startswith("{"):
                return json.loads(line)
            else:
                self.last = line.strip()
                print(f"{self.way}: {self.last}", flush=True)
        return None

    def ask(self, action, seconds=TURN_SECONDS):
        if self.failed:
            return None
        try:
            self.process.stdin.write(action + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the reader sees the end
        return self.answer(seconds)

    def take_steps(self, count):
        found = self.ask(f"step {count}")
        self.steps += found["steps"] if found else []

    def end(self):
        """Ends the program as its user would, so that the launcher writes its report. Returns the report or {}."""
        try:
            self.process.stdin.close()
            code = self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            code = None
            self.process.kill()
            self.process.wait()
        self.failed = self.failed or ("" if code == 0 else f"exit {code} at its end")
        try:
            with open(self.report_file, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}


def figures_of(report, process, answer, options, baseline):
    """A row of a way: times, memory, and what was served."""
    counted = process.steps[WARMUP:]
    served = {}
    if answer:
        served = {name: answer[name] for name in ("slab_bytes", "lower_bound_bytes", "peak_used_bytes", "allocations", "served", "reserved_peak_before_bytes",
                                                  "because")}
        served |= {"served_share": round(answer["served"] / max(1, answer["allocations"]), 5), "served_steps": answer["steps"],
                   "waits_per_step": round(answer["waits"] / max(1, answer["steps"]), 2), "losses_of_matching": answer["losses"][:8],
                   "stopped_or_serving": answer["state"], "other_reserved_peak_bytes": answer["reserved_peak_bytes"]}
    memory = {name: value for name, value in process.memory.items() if name != "driver_peak_bytes"}  # of all processes
    reserved, live = process.memory.get("reserved_peak_bytes"), process.memory.get("live_peak_bytes")
    report.figure(f"steps: {options.model}", process.way, [step["ns"] for step in counted],
                  [step["ns"] for step in baseline.steps[WARMUP:]] if baseline is not process else (), baseline.way,
                  processor_ns_median=statistics.median(step["processor_ns"] for step in counted),
                  page_faults_median=statistics.median(step["page_faults"] for step in counted), **memory, **served,
                  reserved_peak_first_steps_bytes=process.first.get("reserved_peak_bytes"),
                  reserved_to_live=round(reserved / live, 4) if live else None, profile=process.profile,
                  covered_share=process.profile.get("covered_share"),
                  losses=[step["loss"] for step in process.steps])


def take_turns(processes, options):
    """Warm-up steps, then turns in shuffled order, then the profile of each."""
    rng = random.Random(0)
    for process in processes:
        process.answer(options.start_seconds)
    for process in processes:
        process.take_steps(WARMUP)
        process.first = process.ask("reset") or {}
    for _ in range(-(-options.steps // TURN)):
        for process in rng.sample(processes, len(processes)):
            process.take_steps(TURN)
    for process in processes:
        process.memory = process.ask("memory") or {}
        process.profile = (process.ask("profile") or {}) if options.profile else {}


def check(report, processes, answers):
    for process in processes:
        report.check(f"{process.way} trains", not process.failed, process.failed)
    alive = [process for process in processes if not process.failed]
    for process in alive[1:]:
        pairs = [(a["loss"], b["loss"]) for a, b in zip(alive[0].steps, process.steps)]
        first = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
        report.check(f"{process.way}: losses of {alive[0].way}, bit for bit", first is None,
                     f"{len(pairs)} steps" if first is None else f"step {first}: {pairs[first][1]}, not {pairs[first][0]}")
    for process in alive:
        if "pool_served" in process.memory:
            served, others = process.memory["pool_served"], process.memory["pool_fallbacks"]
            report.check(f"{process.way}: the pool served every bucket", served > 0 and others == 0, f"{served} served, {others} from PyTorch")
        if variants.is_served(process.way):
            answer = answers[process.way]
            shares = f"{answer.get('served', 0):,} of {answer.get('allocations', 0):,} allocations, {answer.get('steps', 0)} steps"
            report.check(f"{process.way}: serves", answer.get("served", 0) > 0 and answer.get("state") in ("serving", "stopping", "stopped") and
                         not answer.get("because"), shares + (f"; {answer['because']}" if answer.get("because") else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("ways", nargs="+", choices=list(variants.WAYS), metavar="WAY")
    parser.add_argument("--plans", default="step", metavar="PREFIX", help="folder and first part of the names of plans and reports")
    parser.add_argument("--model", default="llama")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--start-seconds", type=float, default=90)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    options.steps = min(options.steps, TURN) if options.rehearse else options.steps
    missing = [plan for way in options.ways if way.startswith("plan") for plan in [variants.plan_of(way, options.plans)] if not os.path.exists(plan)]
    if len(missing) == len(options.ways):
        print(f"no plan: {missing[0]}")
        return SKIPPED
    chosen = [way for way in options.ways if variants.plan_of(way, options.plans) not in missing]
    processes = [Process(way, options) for way in chosen]
    report = Report(options.json, program="steps/turns", model=options.model, ranks=options.ranks, warmup=WARMUP, rehearsed=options.rehearse)
    for plan in missing:
        report.skip(plan, "the plan is missing: the part before it failed")
    try:
        take_turns(processes, options)
    finally:
        answers = {process.way: process.end() for process in processes}
    alive = [process for process in processes if len(process.steps) > WARMUP]
    for process in alive:
        figures_of(report, process, answers[process.way], options, alive[0])
    check(report, processes, answers)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
