# SPDX-License-Identifier: Apache-2.0
"""Processor time and page faults of a training step on the CPU, with PyTorch's allocator and with served steps.

    python3 bench/torch/served_step_cpu.py [--layers N] [--width N] [--batch N] [--length N] [--steps N] [--json FILE]

A transformer with AdamW. Each way runs in a separate process, in turns, and the medians of the steps are printed. Exits 77
without PyTorch."""

import argparse
import json
import os
import statistics
import subprocess
import sys

from report import Report, skip_all

try:
    import torch
    from torch import nn
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

WAYS = ("plain", "served")
WARM = 5  # steps before those that count: three are recorded, and the next ones touch the slab's pages


def usage():
    import resource
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_minflt, used.ru_maxrss * 1024


def train(options, each):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(8192, options.width),
        *(nn.TransformerEncoderLayer(options.width, options.width // 64, 4 * options.width, dropout=0.0, batch_first=True)
          for _ in range(options.layers)),
        nn.Linear(options.width, 8192))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(WARM + options.steps):
        ids = torch.randint(0, 8192, (options.batch, options.length))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        each(loss.item())


def run(options):
    """One way, in this process: prints its figures as JSON."""
    torch.set_num_threads(1)
    steps, losses, before = [], [], [usage()]

    def each(loss):
        now = usage()
        steps.append((now[0] - before[0][0], now[1] - before[0][1]))
        losses.append(loss)
        before[0] = now

    if options.way == "plain":
        train(options, each)
        answer = {}
    else:
        from bucketpool.torch import steps as served_steps
        with served_steps.serve(device="cpu") as served:
            train(options, each)
            answer = served.summary()
    seconds, faults = zip(*steps[WARM:])
    print(json.dumps({"seconds": seconds, "faults": faults, "maxrss": usage()[2], "losses": losses, "summary": answer}))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 4), ("width", 512), ("batch", 8), ("length", 192), ("steps", 8), ("repeats", 2)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options.add_argument("--json", metavar="FILE")
    options = options.parse_args()
    if options.way is not None:
        return run(options)
    report = Report(options.json, program="served_step_cpu", torch=torch.__version__)
    answers = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            done = subprocess.run([sys.executable, *sys.argv, "--way", way], stdout=subprocess.PIPE, text=True, check=True,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})
            answers[way].append(json.loads(done.stdout.splitlines()[-1]))
    times = {way: [int(1e9 * seconds) for answer in answers[way] for seconds in answer["seconds"]] for way in WAYS}
    for way in WAYS:
        faults = statistics.median(count for answer in answers[way] for count in answer["faults"])
        report.figure("processor time of a step", way, times[way], times["plain"] if way != "plain" else (), "plain",
                      page_faults=int(faults), maxrss_mib=max(answer["maxrss"] for answer in answers[way]) >> 20)
    less = 100 * (1 - statistics.median(times["served"]) / statistics.median(times["plain"]))
    summary = answers["served"][0]["summary"]
    print(f"served: {abs(less):.1f} % {'less' if less >= 0 else 'more'} processor time; {summary['last_step']['served']:,} of "
          f"{summary['last_step']['allocations']:,} allocations of a step, slab {summary['slab_bytes'] / 2**20:.1f} MiB, at least "
          f"{summary['lower_bound_bytes'] / 2**20:.1f}")
    report.check("losses", all(answer["losses"] == answers["plain"][0]["losses"] for way in WAYS for answer in answers[way]))
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
