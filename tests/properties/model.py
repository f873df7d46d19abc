# SPDX-License-Identifier: Apache-2.0
"""Reference model of pool.h: live requests, their addresses, and the release events that order the reuse of their
bytes.

The model does not use the library. It forecasts the permitted results of a call, receives the actual one, and raises
AssertionError if the header does not permit it. Where the header leaves a choice the forecast permits all of them.
"""

from dataclasses import dataclass, field
from typing import Optional

from bindings import (DYNAMIC, EVENT_ACQUIRE, EVENT_CANCEL, EVENT_REF, EVENT_RELEASE, EVENT_UNREF, EVENT_USE,
                      EXACT_POINTS, LIVE_STREAMS, INVALID_ARGUMENT, NO_DEVICE_MEMORY, OK, PERSISTENT, PLANNED, SCHEDULE,
                      STRICT_ERROR, UNPLACED, UNSUPPORTED, ZERO_NOTHING)
from observed import Clock, Stream, merge

FREE, HELD, UNSURE = "free", "held", "unsure"


@dataclass(frozen=True)
class Home:
    """A request's planned place: its absolute address and its class."""

    address: int
    kind: Optional[int] = None  # index of its class, or None


@dataclass(frozen=True)
class SizeClass:
    copies: tuple  # the address of each
    bytes: int


@dataclass
class Setting:
    """Configuration of a pool."""

    alignment: int
    strict: int
    classes: list  # of SizeClass
    overflow_bytes: int = 0
    overflow_range: tuple = (0, 0)
    persistent_bytes: int = 0
    persistent_room: int = 0  # with the slab's rounding, whose use is unspecified
    extra_requests: int = 0
    largest: int = 0  # bytes of the largest request of the plan


@dataclass(frozen=True)
class Description:
    """A request as planned or bound."""

    unit: str
    ordinal: int
    role: int
    dtype: int
    bytes: int
    used: int
    placement: int

    @property
    def key(self):
        return self.unit, self.ordinal, self.role


@dataclass(eq=False)
class Request:
    id: int
    bound: Description
    home: Optional[Home] = None
    promised: Optional[Stream] = None  # the stream of all its acquires
    zero: int = ZERO_NOTHING
    first: Optional[int] = None  # persistent: address of its first acquire
    # of its current use
    references: int = 0
    address: Optional[int] = None
    zeroed: int = ZERO_NOTHING
    where: str = ""  # "plan", "overflow", "dynamic", "persistent", "nothing"
    acquired_on: list = field(default_factory=list)
    streams: list = field(default_factory=list)  # those that acquired, used or released it
    used: bool = False
    shared: bool = False  # had several references
    number: int = 0
    step: int = 0
    needed: Clock = field(default_factory=dict)  # work that must precede its first work
    allowed: Clock = field(default_factory=dict)  # work that it may have waited for
    waits: dict = field(default_factory=dict)  # stream waited for -> number of its releases then
    left: dict = field(default_factory=dict)  # stream -> its clock at a release that left references


@dataclass
class PastUse:
    """A finished use: the next user of these bytes must wait for `needed`, and for no more than `allowed`."""

    begin: int
    end: int
    reach: int  # end with alignment
    needed: Clock
    allowed: Clock
    releases: dict  # stream -> number of its release events then


@dataclass
class Forecast:
    """Permitted results of a call. `errors`: possible error statuses; `fails`: an error is certain."""

    errors: set
    fails: bool
    memory: str = FREE
    inner: bool = False  # two requests of this call conflict

    def statuses(self) -> set:
        """Permitted statuses of an acquire."""
        if self.fails:
            return self.errors | (set() if self.memory == FREE else {SCHEDULE})
        return self.errors | {FREE: {OK}, HELD: {SCHEDULE}, UNSURE: {OK, SCHEDULE}}[self.memory]

    def tried(self) -> set:
        """Permitted results of a try_acquire: pairs of status and answer."""
        answers = {(status, None) for status in self.errors}
        if self.memory != FREE:
            answers.add((OK, 0))
            if self.inner:
                answers.add((SCHEDULE, None))
        if not self.fails and self.memory != HELD:
            answers.add((OK, 1))
        return answers


