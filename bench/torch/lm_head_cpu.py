# SPDX-License-Identifier: Apache-2.0
"""The fused head in PyTorch on CPUs: its time beside that of its matrix products alone and of plain PyTorch.

    python3 bench/torch/lm_head_cpu.py                                  # 2048 tokens, vocabulary 32000, hidden 1024 and 2048
    python3 bench/torch/lm_head_cpu.py --tokens 4096 --hidden 4096 --dtype bfloat16 --threads 8

Forward and backward with the gradients of hidden states and weight. PRODUCTS are the same products, of the library that the head uses and in
the same chunks, on operands that are ready: the logits twice (backward computes them again), and both gradients. PyTorch computes the
logits once. All three run in turns in one process, in random order; the medians are printed, and the median of the ratios of turns. Peaks are of
separate processes: the high-water mark (VmHWM) less the memory with hidden states, weight and their gradients."""

import argparse
import ctypes
import itertools
import os
import random
import statistics
import subprocess
import sys
import time

from ways import fused, linear

CHUNK, TILE = 1024, 2048  # the head's default chunk, and its tile of the vocabulary there
WAYS = {"head": fused, "torch": linear}


def operands(arguments):
    import torch
    torch.manual_seed(1)
    dtype = getattr(torch, arguments.dtype)
    shapes = (arguments.tokens, arguments.hidden), (arguments.vocab, arguments.hidden)
    hidden, weight = ((torch.randn(shape) / arguments.hidden**0.25).to(dtype) for shape in shapes)
    return hidden, weight, torch.randint(0, arguments.vocab, (arguments.tokens,))


def step(way, hidden, weight, target):
    """Bytes of the gradients."""
    hidden, weight = (tensor.detach().requires_grad_() for tensor in (hidden, weight))
    way(hidden, weight, target)[0].sum().backward()
    return hidden.grad.nbytes + weight.grad.nbytes


class Products:
    """The head's products through the Fortran interface of its library."""

    def __init__(self, library, hidden, weight):
        import torch
        self.library = ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
        self.hidden, self.weight = hidden, weight
        machine = open("/proc/cpuinfo", encoding="ascii").read()
        narrow = hidden.dtype == torch.bfloat16 and "GenuineIntel" in machine and "avx512_bf16" in machine
        self.gemm = getattr(self.library, "gemm_bf16bf16f32_", None) if narrow else None
        self.parts = 2 if self.gemm else 1  # the gradient of the logits as the sum of two bf16 numbers
        if self.gemm is None:
            self.gemm = self.library.sgemm_
            self.hidden, self.weight = hidden.float(), weight.float()
        rows = min(CHUNK, len(hidden))
        self.logits = torch.zeros(rows, len(weight))
        self.gradient = torch.randn(self.parts * rows, len(weight)).mul_(1e-3).to(self.hidden.dtype)
        self.twice = self.hidden[:rows].repeat(self.parts, 1)
        self.hidden_grad, self.weight_grad = torch.zeros(hidden.shape), torch.zeros(weight.shape)

    def multiply(self, a, b, c, across_a=False, across_b=False, adds=False):
        """c = op(a) op(b), row-major: for a column-major library the operands are swapped."""
        (m, n), k = c.shape, a.shape[0 if across_a else 1]
        words = [ctypes.byref(ctypes.c_int64(number)) for number in (n, m, k, b.stride(0), a.stride(0), c.stride(0))]
        one, beta = (ctypes.byref(ctypes.c_float(number)) for number in (1, adds))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, c)]
        self.gemm(b"T" if across_b else b"N", b"T" if across_a else b"N", *words[:3], one, pointers[0], words[3], pointers[1], words[4],
                  beta, pointers[2], words[5], ctypes.c_size_t(1), ctypes.c_size_t(1))

    def run(self):
        columns = len(self.weight)
        block = TILE if self.parts == 2 else columns
        for _ in range(2):
            for states in self.hidden.split(CHUNK):
                self.multiply(states, self.weight, self.logits[:len(states)], across_b=True)
        for first in range(0, len(self.hidden), CHUNK):
            states = self.hidden[first:first + CHUNK]
            rows, out = len(states), self.hidden_grad[first:first + CHUNK]
            for column in range(0, columns, block):
                here = slice(column, column + block)
                for part in range(self.parts):
                    self.multiply(self.gradient[part * rows:(part + 1) * rows, here], self.weight[here], out, adds=column + part > 0)
                self.multiply(self.gradient[:self.parts * rows, here], self.twice[:self.parts * rows], self.weight_grad[here],
                              across_a=True, adds=first > 0)


