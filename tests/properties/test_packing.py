# SPDX-License-Identifier: Apache-2.0
"""Random packing instances through the C ABI: small ones against all orders of their items, larger ones for validity
only.

Arguments: the core library. BUCKETPOOL_EXAMPLES: how many instances (default 200). The same examples every time.
"""

import ctypes
import math
import sys
import unittest
from ctypes import byref, c_size_t, c_uint32, c_uint64
from dataclasses import dataclass

from examples import SETTINGS

from hypothesis import event, given
from hypothesis import strategies as st

import bindings as b
from bindings import check, detail, made

UNWRITTEN = 0xA5A5A5A5A5A5A5A5
lib = b.load(sys.argv[1])


@dataclass(frozen=True)
class Instance:
    sizes: tuple
    intervals: tuple  # by item: (begin, end), ...
    pairs: tuple  # added conflicts

    def live(self, item):
        return bool(self.sizes[item] and self.intervals[item])

    def conflict(self, a, c):
        if a == c or not self.live(a) or not self.live(c):
            return False
        return ((a, c) in self.pairs or (c, a) in self.pairs
                or any(x < v and u < y for x, y in self.intervals[a] for u, v in self.intervals[c]))

    def items(self):
        return [item for item in range(len(self.sizes)) if self.live(item)]

    def live_sum(self):
        times = {begin for item in self.items() for begin, _ in self.intervals[item]}
        return max((sum(self.sizes[i] for i in self.items() if any(x <= time < y for x, y in self.intervals[i]))
                    for time in times), default=0)

    def height(self, offsets):
        return max((offsets[i] + self.sizes[i] for i in self.items()), default=0)

    def valid(self, offsets, limit):
        items = self.items()
        return self.height(offsets) <= limit and not any(
            self.conflict(a, c) and offsets[a] < offsets[c] + self.sizes[c] and offsets[c] < offsets[a] + self.sizes[a]
            for a in items for c in items if a < c)

    def optimum(self):
        """The optimal height: the least longest path over all acyclic orientations of the conflict graph. In a
        placement every conflict is oriented upwards, and each item can sink onto its predecessors.
        """
        items, best = self.items(), sum(self.sizes)
        beside = {i: [k for k in items if self.conflict(i, k)] for i in items}

        def extend(ends, height):
            nonlocal best
            if height >= best:
                return
            if len(ends) == len(items):
                best = height
            for item in items:
                if item not in ends:
                    end = self.sizes[item] + max((ends[k] for k in beside[item] if k in ends), default=0)
                    extend({**ends, item: end}, max(height, end))

        extend({}, 0 if items else best)
        return best if items else 0


def intervals(steps):
    span = st.tuples(st.integers(0, steps - 1), st.integers(1, 6)).map(lambda s: (s[0], s[0] + s[1]))
    return st.lists(span, min_size=0, max_size=3).map(tuple)


@st.composite
def instances(draw, most, most_size):
    count = draw(st.integers(0, most))
    steps = draw(st.integers(1, 3 * most))
    sizes = draw(st.lists(st.integers(0, draw(st.sampled_from((2, most_size)))), min_size=count, max_size=count))
    drawn = draw(st.lists(intervals(steps), min_size=count, max_size=count))
    pairs = draw(st.lists(st.tuples(st.integers(0, max(0, count - 1)), st.integers(0, max(0, count - 1))),
                          max_size=draw(st.sampled_from((0, count)))))
    unit = draw(st.sampled_from((1, 1, 256, 3 << 30)))
    return Instance(tuple(unit * size for size in sizes), tuple(drawn),
                    tuple(pair for pair in pairs if pair[0] != pair[1] and drawn[pair[0]] and drawn[pair[1]]))


@st.composite
def cycles(draw):
    """Five to seven items of similar sizes around a cycle with few conflicts: the optimum often exceeds the bound. Each
    conflict is a common step or an added conflict."""
    count = draw(st.sampled_from((5, 6, 7)))
    chords = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3))
    conflicts = {(i, (i + 1) % count) for i in range(count)} | {pair for pair in chords if pair[0] != pair[1]}
    added = draw(st.sets(st.sampled_from(sorted(conflicts))))
    least = draw(st.sampled_from((1, 5, 100)))
    sizes = draw(st.lists(st.integers(least, least + 3), min_size=count, max_size=count))
    steps = {pair: 2 * step for step, pair in enumerate(draw(st.permutations(sorted(conflicts - added))))}
    drawn = tuple(tuple((step, step + 1) for pair, step in steps.items() if item in pair) + ((99 + item, 100 + item),)
                  for item in range(count))
    return Instance(tuple(sizes), drawn, tuple(sorted(added)))


