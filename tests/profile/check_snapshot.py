# SPDX-License-Identifier: Apache-2.0
"""Checks snapshots and traces against docs/reference/snapshot_files.md and the limits of PyTorch's memory viewer:
check_snapshot.py FILE...

Implemented from the documents, independently of the writer. Broken names the rule that a file breaks.
"""

import collections
import io
import itertools
import json
import pickle
import pickletools
import sys

OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BININT", "BININT1", "BININT2", "LONG1",
           "BINUNICODE", "NEWTRUE", "NEWFALSE", "NONE", "STOP"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"}
STATES = {"active_allocated", "inactive"}
MAX_PER_BATCH = 1000
ACQUIRE, REF, USE, UNREF, RELEASE, CANCEL = range(1, 7)

SEGMENT = {"device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
           "requested_size": int,
           "stream": int, "segment_type": str, "segment_pool_id": list, "is_expandable": bool, "frames": list,
           "blocks": list}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
ENTRY = {"action": str, "addr": int, "size": int, "stream": int, "time_us": int, "frames": list}
FRAME = {"name": str, "filename": str, "line": int}
OURS = {"format": str, "version": str, "rank": int, "ranks": int, "coordinates": str, "step": (int, type(None)),
        "label": str, "first_time_ns": int, "last_time_ns": int, "realtime_offset_ns": int, "gap": bool, "pools": list}
POOL = {"name": str, "allocator": str, "fingerprint": str, "device": str, "plan": (dict, type(None)),
        "statistics": dict,
        "slabs": list, "requests": list, "streams": list, "live": list, "events": list, "slab_events": list,
        "lost_events": int}
PLAN = {"bytes": int, "lower_bound_bytes": int, "optimal": bool, "roles": list}
ROLE = {"role": str, "bytes": int, "lower_bound_bytes": int}
SLAB = {"address": int, "bytes": int, "planned_bytes": int, "group": str, "resident": bool}
REQUEST = {"unit": str, "bucket": str, "ordinal": int, "role": str, "dtype": str, "bytes": int, "placement": str,
           "references": int}
LIVE = {"id": int, "address": int, "stream": int, "step": int}
STATISTICS = {
    name: int
    for name in (
        "slab_bytes requests acquires repeated releases cancelled busy refused records elided waits deviations"
        " overflows dynamic live_requests live_bytes peak_live_bytes"
    ).split()
}


class Broken(Exception):
    def __init__(self, rule, what):
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def need(condition, rule, what=""):
    if not condition:
        raise Broken(rule, what)


def check_members(value, members, where):
    need(type(value) is dict, "members", f"{where} is not a dictionary")
    need(set(value) == set(members), "members", f"{where} has {sorted(set(value) ^ set(members))} too many or too few")
    for name, types in members.items():
        types = types if isinstance(types, tuple) else (types,)
        need(type(value[name]) in types, "members", f"{where}.{name} is a {type(value[name]).__name__}")


# ---- the format ------------------------------------------------------------------------------------------------------


class NoGlobals(pickle.Unpickler):
    def find_class(self, module, name):
        raise Broken("globals", f"{module}.{name}")


def check_opcodes(data):
    depth = []  # elements since each mark
    codes = pickletools.genops(data)
    opcode, protocol, _ = next(codes)
    need(opcode.name == "PROTO" and protocol == 2, "protocol", f"begins with {opcode.name} {protocol}")
    end = None
    for opcode, _, position in codes:
        need(opcode.name in OPCODES, "opcodes", f"{opcode.name} at byte {position}")
        if opcode.name == "MARK":
            depth.append(0)
        elif opcode.name in ("SETITEMS", "APPENDS"):
            elements = depth.pop()
            if opcode.name == "APPENDS":
                need(elements <= MAX_PER_BATCH, "batches", f"{elements} elements at byte {position}")
        elif opcode.name == "STOP":
            end = position
        elif depth:
            depth[-1] += 1
    need(end == len(data) - 1, "end", "something follows")


def load(data):
    check_opcodes(data)
    value = NoGlobals(io.BytesIO(data)).load()
    need(value == pickle.loads(data), "format")
    return value


# ---- the viewer's half -----------------------------------------------------------------------------------------------


def check_frames(frames, where, least=1):
    need(least <= len(frames) <= 1, "frames", f"{where} has {len(frames)}")
    for frame in frames:
        check_members(frame, FRAME, where + ".frames")