class Model:
    clocks = True  # checks waits with vector clocks

    def __init__(self, setting: Setting):
        self.setting = setting
        self.requests: list[Request] = []
        self.sealed = False
        self.overflow_allowed = False
        self.step = 0
        self.sequence = 0  # a hash of the keys acquired so far, in order
        self.events: list = []  # (kind, id, step, stream or None)
        self.past: list[PastUse] = []
        self.extras = 0  # requests beside the plan
        self.persistent_taken = [0, 0]  # at least, at most
        self.counts = dict.fromkeys(("acquires", "repeated", "releases", "cancelled", "busy", "overflows"), 0)
        self.refused = [0, 0]  # at least, at most: the header does not specify which calls count
        self.deviations = [0, 0]
        self.dynamic = [0, 0]
        self.peak = 0

    # ---- addresses ---------------------------------------------------------------------------------------------------

    def aligned(self, count: int) -> int:
        alignment = self.setting.alignment
        return (count + alignment - 1) // alignment * alignment

    def live(self) -> list:
        return [r for r in self.requests if r.references]

    def live_bytes(self) -> int:
        return sum(self.aligned(r.bound.bytes) for r in self.live())

    def stable(self, request: Request) -> bool:
        """True if its address never changes."""
        if request.bound.placement == PERSISTENT:
            return True
        return (request.bound.placement == PLANNED and self.setting.strict == STRICT_ERROR
                and not self.overflow_allowed)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def planned(self, description: Description, home: Optional[Home]) -> None:
        self.requests.append(Request(len(self.requests), description, home))

    def forecast_bind(self, new: Description) -> set:
        """Permitted statuses of binding."""
        if new.used > new.bytes or new.placement not in (PERSISTENT, DYNAMIC):
            return {INVALID_ARGUMENT}
        errors, may = set(), set()
        if self.extras >= self.setting.extra_requests:
            errors.add(UNSUPPORTED)
        if new.placement == DYNAMIC and self.sealed:
            errors.add(UNSUPPORTED)
            may = set() if new.bytes else {OK}
        if new.placement == PERSISTENT:
            if self.persistent_taken[0] + new.bytes > self.setting.persistent_room:
                errors.add(NO_DEVICE_MEMORY)
            elif self.persistent_taken[1] + self.aligned(new.bytes) > self.setting.persistent_bytes:
                may = may | {NO_DEVICE_MEMORY}
        return (errors or {OK}) | may

    def bound(self, new: Description, given: int) -> None:
        assert given == len(self.requests), f"id {given} of request number {len(self.requests)}"
        self.requests.append(Request(given, new))
        self.extras += 1
        if new.placement == PERSISTENT:
            self.persistent_taken[0] += new.bytes
            self.persistent_taken[1] += self.aligned(new.bytes)

    def stream_statuses(self, ids, stream: Optional[Stream], foreign: bool) -> set:
        """Permitted statuses of bp_pool_set_stream."""
        wrong = any(i >= len(self.requests) for i in ids)
        if wrong or foreign or (stream is not None and not stream.alive):
            return {INVALID_ARGUMENT}
        ended = {r.promised for r in self.known(ids) if r.promised not in (None, stream)}
        if not ended or not self.live():
            return {OK}
        # Certain if all memory is promised to one stream. Otherwise the result depends on memory shared between
        # streams, which is not modelled.
        everyone = len({r.promised for r in self.requests}) == 1
        holding = any(r.bound.bytes for r in self.live())
        placed = any(r.bound.placement in (PLANNED, PERSISTENT) and r.bound.bytes for r in self.known(ids))
        return {SCHEDULE} if everyone and holding and placed else {OK, SCHEDULE}

    # ---- forecasts ---------------------------------------------------------------------------------------------------

    def mistakes(self, ids, stream: Optional[Stream], foreign=False) -> set:
        """Errors of arguments that are invalid in any state."""
        wrong = any(i >= len(self.requests) for i in ids) or len(set(ids)) != len(ids)
        if wrong or foreign or (stream is not None and not stream.alive):
            return {INVALID_ARGUMENT}
        return set()

    def known(self, ids) -> list:
        return [self.requests[i] for i in dict.fromkeys(ids) if i < len(self.requests)]

    def too_many_streams(self, request: Request, stream: Stream) -> Optional[bool]:
        """None: unspecified, as destroyed streams may count."""
        if request.references and stream not in request.streams:
            if len(request.streams) >= LIVE_STREAMS:
                return True if sum(s.alive for s in request.streams) >= LIVE_STREAMS else None
        return False

    def forecast_acquire(self, ids, stream: Stream, foreign=False) -> Forecast:
        errors = self.mistakes(ids, stream, foreign)
        fails = bool(errors)
        for request in self.known(ids):
            if request.promised not in (None, stream):
                errors.add(SCHEDULE)
                fails = fails or request.bound.bytes > 0
            if request.bound.placement == UNPLACED:
                errors.add(SCHEDULE)
                fails = True
            many = self.too_many_streams(request, stream)
            if many is not False:
                errors.add(SCHEDULE)
                fails = fails or bool(many)
            if self.sealed and request.bound.placement == DYNAMIC and not request.references:
                errors.add(SCHEDULE)
                fails = fails or request.bound.bytes > 0
        memory, inner = self.memory(ids)
        return Forecast(errors, fails, memory, inner)

    def memory(self, ids, released=()) -> tuple:
        """State of the memory for `ids` after one release of each of `released`; and True if two of `ids` conflict."""
        gone = {i for i in released if i < len(self.requests) and self.requests[i].references == 1}
        live = [r for r in self.live() if r.id not in gone]
        wanted = [r for r in self.known(ids) if not (r.references and r.id not in gone) and r.bound.bytes]
        ranges = [(r.address, r.address + r.bound.bytes) for r in live if r.where == "plan" and r.bound.bytes]
        deviate = self.setting.strict != STRICT_ERROR and not self.sealed
        overflow = [r.address for r in live if r.where == "overflow"]
        answer, inner = FREE, False
        mine: list = []

        def is_free(address, count, among):
            return all(address + count <= begin or end <= address for begin, end in among)

        for request in wanted:
            if request.home is None:
                continue
            count = request.bound.bytes
            home = request.home.address
            if request.home.kind is not None:
                size_class = self.setting.classes[request.home.kind]
                free = [a for a in size_class.copies if is_free(a, size_class.bytes, ranges + mine)]
                place = home if home in free else free[0] if free and deviate else None
                taken = size_class.bytes
            else:
                place = home if is_free(home, count, ranges + mine) else None
                taken = count
            if place is not None:
                mine.append((place, place + taken))
                continue
            # Held. If it would be free without the others of this call, another order may serve it.
            alone = is_free(home, taken, ranges)
            inner = inner or alone
            sure, maybe = self.overflow_room(len(overflow), count)
            if sure:
                overflow.append(-1)
            elif maybe:
                answer = UNSURE if answer == FREE else answer
                overflow.append(-1)
            else:
                answer = HELD
        return answer, inner

    def overflow_room(self, taken: int, count: int) -> tuple:
        """(room is certain, room is possible)"""
        total, largest = self.setting.overflow_bytes, self.setting.largest
        if not self.overflow_allowed or self.sealed or not total:
            return False, False
        slot = (max(largest, 1) + 255) // 256 * 256  # unspecified alignment of slots: at most that of dynamic memory
        least = total // max(slot, self.aligned(largest))
        most = max(1, total // max(1, largest))
        if least:
            return taken < least, taken < most
        sure = taken < 1 and self.aligned(count) <= total
        return sure, taken < most and count <= max(256, self.aligned(total))

    def forecast_can(self, ids, releasing) -> tuple:
        """Permitted statuses, and permitted answers with BP_OK."""
        if len(set(ids)) != len(ids) or any(i >= len(self.requests) for i in [*ids, *releasing]):
            return {INVALID_ARGUMENT}, set()
        memory, _ = self.memory(ids, releasing)
        if self.sealed:
            for request in self.known(ids):
                stays = request.references > (request.id in releasing)
                if request.bound.placement == DYNAMIC and not stays:
                    return ({OK}, {0}) if request.bound.bytes else ({OK}, {0, 1})
        if any(r.bound.placement == UNPLACED for r in self.known(ids)):
            return {OK}, {0}
        return {OK}, {FREE: {1}, HELD: {0}, UNSURE: {0, 1}}[memory]

    def forecast_use(self, ids, stream: Stream, foreign=False) -> Forecast:
        """Forecast of use and release."""
        errors = self.mistakes(ids, stream, foreign)
        fails = bool(errors)
        for request in self.known(ids):
            many = self.too_many_streams(request, stream)
            if not request.references or many is not False:
                errors.add(SCHEDULE)
                fails = fails or not request.references or bool(many)
        return Forecast(errors, fails)

    def forecast_cancel(self, ids) -> Forecast:
        errors = self.mistakes(ids, None)
        fails = bool(errors)
        for request in self.known(ids):
            # shared with one reference: it was released once
            if request.references != 1 or request.used or request.shared:
                errors.add(SCHEDULE)
                fails = True
            if any(not s.alive for s in request.acquired_on):
                errors |= {INVALID_ARGUMENT, SCHEDULE}  # unspecified: its stream is destroyed
        return Forecast(errors, fails)

    # ---- results -----------------------------------------------------------------------------------------------------

    def refuse(self, certain=True) -> None:
        self.refused[0] += certain
        self.refused[1] += 1

    def acquired(self, ids, stream: Stream, addresses, before: Clock, clock_of) -> list:
        """Records a served acquire. Checks the addresses and the waits. Returns the requests that became live."""
        new = []
        after = clock_of(stream)
        allowed = dict(before)
        standing = [(r.address, r.address + r.bound.bytes, r) for r in self.live() if r.bound.bytes]
        for index, i in enumerate(ids):
            request = self.requests[i]
            address = addresses[index] or 0
            if request.references:
                assert address == (request.address or 0), f"{i} moved while live: {request.address:#x} -> {address:#x}"
                self.counts["repeated"] += 1
                request.references += 1
                request.shared = True
                request.left.pop(stream, None)
                if request.zeroed:  # the first stream writes zeros; unspecified how other streams wait for them
                    allowed = merge(allowed, clock_of(request.acquired_on[0]))
                self.events.append((EVENT_REF, i, self.step, stream))
            else:
                self._place(request, address, stream, standing)
                if request.where == "dynamic":  # allocated in stream order: other streams wait for it
                    request.allowed = merge(request.allowed, after)
                new.append(request)
                standing.append((address, address + request.bound.bytes, request))
                self.events.append((EVENT_ACQUIRE, i, self.step, stream))
            for streams in (request.streams, request.acquired_on):
                if stream not in streams:
                    streams.append(stream)
            self.counts["acquires"] += 1
            self.sequence = hash((self.sequence, request.bound.key))
            if request in new:
                request.number = self.counts["acquires"]
            for serial, position in request.needed.items() if self.clocks else ():
                reached = after.get(serial, 0)
                assert reached >= position, (
                    f"{stream} does not wait for s{serial} ({reached} < {position}) before {i} {request.bound.key}")
            allowed = merge(allowed, request.allowed)
        exact = self.clocks and all(self._exact(self.requests[i]) for i in ids)
        for serial, position in after.items() if exact else ():
            most = allowed.get(serial, 0)
            assert position <= most, (
                f"{stream} waits for more of s{serial} than was released ({position} > {most}), for {ids}")
        self.peak = max(self.peak, self.live_bytes())
        return new

    def _place(self, request: Request, address: int, stream: Stream, standing) -> None:
        setting, count = self.setting, request.bound.bytes
        what = f"{request.id} {request.bound.key} at {address:#x}"
        request.where = "nothing"
        if not count:
            assert address == 0, f"{what}: no elements, but an address"
        else:
            assert address % setting.alignment == 0, f"{what}: not aligned to {setting.alignment}"
            clash = [r.id for begin, end, r in standing if begin < address + count and address < end]
            assert not clash, f"{what} overlaps live {clash}"
            request.where = self._where(request, address, what, standing)
        if request.where == "overflow":
            self.counts["overflows"] += 1
            self.deviations[1] += 1
        elif request.where == "plan" and address != request.home.address:
            self.deviations[0] += 1
            self.deviations[1] += 1
        if request.bound.placement == DYNAMIC:
            self.dynamic[0] += count > 0
            self.dynamic[1] += 1
        request.address, request.references, request.step = address, 1, self.step
        request.streams, request.acquired_on, request.left = [], [], {}
        request.used = request.shared = False
        request.zeroed = request.zero
        request.needed, request.allowed, request.waits = {}, {}, {}
        if not count:
            return
        reach = address + self.aligned(count)
        if request.where == "plan" and request.home.kind is not None:
            reach = max(reach, address + setting.classes[request.home.kind].bytes)
        for past in self.past:
            if request.where != "dynamic" and past.begin < address + count and address < past.end:
                request.needed = merge(request.needed, past.needed)
            if past.begin < reach and address < past.reach:
                request.allowed = merge(request.allowed, past.allowed)
                for past_stream, then in past.releases.items():
                    request.waits[past_stream] = min(then, request.waits.get(past_stream, then))

    @staticmethod
    def _exact(request: Request) -> bool:
        """True if `allowed` is exact: younger points may replace those that are many releases old."""
        return all(s.releases - then <= EXACT_POINTS - 55 for s, then in request.waits.items())

    def _where(self, request: Request, address: int, what: str, standing) -> str:
        """The kind of memory at the address; asserts that it is permitted."""
        setting, count = self.setting, request.bound.bytes
        if request.bound.placement == DYNAMIC:
            return "dynamic"
        if request.bound.placement == PERSISTENT:
            assert request.first in (None, address), f"{what}: persistent memory moved from {request.first:#x}"
            request.first = address
            return "persistent"
        held = [(begin, end) for begin, end, r in standing if r.where == "plan"]
        home = request.home.address
        begin, end = setting.overflow_range
        if begin <= address < end:
            assert self.overflow_allowed and not self.sealed, f"{what}: overflow, which is not allowed"
            assert address + count <= end, f"{what} ends behind the overflow memory"
            width = count if request.home.kind is None else setting.classes[request.home.kind].bytes
            assert any(b < home + width and home < e
                       for b, e in held), f"{what}: overflow although its planned place is free"
            return "overflow"
        if request.home.kind is None:
            assert address == home, f"{what}: its planned address is {home:#x}"
            return "plan"
        size_class = setting.classes[request.home.kind]
        free = [a for a in size_class.copies if all(a + size_class.bytes <= b or e <= a for b, e in held)]
        assert address in free, f"{what}: not a free copy of its class"
        if address != home:
            may = setting.strict != STRICT_ERROR and not self.sealed
            assert may, f"{what}: assigned {home:#x}, and strict"
            assert home not in free, f"{what}: its planned {home:#x} is free"
            assert address == free[0], f"{what}: not the lowest free copy {free[0]:#x}"
        return "plan"

    def used(self, ids, stream: Stream) -> None:
        for i in ids:
            request = self.requests[i]
            request.used = True
            request.left.pop(stream, None)
            if stream not in request.streams:
                request.streams.append(stream)
            self.events.append((EVENT_USE, i, self.step, stream))

    def released(self, ids, stream: Optional[Stream], clock_of) -> None:
        """Records a release; `stream` None: a cancel. `clock_of` returns a stream's clock."""
        for i in ids:
            request = self.requests[i]
            if stream is not None and stream not in request.streams:
                request.streams.append(stream)
            self.counts["cancelled" if stream is None else "releases"] += 1
            request.references -= 1
            if request.references:
                request.left[stream] = clock_of(stream)
                self.events.append((EVENT_UNREF, i, self.step, stream))
                continue
            self.events.append((EVENT_CANCEL if stream is None else EVENT_RELEASE, i, self.step, stream))
            alive = [s for s in request.streams if s.alive]
            for s in alive:
                s.releases += 1
            if not request.bound.bytes:
                continue
            last = {s: clock_of(s) for s in alive}
            needed = [clock if s is stream else request.left.get(s, clock) for s, clock in last.items()]
            begin, count = request.address, request.bound.bytes
            reach = begin + self.aligned(count)
            if request.where == "plan" and request.home.kind is not None:
                reach = max(reach, begin + self.setting.classes[request.home.kind].bytes)
            self.past.append(PastUse(begin, begin + count, reach, merge(*needed), merge(*last.values()),
                                     {s: s.releases for s in alive}))

    def seal_statuses(self) -> set:
        holding = [r for r in self.live() if r.where in ("dynamic", "overflow") or
                   (r.bound.placement == DYNAMIC and not r.bound.bytes)]
        if not holding:
            return {OK}
        return {SCHEDULE} if any(r.bound.bytes for r in holding) else {OK, SCHEDULE}
