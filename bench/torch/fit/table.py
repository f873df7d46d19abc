# SPDX-License-Identifier: Apache-2.0
"""The largest micro-batches of bundled models on two GPUs, for the table of docs/guides/fit.md.

    BUCKETPOOL_BUILD=build python3 bench/torch/fit/table.py [--model NAME]... [--gpu NAME]... [--sequence N]... [--json FILE]

A row is printed when it is found: minutes for all. Without a GPU. Exits 77 without PyTorch, transformers or the command."""

import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(ROOT, "python")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

MODELS = {  # ranks of FSDP2; 1: one GPU
    "Qwen3-0.6B": 1, "Qwen2.5-7B": 8, "Mistral-7B-v0.1": 8, "Llama-3.1-8B": 8, "Qwen3-8B": 8, "Gemma-3-27B": 32,
    "Qwen3-30B-A3B": 32, "Mixtral-8x7B": 64, "Llama-3.1-70B": 64, "Granite-4.0-H-Tiny": 8}
ALLOCATORS = ("default", "expandable", "served")


def searched(name, ranks, sequence, checkpointing, gpus):
    """Of each GPU: the limit, and the largest micro-batch with each allocator. What one has traced serves the next."""
    from bucketpool.torch.fitting import cores
    from bucketpool.torch.fitting.gpus import find
    from bucketpool.torch.fitting.jobs import Jobs
    from bucketpool.torch.fitting.measured import Program
    from bucketpool.torch.fitting.search import Table
    from bucketpool.torch.fitting.training import Training

    training = Training({"model": os.path.join(ROOT, "examples", "models", name, "config.json"), "dp": ranks, "sequence": sequence,
                         "checkpointing": checkpointing})
    jobs, found, traced = Jobs(cores()), {}, {}
    for each in gpus:
        gpu = find(each, None, None, ranks)
        table = Table(jobs, Program(training, gpu.capability, checkpointing), gpu.limit_bytes, traced)
        jobs.run([table.search()])
        traced.update(table.traced)
        rows = {batch: amounts.worst._asdict() for batch, amounts in sorted(table.rows.items())}
        found[each] = {"limit_bytes": gpu.limit_bytes, "largest": dict(table.largest), "without_retries": dict(table.smooth), "scaled": table.is_scaled, "rows": rows}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--gpu", action="append", help="(default h100 and h200)")
    parser.add_argument("--sequence", action="append", type=int, help="tokens (default 4096 and 16384)")
    parser.add_argument("--checkpointing", default="full", choices=("none", "full"))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if "BUCKETPOOL_BUILD" in os.environ:
        os.environ["BUCKETPOOL_COMMAND"] = os.path.join(os.environ["BUCKETPOOL_BUILD"], "tools", "bucketpool")
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    gpus, document = options.gpu or ["h100", "h200"], []
    print("| model, ranks | tokens | " + " | ".join(f"{gpu}: {', '.join(ALLOCATORS)}" for gpu in gpus) + " | seconds |")
    print("|---|---|" + "---|" * len(gpus) + "---|", flush=True)
    for name in options.model or MODELS:
        for sequence in options.sequence or [4096, 16384]:
            begin = time.monotonic()
            found = searched(name, MODELS[name], sequence, options.checkpointing, gpus)
            seconds = time.monotonic() - begin
            document.append({"model": name, "ranks": MODELS[name], "sequence": sequence, "checkpointing": options.checkpointing,
                             "seconds": round(seconds, 1), "gpus": found})
            cells = [", ".join(str(found[gpu]["largest"][each]) for each in ALLOCATORS) for gpu in gpus]
            print(f"| {name}, {MODELS[name]} | {sequence:,} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(document, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
