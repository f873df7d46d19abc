# SPDX-License-Identifier: Apache-2.0
"""Records the memory of three training steps without a GPU, for `bucketpool view` and pytorch.org/memory_viz:

    python3 examples/trace_step.py dense --output dense.pickle
    python3 examples/trace_step.py --list

Configurations are those of examples/models, and weights take no memory. Needs PyTorch, transformers and the bucketpool
package."""

import argparse
import collections
import os
import time
from dataclasses import dataclass

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from bucketpool.torch import trace
from bucketpool.torch.fitting.training import Training

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")


@dataclass
class Case:
    """A training: the model, tokens of a microbatch, and how memory is saved. ranks > 1: FSDP2 with that many."""

    model: str
    sequence: int = 8192
    batch: int = 1
    ranks: int = 1
    reshard: bool = True
    checkpoint: bool = True
    microbatches: int = 1
    weights: str = "fp32"  # of one GPU: with autocast to bf16. FSDP2: fp32 shards, bf16 gathered
    loss: str = "labels"  # "logprobs": a policy-gradient step with a reference model's pass
    layers: int = 0  # 0: all


CASES = {
    "dense": Case("Llama-3.1-8B", weights="bf16"),
    "dense-small": Case("Qwen3-0.6B", sequence=4096, checkpoint=False),
    "dense-accumulated": Case("Gemma-3-1B-it", sequence=4096, microbatches=4, weights="bf16"),
    "dense-fsdp": Case("Llama-3.1-8B", ranks=8),
    "dense-fsdp-kept": Case("Llama-3.1-8B", ranks=8, reshard=False),
    "dense-fsdp-70b": Case("Llama-3.1-70B", ranks=64),
    "experts": Case("Qwen3-30B-A3B", sequence=4096, layers=8, weights="bf16"),
    "experts-fsdp": Case("Qwen3-30B-A3B", sequence=4096, ranks=64),
    "hybrid-fsdp": Case("Granite-4.0-H-Tiny", sequence=4096, ranks=8),
    "rl": Case("Qwen2.5-7B", sequence=4096, loss="logprobs", weights="bf16"),
}


def record(case, steps=3):
    training = Training({
        "model": os.path.join(MODELS, case.model), "dp": case.ranks, "sequence": case.sequence, "layers": case.layers,
        "reshard": case.reshard, "checkpointing": "full" if case.checkpoint else "none", "weights": case.weights,
        "loss": case.loss})
    if case.ranks > 1:
        dist.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    try:
        with trace.record(device="cuda") as recorded:
            built = training.build()
            if case.loss == "logprobs":
                built.reference = training.model()
            for _ in range(steps):  # the first makes the optimizer's state
                recorded.step()
                for _ in range(case.microbatches):
                    training.forward_backward(built, case.batch)
                training.update(built)
        return recorded
    finally:
        if case.ranks > 1:
            dist.destroy_process_group()


def report(recorded, seconds):
    print(f"peak {recorded.peak_bytes / 2**30:.3f} GiB ({recorded.peak_rounded_bytes / 2**30:.3f} GiB rounded), "
          f"{recorded.live_bytes / 2**30:.3f} GiB after the last step, {recorded.event_count} events, {seconds:.0f} s")
    largest = collections.Counter()
    for allocation in recorded.peak():
        largest[allocation.phase or "outside", allocation.op] += allocation.bytes
    for (phase, op), size in largest.most_common(8):
        print(f"{size / 2**30:8.3f} GiB  {phase:9}  {op}")
    for note in recorded.notes:
        print(f"note: {note}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--output", metavar="FILE", help="write the snapshot")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sequence", type=int, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, help="layers of the model; all of them without it")
    options = parser.parse_args()
    if options.list or options.case is None:
        for name, case in CASES.items():
            print(f"{name:18} {case}")
        return
    case = CASES[options.case]
    case.sequence, case.layers = options.sequence or case.sequence, options.layers or case.layers
    begin = time.monotonic()
    recorded = record(case, options.steps)
    report(recorded, time.monotonic() - begin)
    if options.output:
        recorded.write(options.output)


if __name__ == "__main__":
    main()
