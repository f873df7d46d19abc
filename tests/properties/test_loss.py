# SPDX-License-Identifier: Apache-2.0
"""Random packed batches on random arrangements of ranks: the loss, seeds and statistics against formulas in Python.

Arguments: the library bucketpool-logprob. BUCKETPOOL_EXAMPLES: how many batches (default 200). The same examples
every time.

Ranks are threads. The reference model rounds sums once (math.fsum)."""

import ctypes
import math
import random
import struct
import sys
import unittest
from ctypes import byref, c_float, c_uint8
from dataclasses import dataclass

from examples import EXAMPLES, SETTINGS

from hypothesis import event, given
from hypothesis import strategies as st

import bindings as b
import bindings_logprob as lp
from bindings import check, filled, made
from bindings_logprob import LOCAL, PACKED
from packed import batches

NAN = float("nan")
lib = lp.load(sys.argv[1])
team = lp.Team(lib)

SHARDS = 24  # logits of a token, in equal shards on TP ranks


def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


@dataclass(frozen=True)
class Token:
    mask: int
    logprob: float
    entropy: float
    logits: tuple


@dataclass(frozen=True)
class Corpus:
    lengths: tuple
    seed: int
    density: float  # of valid tokens
    whole: bool  # sums are exact
    special: tuple  # logits that some tokens have: infinities, NaN

    def tokens(self):
        """The tokens of each sequence; some sequences are masked completely. Values that do not count are NaN."""
        rng, made_up = random.Random(self.seed), []
        for length in self.lengths:
            density = self.density * rng.choice((0, 1, 1, 1))
            made_up.append([self.token(rng, rng.random() < density) for _ in range(length)])
        return made_up

    def token(self, rng, valid):
        if not valid:
            return Token(0, NAN, NAN, (NAN,) * SHARDS)
        if self.whole:
            logprob, entropy = -rng.randrange(1000) / 64, rng.randrange(1000) / 128
        else:
            logprob, entropy = single(-9 * rng.random()), single(11 * rng.random())
        logits = [single(rng.uniform(-30, 30)) for _ in range(SHARDS)]
        if self.special and rng.random() < 0.1:
            logits[rng.randrange(SHARDS)] = rng.choice(self.special)
        return Token(rng.choice((1, 2, 255)), logprob, entropy, tuple(logits))


PADDING = Token(1, NAN, NAN, (NAN,) * SHARDS)  # its mask must be ignored


@st.composite
def corpora(draw):
    """Lengths come from the seed, too, because Hypothesis mostly draws short lists."""
    count, seed = draw(st.integers(0, 12)), draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    lengths = [rng.choice((0, rng.randint(1, 3), rng.randint(4, 40), rng.randint(4, 40))) for _ in range(count)]
    special = draw(st.sampled_from(((), (), (), (math.inf, -math.inf), (NAN, 0.0))))
    density = draw(st.sampled_from((0.6, 1, 0.6, 0.1, 0.6, 1, 0)))
    return Corpus(tuple(lengths), seed, density, draw(st.booleans()), special)


def least(values, otherwise, choose):
    values = list(values)
    return NAN if any(math.isnan(v) for v in values) else choose(values, default=otherwise)


def truth(tokens, epsilon):
    """The formulas of loss.h over all tokens at once."""
    valid = [[t for t in sequence if t.mask] for sequence in tokens]
    every = [t for sequence in valid for t in sequence]
    perplexities = [perplexity(sequence) for sequence in valid if sequence]
    logprob, entropy = math.fsum(t.logprob for t in every), math.fsum(t.entropy for t in every)
    return {
        "sequences": len(tokens), "tokens": sum(map(len, tokens)), "valid": len(every),
        "perplexity_sequences": len(perplexities), "logprob_sum": logprob, "entropy_sum": entropy,
        "perplexity_sum": math.fsum(perplexities), "epsilon": epsilon,
        "logit_min": least((x for t in every for x in t.logits), math.inf, min),
        "logit_max": least((x for t in every for x in t.logits), -math.inf, max),
        "loss": -logprob / (epsilon + len(every)) if every else 0,
        "entropy": entropy / len(every) if every else 0,
        "perplexity": math.fsum(perplexities) / len(perplexities) if perplexities else 0}


