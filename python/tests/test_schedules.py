# SPDX-License-Identifier: Apache-2.0
"""Schedules of FSDP2's buckets, compared with a naive host that gathers, copies out, reduces and drops one buffer after
another. Units are nested at random.
"""

import itertools
import random
import unittest

import bucketpool as bp


class Host:
    """One rank's host in one step of FSDP2: the buffers that it holds at once."""

    def __init__(self, prefetch, prefetch_backward, inputs, keep):
        self.prefetch, self.prefetch_backward, self.inputs, self.keep = prefetch, prefetch_backward, inputs, keep
        self.held, self.conflicts, self.peak = [], set(), 0

    def acquire(self, unit, role, bytes):
        self.held.append((unit, role, bytes))
        names = [(unit, role) for unit, role, _ in self.held]
        self.conflicts |= {frozenset(pair) for pair in itertools.combinations(names, 2) if pair[0] != pair[1]}
        self.peak = max(self.peak, sum(bytes for _, _, bytes in self.held))

    def drop(self, unit, role):
        self.held = [each for each in self.held if each[:2] != (unit, role)]

    def gather(self, unit):
        if not any(each[:2] == (unit.name, "param") for each in self.held):
            self.acquire(unit.name, "param", unit.bytes)

    def forward(self, entered):
        for index, unit in enumerate(entered):
            self.gather(unit)
            if index > 0:  # this unit has copied out: FSDP2 drops the output of the one before
                self.drop(entered[index - 1].name, "param")
            ahead = self.prefetch if self.prefetch > 1 else 0
            for later in entered[index + 1:index + 1 + ahead]:
                self.gather(later)
        self.drop(entered[-1].name, "param")

    def backward(self, events, left):
        gathers = [unit for unit in left if not self.keep and unit.name != "(root)"]
        reducing = []
        for enters, unit in events:
            if not enters:
                if unit.frozen:
                    continue
                while len(reducing) >= self.inputs:
                    self.drop(reducing.pop(0), "grad")
                self.acquire(unit.name, "grad", unit.bytes)
                reducing.append(unit.name)
                continue
            if unit in gathers:
                self.gather(unit)
                self.drop(unit.name, "param")
            place = left.index(unit)
            for later in left[place + 1:place + 1 + max(1, self.prefetch_backward)]:
                if later in gathers:
                    self.gather(later)
        while reducing:
            self.drop(reducing.pop(0), "grad")


class Unit:
    def __init__(self, name, numel, frozen):
        self.name, self.bytes, self.frozen, self.children = name, 4 * numel, frozen, []


def random_units(chance, prefix="u", depth=0):
    units = [Unit(f"{prefix}{i}", chance.randrange(1, 50) * 4, chance.random() < 0.1) for i in range(chance.randrange(1, 5))]
    for unit in units:
        if depth < 2 and chance.random() < 0.4:
            unit.children = random_units(chance, unit.name + ".", depth + 1)
    return units


def passage(units):
    """(enters, unit) in the order of forward."""
    for unit in units:
        yield True, unit
        yield from passage(unit.children)
        yield False, unit


class Schedules(unittest.TestCase):
    def modelled(self, units, root):
        model = bp.Model("m")

        def add(unit, parent):
            index = model.add_unit(unit.name, parent)
            model.add_parameter(unit.name, [unit.bytes // 4], "fp32", unit=index, frozen=unit.frozen)
            for child in unit.children:
                add(child, index)
        for unit in units:
            add(unit, None)
        if root is not None:
            model.add_parameter("root", [root.bytes // 4], "fp32", frozen=root.frozen)
        return model

    def conflicts(self, buckets, schedule):
        live = [((request.unit, request.role), schedule.intervals(id)) for id, request in enumerate(buckets.requests)]
        return {frozenset((one, other)) for (one, mine), (other, theirs) in itertools.combinations(live, 2)
                if any(a < d and c < b for a, b in mine for c, d in theirs)}

    def test_nested_units(self):
        for seed in range(300):
            chance = random.Random(seed)
            units = random_units(chance)
            root = Unit("(root)", chance.randrange(1, 50) * 4, chance.random() < 0.1) if chance.random() < 0.7 else None
            options = {"prefetch": chance.randrange(4), "prefetch_backward": chance.randrange(4),
                       "grad_units": chance.randrange(1, 5), "keep_after_forward": chance.random() < 0.3}
            top = units
            if root is not None:
                root.children, top = units, [root]
            events = list(passage(top))
            entered = [unit for enters, unit in events if enters]
            left = [unit for enters, unit in events if not enters][::-1]
            host = Host(options["prefetch"], options["prefetch_backward"], max(1, options["grad_units"] - 1),
                        options["keep_after_forward"])
            host.forward(entered)
            host.backward([(not enters, unit) for enters, unit in events[::-1]], left)
            self.assertEqual(host.held, [])
            buckets = bp.Buckets(self.modelled(units, root), "fsdp2", dp=4)
            schedule = bp.Schedule.training(buckets, **options)
            self.assertEqual(self.conflicts(buckets, schedule), host.conflicts, (seed, options))
            plan = bp.Plan(buckets, schedule, joint=True, alignment=1, work=1)
            self.assertEqual(plan.lower_bound_bytes, host.peak, (seed, options))
            plan.check(buckets, schedule)

    def test_repeated_units(self):
        """A module that runs twice is gathered and reduced each time."""
        model = bp.Model("m")
        for name in ("a", "b"):
            model.add_parameter(name, [4], "fp32", unit=model.add_unit(name))
        model.set_order([0, 1, 0])
        buckets = bp.Buckets(model, "fsdp2", dp=4)
        steps = [(step.phase, step.unit) for step in bp.Schedule.training(buckets).steps]
        self.assertEqual(steps, [("forward", 0), ("forward", 1), ("forward", 0), ("backward_gather", 0), ("backward", 0),
                                 ("reduce", 0), ("backward", 1), ("reduce", 1), ("backward", 0), ("reduce", 0)])

    def test_merged_models(self):
        """Each model's schedule is made first: a root group encloses its own units."""
        parts = [bp.Buckets(self.modelled([Unit("u", 8, False)], Unit("(root)", 8, False)), "fsdp2", dp=4) for _ in "ab"]
        merged = bp.Buckets.merged(dict(zip("ab", parts)))
        self.assertEqual((merged.units, merged.root), (["a/u", "a/(root)", "b/u", "b/(root)"], None))
        self.assertRaisesRegex(bp.InvalidArgument, "2 merged models", bp.Schedule.training, merged)
        both = bp.Schedule.merged([bp.Schedule.embedded(bp.Schedule.training(part), merged, index)
                                   for index, part in enumerate(parts)])
        self.assertEqual(bp.Plan(merged, both).bytes, bp.Plan(parts[0], bp.Schedule.training(parts[0])).bytes)


if __name__ == "__main__":
    unittest.main()