def check_blocks(segment, where):
    at = segment["address"]
    live = 0
    for block in segment["blocks"]:
        check_members(block, BLOCK, where + ".block")
        need(block["state"] in STATES, "states", block["state"])
        need(block["address"] == at and block["size"] > 0, "gaps",
             f"{where}: a block at {block['address']}, expected {at}")
        is_live = block["state"] == "active_allocated"
        check_frames(block["frames"], where + ".block", 1 if is_live else 0)
        need(block["requested_size"] == (block["size"] if is_live else 0), "sizes", f"{where}: block at {at}")
        live += block["size"] if is_live else 0
        at += block["size"]
    need(at == segment["address"] + segment["total_size"], "gaps", f"{where} ends elsewhere than its blocks")
    for name in ("allocated_size", "active_size", "requested_size"):
        need(segment[name] == live, "sizes", f"{where}.{name} is {segment[name]}, its blocks {live}")


def check_segments(segments, devices):
    for i, segment in enumerate(segments):
        where = f"segments[{i}]"
        check_members(segment, SEGMENT, where)
        need(segment["segment_type"] == "large", "members", where)
        need(len(segment["segment_pool_id"]) == 2 and all(type(n) is int for n in segment["segment_pool_id"]),
             "members", where)
        need(0 <= segment["device"] < devices, "devices", f"{where} is of device {segment['device']}")
        check_frames(segment["frames"], where)
        check_blocks(segment, where)
    for device in range(devices):
        ordered = sorted((s["address"], s["total_size"]) for s in segments if s["device"] == device)
        for (low, size), (high, _) in zip(ordered, ordered[1:]):
            need(low + size <= high, "segments overlap", f"{low} and {high}")


class Memory:
    """Segments and blocks during a replay of entries."""

    def __init__(self):
        self.segments, self.blocks, self.requested = {}, {}, set()

    def overlaps(self, table, address, size):
        return any(a < address + size and address < a + b for a, b in table.items())

    def apply(self, e):
        action, address, size = e["action"], e["addr"], e["size"]
        need(size > 0, "sizes", f"{action} of {size}")
        if action in ("segment_map", "segment_alloc"):
            need(not self.overlaps(self.segments, address, size), "segment twice", address)
            self.segments[address] = size
        elif action in ("segment_unmap", "segment_free"):
            need(self.segments.get(address) == size, "segment missing", address)
            need(not self.overlaps(self.blocks, address, size), "segment in use", address)
            del self.segments[address]
        elif action == "alloc":
            need(any(a <= address and address + size <= a + b for a, b in self.segments.items()), "outside", address)
            need(not self.overlaps(self.blocks, address, size), "blocks overlap", address)
            self.blocks[address] = size
        elif action == "free_requested":
            need(self.blocks.get(address) == size and address not in self.requested, "free", address)
            self.requested.add(address)
        else:
            need(self.blocks.get(address) == size and address in self.requested, "free", address)
            self.requested.discard(address)
            del self.blocks[address]


def check_traces(snapshot):
    for device, entries in enumerate(snapshot["device_traces"]):
        memory, before = Memory(), 0
        for e in entries:
            check_members(e, ENTRY, "entry")
            need(e["action"] in ACTIONS, "actions", e["action"])
            need(e["time_us"] >= before, "order", f"{e['time_us']} after {before}")
            check_frames(e["frames"], "entry")
            before = e["time_us"]
            memory.apply(e)
        mine = [s for s in snapshot["segments"] if s["device"] == device]
        need(memory.segments == {s["address"]: s["total_size"] for s in mine}, "end state", "segments")
        blocks = {b["address"]: b["size"] for s in mine for b in s["blocks"] if b["state"] == "active_allocated"}
        need(memory.blocks == blocks and not memory.requested, "end state", "blocks")


# ---- the "bucketpool" half -------------------------------------------------------------------------------------------