def perplexity(valid):
    return math.exp(-math.fsum(t.logprob for t in valid) / len(valid)) if valid else 0


def close(value, expected):
    if math.isnan(expected) or math.isinf(expected):
        return value == expected or (math.isnan(value) and math.isnan(expected))
    return abs(value - expected) <= 1e-12 * abs(expected)


@dataclass(frozen=True)
class Layout:
    tp: int
    cp: int
    dp: int
    places: tuple  # of the communicator's ranks
    micros: int
    streams: bool
    gradients: int

    def place(self, rank):
        place = self.places[rank]
        return place % self.tp, place // self.tp % self.cp, place // (self.tp * self.cp)


SIZES = (1, 2, 3, 4, 8)
SHAPES = [(tp, cp, dp) for cp in SIZES for tp in SIZES for dp in SIZES if tp * cp * dp <= 8]

LARGE = [(tp, cp, dp) for tp, cp, dp in SHAPES if cp > 1 and tp * cp * dp > 4]


@st.composite
def layouts(draw):
    tp, cp, dp = draw(st.sampled_from(SHAPES)) if draw(st.booleans()) else draw(st.sampled_from(LARGE))
    places = draw(st.permutations(range(tp * cp * dp)))
    return Layout(tp, cp, dp, tuple(places), draw(st.integers(1, 3)), draw(st.booleans()),
                  draw(st.sampled_from((lp.AVERAGED, lp.AVERAGED, lp.SUMMED))))


class Slice:
    """Local tensors of a rank, from the tokens at its places."""

    def __init__(self, tokens, tp, tp_rank, backwards):
        self.count = len(tokens)
        self.backwards = backwards and bool(tokens)
        part = SHARDS // tp
        shard = [t.logits[tp_rank * part:(tp_rank + 1) * part] for t in tokens]
        columns = [[t.mask for t in tokens], [t.logprob for t in tokens], [t.entropy for t in tokens],
                   [least(x, 0, min) for x in shard], [least(x, 0, max) for x in shard]]
        self.planes = [self.plane(c_uint8 if i == 0 else c_float, column) for i, column in enumerate(columns)]
        self.seed = self.plane(c_float, [NAN] * self.count)

    def plane(self, kind, column):
        return (kind * (self.count + 1))(*(reversed(column) if self.backwards else column))

    def view(self, plane):
        element = ctypes.sizeof(plane) // (self.count + 1)
        start = ctypes.addressof(plane) + (element * (self.count - 1) if self.backwards else 0)
        return lp.TokenValues(start, 99, -1 if self.backwards else 1)

    def values(self, counts=False):
        planes = {name: self.view(plane) for name, plane in zip(lp.LossValues.PLANES, self.planes)
                  if name == "mask" or not counts}
        return lp.config_of(lib, lp.LossValues, "bp_loss_values_init", tokens=self.count, **planes)

    def seeds(self):
        seeds = list(self.seed)[:self.count]
        return seeds[::-1] if self.backwards else seeds


