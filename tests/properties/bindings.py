"""The library through ctypes: the declarations that the property tests need, written by hand from include/bucketpool.

Tests call the C functions by their own names (`lib.bp_pool_acquire`), so that a failing example reads like the header.
Functions return the status; `check` turns one that must be BP_OK into an exception with the library's own sentence."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

# bp_status
OK = 0
INVALID_ARGUMENT = 1
NO_DEVICE_MEMORY = 3
SCHEDULE = 5
UNSUPPORTED = 7
INFEASIBLE = 9
MISMATCH = 12

# bp_dtype
NONE, FP32, FP16, BF16, FP8, FP4, UINT8, INT64 = 0, 2, 3, 4, 5, 10, 13, 20

# bp_role
ROLE_PARAM, ROLE_GRAD, ROLE_STATE, ROLE_MAIN_GRAD, ROLE_OPTIMIZER = 0, 2, 4, 5, 6

# bp_policy, bp_fallback
POLICY_DYNAMIC, POLICY_FIXED, POLICY_MAX, POLICY_SCHEDULED = 1, 2, 3, 4
FALLBACK_PERSISTENT, FALLBACK_DYNAMIC = 1, 2

# bp_bucketing, bp_padding
BUCKETING_GIVEN, PADDING_GIVEN = 3, 4

# bp_allocator, bp_selection, bp_strict, bp_guard
ALLOCATOR_PLAN, ALLOCATOR_DYNAMIC, ALLOCATOR_FIXED_POOL, ALLOCATOR_MAX_POOL, ALLOCATOR_SCHEDULED = 0, 1, 2, 3, 4
SELECT_ASSIGNED, SELECT_ANY = 1, 2
STRICT_OFF, STRICT_WARN, STRICT_ERROR = 1, 2, 3
GUARD_OFF = 1

# bp_placement, bp_zero, lanes
PLANNED, PERSISTENT, DYNAMIC = 1, 2, 3
ZERO_NOTHING, ZERO_PADDING, ZERO_ALL = 0, 1, 2
LANE_GATHER, LANE_COMPUTE, LANE_REDUCE = 0, 1, 2
LANE_COUNT, LANE_ANY = 16, 0xFFFFFFFF
HOLD_STREAMS = 8
MOST_HOLDS = 65535
EXACT_POINTS = 255  # release points up to this many releases of their stream old are exact

# bp_pack_outcome
PACK_PLACED, PACK_INFEASIBLE, PACK_NOT_FOUND = 1, 2, 3

# bp_pool_event_kind
EVENT_ACQUIRE, EVENT_HOLD, EVENT_USE, EVENT_UNHOLD, EVENT_RELEASE, EVENT_GIVE_UP = 1, 2, 3, 4, 5, 6


class Sized(ctypes.Structure):
    """A struct that starts with its own size, as all of the library's do."""

    def __init__(self, **values):
        super().__init__(size=ctypes.sizeof(self), **values)


def sized_array(kind, count):
    """An array of output structs whose sizes are set."""
    array = (kind * count)()
    for entry in array:
        entry.size = ctypes.sizeof(kind)
    return array


class HostConfig(Sized):
    _fields_ = [("size", c_size_t), ("memory_bytes", c_uint64), ("granularity", c_uint64), ("queue_length", c_uint32),
                ("max_delay_us", c_uint32), ("delay_seed", c_uint64)]


class DeviceOps(Sized):
    """bp_device_ops, its functions as plain addresses: observed.py replaces some of them."""

    _fields_ = [("size", c_size_t), ("version", c_uint32), ("name", c_char_p)] + [(name, c_void_p) for name in (
        "destroy", "traits", "reserve", "unreserve", "commit", "decommit", "map", "unmap", "protect", "allocate",
        "free", "stream_create", "stream_import", "stream_destroy", "stream_synchronize", "synchronize", "call",
        "fill", "copy", "event_create", "event_destroy", "event_record", "stream_wait", "event_synchronize",
        "stream_native", "pin", "unpin", "capture_of", "graph_begin", "graph_end", "graph_launch", "graph_destroy")]


class GivenBucket(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("unit", c_int32), ("dtype", c_uint32), ("numel", c_uint64),
                ("padded_numel", c_uint64), ("expert", c_uint32), ("frozen", c_uint32), ("roles", c_uint32)]


