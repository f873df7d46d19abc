"""Pools: a plan made real on a device, and the serving of its buckets."""

import ctypes
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _abi, dlpack
from ._library import call, configured, core, filled, viewed
from .device import Device, Stream
from .errors import InvalidArgument
from .handle import Handle, Owner, calling_back
from .model import Model
from .names import (DType, decoded, dtype, encoded, fingerprint_text, member, name_of, optional, role, role_name,
                    whole)
from .plan import Plan, PlanRequest, request_of
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
    cancelled: int
    busy: int
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
    """A request that is held. stream: that acquired it first; acquire_number and step are those of its first reference."""

    id: int
    unit: str
    ordinal: int
    role: str
    references: int
    stream: str
    address: int
    bytes: int
    acquire_number: int
    step: int


class PoolSlab(NamedTuple):
    """A slab as made: planned_bytes 0 for persistent and overflow memory."""

    address: int
    bytes: int
    planned_bytes: int
    group: str


class Record:
    """What Python knows of a request: its description, and which of its references views belong to."""

    __slots__ = ("unit", "ordinal", "role", "dtype", "bytes", "text", "references", "epoch")

    def __init__(self, r: _abi.bp_plan_request) -> None:
        self.unit, self.ordinal, self.role = decoded(r.unit), int(r.ordinal), role_name(r.role)
        self.dtype, self.bytes = int(r.dtype), int(r.bytes)
        bucket = f"bucket.{r.ordinal}" if r.bucket is None else decoded(r.bucket)
        self.text = f"{self.role} of {self.unit or 'outside units'}/{bucket}"
        self.references = 0
        self.epoch = 0  # how often its last reference was dropped


