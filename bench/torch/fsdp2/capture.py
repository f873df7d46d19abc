# SPDX-License-Identifier: Apache-2.0
"""Forward and backward of FSDP2 with a pool as one CUDA graph: losses, gradients and parameters of replays bit for bit those of eager steps, and
the time of both.

usage: python3 bench/torch/fsdp2/capture.py [--variant scheduled] [--modes global,thread_local,relaxed] [--seconds N] [--json FILE]
       [--device cpu --rehearse]

The optimizer runs eagerly between replays. Modes are those of torch.cuda.graph's capture_error_mode, each tried in a process, up to the first
that works; where none does, plain FSDP2 is captured as a control. On a CPU, with --rehearse, a replay runs the step again. Exits 0, 1 (a check
failed) or 77 (nothing can run here)."""

import hashlib
import sys
import time

import options as settings

SIZES = (("repeats", 3, 1), ("sequence", 2048, 64), ("batch", 1, 2), ("steps", 10, 4))  # small, so that launch overhead is visible


def digest(tensors):
    """A digest of the bytes of all tensors, in order."""
    import torch

    made = hashlib.sha256()
    for tensor in tensors:
        made.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    return made.hexdigest()


def trained(options, mode):
    """Losses, digests and times of a training, eager (mode None) or with a captured step after its warm-up."""
    import device as devices
    from training import Training

    device = devices.of(options.device)
    with device.side_stream():
        training, losses, times, latest, capture = Training(options, device), [], [], {}, None
        static = training.tokens(0).clone()

        def step():
            training.optimizer.zero_grad()  # gradients are allocated in the graph's memory pool
            latest["loss"] = training.backward(static)

        run = step
        for number in range(options.steps):
            static.copy_(training.tokens(number))
            if number == options.warmup and mode is not None:
                training.optimizer.zero_grad()
                begin = time.perf_counter()
                capture, run = device.capture(training, step, mode)
                captured_s = time.perf_counter() - begin
            device.synchronize()
            begin = time.perf_counter_ns()
            run()
            device.synchronize()
            if number > options.warmup:
                times.append(time.perf_counter_ns() - begin)
            losses.append(latest["loss"].item().hex())
            training.optimizer.step()
        parameters = [parameter.to_local() for parameter in training.model.parameters()]
        gradients = [parameter.grad.to_local() for parameter in training.model.parameters()]
        found = {"losses": losses, "ns": times, "gradients": digest(gradients), "parameters": digest(parameters), **device.counters()}
        if mode is not None:
            found |= {"capture_s": round(captured_s, 2), "used_bytes": device.used_bytes(), **training.described()}
        if capture is not None:
            summary = capture.summary
            found |= {"acquires_inside": summary.acquires, "releases_inside": summary.releases, "launches": summary.launches}
    return found


def compare(report, eager, graph, options):
    """Figures and checks of two trainings."""
    base = eager["ns"]
    report.figure("fsdp2: forward and backward", "eager", base, losses=eager["losses"])
    report.figure("fsdp2: forward and backward", "captured and replayed", graph["ns"], base, "eager",
                  **{name: value for name, value in graph.items() if name != "ns"})
    for what in ("losses", "gradients", "parameters"):
        report.check(f"{what} of replays are those of eager steps, bit for bit", eager[what] == graph[what],
                     "" if eager[what] == graph[what] else f"{eager[what]} and {graph[what]}")
    if options.device == "cuda":
        report.check("the capture releases all that it acquires", graph["acquires_inside"] == graph["releases_inside"] > 0,
                     f"{graph['acquires_inside']} and {graph['releases_inside']}")
        report.check("the pool counts every replay", graph["launches"] == options.steps - options.warmup, str(graph["launches"]))


def main():
    parser = settings.parser(__doc__.split("\n\n", maxsplit=1)[0].replace("\n", " "))
    parser.add_argument("--modes", default="global,thread_local,relaxed")
    parser.add_argument("--seconds", type=float, default=90, help="time for all processes")
    parser.set_defaults(variant="scheduled")
    options = settings.complete(parser.parse_args(), SIZES)
    settings.needs_timed_steps(options)
    begin = time.monotonic()
    import torch

    import training  # noqa: F401: imported once, before processes are forked
    from attempt import attempt, gpu_is_there
    from report import Report, skip_all

    if settings.VARIANTS[options.variant][1] is None:
        parser.error(f"--variant {options.variant} has no pool: expected scheduled, max or scheduled_expandable_segments")
    if options.device == "cpu" and not options.rehearse:
        skip_all("a captured step: CPUs have no graphs; --rehearse runs all but the graph")
    if options.device == "cuda" and not gpu_is_there():
        skip_all("a captured step: PyTorch finds no GPU")
    report = Report(options.json, program="fsdp2/capture", torch=torch.__version__, cuda=torch.version.cuda, **settings.described(options),
                    tries=[])

    def run(mode):
        error, result, took = attempt(trained, options, mode, seconds=options.seconds - (time.monotonic() - begin))
        report.document["tries"].append({"mode": mode, "seconds": round(took, 2), "error": error, "traceback": result if error else None})
        report.write()
        if error:
            print(f"{mode or 'eager'}: {error}\n{result or ''}", flush=True)
        return error, result

    error, eager = run(None)
    report.check("eager steps on a side stream", error is None, error or "")
    if error is None:
        for mode in options.modes.split(","):
            error, graph = run(mode)
            if error is None:
                compare(report, eager, graph, options)
                break
            report.skip(f"a capture with capture_error_mode={mode}", error[:300])
        report.check("a step is captured", error is None, error or "")
        if error is not None:  # control: FSDP2 without a pool
            options.variant = "plain"
            error, _ = run(options.modes.split(",")[-1])
            report.figure("fsdp2: control", "plain FSDP2 captured, without a pool", captured=error is None, said=error)
    if options.device == "cpu":
        report.skip("a CUDA graph", "CPUs have no graphs: a replay was the step again")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