class BucketsConfig(Sized):
    _fields_ = [("size", c_size_t), ("bucketing", c_uint32), ("padding", c_uint32), ("dp", c_uint32), ("ep", c_uint32),
                ("flat_alignment", c_uint64), ("param_dtype", c_uint32), ("grad_dtype", c_uint32),
                ("grad_comm_dtype", c_uint32), ("roles", c_uint32), ("main_grad_dtype", c_uint32),
                ("optimizer_dtype", c_uint32), ("optimizer_tensors", c_uint32)]


class Bucket(Sized):
    _fields_ = [("size", c_size_t), ("unit", c_int32), ("ordinal", c_uint32), ("name", c_char_p), ("dtype", c_uint32),
                ("numel", c_uint64), ("padded_numel", c_uint64), ("expert", c_uint32), ("frozen", c_uint32),
                ("shards", c_uint32), ("parameter_count", c_uint32), ("grad_numel", c_uint64),
                ("grad_padded_numel", c_uint64)]


class Request(Sized):
    _fields_ = [("size", c_size_t), ("bucket", c_uint32), ("role", c_uint32), ("dtype", c_uint32), ("numel", c_uint64),
                ("bytes", c_uint64)]


class UnitPrefetch(ctypes.Structure):
    _fields_ = [("unit", c_uint32), ("forward", c_uint32), ("backward", c_uint32)]


class ScheduleConfig(Sized):
    _fields_ = [("size", c_size_t), ("prefetch", c_uint32), ("grad_units", c_uint32), ("passes", c_uint32),
                ("prefetch_backward", c_uint32), ("keep_after_forward", c_uint32), ("recompute", c_uint32),
                ("streams", c_uint32), ("outside", c_uint32), ("microbatches", c_uint32), ("combined", c_uint32),
                ("override_count", c_uint32), ("overrides", POINTER(UnitPrefetch))]


class TradeConfig(Sized):
    _fields_ = [("size", c_size_t), ("stalls", c_uint32), ("roles", c_uint32), ("joint", c_uint32),
                ("alignment", c_uint64)]


class Wait(Sized):
    _fields_ = [("size", c_size_t), ("step", c_uint32), ("waits", c_uint32), ("waits_for", c_uint32),
                ("exposed_bytes", c_uint64)]


class Step(Sized):
    _fields_ = [("size", c_size_t), ("phase", c_uint32), ("unit", c_int32), ("forward_unit", c_int32)]


class Interval(ctypes.Structure):
    _fields_ = [("begin", c_uint32), ("end", c_uint32)]


class PlanConfig(Sized):
    _fields_ = [("size", c_size_t), ("policy", c_uint32), ("copies", c_uint32), ("fallback", c_uint32),
                ("alignment", c_uint64), ("joint", c_uint32), ("work", c_uint64)]


class PlanSummary(Sized):
    _fields_ = [("size", c_size_t), ("policy", c_uint32), ("copies", c_uint32), ("feasible", c_uint32),
                ("stable", c_uint32), ("optimal", c_uint32), ("alignment", c_uint64), ("bytes", c_uint64),
                ("lower_bound_bytes", c_uint64), ("infeasible_because", c_char_p)]


class PlanRole(Sized):
    _fields_ = [("size", c_size_t), ("role", c_uint32), ("copies", c_uint32), ("bytes", c_uint64),
                ("pool_bytes", c_uint64), ("persistent_bytes", c_uint64), ("dynamic_bytes", c_uint64),
                ("lower_bound_bytes", c_uint64), ("lower_bound_step", c_uint32), ("buffers", c_size_t),
                ("live_units", c_uint32), ("roles", c_uint32), ("proven_bytes", c_uint64),
                ("optimal", c_uint32), ("method", c_char_p)]


class PlanSlab(Sized):
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("group", c_char_p)]


class Assignment(Sized):
    _fields_ = [("size", c_size_t), ("unit", c_char_p), ("bucket", c_char_p), ("unit_index", c_uint32),
                ("ordinal", c_uint32), ("role", c_uint32), ("dtype", c_uint32), ("slab", c_uint32),
                ("offset", c_uint64), ("bytes", c_uint64), ("predecessors", POINTER(c_uint32)),
                ("predecessor_count", c_size_t)]


