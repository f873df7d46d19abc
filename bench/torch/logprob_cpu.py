"""Log-probabilities in PyTorch on CPUs: time and peak memory of forward and backward, for bucketpool and plain PyTorch.

    python3 bench/torch/logprob_cpu.py                       # 2048 tokens, vocabulary 32000, bf16
    python3 bench/torch/logprob_cpu.py --tokens 4096 --vocab 128000 --entropy
    python3 bench/torch/logprob_cpu.py --hidden 512          # the fused head and a linear layer

Each turn of each way runs in a separate process, in turns, and the medians are printed. PEAK is the process's high-water
mark (VmHWM) less its memory with logits and targets: the gradient and temporaries."""

import argparse
import statistics
import subprocess
import sys
import time

from ways import bucketpool, chunked, fused, in_place, linear, plain

LOGITS, HEAD = (plain, chunked, bucketpool, in_place), (linear, fused)


def turn(arguments):
    """Runs in a separate process: seconds forward, backward, peak bytes."""
    import torch
    from machine import process_bytes
    torch.set_num_threads(arguments.threads)
    way = next(way for way in LOGITS + HEAD if way.__name__ == arguments.way)
    dtype = getattr(torch, arguments.dtype)

    class Logits(torch.autograd.Function):
        """A non-leaf, as a model makes it; its gradient is consumed at once."""
        @staticmethod
        def forward(ctx, parameter, tokens, vocab):
            return torch.randn(1, tokens, vocab, dtype=dtype)

        @staticmethod
        def backward(ctx, gradient):
            return None, None, None

    def step(tokens, vocab):
        if way in HEAD:
            shapes = (1, tokens, arguments.hidden), (vocab, arguments.hidden)
            made = [(torch.randn(shape) / arguments.hidden**0.25).to(dtype).requires_grad_() for shape in shapes]
        else:
            made = [Logits.apply(torch.zeros((), requires_grad=True), tokens, vocab)]
        target = torch.randint(0, vocab, (1, tokens))
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        before, begin = process_bytes("VmRSS"), time.perf_counter()
        outputs = way(*made, target, arguments.entropy)
        between = time.perf_counter()
        sum(output.sum() for output in outputs).backward()
        return between - begin, time.perf_counter() - between, process_bytes("VmHWM") - before

    step(8, 512)  # warm-up
    print(*step(arguments.tokens, arguments.vocab))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--hidden", type=int, default=0, help="hidden size: includes the head and its gradients")
    parser.add_argument("--entropy", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--way", choices=[way.__name__ for way in LOGITS + HEAD],
                        help="run one turn of this way; prints forward and backward seconds and peak bytes")
    arguments = parser.parse_args()
    if arguments.way:
        turn(arguments)
        return
    given = [f"--{name}={getattr(arguments, name)}" for name in ("tokens", "vocab", "hidden", "dtype", "threads")]
    given += ["--entropy"] if arguments.entropy else []
    results = {way.__name__: [] for way in (HEAD if arguments.hidden else LOGITS)}
    for _ in range(arguments.turns):
        for way, turns in results.items():
            done = subprocess.run([sys.executable, __file__, "--way", way, *given], capture_output=True, text=True,
                                  check=True)
            turns.append([float(word) for word in done.stdout.split()])
    size = arguments.tokens * arguments.vocab * (4 if arguments.dtype == "float32" else 2)
    print(f"{arguments.tokens} tokens, vocabulary {arguments.vocab}, {arguments.dtype}: logits {size / 2**20:.0f} MiB; "
          f"{arguments.threads} threads{', with entropy' if arguments.entropy else ''}")
    print(f"{'WAY':12}{'FORWARD ms':>12}{'BACKWARD ms':>13}{'PEAK MiB':>10}{'x LOGITS':>10}")
    for way, turns in results.items():
        forward, backward, peak = (statistics.median(values) for values in zip(*turns))
        print(f"{way:12}{forward * 1e3:12.0f}{backward * 1e3:13.0f}{peak / 2**20:10.0f}{peak / size:10.2f}")


if __name__ == "__main__":
    main()