class Pool(Owner[PoolHandle]):
    """All memory is made here, at planned size. The plan is read, not kept; its policy decides how requests are
    served, and its requests have their index there as id (Plan.find).

    name: in messages. strict: whether a request may have another copy of its size class than the plan's where that is
    held: "error", "warn", "off". guard: "environment", "off", "on". persistent_bytes, overflow_bytes: memory beside
    the plan's. extra_requests: how many may be bound beyond the plan's. fingerprint: of the plan that is expected.
    on_message: called with a line of text, on the thread whose call it is about; must not call the pool. Raises
    Infeasible, Mismatch (another fingerprint), Unsupported, NoDeviceMemory.

    Threads: acquire, try_acquire, use, release, give_up and what reads may be called from several threads for
    different requests; calls release the GIL while they are in the library. close() beside a call lets the call
    finish first. Closing gives the memory back, except what numpy arrays or tensors still look at: then the last of
    them does."""

    def __init__(self, device: Device, plan: Plan, name: Optional[str] = None, strict: str = "error",
                 guard: str = "environment", persistent_bytes: int = 0, overflow_bytes: int = 0,
                 extra_requests: int = 4096, fingerprint: Optional[str] = None,
                 on_message: Optional[Callable[[str], Any]] = None) -> None:
        listener = None if on_message is None else _abi.bp_message_function(_told(on_message))
        config = configured(core().bp_pool_config_init, _abi.bp_pool_config, name=optional(name, "a pool's name"),
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
        self._learn()

    # ---- requests --------------------------------------------------------------------------------------------------

    @property
    def _info(self) -> Any:
        return viewed(core().bp_pool_get_info, self.handle)

    def _learn(self) -> None:
        info = self._info
        self._records += [Record(r) for r in info.requests[len(self._records):info.request_count]]

    def bind(self, unit: str, ordinal: int, role: Any, dtype: DType, bytes: int, used_bytes: Optional[int] = None,
             placement: str = "persistent") -> int:
        """A request beside the plan, and its id: the next after those that there are. Requests of the plan are not
        bound: Plan.find.

        bytes: with padding; used_bytes: without, None: all. placement: "persistent", "dynamic". Raises NoDeviceMemory,
        Unsupported, InvalidArgument."""
        handle = self.handle
        struct = configured(core().bp_bind_init, _abi.bp_bind, unit=encoded(unit, "a unit's name"), ordinal=ordinal,
                            role=_role(role), dtype=_dtype(dtype), bytes=bytes,
                            used_bytes=bytes if used_bytes is None else used_bytes,
                            placement=member("BP_PLACE_", placement, "placement"))
        id = ctypes.c_uint32()
        call(core().bp_pool_bind, handle, ctypes.byref(struct), ctypes.byref(id))
        self._learn()
        return id.value

    def set_stream(self, ids: Iterable[int], stream: Optional[Stream]) -> None:
        """Promises that these requests are only acquired on the stream, which saves events where all requests that
        share memory have the same. None: any stream again. Raises ScheduleError (live requests), CaptureError."""
        array, count = _array(ids)
        call(core().bp_pool_set_stream, self.handle, array, count, None if stream is None else stream.handle)

    def set_zero(self, ids: Iterable[int], zero: str) -> None:
        """What the acquiring stream clears first: "nothing", "padding" (bytes after used_bytes), "all"."""
        array, count = _array(ids)
        call(core().bp_pool_set_zero, self.handle, array, count, member("BP_ZERO_", zero, "zero"))

    @property
    def requests(self) -> List[PlanRequest]:
        """By id: those of the plan, then those that were bound."""
        info = self._info
        return [request_of(r) for r in info.requests[:info.request_count]]

    def request(self, id: int) -> PlanRequest:
        """The request with this id. Raises InvalidArgument."""
        info, index = self._info, whole(id, 32, "an id")
        if index >= info.request_count:
            raise InvalidArgument(f"request {index} of {info.request_count}")
        return request_of(info.requests[index])

    def references(self, id: int) -> int:
        """How often a request is held now; 0: it is not live."""
        return int(core().bp_pool_references(self.handle, whole(id, 32, "an id")))

    def address(self, id: int) -> Tuple[int, int]:
        """(address, bytes) of a request. Raises ScheduleError where it has no memory now (dynamic)."""
        address, bytes = ctypes.c_void_p(), ctypes.c_uint64()
        call(core().bp_pool_address, self.handle, whole(id, 32, "an id"), ctypes.byref(address), ctypes.byref(bytes))
        return address.value or 0, bytes.value

    # ---- serving ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Iterable[int], stream: Stream) -> List[View]:
        """Takes all ids for work on the stream, or none. Orders the stream after every release of memory that they
        overlap.

        A live request gives the same address again and has one more reference. Raises ScheduleError (naming request,
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
            record.references += 1
            views.append(View(self, id, address or 0, stream, record))
        return views

    def can_acquire(self, ids: Iterable[int], releasing: Iterable[int] = ()) -> bool:
        """Whether an acquire of ids would be served once one reference to each of `releasing` is released."""
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
        """Drops one reference to each. held: ids or views. stream: where their last work was enqueued.

        Raises ScheduleError (not live, a view that was released; guard mode: written past its end), and then nothing
        has changed."""
        array, count, views = self._held(held)
        call(core().bp_pool_release, self.handle, array, count, stream.handle)
        self._ended(array, views)

    def cancel(self, held: Iterable[Held]) -> None:
        """Gives prefetched requests back that nobody used. Raises ScheduleError (used, or held more than once)."""
        array, count, views = self._held(held)
        call(core().bp_pool_cancel, self.handle, array, count)
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
            record.references -= 1
            if record.references <= 0:
                record.references = 0
                record.epoch += 1
        for view in views:
            view._released = True

    def _taken_back(self) -> None:
        """After a capture was cancelled, which dropped references: the views of these are released."""
        handle = self.handle
        for id, record in enumerate(self._records):
            references = core().bp_pool_references(handle, id)
            if references != record.references:
                record.references = int(references)
                record.epoch += references == 0

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
        return decoded(self._info.name)

    @property
    def policy(self) -> str:
        """Of the plan that it was made from."""
        return name_of("BP_POLICY_", self._info.policy)

    @property
    def fingerprint(self) -> str:
        """Of the plan that it was made from."""
        return decoded(self._info.fingerprint)

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
        info = self._info
        return [PoolSlab(s.address or 0, s.bytes, s.planned_bytes, decoded(s.group))
                for s in info.slabs[:info.slab_count]]

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
            LiveRequest(e.id, decoded(e.unit), e.ordinal, role_name(e.role), e.references, decoded(e.stream), e.address or 0,
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
        """Drops all references, waits for the device's streams and gives the memory back; what arrays and tensors look at
        goes with the last of them. Views raise from now on."""
        super().close()
        dlpack.take_back()

    def __repr__(self) -> str:
        return "<Pool, closed>" if self.closed else f"<Pool {self.name!r} on {self.device.name}: {self.policy}>"


def _array(ids: Iterable[int]) -> Tuple[Any, int]:
    numbers = ids if isinstance(ids, (list, tuple)) else list(ids)
    for id in numbers:
        if not isinstance(id, int) or not 0 <= id <= 0xFFFFFFFF:
            raise InvalidArgument(f"an id is a request's index in the plan or a number from bind, not {id!r}")
    return (ctypes.c_uint32 * len(numbers))(*numbers), len(numbers)


def _told(on_message: Callable[[str], Any]) -> Callable[[Any, bytes], None]:

    def listen(_user: Any, text: bytes) -> None:
        with calling_back():
            on_message(decoded(text))

    return listen


# Arguments of these names hide the functions.
_role, _dtype = role, dtype