class PlanClass(Sized):
    _fields_ = [("size", c_size_t), ("slab", c_uint32), ("dtype", c_uint32), ("copies", c_uint32), ("offset", c_uint64),
                ("stride", c_uint64), ("bytes", c_uint64)]


MessageFunction = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)


class PoolConfig(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("allocator", c_uint32), ("selection", c_uint32),
                ("strict", c_uint32), ("guard", c_uint32), ("capture_check", c_uint32), ("annotate", c_uint32),
                ("extra_requests", c_uint32), ("persistent_bytes", c_uint64), ("overflow_bytes", c_uint64),
                ("fingerprint", c_char_p), ("on_message", MessageFunction), ("user", c_void_p)]


class Bind(Sized):
    _fields_ = [("size", c_size_t), ("unit", c_char_p), ("ordinal", c_uint32), ("role", c_uint32), ("dtype", c_uint32),
                ("bytes", c_uint64), ("used_bytes", c_uint64), ("placement", c_uint32), ("zero", c_uint32),
                ("acquire_lane", c_uint32)]


class Statistics(Sized):
    COUNTS = ("slab_bytes", "requests", "acquires", "repeated", "releases", "given_up", "said_no", "refused", "records",
              "elided", "waits", "deviations", "overflows", "dynamic", "live_requests", "live_bytes", "peak_live_bytes")
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in COUNTS]


class LiveRequest(Sized):
    _fields_ = [("size", c_size_t), ("id", c_uint32), ("role", c_uint32), ("ordinal", c_uint32), ("holds", c_uint32),
                ("unit", c_char_p), ("stream", c_char_p), ("address", c_void_p), ("bytes", c_uint64),
                ("acquire_number", c_uint64), ("step", c_uint64)]


class PoolEvent(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_uint32), ("id", c_uint32), ("stream", c_uint32), ("step", c_uint64),
                ("time_ns", c_uint64), ("address", c_void_p)]


class PoolSlab(Sized):
    _fields_ = [("size", c_size_t), ("address", c_void_p), ("bytes", c_uint64), ("planned_bytes", c_uint64),
                ("group", c_char_p), ("resident", c_int32)]


class PackConfig(Sized):
    _fields_ = [("size", c_size_t), ("capacity", c_uint64), ("work", c_uint64), ("known", POINTER(c_uint64))]


class PackResult(Sized):
    _fields_ = [("size", c_size_t), ("outcome", c_uint32), ("optimal", c_uint32), ("bytes", c_uint64),
                ("bound", c_uint64), ("proven", c_uint64), ("work", c_uint64), ("method", c_char_p)]


HANDLE = c_void_p  # every opaque object
OUT = POINTER(HANDLE)
IDS = POINTER(c_uint32)
ADDRESSES = POINTER(c_void_p)

