# SPDX-License-Identifier: Apache-2.0
"""Destruction of objects in any order and thread, at the interpreter's exit and in forked children: no crash, hang or
leak.
"""

import ctypes
import gc
import itertools
import os
import tempfile
import threading
import unittest

import bucketpool as bp
from bucketpool import handle
from support import BRIEF, Served, committed, run_python


class Orders(unittest.TestCase):
    def test_closing_orders(self):
        names = ("device", "stream", "pool", "plan", "buckets", "schedule")
        orders = list(itertools.permutations(names))
        for order in orders[::29 if BRIEF else 7]:
            served = Served()
            watched = served.device
            keep = bp.Device.host()  # another device beside it
            view = served.take(0)
            for name in order:
                getattr(served, name).close()
                self.assertTrue(getattr(served, name).closed)
                getattr(served, name).close()
            self.assertRaises(bp.InvalidArgument, view.check)
            self.assertTrue(watched.closed and not keep.closed)

    def test_garbage_collection_orders(self):
        names = ("device", "stream", "pool", "plan", "buckets", "schedule")
        for order in list(itertools.permutations(names))[::29 if BRIEF else 7]:
            served = Served()
            served.take(0)
            for name in order:
                delattr(served, name)
        gc.collect()

    def test_cycles(self):
        device = bp.Device.host()
        for _ in range(5):
            served = Served(device)
            view = served.take(0)
            served.itself = [served, view]
            view.pool.mine = view
            del served, view
        self.assertEqual(committed(device), 0)

    def test_failed_pool_creation(self):
        device = bp.Device.host(memory_bytes=4096)
        for _ in range(50):
            self.assertRaises(bp.NoDeviceMemory, Served, device)
        self.assertEqual(committed(device), 0)
        self.assertLess(device.usage.streams, 3)

    def test_use_after_close(self):
        served = Served()
        served.pool.close()
        calls = [lambda: served.pool.acquire(served.ids[:1], served.stream), lambda: served.pool.live(),
                 lambda: served.pool.name, lambda: served.pool.statistics, lambda: served.pool.set_step(3)]
        served.stream.close()
        calls += [served.stream.synchronize, lambda: served.stream.fill(bytearray(1), 1), lambda: served.stream.name,
                  lambda: served.stream.record(bp.Event(served.device))]
        served.plan.close()
        calls += [lambda: served.plan.bytes, lambda: bp.Pool(served.device, served.plan),
                  lambda: served.plan.fingerprint]
        served.device.close()
        calls += [served.device.synchronize, lambda: bp.Stream(served.device), lambda: served.device.usage]
        served.buckets.close()
        calls += [lambda: len(served.buckets), lambda: bp.Schedule.training(served.buckets)]
        for call in calls:
            with self.assertRaises(bp.InvalidArgument) as caught:
                call()
            self.assertRegex(str(caught.exception), "^(\\w+: )?this (Pool|Stream|Plan|Device|Buckets) is closed$")
        for name in ("pool", "stream", "plan", "device", "buckets"):
            self.assertIn("closed", repr(getattr(served, name)))

    def test_closed_stream_argument(self):
        """The pool remembers streams that are gone, and says so instead of touching them."""
        served = Served()
        view = served.take(0)
        view.stream.close()
        self.assertRaises(bp.InvalidArgument, view.release)
        view.release(served.device.stream("later"))
        self.assertEqual(served.pool.live(), [])


class Threads(unittest.TestCase):
    def test_close_during_calls(self):
        """Closing lets calls under way finish: what they use ends with the last of them."""
        for _ in range(3 if BRIEF else 15):
            served = Served(sizes=(1000,) * 4, apart=True, roles=("param",))
            errors = []

            def work(number, served=served, errors=errors):
                stream = served.device.stream()
                try:
                    while True:
                        served.pool.release(served.pool.acquire([served.param(number)], stream), stream)
                except bp.InvalidArgument as error:
                    errors.append(str(error))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            while served.pool.statistics.acquires < 20:
                pass
            served.pool.close()
            for thread in threads:
                thread.join(60)
            self.assertEqual(errors, ["this Pool is closed"] * 3)

    def test_garbage_on_device_threads(self):
        """Ending a pool there would wait for the very stream that ends it."""
        device = bp.Device.host()
        stream = device.stream()
        box = [Served(device)]
        box[0].take(0)
        before = committed(device)
        stream.call(box.clear)
        stream.synchronize()
        bp.Model("an occasion")
        self.assertLess(committed(device), before)
        self.assertFalse(handle._Life.late)

    def test_stream_garbage_with_running_functions(self):
        device = bp.Device.host(max_delay_us=500)
        done = threading.Event()
        for _ in range(20):
            device.stream().call(lambda: None)
        device.stream().call(done.set)
        self.assertTrue(done.wait(30))
        device.synchronize()
        bp.Model("an occasion")
        gc.collect()
        self.assertEqual(device.usage.streams, 0)