def check_pool(pool, ours):
    check_members(pool, POOL, "pool")
    check_members(pool["statistics"], STATISTICS, "statistics")
    if pool["plan"] is not None:
        check_members(pool["plan"], PLAN, "plan")
        for role in pool["plan"]["roles"]:
            check_members(role, ROLE, "role")
    for slab in pool["slabs"]:
        check_members(slab, SLAB, "slab")
    for request in pool["requests"]:
        check_members(request, REQUEST, "request")
        need(request["placement"] in ("planned", "persistent", "dynamic"), "placements", request["placement"])
    need(len(pool["requests"]) == pool["statistics"]["requests"], "statistics", "requests")
    need(sum(r["references"] > 0 for r in pool["requests"]) == pool["statistics"]["live_requests"], "statistics",
         "live")
    for stream in pool["streams"]:
        check_members(stream, {"number": int, "name": str}, "stream")
    streams = [s["number"] for s in pool["streams"]]
    need(len(set(streams)) == len(streams), "streams", "twice")
    for live in pool["live"]:
        check_members(live, LIVE, "live")
        need(live["id"] < len(pool["requests"]) and live["stream"] in streams, "live", live)
    need(len({live["id"] for live in pool["live"]}) == len(pool["live"]), "live", "twice")
    check_events(pool, ours, set(streams))


def check_events(pool, ours, streams):
    live = {e["id"]: e["address"] for e in pool["live"]}
    for e in pool["events"]:
        need(len(e) == 6 and all(type(n) is int for n in e), "events", e)
        kind, request, stream, _, time, address = e
        need(ACQUIRE <= kind <= CANCEL and 0 <= request < len(pool["requests"]), "events", e)
        need(stream in streams, "streams", f"{stream} has no name")
        need(ours["first_time_ns"] <= time <= ours["last_time_ns"], "times", e)
        if kind == ACQUIRE:
            need(request not in live, "events", f"{e}: is live already")
            live[request] = address
        else:
            need(request in live and live[request] == address, "events", f"{e}: is not live, or elsewhere")
        if kind in (RELEASE, CANCEL):
            del live[request]
    for e in pool["slab_events"]:
        need(len(e) == 3 and e[0] in (0, 1) and 0 <= e[1] < len(pool["slabs"]), "slab events", e)
        need(ours["first_time_ns"] <= e[2] <= ours["last_time_ns"], "times", e)
    if not ours["gap"]:
        held = {i for i, r in enumerate(pool["requests"]) if r["references"] > 0}
        need(set(live) == held, "end state", f"live by events {sorted(live)}, by requests {sorted(held)}")


def resident_at_first(pool, had):
    """Residency of each slab before the first event, by undoing the events. With a gap, only the viewer's half tells it
    for slabs without events.
    """
    resident = [s["address"] in had for s in pool["slabs"]] if had is not None else [s["resident"]
                                                                                     for s in pool["slabs"]]
    for gained, slab, _ in reversed(pool["slab_events"]):
        resident[slab] = not gained
    return resident


class Reconstruction:
    """Reconstructs the viewer's entries from the "bucketpool" half: (action, address, bytes, name)."""

    def __init__(self, pool, had):
        self.pool, self.out = pool, []
        self.resident = resident_at_first(pool, had)
        self.live, self.shown = {e["id"]: e["address"] for e in pool["live"]}, set()
        for slab, is_there in enumerate(self.resident):
            if is_there:
                self.tell("segment_map", pool["slabs"][slab]["address"], pool["slabs"][slab]["bytes"],
                          self.slab_name(slab))
        for request in sorted(self.live):
            self.show(request)

    def slab_name(self, slab):
        return f"slab {slab} ({self.pool['slabs'][slab]['group']})"

    def tell(self, action, address, size, name):
        self.out.append((action, address, size, name))

    def slab_of(self, address):
        for i, s in enumerate(self.pool["slabs"]):
            if s["address"] <= address < s["address"] + s["bytes"]:
                return i
        return None

    def name(self, request):
        r = self.pool["requests"][request]
        return f"{r['role']} {r['unit'] or 'outside units'}/{r['bucket']}"

    def show(self, request):
        r, address = self.pool["requests"][request], self.live[request]
        is_dynamic = r["placement"] == "dynamic"
        if r["bytes"] == 0 or not (is_dynamic or self.resident[self.slab_of(address)]):
            return
        if is_dynamic:
            self.tell("segment_alloc", address, r["bytes"], self.name(request))
        self.tell("alloc", address, r["bytes"], self.name(request))
        self.shown.add(request)

    def hide(self, request):
        if request not in self.shown:
            return
        r, address = self.pool["requests"][request], self.live[request]
        for action in ["free_requested", "free_completed"] + ["segment_free"] * (r["placement"] == "dynamic"):
            self.tell(action, address, r["bytes"], self.name(request))
        self.shown.discard(request)

    def is_in(self, request, slab):
        return self.pool["requests"][request]["placement"] != "dynamic" and self.slab_of(self.live[request]) == slab

    def move(self, gained, slab):
        s = self.pool["slabs"][slab]
        if not gained:
            for request in sorted(self.live):
                if self.is_in(request, slab):
                    self.hide(request)
        self.resident[slab] = bool(gained)
        self.tell("segment_map" if gained else "segment_unmap", s["address"], s["bytes"], self.slab_name(slab))
        if gained:
            for request in sorted(self.live):
                if self.is_in(request, slab):
                    self.show(request)

    def happen(self, kind, request, address):
        if kind == ACQUIRE:
            self.live[request] = address
            self.show(request)
        elif kind in (RELEASE, CANCEL):
            self.hide(request)
            del self.live[request]


