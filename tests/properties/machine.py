# SPDX-License-Identifier: Apache-2.0
"""The state machine of test_pool.py: random calls on a pool of a random plan, checked against the reference model
(model.py).

Stream ordering is checked in three ways: by bytes (every acquire fills its buckets, releasing streams copy them away),
by gates (a stream is delayed so that a missing wait loses its race), and by the vector clocks of observed.py, which
also detect superfluous waits.
"""

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bindings as b
import scenarios
from bindings import OK, SCHEDULE, check, detail, filled, ids_array, made
from model import Description, Home, Model, Setting, SizeClass
from observed import Device, Gates, Stream, Tape

# Device operations that the hot path may use; dynamic requests allocate by definition.
HOT = {"event_record", "stream_wait"}
NOT_LIVE = 1 << 30  # an unknown id


@dataclass(frozen=True)
class PoolCase:
    """Parameters of a generated pool."""

    units: tuple
    roles: int
    prefetch: int
    grad_units: int
    policy: str  # "fixed", "max", "dynamic", "first_fit", "scattered"
    copies: int
    fallback: int
    alignment: int
    scatter: tuple  # scattered: offsets, some missing; first_fit: the order
    strict: int
    overflow_bytes: int
    persistent_bytes: int
    extra_requests: int
    used: tuple  # used bytes in percent, for first_fit and scattered
    zeros: tuple  # by request, repeated
    promises: tuple  # by request, number of its stream, -1: none; repeated
    streams: int
    trace: bool


@st.composite
def pools(draw):
    units = draw(scenarios.units())
    both = 1 << b.ROLE_PARAM | 1 << b.ROLE_GRAD
    overflow = draw(st.sampled_from((0, 0, 0, 64, 700, 4096, 20000)))
    zeros = st.sampled_from((b.ZERO_NOTHING, b.ZERO_NOTHING, b.ZERO_PADDING, b.ZERO_ALL))
    streams = draw(st.integers(1, 4))
    promise = st.integers(-1, streams - 1)
    promises = st.just((-1,)) | promise.map(lambda one: (one,)) | st.lists(promise, min_size=2, max_size=4).map(tuple)
    return PoolCase(
        units=units, roles=draw(st.sampled_from((both, both, 1 << b.ROLE_PARAM, 1 << b.ROLE_GRAD))),
        prefetch=draw(st.integers(0, 3)), grad_units=draw(st.integers(1, 3)),
        policy=draw(st.sampled_from(("fixed", "max", "max", "first_fit", "scattered", "scattered", "dynamic"))),
        copies=draw(st.sampled_from((0, 0, 1, 2, 3, 4))),
        fallback=draw(st.sampled_from((b.FALLBACK_PERSISTENT, b.FALLBACK_DYNAMIC))),
        alignment=draw(st.sampled_from((256, 64, 16, 1))),
        scatter=tuple(draw(st.lists(st.integers(0, 40), min_size=6, max_size=6))),
        strict=draw(st.sampled_from((b.STRICT_ERROR, b.STRICT_WARN, b.STRICT_OFF))),
        overflow_bytes=overflow, persistent_bytes=draw(st.sampled_from((0, 512, 4096))),
        extra_requests=draw(st.sampled_from((0, 2, 4))),
        used=tuple(draw(st.lists(st.integers(0, 100), min_size=1, max_size=4))),
        zeros=tuple(draw(st.lists(zeros, min_size=1, max_size=4))), promises=draw(promises), streams=streams,
        trace=draw(st.booleans()))


@dataclass
class Stripe:
    """Bytes that one stream wrote into a live bucket."""

    begin: int
    count: int
    value: int
    stream: Stream
    event: c_void_p


class Fleet:
    """Resources that examples share, because they are expensive to create: a device, streams, events, a tape."""

    def __init__(self, lib, sabotage=""):
        self.lib = lib
        self.device = Device(lib, sabotage=sabotage)
        self.streams: list[Stream] = []
        self.events: list = []
        self.gates = Gates(self.lib)
        self.tape = Tape()
        null = made(self.lib, "bp_device_create_null")
        self.nothing = Stream(b._abi.bp_stream(), "NULL", -1, alive=False)
        self.foreign = Stream(made(self.lib, "bp_stream_create", null, b"foreign"), "foreign", -1)
        self.patterns = 0
        self.compared = 0

    def take_streams(self, count):
        self.streams = [s for s in self.streams if s.alive]
        while len(self.streams) < count:
            self.streams.append(self.device.make_stream())
        return self.streams[:count]

    def pattern(self) -> int:
        """The next fill value: not 0, and different from the last ones."""
        self.patterns = self.patterns % 251 + 1
        return self.patterns


SEQUENCES: dict = {}  # sequence of acquires -> the library's hash, for all pools
HASHES: dict = {}  # the inverse
SEEN: dict = {}  # counts of events, as evidence of coverage


def seen(what) -> None:
    SEEN[what] = SEEN.get(what, 0) + 1


