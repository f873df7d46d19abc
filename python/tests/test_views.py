# SPDX-License-Identifier: Apache-2.0
"""Views: arrays and DLPack capsules over live requests, after the release, and refused conversions. Half of the tests
need numpy.
"""

import ctypes
import gc
import sys
import threading
import unittest
import unittest.mock

import bucketpool as bp
from bucketpool import _abi, dlpack
from bucketpool._library import core
from support import Served, committed, needs_numpy, numpy


def exports(pool):
    return core().bp_pool_export_count(pool.handle)


class Released(unittest.TestCase):
    def test_released_view(self):
        served = Served()
        view = served.take(0)
        self.assertFalse(view.released)
        view.release()
        self.assertTrue(view.released)
        for use in (view.release, view.numpy, view.torch, view.__dlpack__, view.check,
                    lambda: served.pool.use([view], served.stream), lambda: served.pool.cancel([view]),
                    lambda: served.stream.fill(view, 1), lambda: served.stream.copy(view, bytearray(2000)),
                    lambda: served.stream.copy(bytearray(2000), view)):
            with self.assertRaises(bp.ScheduleError) as caught:
                use()
            self.assertEqual(str(caught.exception),
                             "param of u0/bucket.0: it was released, and another request may have its memory; "
                             "acquire it again")
        self.assertIn("released", repr(view))

    def test_view_of_an_earlier_acquire(self):
        served = Served()
        view = served.take(0)
        served.pool.release([view.id], served.stream)
        again = served.take(0)
        self.assertTrue(view.released)
        self.assertRaises(bp.ScheduleError, view.release)
        self.assertFalse(again.released)
        again.release()

    def test_garbage_collected_view(self):
        served = Served()
        served.take(0)
        gc.collect()
        self.assertEqual(len(served.pool.live()), 1)

    def test_views_of_a_closed_pool(self):
        served = Served()
        view = served.take(0)
        served.pool.close()
        for use in (view.numpy, view.release, view.__dlpack__, lambda: served.stream.fill(view, 1)):
            with self.assertRaises(bp.InvalidArgument) as caught:
                use()
            self.assertIn("closed", str(caught.exception))


