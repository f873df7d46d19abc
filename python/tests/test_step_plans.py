# SPDX-License-Identifier: Apache-2.0
"""Plans of training steps: from events, kinds, files and snapshots."""

import copy
import os
import pickle
import tempfile
import unittest

import bucketpool as bp
from bucketpool.step_plan import StepEvent, StepItem, StepKind, StepPlan

from support import SOURCES

KIB = 1024
STEPS = os.path.join(SOURCES, "examples", "files", "llama_steps.pickle")


def step(base, sizes):
    """Allocations that are freed in reverse order, and a mark."""
    live = [StepEvent("allocate", base + number, size) for number, size in enumerate(sizes)]
    return [*live, *(StepEvent("free", event.address) for event in reversed(live)), ("mark", )]


def kind(*items, **more):
    return StepKind(tuple(items), **more)


class FromEvents(unittest.TestCase):
    def test_steps(self):
        sizes = [3 * KIB, 700, 9 * KIB]
        plan = StepPlan.from_events([StepEvent("allocate", 7, 64 * KIB), *step(100, sizes), *step(200, sizes), *step(300, sizes)],
                                    reserved_before_bytes=80 * KIB)
        self.assertEqual((plan.bytes, plan.lower_bound_bytes, plan.optimal), (13 * KIB, 13 * KIB, True))
        self.assertEqual((plan.reserved_before_bytes, plan.streams, plan.waits), (80 * KIB, [0], []))
        self.assertEqual(plan.bytes_without_windows, plan.bytes)
        self.assertGreaterEqual(plan.peak_live_bytes, plan.bytes)
        steady, = (each for each in plan.kinds if not each.is_first)
        self.assertEqual([item.bytes for item in steady.items], sizes)
        self.assertEqual((steady.steps, plan.allocations), (2, max(len(each.items) for each in plan.kinds)))
        ends = sorted((item.offset, item.offset + -(-item.bytes // 512) * 512) for item in steady.items)
        self.assertTrue(all(a[1] <= b[0] for a, b in zip(ends, ends[1:])), "all are live together")

    def test_held(self):
        sizes = [4 * KIB, 4 * KIB]
        events = [*step(100, sizes), *step(200, sizes), *step(300, sizes)]
        plan = StepPlan.from_events(events, is_from_start=False, held=[(4 * KIB, 512)])
        for each in plan.kinds[0].items:
            self.assertTrue(each.offset >= 4 * KIB + 512 or each.offset + each.bytes <= 4 * KIB, each)

    def test_refusals(self):
        for events, message in (([], ""), ([("grow", 1, 2)], "expected one of allocate, free, mark"), (7, "expected a list"),
                                ([("allocate", -1, 2)], "an address"), ([("allocate", 1, 2, 1 << 32)], "a stream")):
            with self.subTest(events=events), self.assertRaisesRegex(bp.InvalidArgument, message):
                StepPlan.from_events(events)
        for options, message in (({"held": [3]}, "pairs"), ({"held": [(1, 512)]}, ""), ({"lead": -1}, "lead"), ({"is_from_start": "no"}, "True or False")):
            with self.subTest(options=options), self.assertRaisesRegex(bp.InvalidArgument, message):
                StepPlan.from_events([*step(1, [512]), *step(9, [512])], **options)
        with self.assertRaises(TypeError):
            StepPlan()


class FromKinds(unittest.TestCase):
    def test_contents(self):
        kinds = [kind(StepItem(1000, 0, 0, "train.py:3"), StepItem(5, None, 1, "", True), marks=(0, 1), is_first=True, steps=2, bytes=1024,
                      lower_bound_bytes=1024, proven_bytes=512, method="none"), kind(StepItem(512, 512, 0, "train.py:3"), marks=())]
        plan = StepPlan.from_kinds(kinds, 1024, streams=[0, 0x55], reserved_before_bytes=4096)
        self.assertEqual(plan.kinds, kinds)
        self.assertEqual((plan.places, plan.streams, plan.bytes, plan.lower_bound_bytes), (["train.py:3"], [0, 0x55], 1024, 1024))
        self.assertEqual((plan.reserved_before_bytes, plan.allocations), (4096, 2))
        self.assertIn("1024 bytes", repr(plan))

    def test_refusals(self):
        for item in (StepItem(513, 512), StepItem(8, 3), StepItem(8, 0, 1), StepItem(-1, 0)):
            with self.subTest(item=item), self.assertRaises(bp.InvalidArgument):
                StepPlan.from_kinds([kind(item)], 1024)
        with self.assertRaises(bp.InvalidArgument):
            StepPlan.from_kinds([kind(StepItem(8, 0), marks=(2, ))], 1024)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "plan.json")
        self.addCleanup(self.folder.cleanup)

    def test_snapshot(self):
        plan = StepPlan.from_snapshot(STEPS)
        self.assertGreater(plan.bytes, 6 << 30)
        self.assertTrue(plan.optimal)
        self.assertTrue(any("train.py" in place for place in plan.places))
        plan.write(self.path)
        again = StepPlan.read(self.path)
        self.assertEqual(again.kinds, plan.kinds)
        self.assertEqual(StepPlan.read(self.path).bytes, plan.bytes)
        with open(self.path, encoding="utf-8") as file:
            self.assertEqual(StepPlan.parse(file.read()).kinds, plan.kinds)
        self.assertEqual(pickle.loads(pickle.dumps(plan)).kinds, plan.kinds)
        self.assertEqual(copy.copy(plan).bytes, plan.bytes)
        with self.assertRaises(bp.FormatError):
            StepPlan.from_snapshot(STEPS, ordinal=3)

    def test_refusals(self):
        with self.assertRaisesRegex(bp.FileError, "plan.json"):
            StepPlan.read(self.path)
        for text in ("", "{}", '{"format": "bucketpool.plan/1"}', "[1, 2]"):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(text=text), self.assertRaisesRegex(bp.FormatError, "plan.json"):
                StepPlan.read(self.path)
        with self.assertRaises(bp.FormatError):
            StepPlan.parse(b"\xff", "here")
        with self.assertRaises(bp.InvalidArgument):
            StepPlan.parse(7)


if __name__ == "__main__":
    unittest.main()
