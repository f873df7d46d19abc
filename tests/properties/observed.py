# SPDX-License-Identifier: Apache-2.0
"""A device that tracks the order of work with vector clocks, gates that delay streams, and deferred checks of copies.

The device is a decorator made with bp_device_create: it forwards every function of the host device and keeps a vector
clock for each stream: the work of every other stream that is ordered before its next work. Bytes show a missing wait
only if the race is lost; clocks always show it, and superfluous waits, too."""

import ctypes
import threading
import time
from ctypes import POINTER, c_int, c_void_p
from dataclasses import dataclass, field

import bindings
from bindings import OK, check, made

Clock = dict  # serial number of a stream -> its work that is ordered before, as a position

LIBC = ctypes.CDLL(None)
CALL_STREAM = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)
CALL_TWO = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)
CALL_SELF = ctypes.CFUNCTYPE(c_int, c_void_p)
CALL_OUT = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))
CALL_COMMIT = ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.c_uint64, POINTER(ctypes.c_uint64))
CALL_RESERVE = ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.c_uint64, ctypes.c_uint64, POINTER(c_void_p))
CALL_ALLOCATE = ctypes.CFUNCTYPE(c_int, c_void_p, ctypes.c_uint64, c_void_p, POINTER(c_void_p))
NOTHING = ctypes.CFUNCTYPE(None, c_void_p)


def merge(*clocks: Clock) -> Clock:
    result: Clock = {}
    for clock in clocks:
        for stream, position in clock.items():
            if position > result.get(stream, 0):
                result[stream] = position
    return result


@dataclass(eq=False)
class Stream:
    handle: c_void_p
    name: str
    serial: int
    alive: bool = True
    releases: int = 0  # release events recorded on it; much older points are not exact

    def __repr__(self) -> str:
        return self.name


class Device:
    """The host device behind an observing table. `sabotage` injects faults, which the tests must detect: "drop" omits
    the waits of pools, "late" makes them wait for work that was enqueued after the release, too.
    """

    def __init__(self, lib, max_delay_us=20, sabotage=""):
        self.lib = lib
        self.sabotage = sabotage
        self.clocks: dict[int, Clock] = {}  # by serial number of the stream
        self.host: Clock = {}  # work that the host has waited for: it precedes everything enqueued from now on
        self.marks: dict[int, tuple] = {}  # event -> clock, stream
        self.serials: dict[int, int] = {}  # the device's own streams -> serial number
        self.callers: set[int] = set()  # streams of the caller; pools also have internal ones
        self.inside = ""  # the pool function that runs
        self.operations: list[str] = []  # device operations of that function
        self.created = 0
        config = bindings.HostConfig(max_delay_us=max_delay_us, delay_seed=7)
        self.inner = made(lib, "bp_device_create_host", config)
        self.own = c_void_p()
        table = lib.bp_device_table(self.inner, self.own)
        self.ops = bindings.DeviceOps.from_buffer_copy(table.contents)
        self.keep = []  # keeps callbacks alive
        self._hook()
        table = ctypes.cast(ctypes.pointer(self.ops), POINTER(bindings._abi.bp_device_ops))
        self.handle = made(lib, "bp_device_create", table, self.own)

    def _replace(self, name, kind, function):
        original = ctypes.cast(getattr(self.ops, name), kind) if getattr(self.ops, name) else None
        callback = kind(lambda *arguments: function(original, *arguments))
        self.keep.append(callback)
        setattr(self.ops, name, ctypes.cast(callback, c_void_p))

    def _note(self, name):
        if self.inside:
            self.operations.append(name)

    def _hook(self):
        def stream_create(original, own, out):
            status = original(own, out)
            if status == OK:
                self.created += 1
                self.serials[out[0]] = self.created
                self.clocks[self.created] = {}
            return status

        def event_create(original, own, out):
            self._note("event_create")
            status = original(own, out)
            if status == OK:
                self.marks.pop(out[0], None)
            return status

        def event_record(original, own, event, stream):
            self._note("event_record")
            status = original(own, event, stream)
            if status == OK:
                serial = self.serials[stream]
                self.marks[event] = (dict(self.clocks[serial]), stream)
            return status

        def stream_wait(original, own, stream, event):
            self._note("stream_wait")
            if self.inside and self.sabotage == "drop" and self.serials[stream] in self.callers:
                return OK
            clock, recorded = self.marks.get(event, ({}, None))
            if self.inside and self.sabotage == "late" and recorded:
                event_record_now(own, event, recorded)
                clock = dict(self.clocks[self.serials[recorded]])
            status = original(own, stream, event)
            if status == OK:
                serial = self.serials[stream]
                self.clocks[serial] = merge(self.clocks[serial], clock)
            return status

        def stream_synchronize(original, own, stream):
            self._note("stream_synchronize")
            status = original(own, stream)
            self.host = merge(self.host, self.clocks[self.serials[stream]])
            return status

        def synchronize(original, own):
            self._note("synchronize")
            status = original(own)
            self.host = merge(self.host, *self.clocks.values())
            return status

        def event_synchronize(original, own, event):
            self._note("event_synchronize")
            status = original(own, event)
            self.host = merge(self.host, self.marks.get(event, ({}, None))[0])
            return status

        def stream_destroy(original, own, stream):
            status = original(own, stream)
            self.host = merge(self.host, self.clocks.pop(self.serials.pop(stream)))
            return status

        def noting(name):
            def function(original, *arguments):
                self._note(name)
                return original(*arguments)
            return function

        event_record_now = ctypes.cast(self.ops.event_record, CALL_TWO)
        self._replace("stream_create", CALL_OUT, stream_create)
        self._replace("stream_destroy", CALL_STREAM, stream_destroy)
        self._replace("stream_synchronize", CALL_STREAM, stream_synchronize)
        self._replace("synchronize", CALL_SELF, synchronize)
        self._replace("event_create", CALL_OUT, event_create)
        self._replace("event_record", CALL_TWO, event_record)
        self._replace("stream_wait", CALL_TWO, stream_wait)
        self._replace("event_synchronize", CALL_STREAM, event_synchronize)
        self._replace("commit", CALL_COMMIT, noting("commit"))
        self._replace("reserve", CALL_RESERVE, noting("reserve"))
        self._replace("allocate", CALL_ALLOCATE, noting("allocate"))
        self._replace("destroy", NOTHING, lambda original, own: None)  # the inner device is owned elsewhere

    def call(self, name, *arguments) -> int:
        """Calls a pool function and records its device operations."""
        self.operations = []
        self.inside = name
        try:
            return getattr(self.lib, name)(*arguments)
        finally:
            self.inside = ""

    def clock(self, stream: Stream) -> Clock:
        """The work that is ordered before the stream's next work."""
        return merge(self.host, self.clocks.get(stream.serial, {}))

    def tick(self, stream: Stream) -> None:
        """Records work on the stream."""
        clock = self.clocks[stream.serial]
        clock[stream.serial] = clock.get(stream.serial, 0) + 1

    def make_stream(self) -> Stream:
        name = f"s{self.created + 1}"
        handle = made(self.lib, "bp_stream_create", self.handle, name.encode())
        self.callers.add(self.created)
        return Stream(handle, name, self.created)

    def destroy_stream(self, stream: Stream) -> None:
        """Keeps the pointer: calls with it must fail without a crash."""
        self.lib.bp_stream_destroy(ctypes.byref(bindings._abi.bp_stream(stream.handle.value)))
        stream.alive = False

    def synchronize(self) -> None:
        check(self.lib, self.lib.bp_device_synchronize(self.handle), "bp_device_synchronize")

    def forget(self) -> None:
        """Resets the order. Call when all streams are idle and all pools destroyed."""
        self.host = {}
        self.marks.clear()
        for clock in self.clocks.values():
            clock.clear()

    def close(self) -> None:
        self.lib.bp_device_destroy(ctypes.byref(self.handle))
        self.lib.bp_device_destroy(ctypes.byref(self.inner))