class Rank:
    """One rank's client in one step, or in two with counts first."""

    def __init__(self, layout, packs, epsilon, rank, comm, stream):
        self.tp_rank, self.cp_rank, self.dp_rank = layout.place(rank)
        self.stream, self.layout = stream if layout.streams else None, layout
        self.packs = packs[self.dp_rank]
        config = lp.config_of(lib, lp.LossConfig, "bp_loss_config_init", tp=layout.tp, cp=layout.cp, dp=layout.dp,
                              tp_rank=self.tp_rank, cp_rank=self.cp_rank, dp_rank=self.dp_rank, comm=comm,
                              max_sequences=60, epsilon=epsilon, gradients=layout.gradients, threads=1)
        self.loss = made(lib, "bp_loss_create", team.device, byref(config))
        self.splits, self.slices = [], []
        for number, (batch, tokens) in enumerate(self.packs):
            placed = [self.token(tokens, batch, place) for place in batch.places(LOCAL, self.cp_rank)]
            self.splits.append(batch.split(lib, self.cp_rank))
            self.slices.append(Slice(placed, layout.tp, self.tp_rank, (rank + number) % 2 == 1))

    @staticmethod
    def token(tokens, batch, place):
        sequence, offset = place
        return tokens[sequence][offset] if sequence < len(tokens) and offset < len(tokens[sequence]) else PADDING

    def call(self, name, *arguments):
        check(lib, getattr(lib, name)(self.loss, *arguments), name)

    def step(self, counts):
        self.call("bp_loss_begin")
        for split, piece in zip(self.splits, self.slices):
            values = piece.values(counts)
            self.call("bp_loss_add", split.handle, byref(values), self.stream)
        self.call("bp_loss_reduce", b.OK, self.stream)

    def seeds(self, factor):
        """By pack and place of the packed batch; None: on another rank."""
        found = []
        for split, piece in zip(self.splits, self.slices):
            self.call("bp_loss_seed", split.handle, piece.count, byref(piece.view(piece.planes[0])), factor,
                      byref(piece.view(piece.seed)), self.stream)
            if self.stream:
                check(lib, lib.bp_stream_synchronize(self.stream), "bp_stream_synchronize")
            seeds = piece.seeds()
            found.append([seeds[place] if place >= 0 else None for place in split.map(LOCAL, PACKED)])
            used = {place for place in split.map(LOCAL, PACKED) if place >= 0}
            assert all(seeds[i] == 0 for i in range(len(seeds)) if i not in used)
        return found

    def statistics(self):
        return filled(lib, "bp_loss_statistics_get", lp.LossStatistics, self.loss)

    def check_sequences(self):
        expected = [sequence for _, tokens in self.packs for sequence in tokens]
        info = lib.bp_loss_get_info(self.loss).contents
        assert info.sequence_count == len(expected)
        for number, sequence in enumerate(expected):
            one = info.sequences[number]
            valid = [t for t in sequence if t.mask]
            assert one.valid == len(valid) and close(one.perplexity, perplexity(valid))
            assert close(one.logprob_sum, math.fsum(t.logprob for t in valid))
            assert close(one.entropy_sum, math.fsum(t.entropy for t in valid))

    def close(self):
        lib.bp_loss_destroy(byref(self.loss))
        for split in self.splits:
            split.__exit__()


def run(layout, packs, epsilon, counts_first):
    """Runs all ranks and returns their statistics and seeds."""
    def one(rank, comm, stream):
        seat = Rank(layout, packs, epsilon, rank, comm, stream)
        try:
            if counts_first:
                seat.step(True)
                seeds = seat.seeds(-1)
            seat.step(False)
            seat.check_sequences()
            return seat.statistics(), seeds if counts_first else seat.seeds(-1)
        finally:
            seat.close()

    return team.run(layout.tp * layout.cp * layout.dp, one)


def split_tokens(draw, tokens, layout):
    """Splits the sequences into micro-batches of each DP rank."""
    packs = []
    for d in range(layout.dp):
        packs.append([])
        for m in range(layout.micros):
            mine = tokens[m * layout.dp + d::layout.dp * layout.micros]
            packs[-1].append((draw(batches([len(sequence) for sequence in mine], layout.cp)), mine))
    return packs


def check_statistics(statistics, expected, exact):
    for name in lp.LossStatistics.COUNTS:
        assert getattr(statistics, name) == expected[name], name
    for name in lp.LossStatistics.SUMS + lp.LossStatistics.NUMBERS:
        value = getattr(statistics, name)
        good = value == expected[name] if exact and name in lp.LossStatistics.SUMS else close(value, expected[name])
        assert good, f"{name} is {value!r}, expected {expected[name]!r}"


def check_seeds(layout, packs, seeds, expected):
    """The seed of each valid token is on one CP rank of each TP rank, with the expected value."""
    scale = layout.cp * layout.dp if layout.gradients == lp.AVERAGED else 1
    value = -scale / (expected["epsilon"] + expected["valid"]) if expected["valid"] else 0
    for d in range(layout.dp):
        for m, (_, tokens) in enumerate(packs[d]):
            masks = [t.mask for sequence in tokens for t in sequence]
            for tp in range(layout.tp):
                held = [seeds[rank][m] for rank in range(len(seeds))
                        if layout.place(rank)[0] == tp and layout.place(rank)[2] == d]
                for i, mask in enumerate(masks):
                    found = [of_rank[i] for of_rank in held if of_rank[i] is not None]
                    assert len(found) == 1
                    right = value if mask else 0
                    assert abs(found[0] - right) <= 1.2e-7 * abs(right), f"seed {found[0]!r}, expected {right!r}"


