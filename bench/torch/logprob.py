# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities in PyTorch: time and peak memory of forward and backward, for bucketpool, PyTorch and other packages.

    python3 bench/torch/logprob.py --device cuda --peers DIR --json FILE                   # from logits
    python3 bench/torch/logprob.py --device cuda --peers DIR --json FILE --hidden 4096     # including the head's product
    python3 bench/torch/logprob.py --device cuda --eager --json FILE                       # without ways that compile kernels first
    python3 bench/torch/logprob.py --device cpu --peers DIR --threads 2                    # on a CPU: 2048 tokens, vocabulary 32000
    python3 bench/torch/logprob.py --device cpu --rehearse                                 # the same code, small

DIR has wheels of packages and copies of repositories (peers.py); a way whose package is missing is skipped with the reason. All ways run in
one process. In a turn each runs once, in random order, with the same logits. One of them is a plain copy (with --hidden: the three products of a
head), and ratios are to that of the same turn. Before, every way is compared with fp64: a failure of bucketpool fails the program, a baseline
that differs is skipped. A way that runs out of memory has a row without times. After a way that leaves the device unusable (an illegal access),
the program restarts without it. Exit 0, 1 if a check failed, 77 if nothing could run.

bytes_per_logit is what must move: the logits twice, and the gradient. tensor_bytes_per_logit is what the tensors of PyTorch's operations add up to,
for ways that consist of these alone."""

import argparse
import gc
import os
import random
import statistics
import sys
import time

from report import Report, skip_all

try:
    import torch
except ImportError as error:
    skip_all(f"PyTorch is not installed: {error}")

from machine import Traffic, machine
from peers import Unavailable, unpack
import ways as implementations
from ways import HEAD_WAYS, WAYS

SHAPES = {"cuda": [(8192, 128000), (32768, 32000), (8192, 151936)], "cpu": [(2048, 32000)]}  # tokens, vocabulary
HEAD_SHAPES = {"cuda": [(8192, 128256)], "cpu": [(2048, 32000)]}
SMALL, SMALL_HEAD = [(48, 1000), (33, 129)], [(40, 500)]
SECONDS_OF_A_COMPILATION = 25
COPY, PRODUCTS = "torch: a copy of the logits", "torch: the three products of a head"  # baselines of the ratios
ROWS_AT_A_TIME = 1024  # per fill of a tensor
BEGIN = time.monotonic()


class Given(torch.autograd.Function):
    """Non-leaf tensors, as a model makes them; their gradients are consumed at once."""

    @staticmethod
    def forward(ctx, parameter, *tensors):
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx, *gradients):
        Given.seen = gradients if Given.keep else None
        return (None,) * (1 + len(gradients))


Given.keep, Given.seen = False, None


def passes(on, function, way, tensors, target, upstream):
    """Events before forward, between forward and backward, and after backward; the result of forward."""
    parameter = torch.zeros((), device=on.device, requires_grad=True)
    given = Given.apply(parameter, *tensors)
    begin = on.mark()
    output = function(*(given if isinstance(given, tuple) else (given,)), target)
    between = on.mark()
    output.backward(None if way.summed else upstream.to(output.dtype) * (-1 if way.loss else 1))
    return begin, between, on.mark(), output.detach()


def exact(tensors, target, upstream):
    """Reference log-probabilities and gradients in fp64."""
    leaves = [tensor.double().requires_grad_() for tensor in tensors]
    logits = leaves[0] if len(leaves) == 1 else leaves[0] @ leaves[1].T
    lp = logits.log_softmax(-1).gather(-1, target[:, None])[:, 0]
    return lp.detach(), torch.autograd.grad((lp * upstream).sum(), leaves)


def distance(got, wanted):
    """The largest difference, relative to the largest value."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def differs(on, function, way, hidden, dtype):
    """Largest relative errors of values and gradients against fp64, on a small case; the dtypes of both."""
    torch.manual_seed(0)
    target = torch.randint(0, 1000, (64,)).to(on.device)
    shapes = [(64, hidden), (1000, hidden)] if hidden else [(64, 1000)]
    tensors = [(torch.randn(shape) * (hidden**-0.25 if hidden else 2)).to(dtype).to(on.device) for shape in shapes]
    upstream = (torch.full((64,), -1.0) if way.summed else torch.randn(64)).to(on.device)
    lp, gradients = exact(tensors, target, upstream)
    Given.keep = True
    try:
        output = passes(on, function, way, [tensor.clone() for tensor in tensors], target, upstream)[3]
    finally:
        Given.keep = False
    value = distance(-output if way.loss else output, lp.sum() if way.summed else lp)
    gradient = max(distance(mine, theirs) for mine, theirs in zip(Given.seen, gradients))
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (output.dtype, Given.seen[-1].dtype)]
    Given.seen = None
    return value, gradient, *dtypes


