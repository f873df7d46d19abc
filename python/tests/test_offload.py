# SPDX-License-Identifier: Apache-2.0
"""Offload of release groups: bytes and addresses after restoring, refusals, leases, host memory."""

import ctypes
import gc
import unittest

import bucketpool as bp
from support import Served, committed

STATE = ("param", "grad", "state", "main_grad", "optimizer")


class Phases:
    """A pool with state roles, whose requests are live."""

    def __init__(self, **options):
        self.served = Served(roles=STATE, **options)
        self.pool, self.device, self.stream = self.served.pool, self.served.device, self.served.stream
        state = [r.role in ("state", "main_grad", "optimizer") for r in self.served.plan.requests]
        self.ids = [id for id in self.served.ids if state[id]]
        self.views = self.pool.acquire(self.ids, self.stream)

    def write(self, round):
        for view in self.views:
            self.stream.fill(view, (16 * round + view.id + 1) % 256)

    def found(self, role):
        """The first and the last byte of the requests of a role."""
        self.stream.synchronize()
        chosen = [view for view in self.views if view.role == role]
        return [(ctypes.string_at(view.address, 1)[0], ctypes.string_at(view.address + view.bytes - 1, 1)[0])
                for view in chosen]

    def written(self, role, round):
        return [((16 * round + view.id + 1) % 256, ) * 2 for view in self.views if view.role == role]


def residencies(offload):
    return {group.name: group.residency for group in offload.groups}