class Capsules(unittest.TestCase):
    """Contents of capsules, and deletion of those without a consumer."""

    def pointer(self, capsule, name):
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return get(capsule, name)

    @staticmethod
    def rename(capsule, name):
        set_name = ctypes.pythonapi.PyCapsule_SetName
        set_name.restype, set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
        set_name(capsule, name)

    def test_capsules(self):
        served = Served()
        view = served.take(1)
        self.assertEqual(view.__dlpack_device__(), (dlpack.CPU, 0))
        plain = self.pointer(view.__dlpack__(), b"dltensor")
        words = (ctypes.c_uint64 * 4).from_address(plain)
        self.assertEqual(words[0], view.address)
        for asked, name in (((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"), ((2, 1), b"dltensor_versioned")):
            capsule = view.__dlpack__(max_version=asked, copy=False, dl_device=(1, 0))
            self.assertTrue(self.pointer(capsule, name))
        version = (ctypes.c_uint32 * 2).from_address(self.pointer(capsule, name))
        self.assertEqual(tuple(version), dlpack.VERSION)

    def test_refusals(self):
        served = Served()
        view = served.take(0)
        for options in ({"copy": True}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"stream": 1}):
            with self.assertRaises(BufferError):
                view.__dlpack__(**options)
        null = Served(bp.Device.null()).take(0)
        for use in (null.__dlpack__, null.numpy):
            self.assertRaises((BufferError, bp.Unsupported), use)

    def test_unconsumed_capsules(self):
        served = Served()
        view = served.take(0)
        capsules = [view.__dlpack__() for _ in range(5)]
        self.assertEqual(exports(served.pool), 5)
        del capsules
        dlpack.take_back()
        self.assertEqual(exports(served.pool), 0)
        capsule = view.__dlpack__()
        served.pool.close()
        self.assertGreater(committed(served.device), 0)
        self.assertTrue(self.pointer(capsule, b"dltensor"))
        del capsule
        dlpack.take_back()
        self.assertEqual(committed(served.device), 0)

    def test_take_back_during_an_export(self):
        """Whenever it comes: between the making of a capsule and its return, and between its two looks at one."""
        served = Served(dtype="fp32")
        view = served.take(0)

        class Interrupted(set):
            def add(self, offer):
                super().add(offer)
                other = threading.Thread(target=dlpack.take_back)
                other.start()
                other.join()

        with unittest.mock.patch.object(dlpack, "_offered", Interrupted()):
            capsule = view.__dlpack__()
            self.assertEqual(exports(served.pool), 1)
            self.assertTrue(self.pointer(capsule, b"dltensor"))
            waiting, is_valid = [capsule], dlpack._is_valid
            del capsule

            def taken_after(offered, name):
                valid = is_valid(offered, name)
                while waiting:  # a consumer that renames it and lets it go
                    self.rename(waiting.pop(), b"used_dltensor")
                return valid

            with unittest.mock.patch.object(dlpack, "_is_valid", taken_after):
                dlpack.take_back()
            self.assertEqual(exports(served.pool), 1)  # the consumer deletes it
            dlpack.take_back()
            self.assertEqual(exports(served.pool), 1)

    def test_dynamic_memory(self):
        """It goes with its release: an array over it would be left without."""
        served = Served(policy="dynamic")
        view = served.take(0)
        with self.assertRaises(BufferError) as caught:
            view.__dlpack__()
        self.assertIn("dynamic", str(caught.exception))
        view.release()

    @unittest.skipUnless(sys.implementation.name == "cpython", "capsules of CPython")
    def test_wait_for_the_acquiring_stream(self):
        """The host may touch the memory at once: the work before is done, unless it is asked not to wait."""
        device = bp.Device.host(max_delay_us=3000, delay_seed=5)
        served = Served(device)
        view = served.take(0)
        done = []
        served.stream.call(lambda: done.append(1))
        view.__dlpack__()
        self.assertEqual(done, [1])


@needs_numpy
class Arrays(unittest.TestCase):
    def test_dtypes(self):
        for dtype, name in (("fp32", "float32"), ("fp16", "float16"), ("fp64", "float64"), ("int8", "int8"),
                            ("uint16", "uint16"), ("int64", "int64"), ("bool", "bool"), ("complex64", "complex64")):
            served = Served(dtype=dtype, roles=("param",))
            view = served.take(0)
            array = view.numpy()
            self.assertEqual((array.dtype, array.shape, array.flags.writeable), (numpy.dtype(name), (1000,), True))
            self.assertEqual(array.ctypes.data, view.address)
            array[:] = 1
            # older ones lack it in DLPack
            if dtype != "bool" or tuple(map(int, numpy.__version__.split(".")[:2])) >= (1, 25):
                self.assertEqual(numpy.from_dlpack(view).tolist(), array.tolist())

    def test_dtypes_that_numpy_lacks(self):
        view = Served().take(0)
        with self.assertRaises(bp.Unsupported) as caught:
            view.numpy()
        self.assertIn('view.numpy("uint16")', str(caught.exception))
        self.assertEqual(view.numpy("uint16").shape, (1000,))
        self.assertEqual(view.numpy(numpy.uint8).shape, (2000,))
        with self.assertRaises((BufferError, RuntimeError)):
            numpy.from_dlpack(view)  # numpy's own words
        dlpack.take_back()
        gc.collect()
        self.assertEqual(exports(view.pool), 0)
        fp8 = Served(dtype="fp8_e4m3", roles=("param",)).take(0)
        self.assertEqual((fp8.dtype, fp8.numpy().dtype), ("uint8", numpy.uint8))
        with self.assertRaises(bp.InvalidArgument) as caught:
            Served(dtype="uint8", sizes=(1001, 1001), roles=("param",)).take(0).numpy("float32")
        self.assertIn("1001", str(caught.exception))

    def test_saved_array_without_reference(self):
        """The buffer goes to the next request while the array is kept, and the array sees that one's bytes."""
        served = Served(sizes=(1000, 1000, 1000), dtype="fp32", policy="max", roles=("param",))
        view = served.take(0)
        saved = view.numpy()
        saved[:] = 1
        view.release()
        self.assertEqual(served.pool.live(), [])
        other = served.take(2)
        self.assertEqual(other.address, saved.ctypes.data)
        other.numpy()[:] = 2
        self.assertEqual(set(saved.tolist()), {2.0})
        other.release()

    def test_saved_array_after_close(self):
        """Pool, streams and device are closed and gone: the memory is there until the last array is, however it was
        made.
        """
        served = Served(dtype="fp32")
        device, pool = served.device, served.pool
        view = served.take(0)
        first, second = view.numpy(), numpy.from_dlpack(view)
        part = first[10:20].reshape(2, 5)
        first[:] = 3
        view.release()
        served.stream.close()
        pool.close()
        del served, pool, view, first
        self.assertGreater(committed(device), 0)
        self.assertEqual((part.sum(), second.sum()), (30, 3000))
        del second
        gc.collect()
        self.assertEqual(part.sum(), 30)
        self.assertGreater(committed(device), 0)
        del part
        self.assertEqual(committed(device), 0)

    def test_empty_buckets(self):
        served = Served(sizes=(0, 1000), dtype="fp32", roles=("param",))
        id = served.pool.bind("u0", 0, "param", "fp32", 0)
        view, = served.pool.acquire([id], served.stream)
        self.assertEqual((view.address, view.bytes, view.numpy().shape), (0, 0, (0,)))
        self.assertEqual(numpy.from_dlpack(view).shape, (0,))
        view.release()

    def test_references_of_views(self):
        served = Served(dtype="fp32")
        view = served.take(0)
        arrays = [view.numpy() for _ in range(3)]
        self.assertEqual(served.pool.references(view.id), 1)
        self.assertEqual(exports(served.pool), 3)
        view.release()
        self.assertEqual(served.pool.references(view.id), 0)
        del arrays
        gc.collect()
        self.assertEqual(exports(served.pool), 0)


class Null(unittest.TestCase):
    def test_null_arguments(self):
        """The ctypes declarations of exports match the library."""
        self.assertEqual(core().bp_pool_export(None, None, None), _abi.BP_ERR_INVALID_ARGUMENT)


if __name__ == "__main__":
    unittest.main()
