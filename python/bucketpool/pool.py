# SPDX-License-Identifier: Apache-2.0
"""Pools: the slabs of a plan, allocated on a device, and the calls that acquire and release requests."""

import ctypes
import difflib
import functools
import inspect
from ctypes import CFUNCTYPE, c_int, c_size_t, c_void_p
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _abi, dlpack
from ._library import binding, call, configured, core, failure, filled, viewed
from .device import Device, Stream, StreamHandle
from .errors import InvalidArgument
from .handle import Handle, Owner, calling_back, handle_of
from .model import Model
from .names import (DType, decoded, dtype, encoded, fingerprint_text, flag, function_of, list_of, member, name_of,
                    optional, role, role_name, shown, whole)
from .plan import Plan, PlanRequest, request_of
from .view import View

__all__ = ["LiveRequest", "Pool", "PoolEvent", "PoolSlab", "Statistics"]

Held = Union[int, View]


class PoolHandle(Handle, _abi.bp_pool):
    destroy = "bp_pool_destroy"


class Statistics(NamedTuple):
    """Counters of a pool, as bp_pool_statistics in pool.h."""

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
    """A live request. stream, acquire_number and step are those of its first acquire."""

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
    """A slab as allocated. planned_bytes is 0 for persistent and overflow memory."""

    address: int
    bytes: int
    planned_bytes: int
    group: str


class PoolEvent(NamedTuple):
    """A recorded event: "acquire" (the first reference), "ref", "use", "unref", "release" (the last one) or "cancel".

    stream: its number on the device; time_ns: CLOCK_MONOTONIC, 0 without timestamps.
    """

    kind: str
    id: int
    stream: int
    step: int
    time_ns: int
    address: int


class Record:
    """A request with the references that views have to it."""

    __slots__ = ("id", "unit", "ordinal", "role", "dtype", "bytes", "text", "references", "epoch", "ids", "ids_at",
                 "found", "found_at", "tensors")

    def __init__(self, r: _abi.bp_plan_request, id: int) -> None:
        self.id, self.unit, self.ordinal, self.role = id, decoded(r.unit), int(r.ordinal), role_name(r.role)
        self.dtype, self.bytes = int(r.dtype), int(r.bytes)
        bucket = f"bucket.{r.ordinal}" if r.bucket is None else decoded(r.bucket)
        self.text = f"{self.role} of {self.unit or 'outside units'}/{bucket}"
        self.references = 0
        self.epoch = 0  # counts drops of the last reference; a view of an earlier epoch is released
        self.ids, self.found = _array_types(1)[0](id), c_void_p()  # arrays of this id alone, and of its address
        self.ids_at, self.found_at = ctypes.addressof(self.ids), ctypes.addressof(self.found)
        self.tensors: Dict[Any, Any] = {}  # View.torch: by address and dtype


class _Calls:
    """The calls of each step. They take addresses, because ctypes converts numbers twice as fast as arrays."""

    def __init__(self) -> None:
        pool, ids, stream, outputs = _abi.bp_pool, (c_void_p, c_size_t), (_abi.bp_stream, ), (c_void_p, )
        library = core()
        self.acquire: Any = CFUNCTYPE(c_int, pool, *ids, *stream, *outputs)(("bp_pool_acquire", library))
        self.try_acquire: Any = CFUNCTYPE(c_int, pool, *ids, *stream, *outputs,
                                          c_void_p)(("bp_pool_try_acquire", library))
        self.use: Any = CFUNCTYPE(c_int, pool, *ids, *stream)(("bp_pool_use", library))
        self.release: Any = CFUNCTYPE(c_int, pool, *ids, *stream)(("bp_pool_release", library))


_calls = functools.lru_cache(maxsize=None)(_Calls)


