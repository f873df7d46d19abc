# SPDX-License-Identifier: Apache-2.0
"""Memory of the readers against the size of the file: peak resident memory of the command (wait4) on traces of growing
length, and on files made to need much more than they are long.

Arguments: source directory, the bucketpool executable. With BUCKETPOOL_EXAMPLES above 1000, as `./check --full` sets
it, the trace of a million events, too.
"""

import os
import struct
import subprocess
import sys
import unittest

from answers import InFolder
import snapshots

TOOL = os.path.abspath(sys.argv[2])
MIB = 1 << 20
# Memory limits of readers (src/formats/models/reader.h), and memory of file and process on top.
FACTOR, CONSTANT, PROCESS = 16, 256 * MIB, 24 * MIB
FULL = int(os.environ.get("BUCKETPOOL_EXAMPLES", "0")) > 1000


# A process begins with the high-water mark of the one that forked it: a small one forks.
MEASURE = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                       file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
"""


class Measured:
    def __init__(self, *arguments):
        result = subprocess.run([sys.executable, "-S", "-c", MEASURE, TOOL, *arguments], capture_output=True, text=True,
                                check=True)
        self.code, self.peak = map(int, result.stdout.split())
        self.words = result.stderr


class Case(InFolder):
    def put(self, name, *parts):
        with open(self.path(name), "wb") as file:
            for part in parts:
                file.write(part)
        return self.path(name)

    def bounded(self, measured, bytes_, factor=FACTOR + 1, constant=CONSTANT + PROCESS):
        self.assertLessEqual(measured.peak, factor * bytes_ + constant,
                             f"{measured.peak / MIB:.0f} MiB for {bytes_ / MIB:.1f} MiB: {measured.words}")

    def refuses(self, command, path, *words):
        """Exit 2 with a message, within the budget of readers."""
        measured = Measured(command, path)
        self.assertEqual(measured.code, 2, measured.words)
        self.assertIn(os.path.basename(path), measured.words)
        for word in words:
            self.assertIn(word, measured.words)
        self.bounded(measured, os.path.getsize(path))


class Traces(Case):
    OUTPUTS = ([], ["--json"], ["--html", "page.html"], ["--plot", "plot.svg"], ["--flame", "flame.svg"])

    def view(self, path, outputs, factor, constant):
        for options in outputs:
            with self.subTest(options=options):
                options = [self.path(option) if "." in option else option for option in options]
                measured = Measured("view", path, *options)
                self.assertEqual((measured.code, measured.words), (0, ""))
                self.bounded(measured, os.path.getsize(path), factor, constant)
                if options[1:]:
                    self.assertLess(os.path.getsize(options[1]), 32 * MIB)

    def test_of_growing_length(self):
        """As many bytes for each event whatever their number."""
        for depth, lengths in ((0, (10_000, 30_000, 100_000)), (30, (10_000, 40_000))):
            for events in lengths:
                with self.subTest(events=events, depth=depth):
                    path = snapshots.write(self.path("x.pickle"), snapshots.torch_training(events, depth), 4)
                    self.view(path, self.OUTPUTS if events == 100_000 else [[]], 5, PROCESS)
        path = snapshots.write(self.path("x.pickle"), snapshots.ours(units=60, steps=100), 2)
        self.view(path, self.OUTPUTS, 12, PROCESS)

    @unittest.skipUnless(FULL, "a million events only with ./check --full")
    def test_of_a_million_events(self):
        for depth in (0, 30):
            path = snapshots.write(self.path("x.pickle"), snapshots.torch_training(1_000_000, depth), 4)
            self.view(path, self.OUTPUTS, 0, 1024 * MIB)


class Pickles(Case):
    KEYS = b"".join(b"\x8c" + bytes([len(key)]) + key + b"\x94K\x01" for key in (b"addr", b"size", b"time_us"))

    def trace(self, name, event, *events):
        """A snapshot of PyTorch's kind with one trace, whose items are pickled already; \\x06 is the memo's number of
        the first.
        """
        return self.put(name, b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94]\x94(", event,
                        *events, b"eau.")

    def event(self, action):
        return b"}\x94(\x8c\x06action\x94\x8c" + bytes([len(action)]) + action + b"\x94" + self.KEYS + b"u"

    def test_an_event_in_many_places(self):
        for action in (b"alloc", b"free_completed", b"segment_alloc", b"segment_free", b"oom"):
            with self.subTest(action=action):
                path = self.trace("x.pickle", self.event(action), b"h\x06" * 6_000_000)
                self.refuses("view", path, "an event is in two places of a list")

    def test_repeated_slabs(self):
        snapshot = snapshots.ours(units=1)
        half = snapshot["bucketpool"]
        pool = half["pools"][0]
        pool["requests"] = [dict(pool["requests"][0], bytes=1)] * 5000
        pool["live"] = [{"id": i, "address": snapshots.BASE + i, "stream": 0, "step": 0} for i in range(5000)]
        pool["events"], pool["slab_events"] = [], [[i % 2, 0, half["first_time_ns"] + i] for i in range(2000)]
        self.refuses("view", snapshots.write(self.path("x.pickle"), snapshot), "too often")

    def test_values(self):
        count = 4_000_000
        for name, data in (
            ("empty lists", b"(" + b"]" * count + b"t."), ("lists in the memo", b"(" + b"]\x94" * count + b"t."),
            ("nested lists", b"]" * count + b"a" * (count - 1) + b"."),
            ("references", b"]\x94(" + b"h\x00" * count + b"e."),
            ("marks", b"(" * count + b"."), ("tuples", b"(" + b")" * count + b"t."), ("no end", b"]" * count),
            ("batches", b"]" + b"(NNNNNNNNNe" * (count // 11) + b"."), ("one by one", b"]" + b"Na" * count + b"."),
            ("the memo's end", b"]" + b"r" + struct.pack("<I", count) + b"(" + b"N" * count + b"e."),
            ("a number beyond the memo", b"]r\xff\xff\xff\xff."), ("a text", b"\x8d" + b"\xff" * 8),
            ("bytes", b"\x8e" + b"\xff" * 7 + b"\x7f"),
            ("an integer", b"\x8b\xff\xff\xff\x7f"), ("a long integer",
                                                      b"\x8b" + struct.pack("<I", count) + bytes(count) + b"."),
            ("a frame", b"\x95" + b"\xff" * 8 + b"N."), ("pairs of pairs",
                                                         b")\x94" + b"h\x00\x86\x94" + b"h\x01\x86\x94" * count + b"."),
        ):
            with self.subTest(name):
                self.refuses("view", self.put("x.pickle", b"\x80\x04", data))

    def test_names(self):
        """Texts are copied once: short ones, each with its number in the memo."""
        pool = {"name": "p", "slabs": [], "requests": [], "streams": [{"number": 0, "name": f"{i:x}"}
                                                                      for i in range(100_000)], "live": [],
                "events": [], "slab_events": []}
        heading = {"format": "bucketpool.snapshot/1", "rank": 0, "ranks": 1, "first_time_ns": 0, "last_time_ns": 1,
                   "pools": [pool]}
        path = snapshots.write(self.path("x.pickle"), {"bucketpool": heading}, 4)
        measured = Measured("view", path)
        self.assertEqual(measured.code, 0, measured.words)
        self.bounded(measured, os.path.getsize(path))


class Documents(Case):
    def test_values(self):
        """12 MB of the smallest values, and 48 MB of objects, which take most."""
        count = 12_000_000
        for name, data in (
            ("objects", b"[" + b"{}," * (count // 3) + b"{}]"), ("lists", b"[" + b"[]," * (count // 3) + b"1]"),
            ("numbers", b"[" + b"1," * (count // 2) + b"1]"), ("texts", b"[" + b'"",' * (count // 3) + b"1]"),
            ("nested", b"[" * count), ("nested and closed", b"[" * (count // 2) + b"]" * (count // 2)),
            ("nested objects", b'{"":' * (count // 4)),
            ("members", b"{" + b",".join(b'"%x":1' % i for i in range(count // 12)) + b"}"),
        ):
            with self.subTest(name):
                self.refuses("plan", self.put("x.json", data))
        self.refuses("plan", self.put("x.json", b"[" + b"{}," * 16_000_000 + b"{}]"), "bytes of memory",
                     "document of 48000004 bytes")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
