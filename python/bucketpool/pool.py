"""Pools: a plan made real on a device, and the serving of its buckets."""

import ctypes
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _abi, dlpack
from ._library import call, configured, core, filled
from .buckets import Buckets
from .device import Device, Stream
from .errors import InvalidArgument
from .handle import Handle, Owner, calling_back
from .model import Model
from .names import (DType, decoded, dtype, dtype_name, encoded, fingerprint_text, lane, member, name_of, optional, role,
                    role_name, whole)
from .plan import Plan
from .view import View

Held = Union[int, View]


class PoolHandle(Handle):
    destroy = "bp_pool_destroy"


class Statistics(NamedTuple):
    """As bp_pool_statistics in pool.h."""

    slab_bytes: int
    requests: int
    acquires: int
    repeated: int
    releases: int
    given_up: int
    said_no: int
    refused: int
    records: int
    elided: int
    waits: int
    deviations: int
    overflows: int
    dynamic: int
    live_requests: int
    live_bytes: int
    peak_live_bytes: int


class LiveRequest(NamedTuple):
    """A request that is held. stream: that acquired it first; acquire_number and step are those of its first hold."""

    id: int
    unit: str
    ordinal: int
    role: str
    holds: int
    stream: str
    address: int
    bytes: int
    acquire_number: int
    step: int


class BoundRequest(NamedTuple):
    """What an id stands for. dtype: as stored."""

    unit: str
    ordinal: int
    role: str
    dtype: str
    bytes: int
    placement: str
    bucket: Optional[str]
    holds: int


class PoolSlab(NamedTuple):
    """A slab as made: planned_bytes 0 for persistent and overflow memory; resident False: offloaded."""

    address: int
    bytes: int
    planned_bytes: int
    group: str
    resident: bool


class Record:
    """What Python knows of a request: its description, and which of its holds views belong to."""

    __slots__ = ("unit", "ordinal", "role", "dtype", "bytes", "text", "holds", "epoch")

    def __init__(self, r: _abi.bp_pool_request) -> None:
        self.unit, self.ordinal, self.role = decoded(r.unit), int(r.ordinal), role_name(r.role)
        self.dtype, self.bytes = int(r.dtype), int(r.bytes)
        bucket = f"bucket.{r.ordinal}" if r.bucket is None else decoded(r.bucket)
        self.text = f"{self.role} of {self.unit or 'outside units'}/{bucket}"
        self.holds = 0
        self.epoch = 0  # how often its last hold has ended


