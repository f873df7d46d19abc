# SPDX-License-Identifier: Apache-2.0
"""The fused head in PyTorch on CPUs: its time beside that of plain PyTorch, and its matrix products beside PyTorch's.

    python3 bench/torch/lm_head_cpu.py                                  # 2048 tokens, vocabulary 32000, hidden 1024 and 2048
    python3 bench/torch/lm_head_cpu.py --tokens 4096 --hidden 4096 --dtype bfloat16 --threads 8

Forward and backward with the gradients of hidden states and weight:

    two      linear_logprobs in pieces: backward computes the logits again, four products
    kept     linear_logprobs: the logits are kept where they fit, three products
    one      linear_cross_entropy: both passes in one call, three products
    torch    linear, log_softmax in fp32: three products

The ways run in turns in one process, in random order: medians, medians of the ratios to torch in the same turn, and peaks of separate
processes: the high-water mark (VmHWM) less the memory with hidden states, weight and their gradients. GFLOP/s of the products are those of the
library that the head uses and of torch.mm, on operands that are ready. Our own bf16 product (avx512_bf16) is measured by a program of the build
folder (BUCKETPOOL_BUILD)."""

import argparse
import ctypes
import itertools
import os
import random
import statistics
import subprocess
import sys
import time

from ways import linear

TILE = 2048  # the head's tile of the vocabulary


def two(hidden, weight, target):
    from bucketpool.torch import logprob
    return logprob.linear_logprobs(hidden, weight, target, chunk_size=2048).sum()


def kept(hidden, weight, target):
    from bucketpool.torch import logprob
    return logprob.linear_logprobs(hidden, weight, target).sum()


def one(hidden, weight, target):
    from bucketpool.torch.linear_loss import linear_cross_entropy
    return linear_cross_entropy(hidden, weight, target, reduction="sum").loss


def plain(hidden, weight, target):
    return linear(hidden, weight, target).sum()


WAYS = {"two": two, "kept": kept, "one": one, "torch": plain}
PRODUCTS = "logits", "hidden_grad", "weight_grad"


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
    way(hidden, weight, target).backward()
    return hidden.grad.nbytes + weight.grad.nbytes


def rate(call, terms, turns):
    """The most GFLOP/s."""
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 2e-9 * terms / min(times)


def torch_rates(hidden, weight, turns):
    import torch
    gradient = torch.randn(len(hidden), len(weight)).mul_(1e-3).to(hidden.dtype)
    calls = lambda: hidden @ weight.t(), lambda: gradient @ weight, lambda: gradient.t() @ hidden
    return [rate(call, hidden.numel() * len(weight), turns) for call in calls]


def blas_rates(library, hidden, weight, turns):
    """Through the Fortran interface: of MKL's bf16 product on Intel's processors with AVX512-BF16, else of sgemm."""
    import torch
    library = ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    machine = open("/proc/cpuinfo", encoding="ascii").read()
    narrow = hidden.dtype == torch.bfloat16 and "GenuineIntel" in machine and "avx512_bf16" in machine
    gemm = getattr(library, "gemm_bf16bf16f32_", None) if narrow else None
    if gemm is None:
        gemm, hidden, weight = library.sgemm_, hidden.float(), weight.float()
    logits = torch.zeros(len(hidden), len(weight))
    gradient = torch.randn(logits.shape).mul_(1e-3).to(hidden.dtype)

    def multiply(a, b, c, across_a=False, across_b=False):
        """c = op(a) op(b), row-major: for a column-major library the operands are swapped."""
        (m, n), k = c.shape, a.shape[0 if across_a else 1]
        words = [ctypes.byref(ctypes.c_int64(number)) for number in (n, m, k, b.stride(0), a.stride(0), c.stride(0))]
        alpha, beta = (ctypes.byref(ctypes.c_float(number)) for number in (1, 0))
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, c)]
        gemm(b"T" if across_b else b"N", b"T" if across_a else b"N", *words[:3], alpha, pointers[0], words[3], pointers[1], words[4],
             beta, pointers[2], words[5], ctypes.c_size_t(1), ctypes.c_size_t(1))

    hidden_grad, weight_grad = torch.zeros(hidden.shape), torch.zeros(weight.shape)
    calls = (lambda: multiply(hidden, weight, logits, across_b=True), lambda: multiply(gradient, weight, hidden_grad),
             lambda: multiply(gradient, hidden, weight_grad, across_a=True))
    return [rate(call, hidden.numel() * len(weight), turns) for call in calls]


