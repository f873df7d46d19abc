"""Devices, streams and events."""

import collections
import ctypes
import itertools
from typing import Any, Callable, Deque, Dict, NamedTuple, Optional, Tuple, Union

from . import _abi, cuda
from ._library import call, configured, core, filled
from .errors import InvalidArgument
from .handle import Handle, Owner, after_fork, at_exit, calling_back
from .names import decoded, member, optional, whole


class DeviceHandle(Handle):
    destroy = "bp_device_destroy"


class StreamHandle(Handle):
    destroy = "bp_stream_destroy"


class EventHandle(Handle):
    destroy = "bp_event_destroy"


class Usage(NamedTuple):
    """Memory of a device, in bytes, now and at most so far; streams and events that live."""

    committed_bytes: int
    peak_committed_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    streams: int
    events: int


class Device(Owner[DeviceHandle]):
    """Made by Device.host(), null() or cuda(). Lives on while it has streams, events or pools. Any thread."""

    ordinal: Optional[int] = None  # of a GPU, as the driver counts

    def __init__(self) -> None:
        raise TypeError("devices are made by Device.host, null or cuda")

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
        """The CPU: real memory, and streams that are threads. memory_bytes: what it has, 0: the machine's.

        max_delay_us: streams pause up to so long before each piece of work, at random from delay_seed, so that
        missing waits show up."""
        config = configured(core().bp_host_config_init, _abi.bp_host_config, memory_bytes=memory_bytes,
                            max_delay_us=max_delay_us, delay_seed=delay_seed, granularity=granularity,
                            queue_length=queue_length)
        return cls._made(core().bp_device_create_host, ctypes.byref(config))

    @classmethod
    def null(cls) -> "Device":
        """Addresses without memory and streams that run nothing: for bookkeeping at full size. Its views cannot be
        read or written."""
        return cls._made(core().bp_device_create_null)

    @classmethod
    def cuda(cls, ordinal: int = 0, memory: str = "virtual", memory_bytes: int = 0) -> "Device":
        """A GPU, in its primary context, which PyTorch uses too. memory: "virtual", or "plain" where legacy CUDA IPC
        is needed.

        Raises NoDevice with the reason (no driver, too old, no such ordinal)."""
        config = configured(core().bp_cuda_config_init, _abi.bp_cuda_config, ordinal=ordinal,
                            memory=member("BP_CUDA_", memory, "memory"), memory_bytes=memory_bytes)
        device = cls._made(core().bp_device_create_cuda, ctypes.byref(config))
        device.ordinal = ordinal
        return device

    @property
    def name(self) -> str:
        """"host", "null", "cuda"."""
        handle = self.handle
        return decoded(core().bp_device_name(handle))

    @property
    def is_host_accessible(self) -> bool:
        """Whether Python may read and write its memory; Stream.copy can in any case."""
        return bool(core().bp_device_is_host_accessible(self.handle))

    @property
    def usage(self) -> Usage:
        u = filled(core().bp_device_usage_get, _abi.bp_device_usage, self.handle)
        return Usage(u.committed_bytes, u.peak_committed_bytes, u.allocated_bytes, u.peak_allocated_bytes, u.streams,
                     u.events)

    def stream(self, name: Optional[str] = None) -> "Stream":
        """A new stream."""
        return Stream(self, name)

    def import_stream(self, native: Any, name: Optional[str] = None) -> "Stream":
        """A stream that somebody else made: a torch.cuda.Stream, which is kept alive, or the handle as a number.

        Import a stream once; close the import before the stream goes. Raises Unsupported (a device without native
        streams), InvalidArgument (a per-thread default stream, another device's)."""
        number = native if isinstance(native, int) else getattr(native, "cuda_stream", None)
        if number is None:
            raise InvalidArgument(
                f"a native stream is a number or has cuda_stream, as torch.cuda.Stream does; this is {native!r}")
        return Stream(self, name, native=number, keeps=native)

    def event(self) -> "Event":
        """A new event."""
        return Event(self)

    def order(self, earlier: "Stream", consumer: Optional[int]) -> None:
        """Makes a native stream wait for what a stream of ours has been given so far, as DLPack's consumers ask for.

        consumer: a CUstream as a number; None and 1: the legacy default stream, 2: this thread's default stream.
        Enqueues only. Raises BufferError for 0, which DLPack leaves without a meaning; DeviceError."""
        if consumer == 0:
            raise BufferError(
                "stream 0 has no meaning in DLPack: pass 1 for the legacy default stream, 2 for the thread's, or -1 "
                "for no order")
        native = 1 if consumer is None else whole(consumer, 64, "a native stream")
        ordinal = self.ordinal
        if ordinal is not None and earlier.native != native:
            cuda.wait(ordinal, earlier.native, native)

    def synchronize(self) -> None:
        """Waits until all work of all streams is done, without the GIL."""
        call(core().bp_device_synchronize, self.handle)

    def __repr__(self) -> str:
        return "<Device, closed>" if self.closed else f"<Device {self.name}>"


