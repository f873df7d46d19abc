# SPDX-License-Identifier: Apache-2.0
"""Pools serve buckets: order under injected delays, refusals with their text, what views allow, threads."""

import ctypes
import threading
import unittest

import bucketpool as bp
from bucketpool import _abi
from support import BRIEF, Served, small_plan

ROUNDS = 2 if BRIEF else 6


def bytes_of(view):
    return (ctypes.c_uint8 * view.bytes).from_address(view.address)


class Serving(unittest.TestCase):
    def test_steps_with_delays(self):
        """A gather, a compute and a reduce stream that pause at random: every bucket is read as it was written."""
        device = bp.Device.host(max_delay_us=200, delay_seed=3)
        served = Served(device)
        gather, compute = device.stream("gather"), device.stream("compute")
        requests = served.buckets.requests
        wrong, seen = [], 0
        for _ in range(ROUNDS):
            held = {}
            for event in served.schedule.events:
                ids = served.ids[event.first:event.first + event.requests]
                if event.acquire:
                    for view in served.pool.acquire(ids, gather):
                        held[view.id] = view
                        gather.fill(view, seen % 251 + 1)
                        compute.wait(gather)
                        compute.call(self.check(view, seen % 251 + 1, wrong))
                        seen += 1
                else:
                    served.pool.release([held.pop(id) for id in ids], compute)
            self.assertEqual(held, {})
        device.synchronize()
        self.assertEqual((wrong, seen > ROUNDS * len(requests)), ([], True))
        statistics = served.pool.statistics
        self.assertEqual((statistics.acquires, statistics.releases, statistics.live_requests), (seen, seen, 0))
        self.assertGreater(statistics.waits, 0)
        self.assertLessEqual(statistics.peak_live_bytes, served.plan.bytes)

    @staticmethod
    def check(view, value, wrong):
        address, size, text = view.address, view.bytes, repr(view)

        def look():
            found = ctypes.string_at(address, size)
            if found != bytes([value]) * size:
                wrong.append((text, value, found[0]))
        return look

    def test_planned_addresses(self):
        served = Served()
        slabs = served.pool.slabs
        for id, request in enumerate(served.plan.requests):
            where = slabs[request.slab].address + request.offset
            self.assertEqual(served.pool.address(id), (where, request.bytes))
            view, = served.pool.acquire([id], served.stream)
            self.assertEqual((view.address, view.bytes, view.unit, view.role, view.dtype, view.ordinal),
                             (where, request.bytes, request.unit, request.role, "bf16", 0))
            view.release()

    def test_events(self):
        """A trace has the events of the ring, oldest first."""
        served = Served()
        other = served.device.stream("other")
        self.assertEqual(served.pool.trace(), [])
        served.pool.trace_start(4, timestamps=True)
        served.pool.set_step(7)
        for _ in range(2):
            view = served.take(1)
            again, = served.pool.acquire([view.id], other)
            served.pool.use([view], other)
            again.release()
            view.release()
        served.take(0).release()
        served.pool.trace_stop()
        events = served.pool.trace()
        self.assertEqual([event.kind for event in events], ["unref", "release", "acquire", "release"])
        self.assertEqual([event.id for event in events], [view.id] * 2 + [served.param(0)] * 2)
        self.assertEqual({event.step for event in events}, {7})
        self.assertEqual(events[-1].address, served.pool.address(served.param(0))[0])
        times = [event.time_ns for event in events]
        self.assertTrue(0 < times[0] and times == sorted(times))

    def test_settings(self):
        served = Served(guard="on", annotate="off", capture_check="always")
        pool = served.pool
        self.assertEqual((pool.guarded, pool.annotated, pool.sealed, pool.capturing, pool.alignment),
                         (True, False, False, False, served.plan.alignment))
        pool.seal()
        self.assertTrue(pool.sealed)
        self.assertIsNone(served.device.gpu)
        for options in (dict(annotate="yes"), dict(capture_check="never")):
            with self.assertRaises(bp.InvalidArgument):
                Served(**options)

    def test_live_requests(self):
        served = Served()
        view = served.take(1)
        again, = served.pool.acquire([view.id], served.stream)
        self.assertEqual(again.address, view.address)
        self.assertEqual([(r.id, r.unit, r.references, r.stream) for r in served.pool.live()],
                         [(view.id, "u1", 2, "main")])
        self.assertIn("u1", served.pool.dump())
        view.release()
        self.assertTrue(view.released)
        self.assertFalse(again.released)
        served.pool.release([view.id], served.stream)  # by id: the last reference
        self.assertTrue(again.released)
        self.assertEqual(served.pool.live(), [])
        self.assertEqual(served.pool.request(view.id), served.plan.requests[view.id])
        self.assertEqual(served.pool.references(view.id), 0)

    def test_try_acquire_and_can_acquire(self):
        served = Served(sizes=(1000, 1000, 1000), policy="max", roles=("param",))
        first, second = served.take(0), served.take(1)
        third = served.param(2)  # of two copies, that of u0
        self.assertIsNone(served.pool.try_acquire([third], served.stream))
        self.assertFalse(served.pool.can_acquire([third]))
        self.assertTrue(served.pool.can_acquire([third], releasing=[first.id]))
        first.release()
        view, = served.pool.try_acquire([third], served.stream)
        served.pool.cancel([view])
        self.assertTrue(view.released)
        self.assertFalse(second.released)
        self.assertEqual(served.pool.statistics.cancelled, 1)
        self.assertEqual(served.pool.statistics.busy, 1)

    def test_holders_in_errors(self):
        served = Served(sizes=(1000, 1000, 1000), policy="max", roles=("param",))
        served.take(0), served.take(1)
        served.pool.set_step(77)
        with self.assertRaises(bp.ScheduleError) as caught:
            served.take(2)
        for word in ("u2", "u0", "77"):
            self.assertIn(word, str(caught.exception))
        self.assertEqual(len(served.pool.live()), 2)
        with self.assertRaises(bp.ScheduleError):
            served.pool.release([served.param(2)], served.stream)

    def test_find(self):
        served = Served()
        plan = served.plan
        self.assertEqual([plan.find(r.unit, r.ordinal, r.role, r.dtype, r.bytes) for r in plan.requests], served.ids)
        self.assertEqual(plan.find("u1", 0, "param"), served.param(1))
        for words, arguments in ((["u9"], ("u9", 0, "param", "bf16", 6000)),
                                 (["6000", "7000"], ("u1", 0, "param", "bf16", 7000)),
                                 (["bf16", "fp32"], ("u1", 0, "param", "fp32", 6000)),
                                 (["u1", "bucket.1"], ("u1", 1, "param"))):
            with self.assertRaises(bp.Mismatch) as caught:
                plan.find(*arguments)
            for word in words:
                self.assertIn(word, str(caught.exception))

    def test_binding(self):
        served = Served(persistent_bytes=8192)
        pool = served.pool
        outside = pool.bind("", 0, "param", "fp8_e4m3", 100)
        self.assertEqual(outside, len(served.plan.requests))
        self.assertEqual(pool.requests[:-1], served.plan.requests)
        self.assertEqual((pool.requests[-1].placement, pool.requests[-1].bytes), ("persistent", 100))
        pool.set_zero([outside], "all")
        view, = pool.acquire([outside], served.stream)
        self.assertEqual((view.unit, view.dtype, view.bytes), ("", "uint8", 100))
        served.stream.synchronize()
        self.assertEqual(bytes(bytes_of(view)), bytes(100))
        with self.assertRaises(bp.NoDeviceMemory) as caught:
            pool.bind("", 1, "param", "bf16", 1 << 20)
        self.assertIsInstance(caught.exception, MemoryError)
        for wrong in ({"bytes": -5}, {"placement": "somewhere"}, {"placement": "planned"}, {"used_bytes": 7000}):
            with self.assertRaises(bp.InvalidArgument, msg=wrong):
                pool.bind("u1", 0, "param", "bf16", **{"bytes": 6000, **wrong})

    def test_hostile_ids(self):
        served = Served()
        for ids in ([-1], [1 << 32], [10 ** 30], ["0"], [None], [99], [0, 0]):
            with self.assertRaises(bp.InvalidArgument, msg=ids):
                served.pool.acquire(ids, served.stream)
            with self.assertRaises(bp.Error, msg=ids):
                served.pool.release(ids, served.stream)
        self.assertEqual(served.pool.acquire([], served.stream), [])
        other = Served()
        view = other.take(0)
        with self.assertRaises(bp.InvalidArgument) as caught:
            served.pool.release([view], served.stream)
        self.assertIn("another pool", str(caught.exception))
        with self.assertRaises(bp.InvalidArgument) as caught:
            served.pool.acquire([served.ids[0]], other.stream)
        self.assertFalse(view.released)

    def test_promised_streams(self):
        _, _, plan = small_plan()
        device = bp.Device.host()
        with bp.Pool(device, plan, name="promises") as pool:
            ids = range(len(plan.requests))
            gather, other = device.stream("gather"), device.stream("other")
            pool.set_stream(ids, gather)
            pool.release(pool.acquire(ids[:1], gather), gather)
            self.assertEqual((pool.statistics.elided, pool.statistics.records), (1, 0))
            with self.assertRaises(bp.ScheduleError) as caught:
                pool.acquire(ids[:1], other)
            for word in ("other", "gather"):
                self.assertIn(word, str(caught.exception))
            pool.set_stream(ids, None)
            pool.release(pool.acquire(ids[:1], other), other)
            self.assertEqual(pool.statistics.records, 1)
        self.assertTrue(pool.closed)

    def test_messages(self):
        """A request that finds its buffer taken, and another one free, says so."""
        heard = []
        served = Served(sizes=(1000, 1000, 1000), policy="max", roles=("param",), strict="warn",
                        on_message=heard.append)
        first = served.take(0)
        third = served.take(2)  # the plan has it where the first is
        self.assertNotEqual(third.address, first.address)
        self.assertEqual((len(heard), served.pool.statistics.deviations), (1, 1))
        self.assertIn("u2", heard[0])

    def test_fingerprints(self):
        _, _, plan = small_plan()
        device = bp.Device.host()
        with self.assertRaises(bp.Mismatch) as caught:
            bp.Pool(device, plan, fingerprint="0" * 64)
        self.assertIn(plan.fingerprint, str(caught.exception))
        self.assertEqual(bp.Pool(device, plan, fingerprint=plan.fingerprint).fingerprint, plan.fingerprint)

    def test_out_of_memory(self):
        _, _, plan = small_plan()
        with self.assertRaises(bp.NoDeviceMemory) as caught:
            bp.Pool(bp.Device.host(memory_bytes=4096), plan)
        self.assertIn("4096", str(caught.exception))

    def test_recorded_schedules(self):
        served = Served(roles=("param",))
        served.pool.trace_start(1024)
        for unit in range(5):
            view = served.take(unit)
            view.release()
        served.pool.trace_stop()
        model = bp.Model("traced")
        for unit in range(5):
            model.add_bucket(model.add_unit(f"u{unit}"), "bf16", 10)
        served.pool.trace_to_model(0, 0, model)
        self.assertEqual([(e.acquire, e.unit) for e in model.events], [(a, u) for u in range(5) for a in (True, False)])

    def test_sealed_pools_and_overflow(self):
        served = Served(overflow_bytes=65536, sizes=(1000, 1000, 1000), policy="max", roles=("param",))
        served.pool.allow_overflow(True)
        views = [served.take(unit) for unit in range(3)]
        self.assertEqual(served.pool.statistics.overflows, 1)
        self.assertRaises(bp.ScheduleError, served.pool.seal)
        served.pool.release(views, served.stream)
        served.pool.seal()
        self.assertRaises(bp.ScheduleError, served.pool.allow_overflow, True)