class Offloads(unittest.TestCase):
    def test_phases(self):
        for backing in ("auto", "pinned", "staged"):
            one = Phases()
            before = committed(one.device)
            addresses = [view.address for view in one.views]
            with bp.Offload(one.pool, backing=backing, chunk_bytes=4096) as offload:
                self.assertEqual(sorted(residencies(offload)), sorted(STATE))
                for round in range(3):
                    one.write(round)
                    with offload.offloaded(["state", "optimizer"], ["param", "grad"], ["main_grad"]):
                        self.assertEqual(set(residencies(offload).values()), {"offloaded"})
                        self.assertEqual(committed(one.device), 0)
                        kept = {group.name: group.kept_bytes for group in offload.groups}
                        self.assertGreater(kept["optimizer"], 0)
                        self.assertEqual((kept["main_grad"], kept["param"]), (0, 0))
                    self.assertEqual(set(residencies(offload).values()), {"resident"})
                    self.assertEqual(committed(one.device), before)
                    self.assertEqual([one.pool.address(id)[0] for id in one.ids], addresses)
                    for role in ("state", "optimizer"):
                        self.assertEqual(one.found(role), one.written(role, round))
                    self.assertEqual(set(one.found("main_grad")), {(0, 0)})
                group, = [group for group in offload.groups if group.name == "optimizer"]
                self.assertEqual((group.offloads, group.restores, group.pinned), (3, 3, backing != "staged"))
                self.assertGreater(group.host_bytes, 0)
                self.assertEqual(group.copied_bytes, group.bytes)
                offload.trim()
                self.assertEqual(sum(group.host_bytes for group in offload.groups), 0)
            view = one.served.take(0)
            view.release()

    def test_overlap(self):
        """Copies of one group run beside work in another; its own requests are refused."""
        one = Phases()
        offload = bp.Offload(one.pool)
        one.write(1)
        offload.begin("optimizer")
        offload.begin("param", keep=False)
        self.assertEqual(residencies(offload)["optimizer"], "offloading")
        with self.assertRaises(bp.ScheduleError) as caught:
            one.served.take(0)
        self.assertIn("param", str(caught.exception))
        self.assertIsNone(one.pool.try_acquire([one.served.param(0)], one.stream))
        offload.finish("optimizer")
        offload.finish("param")
        self.assertEqual(one.found("state"), one.written("state", 1))
        offload.begin_restore("optimizer")
        offload.begin_restore("param", zero=True)
        self.assertEqual(residencies(offload)["param"], "restoring")
        offload.finish_restore("optimizer")
        offload.finish_restore("param")
        self.assertEqual(one.found("optimizer"), one.written("optimizer", 1))
        view = one.served.take(0)
        self.assertEqual(ctypes.string_at(view.address, view.bytes), bytes(view.bytes))
        view.release()

    def test_refusals(self):
        one = Phases()
        offload = bp.Offload(one.pool)
        held = one.served.take(2)
        self.refuses(bp.ScheduleError, lambda: offload.begin("param"), "u2")
        self.refuses(bp.InvalidArgument, lambda: offload.begin("params"), "main_grad")
        self.refuses(bp.ScheduleError, lambda: offload.finish("grad"), "grad")
        self.refuses(bp.ScheduleError, lambda: offload.begin_restore("grad"), "grad")
        self.refuses(bp.InvalidArgument, lambda: offload.restore(["x"]), "optimizer")
        self.refuses(bp.InvalidArgument, lambda: offload.offload("optimizer"), "keep: expected a list")
        self.refuses(bp.InvalidArgument, lambda: offload.offload(["grad"], ["grad"]), "twice")
        self.refuses(bp.ScheduleError, lambda: bp.Offload(one.pool), "offload")
        self.refuses(bp.InvalidArgument, lambda: bp.Offload(Phases().pool, backing="disk"), "staged")
        self.refuses(bp.InvalidArgument, lambda: bp.Offload(Phases().pool, chunk_bytes=-1), "chunk_bytes")
        with self.assertRaises(bp.ScheduleError):  # the second group refuses: the first one is restored
            with offload.offloaded(["optimizer"], ["param"]):
                self.fail("param is in use")
        self.assertEqual(set(residencies(offload).values()), {"resident"})
        held.release()
        with self.assertRaises(ZeroDivisionError):
            with offload.offloaded(discard=["param"]):
                self.refuses(bp.InvalidArgument, lambda: offload.offloaded(["param"]).__enter__(), "is offloaded")
                raise ZeroDivisionError
        one.served.take(2).release()
        self.refuses(bp.Unsupported, lambda: bp.Offload(Served(guard="on").pool), "guard")
        self.refuses(bp.Unsupported, lambda: bp.Offload(Served(bp.Device.null()).pool), "memory")

    def refuses(self, kind, function, words):
        with self.assertRaises(kind) as caught:
            function()
        self.assertIn(words, str(caught.exception))

    def test_full_device(self):
        """Another phase has taken the memory: the restore is refused with the numbers, and can be repeated."""
        size = Phases().pool.statistics.slab_bytes
        one = Phases(device=bp.Device.host(memory_bytes=size))
        one.write(2)
        offload = bp.Offload(one.pool)
        offload.offload(["state", "optimizer"], ["param", "grad", "main_grad"])
        other = Phases(device=one.device)
        self.refuses(bp.NoDeviceMemory, offload.restore, "bytes")
        self.assertEqual(residencies(offload)["optimizer"], "offloaded")
        other.views.clear()
        other.pool.close()
        offload.restore(zero=["main_grad"])
        self.assertEqual(one.found("optimizer"), one.written("optimizer", 2))
        self.assertEqual(set(one.found("main_grad")), {(0, 0)})

    def test_leases(self):
        one = Phases()
        offload = bp.Offload(one.pool)
        with offload.lease("optimizer", "checkpoint 7") as lease:
            self.refuses(bp.ScheduleError, lambda: offload.begin("optimizer"), "checkpoint 7")
            self.assertEqual([group.leases for group in offload.groups if group.name == "optimizer"], [1])
        self.assertTrue(lease.closed)
        offload.offload(["optimizer"])
        self.refuses(bp.ScheduleError, lambda: offload.lease("optimizer", "late"), "late")
        self.refuses(bp.InvalidArgument, lambda: offload.lease("optimise", "late"), "optimizer")
        offload.restore()
        lease = offload.lease("optimizer", "forgotten")
        del lease
        gc.collect()
        offload.offload(["optimizer"])

    def test_shared_pinned_memory(self):
        """Offloads of two pools share a source, and its limit; what exceeds it is staged or refused."""
        device = bp.Device.host()
        pinned = bp.Pinned(device, "plain", max_bytes=64 << 20, planned_bytes=1 << 16, huge_pages=False)
        pools = [Phases(device=device, dtype="fp32", sizes=(500000, ) * 3) for _ in range(2)]
        offloads = [bp.Offload(one.pool, "pinned", pinned=pinned) for one in pools]
        for round, (one, offload) in enumerate(zip(pools, offloads)):
            one.write(round)
            offload.offload(["optimizer"])
        kept = sum(group.kept_bytes for offload in offloads for group in offload.groups)
        statistics = pinned.statistics
        self.assertGreaterEqual(statistics.planned_bytes, kept)
        self.assertEqual(statistics.allocator, "plain")
        pinned.close()
        for round, (one, offload) in enumerate(zip(pools, offloads)):
            offload.restore()
            self.assertEqual(one.found("optimizer"), one.written("optimizer", round))
        small = bp.Pinned(device, max_bytes=1 << 18, slab_bytes=1 << 17, planned_bytes=1 << 16)
        one = Phases(device=device, dtype="fp32", sizes=(500000, ) * 3)
        offload = bp.Offload(one.pool, "pinned", pinned=small)
        self.refuses(bp.NoHostMemory, lambda: offload.begin("optimizer"), "optimizer")
        self.refuses(bp.InvalidArgument, lambda: bp.Pinned(device, numa_node=999), "numa_node")
        self.refuses(bp.InvalidArgument, lambda: bp.Pinned(device, "mimalloc"), "jemalloc")

    def test_lifetimes(self):
        """Offload and pool may be closed in any order."""
        one = Phases()
        offload = bp.Offload(one.pool)
        offload.offload(["optimizer"])
        one.views.clear()
        one.pool.close()
        self.assertEqual(committed(one.device), 0)
        self.refuses(bp.InvalidArgument, lambda: offload.begin("grad"), "pool")
        self.assertEqual(residencies(offload)["optimizer"], "offloaded")
        offload.close()
        self.refuses(bp.InvalidArgument, lambda: offload.groups, "closed")
        self.assertEqual(repr(offload), "<Offload, closed>")
        two = Phases()
        bp.Offload(two.pool).close()
        with bp.Offload(two.pool) as again:
            self.assertIn("optimizer resident", repr(again))

    def test_renamed_groups(self):
        """Slabs with one name in the plan move together."""
        from support import small_plan

        _, _, plan = small_plan(roles=STATE)
        for slab, info in enumerate(plan.slabs):
            if info.group in ("state", "optimizer"):
                plan.set_group(slab, "sharded")
        device = bp.Device.host()
        with bp.Pool(device, plan) as pool, bp.Offload(pool) as offload:
            sharded, = [group for group in offload.groups if group.name == "sharded"]
            self.assertEqual(sharded.slabs, 2)
            offload.offload(["sharded"])
            self.assertEqual(pool.statistics.slab_bytes - device.usage.committed_bytes, sharded.bytes)


if __name__ == "__main__":
    unittest.main()