def mistakes(layout, packs, expected):
    """Known mistakes of other implementations: (statistic, wrong number)."""
    epsilon, every, means, slices = expected["epsilon"], [], [], []
    for d in range(layout.dp):
        for cp in range(layout.cp):
            held = [[sequence[o] for s, o in batch.places(LOCAL, cp)
                     if s == i and o < len(sequence) and sequence[o].mask]
                    for batch, tokens in packs[d] for i, sequence in enumerate(tokens)]
            own = [t.logprob for sequence in held for t in sequence]
            every += own
            means.append(-math.fsum(own) / (epsilon + len(own)) if own else 0)
            slices += [perplexity(sequence) for sequence in held if sequence]
    ranks = layout.tp * layout.cp * layout.dp
    yield "perplexity of slices", "perplexity", math.fsum(slices) / len(slices) if slices else 0
    yield "counts of one slice", "valid", expected["valid"] / layout.cp
    yield "sum of TP ranks", "logprob_sum", layout.tp * math.fsum(every)
    yield "mean of losses", "loss", math.fsum(means) / len(means)
    yield "epsilon of each rank", "loss", -math.fsum(every) / (ranks * epsilon + len(every)) if every else 0


class Losses(unittest.TestCase):
    shown = {}  # how often a batch would reveal the mistake

    def test_any_layout(self):
        self.any_layout()
        print(", ".join(f"{name}: {count}" for name, count in sorted(self.shown.items())))
        if EXAMPLES >= 100:
            self.assertEqual(len(self.shown), 5)

    @SETTINGS
    @given(corpora(), layouts(), st.sampled_from((1e-5, 0.0, 0.75)), st.booleans(), st.data())
    def any_layout(self, corpus, layout, epsilon, counts_first, data):
        tokens = corpus.tokens()
        expected = truth(tokens, epsilon)
        event(f"{layout.tp * layout.cp * layout.dp} ranks" if expected["valid"] else "no valid token")
        packs = split_tokens(data.draw, tokens, layout)
        for mistake, name, wrong in mistakes(layout, packs, expected):
            if abs(wrong - expected[name]) > 1e-6 * abs(expected[name]):
                self.shown[mistake] = self.shown.get(mistake, 0) + 1
        results = run(layout, packs, epsilon, counts_first)
        for statistics, _ in results:
            check_statistics(statistics, expected, corpus.whole)
        check_seeds(layout, packs, [seeds for _, seeds in results], expected)
        # one rank alone must agree
        alone = Layout(1, 1, 1, (0,), 1, layout.streams, layout.gradients)
        packs = split_tokens(data.draw, tokens, alone)
        (one, seeds), = run(alone, packs, epsilon, counts_first)
        check_statistics(one, expected, corpus.whole)
        check_seeds(alone, packs, [seeds], expected)
        for name, _ in lp.LossStatistics._fields_:
            assert close(getattr(results[0][0], name), getattr(one, name))

    @SETTINGS
    @given(st.lists(corpora(), max_size=4), st.sampled_from((1e-5, 0.0, 0.75)))
    def test_merged(self, steps, epsilon):
        """Statistics of steps, merged, are those of one step with all sequences."""
        total = lp.config_of(lib, lp.LossStatistics, "bp_loss_statistics_init")
        for corpus in steps:
            values = truth(corpus.tokens(), epsilon)
            one = lp.LossStatistics(**values)
            check(lib, lib.bp_loss_statistics_merge(byref(one), byref(total)), "bp_loss_statistics_merge")
        tokens = [sequence for corpus in steps for sequence in corpus.tokens()]
        check_statistics(total, truth(tokens, epsilon if steps else total.epsilon), False)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