class Prepared:
    """A planned request that a runtime acquires in each step: calls that make no views and no arrays. Internal.

    With the compiled binding, the constructor returns its class, which has the same calls, and tensors beside them
    (torch/memory.py). One thread at a time. Errors are those of Pool.acquire and release.
    """

    __slots__ = ("pool", "id", "_record", "_at", "_address", "_acquired", "_outputs", "_calls")

    def __new__(cls, pool: "Pool", id: int) -> Any:
        handle_of(pool, Pool, "pool")
        bytes = pool.request(id).bytes
        compiled = binding()
        return object.__new__(cls) if compiled is None else compiled.Prepared(pool, id, bytes)

    def __init__(self, pool: "Pool", id: int) -> None:
        self.pool, self.id, self._calls = pool, id, _calls()
        self._record = pool._records[id]
        self._at = self._record.ids_at
        self._address, self._acquired = c_void_p(), c_int()
        self._outputs = ctypes.addressof(self._address), ctypes.addressof(self._acquired)

    def _call(self, function: Any, stream: Stream, *outputs: int) -> None:
        status = function(self.pool._handle, self._at, 1, _handle_of(stream), *outputs)
        if status:
            raise self.pool._failure(status, stream)

    def try_acquire(self, stream: Stream) -> Optional[int]:
        """The address, or None (busy)."""
        self._call(self._calls.try_acquire, stream, *self._outputs)
        return self._address.value if self._acquired.value else None

    def use(self, stream: Stream) -> None:
        self._call(self._calls.use, stream)

    def release(self, stream: Stream) -> None:
        self._call(self._calls.release, stream)


