# SPDX-License-Identifier: Apache-2.0
"""Devices, streams and events."""

import collections
import ctypes
import itertools
from typing import Any, Callable, Deque, Dict, NamedTuple, Optional, Tuple, Union

from . import _abi, cuda
from ._library import call, configured, core, filled
from .errors import InvalidArgument
from .handle import Handle, Owner, after_fork, at_exit, calling_back, handle_of
from .names import decoded, function_of, member, optional, whole


__all__ = ["Device", "Event", "Gpu", "Stream", "Usage"]


class DeviceHandle(Handle, _abi.bp_device):
    destroy = "bp_device_destroy"


class StreamHandle(Handle, _abi.bp_stream):
    destroy = "bp_stream_destroy"


class EventHandle(Handle, _abi.bp_event):
    destroy = "bp_event_destroy"


class Usage(NamedTuple):
    """Memory of a device in bytes, now and at its high-water mark; existing streams and events."""

    committed_bytes: int
    peak_committed_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    streams: int
    events: int


class Gpu(NamedTuple):
    """Properties of a GPU, as bp_cuda_info in cuda.h. driver_version: 13000 is CUDA 13.0."""

    name: str
    ordinal: int
    driver_version: int
    compute_major: int
    compute_minor: int
    handle_types: int
    rdma: bool
    peers: int
    stream_ordered: bool
    recommended_granularity: int
    multicast_granularity: int
    total_bytes: int


class Device(Owner[DeviceHandle]):
    """A device: memory and streams. Made by Device.host(), cuda() or null(). Any thread.

    The library keeps it until its last stream, event and pool is closed.
    """

    shared = True
    ordinal: Optional[int] = None  # of a GPU, as the driver counts
    _host_accessible: Optional[bool] = None

    def __init__(self) -> None:
        raise TypeError("Device has no constructor; call Device.host, Device.null or Device.cuda")

    @classmethod
    def _made(cls, function: Any, *arguments: Any) -> "Device":
        handle = DeviceHandle()
        call(function, *arguments, ctypes.byref(handle))
        device = cls.__new__(cls)
        device._handle = handle
        return device

    @classmethod
    def host(cls, memory_bytes: int = 0, max_delay_us: int = 0, delay_seed: int = 0, granularity: int = 0,
             queue_length: int = 0) -> "Device":
        """The CPU: real memory, and streams that are threads.

        - memory_bytes: limit of slabs; 0: the memory of the machine
        - max_delay_us, delay_seed: largest random pause before a piece of work, which exposes missing waits
        - granularity: of slabs; 0: the page size
        - queue_length: pieces of work in the queue of a stream before an enqueue waits; 0: 16384
        """
        config = configured(core().bp_host_config_init, _abi.bp_host_config, memory_bytes=memory_bytes,
                            max_delay_us=max_delay_us, delay_seed=delay_seed, granularity=granularity,
                            queue_length=queue_length)
        return cls._made(core().bp_device_create_host, ctypes.byref(config))

    @classmethod
    def null(cls) -> "Device":
        """A device with addresses but no memory, whose streams run nothing: for bookkeeping at full size. Its
        views cannot be read or written.
        """
        return cls._made(core().bp_device_create_null)

    @classmethod
    def cuda(cls, ordinal: int = 0, memory: str = "virtual", memory_bytes: int = 0, fabric: bool = True) -> "Device":
        """An NVIDIA GPU, in its primary context, which PyTorch uses too.

        - ordinal: index of the GPU in the driver
        - memory: "virtual", or "plain" (cuMemAlloc) for legacy CUDA IPC
        - memory_bytes: limit of slabs; 0: the memory of the GPU
        - fabric: False: never ask for fabric handles

        Raises NoDevice with the reason (no driver, a driver that is too old, no such ordinal).
        """
        config = configured(core().bp_cuda_config_init, _abi.bp_cuda_config, ordinal=ordinal,
                            memory=member("BP_CUDA_", memory, "memory"), memory_bytes=memory_bytes,
                            no_fabric=int(not fabric))
        device = cls._made(core().bp_device_create_cuda, ctypes.byref(config))
        device.ordinal = ordinal
        return device

    @property
    def name(self) -> str:
        """The kind of device: "host", "null" or "cuda"."""
        handle = self.handle
        return decoded(core().bp_device_name(handle))

    @property
    def is_host_accessible(self) -> bool:
        """True if Python can read and write the memory directly; Stream.copy always can."""
        if self._host_accessible is None:
            self._host_accessible = bool(core().bp_device_is_host_accessible(self.handle))
        return self._host_accessible

    @property
    def usage(self) -> Usage:
        """Memory, streams and events of the device now."""
        u = filled(core().bp_device_usage_get, _abi.bp_device_usage, self.handle)
        return Usage(u.committed_bytes, u.peak_committed_bytes, u.allocated_bytes, u.peak_allocated_bytes, u.streams,
                     u.events)

    @property
    def gpu(self) -> Optional[Gpu]:
        """Properties of a GPU; None for other devices."""
        handle = self.handle
        info = core().bp_cuda_get_info(handle)
        if not info:
            return None
        values = {field: getattr(info.contents, field) for field in Gpu._fields}
        return Gpu(**{**values, "name": decoded(info.contents.name), "rdma": bool(info.contents.rdma),
                      "stream_ordered": bool(info.contents.stream_ordered)})

    def stream(self, name: Optional[str] = None) -> "Stream":
        """Creates a stream."""
        return Stream(self, name)

    def import_stream(self, native: Any, name: Optional[str] = None) -> "Stream":
        """Imports a native stream: a torch.cuda.Stream, which is kept alive, or a handle as a number.

        Import a stream once, and close the import before the native stream is destroyed. Raises Unsupported
        (a device without native streams), InvalidArgument (a per-thread default stream, a stream of another
        device).
        """
        number = native if isinstance(native, int) else getattr(native, "cuda_stream", None)
        if number is None:
            raise InvalidArgument(
                f"import_stream: expected a number, or an object with cuda_stream such as torch.cuda.Stream, "
                f"got {native!r}")
        return Stream(self, name, native=number, keeps=native)

    def event(self) -> "Event":
        """Creates an event."""
        return Event(self)

    def order(self, earlier: "Stream", consumer: Optional[int]) -> None:
        """Makes a native stream wait for the present work of `earlier`, as DLPack requires of producers.

        consumer: a CUstream as a number; None and 1: the legacy default stream; 2: the default stream of this
        thread. Enqueues only. Raises BufferError for 0, which DLPack leaves undefined; DeviceError.
        """
        handle_of(earlier, Stream, "earlier")
        if consumer == 0:
            raise BufferError(
                "stream 0 is undefined in DLPack; pass 1 for the legacy default stream, 2 for the default stream of "
                "the thread, or -1 for no order")
        native = 1 if consumer is None else whole(consumer, 64, "a native stream")
        ordinal = self.ordinal
        if ordinal is not None and earlier.native != native:
            cuda.wait(ordinal, earlier.native, native)

    def synchronize(self) -> None:
        """Waits for all work of all streams, without the GIL."""
        call(core().bp_device_synchronize, self.handle)

    def __repr__(self) -> str:
        return "<Device, closed>" if self.closed else f"<Device {self.name}>"