FIXTURE = """
    import sys, gc, warnings
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # of os.fork, since Python 3.12
    import bucketpool as bp
    from support import Served
    served = Served(bp.Device.host(max_delay_us=2000))
    view = served.take(0)
"""


class Exit(unittest.TestCase):
    def ends(self, code, output=""):
        result = run_python("\n".join(line[4:] for line in FIXTURE.splitlines()) + "\n" + code)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, output, ""))

    def test_exit_with_live_objects(self):
        self.ends("sys.modules['keeps'] = served\nimport builtins; builtins.keeps = [view, served]\n")

    def test_exit_with_queued_functions(self):
        """Exit waits for them: they need the interpreter."""
        self.ends("for n in range(20): served.stream.call(lambda n=n: sys.stdout.write(f'{n} '))\n",
                  "".join(f"{n} " for n in range(20)))

    def test_exit_with_reference_cycles(self):
        self.ends("gc.disable()\nfor _ in range(5):\n    s = Served(); s.take(0); s.itself = s\n    s.pool.mine = s\n")

    def test_exit_with_running_thread(self):
        self.ends(
            "import threading\ndef work():\n    while True: served.pool.release(served.pool.acquire([served.param(1)],"
            " served.stream), served.stream)\nthreading.Thread(target=work, daemon=True).start()\nimport time;"
            " time.sleep(0.1)\n"
        )

    def test_exit_with_arrays_in_modules(self):
        self.ends("try:\n    import numpy\nexcept ImportError: sys.exit()\n"
                  "sys.array, numpy.kept = view.numpy('uint8'), numpy.from_dlpack(served.pool.acquire("
                  "[served.param(3)], served.stream)[0].__class__ and view.numpy('uint16'))\n"
                  "served.pool.close()\n")

    def test_exit_with_exception(self):
        result = run_python(FIXTURE + "    raise RuntimeError('mine')")
        self.assertEqual(result.returncode, 1)
        self.assertIn("RuntimeError: mine", result.stderr)


@unittest.skipUnless(hasattr(os, "fork"), "no fork")
class Forks(unittest.TestCase):
    def test_planning_in_children(self):
        code = FIXTURE + """
    import os
    child = os.fork()
    if child == 0:
        try:
            served.pool.acquire([served.param(1)], served.stream)
        except bp.InvalidArgument as error:
            print("fork" in str(error))
        served.plan.check(served.buckets, served.schedule)
        mine = Served()
        mine.take(0).release()
        del served, view, mine
        gc.collect()
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    view.release()
    print(os.WEXITSTATUS(status), len(served.pool.live()))
    """
        result = run_python(code)
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("True\n5 0\n", "", 0))


    def test_exit_of_children_with_queued_functions(self):
        """Their own are waited for, as in any process; the parent's are not theirs."""
        code = FIXTURE + """
    import os, time
    served.stream.call(lambda: time.sleep(0.3))
    child = os.fork()
    if child == 0:
        stream = bp.Device.host().stream()
        stream.call(lambda: (time.sleep(0.2), os.write(1, b"ran\\n")))
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    print(os.WEXITSTATUS(status))
    """
        result = run_python(code)
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("ran\n5\n", "", 0))