class Pool(Owner[PoolHandle]):
    """A pool: the memory of a plan on a device. The constructor allocates its slabs, at planned size.

        with Pool(device, plan) as pool:
            view, = pool.acquire([plan.find("layers.7", 0, "param")], gather)
            view.torch().copy_(gathered)
            view.release(compute)

    - device, plan: the plan is only read; its policy decides how requests get memory, and its indices are the
      ids
    - name: in messages
    - strict: acquire when the assigned copy of a size class is in use and another one is free: "error", "warn"
      or "off" (the last two take the other copy)
    - guard: "environment", "off" or "on": detects use after release and writes past the end
    - persistent_bytes, overflow_bytes: additional memory for bound requests and for passes outside the plan
    - extra_requests: largest number of requests that may be bound
    - fingerprint: expected fingerprint of the plan; None: any
    - on_message: called with a line of text, on the thread whose call it reports; must not call the pool
    - capture_check: calls ask the driver if their stream is being captured, "off", "inside" declared captures,
      "always", or "environment"
    - annotate: NVTX ranges and memory regions, "environment", "off" or "on"

    Raises Infeasible, Mismatch (another fingerprint), Unsupported, NoDeviceMemory.

    Threads: acquire, try_acquire, use, release, cancel and getters may run at the same time for different
    requests. Calls release the GIL inside the library. close() lets running calls finish; it frees the
    memory, except for memory that numpy arrays or tensors refer to, which is freed with the last of them.
    """

    def __init__(self, device: Device, plan: Plan, name: Optional[str] = None, strict: str = "error",
                 guard: str = "environment", persistent_bytes: int = 0, overflow_bytes: int = 0,
                 extra_requests: int = 4096, fingerprint: Optional[str] = None,
                 on_message: Optional[Callable[[str], Any]] = None, capture_check: str = "environment",
                 annotate: str = "environment") -> None:
        told = None if on_message is None else _told(function_of(on_message, "on_message"))
        listener = None if told is None else _abi.bp_message_function(told)
        config = configured(core().bp_pool_config_init, _abi.bp_pool_config, name=optional(name, "a pool's name"),
                            strict=member("BP_STRICT_", strict,
                                          "strict"), guard=member("BP_GUARD_", guard,
                                                                  "guard"), persistent_bytes=persistent_bytes,
                            overflow_bytes=overflow_bytes, extra_requests=extra_requests,
                            fingerprint=fingerprint_text(fingerprint), on_message=listener,
                            capture_check=member("BP_CAPTURE_CHECK_", capture_check, "capture_check"),
                            annotate=member("BP_ANNOTATE_", annotate, "annotate"))
        dlpack.take_back()
        handle = PoolHandle(listener)
        call(core().bp_pool_create, handle_of(device, Device, "device"), handle_of(plan, Plan, "plan"),
             ctypes.byref(config), ctypes.byref(handle))
        self._handle = handle
        self.device = device
        self.addresses_known = False  # by graphs, communicators or an Offload: the pool cannot be replaced. Internal
        self._calls = _calls()
        self._records: List[Record] = []
        self._learn()

    # ---- requests --------------------------------------------------------------------------------------------------

    @property
    def _info(self) -> Any:
        return viewed(core().bp_pool_get_info, self.handle)

    def _learn(self) -> None:
        info = self._info
        known = len(self._records)
        self._records += [Record(r, known + i) for i, r in enumerate(info.requests[known:info.request_count])]

    def bind(self, unit: str, ordinal: int, role: Any, dtype: DType, bytes: int, used_bytes: Optional[int] = None,
             placement: str = "persistent") -> int:
        """Adds a request that is not in the plan and returns its id. Ids of planned requests come from
        Plan.find.

        - bytes, used_bytes: with and without padding; None: no padding
        - placement: "persistent" (from persistent_bytes) or "dynamic" (allocated at each acquire)

        Raises NoDeviceMemory, Unsupported, InvalidArgument.
        """
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
        """Promises that these requests are only acquired on `stream`; None withdraws the promise.

        Releases record no event if all requests that share memory have the same promise. Raises ScheduleError
        (live requests), CaptureError.
        """
        array, count = _array(ids)
        call(core().bp_pool_set_stream, self.handle, array, count,
             None if stream is None else handle_of(stream, Stream, "stream"))

    def set_zero(self, ids: Iterable[int], zero: str) -> None:
        """Chooses the bytes that acquire sets to zero: "nothing", "padding" (after used_bytes) or "all"."""
        array, count = _array(ids)
        call(core().bp_pool_set_zero, self.handle, array, count, member("BP_ZERO_", zero, "zero"))

    @property
    def requests(self) -> List[PlanRequest]:
        """The requests by id: those of the plan, then bound requests."""
        info = self._info
        return [request_of(r) for r in info.requests[:info.request_count]]

    def request(self, id: int) -> PlanRequest:
        """The request with this id. Raises InvalidArgument."""
        info, index = self._info, whole(id, 32, "an id")
        if index >= info.request_count:
            raise InvalidArgument(f"pool {decoded(info.name)}: request {index} is not bound; there are "
                                  f"{info.request_count}")
        return request_of(info.requests[index])

    def references(self, id: int) -> int:
        """The reference count of a request; 0: not live."""
        return int(core().bp_pool_references(self.handle, whole(id, 32, "an id")))

    def address(self, id: int) -> Tuple[int, int]:
        """The address and bytes of a request. Raises ScheduleError (a dynamic request without memory now)."""
        address, bytes = ctypes.c_void_p(), ctypes.c_uint64()
        call(core().bp_pool_address, self.handle, whole(id, 32, "an id"), ctypes.byref(address), ctypes.byref(bytes))
        return address.value or 0, bytes.value

    # ---- serving ---------------------------------------------------------------------------------------------------

    def acquire(self, ids: Iterable[int], stream: Stream) -> List[View]:
        """Acquires all ids for work on `stream`, or none, and returns a View for each.

        The stream waits for the release events of the overlapping memory. A live request keeps its address
        and gets another reference. Raises ScheduleError (with request, buffer and holder), InvalidArgument,
        NoDeviceMemory (dynamic requests).
        """
        record = self._only(ids)
        if record is not None:
            status = self._calls.acquire(self._handle, record.ids_at, 1, _handle_of(stream), record.found_at)
            if status:
                raise self._failure(status, stream)
            # Threads that acquire one request find one address: that of the first, until the last has released it.
            record.references += 1
            return [View(self, record.id, record.found.value or 0, stream, record)]
        array, count = _array(ids)
        addresses = _array_types(count)[1]()
        call(core().bp_pool_acquire, self.handle, array, count, handle_of(stream, Stream, "stream"), addresses)
        return self._views(array, addresses, stream)

    def try_acquire(self, ids: Iterable[int], stream: Stream) -> Optional[List[View]]:
        """As acquire, but returns None (busy) if another request uses the memory or the device is out of memory."""
        array, count = _array(ids)
        addresses, acquired = _array_types(count)[1](), ctypes.c_int()
        call(core().bp_pool_try_acquire, self.handle, array, count, handle_of(stream, Stream, "stream"),
             addresses, ctypes.byref(acquired))
        return self._views(array, addresses, stream) if acquired.value else None

    def _only(self, held: Any) -> Optional[Record]:
        """The record of a list of one id."""
        if type(held) is list and len(held) == 1:
            id = held[0]
            if type(id) is int and 0 <= id < len(self._records):
                return self._records[id]
        return None

    def _failure(self, status: int, stream: Optional[Stream]) -> Exception:
        """The exception of a status; InvalidArgument if the pool or the stream is closed, which is NULL in C."""
        error = failure(status)
        self.handle
        if stream is not None:
            handle_of(stream, Stream, "stream")
        return error

    def _oversized(self, id: int, numel: int, element_bytes: int) -> Exception:
        """The exception of a tensor that the memory of a request cannot hold."""
        record = self._records[id]
        return InvalidArgument(f"{record.text}: a tensor of {numel} elements of {element_bytes} bytes does not fit its "
                               f"{record.bytes} bytes")

    def _views(self, ids: Any, addresses: Any, stream: Stream) -> List[View]:
        views = []
        for id, address in zip(ids, addresses):
            record = self._records[id]
            record.references += 1
            views.append(View(self, id, address or 0, stream, record))
        return views

    def can_acquire(self, ids: Iterable[int], releasing: Iterable[int] = ()) -> bool:
        """True if acquire(ids) would succeed after one reference to each of `releasing` was released."""
        array, count = _array(ids)
        others, other_count = _array(releasing, "releasing")
        can = ctypes.c_int()
        call(core().bp_pool_can_acquire, self.handle, array, count, others, other_count, ctypes.byref(can))
        return bool(can.value)

    def use(self, held: Iterable[Held], stream: Stream) -> None:
        """Declares that work on another stream uses live requests, so that reuse waits for it too. held: ids or
        views.
        """
        array, count, _ = self._held(held)
        call(core().bp_pool_use, self.handle, array, count, handle_of(stream, Stream, "stream"))

    def release(self, held: Iterable[Held], stream: Stream) -> None:
        """Drops one reference to each request. held: ids or views. stream: the stream of their last work.

        Raises ScheduleError (not live, a released view; in guard mode: written past the end). After an error
        nothing has changed.
        """
        record = self._only(held)
        if record is not None:
            self._release(record, stream)
            return
        array, count, views = self._held(held)
        call(core().bp_pool_release, self.handle, array, count, handle_of(stream, Stream, "stream"))
        self._ended(array, views)

    def _release(self, record: Record, stream: Stream) -> None:
        status = self._calls.release(self._handle, record.ids_at, 1, _handle_of(stream))
        if status:
            raise self._failure(status, stream)
        self._dropped(record)

    def cancel(self, held: Iterable[Held]) -> None:
        """Cancels acquires whose memory was never used. Raises ScheduleError (used, or several references)."""
        array, count, views = self._held(held)
        call(core().bp_pool_cancel, self.handle, array, count)
        self._ended(array, views)

    def _held(self, held: Iterable[Held]) -> Tuple[Any, int, List[View]]:
        ids, views = [], []
        for each in list_of(held, "held"):
            if isinstance(each, View):
                if each.pool is not self:
                    raise InvalidArgument(f"{each!r}: a view of another pool; pass it to that pool")
                each.check()
                views.append(each)
                ids.append(each.id)
            else:
                ids.append(each)
        array, count = _array(ids)
        return array, count, views

    def _ended(self, ids: Any, views: List[View]) -> None:
        for id in ids:
            self._dropped(self._records[id])
        for view in views:
            view._released = True

    @staticmethod
    def _dropped(record: Record) -> None:
        record.references -= 1
        if record.references <= 0:
            record.references = 0
            record.epoch += 1

    def _taken_back(self) -> None:
        """Marks views as released after an abandoned capture dropped their references."""
        handle = self.handle
        for id, record in enumerate(self._records):
            references = core().bp_pool_references(handle, id)
            if references != record.references:
                record.references = int(references)
                record.epoch += references == 0

    # ---- settings of a run -----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Makes every later deviation from the plan an error. Raises ScheduleError (dynamic or overflow memory
        is live).
        """
        call(core().bp_pool_seal, self.handle)

    def allow_overflow(self, allowed: bool) -> None:
        """Allows or forbids overflow memory for requests whose memory is in use, for a pass outside the plan."""
        call(core().bp_pool_allow_overflow, self.handle, flag(allowed, "allowed"))

    def set_step(self, step: int) -> None:
        """Sets a number for messages and traces, usually the training step."""
        core().bp_pool_set_step(self.handle, whole(step, 64, "a step"))

    # ---- statistics and live requests -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return decoded(self._info.name)

    @property
    def sealed(self) -> bool:
        """True after seal()."""
        return bool(core().bp_pool_is_sealed(self.handle))

    @property
    def capturing(self) -> bool:
        """True between the begin and the end of a Capture of this pool."""
        return bool(core().bp_pool_is_capturing(self.handle))

    @property
    def guarded(self) -> bool:
        """True in guard mode."""
        return bool(self._info.guarded)

    @property
    def annotated(self) -> bool:
        """True if NVTX ranges and memory regions are on."""
        return bool(self._info.annotated)

    @property
    def alignment(self) -> int:
        return int(self._info.alignment)

    @property
    def policy(self) -> str:
        """The policy of the plan."""
        return name_of("BP_POLICY_", self._info.policy)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the plan."""
        return decoded(self._info.fingerprint)

    @property
    def statistics(self) -> Statistics:
        """The counters of the pool now."""
        s = filled(core().bp_pool_statistics_get, _abi.bp_pool_statistics, self.handle)
        return Statistics(*[getattr(s, field) for field in Statistics._fields])

    @property
    def sequence(self) -> Tuple[int, int]:
        """Hash and number of all acquires: equal on ranks that made the same acquires."""
        digest, count = ctypes.c_uint64(), ctypes.c_uint64()
        call(core().bp_pool_sequence, self.handle, ctypes.byref(digest), ctypes.byref(count))
        return digest.value, count.value

    @property
    def slabs(self) -> List[PoolSlab]:
        """The slabs: those of the plan, then persistent and overflow memory."""
        info = self._info
        return [PoolSlab(s.address or 0, s.bytes, s.planned_bytes, decoded(s.group))
                for s in info.slabs[:info.slab_count]]

    def live(self) -> List[LiveRequest]:
        """The live requests, by id."""
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
            LiveRequest(e.id, decoded(e.unit), e.ordinal, role_name(e.role), e.references, decoded(e.stream),
                        e.address or 0, e.bytes, e.acquire_number, e.step) for e in entries[:count.value]
        ]

    def dump(self) -> str:
        """The live requests as text, one line each, and a line of sums."""
        handle, needed = self.handle, ctypes.c_size_t()
        call(core().bp_pool_dump, handle, None, 0, ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value + 4096)  # others may acquire in between
        call(core().bp_pool_dump, handle, text, len(text), ctypes.byref(needed))
        return text.value.decode(errors="replace")

    def trace_start(self, entries: int, timestamps: bool = False) -> None:
        """Starts recording acquires and releases into a ring buffer of `entries`."""
        call(core().bp_pool_trace_start, self.handle, whole(entries, 63, "entries"), flag(timestamps, "timestamps"))

    def trace_stop(self) -> None:
        """Stops recording. Recorded events stay readable."""
        core().bp_pool_trace_stop(self.handle)

    def trace(self) -> List[PoolEvent]:
        """The recorded events, oldest first. No acquire or release may run at the same time."""
        handle, events, event = self.handle, [], _abi.bp_pool_event()
        for index in range(core().bp_pool_trace_count(handle)):
            call(core().bp_pool_trace_get, handle, index, ctypes.byref(event))
            events.append(
                PoolEvent(name_of("BP_EVENT_", event.kind), event.id, event.stream, event.step, event.time_ns,
                          event.address or 0))
        return events

    def trace_to_model(self, first_step: int, last_step: int, model: Model) -> None:
        """Adds the events of these steps to `model` as its recorded schedule, for Schedule.recorded."""
        call(core().bp_pool_trace_to_model, self.handle, whole(first_step, 64, "a step"),
             whole(last_step, 64, "a step"), handle_of(model, Model, "model"))

    def close(self) -> None:
        """Ends all live requests, waits for the streams of the device and frees the memory.

        Memory of arrays and tensors is freed with the last of them. Views raise afterwards.
        """
        self.forget_tensors()
        super().close()
        dlpack.take_back()

    def forget_tensors(self) -> None:
        """Drops the tensors that View.torch keeps; each keeps the memory mapped. Internal."""
        for record in self._records:
            record.tensors.clear()

    def keeps_tensors(self, address: int) -> bool:
        """True if the memory at the address is the pool's until it is closed. Internal."""
        return any(slab.address <= whole(address, 64, "address") < slab.address + slab.bytes for slab in self.slabs)

    def __repr__(self) -> str:
        return "<Pool, closed>" if self.closed else f"<Pool {self.name!r} on {self.device.name}: {self.policy}>"


