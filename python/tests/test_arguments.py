# SPDX-License-Identifier: Apache-2.0
"""Arguments: every public callable with every kind of object, copies and pickles of all objects, subinterpreters."""

import copy
import ctypes
import faulthandler
import importlib.util
import inspect
import os
import pickle
import sys
import tempfile
import unittest

import bucketpool as bp
from bucketpool import _abi
from bucketpool._library import binding, call, core, formats, logprob
from bucketpool.handle import Owner
from bucketpool.pool import Prepared
from support import Served, run_python, small_plan

HANDLES = {"device": bp.Device, "plan": bp.Plan, "present": bp.Plan, "pool": bp.Pool, "pools": bp.Pool,
           "plans": bp.Plan, "buckets": bp.Buckets, "schedule": bp.Schedule, "schedules": bp.Schedule,
           "model": bp.Model, "stream": bp.Stream, "event": bp.Event, "control": bp.Comm, "pinned": bp.Pinned}
REFUSED = (bp.Error, TypeError, ImportError)
ADDRESSES = ("memory", "to", "source")  # integers are addresses of memory, which the caller answers for
# End the communicator, wait for a stream, or are a context, or have no public constructor.
LEFT_OUT = {"Comm.abort", "Comm.forget", "Event.synchronize", "Capture.launching", "View"}


class Objects:
    """One live object of each class, and good arguments by the names of parameters."""

    def __init__(self, folder):
        self.model = bp.Model("small")
        for number in range(3):
            self.model.add_bucket(self.model.add_unit(f"u{number}"), "bf16", 1000)
        self.buckets, self.schedule, self.plan = small_plan(policy="max")
        self.device = bp.Device.host()
        self.stream = self.device.stream("s")
        self.event = self.stream.record()
        self.pool = bp.Pool(self.device, self.plan)
        self.view, = self.pool.acquire([0], self.stream)
        self.comm = bp.Comm.self()
        self.pinned = bp.Pinned(self.device)
        self.packing = bp.Packing()
        self.packing.add(100, [(0, 1)])
        self.entry = bp.Entry(self.comm)
        self.capture = bp.Capture(self.pool)
        self.profile = bp.Profile(self.pool, directory=folder)
        self.offload = bp.Offload(bp.Pool(self.device, self.plan))
        self.registration = bp.Registration(bp.Pool(self.device, self.plan), [self.entry])
        self.folder = folder

    def owners(self):
        return [value for value in vars(self).values() if isinstance(value, (Owner, bp.View))]

    def good(self, name):
        closed = {"ids": [1], "held": [0], "id": 0, "path": os.path.join(self.folder, "file"), "text": "{}",
                  "parts": {"a": self.buckets}, "schedules": [self.schedule], "pools": self.pool, "plans": None,
                  "entries": [self.entry], "unit": "u1", "ordinal": 0, "role": "param", "dtype": "bf16", "bytes": 16,
                  "zero": "all", "slab": 0, "group": "default", "name": "n", "key": "k", "value": "0", "note": "n",
                  "numel": 8, "shape": [2, 4], "step": 1, "entries_": 4, "memory": bytearray(8), "to": bytearray(8),
                  "source": bytearray(8), "earlier": self.event, "function": print, "rank": 0, "ranks": 1,
                  "exchange": print, "comm": 1, "mine": b"1", "reader": "r", "item": 0, "other": 0, "intervals": [(0, 1)],
                  "layout": "split", "units": [0, 1, 2], "first_step": 0, "last_step": 1, "index": 0, "tp": 1, "ep": 1,
                  "event": None, "control": None, "pinned": None, "present": None, "label": "l", "format": "pickle",
                  "kind": "forward", "offsets": [0], "fill": True, "allowed": True}
        return closed[name] if name in closed else getattr(self, name, None)


