# SPDX-License-Identifier: Apache-2.0
"""Memory of a loss from hidden states on a GPU, forward and backward, by recordings on fake tensors: no GPU is needed.

    python3 bench/torch/head_memory.py                                  # 8192 x 4096 x 128256, bf16
    python3 bench/torch/head_memory.py --tokens 4096 --vocab 32000 --dtype float32

A way takes two steps, so that its workspaces stand from the first one on. BEYOND is the peak less hidden states, weight
and their gradients."""

import argparse

import torch
from torch.nn import functional
from ways import fused, kept, linear, one_call

from bucketpool.torch import trace


def cross_entropy(hidden, weight, target):
    return functional.cross_entropy(functional.linear(hidden, weight), target)


WAYS = {
    "linear, log_softmax in fp32, gather": linear,
    "linear, cross_entropy": cross_entropy,
    "linear_logprobs": fused,
    "linear_logprobs, logits kept": kept,
    "linear_cross_entropy": one_call,
}


def peak(way, tokens, width, vocab, dtype):
    """Peak bytes, and those of hidden states, weight and their gradients."""
    with trace.record(device="cuda") as recorded:
        hidden, weight = (torch.empty(rows, width, dtype=dtype, device="cuda", requires_grad=True) for rows in (tokens, vocab))
        target = torch.zeros(tokens, dtype=torch.int64, device="cuda")
        for _ in range(2):
            hidden.grad = weight.grad = None
            way(hidden, weight, target).sum().backward()
    return recorded.peak_bytes, 2 * (hidden.nbytes + weight.nbytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    arguments = parser.parse_args()
    width = max(map(len, WAYS))
    print(f"{arguments.tokens} x {arguments.hidden} x {arguments.vocab} {arguments.dtype}, GiB".ljust(width), "  PEAK  BEYOND")
    for name, way in WAYS.items():
        found, needed = peak(way, arguments.tokens, arguments.hidden, arguments.vocab, getattr(torch, arguments.dtype))
        print(f"{name:{width}}  {found / 2**30:6.2f}{(found - needed) / 2**30:8.2f}", flush=True)


if __name__ == "__main__":
    main()
