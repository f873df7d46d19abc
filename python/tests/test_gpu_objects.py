# SPDX-License-Identifier: Apache-2.0
"""Captures and registrations on the emulated driver and the emulated NCCL. Argument: the folder with both
(tests/fakes); none: BUCKETPOOL_BUILD's.
"""

import os
import subprocess
import sys
import unittest

FAKES = sys.argv.pop(1) if len(sys.argv) > 1 and os.path.isdir(sys.argv[1]) else os.path.join(
    os.environ.get("BUCKETPOOL_BUILD", "build"), "tests", "fakes")
FOLDERS = [os.path.join(os.path.abspath(FAKES), name) for name in ("cuda", "nccl")]
INSIDE = "BUCKETPOOL_TEST_INSIDE"  # the loader reads its path once: the tests run in a separate process


def served(**options):
    from support import Served

    import bucketpool as bp

    return Served(bp.Device.cuda(0), **options)


class Graph:
    """A graph of the driver, captured on a stream."""

    def __init__(self, stream):
        import ctypes

        from bucketpool import _abi
        from bucketpool._library import call, core

        self.core, self.call, self.stream, self.handle, self.byref = (
            core(),
            call,
            stream,
            _abi.bp_graph(),
            ctypes.byref,
        )

    def __enter__(self):
        self.call(self.core.bp_graph_begin, self.stream.handle)

    def __exit__(self, *_exception):
        self.call(self.core.bp_graph_end, self.stream.handle, self.byref(self.handle))

    def __del__(self):
        self.close()

    def launch(self, stream):
        self.call(self.core.bp_graph_launch, self.handle, stream.handle)

    def close(self):
        self.core.bp_graph_destroy(self.byref(self.handle))


def content(view, stream, count=8):
    memory = bytearray(count)
    stream.copy(memory, view, count)
    stream.synchronize()
    return bytes(memory)


@unittest.skipUnless(INSIDE in os.environ, "run by Emulated")
class Captures(unittest.TestCase):
    def test_launches(self):
        import bucketpool as bp

        one = served()
        graph = Graph(one.stream)
        with bp.Capture(one.pool, "step") as capture:
            self.assertEqual(capture.summary, bp.CaptureSummary("step", False, 0, 0, 0, 0, 0))
            with graph:
                for unit in (0, 1):
                    view = one.take(unit)
                    one.stream.fill(view, 7 + unit)
                    view.release()
            self.assertRaises(bp.CaptureError, capture.__enter__)
        self.assertEqual(capture.summary,
                         bp.CaptureSummary("step", True, 2, 2, 0, capture.summary.bytes, 0))
        self.assertGreaterEqual(capture.summary.bytes, 8000)
        eager = one.take(1)
        one.stream.fill(eager, 1)
        with self.assertRaises(bp.ScheduleError) as caught:  # another request uses memory of the graph
            with capture.launching(one.stream):
                graph.launch(one.stream)
        self.assertIn("u1", str(caught.exception))
        eager.release()
        other = one.device.stream("other")
        with capture.launching(other):
            graph.launch(other)
        again = one.take(1)  # ordered after the launch
        self.assertEqual(content(again, one.stream), b"\x08" * 8)
        again.release()
        self.assertEqual(capture.summary.launches, 1)
        with self.assertRaises(ZeroDivisionError):
            with capture.launching(other):
                raise ZeroDivisionError
        self.assertEqual(capture.summary.launches, 1)
        with capture.launching(one.stream):  # an abandoned launch uses no memory
            graph.launch(one.stream)
        self.assertEqual(capture.summary.launches, 2)
        graph.close()
        one.pool.close()
        with self.assertRaises(bp.InvalidArgument):
            with capture.launching(one.stream):
                self.fail("the pool is closed")
        capture.close()
        with self.assertRaises(bp.InvalidArgument):
            capture.summary

    def test_abandoned_captures(self):
        import bucketpool as bp

        one = served()
        with self.assertRaises(ZeroDivisionError):
            with bp.Capture(one.pool) as capture, Graph(one.stream):
                one.take(0)
                raise ZeroDivisionError
        self.assertTrue(capture.closed)
        self.assertEqual(one.pool.live(), [])
        with self.assertRaises(bp.ScheduleError) as caught:
            with bp.Capture(one.pool) as capture, Graph(one.stream):
                view = one.take(0)  # still live at the end
        self.assertIn("u0", str(caught.exception))
        self.assertTrue(capture.closed)
        with capture, Graph(one.stream):  # a second capture
            view = one.take(0)
            view.release()
        self.assertTrue(capture.summary.ended)
        held = one.take(1)
        with self.assertRaises(bp.ScheduleError):
            bp.Capture(one.pool).__enter__()
        with bp.Capture(one.pool, owned=[held.id]) as capture:
            pass
        held.release()
        for hostile in (lambda: bp.Capture(one.pool, owned=[-1]), lambda: bp.Capture(one.pool, owned=[1 << 32]),
                        lambda: bp.Capture(one.pool, collectives="some"), lambda: bp.Capture(one.pool, "a\0b")):
            self.assertRaises(bp.InvalidArgument, hostile)

    def test_views_of_abandoned_captures(self):
        import bucketpool as bp

        one = served()
        with self.assertRaises(ZeroDivisionError):
            with bp.Capture(one.pool), Graph(one.stream):
                lost = one.take(0)
                raise ZeroDivisionError
        self.assertTrue(lost.released)
        view = one.take(0)
        for use in (lost.release, lost.__dlpack__, lambda: one.stream.fill(lost, 1)):
            self.assertRaises(bp.ScheduleError, use)
        self.assertFalse(view.released)
        view.release()
        self.assertTrue(view.released)

    def test_any_order_of_ends(self):
        import gc
        import itertools

        import bucketpool as bp

        for order in itertools.permutations(("pool", "stream", "device", "capture")):
            one = served()
            with bp.Capture(one.pool) as one.capture, Graph(one.stream):
                one.take(0).release()
            device = one.device
            for name in order:
                delattr(one, name)
            gc.collect()
            self.assertEqual(device.usage.committed_bytes, 0, order)