def check_options(function: Callable[..., Any], options: Dict[str, Any]) -> None:
    """Raises TypeError for an option that neither the function has, which passes these on, nor Pool. Internal."""
    of_pool = [name for name in inspect.signature(Pool).parameters if name not in ("device", "plan")]
    own = [name for name, each in inspect.signature(function).parameters.items()
           if name != "self" and each.kind is not each.VAR_KEYWORD]
    for name in options:
        if name not in of_pool:
            near = difflib.get_close_matches(name, own + of_pool, 1)
            title = function.__qualname__.replace(".__init__", "")
            raise TypeError(f"{title}: unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else
                            f"; it has {', '.join(own)}, and those of Pool: {', '.join(of_pool)}"))


def _handle_of(stream: Any) -> Optional[StreamHandle]:
    """As handle_of, for the calls of each step; None of a closed stream, which C reports. ctypes would take numbers and
    texts for addresses.
    """
    handle = getattr(stream, "_handle", 0)
    if type(handle) is StreamHandle or handle is None:
        return handle
    return handle_of(stream, Stream, "stream")


def _array(ids: Iterable[int], what: str = "ids") -> Tuple[Any, int]:
    numbers = ids if isinstance(ids, (list, tuple)) else list_of(ids, what)
    for id in numbers:
        if not isinstance(id, int) or not 0 <= id <= 0xFFFFFFFF:
            raise InvalidArgument(f"request {shown(id)}: expected an id, from Plan.find or Pool.bind")
    return _array_types(len(numbers))[0](*numbers), len(numbers)


@functools.lru_cache(maxsize=256)
def _array_types(count: int) -> Tuple[Any, Any]:
    """The types of arrays of `count` ids and addresses. Making one costs more than a call."""
    return ctypes.c_uint32 * count, ctypes.c_void_p * count


def _told(on_message: Callable[[str], Any]) -> Callable[[Any, bytes], None]:

    def listen(_user: Any, text: bytes) -> None:
        with calling_back():
            on_message(decoded(text))

    return listen


# Arguments of these names hide the functions.
_role, _dtype = role, dtype
