# SPDX-License-Identifier: Apache-2.0
"""Plans that follow a module's passes: from the first one on, after others than planned, and when the plan stays."""

import pytest
import torch

import bucketpool as bp
from bucketpool.torch.replanner import Replanner

UNITS = ["one", "two"]


class Module:
    """The calls of an adapter."""

    def __init__(self, **pool_options):
        self.replanner = Replanner("module", UNITS, bp.Device.host(), {}, pool_options)
        self.pools = []

    def run(self, order, numel=1000, dtype=torch.float32, differs=""):
        """One pass, all-gathers one after the other."""
        for unit in order:
            if self.replanner.begins(unit, "forward"):
                self.replanner.next_pass(lambda: self.pools.append(self.replanner.pool), lambda: self.pools.append("left"))
            self.replanner.asked(unit, unit, "param", "", numel, dtype)
            self.replanner.released(unit)
        if differs:
            self.replanner.differs(differs)

    @property
    def sizes(self):
        return {slot.unit: size.numel for slot, size in self.replanner.planned.sizes.items()}


def test_passes():
    module = Module()
    module.run(UNITS)
    assert module.replanner.plan is None
    module.run(UNITS)
    first = module.replanner.pool
    assert module.pools == [first] and module.sizes == {"one": 1000, "two": 1000}
    assert module.replanner.plan.bytes == module.replanner.plan.lower_bound_bytes < 2 * 4000
    module.run(UNITS, 2000, differs="twice as large")
    module.run(UNITS)
    assert module.pools == [first, "left", module.replanner.pool] and first.closed
    assert module.sizes == {"one": 2000, "two": 2000} and module.replanner.replans == ["twice as large"]
    module.run(UNITS, 500, torch.bfloat16, differs="other dtypes")
    module.run(UNITS)
    assert module.sizes == {"one": 500, "two": 500}  # the former timelines do not go with these dtypes
    module.replanner.pool.addresses_known = True
    module.run(UNITS, 3000, differs="too late")
    module.run(UNITS)
    assert module.sizes == {"one": 500, "two": 500} and "too late" not in module.replanner.replans
    module.replanner.close()


def test_kept_plans():
    """Passes that cannot be planned, and plans without memory, leave a pool of the old plan."""
    module = Module()
    module.run(UNITS)
    module.run(UNITS, 1 << 50, differs="larger than the machine")
    module.run(UNITS)
    assert "larger than the machine; kept the plan: " in module.replanner.replans[0]
    assert module.sizes == {"one": 1000, "two": 1000} and module.pools[1:] == ["left", module.replanner.pool]
    assert not module.replanner.pool.closed
    module.run(["one", "one"], dtype=torch.bfloat16)
    module.replanner.asked("two", "two", "param", "", 1000, torch.float32)  # live at the end of the pass
    module.replanner.differs("an unfinished pass")
    module.run(UNITS)
    assert "unfinished pass; kept the plan: recording: it ends while" in module.replanner.replans[1]
    for number in range(20):
        module.run(UNITS, 1000 + number, differs=f"difference {number}")
    assert len(module.replanner.replans) == 16 and not module.replanner.recording
    module.replanner.close()


def test_errors_of_the_first_plan():
    module = Module()
    module.run(UNITS, 1 << 50)
    with pytest.raises(bp.errors.NoDeviceMemory):
        module.run(UNITS)
    assert module.replanner.pool is None
