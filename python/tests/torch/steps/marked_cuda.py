# SPDX-License-Identifier: Apache-2.0
"""Allocations of training steps on two streams of a GPU, without computations, for the emulated runtime:
marked_cuda.py STEPS [LENGTH], a factor of the activations. Steps are marked by hand. Prints what PyTorch reserved, in MiB.
"""

import sys

import torch

from bucketpool.torch import steps

MIB = 1 << 20


def memory(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def step(parameters, state, side, length):
    activations, gradients = [], []
    for _ in parameters:
        temporary = memory(10 * MIB * length)
        activations.append(memory(37 * MIB * length + 512))
        del temporary
        with torch.cuda.stream(side):
            gathered = memory(48 * MIB)
        del gathered
    while activations:
        temporary = memory(21 * MIB * length)
        gradients.append(memory(24 * MIB))
        activations.pop()
        del temporary
    if not state:
        state.extend(memory(48 * MIB) for _ in parameters)
    steps.mark()


def main():
    count, length = int(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    print("initialized", torch.cuda.is_initialized())
    parameters, state, side = [memory(24 * MIB) for _ in range(8)], [], torch.cuda.Stream()
    for _ in range(count):
        step(parameters, state, side, length)
    print("reserved", torch.cuda.max_memory_reserved() // MIB, torch.cuda.max_memory_allocated() // MIB)


if __name__ == "__main__":
    main()
