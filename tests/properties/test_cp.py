"""Random packed batches on context-parallel ranks: index maps, rearranged tensors, and the loss with its statistics.

Arguments: the library bucketpool-logprob. BUCKETPOOL_EXAMPLES: how many batches (default 200). The same examples every time.

The model is in Python: lists of tokens in each order, and sums that are rounded once (math.fsum)."""

import ctypes
import math
import os
import random
import struct
import sys
import unittest
from ctypes import byref, c_float, c_int64, c_uint8
from dataclasses import dataclass

try:
    from hypothesis import HealthCheck, Phase, event, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    print(f"python3-hypothesis is not installed: {error}")
    sys.exit(77)

import bindings as b
import bindings_logprob as lp
from bindings import check, detail, filled, made
from bindings_logprob import GATHERED, KEEP, LOCAL, NEXT, NEXT_WRAPPED, PACKED, PADDED

EXAMPLES = int(os.environ.get("BUCKETPOOL_EXAMPLES", "200"))
SETTINGS = settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, print_blob=False,
                    report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                    suppress_health_check=list(HealthCheck))
ORDERS = (PACKED, PADDED, LOCAL, GATHERED)
NAN = float("nan")
lib = lp.load(sys.argv[1])
team = lp.Team(lib)
mover = made(lib, "bp_cp_create", team.device, byref(lp.config_of(lib, lp.CpConfig, "bp_cp_config_init", threads=1)))


# ---- batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Sequences as (length, padded length); a dummy at the end, if any, included."""

    sequences: tuple
    cp: int
    dummy: bool
    given: bool  # the caller pads
    multiple: int
    total_multiple: int
    narrow: bool  # cu_seqlens of int32

    def cu(self, which):
        ends = [0]
        for sequence in self.sequences:
            ends.append(ends[-1] + sequence[which])
        return ends

    def split(self, rank, comm=None):
        kind, dtype = (ctypes.c_int32, lp.INT32) if self.narrow else (c_int64, b.INT64)
        cu, padded = [(kind * (len(self.sequences) + 1))(*self.cu(which)) for which in (0, 1)]
        config = lp.config_of(lib, lp.SplitConfig, "bp_cp_split_config_init", cu_dtype=dtype,
                              sequences=len(self.sequences), ranks=self.cp, rank=rank, total_multiple=self.total_multiple,
                              multiple=0 if self.given else self.multiple, last_is_dummy=int(self.dummy), comm=comm)
        config.cu_seqlens = ctypes.addressof(cu)
        config.cu_padded = ctypes.addressof(padded) if self.given else None
        return Split(made(lib, "bp_cp_split_create", byref(config)))

    def added(self):
        """Tokens of the dummy that the library adds."""
        padded = self.cu(1)[-1]
        return -padded % self.total_multiple if self.total_multiple else 0

    def all(self):
        return self.sequences + (((0, self.added()),) if self.added() else ())

    def places(self, order, rank=0):
        """The tokens in an order: (sequence, offset)."""
        if order == PACKED:
            return [(s, o) for s, (length, _) in enumerate(self.all()) for o in range(length)]
        if order == PADDED:
            return [(s, o) for s, (_, padded) in enumerate(self.all()) for o in range(padded)]
        if order == GATHERED:
            return [place for r in range(self.cp) for place in self.places(LOCAL, r)]
        if self.cp == 1:
            return self.places(PADDED)
        held = []
        for s, (_, padded) in enumerate(self.all()):
            chunk = padded // (2 * self.cp)
            for k in (rank, 2 * self.cp - 1 - rank):
                held += [(s, o) for o in range(k * chunk, (k + 1) * chunk)]
        return held

    def map(self, source, to, shift, rank):
        where = {place: i for i, place in enumerate(self.places(source, rank))}

        def wanted(place):
            (s, o), length = place, self.all()[place[0]][0]
            if shift == KEEP:
                return place
            if o >= length or (o + 1 == length and shift == NEXT):
                return None
            return (s, (o + 1) % length)

        return [where.get(wanted(place), -1) for place in self.places(to, rank)]


