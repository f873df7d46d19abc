# SPDX-License-Identifier: Apache-2.0
"""Files of random programs keep every rule, and the checker detects files that break one. Arguments: the programs that
write them.
"""

import copy
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import check_snapshot as check

WRITER, WRITER_OF_THREADS = sys.argv[1:3]
SEEDS = 20


def write(value, batch=check.MAX_PER_BATCH):
    """Writes a pickle with the opcodes of the library, to test modified objects."""
    if value is None:
        return b"N"
    if value is True or value is False:
        return b"\x88" if value else b"\x89"
    if isinstance(value, str):
        text = value.encode()
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, int):
        if 0 <= value < 256:
            return b"K" + bytes([value])
        size = (value.bit_length() + 8) // 8
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, dict):
        return b"}(" + b"".join(write(k, batch) + write(v, batch) for k, v in value.items()) + b"u"
    parts = [b"".join(write(v, batch) for v in value[i:i + batch]) for i in range(0, len(value), batch)]
    return b"]" + b"".join(b"(" + part + b"e" for part in parts)


def dump(value, **options):
    return b"\x80\x02" + write(value, **options) + b"."


def entry_at(snapshot, action, last=False):
    entries = snapshot["device_traces"][0]
    order = range(len(entries) - 1, -1, -1) if last else range(len(entries))
    return next(i for i in order if entries[i]["action"] == action)


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([WRITER, cls.folder.name, "0", str(SEEDS)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        cls.paths = sorted(os.path.join(d, f) for d, _, names in os.walk(cls.folder.name) for f in names)
        cls.snapshots = {}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def snapshot(self, path):
        if path not in self.snapshots:
            with open(path, "rb") as file:
                self.snapshots[path] = check.check_pickle(file.read())
        return self.snapshots[path]

    def pickles(self):
        return [p for p in self.paths if p.endswith(".pickle")]

    def pools(self):
        return [(self.snapshot(p), self.snapshot(p)["bucketpool"]["pools"][0]) for p in self.pickles()]

    def test_every_file(self):
        self.assertGreater(len(self.pickles()), 150)
        for path in self.paths:
            with self.subTest(path=path[len(self.folder.name):]), open(path, "rb") as file:
                data = file.read()
                if path.endswith(".pickle"):
                    self.snapshot(path)
                else:
                    pickle = path.replace("/trace_", "/snapshot_").replace(".json", ".pickle")
                    check.check_trace(data, self.snapshot(pickle))

    def test_names_of_files(self):
        names = {os.path.basename(p) for p in self.paths if not os.path.basename(p).startswith(("now", "first"))}
        self.assertEqual(names, {"snapshot_rank03_p0d1c0t1.pickle", "trace_rank03_p0d1c0t1.json"})

    def test_coverage(self):
        """Every kind of event and state occurs in some file."""
        reached = set()
        for snapshot, pool in self.pools():
            reached.update(e["action"] for e in snapshot["device_traces"][0])
            reached.update(f"kind {e[0]}" for e in pool["events"])
            reached.update(r["placement"] for r in pool["requests"])
            reached.add(pool["allocator"])
            for what, is_so in (("lost", pool["lost_events"] > 0), ("slab moves", pool["slab_events"]),
                                ("live before", pool["live"]), ("gap", snapshot["bucketpool"]["gap"]),
                                ("a slab away", not all(s["resident"] for s in pool["slabs"])),
                                ("plan", pool["plan"]), ("no plan", pool["plan"] is None)):
                reached.update({what} if is_so else ())
            addresses = {}
            for kind, request, _, _, _, address in pool["events"]:
                if kind == check.ACQUIRE and addresses.setdefault(request, address) != address:
                    reached.add("another address")
        self.assertEqual(reached, check.ACTIONS | {f"kind {k}" for k in range(1, 7)} | {
            "planned", "persistent", "dynamic", "lost", "slab moves", "live before", "gap", "a slab away", "plan",
            "no plan", "another address", "fixed", "max", "scheduled"})

    def test_binary_names(self):
        """Bytes that are not UTF-8 are replaced one by one."""
        units = {r["unit"] for _, pool in self.pools() for r in pool["requests"]}
        self.assertIn('shard "of" \\ \t\x01 \u00e9 \ufffd\ufffd\ufffd \ufffd\ufffd\ufffd \U0001f600', units)
        self.assertIn("dynamic \ufffd\ufffd", units)

    # ---- files that break a rule -------------------------------------------------------------------------------------

    def largest(self, condition=lambda snapshot, pool: True):
        """The snapshot with the most entries that meets the condition."""
        return copy.deepcopy(max((s for s, p in self.pools() if condition(s, p) and not s["bucketpool"]["gap"]),
                                 key=lambda s: len(s["device_traces"][0])))

    def assert_broken(self, rule, data):
        with self.assertRaises(check.Broken) as caught:
            check.check_pickle(data)
        self.assertEqual(caught.exception.rule, rule, caught.exception)

    def broken_by(self, rule, change, condition=lambda snapshot, pool: True):
        snapshot = self.largest(condition)
        check.check_pickle(dump(snapshot))
        change(snapshot)
        with self.subTest(rule=rule, change=change.__name__ if hasattr(change, "__name__") else ""):
            self.assert_broken(rule, dump(snapshot))

    def test_broken_formats(self):
        data = dump(self.largest())
        self.assert_broken("protocol", b"\x80\x03" + data[2:])
        self.assert_broken("opcodes", data[:-1] + b"q\x00.")
        self.assert_broken("opcodes", b"\x80\x02cos\nsystem\n.")
        self.assert_broken("end", data + b"x")
        big = self.largest()
        big["bucketpool"]["pools"][0]["slabs"] = [big["bucketpool"]["pools"][0]["slabs"][0]] * 1001
        self.assert_broken("batches", dump(big, batch=1001))

    def test_broken_segments(self):
        def of_segment(change):
            return lambda s: change(next(x for x in s["segments"] if len(x["blocks"]) > 1))

        def live(segment):
            return next(b for b in segment["blocks"] if b["state"] == "active_allocated")

        self.broken_by("gaps", of_segment(lambda x: x["blocks"].pop()))
        self.broken_by("gaps", of_segment(lambda x: x["blocks"][0].update(address=x["address"] + 1)))
        self.broken_by("states", of_segment(lambda x: x["blocks"][0].update(state="active_pending")))
        self.broken_by("sizes", of_segment(lambda x: live(x).update(requested_size=1)))
        self.broken_by("sizes", of_segment(lambda x: x.update(allocated_size=x["allocated_size"] + 1)))
        self.broken_by("frames", of_segment(lambda x: live(x).update(frames=[])))
        self.broken_by("members", of_segment(lambda x: x.pop("stream")))
        self.broken_by("members", of_segment(lambda x: x.update(stream="0")))
        self.broken_by("devices", of_segment(lambda x: x.update(device=1)))
        self.broken_by("segments overlap", lambda s: s["segments"].append(copy.deepcopy(s["segments"][0])))
        self.broken_by("end state", lambda s: s["segments"].pop(0))

    def test_broken_traces(self):
        def at(action, change, last=False):
            return lambda s: change(s["device_traces"][0], entry_at(s, action, last))

        def is_freed(s, p):
            """True if the block of the first "alloc" is freed."""
            entries = s["device_traces"][0]
            allocated = next((e["addr"] for e in entries if e["action"] == "alloc"), None)
            return any(e["action"] == "free_requested" and e["addr"] == allocated for e in entries)

        self.broken_by("actions", at("alloc", lambda t, i: t[i].update(action="malloc")))
        self.broken_by("outside", at("segment_map", lambda t, i: t.pop(i)), lambda s, p: not p["slab_events"])
        self.broken_by("outside", at("alloc", lambda t, i: t[i].update(addr=4096)))
        self.broken_by("blocks overlap", at("alloc", lambda t, i: t.insert(i + 1, t[i])))
        self.broken_by("free", at("free_requested", lambda t, i: t.pop(i)))
        self.broken_by("free", at("alloc", lambda t, i: t.pop(i)), is_freed)
        self.broken_by("end state", at("free_completed", lambda t, i: (t.pop(i), t.pop(i - 1)), last=True),
                       lambda s, p: [e["action"] for e in s["device_traces"][0][-1:]] == ["free_completed"])
        self.broken_by("order", at("alloc", lambda t, i: t[i].update(time_us=1), last=True))
        self.broken_by("segment twice", at("segment_map", lambda t, i: t.insert(i, t[i])))
        self.broken_by("segment missing", at("segment_unmap", lambda t, i: t.insert(i, t[i])),
                       lambda s, p: any(e["action"] == "segment_unmap" for e in s["device_traces"][0]))
        self.broken_by("segment in use",
                       lambda s: s["device_traces"][0].insert(entry_at(s, "alloc") + 1,
                                                             {**s["device_traces"][0][entry_at(s, "segment_alloc")],
                                                              "action": "segment_free"}),
                       lambda s, p: any(e["action"] == "segment_alloc" for e in s["device_traces"][0])
                       and entry_at(s, "alloc") == entry_at(s, "segment_alloc") + 1)
        self.broken_by("sizes", at("alloc", lambda t, i: t[i].update(size=0)))

    def test_broken_bucketpool_half(self):
        def of_pool(change):
            return lambda s: change(s["bucketpool"]["pools"][0])

        def has_both(s, p):
            return len(p["events"]) > 9 and p["slab_events"]

        self.broken_by("members", lambda s: s["bucketpool"].pop("ranks"))
        self.broken_by("members", of_pool(lambda p: p["slabs"][0].pop("group")))
        self.broken_by("placements", of_pool(lambda p: p["requests"][0].update(placement="somewhere")))
        self.broken_by("statistics", of_pool(lambda p: p["statistics"].update(requests=1)))
        self.broken_by("events", of_pool(lambda p: p["events"].pop(next(i for i, e in enumerate(p["events"])
                                                                        if e[0] == 1))))
        self.broken_by("events", of_pool(lambda p: p["events"][0].append(0)))
        self.broken_by("streams", of_pool(lambda p: p["streams"].clear()), lambda s, p: not p["live"])
        self.broken_by("live", of_pool(lambda p: p["live"].append(p["live"][0])), lambda s, p: p["live"])
        self.broken_by("end state", of_pool(lambda p: p["events"].pop()), lambda s, p: p["events"][-1:]
                       and p["events"][-1][0] in (1, 5))
        self.broken_by("times", of_pool(lambda p: p["events"][-1].__setitem__(4, 1)))
        self.broken_by("slab events", of_pool(lambda p: p["slab_events"][0].__setitem__(1, 99)), has_both)
        self.broken_by(
            "halves", lambda s: s["device_traces"][0][entry_at(s, "alloc")]["frames"][0].update(name="param of another")
        )
        self.broken_by("halves", of_pool(lambda p: p["slab_events"].pop()), lambda s, p: p["slab_events"])
        self.broken_by("opcodes", lambda s: s["bucketpool"].update(step=1.5))

    # ---- traces ------------------------------------------------------------------------------------------------------

    def crossing(self, lines):
        """Extends a slice into the middle of the next one of its track."""
        found = [(i, json.loads(line.rstrip(","), parse_float=str))
                 for i, line in enumerate(lines) if '"ph":"X"' in line]
        slices = sorted((e["tid"], check.thousandths(e["ts"]), check.thousandths(e["dur"]), i) for i, e in found)
        (_, begin, took, line), after = next((a, b) for a, b in zip(slices, slices[1:])
                                             if a[0] == b[0] and a[1] < b[1] and b[2] > 2)
        dur = after[1] + after[2] // 2 - begin
        changed = lines[line].replace(f'"dur":{took // 1000}.{took % 1000:03}', f'"dur":{dur // 1000}.{dur % 1000:03}')
        return "\n".join(lines[:line] + [changed] + lines[line + 1:])

    def test_broken_perfetto_traces(self):
        path = max((p for p in self.paths if p.endswith(".json") and "/now_" not in p), key=os.path.getsize)
        snapshot = self.snapshot(path.replace("/trace_", "/snapshot_").replace(".json", ".pickle"))
        with open(path, encoding="utf-8") as file:
            text = file.read()
        check.check_trace(text.encode(), snapshot)
        lines = text.split("\n")
        first = next(i for i, line in enumerate(lines) if '"ph":"X"' in line)
        slice_of = json.loads(lines[first].rstrip(","), parse_float=str)

        def without(condition):
            return "\n".join(line for line in lines if not condition(line))

        for rule, changed in (("tracks", without(lambda line: '"thread_name"' in line)),
                              ("same", without(lambda line: '"slab bytes"' in line)),
                              ("counters", "\n".join(lines[:first] + lines[first + 1:])),
                              ("nesting", self.crossing(lines)),
                              ("times", text.replace(f'"ts":{slice_of["ts"]}', '"ts":1', 1))):
            with self.subTest(rule=rule), self.assertRaises(check.Broken) as caught:
                check.check_trace(changed.encode(), snapshot)
            self.assertEqual(caught.exception.rule, rule)


class Threads(unittest.TestCase):
    def test_every_file(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([WRITER_OF_THREADS, folder], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            lost = set()
            for ring in ("ring_1000", "ring_100000"):
                for step in range(6):
                    path = os.path.join(folder, ring, f"step_{step}")
                    with open(os.path.join(path, "snapshot_rank00.pickle"), "rb") as file:
                        snapshot = check.check_pickle(file.read())
                    with open(os.path.join(path, "trace_rank00.json"), "rb") as file:
                        check.check_trace(file.read(), snapshot)
                    self.assertEqual(len(snapshot["device_traces"]), 2)
                    self.assertEqual(len(snapshot["bucketpool"]["pools"]), 3)
                    lost.add(any(p["lost_events"] for p in snapshot["bucketpool"]["pools"]))
            self.assertEqual(lost, {True, False})
            with open(os.path.join(folder, "handed_over", "snapshot_rank00.pickle"), "rb") as file:
                self.assertEqual([p["lost_events"] for p in check.check_pickle(file.read())["bucketpool"]["pools"]],
                                 [0, 5])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
