# SPDX-License-Identifier: Apache-2.0
"""Replaces the functions of torch.cuda while a step is recorded: properties and statistics are a GPU's.

Callers finds the code that asks a fake tensor for its device in C++. Autograd does to record a node, looks up CUDA streams
for it, and fails without a GPU (PyTorch 2.11: "hasPrimaryContext expects a valid device index"). So autograd alone gets
a device of type meta. All other code gets the CUDA device: autocast, fused dropout and the like choose as on a GPU.
"""

import contextlib
import ctypes
import sys
import threading
import types
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ...errors import Unsupported
from .kernels import MULTIPROCESSORS
from .recording import Recording
from .streams import Device, Event, Generator, MemPool, Streams

__all__ = ["Callers", "patched", "torch_cuda"]

_METADATA = "torch8autograd13InputMetadataC"  # constructors, mangled: the part before their arguments
_ASKS = "handle_torch_function_no_python_arg_parser"  # Tensor::device() calls it, and it calls Python
_DEPTH = 48
_ABOVE = 8  # frames, with those of a constructor
_INHERITED = object()


class _Symbol(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


class _Symbols(Dict[int, str]):
    """Of return addresses: _METADATA, _ASKS or ""."""

    def __init__(self, dladdr: Any) -> None:
        super().__init__()
        self._dladdr = dladdr

    def __missing__(self, address: int) -> str:
        symbol = _Symbol()
        named = self._dladdr(address, ctypes.byref(symbol)) and symbol.name
        name = symbol.name.decode(errors="replace") if named else ""
        self[address] = found = next((each for each in (_METADATA, _ASKS) if each in name), "")
        return found


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
        self._symbols = _Symbols(self._dladdr)
        self._asks = (0, 0)  # place of the frame that asks, and its return address

    def records_node(self) -> bool:
        """Unwinding costs 0.7 us a frame. From the frame that asks to here they are the same each time."""
        place, address = self._asks
        if place > 0:
            count = self._backtrace(self._frames, place + _ABOVE)
            if self._frames[place] == address:
                return _METADATA in map(self._symbols.__getitem__, self._frames[place:count])
        count = self._backtrace(self._frames, _DEPTH)
        symbols = [self._symbols[each] for each in self._frames[:count]]
        if _ASKS in symbols and symbols.index(_ASKS) + _ABOVE <= _DEPTH:
            self._asks = symbols.index(_ASKS), self._frames[symbols.index(_ASKS)]
        return _METADATA in symbols


_KEPT = frozenset((  # of torch.cuda: plain Python, or the same without a GPU
    "CudaError", "DeferredCudaCallError", "amp", "cudaStatus", "default_generators", "graph", "graphs", "has_half",
    "has_magma", "is_tf32_supported", "jiterator", "make_graphed_callables", "memory", "nccl", "nvtx", "profiler",
    "random", "sparse", "streams", "tunable"))


class _Statistics(Dict[str, int]):
    def __missing__(self, name: str) -> int:
        raise Unsupported(f"torch.cuda.memory_stats: a recording has no {name!r}; it has {', '.join(self)}")


class _Runtime:
    """torch.cuda.cudart(): each function succeeds, and does nothing (profilers are started and stopped there)."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: 0


def torch_cuda(recording: Recording, streams: Streams, capability: Tuple[int, int], total_bytes: int,
               empty_cache: Callable[[], None]) -> List[Tuple[Any, str, Any]]:
    """Replacements of attributes, for patched()."""
    properties = types.SimpleNamespace(
        name="recorded without a GPU", major=capability[0], minor=capability[1], total_memory=total_bytes,
        multi_processor_count=MULTIPROCESSORS, warp_size=32, gcnArchName="", is_integrated=False,
        is_multi_gpu_board=False, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152, shared_memory_per_multiprocessor=233472,
        shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, uuid="0", pci_bus_id=0, pci_device_id=0,
        pci_domain_id=0)
    random_state = torch.zeros(16, dtype=torch.uint8)
    owner = threading.get_ident()

    def value(result: Any) -> Callable[..., Any]:
        return lambda *_, **__: result

    def live(*_: Any, **__: Any) -> int:
        return recording.live_rounded_bytes

    def peak(*_: Any, **__: Any) -> int:
        return recording._peak_since_reset

    def reset_peak(*_: Any, **__: Any) -> None:
        recording._peak_since_reset = recording.live_rounded_bytes

    def reserved(statistic: Callable[..., int]) -> Callable[..., int]:
        def noted(*_: Any, **__: Any) -> int:
            recording._note("memory_reserved(), mem_get_info(): a recording has no segments; live bytes count")
            return statistic()

        return noted

    def free(*_: Any, **__: Any) -> Tuple[int, int]:
        return max(0, total_bytes - reserved(live)()), total_bytes

    def statistics(*_: Any, **__: Any) -> Dict[str, int]:
        found = _Statistics()
        for name in ("allocated_bytes", "active_bytes", "reserved_bytes"):
            found[f"{name}.all.current"], found[f"{name}.all.peak"] = reserved(live)(), peak()
        found["requested_bytes.all.current"] = recording.live_bytes
        found["num_alloc_retries"] = found["num_ooms"] = 0
        return found

    def summary(*_: Any, **__: Any) -> str:
        return f"{live()} bytes allocated, at most {peak()} (recorded without a GPU)"

    def initialize() -> None:
        """Runs first when a tensor of CUDA is made in C++."""
        if threading.get_ident() != owner:
            raise Unsupported("torch.cuda: used in a thread that the recording does not follow; run this part in the "
                              "thread of record(), for example without background loading")

    def metadata(text: str) -> None:
        recording._metadata = text

    def write(filename: str = "dump_snapshot.pickle", **_: Any) -> None:
        recording.write(filename)

    nothing = value(None)
    cuda: Dict[str, Any] = {
        "is_available": value(True), "is_initialized": value(True), "device_count": value(1),
        "current_device": value(0),
        "_lazy_init": initialize, "init": nothing, "set_device": nothing, "device": Device, "device_of": Device,
        "Stream": streams.type, "ExternalStream": streams.type, "Event": Event,
        "stream": streams.use, "StreamContext": streams.use, "set_stream": streams.set,
        "current_stream": lambda *_: streams.current, "default_stream": lambda *_: streams.default,
        "get_stream_from_external": lambda *_: streams.type(),
        "CUDAGraph": streams.graph, "is_current_stream_capturing": lambda: streams.capturing,
        "graph_pool_handle": lambda: streams.graph().pool(),
        "MemPool": MemPool, "use_mem_pool": lambda *_, **__: contextlib.nullcontext(),
        "synchronize": nothing, "empty_cache": empty_cache, "ipc_collect": nothing, "_sleep": nothing,
        "get_device_properties": value(properties), "get_device_capability": value(capability),
        "get_device_name": value(properties.name), "is_bf16_supported": value(True), "get_arch_list": value([]),
        "get_gencode_flags": value(""), "can_device_access_peer": value(False), "cudart": _Runtime,
        "check_error": nothing,
        "mem_get_info": free, "device_memory_used": reserved(live),
        "memory_allocated": live, "max_memory_allocated": peak,
        "memory_reserved": reserved(live), "max_memory_reserved": reserved(peak),
        "memory_cached": reserved(live), "max_memory_cached": reserved(peak),
        "reset_peak_memory_stats": reset_peak, "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak, "reset_accumulated_memory_stats": nothing,
        "memory_stats": statistics, "memory_summary": summary,
        "memory_snapshot": lambda *_: recording.snapshot()["segments"],
        "host_memory_stats": lambda *_: _Statistics(), "reset_peak_host_memory_stats": nothing,
        "reset_accumulated_host_memory_stats": nothing,
        "_record_memory_history": nothing, "_snapshot": lambda *_, **__: recording.snapshot(), "_dump_snapshot": write,
        "_set_memory_metadata": metadata, "_get_memory_metadata": lambda: recording._metadata,
        "caching_allocator_enable": nothing, "get_allocator_backend": value("native"),
        "get_per_process_memory_fraction": value(1.0), "set_per_process_memory_fraction": nothing,
        "set_sync_debug_mode": nothing, "get_sync_debug_mode": value(0),
        "manual_seed": nothing, "manual_seed_all": nothing, "seed": nothing, "seed_all": nothing,
        "initial_seed": torch.initial_seed, "default_generators": (Generator("cuda"), ),
        "get_rng_state": lambda *_: random_state, "set_rng_state": nothing,
        "get_rng_state_all": lambda: [random_state], "set_rng_state_all": nothing,
    }
    for name in torch.cuda.__all__:
        if name not in cuda and name not in _KEPT and not name.endswith(("Tensor", "Storage")):
            cuda[name] = _refused(f"torch.cuda.{name}")
    accelerator: Dict[str, Any] = {
        "is_available": value(True), "device_count": value(1), "current_accelerator": value(torch.device("cuda")),
        "current_device_index": value(0), "current_device_idx": value(0), "set_device_index": nothing,
        "set_device_idx": nothing, "device_index": Device, "synchronize": nothing, "empty_cache": empty_cache,
        "current_stream": cuda["current_stream"], "set_stream": streams.set, "get_memory_info": free,
        "get_device_capability": _refused("torch.accelerator.get_device_capability"),
    }
    accelerator.update((name, cuda[name]) for name in dir(torch.accelerator) if "memory_" in name and name in cuda)
    places: List[Tuple[Any, str, Any]] = [(torch.cuda, name, replaced) for name, replaced in cuda.items()]
    places += [(torch.accelerator, name, replaced) for name, replaced in accelerator.items()]
    places += [(torch._C, "_get_accelerator", value(torch.device("cuda"))), (torch._C, "_host_emptyCache", nothing),
               (torch, "Stream", streams.type), (torch, "Event", Event), (torch, "Generator", Generator),
               (torch.cuda.graph, "default_capture_stream", None)]
    for module in ("memory", "random", "streams", "graphs", "profiler"):  # modules that import them from there
        there = sys.modules.get(f"torch.cuda.{module}")
        places += [(there, name, replaced) for name, replaced in cuda.items() if hasattr(there, name)]
    places.append((torch.backends.cudnn, "is_acceptable", value(False)))  # recurrent layers would ask the library
    nvtx = ("range_push", "range_pop", "range_start", "range_end", "mark")
    places += [(torch.cuda.nvtx, name, value(0)) for name in nvtx]
    return places


def _refused(name: str) -> Any:
    """A class, for programs that call it and for those that ask isinstance."""
    def refuse(*_: Any, **__: Any) -> None:
        raise Unsupported(f"{name}: not possible without a GPU; leave it out while you record "
                          "(torch.cuda.get_device_name() is 'recorded without a GPU')")

    return type(name.rpartition(".")[2], (), {"__init__": refuse})


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