class Stream(Owner[StreamHandle]):
    """Work in order. Closing it waits for its work. Any thread."""

    def __init__(self, device: Device, name: Optional[str] = None, native: Optional[int] = None,
                 keeps: Any = None) -> None:
        handle = StreamHandle(keeps)
        text = optional(name, "a stream's name")
        if native is None:
            call(core().bp_stream_create, device.handle, text, ctypes.byref(handle))
        else:
            call(core().bp_stream_import, device.handle, whole(native, 64, "a native stream"), text,
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
        """The CUstream as a number. Raises Unsupported where the device has none."""
        return self._number(core().bp_stream_native)

    @property
    def is_capturing(self) -> bool:
        """Whether its work goes into a graph now. Asks the driver."""
        return self._number(core().bp_stream_capture_of) != 0

    def _number(self, getter: Any) -> int:
        number = ctypes.c_uint64()
        call(getter, self.handle, ctypes.byref(number))
        return number.value

    def synchronize(self) -> None:
        """Waits for the stream's work, without the GIL. Raises what a function of call() raised, once."""
        call(core().bp_stream_synchronize, self.handle)
        self._raise()

    def _raise(self) -> None:
        try:
            raised = self._raised.popleft()
        except IndexError:
            return
        raise raised

    def call(self, function: Callable[[], Any]) -> None:
        """Calls function() in stream order, on a thread of the device, which takes the GIL for it. It must not call
        back into the device or a pool. What it raises is raised by the stream's next synchronize."""
        handle = self.handle
        token = next(_tokens)
        _calls[token] = (handle, function, self._raised)
        try:
            call(core().bp_stream_call, handle, _run, token)
        except BaseException:
            _calls.pop(token, None)
            raise

    def fill(self, memory: Any, value: int, bytes: Optional[int] = None) -> None:
        """Sets bytes in stream order. memory: a View, all of it, or an address with `bytes`. Raises ScheduleError (a
        view that was released)."""
        address, length = extent(memory, bytes)
        if length is None:
            raise InvalidArgument("say how many bytes to fill at an address")
        call(core().bp_stream_fill, self.handle, address, whole(value, 8, "a byte"), length)

    def copy(self, to: Any, source: Any, bytes: Optional[int] = None) -> None:
        """Copies in stream order between any memory of host and device; both must stay valid until then.

        to, source: a View, an object with the buffer protocol, or an address. bytes: how many; None: all of the
        smaller that has a size."""
        address, room = extent(to, bytes)
        begin, length = extent(source, bytes)
        if bytes is None:
            sizes = [size for size in (room, length) if size is not None]
            if not sizes:
                raise InvalidArgument("say how many bytes to copy between two addresses")
            length = min(sizes)
        call(core().bp_stream_copy, self.handle, address, begin, length)

    def record(self, event: Optional["Event"] = None) -> "Event":
        """Marks everything enqueued so far, in a new event or a given one."""
        event = Event(self.device) if event is None else event
        call(core().bp_event_record, event.handle, self.handle)
        return event

    def wait(self, earlier: Union["Event", "Stream"]) -> None:
        """Work enqueued from now on starts after what an event marks, or after what another stream has been given so
        far."""
        event = earlier.record() if isinstance(earlier, Stream) else earlier
        call(core().bp_stream_wait, self.handle, event.handle)

    def __repr__(self) -> str:
        return "<Stream, closed>" if self.closed else f"<Stream {self.name!r}>"


class Event(Owner[EventHandle]):
    """A mark in a stream."""

    def __init__(self, device: Device) -> None:
        handle = EventHandle()
        call(core().bp_event_create, device.handle, ctypes.byref(handle))
        self._handle = handle

    def synchronize(self) -> None:
        """The host waits for what it marks, without the GIL."""
        call(core().bp_event_synchronize, self.handle)


# Functions of Stream.call by number, until they have run: what the stream is given is the number.
_calls: Dict[int, Tuple[StreamHandle, Callable[[], Any], Deque[BaseException]]] = {}
_tokens = itertools.count(1)


def _run_call(token: int) -> None:
    _handle, function, raised = _calls[token]
    with calling_back():
        try:
            function()
        except BaseException as error:
            raised.append(error)
        # what it referred to ends while the thread is known to be the device's
        del function, _handle
        _calls.pop(token, None)


_run = _abi.bp_host_function(_run_call)


def _finish_calls() -> None:
    """Python must not be called once the interpreter is gone."""
    while _calls:
        handle = next(iter(list(_calls.values())))[0]
        if core().bp_stream_synchronize(handle) != _abi.BP_OK:
            return


at_exit(_finish_calls)
after_fork(_calls.clear)  # the parent's, which run there


def extent(memory: Any, bytes: Optional[int]) -> Tuple[int, Any]:
    """Address and bytes of a View, a buffer or an address with a size. InvalidArgument where the size is more than
    there is."""
    wanted = None if bytes is None else whole(bytes, 64, "bytes")
    if isinstance(memory, int):
        return whole(memory, 64, "an address"), wanted
    if hasattr(memory, "address") and hasattr(memory, "bytes"):
        memory.check()  # what was released is another's, and that of a closed pool is gone
        address, room = memory.address, memory.bytes
    else:
        try:
            with memoryview(memory).cast("B") as view:
                address, room = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0, view.nbytes
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(
                "memory is a View, an address, or a contiguous buffer that can be written, such as a numpy array: "
                f"{error}") from None
    if wanted is not None and wanted > room:
        raise InvalidArgument(f"{wanted} bytes asked for, of memory that has {room}")
    return address, room if wanted is None else wanted
