# SPDX-License-Identifier: Apache-2.0
"""A policy-gradient step on bucketpool's log-probabilities, with the vocabulary shared out over the processes. Copy
from it.

    python3 examples/rl_logprob.py                                  one process has the whole vocabulary
    torchrun --nproc-per-node 2 examples/rl_logprob.py              two, each with its part of the head's weight
    torchrun --nproc-per-node 2 examples/rl_logprob.py --fused      without ever storing logits

The losses are the same to the digits that are printed, however many processes there are. Needs PyTorch and the
bucketpool package."""

import argparse
import os

import torch
import torch.distributed as dist

from bucketpool.torch.logprob import linear_logprobs_and_entropy, logprobs_and_entropy

VOCABULARY, HIDDEN, BATCH, SEQUENCE = 1000, 64, 4, 48


def parts(ranks: int) -> list:
    """First vocabulary id of each rank, and the end; shards may be uneven."""
    return [VOCABULARY * rank // ranks for rank in range(ranks + 1)]


class Policy(torch.nn.Module):
    """Embeddings and a layer, the same on all ranks, and this rank's rows of the head's weight."""
    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, HIDDEN, generator=generator))
        self.layer = torch.nn.Parameter(torch.randn(HIDDEN, HIDDEN, generator=generator) / HIDDEN**0.5)
        self.head = torch.nn.Parameter(torch.randn(VOCABULARY, HIDDEN, generator=generator)[first:end] / HIDDEN**0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.embedding[ids] @ self.layer)


class Reduced(torch.autograd.Function):
    """The same forward; backward sums over the ranks: each has the gradient of its part of the logits alone."""
    @staticmethod
    def forward(ctx, hidden, group):
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if ctx.group is not None:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


def scores(policy: Policy, ids: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor, group, fused: bool):
    """Log-probabilities of the next tokens and entropies: [batch, sequence] each."""
    hidden = policy(ids)
    if fused:  # the library sums the gradient of `hidden` over the ranks
        return linear_logprobs_and_entropy(hidden, policy.head, targets, group=group, mask=mask, chunk_size=16)
    logits = Reduced.apply(hidden, group) @ policy.head.t()
    return logprobs_and_entropy(logits, targets, group=group, mask=mask, in_place=True)  # nobody else needs the logits


def loss_of(lp: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, entropy: torch.Tensor, mask: torch.Tensor):
    ratio = torch.exp(lp - old)
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return -((gain + 0.01 * entropy) * mask).sum() / mask.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--fused", action="store_true", help="hidden states and weight instead of logits")
    arguments = parser.parse_args()
    group = None
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        group = dist.group.WORLD
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if group is not None else (0, 1)
    policy = Policy(parts(ranks)[rank], parts(ranks)[rank + 1])
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.3)

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    targets = ids.roll(-1, dims=1)  # each row's next tokens; the last place has none
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.bool)
    mask[:, -1] = False
    advantage = torch.randn(BATCH, 1, generator=generator).expand(-1, SEQUENCE)
    with torch.no_grad():
        old, _ = scores(policy, ids, targets, mask, group, arguments.fused)
    for step in range(arguments.steps):
        optimizer.zero_grad()
        lp, entropy = scores(policy, ids, targets, mask, group, arguments.fused)
        loss = loss_of(lp, old, advantage, entropy, mask)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f} entropy {(entropy.sum() / mask.sum()).item():.5f}", flush=True)
    if group is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