@unittest.skipUnless(INSIDE in os.environ, "run by Emulated")
class Registrations(unittest.TestCase):
    @staticmethod
    def nccl(device, **options):
        import ctypes

        import bucketpool as bp

        comm, library = ctypes.c_void_p(), ctypes.CDLL("libnccl.so.2", mode=ctypes.RTLD_GLOBAL)
        assert library.ncclCommInitAll(ctypes.byref(comm), 1, (ctypes.c_int * 1)(0)) == 0
        return bp.Comm.nccl(comm.value, device, "dp", **options), lambda: library.ncclCommDestroy(comm)

    def test_windows_and_warnings(self):
        import bucketpool as bp

        one = served()
        comm, destroy = self.nccl(one.device)
        registration = bp.Registration(one.pool, [bp.Entry(comm, traffic=("gather", "float_avg"))])
        slabs = one.pool.slabs
        self.assertEqual([(w.slab, w.entry, w.address, w.asked, w.granted, w.because) for w in registration.windows],
                         [(i, 0, slab.address, "symmetric", "symmetric", "") for i, slab in enumerate(slabs)])
        self.assertTrue(all(w.bytes >= slab.bytes for w, slab in zip(registration.windows, slabs)))
        warnings = registration.warnings(0)
        self.assertTrue(any("ncclAvg" in each for each in warnings), warnings)
        self.assertEqual(registration.warnings(1), [])
        for hostile in (-1, 1 << 64, None):
            self.assertRaises(bp.InvalidArgument, registration.warnings, hostile)
        for line in warnings:
            self.assertIn(line, registration.report())
        with self.assertRaises(bp.ScheduleError):  # registered already
            bp.Registration(one.pool, [bp.Entry(comm)])
        self.assertEqual(registration.entries[0].comm, comm)
        registration.close()
        with self.assertRaises(bp.InvalidArgument):
            registration.windows
        with bp.Registration(one.pool, [bp.Entry(comm, kind="buffer")]) as registration:
            self.assertEqual({w.granted for w in registration.windows}, {"buffer"})
        comm.close()
        self.assertEqual(destroy(), 0)

    def test_offload(self):
        """Windows are deregistered with the memory and registered again at the same addresses; bytes are kept."""
        import bucketpool as bp

        one = served(roles=("param", "optimizer"))
        control = bp.Comm.self()
        comm, destroy = self.nccl(one.device, control=control)
        registration = bp.Registration(one.pool, [bp.Entry(comm)])
        windows = [(w.address, w.granted) for w in registration.windows]
        ids = [id for id, request in enumerate(one.plan.requests) if request.role == "optimizer"]
        state = one.pool.acquire(ids, one.stream)
        one.stream.fill(state[0], 0x5A)
        before = one.device.usage.committed_bytes
        with bp.Offload(one.pool) as offload:
            with offload.offloaded(["optimizer"], ["param"]):
                self.assertEqual(one.device.usage.committed_bytes, 0)
            self.assertEqual(one.device.usage.committed_bytes, before)
        self.assertEqual(content(state[0], one.stream), b"\x5a" * 8)
        self.assertEqual([(w.address, w.granted) for w in registration.windows], windows)
        registration.close()
        comm.close()
        self.assertEqual(destroy(), 0)

    def test_aborts(self):
        import ctypes

        import bucketpool as bp

        one = served()
        comm, _ = self.nccl(one.device)
        comm.abort()
        self.assertRaises(bp.InvalidArgument, comm.abort)
        with self.assertRaises(bp.InvalidArgument):
            bp.Registration(one.pool, [bp.Entry(comm)])
        other, destroy = self.nccl(one.device)
        other.forget()
        self.assertRaises(bp.InvalidArgument, other.exchange, b"x")
        other.close()
        self.assertEqual(destroy(), 0)
        calls = []
        called = bp.Comm.callback(0, 1, lambda mine, size, everybody: ctypes.memmove(everybody, mine, size),
                                  abort=lambda: calls.append("abort"))
        self.assertEqual(called.exchange(b"abc"), b"abc")
        called.abort()
        self.assertEqual(calls, ["abort"])

    def test_gpu(self):
        import bucketpool as bp

        gpu = bp.Device.cuda(0, fabric=False).gpu
        self.assertEqual((gpu.ordinal, bool(gpu.name), gpu.handle_types & 8), (0, True, 0))
        self.assertGreater(gpu.total_bytes, gpu.recommended_granularity)
        self.assertGreaterEqual(gpu.driver_version, 12000)

    def test_hostile_entries(self):
        import bucketpool as bp

        one, comm = served(), bp.Comm.self()
        for entries in ([], [bp.Entry(comm, kind="door")], [bp.Entry(comm, traffic=("cars",))],
                        [bp.Entry(comm, traffic="gather")], [bp.Entry(comm, group="nobody")]):
            with self.assertRaises(bp.InvalidArgument, msg=entries):
                bp.Registration(one.pool, entries)
        refused = bp.Registration(one.pool, [bp.Entry(comm)])
        self.assertEqual({w.granted for w in refused.windows}, {"none"})
        self.assertIn("self", refused.windows[0].because)
        comm.close()
        with self.assertRaises(bp.InvalidArgument):
            bp.Registration(one.pool, [bp.Entry(comm)])

    def test_any_order_of_ends(self):
        import gc
        import itertools

        import bucketpool as bp

        for order in itertools.permutations(("registration", "pool", "device", "comm")):
            one = served()
            one.comm, destroy = self.nccl(one.device)
            one.registration = bp.Registration(one.pool, [bp.Entry(one.comm)])
            device = one.device
            for name in order:
                delattr(one, name)
            gc.collect()
            self.assertEqual(device.usage.committed_bytes, 0, order)
            self.assertEqual(destroy(), 0, order)


class CudaKernels(unittest.TestCase):
    def test_architectures(self):
        """cuda_arch_list() against the image in the library."""
        sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "clients", "logprob", "src", "cuda"))
        import fatbin

        import bucketpool as bp

        with open(bp._library.logprob()._name, "rb") as file:
            image = fatbin.image_of(file.read())
        self.assertEqual(bp.cuda_arch_list(), [entry.code for entry in fatbin.entries(image)] if image else [])


@unittest.skipIf(INSIDE in os.environ, "inside")
class Emulated(unittest.TestCase):
    @unittest.skipUnless(all(map(os.path.isdir, FOLDERS)), f"no emulated driver and NCCL in {FAKES}")
    def test_emulated_driver_and_nccl(self):
        environment = {**os.environ, INSIDE: "1", "LD_LIBRARY_PATH": ":".join(FOLDERS), "FAKE_CUDA": "report=1"}
        done = subprocess.run([sys.executable, __file__, FAKES], capture_output=True, text=True, timeout=600,
                              env=environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(done.stderr.rstrip().endswith("OK (skipped=1)"), done.stderr)  # then misuses and leaks follow


if __name__ == "__main__":
    unittest.main()