def own_rates(arguments):
    """Of tiles; nan without the program."""
    program = os.path.join(os.environ.get("BUCKETPOOL_BUILD", "build"), "clients", "logprob", "bench", "bench_products_host")
    if not os.access(program, os.X_OK):
        return [float("nan")] * len(PRODUCTS)
    sizes = arguments.tokens, min(TILE, arguments.vocab), arguments.hidden, arguments.threads[0]
    out = subprocess.run([program, *map(str, sizes)], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:]}
    return [float(found[name]) for name in PRODUCTS]


def library_of_head(dtype):
    """bp_lm_head_info.products."""
    import torch
    from bucketpool import _abi
    from bucketpool._library import configured, logprob as library, made
    from bucketpool.torch._tensors import device_of
    config = configured(library().bp_lm_head_config_init, _abi.bp_lm_head_config, hidden=1, vocab=1, max_tokens=1,
                        dtype=_abi.BP_DTYPE_BF16 if dtype == "bfloat16" else _abi.BP_DTYPE_FP32)
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
    """The products' library, GFLOP/s of its products and of PyTorch's, then for each way the median seconds and the median ratio to torch."""
    library, tensors = library_of_head(arguments.dtype), operands(arguments)
    own = own_rates(arguments) if library == "avx512_bf16" else blas_rates(library, *tensors[:2], arguments.turns)
    rates = [*own, *torch_rates(*tensors[:2], arguments.turns)]
    times = {name: [] for name in WAYS}
    for turn in range(arguments.turns + 1):
        for name in random.sample(list(WAYS), len(WAYS)):
            begin = time.perf_counter()
            step(WAYS[name], *tensors)
            if turn > 0:  # the first turn warms up
                times[name].append(time.perf_counter() - begin)
    return library, *rates, *(number for values in times.values() for number in (
        statistics.median(values), statistics.median(a / b for a, b in zip(values, times["torch"]))))


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
        given = argparse.Namespace(**{**vars(arguments), "hidden": arguments.hidden[0], "dtype": arguments.dtype[0]})
        print(*measure(given) if given.part == "times" else (peak(WAYS[given.part], given), ))
        return
    print(f"{arguments.tokens} tokens, vocabulary {arguments.vocab}; medians of {arguments.turns} turns. RATIO: time over that of torch "
          "(below 1: faster); MIB: peak.\nProducts: GFLOP/s of the head's LIBRARY and of torch")
    print(" " * 24 + "".join(f"{name.upper():>25}" for name in WAYS) + "".join(f"{name.upper():>16}" for name in PRODUCTS))
    print(f"{'DTYPE':9}{'HIDDEN':>7}{'THREADS':>8}" + f"{'MS':>12}{'RATIO':>6}{'MIB':>7}" * len(WAYS) + f"{'HEAD TORCH':>16}" * len(PRODUCTS) +
          "  LIBRARY", flush=True)
    for dtype, hidden, threads in itertools.product(arguments.dtype, arguments.hidden, arguments.threads):
        given = dict(tokens=arguments.tokens, vocab=arguments.vocab, hidden=hidden, dtype=dtype, threads=threads, turns=arguments.turns)
        found = {}
        for part in ("times", *WAYS):
            command = [sys.executable, __file__, "--part", part, *(f"--{name}={value}" for name, value in given.items())]
            found[part] = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        library, *numbers = found["times"]
        numbers = list(map(float, numbers))
        rates, times = numbers[:2 * len(PRODUCTS)], numbers[2 * len(PRODUCTS):]
        print(f"{dtype:9}{hidden:7}{threads:8}" + "".join(
            f"{seconds * 1e3:12.0f}{ratio:6.2f}{int(found[way][0]) / 2**20:7.0f}" for way, seconds, ratio in zip(WAYS, times[::2], times[1::2])) +
              "".join(f"{f'{head:.0f} {beside:.0f}':>16}" for head, beside in zip(rates, rates[len(PRODUCTS):])) + f"  {library}", flush=True)


if __name__ == "__main__":
    main()