class Stream(Owner[StreamHandle]):
    """A stream: an ordered queue of work. Closing it waits for its work. Any thread."""

    shared = True

    def __init__(self, device: Device, name: Optional[str] = None, native: Optional[int] = None,
                 keeps: Any = None) -> None:
        of, handle = handle_of(device, Device, "device"), StreamHandle(keeps)
        text = optional(name, "a stream's name")
        if native is None:
            call(core().bp_stream_create, of, text, ctypes.byref(handle))
        else:
            call(core().bp_stream_import, of, whole(native, 64, "a native stream"), text,
                 ctypes.byref(handle))
        self._handle = handle
        self.device = device
        self._raised: Deque[BaseException] = collections.deque()

    @property
    def name(self) -> str:
        handle = self.handle
        return decoded(core().bp_stream_name(handle))

    @property
    def native(self) -> int:
        """The native handle (CUstream) as a number. Raises Unsupported (a device without native streams)."""
        return self._number(core().bp_stream_native)

    @property
    def is_capturing(self) -> bool:
        """True if the stream is being captured. Asks the driver."""
        return self._number(core().bp_stream_capture_of) != 0

    def _number(self, getter: Any) -> int:
        number = ctypes.c_uint64()
        call(getter, self.handle, ctypes.byref(number))
        return number.value

    def synchronize(self) -> None:
        """Waits for the work of the stream, without the GIL. Raises the exception of a function of call(), once."""
        call(core().bp_stream_synchronize, self.handle)
        self._raise()

    def _raise(self) -> None:
        if not self._raised:
            return
        try:
            raised = self._raised.popleft()
        except IndexError:
            return
        raise raised

    def call(self, function: Callable[[], Any]) -> None:
        """Enqueues a call of `function`, on a thread of the device, with the GIL. It must not use the device or
        a pool.

        The next synchronize() of the stream raises its exception.
        """
        handle, function = self.handle, function_of(function, "function")
        token = next(_tokens)
        _calls[token] = (handle, function, self._raised)
        try:
            call(core().bp_stream_call, handle, _run, token)
        except BaseException:
            _calls.pop(token, None)
            raise

    def fill(self, memory: Any, value: int, bytes: Optional[int] = None) -> None:
        """Enqueues a fill of memory with a byte.

        memory: a View, of which all bytes are set unless `bytes` says fewer, an object with the buffer protocol,
        or an address with `bytes`. Raises ScheduleError (a released view), InvalidArgument.
        """
        address, length = extent(memory, bytes)
        if length is None:
            raise InvalidArgument("fill: an address has no size; pass bytes")
        call(core().bp_stream_fill, self.handle, address, whole(value, 8, "a byte"), length)

    def copy(self, to: Any, source: Any, bytes: Optional[int] = None) -> None:
        """Enqueues a copy between memory of the host or the device. Both must stay valid until it has run.

        to, source: a View, an object with the buffer protocol, or an address. bytes: None for the smaller of
        the known sizes.
        """
        address, room = extent(to, bytes)
        begin, length = extent(source, bytes)
        if bytes is None:
            sizes = [size for size in (room, length) if size is not None]
            if not sizes:
                raise InvalidArgument("copy: two addresses have no size; pass bytes")
            length = min(sizes)
        call(core().bp_stream_copy, self.handle, address, begin, length)

    def record(self, event: Optional["Event"] = None) -> "Event":
        """Records an event, a new one by default: it marks all work enqueued so far. Returns the event."""
        event = Event(self.device) if event is None else event
        call(core().bp_event_record, handle_of(event, Event, "event"), self.handle)
        return event

    def wait(self, earlier: Union["Event", "Stream"]) -> None:
        """Orders work enqueued from now on after an event, or after the present work of another stream."""
        event = earlier.record() if isinstance(earlier, Stream) else earlier
        call(core().bp_stream_wait, self.handle, handle_of(event, Event, "earlier"))

    def __repr__(self) -> str:
        return "<Stream, closed>" if self.closed else f"<Stream {self.name!r}>"


