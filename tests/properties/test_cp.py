# SPDX-License-Identifier: Apache-2.0
"""Random packed batches on context-parallel ranks: index maps and rearranged tensors against lists of tokens.

Arguments: the library bucketpool-logprob. BUCKETPOOL_EXAMPLES: how many batches (default 200). The same examples
every time."""

import ctypes
import random
import sys
import unittest
from ctypes import byref

from examples import SETTINGS

from hypothesis import given
from hypothesis import strategies as st

import bindings_logprob as lp
from bindings import check, made
from bindings_logprob import GATHERED, KEEP, LOCAL, NEXT, NEXT_WRAPPED, PACKED, PADDED
from packed import ORDERS, batches

lib = lp.load(sys.argv[1])
device = made(lib, "bp_device_create_host", None)
mover = made(lib, "bp_cp_create", device, byref(lp.config_of(lib, lp.CpConfig, "bp_cp_config_init", threads=1)))


def rearranged(split, source, to, data, token_bytes, gap=0, shift=KEEP, fill=0):
    """The tokens in an order; asserts that the bytes between them did not change."""
    stride = token_bytes + gap
    given, count = ctypes.create_string_buffer(data, len(data) + 1), split.tokens(to)
    result = ctypes.create_string_buffer(b"\xa5" * (count * stride + 1), count * stride + 1)
    move = lp.config_of(lib, lp.Rearrangement, "bp_cp_rearrangement_init", from_order=source, to_order=to, shift=shift,
                        **{"from": lp.CpTensor(ctypes.addressof(given), split.tokens(source), token_bytes, stride)},
                        to=lp.CpTensor(ctypes.addressof(result), count, token_bytes, stride), fill_bytes=1)
    move.fill[0] = fill
    check(lib, lib.bp_cp_rearrange(mover, split.handle, byref(move), None), "bp_cp_rearrange")
    tokens = [result.raw[i * stride:(i + 1) * stride] for i in range(count)]
    assert all(token[token_bytes:] == b"\xa5" * gap for token in tokens) and result.raw[count * stride:] == b"\xa5"
    return b"".join(token[:token_bytes] for token in tokens)


class Maps(unittest.TestCase):
    @SETTINGS
    @given(batches())
    def test_reference_lists(self, batch):
        whole = batch.all()
        for rank in range(batch.cp):
            with batch.split(lib, rank) as split:
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
            with batch.split(lib, rank) as split:
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
        with batch.split(lib, rank) as split:
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
            with batch.split(lib, rank) as split:
                padded = rearranged(split, PACKED, PADDED, packed, token_bytes)
                assert rearranged(split, PADDED, PACKED, padded, token_bytes) == packed
                slices.append(rearranged(split, PACKED, LOCAL, packed, token_bytes))
                assert rearranged(split, PADDED, LOCAL, padded, token_bytes) == slices[-1]
        with batch.split(lib, 0) as split:
            gathered = b"".join(slices)
            assert rearranged(split, GATHERED, PACKED, gathered, token_bytes) == packed
            assert rearranged(split, GATHERED, PADDED, gathered, token_bytes) == padded
            assert rearranged(split, PADDED, GATHERED, padded, token_bytes) == gathered


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