def library_of_head():
    """bp_lm_head_info.products: the file with the products."""
    import torch
    from bucketpool import _abi
    from bucketpool._library import configured, logprob as library, made
    from bucketpool.torch._tensors import device_of
    config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, hidden=1, vocab=1, max_tokens=1)
    head = made(library().bp_lm_head_create, device_of(torch.device("cpu")), ctypes.byref(config))
    name = library().bp_lm_head_get_info(head).contents.products.decode()
    library().bp_lm_head_destroy(ctypes.byref(head))
    return name


def peak(way, arguments):
    """Peak bytes of a step beyond its operands and their gradients."""
    from machine import process_bytes
    small = argparse.Namespace(**{**vars(arguments), "tokens": 8, "vocab": 512})
    step(way, *operands(small))
    tensors = operands(arguments)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    before = process_bytes("VmRSS")
    gradients = step(way, *tensors)
    return process_bytes("VmHWM") - before - gradients


def measure(arguments):
    """The products' library, then for products, head and torch the median seconds and the median ratio of the head to them."""
    library, tensors = library_of_head(), operands(arguments)
    products = Products(library, *tensors[:2])
    ways = {"products": products.run, **{name: lambda way=way: step(way, *tensors) for name, way in WAYS.items()}}
    times = {name: [] for name in ways}
    for turn in range(arguments.turns + 1):
        for name in random.sample(list(ways), len(ways)):
            begin = time.perf_counter()
            ways[name]()
            if turn > 0:  # the first turn warms up
                times[name].append(time.perf_counter() - begin)
    return library, *(number for values in times.values() for number in (
        statistics.median(values), statistics.median(a / b for a, b in zip(times["head"], values))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--part", choices=["times", *WAYS], help="print the times, or the peak bytes of a way, of one shape")
    arguments = parser.parse_args()
    if arguments.part:
        import torch
        torch.set_num_threads(arguments.threads[0])
        one = argparse.Namespace(**{**vars(arguments), "hidden": arguments.hidden[0], "dtype": arguments.dtype[0]})
        print(*measure(one) if one.part == "times" else (peak(WAYS[one.part], one), ))
        return
    print(f"{arguments.tokens} tokens, vocabulary {arguments.vocab}, chunks of {CHUNK}; medians of {arguments.turns} turns")
    print(f"{'DTYPE':9}{'HIDDEN':>7}{'THREADS':>8}{'PRODUCTS ms':>12}{'HEAD ms':>8}{'RATIO':>6}{'TORCH ms':>9}{'HEAD/TORCH':>11}"
          f"{'HEAD MiB':>9}{'TORCH MiB':>10}  LIBRARY")
    for dtype, hidden, threads in itertools.product(arguments.dtype, arguments.hidden, arguments.threads):
        given = dict(tokens=arguments.tokens, vocab=arguments.vocab, hidden=hidden, dtype=dtype, threads=threads, turns=arguments.turns)
        found = {}
        for part in ("times", *WAYS):
            command = [sys.executable, __file__, "--part", part, *(f"--{name}={value}" for name, value in given.items())]
            found[part] = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        library, *times = found["times"]
        products, ratio, head, _, plain, beside = map(float, times)
        head_peak, torch_peak = (int(found[way][0]) / 2**20 for way in WAYS)
        print(f"{dtype:9}{hidden:7}{threads:8}{products * 1e3:12.0f}{head * 1e3:8.0f}{ratio:6.2f}{plain * 1e3:9.0f}{beside:11.2f}"
              f"{head_peak:9.0f}{torch_peak:10.0f}  {library}", flush=True)


if __name__ == "__main__":
    main()
