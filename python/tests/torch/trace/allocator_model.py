# SPDX-License-Identifier: Apache-2.0
"""The model of PyTorch's caching allocator, called for a file of torch.cuda.memory._dump_snapshot. Needs no PyTorch."""

import contextlib
import ctypes
import enum
import os
from collections.abc import Iterator

LIBRARIES = os.environ.get("BUCKETPOOL_LIBRARY_PATH", "").split(os.pathsep)[0]


class Settings(ctypes.Structure):
    """bp_caching_settings."""

    _fields_ = [("expandable_segments", ctypes.c_bool), ("max_split_bytes", ctypes.c_uint64),
                ("max_rounding_bytes", ctypes.c_uint64), ("large_segment_bytes", ctypes.c_uint64),
                ("roundup_power2_divisions", ctypes.c_uint64 * 16), ("garbage_collection_threshold", ctypes.c_double),
                ("limit_bytes", ctypes.c_uint64), ("device_bytes", ctypes.c_uint64)]


class Counters(ctypes.Structure):
    """bp_caching_counters."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "reserved_bytes", "peak_reserved_bytes", "active_bytes", "peak_active_bytes", "requested_bytes",
        "peak_requested_bytes", "segments", "device_allocations", "device_releases", "retries", "failures")]


class Oddities(ctypes.Structure):
    """bp_play_oddities."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "frees_without_alloc", "allocs_over_live", "unclear_releases", "unclear_failures", "unknown_events",
        "contradictions")]


class DepartureKind(enum.IntEnum):
    BLOCK = 0
    CACHED = 1
    SEGMENT = 2
    MAPPING = 3
    RELEASE = 4
    FAILURE = 5
    TRACE = 6


class Departure(ctypes.Structure):
    """bp_departure."""

    _fields_ = [("event", ctypes.c_size_t), ("kind", ctypes.c_int), ("recorded", ctypes.c_uint64),
                ("modelled", ctypes.c_uint64)]


class Check(ctypes.Structure):
    """bp_check_result."""

    _fields_ = [("allocations", ctypes.c_size_t), ("segment_events", ctypes.c_size_t), ("departures", ctypes.c_size_t),
                ("stopped_at", ctypes.c_size_t), ("first", Departure), ("end_agrees", ctypes.c_bool),
                ("counters", Counters), ("oddities", Oddities)]

    def fault(self) -> str:
        """"" if the model reproduced the trace, else the first difference."""
        first, odd = self.first, self.oddities
        if self.departures:
            return (f"{self.departures} departures, first {DepartureKind(first.kind).name} at event {first.event}: "
                    f"recorded {first.recorded:#x}, modelled {first.modelled:#x}")
        for name in ("frees_without_alloc", "allocs_over_live", "unknown_events", "contradictions"):
            if getattr(odd, name):
                return f"{name}: {getattr(odd, name)}"
        return "" if self.end_agrees else "the blocks of the snapshot differ"


class Options(ctypes.Structure):
    """bp_play_options."""

    _fields_ = [("settings", Settings), ("live_at_start", ctypes.c_bool), ("empty_cache", ctypes.c_bool),
                ("unclear_releases", ctypes.c_int), ("reserved_bytes", ctypes.c_void_p), ("active_bytes", ctypes.c_void_p),
                ("requested_bytes", ctypes.c_void_p), ("visit_event", ctypes.c_size_t), ("visit", ctypes.c_void_p),
                ("visit_user", ctypes.c_void_p)]


class Played(ctypes.Structure):
    """bp_play_result."""

    _fields_ = [("counters", Counters), ("peak_event", ctypes.c_size_t), ("live_at_start_bytes", ctypes.c_uint64),
                ("failed_bytes", ctypes.c_uint64), ("empty_caches", ctypes.c_uint64), ("oddities", Oddities)]


class TraceFileInfo(ctypes.Structure):
    """bp_trace_file_info."""

    _fields_ = [("trace_count", ctypes.c_size_t), ("traces", ctypes.c_void_p)]


core = ctypes.CDLL(os.path.join(LIBRARIES, "libbucketpool.so"))
model = ctypes.CDLL(os.path.join(LIBRARIES, "..", "tests", "libstep_allocator.so"))
formats = ctypes.CDLL(os.path.join(LIBRARIES, "libbucketpool-formats.so"))
core.bp_error_detail.restype = ctypes.c_char_p
formats.bp_trace_file_get_info.restype = ctypes.POINTER(TraceFileInfo)


def succeed(status: int) -> None:
    if status != 0:
        raise RuntimeError(core.bp_error_detail().decode())


@contextlib.contextmanager
def only_trace(path: str) -> Iterator[ctypes.c_void_p]:
    file = ctypes.c_void_p()
    succeed(formats.bp_trace_file_read(path.encode(), ctypes.byref(file)))
    info = formats.bp_trace_file_get_info(file).contents
    assert info.trace_count == 1, info.trace_count
    yield ctypes.c_void_p(info.traces)
    formats.bp_trace_file_destroy(ctypes.byref(file))


def check(path: str, limit_bytes: int = 0, **settings: int) -> Check:
    """Plays the snapshot's only trace from its recorded state. `settings` replace those that a snapshot lacks."""
    used, result = Settings(), Check()
    with only_trace(path) as trace:
        model.bp_caching_settings_read(trace, ctypes.byref(used))
        used.limit_bytes = limit_bytes
        for name, value in settings.items():
            setattr(used, name, value)
        succeed(model.bp_play_check(trace, ctypes.byref(used), ctypes.c_size_t(8), None, ctypes.byref(result)))
    return result


def play(path: str, device_bytes: int = 0) -> Played:
    """Plays the snapshot's only trace through a new allocator on a device of this size; 0: unlimited."""
    options, result = Options(), Played()
    with only_trace(path) as trace:
        model.bp_play_options_init(ctypes.byref(options), trace)
        options.settings.device_bytes = device_bytes
        succeed(model.bp_play(trace, ctypes.byref(options), ctypes.byref(result)))
    return result
