# SPDX-License-Identifier: Apache-2.0
"""Tensors of the slab in another process, by CUDA IPC: a spawned process reads and changes them. On a CPU PyTorch moves what it shares.

usage: python3 bench/torch/steps/shared.py [--json FILE] [--device cpu --rehearse]

Exits 0, 1 (a check failed) or 77 (nothing can run here)."""

import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "..", "python")]

import torch  # noqa: E402

ELEMENTS = (300_000, 1_000_000, 700_000)  # of the tensors of a step, which live together
STEPS = 8


def pattern(number, elements, device):
    return torch.arange(elements, device=device, dtype=torch.float32) + number


def other_process(pipe):
    """Checks what it receives against the pattern, then adds 1 in place."""
    pipe.send("ready")
    for number in range(len(ELEMENTS)):
        received = pipe.recv()
        equal = torch.equal(received, pattern(number, ELEMENTS[number], received.device))
        received.add_(1)
        if received.is_cuda:
            torch.cuda.synchronize()
        pipe.send((equal, float(received.double().sum())))
        del received
    pipe.recv()


def step(device):
    tensors = [torch.empty(elements, device=device) for elements in ELEMENTS]
    for number, tensor in enumerate(tensors):
        tensor.copy_(pattern(number, len(tensor), device))
    return tensors


def main():
    from bucketpool.torch import steps
    from report import Report, skip_all
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="sizes are small already")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="steps/shared", torch=torch.__version__, rehearsed=options.rehearse)
    served = steps.serve(record=3, device=options.device)
    for _ in range(STEPS):
        step(options.device)
        steps.mark()
    tensors = step(options.device)
    status = served._main.decorator.status()
    inside = [status.slab != 0 and status.slab <= tensor.data_ptr() < status.slab + status.slab_bytes for tensor in tensors]
    report.check("the tensors are in the slab", all(inside), f"{inside}, {served.state}")
    offsets = [tensor.data_ptr() - status.slab for tensor in tensors]  # on a CPU, shared tensors move
    context = torch.multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=other_process, args=(theirs, ), daemon=True)
    process.start()
    theirs.close()
    try:
        mine.recv()
        for number, tensor in enumerate(tensors):
            mine.send(tensor)
            equal, total = mine.recv()
            if options.device == "cuda":
                torch.cuda.synchronize()
            expected = pattern(number + 1, len(tensor), options.device)
            report.check(f"tensor {number}: the other process has its content", equal, f"offset {offsets[number]} of the slab")
            report.check(f"tensor {number}: this process has what the other one wrote", torch.equal(tensor, expected) and
                         total == float(expected.double().sum()), f"sum {total}")
        mine.send("end")
        process.join(30)
    except EOFError:
        process.join(10)
        report.check("the other process lives", False, f"it ended with {process.exitcode}")
    finally:
        process.kill()
    del tensors, tensor, expected
    if options.device == "cuda":
        torch.cuda.ipc_collect()  # PyTorch keeps what it has sent until the receiver is done
    steps.mark()
    served.check()
    served.stop()
    report.check("all of the slab is free at the end", served.summary()["state"] == "stopped", served.summary()["state"])
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