# Functions that return a status, with their arguments.
STATUS_FUNCTIONS = {
    "bp_device_create_host": [POINTER(HostConfig), OUT],
    "bp_device_create_null": [OUT],
    "bp_device_create": [POINTER(DeviceOps), c_void_p, OUT],
    "bp_device_synchronize": [HANDLE],
    "bp_stream_create": [HANDLE, c_char_p, OUT],
    "bp_stream_synchronize": [HANDLE],
    "bp_stream_call": [HANDLE, c_void_p, c_void_p],
    "bp_stream_fill": [HANDLE, c_void_p, c_uint8, c_uint64],
    "bp_stream_copy": [HANDLE, c_void_p, c_void_p, c_uint64],
    "bp_stream_wait": [HANDLE, HANDLE],
    "bp_event_create": [HANDLE, OUT],
    "bp_event_record": [HANDLE, HANDLE],
    "bp_event_synchronize": [HANDLE],
    "bp_model_create": [c_char_p, OUT],
    "bp_model_add_unit": [HANDLE, c_char_p, c_int32, POINTER(c_uint32)],
    "bp_model_add_bucket": [HANDLE, POINTER(GivenBucket)],
    "bp_buckets_config_init": [POINTER(BucketsConfig), c_size_t],
    "bp_buckets_create": [HANDLE, POINTER(BucketsConfig), OUT],
    "bp_buckets_get": [HANDLE, c_size_t, POINTER(Bucket)],
    "bp_buckets_request": [HANDLE, c_size_t, POINTER(Request)],
    "bp_schedule_config_init": [POINTER(ScheduleConfig), c_size_t],
    "bp_schedule_create_training": [HANDLE, POINTER(ScheduleConfig), OUT],
    "bp_schedule_create_united": [OUT, c_size_t, OUT],
    "bp_schedule_create_traded": [HANDLE, HANDLE, POINTER(TradeConfig), OUT],
    "bp_schedule_step": [HANDLE, c_size_t, POINTER(Step)],
    "bp_schedule_wait": [HANDLE, c_size_t, POINTER(Wait)],
    "bp_trade_config_init": [POINTER(TradeConfig), c_size_t],
    "bp_plan_config_init": [POINTER(PlanConfig), c_size_t],
    "bp_plan_create": [HANDLE, HANDLE, POINTER(PlanConfig), OUT],
    "bp_plan_summary_get": [HANDLE, POINTER(PlanSummary)],
    "bp_plan_role_get": [HANDLE, c_size_t, POINTER(PlanRole)],
    "bp_plan_slab_get": [HANDLE, c_size_t, POINTER(PlanSlab)],
    "bp_plan_class_get": [HANDLE, c_size_t, POINTER(PlanClass)],
    "bp_plan_assignment_get": [HANDLE, c_size_t, POINTER(Assignment)],
    "bp_plan_check": [HANDLE, HANDLE, HANDLE],
    "bp_plan_fingerprint": [HANDLE, ctypes.c_char * 65],
    "bp_plan_builder_create": [POINTER(PlanSummary), OUT],
    "bp_plan_builder_add_slab": [HANDLE, POINTER(PlanSlab)],
    "bp_plan_builder_add_assignment": [HANDLE, POINTER(Assignment)],
    "bp_plan_builder_finish": [OUT, OUT],
    "bp_packing_create": [OUT],
    "bp_packing_add_item": [HANDLE, c_uint64, POINTER(c_size_t)],
    "bp_packing_add_interval": [HANDLE, c_size_t, c_uint64, c_uint64],
    "bp_packing_add_conflict": [HANDLE, c_size_t, c_size_t],
    "bp_packing_bound": [HANDLE, IDS, POINTER(c_size_t), POINTER(c_uint64)],
    "bp_packing_check": [HANDLE, POINTER(c_uint64), c_uint64],
    "bp_pack_config_init": [POINTER(PackConfig), c_size_t],
    "bp_pack": [HANDLE, POINTER(PackConfig), POINTER(c_uint64), POINTER(PackResult)],
    "bp_pool_config_init": [POINTER(PoolConfig), c_size_t],
    "bp_pool_create": [HANDLE, HANDLE, POINTER(PoolConfig), OUT],
    "bp_bind_init": [POINTER(Bind), c_size_t],
    "bp_pool_bind": [HANDLE, POINTER(Bind), POINTER(c_uint32)],
    "bp_pool_bind_buckets": [HANDLE, HANDLE, c_int, IDS],
    "bp_pool_set_lane": [HANDLE, c_uint32, HANDLE],
    "bp_pool_address": [HANDLE, c_uint32, ADDRESSES, POINTER(c_uint64)],
    "bp_pool_acquire": [HANDLE, IDS, c_size_t, HANDLE, ADDRESSES],
    "bp_pool_try_acquire": [HANDLE, IDS, c_size_t, HANDLE, ADDRESSES, POINTER(c_int)],
    "bp_pool_can_acquire": [HANDLE, IDS, c_size_t, IDS, c_size_t, POINTER(c_int)],
    "bp_pool_use": [HANDLE, IDS, c_size_t, HANDLE],
    "bp_pool_release": [HANDLE, IDS, c_size_t, HANDLE],
    "bp_pool_give_up": [HANDLE, IDS, c_size_t],
    "bp_pool_seal": [HANDLE],
    "bp_pool_allow_overflow": [HANDLE, c_int],
    "bp_pool_statistics_get": [HANDLE, POINTER(Statistics)],
    "bp_pool_live": [HANDLE, POINTER(LiveRequest), c_size_t, POINTER(c_size_t)],
    "bp_pool_dump": [HANDLE, c_char_p, c_size_t, POINTER(c_size_t)],
    "bp_pool_sequence": [HANDLE, POINTER(c_uint64), POINTER(c_uint64)],
    "bp_pool_trace_start": [HANDLE, c_size_t, c_int],
    "bp_pool_trace_get": [HANDLE, c_size_t, POINTER(PoolEvent)],
    "bp_pool_slab_get": [HANDLE, c_size_t, POINTER(PoolSlab)],
}

