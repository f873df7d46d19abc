# SPDX-License-Identifier: Apache-2.0
"""Captures while steps are served: a part of the step as CUDA graphs, and torch.compile(mode="reduce-overhead"). Losses are those of the same
program without serving, bit for bit; memory of a capture is PyTorch's.

usage: python3 bench/torch/steps/captured.py [--seconds N] [--json FILE] [--device cpu --rehearse]

Without a GPU nothing is captured: the same steps run eagerly. Exits 0, 1 (a check failed) or 77 (nothing can run here)."""

import argparse
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "fsdp2"), os.path.dirname(HERE), os.path.join(HERE, "..", "..", "..", "python")]

STEPS, SERVED_FROM = 20, 9  # graphs are captured when steps are served
WIDTH, BATCH = (1024, 8192), (64, 64)  # on a GPU, in a rehearsal


class Model:
    """Blocks of a perceptron; the middle one is captured or compiled."""

    def __init__(self, options, is_compiled):
        import torch
        width, self.batch = (BATCH if options.rehearse else WIDTH)
        torch.manual_seed(0)
        self.device, self.width = torch.device(options.device), width

        def block():
            return torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)).to(self.device)

        self.first, self.middle, self.last = block(), block(), block()
        self.parameters = [parameter for each in (self.first, self.middle, self.last) for parameter in each.parameters()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4)
        if is_compiled:
            # A rehearsal has no CUDA graphs, and its compiler is the fast one.
            self.middle = torch.compile(self.middle, **({"backend": "aot_eager"} if options.rehearse else {"mode": "reduce-overhead"}))

    def capture(self):
        """From now on the middle block runs as two graphs, forward and backward."""
        import torch
        if self.device.type == "cuda":
            self.middle = torch.cuda.make_graphed_callables(self.middle, (self.input().requires_grad_(), ))

    def input(self, number=0):
        import torch
        return torch.randn(self.batch, self.width, generator=torch.Generator().manual_seed(number)).to(self.device)

    def step(self, number):
        loss = self.last(self.middle(self.first(self.input(number)))).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # gradients of graphs have fixed addresses
        return loss.item().hex()

    def graph(self, holds):
        """A graph without gradients: replayed on other contents of its input. Returns what is wrong."""
        import torch
        with torch.no_grad():
            given = self.input(1)
            expected = [self.last(self.input(number)) for number in (1, 2)]
            if self.device.type != "cuda":
                return []
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                middle = given * 2
                result = self.last(middle / 2)
            wrong = [f"captured memory of {tensor.numel()} elements is in the slab" for tensor in (middle, result) if holds(tensor.data_ptr())]
            for number, other in zip((1, 2), expected):
                given.copy_(self.input(number))
                graph.replay()
                torch.cuda.synchronize()
                wrong += [] if torch.equal(result, other) else [f"replay {number} differs from the eager result"]
            return wrong


def run(options, is_compiled, is_served):
    """A training. Returns its losses, what is wrong with captured memory, and what was served."""
    import torch

    from bucketpool.torch import steps
    torch.set_num_threads(1)
    served = steps.serve(record=3, device=options.device) if is_served else None
    model, losses, wrong = Model(options, is_compiled), [], []

    def holds(address):
        if served is None:
            return False
        status = served._main.decorator.status()
        return status.slab != 0 and status.slab <= address < status.slab + status.slab_bytes

    for number in range(STEPS):
        if number == SERVED_FROM and not is_compiled:
            model.capture()
            wrong += model.graph(holds)
        losses.append(model.step(number))
    answer = {}
    if served is not None:
        served.check()
        state = served.state
        served.stop()
        answer = served.summary() | {"state_at_end": state}
    return {"losses": losses, "wrong": wrong, "summary": answer}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    os.environ.update(PYTORCH_NVML_BASED_CUDA_CHECK="1", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", TORCHINDUCTOR_COMPILE_THREADS="1",
                      CUBLAS_WORKSPACE_CONFIG=":4096:8")
    import torch
    import torch._dynamo  # noqa: F401: imported once, before processes are forked

    from attempt import attempt, gpu_is_there
    from bucketpool.torch import steps  # noqa: F401
    from report import Report, skip_all

    if options.device == "cuda" and not gpu_is_there():
        skip_all("PyTorch finds no GPU")
    report = Report(options.json, program="steps/captured", torch=torch.__version__, cuda=torch.version.cuda, rehearsed=options.rehearse)
    for name, is_compiled in (("CUDA graphs", False), ("reduce-overhead", True)):
        found = {}
        for is_served in (False, True):
            error, result, took = attempt(run, options, is_compiled, is_served, seconds=max(1, end - time.monotonic()))
            if error is not None:
                print(result)
                report.check(f"{name}, {'served' if is_served else 'plain'}: trains", False, error[:400])
                break
            found[is_served] = result
        if len(found) < 2:
            continue
        served, summary = found[True], found[True]["summary"]
        report.figure("steps: captures", name, served=summary["served"], allocations=summary["allocations"], last_step=summary["last_step"],
                      served_steps=summary["steps"], unordered=summary["unordered"], because=summary["because"], seconds=round(took, 1),
                      slab_bytes=summary["slab_bytes"], reserved_peak_bytes=summary["reserved_peak_bytes"])
        report.check(f"{name}: losses, bit for bit", served["losses"] == found[False]["losses"], f"{served['losses'][-1]}, {found[False]['losses'][-1]}")
        report.check(f"{name}: captured memory and replays", not served["wrong"] + found[False]["wrong"], "; ".join(served["wrong"] + found[False]["wrong"]))
        report.check(f"{name}: steps are served", summary["served"] > 0, f"{summary['served']:,} of {summary['allocations']:,}; {summary['because']}")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