def initial_slabs(pool, entries):
    """Slabs mapped by the first entries, in order of slabs. After a gap without events, entries of slabs mapped since
    then follow directly, out of order.
    """
    order, had = [s["address"] for s in pool["slabs"]], []
    for e in entries:
        if e["action"] != "segment_map" or had and order.index(e["addr"]) < order.index(had[-1]):
            break
        had.append(e["addr"])
    return set(had)


def check_agreement(snapshot):
    """Compares the two halves of a snapshot of one pool."""
    ours = snapshot["bucketpool"]
    if len(ours["pools"]) != 1:
        return
    pool, entries = ours["pools"][0], snapshot["device_traces"][0]
    told = Reconstruction(pool, initial_slabs(pool, entries) if ours["gap"] else None)
    # threads read the clock before they get their index
    times = itertools.accumulate((e[4] for e in pool["events"]), max)
    marks = [(t, 1, e) for t, e in zip(times, pool["events"])] + [(e[2], 0, e) for e in pool["slab_events"]]
    for _, is_request, e in sorted(marks, key=lambda m: m[:2]):
        if is_request:
            told.happen(e[0], e[1], e[5])
        else:
            told.move(e[0], e[1])
    found = [(e["action"], e["addr"], e["size"], e["frames"][0]["name"]) for e in entries]
    need(
        found[: len(told.out)] == told.out,
        "halves",
        (
            next((i, a, b) for i, (a, b) in enumerate(zip(told.out, found + [None] * len(told.out))) if a != b)
            if found[: len(told.out)] != told.out
            else ""
        ),
    )
    need(ours["gap"] or len(found) == len(told.out), "halves", "the viewer's list has more entries")
    offset = ours["realtime_offset_ns"]
    for e in entries:
        need(ours["first_time_ns"] + offset - 1000 < e["time_us"] * 1000, "times", e)
        need(ours["gap"] or e["time_us"] * 1000 <= ours["last_time_ns"] + offset, "times", e)


def check_ours(snapshot):
    ours = snapshot["bucketpool"]
    check_members(ours, OURS, "bucketpool")
    need(ours["format"] == "bucketpool.snapshot/1", "members", ours["format"])
    need(ours["rank"] < ours["ranks"], "members", "rank")
    need((ours["step"] is None) or ours["label"] == "", "members", "step and label")
    need(ours["first_time_ns"] <= ours["last_time_ns"], "times")
    for pool in ours["pools"]:
        check_pool(pool, ours)


def check_pickle(data):
    snapshot = load(data)
    check_members(snapshot, {"segments": list, "device_traces": list, "allocator_settings": dict, "bucketpool": dict},
                  "file")
    need(snapshot["allocator_settings"] == {}, "members", "allocator_settings")
    check_segments(snapshot["segments"], len(snapshot["device_traces"]))
    check_traces(snapshot)
    check_ours(snapshot)
    check_agreement(snapshot)
    return snapshot


# ---- traces ----------------------------------------------------------------------------------------------------------


def check_nesting(slices):
    open_ends = []
    for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        need(not open_ends or end <= open_ends[-1], "nesting", f"{begin} to {end} in one to {open_ends[-1:]}")
        open_ends.append(end)


def thousandths(number):
    """Nanoseconds of a number of microseconds with three decimals, exactly."""
    need(type(number) is str and number.count(".") == 1 and len(number.split(".")[1]) == 3, "times", number)
    return int(number.replace(".", ""))