class Gates:
    """Work that blocks a stream until the host opens the gate, so that a missing wait always loses its race.

    A watchdog opens the gates if the host itself waits for one, and the test fails with a message."""

    PATIENCE = 120.0

    def __init__(self, lib):
        self.lib = lib
        self.wait = ctypes.cast(LIBC.sem_wait, bindings.HostFunction)
        self.closed: list = []
        self.old: list = []  # semaphores that a stream may still use
        self.since = 0.0
        self.stuck = False
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self, stream: Stream) -> None:
        semaphore = ctypes.create_string_buffer(64)
        LIBC.sem_init(semaphore, 0, 0)
        status = self.lib.bp_stream_call(stream.handle, self.wait, ctypes.addressof(semaphore))
        check(self.lib, status, "bp_stream_call")
        self.since = time.monotonic()
        self.closed.append(semaphore)

    def open(self) -> None:
        if not self.closed:
            return
        time.sleep(0.001)  # time for wrongly ordered work to run
        closed, self.closed = self.closed, []
        for semaphore in closed:
            LIBC.sem_post(semaphore)
        self.old += closed
        assert not self.stuck, "a call waited for a stream although it may not"

    def forget(self) -> None:
        """Call after everything has run."""
        self.old.clear()

    def _watch(self):
        while True:
            time.sleep(1)
            if self.closed and time.monotonic() - self.since > self.PATIENCE:
                self.stuck = True
                for semaphore in list(self.closed):
                    LIBC.sem_post(semaphore)


@dataclass
class Tape:
    """Memory that streams copy bytes to, and their expected values; compared when everything has run."""

    size: int = 8 << 20
    used: int = 0
    checks: list = field(default_factory=list)

    def __post_init__(self):
        self.memory = ctypes.create_string_buffer(self.size)
        self.address = ctypes.addressof(self.memory)

    def room(self, count: int) -> bool:
        return self.used + count <= self.size

    def expect(self, lib, stream: Stream, address: int, count: int, value: int, what: str) -> None:
        """Enqueues a copy of `count` bytes at `address`, each of which must equal `value`."""
        check(lib, lib.bp_stream_copy(stream.handle, self.address + self.used, address, count), "bp_stream_copy")
        self.checks.append((self.used, count, value, what))
        self.used += count

    def verify(self) -> int:
        """Call when all streams are idle. Returns the number of compared bytes."""
        view = memoryview(self.memory).cast("B")
        compared = 0
        checks, self.checks, self.used = self.checks, [], 0
        for offset, count, value, what in checks:
            seen = bytes(view[offset:offset + count])
            if seen != bytes([value]) * count:
                wrong = sum(byte != value for byte in seen)
                found = sorted({byte for byte in seen if byte != value})[:4]
                raise AssertionError(f"{wrong} of {count} bytes wrong: {what} should be {value}, found {found}")
            compared += count
        return compared