class Streams(unittest.TestCase):
    def test_order_and_copies(self):
        device = bp.Device.host(max_delay_us=300, delay_seed=1)
        first, second = device.stream("first"), device.stream("second")
        memory, copy = bytearray(4096), bytearray(1000)
        first.fill(memory, 9)
        second.wait(first)
        second.copy(copy, memory)
        event = second.record()
        event.synchronize()
        self.assertEqual((bytes(memory), bytes(copy)), (b"\x09" * 4096, b"\x09" * 1000))
        for hostile in (lambda: first.copy(copy, memory, 1001), lambda: first.fill(b"read only", 1),
                        lambda: first.fill(4096, 1), lambda: first.copy(4096, 8192), lambda: first.fill(copy, 256)):
            self.assertRaises(bp.InvalidArgument, hostile)
        self.assertRaises(bp.Unsupported, device.import_stream, 5)
        self.assertRaises(bp.InvalidArgument, device.import_stream, "five")

    def test_exceptions_of_stream_functions(self):
        stream = bp.Device.host().stream()
        done = []
        stream.call(lambda: done.append(threading.get_ident()))
        stream.call(lambda: 1 / 0)
        stream.call(lambda: done.append(2))
        self.assertRaises(ZeroDivisionError, stream.synchronize)
        stream.synchronize()
        self.assertNotEqual(done[0], threading.get_ident())
        self.assertEqual(done[1], 2)

    def test_devices(self):
        device = bp.Device.host()
        self.assertEqual((device.name, device.is_host_accessible), ("host", True))
        null = bp.Device.null()
        self.assertEqual((null.name, null.is_host_accessible), ("null", False))
        self.assertRaises(bp.InvalidArgument, bp.Device.host, granularity=3)
        self.assertRaises(bp.InvalidArgument, bp.Device.cuda, ordinal=1 << 40)
        self.assertRaises(TypeError, bp.Device)
        with self.assertRaises(AttributeError):
            _abi.bp_host_config().missing


