# SPDX-License-Identifier: Apache-2.0
"""The example cp_sft_loss: every arrangement of 1, 2, 4 and 8 processes gives the numbers of a reference
implementation.

Arguments: mpirun.sh, the program. BUCKETPOOL_EXAMPLES=5000 compares five seeds instead of one.
"""

import concurrent.futures
import math
import os
import re
import shlex
import struct
import subprocess
import sys
import unittest

MPIRUN, PROGRAM = sys.argv[1:3]
SEEDS = range(1, 1 + max(1, int(os.environ.get("BUCKETPOOL_EXAMPLES", "0")) // 1000))
COUNTS = ("sequences", "tokens", "valid tokens")
FLOATS = ("loss", "gradient norm", "entropy", "perplexity", "least logit", "largest logit")
LARGE = " on each rank with 131072 tokens, vocabulary 151936 and bf16"


def start(ranks, *options, other=None, seconds=300):
    """`other`: the options of an additional rank."""
    command = [MPIRUN, str(ranks), PROGRAM, *map(str, options)]
    if other is not None:  # mpirun's colon crashes in Open MPI 5.0.7
        ours, theirs = (shlex.join([PROGRAM, *map(str, words)]) for words in (options, other))
        command = [MPIRUN, str(ranks + 1), "/bin/sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" != {ranks} ] || exec {theirs}; exec {ours}']
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if result.returncode == 77:
        print(result.stdout)
        sys.exit(77)
    return result


def arrangement(tp, cp, dp):
    return ("--tp", tp, "--cp", cp, "--dp", dp)


def factorisations(ranks):
    for tp in range(1, ranks + 1):
        for cp in range(1, ranks // tp + 1):
            if ranks % (tp * cp) == 0:
                yield tp, cp, ranks // (tp * cp)


# ---- reference implementation: fp64, sequence by sequence, one process -----------------------------------------------


def noise(seed, what, i, j):
    for word in (what, i, j):
        seed = ((seed ^ word) * 0x9E3779B97F4A7C15) % 2**64
        seed = ((seed ^ seed >> 29) * 0xBF58476D1CE4E5B9) % 2**64
        seed ^= seed >> 32
    return seed


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def between_ones(seed, what, i, j):
    return fp32(fp32(noise(seed, what, i, j) >> 40) / (1 << 23) - 1)


def length_of(seed, i):
    return i - 1 if i in (1, 2) else 2 + noise(seed, 1, i, 0) % 59


def prompt_of(seed, i):
    return length_of(seed, i) if i == 3 else noise(seed, 2, i, 0) % (length_of(seed, i) // 2 + 1)


def reference(seed, sequences, vocab, hidden=16):
    weight = [[between_ones(seed, 5, v, d) for d in range(hidden)] for v in range(vocab)]
    gradient = [[0.0] * hidden for _ in range(vocab)]
    total, entropy, valid, tokens, perplexities, logits_seen = 0.0, 0.0, 0, 0, [], []
    for i in range(sequences):
        length, of_sequence = length_of(seed, i), []
        tokens += length
        ids = [noise(seed, 3, i, offset) % vocab for offset in range(length)]
        for offset in range(max(prompt_of(seed, i) - 1, 0), length - 1):
            h = [between_ones(seed, 4, ids[offset], d) + math.sin(fp32(offset / (d + 1))) / 2 for d in range(hidden)]
            logits = [sum(a * b for a, b in zip(h, row)) for row in weight]
            log_sum = math.log(math.fsum(map(math.exp, logits)))
            for v, x in enumerate(logits):
                p = math.exp(x - log_sum)
                entropy -= p * (x - log_sum)
                for d in range(hidden):
                    gradient[v][d] += (p - (v == ids[offset + 1])) * h[d]
            of_sequence.append(logits[ids[offset + 1]] - log_sum)
            logits_seen += [min(logits), max(logits)]
        valid += len(of_sequence)
        total += sum(of_sequence)
        if of_sequence:
            perplexities.append(math.exp(-sum(of_sequence) / len(of_sequence)))
    return {
        "sequences": sequences, "tokens": tokens, "valid tokens": valid, "loss": -total / (1e-5 + valid),
        "gradient norm": math.sqrt(sum(g * g for row in gradient for g in row)) / (1e-5 + valid),
        "entropy": entropy / valid,
        "perplexity": sum(perplexities) / len(perplexities), "least logit": min(logits_seen),
        "largest logit": max(logits_seen),
    }


class CpSftLoss(unittest.TestCase):
    def answers(self, ranks, *options):
        result = start(ranks, *options)
        # MPI may print warnings about the machine
        own = [line for line in result.stderr.splitlines() if "cp_sft_loss" in line]
        self.assertEqual((result.returncode, own), (0, []), (ranks, options))
        lines = [line.rsplit(" ", 1) for line in result.stdout.splitlines()]
        return {name: int(value) if name in COUNTS or "bytes" in name else float(value) for name, value in lines}

    def alike(self, one, other, what):
        for name in COUNTS:
            self.assertEqual(one[name], other[name], (name, what))
        for name in FLOATS:
            self.assertLessEqual(abs(one[name] - other[name]), 1e-6 * abs(one[name]),
                                 (name, one[name], other[name], what))

    def test_arrangements(self):
        for seed in SEEDS:
            one = self.answers(1, "--seed", seed)
            everywhere = [where for ranks in (2, 4, 8) for where in factorisations(ranks)]
            self.assertEqual(len(everywhere), 3 + 6 + 10)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:  # processes mostly wait while they start
                others = pool.map(lambda where: self.answers(math.prod(where), *arrangement(*where), "--seed", seed),
                                  everywhere)
                for where, other in zip(everywhere, others):
                    self.alike(one, other, (seed, where))
                    self.bytes(other, *where)

    def bytes(self, answers, tp, cp, _):
        for where in (" on rank 0", LARGE):
            gathered, kept = answers["bytes of logits gathered" + where], answers["bytes of logits kept" + where]
            self.assertEqual((gathered, answers["bytes saved" + where]), (cp * kept, gathered - kept))
        self.assertEqual(answers["bytes of logits gathered" + LARGE], 131072 * (151936 // tp) * 2)

    def test_reference(self):
        for seed in SEEDS:
            expected = reference(seed, 12, 23)
            shape = ("--seed", seed, "--sequences", 12, "--vocab", 23)
            self.alike(expected, self.answers(1, *shape), seed)
            self.alike(expected, self.answers(4, *arrangement(2, 2, 1), *shape), seed)

    def test_micro_batches(self):
        one = self.answers(1, "--micro-batches", 1)
        self.alike(one, self.answers(2, *arrangement(1, 2, 1), "--micro-batches", 3), "micro-batches")

    def test_ranks_without_sequences(self):
        one = self.answers(1, "--sequences", 3, "--vocab", 5)
        self.alike(one, self.answers(8, *arrangement(1, 2, 4), "--sequences", 3, "--vocab", 5), "few sequences")

    def test_empty_batch(self):
        for cases in ((1, (1, 1, 1)), (2, (1, 2, 1))):
            answers = self.answers(cases[0], *arrangement(*cases[1]), "--sequences", 0)
            for name in COUNTS + ("loss", "gradient norm", "entropy", "perplexity"):
                self.assertEqual(answers[name], 0, name)
            self.assertEqual((answers["least logit"], answers["largest logit"]), (math.inf, -math.inf))

    def all_fail(self, ranks, where, other, words):
        """`other`: the arguments of the last rank, if they differ."""
        other = other or where
        result = start(ranks - 1, *arrangement(*where), other=arrangement(*other[:3]) + other[3:],
                       seconds=200) if ranks > 1 \
            else start(1, *arrangement(*where), seconds=200)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        for rank in range(ranks):
            self.assertRegex(result.stderr, f"cp_sft_loss: rank {rank}: .*{re.escape(words)}")

    def test_failing_ranks(self):
        """Failures in the exchange of the step, in the creation of clients, and on one pair of TP ranks; all ranks
        report them.
        """
        cases = ((1, (1, 1, 8), None,
                  "mismatch: bp_loss_create: tp 1 x cp 1 x dp 8 does not match the communicator's 1 ranks\n"),
                 (4, (1, 1, 2), None,
                  "mismatch: bp_loss_create: tp 1 x cp 1 x dp 2 does not match the communicator's 4 ranks\n"),
                 (2, (1, 2, 1), (1, 2, 1, "--seed", 2), "belong to one DP rank, but added different batches"),
                 (2, (1, 2, 1), (1, 2, 1, "--micro-batches", 4), "belong to one DP rank, but added different batches"),
                 (2, (1, 2, 1), (2, 1, 1), "mismatch: bp_loss_create: rank 1 has tp 2, rank 0 has 1"),
                 (2, (1, 2, 1), (1, 3, 1),
                  "bp_loss_create: tp 1 x cp 3 x dp 1 does not match the communicator's 2 ranks"),
                 (4, (2, 1, 2), (2, 1, 2, "--vocab", 100), "(tp 0, cp 0, dp 1) failed: bp_logprob_create: "))
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:  # mpirun ends failed jobs slowly
            for done in [pool.submit(self.all_fail, *case) for case in cases]:
                done.result()

    def test_options(self):
        def alone(*options):
            return subprocess.run([PROGRAM, *options], capture_output=True, text=True, timeout=600)

        for options, words in ((("--cp", "0"), "--cp: expected an integer in [1, 4096], got \"0\""),
                               (("--tp", "-1"), "--tp: expected an integer"),
                               (("--seed", "7x"), "--seed: expected an integer"),
                               (("--dp", ""), "--dp: expected an integer"),
                               (("--pp", "2"), "--pp is an unknown option"), (("-pq",), "-pq is an unknown option"),
                               (("--dp",), "--dp is an unknown option, or its value is missing"),
                               (("2",), "2 is an unexpected argument"),
                               (("--tp", "4", "--vocab", "3"), "4 TP ranks cannot share a vocabulary of 3")):
            result = alone(*options)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), options)
            self.assertIn("cp_sft_loss: " + words, result.stderr)
        self.assertEqual(alone("--help").returncode, 0)
        for option in ("--tp", "--cp", "--dp", "--seed", "--sequences", "--vocab", "--micro-batches"):
            self.assertIn(option + " ", alone("--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