def check_trace(data, snapshot=None):
    text = data.decode("utf-8", "strict")
    trace = json.loads(text, parse_float=str, object_pairs_hook=no_duplicates)
    check_members(trace, {"displayTimeUnit": str, "baseTimeNanoseconds": int, "otherData": dict, "traceEvents": list},
                  "trace")
    other, tracks, named = trace["otherData"], collections.defaultdict(list), set()
    need(other["format"] == "bucketpool.trace/1", "members", other["format"])
    slices, counters, instants = [], collections.defaultdict(list), 0
    for e in trace["traceEvents"]:
        need(e["pid"] == other["rank"] and e["ph"] in "MXCi", "events", e)
        if e["ph"] == "X":
            begin = thousandths(e["ts"])
            tracks[e["tid"]].append((begin, begin + thousandths(e["dur"])))
            slices.append((begin, begin + thousandths(e["dur"]), e["name"], e["args"]["bytes"],
                           int(e["args"]["address"], 16)))
        elif e["ph"] == "C":
            need(e["args"]["bytes"] >= 0, "counters", e)
            counters[e["name"]].append((thousandths(e["ts"]), e["args"]["bytes"]))
        elif e["ph"] == "i":
            instants += 1
        elif e["name"] == "thread_name":
            need(e["tid"] not in named, "tracks", f"{e['tid']} has two names")
            named.add(e["tid"])
    need(set(tracks) <= named, "tracks", "one has no name")
    for times in tracks.values():
        check_nesting(times)
    for values in counters.values():
        need(values == sorted(values, key=lambda v: v[0]), "order", "counters")
    check_live_bytes(slices, counters)
    if snapshot is not None:
        check_same(trace, slices, counters, instants, snapshot)
    return trace


def no_duplicates(pairs):
    need(len(dict(pairs)) == len(pairs), "format", "a key twice")
    return dict(pairs)


def check_live_bytes(slices, counters):
    """Compares the counter of each role with the sums of its slices."""
    for name, values in counters.items():
        if not name.startswith("live bytes: "):
            continue
        changes = []
        for begin, end, title, size, _ in slices:
            if title.split(" ", 1)[0] == name[len("live bytes: "):]:
                changes.append((begin, size))
                changes.append((end, -size))
        seen, total = set(), 0
        for _, change in sorted(changes, key=lambda c: c[0]):
            total += change
            seen.add(total)
        need(total == 0 and len(values) <= len(changes), "counters", name)
        ups = sum(b > a for (_, a), (_, b) in zip([(0, 0)] + values, values))
        need(ups == len(changes) // 2, "counters", f"{name} rises {ups} times, slices begin {len(changes) // 2} times")


def check_same(trace, slices, counters, instants, snapshot):
    """Compares a trace with the pickle of the same recording."""
    base, began, told, live = trace["baseTimeNanoseconds"], {}, [], collections.Counter()
    expected = collections.defaultdict(list)
    for device, e in ((d, e) for d, entries in enumerate(snapshot["device_traces"]) for e in entries):
        name = e["frames"][0]["name"]
        if e["action"] == "alloc":
            began[device, e["addr"]] = e["time_us"]
        elif e["action"] == "free_completed":
            told.append((began.pop((device, e["addr"])), e["time_us"], name, e["size"], e["addr"]))
        if e["action"] in ("alloc", "free_completed"):
            role = name.split(" ", 1)[0]
            live[role] += e["size"] if e["action"] == "alloc" else -e["size"]
            expected["live bytes: " + role].append(live[role])
    found = [((base + b) // 1000, (base + e) // 1000, n, s, a) for b, e, n, s, a in slices]
    if not snapshot["bucketpool"]["gap"]:  # after a gap the two files show different moments
        need(not collections.Counter(told) - collections.Counter(found), "same", "slices")
    need(len(found) == len(told) + len(began), "same", "slices")
    for name, values in expected.items() if len(snapshot["device_traces"]) == 1 else ():
        need([v for _, v in counters[name]] == values, "same", name)
    maps = sum(e["action"] in ("segment_map", "segment_unmap") for entries in snapshot["device_traces"]
               for e in entries)
    need(len(counters["slab bytes"]) == maps and instants <= maps, "same", "slabs")


def check_file(path):
    with open(path, "rb") as file:
        data = file.read()
    return check_pickle(data) if path.endswith(".pickle") else check_trace(data)


if __name__ == "__main__":
    for file_name in sys.argv[1:]:
        check_file(file_name)
        print(f"{file_name}: keeps every rule")