class Threads(unittest.TestCase):
    def test_separate_requests(self):
        """Threads that serve different units at once, beside one that reads."""
        served = Served(sizes=(1000,) * 8, apart=True, roles=("param",))
        streams = [served.device.stream(f"t{number}") for number in range(4)]
        errors, over = [], threading.Event()

        def work(number):
            try:
                for _ in range(100 if BRIEF else 400):
                    views = served.pool.acquire([served.param(number), served.param(number + 4)], streams[number])
                    served.pool.release(views, streams[number])
            except BaseException as error:
                errors.append(error)

        def read():
            while not over.is_set():
                served.pool.live(), served.pool.dump(), served.pool.statistics

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        reader = threading.Thread(target=read)
        for thread in [*threads, reader]:
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        reader.join()
        self.assertEqual(errors, [])
        self.assertEqual(served.pool.statistics.acquires, 8 * (100 if BRIEF else 400))
        self.assertEqual(served.pool.live(), [])

    def test_gil_in_blocked_calls(self):
        stream = bp.Device.host().stream()
        gate, passed = threading.Event(), []
        stream.call(gate.wait)
        waiting = threading.Thread(target=stream.synchronize)
        waiting.start()
        passed.append("here")
        gate.set()
        waiting.join(30)
        self.assertFalse(waiting.is_alive())


if __name__ == "__main__":
    unittest.main()