class Pool(Owner[PoolHandle]):
    """All memory is made here, at planned size. The plan is read, not kept.

    name: in messages. allocator: "plan" (as the plan says), "dynamic", "fixed_pool", "max_pool", "scheduled".
    selection: "assigned", "any". strict: "off", "warn", "error". guard: "environment", "off", "on". persistent_bytes,
    overflow_bytes: memory beside the plan's. extra_requests: how many may be bound beyond the plan's. fingerprint: of
    the plan that is expected. on_message: called with a line of text, on the thread whose call it is about; must not
    call the pool. Raises Infeasible, Mismatch (another fingerprint), Unsupported, NoDeviceMemory.

    Threads: acquire, try_acquire, use, release, give_up and what reads may be called from several threads for
    different requests; calls release the GIL while they are in the library. close() beside a call lets the call
    finish first. Closing gives the memory back, except what numpy arrays or tensors still look at: then the last of
    them does."""

    def __init__(self, device: Device, plan: Plan, name: Optional[str] = None, allocator: str = "plan",
                 selection: str = "assigned", strict: str = "error", guard: str = "environment",
                 persistent_bytes: int = 0, overflow_bytes: int = 0, extra_requests: int = 4096,
                 fingerprint: Optional[str] = None, on_message: Optional[Callable[[str], Any]] = None) -> None:
        listener = None if on_message is None else _abi.bp_message_function(_told(on_message))
        config = configured(core().bp_pool_config_init, _abi.bp_pool_config, name=optional(name, "a pool's name"),
                            allocator=member("BP_ALLOCATOR_", allocator,
                                             "allocator"), selection=member("BP_SELECT_", selection, "selection"),
                            strict=member("BP_STRICT_", strict,
                                          "strict"), guard=member("BP_GUARD_", guard,
                                                                  "guard"), persistent_bytes=persistent_bytes,
                            overflow_bytes=overflow_bytes, extra_requests=extra_requests,
                            fingerprint=fingerprint_text(fingerprint), on_message=listener)
        dlpack.take_back()
        handle = PoolHandle(listener)
        call(core().bp_pool_create, device.handle, plan.handle, ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle
        self.device = device
        self._records: List[Record] = []

    # ---- binding ---------------------------------------------------------------------------------------------------

    def bind_buckets(self, buckets: Buckets, lanes: bool = False) -> List[int]:
        """Binds every request of the buckets as planned; their ids, in the order of buckets.requests.

        lanes: gathered roles are only acquired on the gather lane's stream and the others on the compute lane's,
        which saves events; set_lane says which they are. Raises Mismatch."""
        handle = self.handle
        ids = (ctypes.c_uint32 * core().bp_buckets_request_count(buckets.handle))()
        call(core().bp_pool_bind_buckets, handle, buckets.handle, int(lanes), ids)
        self._learn(handle)
        return list(ids)

    def bind(self, unit: str, ordinal: int, role: Any, dtype: DType, bytes: int, used_bytes: Optional[int] = None,
             placement: str = "planned", zero: str = "nothing", lane: Any = None) -> int:
        """Checks a request against the plan and gives it an id; an equal request has the same id.

        bytes: with padding, as planned; used_bytes: without, for zero="padding"; None: all. placement: "planned",
        "persistent", "dynamic". zero: "nothing", "padding", "all": what the acquiring stream clears first. lane: name
        or number that every acquire is on, None: any. Raises Mismatch (not in the plan, another size or dtype),
        NoDeviceMemory, Unsupported."""
        handle = self.handle
        struct = configured(core().bp_bind_init, _abi.bp_bind, unit=encoded(unit, "a unit's name"), ordinal=ordinal,
                            role=_role(role), dtype=_dtype(dtype), bytes=bytes,
                            used_bytes=bytes if used_bytes is None else used_bytes,
                            placement=member("BP_PLACE_", placement,
                                             "placement"), zero=member("BP_ZERO_", zero,
                                                                       "zero"), acquire_lane=_lane(lane))
        id = ctypes.c_uint32()
        call(core().bp_pool_bind, handle, ctypes.byref(struct), ctypes.byref(id))
        self._learn(handle)
        return id.value

    def _learn(self, handle: PoolHandle) -> None:
        count = filled(core().bp_pool_statistics_get, _abi.bp_pool_statistics, handle).requests
        while len(self._records) < count:
            self._records.append(
                Record(filled(core().bp_pool_request_get, _abi.bp_pool_request, handle, len(self._records))))

    def set_lane(self, lane: Any, stream: Optional[Stream]) -> None:
        """Says which stream a lane is; None unbinds. Changing it later needs a pool without live requests."""
        call(core().bp_pool_set_lane, self.handle, _lane(lane), None if stream is None else stream.handle)

    def request(self, id: int) -> BoundRequest:
        """What an id stands for. Raises InvalidArgument."""
        handle = self.handle
        r = filled(core().bp_pool_request_get, _abi.bp_pool_request, handle, whole(id, 32, "an id"))
        return BoundRequest(decoded(r.unit), r.ordinal, role_name(r.role), dtype_name(r.dtype), r.bytes,
                            name_of("BP_PLACE_", r.placement), None if r.bucket is None else decoded(r.bucket), r.holds)

    def address(self, id: int) -> Tuple[int, int]:
        """(address, bytes) of a request. Raises ScheduleError where it has no memory now (dynamic)."""
        address, bytes = ctypes.c_void_p(), ctypes.c_uint64()
        call(core().bp_pool_address, self.handle, whole(id, 32, "an id"), ctypes.byref(address), ctypes.byref(bytes))
        return address.value or 0, bytes.value

    # ---- serving ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Iterable[int], stream: Stream) -> List[View]:
        """Takes all ids for work on the stream, or none. Orders the stream after every release of memory that they
        overlap.

        A live request gives the same address again and counts one more hold. Raises ScheduleError (naming request,
        buffer and holder), InvalidArgument, NoDeviceMemory (dynamic)."""
        array, count = _array(ids)
        addresses = (ctypes.c_void_p * count)()
        call(core().bp_pool_acquire, self.handle, array, count, stream.handle, addresses)
        return self._views(array, addresses, stream)

    def try_acquire(self, ids: Iterable[int], stream: Stream) -> Optional[List[View]]:
        """As acquire; None where memory is held by others, or the device is out of it."""
        array, count = _array(ids)
        addresses, acquired = (ctypes.c_void_p * count)(), ctypes.c_int()
        call(core().bp_pool_try_acquire, self.handle, array, count, stream.handle, addresses, ctypes.byref(acquired))
        return self._views(array, addresses, stream) if acquired.value else None

    def _views(self, ids: Any, addresses: Any, stream: Stream) -> List[View]:
        views = []
        for id, address in zip(ids, addresses):
            record = self._records[id]
            record.holds += 1
            views.append(View(self, id, address or 0, stream, record))
        return views

    def can_acquire(self, ids: Iterable[int], releasing: Iterable[int] = ()) -> bool:
        """Whether an acquire of ids would be served once one hold of each of `releasing` is released."""
        array, count = _array(ids)
        others, other_count = _array(releasing)
        can = ctypes.c_int()
        call(core().bp_pool_can_acquire, self.handle, array, count, others, other_count, ctypes.byref(can))
        return bool(can.value)

    def use(self, held: Iterable[Held], stream: Stream) -> None:
        """Work on a further stream uses live requests, so that reuse waits for it, too. held: ids or views."""
        array, count, _ = self._held(held)
        call(core().bp_pool_use, self.handle, array, count, stream.handle)

    def release(self, held: Iterable[Held], stream: Stream) -> None:
        """Ends one hold of each. held: ids or views. stream: where their last work was enqueued.

        Raises ScheduleError (not live, a view that was released; guard mode: written past its end), and then nothing
        has changed."""
        array, count, views = self._held(held)
        call(core().bp_pool_release, self.handle, array, count, stream.handle)
        self._ended(array, views)

    def give_up(self, held: Iterable[Held]) -> None:
        """Gives prefetched requests back that nobody used. Raises ScheduleError (used, or held more than once)."""
        array, count, views = self._held(held)
        call(core().bp_pool_give_up, self.handle, array, count)
        self._ended(array, views)

    def _held(self, held: Iterable[Held]) -> Tuple[Any, int, List[View]]:
        ids, views = [], []
        for each in held:
            if isinstance(each, View):
                if each.pool is not self:
                    raise InvalidArgument(f"{each!r} is of another pool")
                each.check()
                views.append(each)
                ids.append(each.id)
            else:
                ids.append(each)
        array, count = _array(ids)
        return array, count, views

    def _ended(self, ids: Any, views: List[View]) -> None:
        for id in ids:
            record = self._records[id]
            record.holds -= 1
            if record.holds <= 0:
                record.holds = 0
                record.epoch += 1
        for view in views:
            view._released = True

    def _taken_back(self) -> None:
        """After a capture was given up, which ended holds: the views of these are released."""
        handle = self.handle
        for id, record in enumerate(self._records):
            holds = filled(core().bp_pool_request_get, _abi.bp_pool_request, handle, id).holds
            if holds != record.holds:
                record.holds = int(holds)
                record.epoch += holds == 0

    # ---- stages of a run -------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """From now on every deviation is an error. Raises ScheduleError while dynamic or overflow memory is held."""
        call(core().bp_pool_seal, self.handle)

    def allow_overflow(self, allowed: bool) -> None:
        """Whether requests whose buffer is held may take overflow memory, for a pass that the plan does not know."""
        call(core().bp_pool_allow_overflow, self.handle, int(allowed))

    def set_step(self, step: int) -> None:
        """A number for messages and traces: the training step."""
        core().bp_pool_set_step(self.handle, whole(step, 64, "a step"))

    # ---- what is going on ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        handle = self.handle
        return decoded(core().bp_pool_name(handle))

    @property
    def allocator(self) -> str:
        """"dynamic", "fixed_pool", "max_pool", "scheduled"."""
        return decoded(core().bp_pool_allocator_name(self.handle))

    @property
    def fingerprint(self) -> str:
        """Of the plan that it was made from."""
        handle = self.handle
        return decoded(core().bp_pool_fingerprint(handle))

    @property
    def statistics(self) -> Statistics:
        s = filled(core().bp_pool_statistics_get, _abi.bp_pool_statistics, self.handle)
        return Statistics(*[getattr(s, field) for field in Statistics._fields])

    @property
    def sequence(self) -> Tuple[int, int]:
        """(hash, count) of the acquires so far: equal on ranks that did the same."""
        digest, count = ctypes.c_uint64(), ctypes.c_uint64()
        call(core().bp_pool_sequence, self.handle, ctypes.byref(digest), ctypes.byref(count))
        return digest.value, count.value

    @property
    def slabs(self) -> List[PoolSlab]:
        library, handle = core(), self.handle
        slabs = (filled(library.bp_pool_slab_get, _abi.bp_pool_slab, handle, index)
                 for index in range(library.bp_pool_slab_count(handle)))
        return [PoolSlab(s.address or 0, s.bytes, s.planned_bytes, decoded(s.group), bool(s.resident)) for s in slabs]

    def live(self) -> List[LiveRequest]:
        """The requests that are held now, in the order of ids."""
        handle, count, room = self.handle, ctypes.c_size_t(), 64
        while True:
            entries = (_abi.bp_live_request * room)()
            for entry in entries:
                entry.size = ctypes.sizeof(_abi.bp_live_request)
            call(core().bp_pool_live, handle, entries, room, ctypes.byref(count))
            if count.value <= room:
                break
            room = 2 * count.value
        return [
            LiveRequest(e.id, decoded(e.unit), e.ordinal, role_name(e.role), e.holds, decoded(e.stream), e.address or 0,
                        e.bytes, e.acquire_number, e.step) for e in entries[:count.value]
        ]

    def dump(self) -> str:
        """The live requests as text, a line each, and a line of sums."""
        handle, needed = self.handle, ctypes.c_size_t()
        call(core().bp_pool_dump, handle, None, 0, ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value + 4096)  # others may acquire in between
        call(core().bp_pool_dump, handle, text, len(text), ctypes.byref(needed))
        return text.value.decode(errors="replace")

    def trace_start(self, entries: int, timestamps: bool = False) -> None:
        """Records acquires and releases into a ring of so many."""
        call(core().bp_pool_trace_start, self.handle, whole(entries, 63, "entries"), int(timestamps))

    def trace_stop(self) -> None:
        """What was recorded stays readable."""
        core().bp_pool_trace_stop(self.handle)

    def trace_to_model(self, first_step: int, last_step: int, model: Model) -> None:
        """Adds what was recorded in these steps to a model as its schedule, for Schedule.recorded."""
        call(core().bp_pool_trace_to_model, self.handle, whole(first_step, 64, "a step"),
             whole(last_step, 64, "a step"), model.handle)

    def close(self) -> None:
        """Ends all holds, waits for the device's streams and gives the memory back; what arrays and tensors look at
        goes with the last of them. Views raise from now on."""
        super().close()
        dlpack.take_back()

    def __repr__(self) -> str:
        return "<Pool, closed>" if self.closed else f"<Pool {self.name!r} on {self.device.name}: {self.allocator}>"


def _array(ids: Iterable[int]) -> Tuple[Any, int]:
    numbers = ids if isinstance(ids, (list, tuple)) else list(ids)
    for id in numbers:
        if not isinstance(id, int) or not 0 <= id <= 0xFFFFFFFF:
            raise InvalidArgument(f"an id is a number from bind or bind_buckets, not {id!r}")
    return (ctypes.c_uint32 * len(numbers))(*numbers), len(numbers)


def _told(on_message: Callable[[str], Any]) -> Callable[[Any, bytes], None]:

    def listen(_user: Any, text: bytes) -> None:
        with calling_back():
            on_message(decoded(text))

    return listen


# Arguments of these names hide the functions.
_role, _dtype, _lane = role, dtype, lane