class Comms(unittest.TestCase):
    def test_self(self):
        with bp.Comm.self() as comm:
            self.assertEqual((comm.rank, comm.ranks, comm.name, comm.exchange(b"abc")), (0, 1, "self", b"abc"))
        self.assertRaises(bp.InvalidArgument, comm.exchange, b"abc")

    def test_python_functions(self):
        import ctypes

        def exchange(mine, count, everything):
            text = ctypes.string_at(mine, count)
            ctypes.memmove(everything, text + text[::-1], 2 * count)

        comm = bp.Comm.callback(1, 2, exchange, name="pair")
        gc.collect()  # the functions live as long as the communicator
        self.assertEqual((comm.rank, comm.ranks, comm.name, comm.exchange(b"abc")), (1, 2, "pair", b"abccba"))
        self.assertRaises(bp.InvalidArgument, bp.Comm.callback, 2, 2, exchange)

    def test_exceptions_of_functions(self):
        def fails(*_arguments):
            raise KeyError("rank 3")

        def refuses(*_arguments):
            raise bp.Unsupported("not today")

        with self.assertRaises(bp.CommError) as caught:
            bp.Comm.callback(0, 2, fails).exchange(b"abc")
        self.assertIn("KeyError: 'rank 3'", str(caught.exception))
        with self.assertRaises(bp.Unsupported) as caught:
            bp.Comm.callback(0, 2, refuses).exchange(b"abc")
        self.assertIn("not today", str(caught.exception))

    def test_rank_timeout(self):
        calls = []

        def gives_up(*_arguments):
            calls.append(1)
            raise bp.RankTimeout("rank 1 of 2 has not answered within 5 s")

        comm = bp.Comm.callback(0, 2, gives_up, name="pair")
        for words in ("bp_comm_exchange over communicator pair: rank 1 of 2", "communicator pair is broken: "):
            with self.assertRaises(bp.RankTimeout) as caught:
                comm.exchange(b"abc")
            self.assertIn(words, str(caught.exception))
            self.assertIsInstance(caught.exception, (bp.CommError, TimeoutError))
        self.assertEqual(len(calls), 1)
        with bp.Device.host() as device:
            for wrong in (-1, 0.0001, 1e7, float("nan")):
                with self.assertRaisesRegex(bp.InvalidArgument, "timeout: expected seconds"):
                    bp.Comm.nccl(1, device, timeout=wrong)

    def test_exceptions_of_unusual_classes(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError("no words")

        for hostile, words in ((OSError("the file \udcff"), "udcff"), (Mute(), "Mute"), (ValueError("a\0b"), "a b"),
                               (bp.Unsupported("\udcff"), "udcff")):
            def fails(*_arguments, hostile=hostile):
                raise hostile

            with self.assertRaises(bp.Error, msg=words) as caught:
                bp.Comm.callback(0, 2, fails).exchange(b"abc")
            self.assertIn(words, str(caught.exception))


class Interface(unittest.TestCase):
    def test_import_without_numpy_and_torch(self):
        result = run_python("import sys, bucketpool; print([m for m in ('numpy', 'torch') if m in sys.modules])")
        self.assertEqual((result.stdout, result.stderr), ("[]\n", ""))

    def test_missing_library(self):
        try:
            ctypes.CDLL("libbucketpool.so.0")
            self.skipTest("the library is installed on this machine")
        except OSError:
            pass
        result = run_python("""
            import os
            os.environ["BUCKETPOOL_LIBRARY_PATH"] = ""
            import bucketpool
            bucketpool.Model("m")
            """)
        self.assertIn("ImportError: libbucketpool.so.0 was not found", result.stderr.splitlines()[-1])
        self.assertIn("BUCKETPOOL_LIBRARY_PATH", result.stderr.splitlines()[-1])

    def test_binding_in_current_folder(self):
        """Libraries that the loader finds say nothing of a folder; the current one is anybody's."""
        from bucketpool._library import core
        if os.path.dirname(core()._name) == os.path.join(os.path.dirname(bp.__file__), "lib"):
            self.skipTest("the package has the libraries")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_binding.abi3.so"), "w", encoding="ascii") as file:
                file.write("not a library")
            result = run_python("""
                import ctypes, os, sys
                os.chdir(sys.argv[2])
                os.environ["BUCKETPOOL_LIBRARY_PATH"] = ""
                ctypes.CDLL(sys.argv[1])  # from now on the loader finds it by its name
                from bucketpool import _library
                _library.binding()
                print(_library.core()._name)
                """, os.path.abspath(core()._name), folder)
        self.assertEqual((result.stdout, result.stderr), ("libbucketpool.so.0\n", ""))

    def test_exception_for_each_status(self):
        from bucketpool import _abi, errors
        statuses = {value for name, value in vars(_abi).items() if name.startswith("BP_ERR_")}
        self.assertEqual(set(errors.OF_STATUS), statuses)
        self.assertEqual(len(set(errors.OF_STATUS.values())), len(statuses))
        for status, kind in errors.OF_STATUS.items():
            self.assertEqual(kind("x").status, status)

    def test_structs_of_older_and_newer_callers(self):
        from bucketpool import _abi
        from bucketpool._library import core

        class Older(ctypes.Structure):
            _fields_ = _abi.bp_host_config._fields_[:2]

        class Newer(ctypes.Structure):
            _fields_ = [*_abi.bp_host_config._fields_, ("later", ctypes.c_uint64)]

        class OlderUsage(ctypes.Structure):
            _fields_ = _abi.bp_device_usage._fields_[:2]

        library = ctypes.CDLL(core()._name)  # with no types declared
        device = ctypes.c_void_p()
        for kind in Older, Newer:
            config = kind()
            self.assertEqual(library.bp_host_config_init(ctypes.byref(config), ctypes.sizeof(kind)), _abi.BP_OK)
            self.assertEqual(config.size, ctypes.sizeof(kind))
            status = library.bp_device_create_host(ctypes.byref(config), ctypes.byref(device))
            self.assertEqual(status, _abi.BP_OK)
            usage = OlderUsage(ctypes.sizeof(OlderUsage), 77)
            self.assertEqual(library.bp_device_usage_get(device, ctypes.byref(usage)), _abi.BP_OK)
            self.assertEqual((usage.size, usage.committed_bytes), (ctypes.sizeof(OlderUsage), 0))
            library.bp_device_destroy(ctypes.byref(device))
        config.later = 1
        self.assertEqual(library.bp_device_create_host(ctypes.byref(config), ctypes.byref(device)),
                         _abi.BP_ERR_UNSUPPORTED)


if __name__ == "__main__":
    unittest.main()
