# SPDX-License-Identifier: Apache-2.0
"""Plans of other schedules, peaks, offsets of any items, and documents from memory."""

import itertools
import json
import os
import tempfile
import unittest

import bucketpool as bp
from support import MODELS, small_plan


class WhatIf(unittest.TestCase):
    def test_alternatives(self):
        """Each alternative is the plan that Plan makes of it."""
        buckets, _, plan = small_plan()
        found = bp.alternatives(buckets, max_prefetch=2, prefetch=1, grad_units=2)
        self.assertEqual({(a.prefetch, a.streams, a.joint) for a in found},
                         set(itertools.product((0, 1, 2), ("separate", "unified"), (False, True))))
        for a in found:
            schedule = bp.Schedule.training(buckets, prefetch=a.prefetch, streams=a.streams)
            again = bp.Plan(buckets, schedule, joint=a.joint)
            self.assertEqual((a.bytes, a.lower_bound_bytes, a.optimal),
                             (again.bytes, again.lower_bound_bytes, again.optimal))
            self.assertEqual(a.max_bytes, bp.Plan(buckets, schedule, policy="max").bytes)
            self.assertLessEqual(a.live_bytes, a.bytes)
        present, = [a for a in found if a.is_present]
        self.assertEqual((present.prefetch, present.streams, present.joint, present.bytes),
                         (1, "separate", False, plan.bytes))
        self.assertEqual(found, bp.alternatives(buckets, max_prefetch=2, present=plan))
        self.assertRaises(bp.InvalidArgument, bp.alternatives, buckets, max_prefetch=65)
        self.assertRaises(TypeError, bp.alternatives, buckets, prefetches=1)

    def test_peaks(self):
        """The holders are the requests that are live in the step, and sum up to the lower bound."""
        buckets, schedule, plan = small_plan((5000, 1000, 3000, 7000, 1000))
        found = bp.peaks(buckets, schedule, plan)
        self.assertEqual([peak.roles for peak in found], [role.roles for role in plan.roles])
        for peak, role in zip(found, plan.roles):
            live = {(r.unit, r.role) for id, r in enumerate(buckets.requests) if r.role in peak.roles
                    and any(begin <= peak.step < end for begin, end in schedule.intervals(id))}
            self.assertEqual({(holder.unit, holder.role) for holder in peak.holders}, live)
            self.assertEqual(sum(holder.bytes for holder in peak.holders), peak.bytes)
            self.assertEqual((peak.bytes, peak.step), (role.lower_bound_bytes, role.lower_bound_step))
            self.assertLessEqual(peak.below_bytes, peak.next_bytes)
        with self.assertRaises(bp.InvalidArgument):
            bp.peaks(buckets, small_plan((1, 2))[1], plan)


class Packings(unittest.TestCase):
    def test_packing(self):
        packing = bp.Packing()
        for item, (size, intervals) in enumerate([(40, [(0, 2)]), (10, [(1, 3)]), (40, [(2, 5)]), (7, [])]):
            self.assertEqual(packing.add(size, intervals), item)
        self.assertEqual((len(packing), packing.bound()), (4, (50, [0, 1])))
        placed = packing.pack()
        self.assertEqual((placed.outcome, placed.bytes, placed.optimal, placed.bound), ("placed", 50, True, 50))
        packing.check(placed.offsets, 50)
        self.assertRaises(bp.Mismatch, packing.check, placed.offsets, 49)
        self.assertRaises(bp.Mismatch, packing.check, [0] * 4, 100)
        packing.conflict(0, 2)
        self.assertEqual(packing.pack().bytes, 90)
        self.assertEqual(packing.pack(known=[0, 80, 40, 0]).bytes, 90)
        refused = packing.pack(capacity=89)
        self.assertEqual((refused.outcome, refused.offsets), ("infeasible", []))
        self.assertEqual(bp.Packing().pack()[:3], ("placed", [], 0))
        for wrong in (lambda: packing.add(-1), lambda: packing.add(1, [(2, 2)]), lambda: packing.conflict(0, 9),
                      lambda: packing.conflict(1, 1), lambda: packing.pack(capacity=39),
                      lambda: packing.pack(known=[0]), lambda: packing.pack(known=[0] * 4)):
            self.assertRaises((bp.InvalidArgument, bp.Mismatch), wrong)
        self.assertEqual(len(packing), 4)


class Documents(unittest.TestCase):
    def test_models(self):
        path = os.path.join(MODELS, "Qwen3-0.6B", "config.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        read = bp.Model.read(path)
        for document in (text, text.encode(), json.loads(text)):
            parsed = bp.Model.parse(document, path)
            self.assertEqual(bp.Buckets(parsed).requests, bp.Buckets(read).requests)
        self.assertEqual(bp.Model.parse(text, name="mine").name, "mine")
        with self.assertRaises(bp.FormatError) as caught:
            bp.Model.parse("{", "my settings")
        self.assertIn("my settings", str(caught.exception))
        self.assertRaises(bp.Unsupported, bp.Model.parse, {"model_type": "perceptron"})
        read.add_note("a vision tower")
        self.assertIn("a vision tower", read.notes)

    def test_units_and_plans(self):
        buckets, schedule, plan = small_plan()
        model = bp.Model("small")
        model.add_bucket(model.add_unit("u0"), "bf16", 1000)
        with tempfile.TemporaryDirectory() as folder:
            model.write_units(os.path.join(folder, "units.json"))
            plan.write(os.path.join(folder, "plan.json"))
            with open(os.path.join(folder, "units.json"), encoding="utf-8") as file:
                self.assertEqual(bp.Model.parse(file.read()).name, "small")
            with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
                text = file.read()
        parsed = bp.Plan.parse(text)
        self.assertEqual(parsed.fingerprint, plan.fingerprint)
        self.assertEqual([r._replace(bucket=None) for r in parsed.requests], plan.requests)
        parsed.check(buckets, schedule)
        with self.assertRaises(bp.FormatError) as caught:
            bp.Plan.parse(text[:-9], "plan of rank 3")
        self.assertIn("plan of rank 3", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
