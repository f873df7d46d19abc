# SPDX-License-Identifier: Apache-2.0
"""Two processes that share one GPU and communicate with NCCL through sockets run the training of examples/fsdp2_train.py: plain, with a pool, and
with the pool registered with NCCL. Losses are compared bit for bit.

usage: python3 bench/torch/fsdp2/ranks.py [--policy NAME] [--seconds N] [--json FILE] [--device cpu --rehearse]

On a CPU the processes use gloo, and registration is skipped with gloo's reason. One GPU does not show whether registration saves
copies. Exits 0, 1 (a check failed, or a rank did not end) or 77 (nothing can run here)."""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.dirname(HERE), os.path.join(ROOT, "python"), os.path.join(ROOT, "examples")]
RANKS = 2

from attempt import end_with_parent  # noqa: E402
from report import Report, skip_all  # noqa: E402


def add_hidden(parser):
    """Options of the processes that a program starts by run_ranks()."""
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)


def options_of():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("--json")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="small sizes")
    parser.add_argument("--policy", choices=["scheduled", "max"], default="scheduled")
    parser.add_argument("--seconds", type=float, default=50, help="time for the ranks")
    for name, text in (("steps", "5"), ("layers", "6; 3 with --rehearse"), ("width", "1024; 16 with --rehearse"),
                       ("words", "4096; 64 with --rehearse")):
        parser.add_argument(f"--{name}", type=int, help=text)
    add_hidden(parser)
    options = parser.parse_args()
    small = options.rehearse
    for name, value in (("steps", 5), ("layers", 3 if small else 6), ("width", 16 if small else 1024), ("words", 64 if small else 4096)):
        setattr(options, name, getattr(options, name) or value)
    return options


def rank_main(options):
    """One rank. Writes each phase into its file, so that the parent can name the phase of a hang."""
    end_with_parent()
    report = Report(os.path.join(options.folder, f"rank{options.rank}.json"), phases=[], losses={})

    def phase(name):
        report.document["phases"].append(name)
        report.write()

    phase("importing PyTorch")
    import torch
    import torch.distributed as dist

    import fsdp2_train as example
    from bucketpool.errors import Error
    from bucketpool.torch import fsdp2

    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    backend, device, environment = example.placement(options.rank, RANKS, gpus)
    example.prepare(device, environment)
    report.document |= {"backend": backend, "device": str(device), "environment": environment}
    phase(f"making the process group of {backend}")
    dist.init_process_group(backend, init_method="file://" + os.path.join(options.folder, "store"), rank=options.rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=options.seconds))

    def train(trainer, steps, name):
        phase(name)
        begin = time.perf_counter()
        trainer.steps(steps)  # reads every loss, which waits for every step
        report.document["losses"].setdefault(name.split()[0].rstrip(":"), []).extend(loss.hex() for loss in trainer.losses[-steps:])
        report.document.setdefault("seconds", {})[name] = round(time.perf_counter() - begin, 3)

    plain, pooled = example.Trainer(options, device), example.Trainer(options, device)
    train(plain, options.steps, "plain steps")
    with fsdp2.record(pooled.model) as recording:
        train(pooled, 1, "pool: the recorded step")
    phase("attaching")
    attached = fsdp2.attach(pooled.model, recording, policy=options.policy)
    train(pooled, 1, "pool: a step")
    phase("registering")
    try:
        report.document["registration"] = attached.register().report()
    except Error as error:
        report.document["no_registration"] = f"{type(error).__name__}: {error}"
    train(pooled, options.steps - 2, "pool: steps after the registration")
    report.document |= {"attached": attached.report().splitlines(), "served": attached.served, "plain_peak_bytes": recording.joint_peak_bytes,
                        "plan_bytes": attached.plan.bytes}
    phase("detaching")
    attached.detach()
    phase("destroying the process group")
    dist.destroy_process_group()
    phase("done")


def read(folder, rank):
    """The file of a rank, complete or not; `log`: the tail of its output."""
    found = {"phases": ["starting"], "losses": {}}
    try:
        with open(os.path.join(folder, f"rank{rank}.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        pass
    with open(os.path.join(folder, f"rank{rank}.log"), encoding="utf-8", errors="replace") as file:
        found["log"] = file.read()[-3000:]
    return found


def run_ranks(folder, seconds, report, *more):
    """Runs the program again as each rank, with more options. Exit status of each; None: killed after `seconds`. The report follows the ranks'
    files."""
    processes = []
    for rank in range(RANKS):
        command = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:], *more, "--rank", str(rank), "--folder", folder]
        with open(os.path.join(folder, f"rank{rank}.log"), "wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env={"NCCL_DEBUG": "WARN", **os.environ}))
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):  # the other rank would wait forever
            until = min(until, time.monotonic() + 10)
        time.sleep(0.5)
        report.document["ranks"] = [read(folder, rank) for rank in range(RANKS)]
        report.write()
    statuses = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return statuses


def check_ranks(report, options, statuses, ranks):
    for rank, (status, found) in enumerate(zip(statuses, ranks)):
        log = found["log"].strip().splitlines()
        where = f"in phase {found['phases'][-1]!r}" + (f": {log[-1]}" if log and status != 0 else "")
        said = f"killed after {options.seconds:.0f} s {where}" if status is None else f"exit status {status} {where}"
        report.check(f"rank {rank} ends", status == 0, said)
        losses = found["losses"]
        plain, pooled = losses.get("plain", []), losses.get("pool", [])
        report.check(f"rank {rank}: losses with the pool are the plain ones, bit for bit", pooled != [] and plain[:len(pooled)] == pooled,
                     f"{len(pooled)} of {options.steps} steps" if plain[:len(pooled)] == pooled else f"{plain} and {pooled}")
        if "served" in found:
            report.check(f"rank {rank}: the pool served buffers", min(found["served"].values()) > 0, str(found["served"]))
    first = ranks[0]
    if first.get("backend") == "nccl":
        report.check("the pool is registered with NCCL", all("registration" in each for each in ranks),
                     str([each.get("registration", each.get("no_registration", "not reached")) for each in ranks]))
    else:
        report.skip("registration with NCCL", first.get("no_registration", "not reached"))
    report.figure("fsdp2: two ranks on one device", options.policy, ranks=RANKS, **{name: first.get(name) for name in (
        "backend", "device", "seconds", "registration", "plain_peak_bytes", "plan_bytes", "attached")}, losses=first["losses"])


def main():
    options = options_of()
    if options.rank is not None:
        return rank_main(options)
    if options.device == "cuda":
        there = "import sys, torch; sys.exit(not torch.cuda.is_available())"
        if subprocess.run([sys.executable, "-c", there], capture_output=True).returncode != 0:
            skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="fsdp2/ranks", settings={name: getattr(options, name) for name in (
        "policy", "steps", "layers", "width", "words", "device", "rehearse")})
    with tempfile.TemporaryDirectory() as folder:
        statuses = run_ranks(folder, options.seconds, report)
        report.document["ranks"] = [read(folder, rank) for rank in range(RANKS)]
    check_ranks(report, options, statuses, report.document["ranks"])
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