def callables(objects):
    """(name, callable) of the package, and of each object of it."""
    for name in bp.__all__:
        value = getattr(bp, name)
        if not callable(value) or inspect.isclass(value) and issubclass(value, (tuple, BaseException)):
            continue
        yield name, value
        for each, member in vars(value).items() if inspect.isclass(value) else ():
            if isinstance(member, classmethod) and not each.startswith("_"):
                yield f"{name}.{each}", getattr(value, each)
    for owner in objects.owners():
        for each in dir(owner):
            if not each.startswith("_") and inspect.isfunction(getattr(type(owner), each, None)):
                yield f"{type(owner).__name__}.{each}", getattr(owner, each)


def wrong_values(objects):
    closed = bp.Device.null().stream()
    closed.close()
    return [*objects.owners(), closed, None, True, 5, -1, 2**40, 2**70, 1.5, float("nan"), "x", "\0", "\ud800", b"", [],
            [None], {}, object(), bp.Pool, objects.stream._handle, _abi.bp_pool(), print]


def outcome(function, arguments):
    try:
        function(**arguments)
    except Exception as error:
        return error
    return None


def walk():
    """Calls each callable with one wrong argument at a time; the faults that it finds."""
    faults, calls = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = [name for name, _ in callables(Objects(folder)) if name not in LEFT_OUT]
        for name in dict.fromkeys(names):
            objects = Objects(folder)
            count = len(wrong_values(objects))
            function = dict(callables(objects))[name]
            parameters = [p for p in inspect.signature(function).parameters.values()
                          if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            for parameter in parameters:
                for index in range(count):
                    good = {p.name: objects.good(p.name) for p in parameters if p.default is p.empty}
                    value = wrong_values(objects)[index]
                    if parameter.name in ADDRESSES and isinstance(value, int):
                        continue
                    error = outcome(dict(callables(objects))[name], {**good, parameter.name: value})
                    calls += 1
                    expected = HANDLES.get(parameter.name)
                    what = f"{name}({parameter.name}={value!r:.60}): {type(error).__name__}: {error}"
                    if error is not None and not isinstance(error, REFUSED):
                        faults.append(what)
                    elif isinstance(error, TypeError) and parameter.name not in str(error):  # Python's own words
                        faults.append(what)
                    elif expected and not isinstance(value, (expected, list, dict, type(None))) and (
                            not isinstance(error, bp.InvalidArgument) or parameter.name not in str(error)):
                        faults.append(what)
                    if error is None:  # it may have changed the objects
                        objects = Objects(folder)
    return faults, calls


class Arguments(unittest.TestCase):

    def test_wrong_objects(self):
        faulthandler.enable()
        faulthandler.dump_traceback_later(300, exit=True)
        folder = os.getcwd()
        faults, calls = walk()
        os.chdir(folder)
        faulthandler.cancel_dump_traceback_later()
        self.assertGreater(calls, 2000)
        self.assertEqual(faults, [], "\n".join(faults))


class Copies(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.objects = Objects(self.folder.name)

    def test_copies(self):
        for each in self.objects.owners():
            for copied in (copy.copy, copy.deepcopy, lambda one: copy.deepcopy({"one": one})["one"]):
                with self.subTest(type(each).__name__):
                    if getattr(each, "shared", False):
                        second = copied(each)
                        self.assertIs(second.handle, each.handle)
                        second.close()
                        self.assertFalse(each.closed)
                    else:
                        self.assertRaisesRegex(TypeError, "cannot be copied", copied, each)
            if isinstance(each, Owner) and each._handle is not None:
                self.assertRaises(TypeError, copy.copy, each._handle)
                self.assertRaises(TypeError, pickle.dumps, each._handle)
        self.assertEqual({type(each) for each in self.objects.owners() if getattr(each, "shared", False)},
                         {bp.Buckets, bp.Schedule, bp.Plan, bp.Device, bp.Stream})

    def test_copies_outlive_originals(self):
        plan, fingerprint = self.objects.plan, self.objects.plan.fingerprint
        held = copy.deepcopy([plan])
        del held
        self.assertEqual(plan.fingerprint, fingerprint)

    def test_pickles(self):
        for each in self.objects.owners():
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with self.subTest(type(each).__name__):
                    if isinstance(each, bp.Plan):
                        read = pickle.loads(pickle.dumps(each, protocol))
                        self.assertEqual((read.fingerprint, read.bytes), (each.fingerprint, each.bytes))
                    else:
                        self.assertRaisesRegex(TypeError, "cannot be pickled", pickle.dumps, each, protocol)
        dynamic = small_plan(policy="dynamic")[2]
        self.assertRaises(bp.Unsupported, pickle.dumps, dynamic)


class Pointers(unittest.TestCase):
    """Pointers and integers that ctypes converts silently."""

    def setUp(self):
        self.served = Served()

    def test_handles_of_other_objects(self):
        """Whatever object has them."""
        served, fake = self.served, type("Fake", (), {})()
        prepared = [Prepared(served.pool, 0), object.__new__(Prepared)]
        prepared[1].__init__(served.pool, 0)  # with and without the compiled binding
        view = served.take(0)
        for handle in (8, b"12345678", "12345678", bytearray(8), ctypes.c_void_p(8), served.plan.handle, object()):
            fake._handle = handle
            calls = [lambda: served.pool.acquire([1], fake), lambda: served.pool.acquire([1, 2], fake),
                     lambda: served.pool.try_acquire([1], fake), lambda: served.pool.release([0], fake),
                     lambda: served.pool.use([0], fake), lambda: view.release(fake), lambda: bp.Event(fake),
                     lambda: served.device.order(fake, 5), lambda: bp.Pool(fake, served.plan)]
            for each in prepared:
                calls += [lambda each=each: each.try_acquire(fake), lambda each=each: each.use(fake),
                          lambda each=each: each.release(fake)]
            for call in calls:
                with self.assertRaisesRegex(bp.InvalidArgument, "(stream|device|earlier): expected a (Stream|Device), got"):
                    call()
        self.assertEqual(served.pool.references(0), 1)

    def test_memory_of_handles(self):
        """A fill would overwrite the pointer."""
        served = self.served
        for each in (served.device.handle, served.plan.handle, served.stream.handle):
            for call in (lambda each=each: served.stream.fill(each, 0),
                         lambda each=each: served.stream.copy(each, bytearray(8)),
                         lambda each=each: served.stream.copy(bytearray(8), each)):
                self.assertRaisesRegex(bp.InvalidArgument, "memory: it is the handle", call)

    def test_arguments_of_c(self):
        """Every argument of every function, past the checks of the package."""
        widths = set()
        for library, load in (("core", core), ("formats", formats), ("logprob", logprob)):
            for name, (_result, kinds) in _abi.FUNCTIONS[library].items():
                for declared, kind in zip(getattr(load(), name).argtypes, kinds):
                    wrong = []
                    if issubclass(kind, _abi.Uncopied):
                        wrong = [8, "12345678", b"12345678", bytearray(8), ctypes.c_void_p(8), object(), Served]
                        self.assertIsNone(declared.from_param(None))
                        own = kind()
                        self.assertIs(declared.from_param(own), own)
                    elif kind in (ctypes.c_uint8, ctypes.c_int, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64):
                        bits, signed = 8 * ctypes.sizeof(kind), kind(-1).value < 0
                        widths.add((bits, signed))
                        last = (1 << bits - signed) - 1
                        wrong = [last + 1, -last - 2, 1 << 70, "1", 1.5, None]
                        self.assertEqual(declared.from_param(last).value, last)
                    elif kind is ctypes.c_void_p:
                        wrong = [-1, 1 << 64, "12345678"]
                    for value in wrong:
                        with self.assertRaises((bp.InvalidArgument, TypeError), msg=(name, kind, value)):
                            declared.from_param(value)
        self.assertEqual(widths, {(8, False), (32, True), (32, False), (64, False)})
        with self.assertRaisesRegex(bp.InvalidArgument, r"bp_pool_references: .*expected an integer in \[0, 4294967296\)"):
            call(core().bp_pool_references, self.served.pool.handle, 1 << 40)


IN_SUBINTERPRETER = """
import os, sys
sys.path[:0] = {path!r}
try:
    {statement}
    text = "imported"
except ImportError as error:
    text = str(error)
os.write({pipe}, text.encode())
"""

IN_MAIN = """
    import ctypes, os, sys
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    import bucketpool
    from bucketpool._library import binding
    from bucketpool.pool import Prepared
    from support import Served
    served, ends = Served(), []
    prepared = Prepared(served.pool, 0)
    statements = ["import bucketpool; bucketpool.Model('m')", "from bucketpool._library import binding; binding()"]
    if binding() is not None:
        statements.append("from importlib.machinery import ExtensionFileLoader as L; "
                          f"L('_binding', {binding().__file__!r}).load_module()")
    for statement in statements:
        reading, writing = os.pipe()
        made = interpreters.create()
        interpreters.run_string(made, sys.argv[1].format(path=sys.path, statement=statement, pipe=writing))
        interpreters.destroy(made)
        os.close(writing)
        print(os.read(reading, 4096).decode())
    bucketpool.Schedule.training(served.buckets, overrides={0: (2, 1)})  # ctypes has lost its pointer types, before Python 3.12
    served.stream.call(lambda: ends.append("a call"))
    served.stream.synchronize()
    assert prepared.try_acquire(served.stream)
    prepared.release(served.stream)
    if binding() is not None:
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

        def taken(capsule):  # as a consumer does
            managed = api.PyCapsule_GetPointer(capsule, b"dltensor")
            api.PyCapsule_SetName(capsule, b"used_dltensor")
            return managed

        prepared.serve_with(taken, 1, 0, 1, 8, lambda: (ends.append("a tensor"), prepared.release(served.stream)))
        managed = prepared.tensor(served.stream, 16)
        deleter = ctypes.cast(managed, ctypes.POINTER(ctypes.c_void_p))[7]  # of DLManagedTensor
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)
    print(ends, served.pool.references(0))
"""


# Ours, and since Python 3.12 its own for a compiled module of the package or of ctypes.
NO_SUBINTERPRETERS = (r"bucketpool: subinterpreters are unsupported; import it in the main interpreter"
           r"|module _\w+ does not support loading in subinterpreters")


class Subinterpreters(unittest.TestCase):

    def test_main_interpreter(self):
        """Calls, and the ends of tensors, reach it after subinterpreters that tried the import are gone."""
        if importlib.util.find_spec("_interpreters") is None and importlib.util.find_spec("_xxsubinterpreters") is None:
            self.skipTest("this Python has no subinterpreters")
        result = run_python(IN_MAIN, IN_SUBINTERPRETER)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result)
        lines = result.stdout.splitlines()
        self.assertGreaterEqual(len(lines), 3)
        for line in lines[:-1]:
            self.assertRegex(line, f"^({NO_SUBINTERPRETERS})$")
        self.assertEqual(lines[-1], "['a call', 'a tensor'] 0" if binding() is not None else "['a call'] 0")

    def test_refused(self):
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            self.skipTest("this Python has no _xxsubinterpreters")
        other = interpreters.create()
        self.addCleanup(interpreters.destroy, other)
        with self.assertRaisesRegex(Exception, NO_SUBINTERPRETERS):
            interpreters.run_string(other, f"import sys; sys.path[:0] = {sys.path!r}\n"
                                    "import bucketpool; bucketpool.Device.host()")
        self.assertEqual(bp.Device.host().name, "host")


if __name__ == "__main__":
    unittest.main()