class Pool(RuleBasedStateMachine):
    fleet: Fleet  # set before the machine runs
    clocks = True  # checks the order with clocks; False: by bytes only

    def __init__(self):
        super().__init__()
        self.lib = self.fleet.lib
        self.pool = None
        self.events_used = 0
        self.stripes: dict[int, list[Stripe]] = {}
        self.messages: list[str] = []
        self.tracing = False
        self.waits = self.records = 0
        self.numbers = None  # acquire numbers count from 0 or from 1

    # ---- setup -------------------------------------------------------------------------------------------------------

    @initialize(case=pools())
    def make(self, case):
        self.case = case
        self.device = self.fleet.device
        self.streams = list(self.fleet.take_streams(case.streams))
        self.dead = [self.fleet.foreign, self.fleet.nothing]  # invalid streams
        buckets = scenarios.make_buckets(self.lib, case.units, case.roles)
        try:
            self.wanted = scenarios.read_requests(self.lib, buckets)
            schedule = scenarios.make_schedule(
                self.lib, buckets, scenarios.Options(prefetch=case.prefetch, grad_units=case.grad_units))
            plan = self._plan(case, buckets, schedule)
            self.lib.bp_schedule_destroy(byref(schedule))
            try:
                self._pool(case, plan)
            finally:
                self.lib.bp_plan_destroy(byref(plan))
        finally:
            self.lib.bp_buckets_destroy(byref(buckets))
        for i in range(len(self.wanted)):
            self.zero([i], case.zeros[i % len(case.zeros)])
        for number, stream in enumerate(self.streams):
            self.promise([i for i in range(len(self.wanted)) if case.promises[i % len(case.promises)] == number],
                         stream)
        if case.trace:
            check(self.lib, self.lib.bp_pool_trace_start(self.pool, 5000, 0), "bp_pool_trace_start")
            self.tracing = True

    def _plan(self, case, buckets, schedule):
        if case.policy in ("first_fit", "scattered"):
            if case.policy == "scattered":
                offsets = [case.scatter[i % len(case.scatter)] * case.alignment * (1 if case.alignment > 16 else 16)
                           + (i // len(case.scatter)) * case.alignment for i in range(len(self.wanted))]
                offsets[1:] = [None if case.scatter[i % len(case.scatter)] > 36 else offset
                               for i, offset in enumerate(offsets[1:], 1)]
            else:
                intervals = scenarios.read_intervals(self.lib, schedule, self.wanted)
                order = sorted(range(len(self.wanted)), key=lambda i: (case.scatter[i % len(case.scatter)], i))
                offsets = scenarios.first_fit(self.wanted, intervals, case.alignment, order)
            return scenarios.build_plan(self.lib, self.wanted, offsets, case.alignment, case.used)
        policy = {"fixed": b.POLICY_FIXED, "max": b.POLICY_MAX, "dynamic": b.POLICY_DYNAMIC}[case.policy]
        plan = scenarios.make_plan(self.lib, buckets, schedule, policy, case.copies, case.fallback, case.alignment)
        if not scenarios.plan_info(self.lib, plan).feasible:
            pool = b._abi.bp_pool()
            status = self.lib.bp_pool_create(self.device.handle, plan, None, byref(pool))
            assert status == b.INFEASIBLE and not pool.value, f"an infeasible plan: {status} {detail(self.lib)}"
            seen("infeasible")
            self.lib.bp_plan_destroy(byref(plan))
            plan = scenarios.make_plan(self.lib, buckets, schedule, policy, 0, case.fallback, case.alignment)
        return plan

    def _pool(self, case, plan):
        info = scenarios.plan_info(self.lib, plan)
        self.on_message = b.MessageFunction(lambda user, text: self.messages.append(text.decode()))
        config = scenarios.pool_config(
            self.lib, strict=case.strict, overflow_bytes=case.overflow_bytes, persistent_bytes=case.persistent_bytes,
            on_message=self.on_message, extra_requests=case.extra_requests)
        fingerprint = ctypes.create_string_buffer(65)
        check(self.lib, self.lib.bp_plan_fingerprint(plan, fingerprint), "bp_plan_fingerprint")
        config.fingerprint = fingerprint.value
        self.pool = made(self.lib, "bp_pool_create", self.device.handle, plan, config)
        made_of = self.lib.bp_pool_get_info(self.pool).contents
        assert (made_of.policy, made_of.fingerprint, made_of.alignment, made_of.request_count) == (
            info.policy, fingerprint.value, info.alignment, info.request_count)
        seen(f"policy {info.policy}")
        slabs = scenarios.pool_slabs(self.lib, self.pool)
        for slab, planned in zip(slabs, info.slabs[:info.slab_count]):
            assert slab.planned_bytes == planned.bytes and slab.group == planned.group and slab.bytes >= planned.bytes
        size_classes = []
        for c in info.classes[:info.class_count]:
            first = slabs[c.slab].address + c.offset
            size_classes.append(SizeClass(tuple(first + k * c.stride for k in range(c.copies)), c.bytes))
        overflow = next(((s.address, s.address + s.bytes) for s in slabs if s.group == b"overflow"), (0, 0))
        placed = [r for r in info.requests[:info.request_count] if r.placement == b.PLANNED]
        room = next((s.bytes for s in slabs if s.group == b"persistent"), 0)
        self.model = Model(Setting(info.alignment, case.strict, size_classes, case.overflow_bytes, overflow,
                                   case.persistent_bytes, room, case.extra_requests,
                                   max((r.bytes for r in placed), default=0)))
        self.model.clocks = self.clocks
        for number, wanted in enumerate(self.wanted):
            r = info.requests[number]
            assert (r.unit.decode(), r.ordinal, r.role, r.dtype, r.bytes) == (*wanted.key, wanted.dtype, wanted.bytes)
            home = None
            if r.placement == b.PLANNED:
                home = Home(slabs[r.slab].address + r.offset, scenarios.class_of(r, info))
            self.model.planned(Description(*wanted.key, r.dtype, r.bytes, r.used_bytes, r.placement), home)
            self._find(plan, r, number)
        self.inside = [(s.address, s.address + s.bytes) for s in slabs]

    def _find(self, plan, r, number):
        """Looks up a request of the plan by name, if it has memory."""
        found = c_uint32(NOT_LIVE)
        status = self.lib.bp_plan_find(plan, r.unit, r.ordinal, r.role, r.dtype, r.bytes, byref(found))
        expected = (b.MISMATCH, NOT_LIVE) if r.placement == b.UNPLACED else (OK, number)
        assert (status, found.value) == expected, f"request {number}: {status} {found.value} {detail(self.lib)}"

    def bind_one(self, new):
        """Binds and compares with the forecast."""
        struct = b.Bind()
        check(self.lib, self.lib.bp_bind_init(byref(struct), ctypes.sizeof(struct)), "bp_bind_init")
        struct.unit, struct.ordinal, struct.role = new.unit.encode(), new.ordinal, new.role
        struct.dtype, struct.bytes, struct.used_bytes = new.dtype, new.bytes, new.used
        struct.placement = new.placement
        given = c_uint32(NOT_LIVE)
        expected = self.model.forecast_bind(new)
        self.fleet.gates.open()  # binding may wait for streams
        status = self.lib.bp_pool_bind(self.pool, byref(struct), byref(given))
        seen(f"bind {status}")
        assert status in expected, f"{new}: {status} {detail(self.lib)}, expected {sorted(expected)}"
        if status == OK:
            self.model.bound(new, given.value)
        else:
            assert given.value == NOT_LIVE, "an id although binding failed"
            self.model.refuse(certain=False)
            self.says_something()

    def zero(self, ids, zero):
        """Sets the zeroing of requests, and compares with the forecast."""
        wrong = zero > b.ZERO_ALL or any(i >= len(self.model.requests) for i in ids)
        status = self.lib.bp_pool_set_zero(self.pool, ids_array(ids), len(ids), zero)
        assert status == (b.INVALID_ARGUMENT if wrong else OK), f"set_zero {ids} {zero}: {status} {detail(self.lib)}"
        for i in ids if status == OK else ():
            self.model.requests[i].zero = zero
        if status != OK:
            self.model.refuse(certain=False)

    def promise(self, ids, stream):
        """Sets the stream of requests, and compares with the forecast."""
        expected = self.model.stream_statuses(ids, stream, stream is self.fleet.foreign)
        self.fleet.gates.open()  # changing a promise waits for the streams
        handle = stream.handle if stream else None
        status = self.device.call("bp_pool_set_stream", self.pool, ids_array(ids), len(ids), handle)
        note(f"{ids} are promised to {stream}: {status}")
        seen(f"promise {status}")
        assert status in expected, f"set_stream {ids} {stream}: {status} {detail(self.lib)}, expected {expected}"
        for i in ids if status == OK else ():
            self.model.requests[i].promised = stream
        if status != OK:
            self.model.refuse(certain=False)

    # ---- picking -----------------------------------------------------------------------------------------------------

    def stream(self, number) -> Stream:
        return self.streams[number % len(self.streams)]

    def some(self, picks, among):
        """Distinct ids out of `among`, chosen by `picks`."""
        left, chosen = list(among), []
        for pick in picks:
            if left:
                chosen.append(left.pop(pick % len(left)))
        return chosen

    def promised(self, request, otherwise) -> Stream:
        """The stream that a request has to be acquired on."""
        stream = request.promised or otherwise
        return stream if stream.alive else otherwise

    def acquirable(self, picks, number):
        """Ids that the model expects to be served together, and the stream."""
        model, stream = self.model, self.stream(number)

        def sure(ids, on):
            forecast = model.forecast_acquire(ids, on)
            return not forecast.errors and forecast.memory == "free"

        fresh = [r for r in model.requests if not r.references and sure([r.id], self.promised(r, stream))]
        chosen = []
        for request in self.some(picks, fresh):
            if not chosen:
                stream = self.promised(request, stream)
            if sure(chosen + [request.id], stream):
                chosen.append(request.id)
        return chosen, stream

    def anything(self, picks, odd):
        """Any ids, sometimes invalid or duplicate."""
        ids = self.some(picks, [r.id for r in self.model.requests])
        if odd == "unknown":
            ids.append(len(self.model.requests) + len(picks))
        elif odd == "twice" and ids:
            ids.append(ids[0])
        elif odd == "far":
            ids.insert(0, NOT_LIVE)
        return ids

    def says_something(self):
        assert detail(self.lib), "an error without a sentence"

    def names_one_of(self, ids):
        """Detail of an order error: must name the unit of a request."""
        text = detail(self.lib)
        units = {r.bound.unit for r in self.model.known(ids)}
        assert any(unit and unit in text or unit == "" for unit in units), f"names none of {units}: {text}"

    def snapshot(self):
        statistics = filled(self.lib, "bp_pool_statistics_get", b.Statistics, self.pool)
        numbers = {name: getattr(statistics, name) for name in b.Statistics.COUNTS
                   if name not in ("refused", "busy", "waits")}
        live = [(e.id, e.references, e.address, e.bytes, e.acquire_number, e.step, e.stream, e.role, e.ordinal, e.unit)
                for e in self.live_entries()]
        return numbers, live, self.sequence(), [self.address_of(r.id) for r in self.model.requests]

    def live_entries(self):
        entries = b.sized_array(b.LiveRequest, len(self.model.requests) + 1)
        count = c_size_t()
        check(self.lib, self.lib.bp_pool_live(self.pool, entries, len(entries), byref(count)), "bp_pool_live")
        assert count.value <= len(self.model.requests)
        return entries[:count.value]

    def sequence(self):
        value, count = c_uint64(), c_uint64()
        check(self.lib, self.lib.bp_pool_sequence(self.pool, byref(value), byref(count)), "bp_pool_sequence")
        return value.value, count.value

    def address_of(self, i):
        """Status, address, bytes."""
        address, count = c_void_p(), c_uint64()
        status = self.lib.bp_pool_address(self.pool, i, byref(address), byref(count))
        return (status, address.value or 0, count.value) if status == OK else (status, None, None)

    def unchanged(self, before):
        after = self.snapshot()
        for old, new in zip(before, after):
            assert old == new, f"changed by a call that served nothing: {old} -> {new}"

    def hot(self, name, *arguments):
        """A call on the hot path: it may not allocate, synchronise or make events."""
        before = {s: self.device.clock(s) for s in self.streams} if "acquire" not in name else {}
        status = self.device.call(name, *arguments)
        done = self.device.operations
        self.waits += done.count("stream_wait")
        self.records += done.count("event_record")
        beyond = set(done) - HOT - ({"allocate"} if "acquire" in name else set())
        assert not beyond, f"{name} has the device {beyond}"
        if "acquire" not in name:  # internal streams may wait: dynamic memory is freed after all users
            assert before == {s: self.device.clock(s) for s in self.streams}, f"{name} makes a stream wait"
        return status

    # ---- bytes -------------------------------------------------------------------------------------------------------

    def event(self):
        if self.events_used == len(self.fleet.events):
            self.fleet.events.append(made(self.lib, "bp_event_create", self.device.handle))
        self.events_used += 1
        return self.fleet.events[self.events_used - 1]

    def fill(self, request, stream, begin, count):
        value = self.fleet.pattern()
        check(self.lib, self.lib.bp_stream_fill(stream.handle, request.address + begin, value, count), "bp_stream_fill")
        self.device.tick(stream)
        event = self.event()
        check(self.lib, self.lib.bp_event_record(event, stream.handle), "bp_event_record")
        self.stripes[request.id].append(Stripe(begin, count, value, stream, event))

    def begin(self, request, stream, half):
        """A request became live: checks its zeroed bytes, then fills it."""
        count, zero = request.bound.bytes, request.zeroed
        self.stripes[request.id] = []
        if not count:
            return
        if zero != b.ZERO_NOTHING:
            start = 0 if zero == b.ZERO_ALL else request.bound.used
            if count > start:
                self.copy(stream, request, start, count - start, 0, "zeros")
        self.fill(request, stream, 0, count if zero != b.ZERO_NOTHING or not half else max(1, count // 2))

    def again(self, request, stream):
        """Another reference: this stream may write, too, without waiting for the first."""
        written = sum(stripe.count for stripe in self.stripes[request.id])
        if written < request.bound.bytes:
            self.fill(request, stream, written, request.bound.bytes - written)

    def copy(self, stream, request, begin, count, value, what):
        tape = self.fleet.tape
        if not tape.room(count):
            self.settle()
        tape.expect(self.lib, stream, request.address + begin, count, value,
                    f"{what} of {request.id} {request.bound.key} on {stream}")
        self.device.tick(stream)

    def read(self, ids, stream, what):
        """The stream reads live requests after the fills, ordered as a runtime would."""
        for i in dict.fromkeys(ids):
            if i >= len(self.model.requests) or not self.model.requests[i].references:
                continue
            for stripe in self.stripes[i]:
                if stripe.stream is not stream:
                    check(self.lib, self.lib.bp_stream_wait(stream.handle, stripe.event), "bp_stream_wait")
                self.copy(stream, self.model.requests[i], stripe.begin, stripe.count, stripe.value, what)

    def settle(self):
        """Synchronizes everything, then compares the bytes."""
        self.fleet.gates.open()
        self.device.synchronize()
        self.fleet.gates.forget()
        self.fleet.compared += self.fleet.tape.verify()

    # ---- rules -------------------------------------------------------------------------------------------------------

    PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=4)
    ODD = st.sampled_from(("", "", "", "", "unknown", "twice", "far"))
    NUMBER = st.integers(0, 3)
    WRONG_STREAM = st.sampled_from((0, 0, 0, 0, 1, 2))

    def acquire(self, ids, stream, half, with_addresses=True, attempt=False):
        model, foreign = self.model, stream is self.fleet.foreign
        forecast = model.forecast_acquire(ids, stream, foreign)
        before = self.snapshot()
        was = self.device.clock(stream) if stream.serial > 0 else {}
        addresses = (c_void_p * max(1, len(ids)))(*[0xDEAD] * max(1, len(ids)))
        deviations = model.deviations[0]
        messages = len(self.messages)
        answer = c_int(7)
        given = addresses if with_addresses else None
        if attempt:
            status = self.hot("bp_pool_try_acquire", self.pool, ids_array(ids), len(ids), stream.handle, given,
                              byref(answer))
            outcome = (status, answer.value if status == OK else None)
            assert outcome in forecast.tried(), f"try {ids} on {stream}: {outcome} {detail(self.lib)}, {forecast}"
            served = outcome == (OK, 1)
            seen(f"try {outcome}")
        else:
            status = self.hot("bp_pool_acquire", self.pool, ids_array(ids), len(ids), stream.handle, given)
            assert status in forecast.statuses(), f"acquire {ids} on {stream}: {status} {detail(self.lib)}, {forecast}"
            served = status == OK
            seen(f"acquire {status}")
        if not served:
            assert all(a == 0xDEAD for a in addresses), "addresses although nothing was served"
            if status == OK:
                model.counts["busy"] += 1
            else:
                model.refuse()
                if status == SCHEDULE:
                    self.names_one_of(ids)
                self.says_something()
            self.unchanged(before)
            return False
        if with_addresses:
            places = [a or 0 for a in addresses[:len(ids)]]
        else:
            places = [self.address_of(i)[1] for i in ids]
        live = {r.id for r in model.live()}
        fresh = model.acquired(ids, stream, places, was, self.device.clock)
        for request in fresh:
            self.begin(request, stream, half)
        for i in live.intersection(ids):
            self.again(model.requests[i], stream)
        if model.setting.strict == b.STRICT_WARN and model.deviations[0] > deviations:
            assert len(self.messages) >= messages + model.deviations[0] - deviations, "a deviation without a message"
            seen("warned")
        return True

    # Hypothesis draws rules evenly: frequent operations are rules with several names.
    def acquire_sensibly(self, picks, number, half):
        ids, stream = self.acquirable(picks, number)
        if ids:
            note(f"acquire {ids} on {stream}")
            assert self.acquire(ids, stream, half)
        else:  # no free memory
            self.release_sensibly(picks, number)

    acquires = rule(picks=PICKS, number=NUMBER, half=st.booleans())
    acquire_a, acquire_b, acquire_c = acquires(acquire_sensibly), acquires(acquire_sensibly), acquires(acquire_sensibly)
    acquire_d, acquire_e, acquire_f = acquires(acquire_sensibly), acquires(acquire_sensibly), acquires(acquire_sensibly)

    def acquire_anything(self, picks, number, odd, wrong, half, with_addresses, attempt):
        ids = self.anything(picks, odd)
        stream = self.dead[number % len(self.dead)] if wrong == 1 else self.stream(number)
        if not ids:
            return
        note(f"{'try ' if attempt else ''}acquire {ids} on {stream}")
        self.acquire(ids, stream, half, with_addresses, attempt)

    tries = rule(picks=PICKS, number=NUMBER, odd=ODD, wrong=WRONG_STREAM, half=st.booleans(),
                 with_addresses=st.booleans(), attempt=st.booleans())
    try_a, try_b = tries(acquire_anything), tries(acquire_anything)

    @rule(picks=PICKS, number=NUMBER)
    def hold_again(self, picks, number):
        live = [r.id for r in self.model.live()]
        ids = self.some(picks, live)
        if ids:
            stream = self.promised(self.model.requests[ids[0]], self.stream(number))
            note(f"acquire again {ids} on {stream}")
            self.acquire(ids, stream, False)

    @rule(picks=PICKS, releasing=st.lists(st.integers(0, 40), max_size=3), odd=ODD, any_released=st.booleans())
    def can_acquire(self, picks, releasing, odd, any_released):
        model = self.model
        ids = self.anything(picks, odd)
        live = [r.id for r in model.live()]
        ended = self.some(releasing, range(len(model.requests)) if any_released else live)
        statuses, answers = model.forecast_can(ids, ended)
        before = self.snapshot()
        can = c_int(7)
        status = self.hot("bp_pool_can_acquire", self.pool, ids_array(ids), len(ids), ids_array(ended), len(ended),
                          byref(can))
        note(f"can acquire {ids} releasing {ended}: {status} {can.value}")
        assert status in statuses, f"can_acquire {ids} releasing {ended}: {status} {detail(self.lib)}, not {statuses}"
        seen(f"can {status} {can.value}")
        if status == OK:
            assert can.value in answers, f"can_acquire {ids} releasing {ended}: {can.value}, expected {answers}"
        else:
            assert can.value == 7
            model.refuse(certain=False)
        self.unchanged(before)

    def use(self, picks, number, odd, wrong, sensible):
        model = self.model
        ids = self.some(picks, [r.id for r in model.live()]) if sensible else self.anything(picks, odd)
        stream = self.dead[number % len(self.dead)] if wrong == 1 and not sensible else self.stream(number)
        if not ids:
            return
        foreign = stream is self.fleet.foreign
        forecast = model.forecast_use(ids, stream, foreign)
        before = self.snapshot()
        status = self.hot("bp_pool_use", self.pool, ids_array(ids), len(ids), stream.handle)
        note(f"use {ids} on {stream}: {status}")
        seen(f"use {status}")
        assert status in forecast.statuses(), f"use {ids} on {stream}: {status} {detail(self.lib)}, {forecast}"
        if status == OK:
            model.used(ids, stream)
            self.read(ids, stream, "use")
        else:
            model.refuse()
            self.says_something()
            self.unchanged(before)

    uses = rule(picks=PICKS, number=NUMBER, odd=ODD, wrong=WRONG_STREAM, sensible=st.booleans())
    use_a, use_b = uses(use), uses(use)

    def release(self, ids, stream):
        model, foreign = self.model, stream is self.fleet.foreign
        forecast = model.forecast_use(ids, stream, foreign)
        if not forecast.fails:
            self.read(ids, stream, "last read")
        before = self.snapshot()
        status = self.hot("bp_pool_release", self.pool, ids_array(ids), len(ids), stream.handle)
        note(f"release {ids} on {stream}: {status}")
        seen(f"release {status}")
        assert status in forecast.statuses(), f"release {ids} on {stream}: {status} {detail(self.lib)}, {forecast}"
        if status == OK:
            model.released(ids, stream, self.device.clock)
        else:
            model.refuse()
            self.says_something()
            self.unchanged(before)

    def release_sensibly(self, picks, number):
        ids = self.some(picks, [r.id for r in self.model.live()])
        if ids:
            self.release(ids, self.stream(number))

    releases = rule(picks=PICKS, number=NUMBER)
    release_a, release_b, release_c = releases(release_sensibly), releases(release_sensibly), releases(release_sensibly)
    release_d, release_e = releases(release_sensibly), releases(release_sensibly)

    @rule(picks=PICKS, number=NUMBER, odd=ODD, wrong=WRONG_STREAM)
    def release_anything(self, picks, number, odd, wrong):
        ids = self.anything(picks, odd)
        if ids:
            self.release(ids, self.dead[number % len(self.dead)] if wrong == 1 else self.stream(number))

    @rule(picks=PICKS, odd=ODD, sensible=st.booleans())
    def cancel(self, picks, odd, sensible):
        model = self.model
        ids = (self.some(picks, [r.id for r in model.live() if r.references == 1 and not (r.used or r.shared)])
               if sensible
               else self.anything(picks, odd))
        if not ids:
            return
        forecast = model.forecast_cancel(ids)
        if not forecast.fails:
            for i in ids:
                for stream in model.requests[i].acquired_on:
                    if stream.alive:
                        self.read([i], stream, "read before cancel")
        before = self.snapshot()
        status = self.hot("bp_pool_cancel", self.pool, ids_array(ids), len(ids))
        note(f"cancel {ids}: {status}")
        seen(f"cancel {status}")
        assert status in forecast.statuses(), f"cancel {ids}: {status} {detail(self.lib)}, {forecast}"
        if status == OK:
            model.released(ids, None, self.device.clock)
        else:
            model.refuse()
            self.says_something()
            self.unchanged(before)

    @precondition(lambda self: not self.model.sealed)
    @rule(really=st.integers(0, 5))
    def seal(self, really):
        if really:
            return
        expected = self.model.seal_statuses()
        before = self.snapshot()
        status = self.lib.bp_pool_seal(self.pool)
        note(f"seal: {status}")
        seen(f"seal {status}")
        assert status in expected, f"seal: {status} {detail(self.lib)}, expected {expected}"
        if status == OK:
            self.model.sealed = True
        else:
            self.model.refuse(certain=False)
            self.unchanged(before)
        assert bool(self.lib.bp_pool_is_sealed(self.pool)) == self.model.sealed

    @rule(step=st.integers(0, 2**40))
    def set_step(self, step):
        self.lib.bp_pool_set_step(self.pool, step)
        self.model.step = step

    @rule(allowed=st.booleans())
    def allow_overflow(self, allowed):
        model = self.model
        errors = ({SCHEDULE} if model.sealed else set()) | (set() if model.setting.overflow_bytes else {b.UNSUPPORTED})
        expected = (errors or {OK}) if allowed else errors | {OK}  # unspecified: forbidding may fail
        if not model.setting.largest:  # unspecified: overflow memory without planned requests
            expected |= {b.UNSUPPORTED}
        status = self.lib.bp_pool_allow_overflow(self.pool, allowed)
        note(f"allow overflow: {status}")
        assert status in expected, f"allow_overflow({allowed}): {status} {detail(self.lib)}, expected {expected}"
        if status == OK:
            model.overflow_allowed = allowed
        else:
            model.refuse(certain=False)

    @rule(ordinal=st.integers(0, 2), placement=st.sampled_from((b.PERSISTENT, b.DYNAMIC, b.PLANNED, b.UNPLACED)),
          size=st.integers(0, 900), overlong=st.sampled_from((0, 0, 0, 0, 1)), unit=st.sampled_from(("", "", "u0")))
    def bind_extra(self, ordinal, placement, size, overlong, unit):
        """Binds a request beside the plan, also with the name of a planned or bound one."""
        self.bind_one(Description(unit, ordinal, b.ROLE_PARAM, b.BF16, size, size + overlong, placement))

    @rule(picks=PICKS, odd=ODD, zero=st.sampled_from((b.ZERO_NOTHING, b.ZERO_PADDING, b.ZERO_ALL, b.ZERO_ALL + 1)))
    def set_zero(self, picks, odd, zero):
        self.zero(self.anything(picks, odd), zero)

    @rule(picks=PICKS, odd=ODD, number=st.integers(-1, 3), wrong=WRONG_STREAM, everything=st.booleans(),
          empty=st.booleans())
    def set_stream(self, picks, odd, number, wrong, everything, empty):
        if empty:  # promises can change only while no request is live
            for request in self.model.live():
                for _ in range(request.references):
                    self.release([request.id], self.promised(request, self.stream(number)))
        stream = self.dead[number % len(self.dead)] if wrong == 1 else self.stream(number) if number >= 0 else None
        if stream is self.fleet.nothing:
            stream = None  # NULL is valid here: any stream
        self.promise(range(len(self.model.requests)) if everything else self.anything(picks, odd), stream)

    @rule()
    def another_stream(self):
        if len(self.streams) < 10:
            self.streams += [s for s in self.fleet.take_streams(len(self.streams) + 1) if s not in self.streams][:1]

    @rule(number=NUMBER, really=st.integers(0, 3))
    def destroy_stream(self, number, really):
        if really or len(self.streams) < 2:
            return
        stream = self.stream(number)
        note(f"destroy {stream}")
        seen("destroyed")
        self.fleet.gates.open()
        self.device.destroy_stream(stream)
        self.streams.remove(stream)
        self.dead.append(stream)

    @rule(number=NUMBER)
    def hold_back(self, number):
        """Blocks the stream until the gate opens, so that missing waits lose their race."""
        note(f"hold back {self.stream(number)}")
        self.fleet.gates.close(self.stream(number))
        self.device.tick(self.stream(number))

    @rule()
    def let_go(self):
        self.fleet.gates.open()

    @rule()
    def look_at_bytes(self):
        self.settle()

    @rule(pick=st.integers(0, 40), number=NUMBER, really=st.integers(0, 6))
    def churn(self, pick, number, really):
        """So many releases on one stream that older points are no longer exact; waits must still be sufficient."""
        if really:
            return
        ids, stream = self.acquirable([pick], number)
        ids = [i for i in ids if self.model.requests[i].bound.placement == b.PLANNED]
        if not ids:
            return
        note(f"churn {ids} on {stream}")
        seen("churn")
        model, request = self.model, self.model.requests[ids[0]]
        assert self.acquire(ids, stream, False)
        self.release(ids, stream)
        array = ids_array(ids)
        for _ in range(b.EXACT_POINTS + 20):
            check(self.lib, self.hot("bp_pool_acquire", self.pool, array, 1, stream.handle, None), "bp_pool_acquire")
            model.acquired(ids, stream, [self.address_of(request.id)[1]], self.device.clock(stream), self.device.clock)
            check(self.lib, self.hot("bp_pool_release", self.pool, array, 1, stream.handle), "bp_pool_release")
            model.released(ids, stream, self.device.clock)
            del model.past[-1]  # equal to the previous one; keeps the model fast
        model.past[-1].releases = {stream: stream.releases}
        if self.tracing:
            self.lib.bp_pool_trace_stop(self.pool)
            self.tracing = False

    @rule(capacity=st.integers(0, 400))
    def dump(self, capacity):
        needed = c_size_t()
        check(self.lib, self.lib.bp_pool_dump(self.pool, None, 0, byref(needed)), "bp_pool_dump")
        text = ctypes.create_string_buffer(b"\xee" * (needed.value + 8), needed.value + 8)
        again = c_size_t()
        check(self.lib, self.lib.bp_pool_dump(self.pool, text, needed.value, byref(again)), "bp_pool_dump")
        full = text.value.decode()
        assert again.value == needed.value == len(full) + 1, (len(full), needed.value)
        lines = full.splitlines()
        live = self.model.live()
        assert len(lines) == len(live) + 1, f"{len(live)} live, and a line of sums: {full}"
        for request in live:
            assert any(request.bound.unit in line for line in lines), f"{request.bound.unit} is missing: {full}"
        part = ctypes.create_string_buffer(b"\xee" * (capacity + 8), capacity + 8)
        check(self.lib, self.lib.bp_pool_dump(self.pool, part, capacity, byref(again)), "bp_pool_dump")
        assert again.value == needed.value
        assert part.raw[capacity:] == b"\xee" * 8, "wrote behind the capacity"
        if capacity:
            cut = part.value.decode()
            assert len(cut) < capacity and full.startswith(cut), cut
            assert cut == "" or cut.endswith("\n") or cut == full, f"a line was cut: {cut!r}"

    # ---- invariants --------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self):
        if self.pool is None:
            return
        model = self.model
        numbers, live, (value, count), addresses = self.snapshot()
        expected = sorted((r.id, r.references, r.address or None, r.bound.bytes, r.step, r.acquired_on[0].name)
                          for r in model.live())
        assert [(e[0], e[1], e[2], e[3], e[5], e[6].decode()) for e in live] == expected, (live, expected)
        for entry in live:
            request = model.requests[entry[0]]
            assert entry[7:] == (request.bound.role, request.bound.ordinal, request.bound.unit.encode())
            if self.numbers is None:
                self.numbers = request.number - entry[4]
                assert self.numbers in (0, 1), (entry, request.number)
            number = request.number - self.numbers
            assert entry[4] == number, f"{entry[0]}: acquire number {entry[4]}, is {number}"
        self._statistics_agree(numbers)
        for request, (status, address, size) in zip(model.requests, addresses):
            self._address_agrees(request, status, address, size)
        assert count == model.counts["acquires"], (count, model.counts["acquires"])
        assert SEQUENCES.setdefault(model.sequence, value) == value, "equal sequences, other hashes"
        assert HASHES.setdefault(value, model.sequence) == model.sequence, "other sequences, equal hashes"

    def _statistics_agree(self, numbers):
        model = self.model
        statistics = filled(self.lib, "bp_pool_statistics_get", b.Statistics, self.pool)
        for name, number in model.counts.items():
            assert getattr(statistics, name) == number, f"{name} {getattr(statistics, name)}, expected {number}"
        for name in ("refused", "deviations", "dynamic"):
            least, most = getattr(model, name)
            number = getattr(statistics, name)
            assert least <= number <= most, f"{name} {number}, expected {least}..{most}"
        live = {"live_requests": len(model.live()), "live_bytes": model.live_bytes(), "peak_live_bytes": model.peak,
                "requests": len(model.requests)}
        if all(r.bound.placement != b.DYNAMIC for r in model.requests):  # dynamic memory may be ordered otherwise
            live.update(records=self.records)
            if len(self.dead) == 2:  # unspecified: a wait for a destroyed stream may count
                live.update(waits=self.waits)
        for name, number in live.items():
            assert getattr(statistics, name) == number, f"{name} {getattr(statistics, name)}, expected {number}"
        assert statistics.slab_bytes == sum(end - begin for begin, end in self.inside)

    def _address_agrees(self, request, status, address, size):
        what = f"address of {request.id} {request.bound.key}: {status} {address}"
        if request.references:
            assert status == OK and address == (request.address or 0), f"{what}, holds {request.address:#x}"
        elif status == OK:
            assert request.where != "dynamic" or not request.bound.bytes, f"{what}, which is not live"
            if self.model.stable(request) and request.home:
                assert address == request.home.address, f"{what}, its place is {request.home.address:#x}"
        else:
            assert status == SCHEDULE, what
            if request.bound.bytes:
                assert not self.model.stable(request), f"{what}: has one for good"
        if status == OK:
            assert size == request.bound.bytes, f"{what}: {size} bytes"
            if address and request.bound.bytes and request.bound.placement != b.DYNAMIC:
                inside = any(begin <= address and address + size <= end for begin, end in self.inside)
                assert inside, f"{what}: in no slab"

    def teardown(self):
        gates = self.fleet.gates
        try:
            if self.pool is not None and sys.exc_info()[0] is None:  # otherwise the first failure is reported
                self.settle()
                if self.tracing:
                    self._trace_agrees()
        finally:
            try:
                gates.open()
            finally:
                self.device_quiet()

    def device_quiet(self):
        if self.pool is not None:
            statistics = filled(self.lib, "bp_pool_statistics_get", b.Statistics, self.pool)
            for name in ("repeated", "deviations", "overflows", "dynamic", "waits", "records", "elided"):
                SEEN[name] = SEEN.get(name, 0) + getattr(statistics, name)
            self.lib.bp_pool_destroy(byref(self.pool))
        device = self.fleet.device
        device.synchronize()
        self.fleet.gates.forget()
        self.fleet.tape.checks, self.fleet.tape.used = [], 0
        device.forget()

    def _trace_agrees(self):
        events = self.model.events
        count = self.lib.bp_pool_trace_count(self.pool)
        assert count == len(events), f"{count} events recorded, {len(events)} happened"
        numbers = {}  # of streams
        for index, (kind, i, step, stream) in enumerate(events):
            event = filled(self.lib, "bp_pool_trace_get", b.PoolEvent, self.pool, index)
            assert (event.kind, event.id, event.step, event.time_ns) == (kind, i, step, 0), (
                f"event {index}: {event.kind} of {event.id} in {event.step}, was {kind} of {i} in {step}")
            if stream:
                assert numbers.setdefault(stream.serial, event.stream) == event.stream, f"{stream} has two numbers"
        assert sorted(numbers.values()) == [numbers[serial] for serial in sorted(numbers)], f"not as made: {numbers}"
        assert len(set(numbers.values())) == len(numbers), f"two streams have one number: {numbers}"
        seen("traced")
