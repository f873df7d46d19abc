# SPDX-License-Identifier: Apache-2.0
"""Trainings at the edge of a memory limit, and what `fit` says of them: the largest micro-batch that runs, without a GPU.

usage: python3 bench/torch/fit/edges.py --predictions FILE [--case NAME]... [--json FILE] [--device cpu --rehearse]

edge.py runs them on a GPU. FILE also has versions and options, so that predictions can be made on another machine. Needs the command bucketpool
(BUCKETPOOL_BUILD). Exits 77 without PyTorch, transformers or the command."""

import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(ROOT, "python")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")

ALLOCATORS = ("default", "expandable")
LIMIT = 16 << 30
CASES = {  # options of `bucketpool fit`; a micro-batch more is 3 to 6 % of the memory
    "dense": {"model": "Qwen3-0.6B", "sequence": 128},
    "fsdp2": {"model": "Llama-3.1-8B", "layers": 8, "dp": 8, "sequence": 512, "checkpointing": "full"},
    "logprobs": {"model": "Qwen3-0.6B", "layers": 14, "sequence": 512, "weights": "bf16", "loss": "logprobs"},
    "experts": {"model": "Qwen3-30B-A3B", "layers": 2, "dp": 8, "sequence": 512},
    "checkpointing": {"model": "Qwen3-0.6B", "sequence": 512, "checkpointing": "full"},
    "client": {"model": "Qwen3-0.6B", "layers": 14, "sequence": 1024, "weights": "bf16", "loss": "bucketpool"},
}
TOY = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 2048, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
       "num_hidden_layers": 2, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
TOY_SEQUENCE, TOY_LIMIT = 64, 10 << 20


def options_of(case, rehearse, folder):
    """Options of Training. A rehearsal's config.json is written to the folder."""
    options = dict(CASES[case])
    path = os.path.join(ROOT, "examples", "models", options["model"], "config.json")
    if rehearse:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        path = os.path.join(folder, f"{case}-config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**fields, **{name: value for name, value in TOY.items() if name in fields}}, file)
        options |= {"sequence": TOY_SEQUENCE}
        options.pop("layers", None)
    return {**options, "model": path}


def training_of(options, device):
    from bucketpool.torch.fitting.training import Training
    training = Training(options)
    training.device = device
    return training


def predicted(table, rehearse):
    """Of each allocator: the largest micro-batch, and figures of it and of the next. A rehearsal limits the live bytes, as a CPU has no
    allocator with segments."""
    found = {}
    for name in ALLOCATORS:
        largest = table.largest["served" if rehearse else name]
        rows = {batch: table.rows[batch].worst for batch in (largest, largest + 1) if batch in table.rows}
        found[name] = {"largest": largest, "rows": {str(batch): {"reserved_bytes": getattr(row, name), "peak_bytes": row.peak,
                                                                 "retries": getattr(row, f"{name}_retries")} for batch, row in rows.items()}}
    return found


def versions():
    import torch
    import transformers
    return {"torch": torch.__version__, "transformers": transformers.__version__, "python": ".".join(map(str, sys.version_info[:2]))}


def read(path, case, rehearse):
    """The limit and what fit says of a case; raises KeyError where the file was made for other options."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    found = document["cases"][case]
    if found["options"] != CASES[case] or document["rehearsed"] != rehearse:
        raise KeyError(f"{path}: predictions of {case} are of other options; make them again")
    return document, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predictions", required=True, metavar="FILE")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # recordings use none, and a process with a context cannot be forked
    if "BUCKETPOOL_BUILD" in os.environ:
        os.environ["BUCKETPOOL_COMMAND"] = os.path.join(os.environ["BUCKETPOOL_BUILD"], "tools", "bucketpool")
    from report import Report, skip_all
    try:
        import torch
        import transformers
    except ImportError as error:
        skip_all(f"skipped: {error}")
    from bucketpool.torch.fitting.jobs import Jobs
    from bucketpool.torch.fitting.measured import Program, command
    from bucketpool.torch.fitting.search import Table
    if not os.path.exists(command()):
        skip_all(f"{command()}: missing, and fit needs it")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    limit = TOY_LIMIT if options.rehearse else LIMIT
    document = {"limit_bytes": limit, "rehearsed": options.rehearse, "versions": versions(), "cases": {}}
    report = Report(options.json, program="fit/edges", rehearsed=options.rehearse, limit_bytes=limit, versions=versions())
    jobs, folder, begin = Jobs(len(os.sched_getaffinity(0))), os.path.dirname(os.path.abspath(options.predictions)), time.monotonic()
    tables = {case: Table(jobs, Program(training_of(options_of(case, options.rehearse, folder), options.device), name=f"of {case}"), limit)
              for case in options.case or CASES}
    jobs.run([table.search() for table in tables.values()])
    for case, table in tables.items():
        found = predicted(table, options.rehearse)
        document["cases"][case] = {"options": CASES[case], "allocators": found}
        for name, each in found.items():
            row = each["rows"].get(str(each["largest"]), {})
            report.figure(f"fit: {case}, predicted", name, fit_largest=each["largest"], fit_reserved_bytes=row.get("reserved_bytes"),
                          fit_peak_bytes=row.get("peak_bytes"), fit_retries=row.get("retries"))
        report.check(f"{case}: a micro-batch fits", all(each["largest"] for each in found.values()), str({name: each["largest"] for name, each in found.items()}))
    with open(options.predictions, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    print(f"{len(tables)} trainings, {time.monotonic() - begin:.0f} s")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