def tensor_bytes(on, function, way, dtype):
    """Bytes for each logit of the tensors of PyTorch's operations; None where kernels are not PyTorch's."""
    if way.ours or way.compiles:
        return None
    tokens, vocab = 2048, 1000
    logits = torch.zeros(tokens, vocab, dtype=dtype, device=on.device)
    target = torch.zeros(tokens, dtype=torch.int64, device=on.device)
    with Traffic() as traffic:
        passes(on, function, way, [logits], target, torch.ones(tokens, device=on.device))
    return round(traffic.bytes / (tokens * vocab), 1)


def start_again_without(way, on, until):
    """After an illegal access every later CUDA call fails. Returns if the device still works."""
    try:
        on.synchronize()
    except Exception:
        sys.stdout.flush()
        seconds = max(until - time.monotonic(), 1)
        os.execv(sys.executable, [sys.executable, *sys.argv, "--without", way.name, "--seconds", f"{seconds:.0f}"])


def ready(report, on, ways, hidden, end, without=(), dtype=torch.bfloat16):
    """The ways that run here and pass the check: (way, function, its dtypes and bytes)."""
    found = []
    for way in ways:
        if way.name in without:
            (report.check(f"{way.name}: the device still works", False) if way.ours else
             report.skip(way.name, "the device was unusable after it"))
            continue
        if (time.monotonic() - BEGIN) / (end - BEGIN) > 0.5:
            report.skip(way.name, "no time is left for its check")
            continue
        try:
            function = way.make(on.name)
            value, gradient, output_dtype, grad_dtype = differs(on, function, way, hidden, dtype)
            counted = None if hidden else tensor_bytes(on, function, way, dtype)
        except Unavailable as reason:
            report.skip(way.name, str(reason))
            continue
        except Exception as error:
            if way.ours:
                report.check(f"{way.name}: against fp64", False, f"{type(error).__name__}: {error}")
            else:
                report.skip(way.name, f"{type(error).__name__}: {error}")
            start_again_without(way, on, end)
            continue
        most = 1e-4 if way.ours and not hidden else 2e-2  # baselines may round to bf16
        passed = value <= most and gradient <= 2e-2
        said = f"values differ by {value:.1e}, gradients by {gradient:.1e}"
        if passed or way.ours:
            report.check(f"{way.name}: against fp64", passed, said)
        else:
            report.skip(way.name, f"differs from fp64: {said}")
        if passed:
            found.append((way, function, {"output_dtype": output_dtype, "grad_dtype": grad_dtype, "grad_made_in": way.grad or grad_dtype,
                                          "tensor_bytes_per_logit": counted}))
    return found


def settle(on):
    """Releases our workspaces: they count as memory, and each peak starts without them."""
    from bucketpool.torch.logprob import free_clients
    free_clients()
    on.free()


def out_of_memory(error):
    from bucketpool.errors import NoDeviceMemory
    return isinstance(error, (torch.OutOfMemoryError, NoDeviceMemory, MemoryError))


def group_of(tokens, vocab, hidden, dtype):
    return f"{tokens} x {vocab}, {str(dtype).removeprefix('torch.')}" + (f", hidden {hidden}" if hidden else "")


