# SPDX-License-Identifier: Apache-2.0
"""Packed batches as lists of tokens, split by the library and by the formula of cp.h."""

import ctypes
import functools
import random
from ctypes import byref, c_int64
from dataclasses import dataclass

from hypothesis import strategies as st

import bindings as b
import bindings_logprob as lp
from bindings import check, made
from bindings_logprob import GATHERED, KEEP, LOCAL, NEXT, PACKED, PADDED

ORDERS = (PACKED, PADDED, LOCAL, GATHERED)


@dataclass(frozen=True)
class Batch:
    """Sequences as (length, padded length); including a dummy at the end, if any."""

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

    def split(self, lib, rank, comm=None):
        kind, dtype = (ctypes.c_int32, lp.INT32) if self.narrow else (c_int64, b.INT64)
        cu, padded = [(kind * (len(self.sequences) + 1))(*self.cu(which)) for which in (0, 1)]
        config = lp.config_of(lib, lp.SplitConfig, "bp_cp_split_config_init", cu_dtype=dtype,
                              sequences=len(self.sequences), ranks=self.cp, rank=rank,
                              total_multiple=self.total_multiple, multiple=0 if self.given else self.multiple,
                              last_is_dummy=int(self.dummy), comm=comm)
        config.cu_seqlens = ctypes.addressof(cu)
        config.cu_padded = ctypes.addressof(padded) if self.given else None
        return Split(lib, made(lib, "bp_cp_split_create", byref(config)))

    def added(self):
        """Tokens of the dummy that the library adds."""
        padded = self.cu(1)[-1]
        return -padded % self.total_multiple if self.total_multiple else 0

    def all(self):
        return self.sequences + (((0, self.added()),) if self.added() else ())

    @functools.lru_cache(maxsize=32)
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

    @functools.lru_cache(maxsize=32)
    def wanted(self, to, shift, rank):
        """The token of each place, or None."""
        lengths, places = [length for length, _ in self.all()], self.places(to, rank)
        if shift == KEEP:
            return places
        return [None if o >= lengths[s] or (o + 1 == lengths[s] and shift == NEXT) else (s, (o + 1) % lengths[s])
                for s, o in places]

    def map(self, source, to, shift, rank):
        where = {place: i for i, place in enumerate(self.places(source, rank))}
        return [where.get(place, -1) for place in self.wanted(to, shift, rank)]


class Split:
    def __init__(self, lib, handle):
        self.lib, self.handle, self.info = lib, handle, lib.bp_cp_split_get_info(handle).contents

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.bp_cp_split_destroy(byref(self.handle))

    def tokens(self, order):
        info = self.info
        return (info.packed_tokens, info.padded_tokens, info.local_tokens, info.padded_tokens)[order]

    def map(self, source, to, shift=KEEP):
        count = self.tokens(to)
        values = (c_int64 * (count + 1))(*([-7] * (count + 1)))
        check(self.lib, self.lib.bp_cp_split_map(self.handle, source, to, shift, count, values), "bp_cp_split_map")
        assert values[count] == -7
        return list(values)[:count]

    def cu(self, order):
        count = self.info.sequences + 1
        values = (c_int64 * count)()
        name = "bp_cp_split_cu_seqlens"
        check(self.lib, getattr(self.lib, name)(self.handle, order, b.INT64, count, values), name)
        return list(values)


@st.composite
def batches(draw, lengths=None, cp=None):
    cp = draw(st.sampled_from((1, 2, 3, 4, 8))) if cp is None else cp
    least = 1 if cp == 1 else 2 * cp
    if lengths is None and cp < 4 and draw(st.integers(0, 9)) == 9:  # more sequences than one kernel launch takes
        rng = random.Random(draw(st.integers(0, 99)))
        lengths = [rng.choice((0, 0, 1, 3)) for _ in range(rng.randint(119, 250))]
    elif lengths is None:
        lengths = draw(st.lists(st.one_of(st.just(0), st.integers(1, 40)), max_size=6))
    dummy = draw(st.booleans())
    lengths = list(lengths) + ([draw(st.integers(0, 20))] if dummy else [])
    given_padding = draw(st.booleans())
    multiple = least * draw(st.integers(1, 3))
    unit = least if given_padding else multiple
    padded = [-(-length // unit) * unit + (least * draw(st.integers(0, 2)) if given_padding else 0)
              for length in lengths]
    total = 0 if given_padding or dummy else multiple * draw(st.integers(0, 7))
    return Batch(tuple(zip(lengths, padded)), cp, dummy, given_padding, multiple, total, draw(st.booleans()))
