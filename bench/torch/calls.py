# SPDX-License-Identifier: Apache-2.0
"""Cost of a call from Python: log-probabilities of tiny logits on one CPU thread, for bucketpool and plain PyTorch.

    python3 bench/torch/calls.py                     # 8 tokens, 16 columns
    python3 bench/torch/calls.py --compiled          # also torch.compile of the same functions, backend aot_eager

Prints medians in microseconds: of forward without gradients, of forward that saves for backward, of backward. The ways
run in turns in one process, in a new order each turn."""

import argparse
import random
import statistics
import time

import torch
from ways import plain

from bucketpool.torch import logprob


def eager(logits, target):
    return plain(logits, target)


def entropy(logits, target):
    return sum(logprob.logprobs_and_entropy(logits, target))


def head(hidden, target):
    return logprob.linear_logprobs(hidden, WEIGHT, target)


WEIGHT = torch.randn(16, 16)
WAYS = {
    "log_softmax, gather": eager,
    "logprobs_from_logits": logprob.logprobs_from_logits,
    "logprobs_and_entropy, sum": entropy,
    "linear_logprobs": head
}


def turn(function, logits, target, calls):
    """Microseconds of a call: forward alone, forward that saves, backward."""
    grad, up = logits.clone().requires_grad_(), torch.ones(target.shape)
    begin = time.perf_counter()
    for _ in range(calls):
        function(logits, target)
    alone = time.perf_counter()
    outputs = [function(grad, target) for _ in range(calls)]
    saved = time.perf_counter()
    for output in outputs:
        torch.autograd.grad(output, grad, up)
    end = time.perf_counter()
    return [1e6 * seconds / calls for seconds in (alone - begin, saved - alone, end - saved)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20, help="calls in a turn")
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logits, target = torch.randn(arguments.tokens, 16), torch.randint(0, 16, (arguments.tokens, ))
    ways = dict(WAYS)
    if arguments.compiled:
        ways.update({f"compiled: {name}": torch.compile(way, backend="aot_eager") for name, way in WAYS.items()})
    for way in ways.values():
        turn(way, logits, target, 5)
    took = {name: [] for name in ways}
    for _ in range(arguments.turns):
        for name in random.sample(list(ways), len(ways)):
            took[name].append(turn(ways[name], logits, target, arguments.calls))
    width = max(map(len, ways))
    print(f"{arguments.tokens} x 16, us a call".ljust(width), "no gradient", "forward", "backward", sep="  ")
    for name, times in took.items():
        medians = [statistics.median(column) for column in zip(*times)]
        print(name.ljust(width), *(f"{value:{size}.1f}" for value, size in zip(medians, (11, 7, 8))), sep="  ")


if __name__ == "__main__":
    main()