# The others: what they return, and their arguments.
OTHER_FUNCTIONS = {
    "bp_status_name": (c_char_p, [c_int]),
    "bp_error_detail": (c_char_p, []),
    "bp_device_table": (POINTER(DeviceOps), [HANDLE, POINTER(c_void_p)]),
    "bp_device_destroy": (None, [OUT]),
    "bp_stream_destroy": (None, [OUT]),
    "bp_event_destroy": (None, [OUT]),
    "bp_model_destroy": (None, [OUT]),
    "bp_buckets_destroy": (None, [OUT]),
    "bp_buckets_request_count": (c_size_t, [HANDLE]),
    "bp_buckets_unit_name": (c_char_p, [HANDLE, c_size_t]),
    "bp_schedule_destroy": (None, [OUT]),
    "bp_schedule_step_count": (c_size_t, [HANDLE]),
    "bp_schedule_wait_count": (c_size_t, [HANDLE]),
    "bp_schedule_intervals": (POINTER(Interval), [HANDLE, c_size_t, POINTER(c_size_t)]),
    "bp_plan_destroy": (None, [OUT]),
    "bp_plan_role_count": (c_size_t, [HANDLE]),
    "bp_plan_slab_count": (c_size_t, [HANDLE]),
    "bp_plan_class_count": (c_size_t, [HANDLE]),
    "bp_plan_assignment_count": (c_size_t, [HANDLE]),
    "bp_packing_destroy": (None, [OUT]),
    "bp_packing_item_count": (c_size_t, [HANDLE]),
    "bp_packing_item_size": (c_uint64, [HANDLE, c_size_t]),
    "bp_pool_destroy": (None, [OUT]),
    "bp_pool_allocator_name": (c_char_p, [HANDLE]),
    "bp_pool_is_sealed": (c_int, [HANDLE]),
    "bp_pool_set_step": (None, [HANDLE, c_uint64]),
    "bp_pool_trace_stop": (None, [HANDLE]),
    "bp_pool_trace_count": (c_size_t, [HANDLE]),
    "bp_pool_slab_count": (c_size_t, [HANDLE]),
}


class Refused(AssertionError):
    """A call that had to succeed did not."""

    def __init__(self, name: str, status: int, detail: str):
        super().__init__(f"{name}: {detail} (status {status})")
        self.status = status


def declare(lib, status_functions: dict, other_functions: dict) -> None:
    """A missing symbol fails here and not in the middle of a run."""
    for name, arguments in status_functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = c_int, arguments
    for name, (result, arguments) in other_functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def load(path: str) -> ctypes.CDLL:
    """The library with every function above declared."""
    lib = ctypes.CDLL(path)
    declare(lib, STATUS_FUNCTIONS, OTHER_FUNCTIONS)
    return lib


def detail(lib) -> str:
    return lib.bp_error_detail().decode(errors="replace")


def check(lib, status: int, name: str) -> None:
    if status != OK:
        raise Refused(name, status, detail(lib))


def made(lib, name: str, *arguments) -> c_void_p:
    """Calls a function whose last argument is the object it makes."""
    handle = c_void_p()
    check(lib, getattr(lib, name)(*arguments, ctypes.byref(handle)), name)
    return handle


def filled(lib, name: str, kind, *arguments):
    """Calls a getter whose last argument is the struct it fills."""
    struct = kind()
    check(lib, getattr(lib, name)(*arguments, ctypes.byref(struct)), name)
    return struct


def ids_array(ids):
    return (c_uint32 * max(1, len(ids)))(*ids)
