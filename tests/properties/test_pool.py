# SPDX-License-Identifier: Apache-2.0
"""Random calls on pools of random plans, against a reference model.

Arguments: the core library. BUCKETPOOL_EXAMPLES: how many pools (default 200). The same examples every time.

machine.py makes the calls, model.py is the reference model. The last class injects faults into the device, which the
tests must detect.
"""

import sys
import unittest
from ctypes import byref

from examples import EXAMPLES, SETTINGS

from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import bindings as b
import scenarios
from bindings import SCHEDULE, check, ids_array, made
from machine import SEEN, Fleet, Pool
from observed import Device

BATCH = 500  # limits memory: Hypothesis keeps 200 KiB per example
RUNS = settings(SETTINGS, stateful_step_count=40)
lib = b.load(sys.argv[1])
Pool.fleet = Fleet(lib)


class PoolOfBytes(Pool):
    """The same machine, checking the order by bytes only. Failures are kept, because a lost race may not repeat."""

    clocks = False
    objections: list = []

    def settle(self):
        try:
            super().settle()
        except AssertionError as error:
            self.objections.append(str(error))
            raise


class Properties(unittest.TestCase):
    def test_pools(self):
        for first in range(0, EXAMPLES, BATCH):
            count = min(BATCH, EXAMPLES - first)
            run_state_machine_as_test(seed(first)(Pool), settings=settings(RUNS, max_examples=count))
        reached = ", ".join(f"{name}: {count}" for name, count in sorted(SEEN.items()))
        print(f"compared {Pool.fleet.compared} bytes; {reached}")
        self.assertGreater(Pool.fleet.compared, 0)

    def single(self, streams):
        """A pool of one request, and streams, destroyed after the test."""
        device = Device(lib)
        made_streams = [device.make_stream() for _ in range(streams)]
        buckets = scenarios.make_buckets(lib, [[scenarios.Shape(64, 0, b.BF16)]], 1 << b.ROLE_PARAM)
        schedule = scenarios.make_schedule(lib, buckets, scenarios.Options(prefetch=0, grad_units=1))
        plan = scenarios.make_plan(lib, buckets, schedule, b.POLICY_MAX, 0, b.FALLBACK_PERSISTENT, 256)
        pool = made(lib, "bp_pool_create", device.handle, plan, scenarios.pool_config(lib))
        self.addCleanup(device.close)
        for stream in made_streams:
            self.addCleanup(device.destroy_stream, stream)
        for destroy, thing in ((lib.bp_plan_destroy, plan), (lib.bp_schedule_destroy, schedule),
                               (lib.bp_buckets_destroy, buckets), (lib.bp_pool_destroy, pool)):
            self.addCleanup(destroy, byref(thing))
        return pool, ids_array([0]), [stream.handle for stream in made_streams]

    def test_largest_reference_count(self):
        """A request takes 65535 references and no more, and ends with the last release."""
        pool, ids, (stream,) = self.single(1)
        for _ in range(b.MAX_REFERENCES):
            check(lib, lib.bp_pool_acquire(pool, ids, 1, stream, None), "bp_pool_acquire")
        self.assertEqual(lib.bp_pool_acquire(pool, ids, 1, stream, None), SCHEDULE)
        for _ in range(b.MAX_REFERENCES):
            check(lib, lib.bp_pool_release(pool, ids, 1, stream), "bp_pool_release")
        self.assertEqual(lib.bp_pool_release(pool, ids, 1, stream), SCHEDULE)

    def test_largest_number_of_streams(self):
        """Eight streams may use a request; every call with a ninth fails, and the eight still work."""
        pool, ids, streams = self.single(b.LIVE_STREAMS + 1)
        for _ in range(2):
            check(lib, lib.bp_pool_acquire(pool, ids, 1, streams[0], None), "bp_pool_acquire")
            check(lib, lib.bp_pool_acquire(pool, ids, 1, streams[1], None), "bp_pool_acquire")
            for stream in streams[2:-1]:
                check(lib, lib.bp_pool_use(pool, ids, 1, stream), "bp_pool_use")
            for name in ("bp_pool_use", "bp_pool_release"):
                self.assertEqual(getattr(lib, name)(pool, ids, 1, streams[-1]), SCHEDULE)
            self.assertEqual(lib.bp_pool_acquire(pool, ids, 1, streams[-1], None), SCHEDULE)
            for stream in streams[3:5]:
                check(lib, lib.bp_pool_release(pool, ids, 1, stream), "bp_pool_release")
            streams.reverse()


class SelfTest(unittest.TestCase):
    """The machine must fail on a device with injected faults: evidence that it can detect them."""

    def fails_on(self, machine, sabotage, words):
        whole, Pool.fleet = Pool.fleet, Fleet(lib, sabotage)
        PoolOfBytes.objections = []
        try:
            with self.assertRaises(Exception) as caught:
                run_state_machine_as_test(
                    machine, settings=settings(RUNS, max_examples=300, phases=(Phase.generate,)))
            self.assertRegex("\n".join([str(caught.exception)] + PoolOfBytes.objections), words)
        finally:
            Pool.fleet = whole

    def test_missing_waits_by_clocks(self):
        self.fails_on(Pool, "drop", "does not wait")

    def test_missing_waits_by_bytes(self):
        self.fails_on(PoolOfBytes, "drop", "bytes wrong")

    def test_waits_for_later_work(self):
        self.fails_on(Pool, "late", "waits for more")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=1)