class Split:
    def __init__(self, handle):
        self.handle, self.info = handle, filled(lib, "bp_cp_split_info_get", lp.SplitInfo, handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.bp_cp_split_destroy(byref(self.handle))

    def tokens(self, order):
        return (self.info.packed_tokens, self.info.padded_tokens, self.info.local_tokens, self.info.padded_tokens)[order]

    def map(self, source, to, shift=KEEP):
        count = self.tokens(to)
        values = (c_int64 * (count + 1))(*([-7] * (count + 1)))
        check(lib, lib.bp_cp_split_map(self.handle, source, to, shift, count, values), "bp_cp_split_map")
        assert values[count] == -7
        return list(values)[:count]

    def cu(self, order):
        count = self.info.sequences + 1
        values = (c_int64 * count)()
        check(lib, lib.bp_cp_split_cu_seqlens(self.handle, order, b.INT64, count, values), "bp_cp_split_cu_seqlens")
        return list(values)


@st.composite
def batches(draw, lengths=None, cp=None):
    cp = draw(st.sampled_from((1, 2, 3, 4, 8))) if cp is None else cp
    least = 1 if cp == 1 else 2 * cp
    if lengths is None:
        lengths = draw(st.lists(st.one_of(st.just(0), st.integers(1, 40)), max_size=6))
    dummy = draw(st.booleans())
    lengths = list(lengths) + ([draw(st.integers(0, 20))] if dummy else [])
    given_padding = draw(st.booleans())
    multiple = least * draw(st.integers(1, 3))
    unit = least if given_padding else multiple
    padded = [-(-length // unit) * unit + (least * draw(st.integers(0, 2)) if given_padding else 0) for length in lengths]
    total = 0 if given_padding or dummy else multiple * draw(st.integers(0, 7))
    return Batch(tuple(zip(lengths, padded)), cp, dummy, given_padding, multiple, total, draw(st.booleans()))


# ---- maps and tensors ------------------------------------------------------------------------------------------------


class Maps(unittest.TestCase):
    @SETTINGS
    @given(batches())
    def test_against_lists(self, batch):
        whole = batch.all()
        for rank in range(batch.cp):
            with batch.split(rank) as split:
                data = whole[:len(batch.sequences) - batch.dummy]
                assert split.info.sequences == len(whole) and split.info.data_sequences == len(data)
                assert split.info.data_tokens == sum(length for length, _ in data)
                assert split.info.longest == max((padded for _, padded in whole), default=0)
                for order in ORDERS:
                    assert split.tokens(order) == len(batch.places(order, rank))
                for order, share in ((PACKED, 1), (PADDED, 1), (LOCAL, batch.cp)):
                    ends = [sum(s[order != PACKED] for s in whole[:i]) // share for i in range(len(whole) + 1)]
                    assert split.cu(order) == ends
                for source in ORDERS:
                    for to in ORDERS:
                        for shift in (KEEP, NEXT, NEXT_WRAPPED):
                            if shift == KEEP or source != LOCAL or batch.cp == 1:
                                assert split.map(source, to, shift) == batch.map(source, to, shift, rank)

    @SETTINGS
    @given(batches())
    def test_bijections(self, batch):
        of_ranks, held = [], []
        for rank in range(batch.cp):
            with batch.split(rank) as split:
                of_ranks += split.map(PADDED, LOCAL)
                held += [place for place in split.map(PACKED, LOCAL) if place >= 0]
                gathered, padded = split.map(PADDED, GATHERED), split.map(GATHERED, PADDED)
                into, out = split.map(PACKED, PADDED), split.map(PADDED, PACKED)
                mine, back = split.map(PACKED, LOCAL), split.map(LOCAL, PACKED)
                tokens, packed = split.info.padded_tokens, split.info.packed_tokens
            assert sorted(gathered) == sorted(padded) == list(range(tokens))
            assert all(padded[place] == i for i, place in enumerate(gathered))
            assert [into[place] for place in out] == list(range(packed))
            assert all(back[place] == i for i, place in enumerate(mine) if place >= 0)
            assert all(mine[place] == i for i, place in enumerate(back) if place >= 0)
        assert of_ranks == gathered and sorted(held) == list(range(packed))

    @SETTINGS
    @given(batches(), st.integers(1, 40), st.integers(0, 9), st.sampled_from(ORDERS), st.sampled_from(ORDERS),
           st.sampled_from((KEEP, NEXT, NEXT_WRAPPED)), st.integers(0, 255), st.integers(0, 7))
    def test_rearranged(self, batch, token_bytes, gap, source, to, shift, fill, rank):
        rank %= batch.cp
        with batch.split(rank) as split:
            if shift != KEEP and source == LOCAL and batch.cp > 1:
                return
            count = split.tokens(source)
            data = random.Random(count).randbytes(count * (token_bytes + gap))
            result = rearranged(split, source, to, data, token_bytes, gap, shift, fill)
            expected = b""
            for place in batch.map(source, to, shift, rank):
                at = place * (token_bytes + gap)
                expected += data[at:at + token_bytes] if place >= 0 else bytes([fill]) * token_bytes
            assert result == expected

    @SETTINGS
    @given(batches(), st.integers(1, 64))
    def test_round_trip(self, batch, token_bytes):
        packed = random.Random(token_bytes).randbytes(len(batch.places(PACKED)) * token_bytes)
        slices = []
        for rank in range(batch.cp):
            with batch.split(rank) as split:
                padded = rearranged(split, PACKED, PADDED, packed, token_bytes)
                assert rearranged(split, PADDED, PACKED, padded, token_bytes) == packed
                slices.append(rearranged(split, PACKED, LOCAL, packed, token_bytes))
                assert rearranged(split, PADDED, LOCAL, padded, token_bytes) == slices[-1]
        with batch.split(0) as split:
            gathered = b"".join(slices)
            assert rearranged(split, GATHERED, PACKED, gathered, token_bytes) == packed
            assert rearranged(split, GATHERED, PADDED, gathered, token_bytes) == padded
            assert rearranged(split, PADDED, GATHERED, padded, token_bytes) == gathered


def rearranged(split, source, to, data, token_bytes, gap=0, shift=KEEP, fill=0):
    """Tokens in another order, without what is between them, which must have stayed as it was."""
    stride = token_bytes + gap
    given, count = ctypes.create_string_buffer(data, len(data) + 1), split.tokens(to)
    result = ctypes.create_string_buffer(b"\xa5" * (count * stride + 1), count * stride + 1)
    move = lp.config_of(lib, lp.Rearrangement, "bp_cp_rearrangement_init", from_order=source, to_order=to, shift=shift,
                        source=lp.CpTensor(ctypes.addressof(given), split.tokens(source), token_bytes, stride),
                        to=lp.CpTensor(ctypes.addressof(result), count, token_bytes, stride), fill_bytes=1)
    move.fill[0] = fill
    check(lib, lib.bp_cp_rearrange(mover, split.handle, byref(move), None), "bp_cp_rearrange")
    tokens = [result.raw[i * stride:(i + 1) * stride] for i in range(count)]
    assert all(token[token_bytes:] == b"\xa5" * gap for token in tokens) and result.raw[count * stride:] == b"\xa5"
    return b"".join(token[:token_bytes] for token in tokens)


# ---- the loss --------------------------------------------------------------------------------------------------------

SHARDS = 24  # logits of a token, in equal parts on TP ranks


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
        """Of each sequence its tokens; all of some are masked. What does not count is NaN."""
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


PADDING = Token(1, NAN, NAN, (NAN,) * SHARDS)  # with a mask that is wrong


@st.composite
def corpora(draw):
    """Lengths come from the seed, too: lists that Hypothesis draws are short as a rule."""
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


SHAPES = [(tp, cp, dp) for cp in (1, 2, 3, 4, 8) for tp in (1, 2, 3, 4, 8) for dp in (1, 2, 3, 4, 8) if tp * cp * dp <= 8]

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
    """One rank's client through one step, or two: counts may come first."""

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
            self.splits.append(batch.split(self.cp_rank))
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
        """Of each pack, by place of the packed batch; None: on another rank."""
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
        assert lib.bp_loss_sequence_count(self.loss) == len(expected)
        for number, sequence in enumerate(expected):
            one = filled(lib, "bp_loss_sequence_get", lp.LossSequence, self.loss, number)
            valid = [t for t in sequence if t.mask]
            assert one.valid == len(valid) and close(one.perplexity, perplexity(valid))
            assert close(one.logprob_sum, math.fsum(t.logprob for t in valid))
            assert close(one.entropy_sum, math.fsum(t.entropy for t in valid))

    def close(self):
        lib.bp_loss_destroy(byref(self.loss))
        for split in self.splits:
            split.__exit__()


def run(layout, packs, epsilon, counts_first):
    """On each rank: statistics and seeds."""
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


def deal(draw, tokens, layout):
    """Of each DP rank, its micro-batches and their sequences."""
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
    """Each valid token's seed is on one CP rank of each TP rank, and the right one."""
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
    """What others made of such batches: (a statistic, the wrong number)."""
    epsilon, every, means, slices = expected["epsilon"], [], [], []
    for d in range(layout.dp):
        for cp in range(layout.cp):
            held = [[tokens[s][o] for s, o in batch.places(LOCAL, cp) if s == i and o < len(sequence) and sequence[o].mask]
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
    shown = {}  # how often a mistake would have been seen

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
        packs = deal(data.draw, tokens, layout)
        for mistake, name, wrong in mistakes(layout, packs, expected):
            if abs(wrong - expected[name]) > 1e-6 * abs(expected[name]):
                self.shown[mistake] = self.shown.get(mistake, 0) + 1
        results = run(layout, packs, epsilon, counts_first)
        for statistics, _ in results:
            check_statistics(statistics, expected, corpus.whole)
        check_seeds(layout, packs, [seeds for _, seeds in results], expected)
        # and what one rank says
        alone = Layout(1, 1, 1, (0,), 1, layout.streams, layout.gradients)
        packs = deal(data.draw, tokens, alone)
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