class Event(Owner[EventHandle]):
    """An event: a mark in a stream, made by Device.event() or Stream.record()."""

    def __init__(self, device: Device) -> None:
        handle = EventHandle()
        call(core().bp_event_create, handle_of(device, Device, "device"), ctypes.byref(handle))
        self._handle = handle

    def synchronize(self) -> None:
        """Waits on the host for the marked work, without the GIL."""
        call(core().bp_event_synchronize, self.handle)


def refuse_stream(stream: Any) -> None:
    """Raises for an argument that is not a Stream."""
    handle_of(stream, Stream, "stream")


# Functions of Stream.call by number, until they have run: the stream gets the number as its argument.
_calls: Dict[int, Tuple[StreamHandle, Callable[[], Any], Deque[BaseException]]] = {}
_tokens = itertools.count(1)


def _run_call(token: int) -> None:
    _handle, function, raised = _calls[token]
    with calling_back():
        try:
            function()
        except BaseException as error:
            raised.append(error)
        # Objects that only the function referred to are destroyed here, where calling_back() postpones that.
        del function, _handle
        _calls.pop(token, None)


_run = _abi.bp_host_function(_run_call)


def _finish_calls() -> None:
    """Waits for the streams that still have Python functions to run, before the interpreter ends."""
    while _calls:
        handle = next(iter(list(_calls.values())))[0]
        if core().bp_stream_synchronize(handle) != _abi.BP_OK:
            return


at_exit(_finish_calls)
after_fork(_calls.clear)  # they run in the parent


def extent(memory: Any, bytes: Optional[int]) -> Tuple[int, Any]:
    """Address and size of a View, a buffer or an address. Raises InvalidArgument if `bytes` is larger than the
    memory.
    """
    wanted = None if bytes is None else whole(bytes, 64, "bytes")
    if isinstance(memory, Handle):  # a buffer of 8 bytes, which are the pointer
        raise InvalidArgument("memory: it is the handle of an object; pass a View, an address, or a buffer")
    if isinstance(memory, int):
        return whole(memory, 64, "an address"), wanted
    if hasattr(memory, "address") and hasattr(memory, "bytes") and hasattr(memory, "check"):
        memory.check()
        address, room = memory.address, memory.bytes
    else:
        try:
            with memoryview(memory).cast("B") as view:
                address, room = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0, view.nbytes
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(
                f"memory: {error}; pass a View, an address, or a contiguous and writable buffer such as a numpy array"
            ) from None
    if wanted is not None and wanted > room:
        raise InvalidArgument(f"memory: {wanted} bytes requested, but it has {room}; pass at most {room}")
    return address, room if wanted is None else wanted
