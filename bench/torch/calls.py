# SPDX-License-Identifier: Apache-2.0
"""Host time of a call from Python: log-probabilities of tiny logits, for bucketpool and plain PyTorch, on one CPU thread or a GPU.

    python3 bench/torch/calls.py                     # 8 tokens, 16 columns
    python3 bench/torch/calls.py --compiled          # also torch.compile of the same functions, backend aot_eager
    python3 bench/torch/calls.py --device cuda       # also with a wait for the GPU after each call, and replays of captured graphs

Prints medians in microseconds, and ratios to the first way (1.00; below: faster): of forward without gradients, of forward that saves
for backward, of backward. The ways run in turns in one process, in a new order each turn."""

import argparse
import contextlib
import functools
import random
import statistics
import sys
import time

import torch
from machine import machine
from report import Report, skip_all
from ways import plain

from bucketpool.errors import Error
from bucketpool.torch import logprob


def eager(logits, target):
    return plain(logits, target)


def entropy(logits, target):
    return sum(logprob.logprobs_and_entropy(logits, target))


def head(hidden, target):
    return logprob.linear_logprobs(hidden, weight_on(hidden.device), target)


@functools.lru_cache(maxsize=None)
def weight_on(device):
    return torch.randn(16, 16, device=device)


BASE = "log_softmax, gather"
WAYS = {
    BASE: eager,
    "logprobs_from_logits": logprob.logprobs_from_logits,
    "logprobs_and_entropy, sum": entropy,
    "linear_logprobs": head
}


PHASES = "no gradient", "forward", "backward"


def turn(on, function, logits, target, calls, waits):
    """Nanoseconds of a call in each phase. waits: for the GPU, after each call."""
    grad, up = logits.clone().requires_grad_(), torch.ones(target.shape, device=target.device)
    wait = on.synchronize if waits else lambda: None
    times = []

    def timed(call, arguments):
        on.synchronize()
        begin = time.perf_counter_ns()
        results = []
        for argument in arguments:
            results.append(call(argument))
            wait()
        times.append((time.perf_counter_ns() - begin) / len(results))
        return results

    timed(lambda tensor: function(tensor, target), [logits] * calls)
    outputs = timed(lambda tensor: function(tensor, target), [grad] * calls)
    timed(lambda output: torch.autograd.grad(output, grad, up), outputs)
    return times


def replays(on, function, logits, target, calls):
    """Two functions that return the nanoseconds of a replay: of a captured forward, of a captured forward with backward."""
    grad, up = logits.clone().requires_grad_(), torch.ones(target.shape, device=target.device)

    def captured(call):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            kept = call()

        def replay(kept=kept):
            begin = on.mark()
            for _ in range(calls):
                graph.replay()
            return on.nanoseconds(begin, on.mark()) / calls

        return replay

    return (captured(lambda: function(logits, target)), captured(lambda: torch.autograd.grad(function(grad, target), grad, up)))


def in_turns(ways, turns, run):
    """The results of run(name) of each turn, in a new order each turn."""
    took = {name: [] for name in ways}
    for _ in range(turns):
        for name in random.sample(list(ways), len(ways)):
            took[name].append(run(name))
    return took


def show(report, group, phases, took):
    width = max(map(len, took))
    print(f"{group}: median us of a call, and its ratio to {BASE} (below 1: faster)")
    print(" " * width, *(f"{phase:>13}   ratio" for phase in phases), sep="  ")
    base = list(zip(*took[BASE]))
    for name, times in took.items():
        cells = []
        for phase, values, to in zip(phases, zip(*times), base):
            report.figure(group, f"{name}: {phase}", values, () if name == BASE else to, BASE)
            cells.append(f"{statistics.median(values) / 1e3:13.1f}  {statistics.median(values) / statistics.median(to):6.2f}")
        print(name.ljust(width), *cells, sep="  ")


class Silent(Report):
    def figure(self, group, name, values_ns=(), baseline_ns=(), to=None, **more):
        """The figures are printed as tables."""
        with contextlib.redirect_stdout(None):
            super().figure(group, name, values_ns, baseline_ns, to, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20, help="calls in a turn")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rehearse", action="store_true", help="3 turns")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    on = machine(arguments.device)
    if on is None:
        skip_all("PyTorch finds no GPU")
    torch.set_num_threads(1)
    report = Silent(arguments.json, program="calls", **on.head())
    turns, calls = 3 if arguments.rehearse else arguments.turns, arguments.calls
    logits = torch.randn(arguments.tokens, 16, device=on.device)
    target = torch.randint(0, 16, (arguments.tokens, ), device=on.device)
    ways, group = dict(WAYS), f"calls, {arguments.tokens} x 16"
    if arguments.compiled:
        ways.update({f"compiled: {name}": torch.compile(way, backend="aot_eager") for name, way in WAYS.items()})
    for way in ways.values():
        turn(on, way, logits, target, 5, False)
    show(report, group, PHASES, in_turns(ways, turns, lambda name: turn(on, ways[name], logits, target, calls, False)))
    if on.name == "cpu":
        report.skip(f"{group}, waits and captured graphs", "calls on CPUs have ended when they return, and are not captured")
        return report.status()
    show(report, f"{group}, with waits", PHASES, in_turns(ways, turns, lambda name: turn(on, ways[name], logits, target, calls, True)))
    captured = {}
    for name, way in WAYS.items():
        try:
            captured[name] = replays(on, way, logits, target, calls)
        except (RuntimeError, Error) as error:
            report.check(f"{group}, captured: {name}", False, str(error)[:300])
    if BASE in captured:
        show(report, f"{group}, captured", ("no gradient", "with backward"),
             in_turns(captured, turns, lambda name: [replay() for replay in captured[name]]))
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