class Packing:
    """The bp_packing of an instance."""

    def __init__(self, instance):
        self.instance, self.handle = instance, made(lib, "bp_packing_create")

    def __enter__(self):
        instance = self.instance
        for number, size in enumerate(instance.sizes):
            item = c_size_t()
            check(lib, lib.bp_packing_add_item(self.handle, size, byref(item)), "bp_packing_add_item")
            assert item.value == number
            for begin, end in instance.intervals[number]:
                check(lib, lib.bp_packing_add_interval(self.handle, number, begin, end), "bp_packing_add_interval")
        for pair in instance.pairs:
            check(lib, lib.bp_packing_add_conflict(self.handle, *pair), "bp_packing_add_conflict")
        assert lib.bp_packing_get_info(self.handle).contents.item_count == len(instance.sizes)
        return self

    def __exit__(self, *_):
        lib.bp_packing_destroy(byref(self.handle))
        assert not self.handle.value

    def array(self, offsets):
        return (c_uint64 * (len(offsets) + 1))(*offsets)

    def check(self, offsets, limit):
        """The verdict of bp_packing_check, which must equal that of the reference model."""
        status = lib.bp_packing_check(self.handle, self.array(offsets), limit)
        right = self.instance.valid(offsets, limit)
        assert status == (b.OK if right else b.MISMATCH), f"valid: {right}, the checker: {status} {detail(lib)}"
        return right

    def bound(self):
        witness, count, bound = (c_uint32 * (len(self.instance.sizes) + 1))(), c_size_t(), c_uint64()
        check(lib, lib.bp_packing_bound(self.handle, witness, byref(count), byref(bound)), "bp_packing_bound")
        chosen = witness[:count.value]
        assert chosen == sorted(set(chosen)), f"witness {chosen}"
        assert all(self.instance.conflict(a, c) for a in chosen for c in chosen if a < c), f"witness {chosen}"
        assert sum(self.instance.sizes[i] for i in chosen) == bound.value
        live = self.instance.live_sum()
        assert bound.value >= live if self.instance.pairs else bound.value == live
        return bound.value

    def pack(self, known=None, **values):
        """Packs, asserts the contract, and returns result and offsets."""
        config, result = b.PackConfig(), b.PackResult()
        check(lib, lib.bp_pack_config_init(byref(config), ctypes.sizeof(config)), "bp_pack_config_init")
        if known is not None:
            array = self.array(known)
            config.known = ctypes.cast(array, ctypes.POINTER(c_uint64))
        for name, value in values.items():
            setattr(config, name, value)
        offsets = self.array([UNWRITTEN] * len(self.instance.sizes))
        check(lib, lib.bp_pack(self.handle, byref(config), offsets, byref(result)), "bp_pack")
        assert result.bound == self.bound()
        assert result.bound <= result.proven <= result.bytes
        assert result.optimal == (result.proven == result.bytes)
        fits = not config.capacity or result.bytes <= config.capacity
        gone = not fits and result.proven > config.capacity
        assert result.outcome == (b.PACK_PLACED if fits else b.PACK_INFEASIBLE if gone else b.PACK_NOT_FOUND)
        placed = list(offsets)[:-1]
        if not fits:
            assert all(offset == UNWRITTEN for offset in placed)
            return result, placed
        assert self.check(placed, result.bytes) and self.instance.height(placed) == result.bytes
        items = self.instance.items()
        assert all(placed[i] == 0 for i in range(len(placed)) if i not in items)
        divisor = math.gcd(*(self.instance.sizes[i] for i in items))
        assert known is not None or all(placed[i] % divisor == 0 for i in items)
        event(f"by {result.method.decode()}")
        return result, placed


class Packs(unittest.TestCase):
    @SETTINGS
    @given(st.one_of(instances(6, 9), cycles()), st.data())
    def test_small(self, instance, data):
        optimum = instance.optimum()
        with Packing(instance) as packing:
            result, offsets = packing.pack()
            assert (result.bytes, result.optimal) == (optimum, 1), f"{result.bytes} bytes, the optimum is {optimum}"
            event("above the bound" if optimum > result.bound else "at the bound")
            largest = max((instance.sizes[i] for i in instance.items()), default=0)
            capacity = data.draw(st.integers(max(1, largest), max(1, largest, optimum + 2)))
            result, _ = packing.pack(capacity=capacity)
            assert result.outcome == (b.PACK_PLACED if optimum <= capacity else b.PACK_INFEASIBLE)
            result, _ = packing.pack(known=offsets, work=1)
            assert (result.bytes, result.outcome) == (optimum, b.PACK_PLACED)
            moved = list(offsets)
            for item in data.draw(st.lists(st.sampled_from(range(len(moved))), max_size=3)) if moved else []:
                moved[item] = data.draw(st.sampled_from(offsets)) + data.draw(st.integers(0, 1))
                packing.check(moved, optimum)

    @SETTINGS
    @given(instances(30, 1000), st.sampled_from((1, 100, 10000, 1000000)), st.data())
    def test_larger(self, instance, work, data):
        with Packing(instance) as packing:
            result, offsets = packing.pack(work=work)
            again, same = packing.pack(work=work)
            assert offsets == same and (result.bytes, result.proven, result.work) == (again.bytes, again.proven,
                                                                                      again.work)
            more, _ = packing.pack(work=10 * work)
            assert (
                more.bytes <= result.bytes
            ), f"{result.bytes} bytes with work {work}, {more.bytes} with ten times that"
            assert more.proven <= result.bytes and result.proven <= more.bytes
            kept, _ = packing.pack(known=offsets, work=1)
            assert kept.bytes <= result.bytes
            largest = max((instance.sizes[i] for i in instance.items()), default=0)
            low, high = max(1, largest), max(1, largest, 2 * result.bytes)
            limited, _ = packing.pack(work=work, capacity=data.draw(st.integers(low, high)))
            assert limited.bytes >= result.proven and limited.proven <= result.bytes


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