class Case:
    """One shape: its tensors, and the times of each way in each turn."""

    def __init__(self, report, on, tokens, vocab, hidden, end, dtype=torch.bfloat16):
        self.report, self.on, self.hidden, self.end = report, on, hidden, end
        self.tokens, self.vocab, self.dtype = tokens, vocab, dtype
        self.group = group_of(tokens, vocab, hidden, dtype)
        generator = torch.Generator().manual_seed(1)
        self.target = torch.randint(0, vocab, (tokens,), generator=generator).to(on.device)
        self.upstream = torch.randn(tokens, generator=generator).to(on.device)
        self.sources = [self.filled(tokens, hidden), self.filled(vocab, hidden)] if hidden else [self.filled(tokens, vocab)]
        self.tensors = self.sources if hidden else [torch.empty_like(self.sources[0])]
        self.forward, self.total, self.peaks = {}, {}, {}

    def filled(self, rows, columns):
        tensor = torch.empty(rows, columns, dtype=self.dtype, device=self.on.device)
        for part in tensor.split(ROWS_AT_A_TIME):
            part.normal_(std=self.hidden**-0.25 if self.hidden else 2.0)
        return tensor

    def restore(self):
        """In-place ways overwrite the logits with the gradient."""
        if not self.hidden:
            self.tensors[0].copy_(self.sources[0])

    def run(self, way, function):
        return passes(self.on, function, way, self.tensors, self.target, self.upstream)

    def baseline(self):
        """The baseline of ratios: events around a copy of the logits, or around the three products of a head."""
        if not self.hidden:
            begin = self.on.mark()
            self.tensors[0].copy_(self.sources[0])
            return begin, self.on.mark()
        hidden, weight = self.tensors
        begin = self.on.mark()
        logits = hidden @ weight.T
        (logits @ weight, logits.T @ hidden)
        return begin, self.on.mark()

    def failed(self, way, error):
        outcome = "out of memory" if out_of_memory(error) else f"{type(error).__name__}: {error}"[:300]
        self.report.figure(self.group, way.name, outcome=outcome)
        if way.ours and outcome != "out of memory":
            self.report.check(f"{way.name}: {self.group}", False, outcome)
        start_again_without(way, self.on, self.end)

    def warm(self, found, until):
        """Runs each way twice: the first run compiles and creates workspaces, the second measures memory. Returns the remaining ways."""
        left = []
        for way, function, dtypes in found:
            if left and time.monotonic() > until:
                self.report.skip(f"{way.name}: {self.group}", "no time is left for its compilation and warm-up")
                continue
            try:
                self.restore()
                self.run(way, function)
                settle(self.on)
                self.restore()
                self.peaks[way.name] = self.on.peak(lambda: self.run(way, function))
                left.append((way, function, dtypes))
            except Exception as error:
                self.failed(way, error)
            gc.collect()
            settle(self.on)
        return left

    def turns(self, left, turns, until):
        """Fills in times, after an uncounted turn, and the baseline's. A failing way gets a row with the error and is removed."""
        order, shuffle, baseline = [*left, None], random.Random(0), []
        for number in range(-1, turns):
            if number >= 3 and time.monotonic() > until:
                break
            shuffle.shuffle(order)
            for entry in list(order):
                self.restore()  # on a GPU this covers the enqueue time of the measured calls
                if entry is None:
                    begin, end = self.baseline()
                    baseline.append(self.on.nanoseconds(begin, end))
                    continue
                way, function, _ = entry
                try:
                    begin, between, end, _ = self.run(way, function)
                    took = self.on.nanoseconds(begin, end), self.on.nanoseconds(begin, between)
                except Exception as error:
                    took = None
                    self.failed(way, error)
                if took is None:  # outside the except block, whose frames keep tensors alive
                    order.remove(entry)
                    left.remove(entry)
                    self.on.free()
                elif number >= 0:
                    self.total.setdefault(way.name, []).append(took[0])
                    self.forward.setdefault(way.name, []).append(took[1])
        return baseline[1:]

    def rows(self, left, baseline):
        """Reports the figures, and prints them as a table."""
        item = self.dtype.itemsize
        logits_bytes = self.tokens * self.vocab * item
        if self.hidden:
            self.report.figure(self.group, PRODUCTS, baseline, flops=6 * self.tokens * self.vocab * self.hidden)
        else:
            self.report.figure(self.group, COPY, baseline, bytes=2 * logits_bytes)
        for way, _, dtypes in left:
            more = {**dtypes, "in_place": way.in_place, "reduction": "sum" if way.summed else "none",
                    "forward_ns_median": statistics.median(self.forward[way.name]), **self.peaks[way.name]}
            if self.hidden:
                self.report.figure(self.group, way.name, self.total[way.name], baseline, PRODUCTS, **more)
                continue
            moved = 2 * item + getattr(torch, dtypes["grad_dtype"]).itemsize  # minimum traffic per logit: two reads and the gradient
            copies = [value * moved / (2 * item) for value in baseline]  # scaled to a copy of the same bytes
            fraction = statistics.median(base / value for base, value in zip(copies, self.total[way.name]))
            self.report.figure(self.group, way.name, self.total[way.name], copies, f"{COPY}, its time scaled to the same bytes", bytes_per_logit=moved,
                               logits_bytes=logits_bytes, bandwidth_fraction=round(fraction, 4), **more)
        self.table(left, logits_bytes)

    def table(self, left, logits_bytes):
        name = "peak_torch_bytes" if self.on.name == "cuda" else "peak_driver_bytes"
        print(f"\n{self.group}: logits {logits_bytes / 2**20:.0f} MiB"
              f"\n{'WAY':52}{'FORWARD ms':>11}{'BACKWARD ms':>12}{'TIME ms':>9}{'PEAK MiB':>9}{'x LOGITS':>9}{'B/LOGIT':>8}")
        for way, _, more in sorted(left, key=lambda entry: statistics.median(self.total[entry[0].name])):
            forward, total = (statistics.median(times[way.name]) / 1e6 for times in (self.forward, self.total))
            backward = statistics.median(whole - part for whole, part in zip(self.total[way.name], self.forward[way.name])) / 1e6
            peak = self.peaks[way.name][name]
            known = more["tensor_bytes_per_logit"] or (2 * self.dtype.itemsize + getattr(torch, more["grad_dtype"]).itemsize
                                                       if way.ours and not self.hidden else None)
            print(f"{way.name:52}{forward:11.1f}{backward:12.1f}{total:9.1f}{peak / 2**20:9.0f}{peak / logits_bytes:9.2f}{known or '':>8}")
        print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="small sizes")
    parser.add_argument("--hidden", type=int, default=0, help="hidden size: includes the head and its gradients")
    parser.add_argument("--shape", action="append", metavar="TOKENSxVOCABULARY", help="instead of the default shapes")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16", help="of logits, or of hidden states and weight")
    parser.add_argument("--threads", type=int, help="of PyTorch and bucketpool on a CPU")
    parser.add_argument("--peers", metavar="DIR", help="folder with wheels and copies of packages to compare with")
    parser.add_argument("--seconds", type=float, default=55, help="after so many seconds no case starts, and no turn after the third")
    parser.add_argument("--turns", type=int, help="maximum; default 30, with --rehearse 3")
    parser.add_argument("--eager", action="store_true", help="skip ways that compile kernels, which may take long")
    parser.add_argument("--without", action="append", default=[], metavar="WAY", help="skip a way")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    end = BEGIN + options.seconds
    on = machine(options.device)
    if on is None:
        skip_all("PyTorch finds no GPU")
    hidden = min(options.hidden, 32) if options.rehearse else options.hidden
    shapes = (SMALL_HEAD if hidden else SMALL) if options.rehearse else (HEAD_SHAPES if hidden else SHAPES)[on.name]
    if options.shape:
        shapes = [tuple(map(int, shape.split("x"))) for shape in options.shape]
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    head = {"program": "logprob", **on.head(), "threads": torch.get_num_threads(), "peers": unpack(options.peers)}
    report = Report.continued(options.json, **head) if options.without else Report(options.json, **head)
    measured = {row["group"] for row in report.document["figures"] if row["name"] in (COPY, PRODUCTS)}  # shapes measured before a way was removed
    if options.rehearse:
        implementations.COMPILER = "eager"
    ways = [way for way in (HEAD_WAYS if hidden else WAYS) if not (options.eager and way.compiles)]
    found = ready(report, on, ways, hidden, end, options.without, dtype)
    if not found:
        skip_all("no way runs here")
    for number, (tokens, vocab) in enumerate(shapes):
        now = time.monotonic() - BEGIN
        if now > options.seconds * 0.8:
            report.skip(f"{tokens} x {vocab}", f"{now:.0f} s of {options.seconds:.0f} s have passed")
            continue
        if group_of(tokens, vocab, hidden, dtype) in measured:
            continue
        try:
            case = Case(report, on, tokens, vocab, hidden, end, dtype)
        except Exception as error:
            if not out_of_memory(error):
                raise
            report.skip(f"{tokens} x {vocab}", f"out of memory: {error}")
            on.free()
            continue
        ways = found
        if on.name == "cuda" and options.seconds - now < SECONDS_OF_A_COMPILATION:
            ways = [entry for entry in found if "torch.compile" not in entry[0].name]
            for way, *_ in [entry for entry in found if entry not in ways]:
                report.skip(f"{way.name}: {case.group}", "no time is left for its compilation")
        until = time.monotonic() + (end - time.monotonic()) / (len(shapes) - number)
        left = case.warm(ways, until)
        case.rows(left, case.turns(left, options.turns or (3 if options.rehearse else 30), until))
        del case
        settle(on)
    print(f"{time.monotonic() - BEGIN:.1f} s")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
