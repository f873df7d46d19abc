"""Replaces torch.cuda while a step is recorded: streams are numbers, all events are done, and properties are a GPU's.

Callers finds out who asks a fake tensor for its device in C++. Autograd does to record a node, looks up CUDA streams
for it, and fails without a GPU (PyTorch 2.11: "hasPrimaryContext expects a valid device index"). So autograd alone gets
a device of type meta. All other code gets the CUDA device: autocast, fused dropout and the like choose as on a GPU.
"""

import contextlib
import ctypes
import sys
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ...errors import Unsupported
from .kernels import MULTIPROCESSORS
from .recording import Recording

__all__ = ["Callers", "Streams", "patched", "torch_cuda"]

_METADATA = "torch8autograd13InputMetadataC"  # constructors, mangled: the part before their arguments
_DEPTH = 48
_INHERITED = object()


class _Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


class Callers:
    """Looks for autograd's InputMetadata among the callers in C++, by return addresses."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        try:
            self._backtrace, self._dladdr = library.backtrace, library.dladdr
        except AttributeError:
            raise Unsupported("record: this C library has no backtrace(); record on Linux or macOS") from None
        self._backtrace.argtypes, self._backtrace.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
        self._dladdr.argtypes, self._dladdr.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self._frames = (ctypes.c_uint64 * _DEPTH)()
        self._known: Dict[int, bool] = {}  # return addresses

    def records_node(self) -> bool:
        count = self._backtrace(self._frames, _DEPTH)
        known = self._known
        for address in self._frames[:count]:
            found = known.get(address)
            if found is None:
                symbol = _Symbol()
                named = self._dladdr(address, ctypes.byref(symbol)) and symbol.name
                found = known[address] = bool(named) and _METADATA in symbol.name.decode(errors="replace")
            if found:
                return True
        return False


class Stream:
    """A stream of the recording: torch.cuda.Stream as far as programs that train use it."""

    _count = 0  # Streams makes a subclass, which counts its recording's

    def __init__(self, _device: Any = None, priority: int = 0, **_: Any) -> None:
        self.cuda_stream = self.stream_id = self.number = type(self)._count
        type(self)._count += 1
        self.priority, self.device_index, self.device_type = priority, 0, 1
        self.device = torch.device("cuda", 0)

    def record_event(self, event: Any = None) -> Any:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_event(self, _event: Any) -> None:
        pass

    wait_stream = wait_event

    def synchronize(self) -> None:
        pass


class Event:
    """torch.cuda.Event: all work of the recording is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, _stream: Any = None) -> None:
        pass

    wait = record

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


class Device:
    """torch.cuda.device: there is one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class Streams:
    """The current stream, and the class of new ones, which gives them numbers: 0 is the default stream."""

    def __init__(self, recording: Recording) -> None:
        def made(stream: Stream, device: Any = None, priority: int = 0, **_: Any) -> None:
            Stream.__init__(stream, device, priority)
            frame = sys._getframe(1)
            if stream.number:
                recording._note(f"stream {stream.number}: made in {frame.f_globals.get('__name__')}:{frame.f_lineno}")

        self.type: Any = type("Stream", (Stream, ), {"__init__": made})
        self.default: Stream = self.type()
        self.current = self.default

    def set(self, stream: Optional[Stream]) -> None:
        self.current = self.default if stream is None else stream

    @contextlib.contextmanager
    def use(self, stream: Optional[Stream]) -> Iterator[None]:
        before = self.current
        if stream is not None:
            self.current = stream
        try:
            yield
        finally:
            self.current = before


def torch_cuda(recording: Recording, streams: Streams, capability: Tuple[int, int],
               total_bytes: int) -> List[Tuple[Any, str, Any]]:
    """Replacements of attributes, for patched()."""
    properties = types.SimpleNamespace(
        name="recorded without a GPU", major=capability[0], minor=capability[1], total_memory=total_bytes,
        multi_processor_count=MULTIPROCESSORS, warp_size=32, gcnArchName="", is_integrated=False,
        is_multi_gpu_board=False, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_multiprocessor=233472, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20)
    random_state = torch.zeros(16, dtype=torch.uint8)

    def value(result: Any) -> Callable[..., Any]:
        return lambda *_, **__: result

    def statistic(name: str) -> Callable[..., int]:
        return lambda *_, **__: getattr(recording, name)

    nothing = value(None)
    cuda: Dict[str, Any] = {
        "is_available": value(True), "is_initialized": value(True), "device_count": value(1),
        "current_device": value(0),
        "_lazy_init": nothing, "init": nothing, "set_device": nothing, "device": Device, "device_of": Device,
        "Stream": streams.type, "Event": Event, "stream": streams.use, "set_stream": streams.set,
        "current_stream": lambda *_: streams.current, "default_stream": lambda *_: streams.default,
        "synchronize": nothing, "empty_cache": nothing, "ipc_collect": nothing,
        "get_device_properties": value(properties), "get_device_capability": value(capability),
        "get_device_name": value(properties.name), "is_bf16_supported": value(True), "get_arch_list": value([]),
        "mem_get_info": lambda *_: (total_bytes - recording.live_rounded_bytes, total_bytes),
        "memory_allocated": statistic("live_rounded_bytes"), "memory_reserved": statistic("live_rounded_bytes"),
        "max_memory_allocated": statistic("peak_rounded_bytes"), "max_memory_reserved": statistic("peak_rounded_bytes"),
        "reset_peak_memory_stats": nothing, "reset_max_memory_allocated": nothing, "memory_stats": value({}),
        "is_current_stream_capturing": value(False), "can_device_access_peer": value(False),
        "manual_seed": nothing, "manual_seed_all": nothing, "seed": nothing, "seed_all": nothing,
        "get_rng_state": lambda *_: random_state, "set_rng_state": nothing,
        "get_rng_state_all": lambda: [random_state], "set_rng_state_all": nothing,
    }
    accelerator: Dict[str, Any] = {
        "is_available": value(True), "device_count": value(1), "current_accelerator": value(torch.device("cuda")),
        "current_device_index": value(0), "set_device_index": nothing, "synchronize": nothing,
        "current_stream": cuda["current_stream"], "set_stream": streams.set,
    }
    places: List[Tuple[Any, str, Any]] = [(torch.cuda, name, replaced) for name, replaced in cuda.items()]
    places += [(torch.accelerator, name, replaced) for name, replaced in accelerator.items()]
    places.append((torch._C, "_get_accelerator", value(torch.device("cuda"))))
    for module in ("torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams"):  # those who import them from there
        there = sys.modules.get(module)
        places += [(there, name, replaced) for name, replaced in cuda.items() if hasattr(there, name)]
    return places


@contextlib.contextmanager
def patched(places: List[Tuple[Any, str, Any]]) -> Iterator[None]:
    """Sets attributes of modules and classes, and at the end sets them back, or deletes those that were inherited."""
    before: List[Tuple[Any, str, Any]] = []
    try:
        for owner, name, replaced in places:
            if hasattr(owner, name):
                before.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, replaced)
        yield
    finally:
        for owner, name, original in reversed(before):
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
