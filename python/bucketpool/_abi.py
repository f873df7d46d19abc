# SPDX-License-Identifier: Apache-2.0
"""The C interface, by its own names. Written by scripts/python_abi.py from include/bucketpool: change the headers, not
this file.

Each section names the header that documents it. Objects are c_void_p in fields and results, and typed pointers as
arguments, so that ctypes refuses another object; enumerations are plain integers. FUNCTIONS has, for each library, the
result and the arguments of its functions; _library.py declares them."""

from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_uint8, c_void_p, sizeof)
from typing import Any, Dict, List, Tuple


class Sized(Structure):
    """A struct that starts with its own size, which is set when it is made."""

    def __init__(self, **values: Any) -> None:
        super().__init__(size=sizeof(self), **values)


class Uncopied:
    """An object without copies and pickles: each would be another owner of the same object of the library."""

    __slots__ = ()

    def __copy__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied: it is one object of the "
                        "library; pass it on instead")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled: it exists in this process only; create it again "
                        "in the other one")


# ---- status.h ------------------------------------------------------------------------------------------------------

BP_OK = 0
BP_ERR_INVALID_ARGUMENT = 1
BP_ERR_NO_HOST_MEMORY = 2
BP_ERR_NO_DEVICE_MEMORY = 3
BP_ERR_NO_DEVICE = 4
BP_ERR_SCHEDULE = 5
BP_ERR_CAPTURE = 6
BP_ERR_UNSUPPORTED = 7
BP_ERR_OVERFLOW = 8
BP_ERR_INFEASIBLE = 9
BP_ERR_IO = 10
BP_ERR_FORMAT = 11
BP_ERR_MISMATCH = 12
BP_ERR_INTERNAL = 13
BP_ERR_DEVICE = 14
BP_ERR_COMM = 15
BP_ERR_TIMEOUT = 16

# ---- device.h ------------------------------------------------------------------------------------------------------

bp_host_function = CFUNCTYPE(None, c_void_p)


class bp_host_config(Sized):
    _fields_ = [("size", c_size_t), ("memory_bytes", c_uint64), ("granularity", c_uint64), ("queue_length", c_uint32),
                ("max_delay_us", c_uint32), ("delay_seed", c_uint64)]


class bp_device_usage(Sized):
    _fields_ = [("size", c_size_t), ("committed_bytes", c_uint64), ("peak_committed_bytes", c_uint64),
                ("allocated_bytes", c_uint64), ("peak_allocated_bytes", c_uint64), ("streams", c_uint64),
                ("events", c_uint64)]


# ---- dtype.h -------------------------------------------------------------------------------------------------------

BP_DTYPE_NONE = 0
BP_DTYPE_FP64 = 1
BP_DTYPE_FP32 = 2
BP_DTYPE_FP16 = 3
BP_DTYPE_BF16 = 4
BP_DTYPE_FP8_E4M3 = 5
BP_DTYPE_FP8_E5M2 = 6
BP_DTYPE_FP8_E8M0 = 7
BP_DTYPE_FP6_E2M3 = 8
BP_DTYPE_FP6_E3M2 = 9
BP_DTYPE_FP4_E2M1 = 10
BP_DTYPE_UINT4 = 11
BP_DTYPE_INT4 = 12
BP_DTYPE_UINT8 = 13
BP_DTYPE_INT8 = 14
BP_DTYPE_UINT16 = 15
BP_DTYPE_INT16 = 16
BP_DTYPE_UINT32 = 17
BP_DTYPE_INT32 = 18
BP_DTYPE_UINT64 = 19
BP_DTYPE_INT64 = 20
BP_DTYPE_BOOL = 21
BP_DTYPE_COMPLEX64 = 22
BP_DTYPE_COUNT = 23

# ---- model.h -------------------------------------------------------------------------------------------------------

BP_PARAMETER_FROZEN = 1
BP_PARAMETER_GEMM = 2
BP_PARAMETER_PREDICTION = 4
BP_PARAMETER_EXPERT_COPIES = 8
BP_PARAMETER_JOINT = 16
BP_LAYOUT_HF = 1
BP_LAYOUT_MEGATRON = 2
BP_LAYOUT_STACKED = 3
BP_ROLE_PARAM = 0
BP_ROLE_PARAM_TRANSPOSE = 1
BP_ROLE_GRAD = 2
BP_ROLE_GRAD_COMM = 3
BP_ROLE_STATE = 4
BP_ROLE_MAIN_GRAD = 5
BP_ROLE_OPTIMIZER = 6
BP_BUCKETING_MEGATRON = 1
BP_BUCKETING_FSDP2 = 2
BP_BUCKETING_GIVEN = 3
BP_PADDING_BY_BUCKETING = 0
BP_PADDING_MEGATRON_LCM = 1
BP_PADDING_MEGATRON_SPLIT = 2
BP_PADDING_FLAT = 3
BP_PADDING_GIVEN = 4
BP_PADDING_FSDP2 = 5
BP_PADDING_FSDP2_SHARD1 = 6
BP_MAX_DIMS = 8
BP_MAX_COPIES = 0x100000
BP_OUTSIDE = -1
BP_MODEL_EVENT_NO_LANE = 0xffffffff
BP_ROLE_COUNT = 7
BP_ROLES_STATE = 112


class bp_parameter(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("unit", c_int32), ("dims", c_uint32), ("shape", c_uint64 * 8),
                ("dtype", c_int), ("flags", c_uint32), ("copies", c_uint32), ("tp_dim", c_int32),
                ("tp_parts", c_uint32), ("expert_dim", c_int32)]


class bp_given_bucket(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("unit", c_int32), ("dtype", c_int), ("numel", c_uint64),
                ("padded_numel", c_uint64), ("expert", c_uint32), ("frozen", c_uint32), ("roles", c_uint32)]


class bp_model_event(Sized):
    _fields_ = [("size", c_size_t), ("acquire", c_uint32), ("unit", c_int32), ("bucket", c_int32), ("role", c_uint32),
                ("lane", c_uint32)]


class bp_unit(Structure):
    _fields_ = [("name", c_char_p), ("parent", c_int32)]


class bp_model_info(Structure):
    _fields_ = [("name", c_char_p), ("unit_count", c_size_t), ("units", POINTER(bp_unit)),
                ("parameter_count", c_size_t), ("parameters", POINTER(POINTER(bp_parameter))),
                ("given_bucket_count", c_size_t), ("given_buckets", POINTER(POINTER(bp_given_bucket))),
                ("event_count", c_size_t), ("events", POINTER(POINTER(bp_model_event))), ("order_count", c_size_t),
                ("order", POINTER(c_uint32)), ("note_count", c_size_t), ("notes", POINTER(c_char_p)),
                ("numel", c_uint64), ("prediction_numel", c_uint64), ("published", c_uint32)]


class bp_buckets_config(Sized):
    _fields_ = [("size", c_size_t), ("bucketing", c_int), ("padding", c_int), ("dp", c_uint32), ("ep", c_uint32),
                ("flat_alignment", c_uint64), ("param_dtype", c_int), ("grad_dtype", c_int), ("grad_comm_dtype", c_int),
                ("roles", c_uint32), ("main_grad_dtype", c_int), ("optimizer_dtype", c_int),
                ("optimizer_tensors", c_uint32), ("single_rank", c_uint32)]


class bp_bucket(Structure):
    _fields_ = [("name", c_char_p), ("numel", c_uint64), ("padded_numel", c_uint64), ("grad_numel", c_uint64),
                ("grad_padded_numel", c_uint64), ("unit", c_int32), ("ordinal", c_uint32), ("dtype", c_int),
                ("grad_dtype", c_int), ("expert", c_uint32), ("frozen", c_uint32), ("shards", c_uint32),
                ("parameter_count", c_uint32), ("roles", c_uint32)]


class bp_request(Structure):
    _fields_ = [("numel", c_uint64), ("bytes", c_uint64), ("bucket", c_uint32), ("role", c_uint32), ("dtype", c_int)]


class bp_buckets_info(Structure):
    _fields_ = [("unit_count", c_size_t), ("units", POINTER(bp_unit)), ("bucket_count", c_size_t),
                ("buckets", POINTER(bp_bucket)), ("request_count", c_size_t), ("requests", POINTER(bp_request)),
                ("persistent_bytes", c_uint64), ("root", c_int32)]


# ---- schedule.h ----------------------------------------------------------------------------------------------------

BP_PHASE_FORWARD = 0
BP_PHASE_BACKWARD = 1
BP_PHASE_RECORDED = 2
BP_PHASE_OUTSIDE = 3
BP_PHASE_BACKWARD_GATHER = 4
BP_PHASE_COMBINED = 5
BP_PHASE_REDUCE = 6
BP_LANE_GATHER = 0
BP_LANE_COMPUTE = 1
BP_LANE_REDUCE = 2
BP_LANE_OUTER_REDUCE = 3
BP_PASSES_TRAIN = 0
BP_PASSES_EVAL = 1
BP_PASSES_BOTH = 2
BP_STREAMS_SEPARATE = 0
BP_STREAMS_UNIFIED = 1
BP_OUTSIDE_PREFETCHES_NOTHING = 0
BP_OUTSIDE_PREFETCHES_SUCCESSOR = 1
BP_LANE_COUNT = 16
BP_LANE_ANY = 0xffffffff
BP_PREFETCH_SAME = 0xffffffff
BP_MAX_MICROBATCHES = 1024


class bp_unit_prefetch(Structure):
    _fields_ = [("unit", c_uint32), ("forward", c_uint32), ("backward", c_uint32)]


class bp_schedule_config(Sized):
    _fields_ = [("size", c_size_t), ("prefetch", c_uint32), ("grad_units", c_uint32), ("passes", c_int),
                ("prefetch_backward", c_uint32), ("keep_after_forward", c_uint32), ("recompute", c_uint32),
                ("streams", c_int), ("outside", c_int), ("microbatches", c_uint32), ("combined", c_uint32),
                ("override_count", c_uint32), ("overrides", POINTER(bp_unit_prefetch))]


class bp_recorded_config(Sized):
    _fields_ = [("size", c_size_t), ("overlap_window", c_uint32), ("partial", c_uint32)]


class bp_step(Structure):
    _fields_ = [("phase", c_int), ("unit", c_int32), ("forward_unit", c_int32)]


class bp_interval(Structure):
    _fields_ = [("begin", c_uint32), ("end", c_uint32)]


class bp_scheduled_request(Structure):
    _fields_ = [("intervals", POINTER(bp_interval)), ("interval_count", c_size_t)]


class bp_overlap(Structure):
    _fields_ = [("earlier", c_uint32), ("later", c_uint32)]


class bp_schedule_event(Structure):
    _fields_ = [("step", c_uint32), ("acquire", c_uint32), ("lane", c_uint32), ("first_request", c_uint32),
                ("request_count", c_uint32)]


class bp_schedule_info(Structure):
    _fields_ = [("step_count", c_size_t), ("steps", POINTER(bp_step)), ("request_count", c_size_t),
                ("requests", POINTER(bp_scheduled_request)), ("overlap_count", c_size_t),
                ("overlaps", POINTER(bp_overlap)), ("event_count", c_size_t), ("events", POINTER(bp_schedule_event))]


# ---- plan.h --------------------------------------------------------------------------------------------------------

BP_POLICY_DYNAMIC = 1
BP_POLICY_FIXED = 2
BP_POLICY_MAX = 3
BP_POLICY_SCHEDULED = 4
BP_FALLBACK_PERSISTENT = 1
BP_FALLBACK_DYNAMIC = 2
BP_PLACE_NONE = 0
BP_PLACE_PLANNED = 1
BP_PLACE_PERSISTENT = 2
BP_PLACE_DYNAMIC = 3
BP_BUFFER_POOLED = 1
BP_BUFFER_PERSISTENT = 2
BP_BYTES_ANY = 0xffffffffffffffff
BP_FINGERPRINT_CHARS = 65


class bp_plan_config(Sized):
    _fields_ = [("size", c_size_t), ("policy", c_int), ("copies", c_uint32), ("fallback", c_int),
                ("alignment", c_uint64), ("joint", c_uint32), ("work", c_uint64)]


class bp_plan_request(Structure):
    _fields_ = [("unit", c_char_p), ("bucket", c_char_p), ("ordinal", c_uint32), ("role", c_uint32), ("dtype", c_int),
                ("placement", c_int), ("slab", c_uint32), ("offset", c_uint64), ("bytes", c_uint64),
                ("used_bytes", c_uint64)]


class bp_plan_slab(Structure):
    _fields_ = [("bytes", c_uint64), ("group", c_char_p)]


class bp_plan_class(Structure):
    _fields_ = [("slab", c_uint32), ("dtype", c_int), ("copies", c_uint32), ("offset", c_uint64), ("stride", c_uint64),
                ("bytes", c_uint64)]


class bp_plan_buffer(Structure):
    _fields_ = [("kind", c_int), ("dtype", c_int), ("rank", c_uint32), ("copies", c_uint32), ("bytes", c_uint64),
                ("set_by", c_uint32), ("users", c_uint32)]


class bp_plan_role(Structure):
    _fields_ = [("role", c_uint32), ("roles", c_uint32), ("copies", c_uint32), ("live_units", c_uint32),
                ("bytes", c_uint64), ("pool_bytes", c_uint64), ("persistent_bytes", c_uint64),
                ("dynamic_bytes", c_uint64), ("lower_bound_bytes", c_uint64), ("lower_bound_step", c_uint32),
                ("optimal", c_int32), ("proven_bytes", c_uint64), ("method", c_char_p), ("buffer_count", c_size_t),
                ("buffers", POINTER(bp_plan_buffer)), ("witness_count", c_size_t), ("witnesses", POINTER(c_uint32))]


class bp_plan_option(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class bp_plan_info(Structure):
    _fields_ = [("model", c_char_p), ("policy", c_int), ("copies", c_uint32), ("feasible", c_int32),
                ("stable", c_int32), ("optimal", c_int32), ("alignment", c_uint64), ("bytes", c_uint64),
                ("lower_bound_bytes", c_uint64), ("infeasible_because", c_char_p), ("request_count", c_size_t),
                ("requests", POINTER(bp_plan_request)), ("slab_count", c_size_t), ("slabs", POINTER(bp_plan_slab)),
                ("class_count", c_size_t), ("classes", POINTER(bp_plan_class)), ("role_count", c_size_t),
                ("roles", POINTER(bp_plan_role)), ("option_count", c_size_t), ("options", POINTER(bp_plan_option))]


# ---- pool.h --------------------------------------------------------------------------------------------------------

BP_STRICT_OFF = 1
BP_STRICT_WARN = 2
BP_STRICT_ERROR = 3
BP_GUARD_ENVIRONMENT = 0
BP_GUARD_OFF = 1
BP_GUARD_ON = 2
BP_ANNOTATE_ENVIRONMENT = 0
BP_ANNOTATE_OFF = 1
BP_ANNOTATE_ON = 2
BP_CAPTURE_CHECK_ENVIRONMENT = 0
BP_CAPTURE_CHECK_OFF = 1
BP_CAPTURE_CHECK_INSIDE = 2
BP_CAPTURE_CHECK_ALWAYS = 3
BP_ZERO_NOTHING = 0
BP_ZERO_PADDING = 1
BP_ZERO_ALL = 2
BP_EVENT_ACQUIRE = 1
BP_EVENT_REF = 2
BP_EVENT_USE = 3
BP_EVENT_UNREF = 4
BP_EVENT_RELEASE = 5
BP_EVENT_CANCEL = 6
BP_LIVE_STREAMS = 8
bp_message_function = CFUNCTYPE(None, c_void_p, c_char_p)


class bp_pool_config(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("strict", c_int), ("guard", c_int), ("capture_check", c_int),
                ("annotate", c_int), ("extra_requests", c_uint32), ("persistent_bytes", c_uint64),
                ("overflow_bytes", c_uint64), ("fingerprint", c_char_p), ("on_message", bp_message_function),
                ("user", c_void_p)]


class bp_pool_slab(Structure):
    _fields_ = [("address", c_void_p), ("bytes", c_uint64), ("planned_bytes", c_uint64), ("group", c_char_p)]


class bp_pool_info(Structure):
    _fields_ = [("name", c_char_p), ("policy", c_int), ("fingerprint", c_char_p), ("device", c_void_p),
                ("alignment", c_uint64), ("annotated", c_int32), ("guarded", c_int32), ("request_count", c_size_t),
                ("requests", POINTER(bp_plan_request)), ("slab_count", c_size_t), ("slabs", POINTER(bp_pool_slab))]


class bp_bind(Sized):
    _fields_ = [("size", c_size_t), ("unit", c_char_p), ("ordinal", c_uint32), ("role", c_uint32), ("dtype", c_int),
                ("bytes", c_uint64), ("used_bytes", c_uint64), ("placement", c_int)]


class bp_pool_statistics(Sized):
    _fields_ = [("size", c_size_t), ("slab_bytes", c_uint64), ("requests", c_uint64), ("acquires", c_uint64),
                ("repeated", c_uint64), ("releases", c_uint64), ("cancelled", c_uint64), ("busy", c_uint64),
                ("refused", c_uint64), ("records", c_uint64), ("elided", c_uint64), ("waits", c_uint64),
                ("deviations", c_uint64), ("overflows", c_uint64), ("dynamic", c_uint64), ("live_requests", c_uint64),
                ("live_bytes", c_uint64), ("peak_live_bytes", c_uint64)]


class bp_live_request(Sized):
    _fields_ = [("size", c_size_t), ("id", c_uint32), ("role", c_uint32), ("ordinal", c_uint32),
                ("references", c_uint32), ("unit", c_char_p), ("stream", c_char_p), ("address", c_void_p),
                ("bytes", c_uint64), ("acquire_number", c_uint64), ("step", c_uint64)]


class bp_pool_event(Sized):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("id", c_uint32), ("stream", c_uint32), ("step", c_uint64),
                ("time_ns", c_uint64), ("address", c_void_p)]


# ---- capture.h -----------------------------------------------------------------------------------------------------

BP_CAPTURE_COLLECTIVES_AUTO = 0
BP_CAPTURE_COLLECTIVES_NONE = 1
BP_CAPTURE_COLLECTIVES_ALL = 2


class bp_capture_config(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("owned", POINTER(c_uint32)), ("owned_count", c_size_t),
                ("collectives", c_int)]


class bp_capture_slab(Structure):
    _fields_ = [("slab", c_uint32), ("has_collectives", c_int32)]


class bp_capture_info(Structure):
    _fields_ = [("name", c_char_p), ("ended", c_int32), ("acquires", c_uint64), ("releases", c_uint64),
                ("waits", c_uint64), ("bytes", c_uint64), ("slabs", POINTER(bp_capture_slab)), ("slab_count", c_size_t),
                ("launches", c_uint64)]


# ---- comm.h --------------------------------------------------------------------------------------------------------

BP_REDUCE_SUM = 0
BP_REDUCE_MAX = 1
BP_REDUCE_MIN = 2
BP_REGISTER_NONE = 0
BP_REGISTER_BUFFER = 1
BP_REGISTER_WINDOW = 2
BP_REGISTER_SYMMETRIC = 3
BP_COMM_NO_TIMEOUT = 0xffffffff
BP_TRAFFIC_GATHER = 1
BP_TRAFFIC_REDUCE_SCATTER = 2
BP_TRAFFIC_FLOAT_AVG = 4
BP_TRAFFIC_IN_PLACE_RING = 8


class bp_comm_callbacks(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("ranks", c_uint32),
                ("exchange", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("all_gather", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("all_reduce", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, c_void_p)),
                ("reduce_scatter", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, c_void_p)),
                ("abort", CFUNCTYPE(c_int, c_void_p)), ("destroy", CFUNCTYPE(None, c_void_p))]


class bp_comm_info(Structure):
    _fields_ = [("name", c_char_p), ("version_name", c_char_p), ("rank", c_uint32), ("ranks", c_uint32)]


class bp_registration_entry(Sized):
    _fields_ = [("size", c_size_t), ("comm", c_void_p), ("group", c_char_p), ("kind", c_int), ("exact", c_int32),
                ("traffic", c_uint32)]


class bp_registration_window(Structure):
    _fields_ = [("slab", c_uint32), ("entry", c_uint32), ("address", c_void_p), ("bytes", c_uint64), ("asked", c_int),
                ("granted", c_int), ("handle", c_void_p), ("because", c_char_p)]


class bp_registration_warning(Structure):
    _fields_ = [("entry", c_uint32), ("text", c_char_p)]


class bp_registration_info(Structure):
    _fields_ = [("windows", POINTER(bp_registration_window)), ("window_count", c_size_t),
                ("warnings", POINTER(bp_registration_warning)), ("warning_count", c_size_t)]


# ---- comm_ops.h ----------------------------------------------------------------------------------------------------


class bp_comm_traits(Sized):
    _fields_ = [("size", c_size_t), ("rank", c_uint32), ("ranks", c_uint32), ("best", c_int), ("lacks", c_uint32),
                ("version", c_uint64), ("version_name", c_char_p), ("captures", c_int32)]


class bp_comm_ops(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("destroy", CFUNCTYPE(None, c_void_p)),
                ("traits", CFUNCTYPE(c_int, c_void_p, POINTER(bp_comm_traits))),
                ("exchange", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("all_gather", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("all_reduce", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, c_void_p)),
                ("reduce_scatter", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, c_void_p)),
                ("register_memory", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_int, POINTER(c_void_p),
                                              POINTER(c_char_p))),
                ("deregister_memory", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)),
                ("warnings", CFUNCTYPE(None, c_void_p, c_int, c_uint32, CFUNCTYPE(None, c_void_p, c_char_p), c_void_p)),
                ("abort", CFUNCTYPE(c_int, c_void_p))]


# ---- cp.h ----------------------------------------------------------------------------------------------------------

BP_CP_PACKED = 0
BP_CP_PADDED = 1
BP_CP_LOCAL = 2
BP_CP_GATHERED = 3
BP_CP_KEEP = 0
BP_CP_NEXT = 1
BP_CP_NEXT_WRAPPED = 2


class bp_cp_split_config(Sized):
    _fields_ = [("size", c_size_t), ("cu_seqlens", c_void_p), ("cu_padded", c_void_p), ("cu_dtype", c_int),
                ("sequences", c_uint64), ("ranks", c_uint32), ("rank", c_uint32), ("multiple", c_uint64),
                ("total_multiple", c_uint64), ("last_is_dummy", c_int32), ("comm", c_void_p)]


class bp_cp_split_info(Structure):
    _fields_ = [("ranks", c_uint32), ("rank", c_uint32), ("sequences", c_uint64), ("data_sequences", c_uint64),
                ("data_tokens", c_uint64), ("packed_tokens", c_uint64), ("padded_tokens", c_uint64),
                ("local_tokens", c_uint64), ("longest", c_uint64), ("fingerprint", c_uint64)]


class bp_cp_tensor(Structure):
    _fields_ = [("data", c_void_p), ("tokens", c_uint64), ("token_bytes", c_uint64), ("stride", c_int64)]


class bp_cp_config(Sized):
    _fields_ = [("size", c_size_t), ("comm", c_void_p), ("max_gathered_bytes", c_uint64), ("threads", c_uint32),
                ("trusting", c_int32)]


class bp_cp_rearrangement(Sized):
    _fields_ = [("size", c_size_t), ("from_order", c_int), ("to_order", c_int), ("from", bp_cp_tensor),
                ("to", bp_cp_tensor), ("shift", c_int), ("fill", c_uint8 * 16), ("fill_bytes", c_uint32)]


# ---- cuda.h --------------------------------------------------------------------------------------------------------

BP_CUDA_VIRTUAL = 0
BP_CUDA_PLAIN = 1


class bp_cuda_config(Sized):
    _fields_ = [("size", c_size_t), ("ordinal", c_int32), ("driver", c_char_p), ("memory", c_int),
                ("memory_bytes", c_uint64), ("no_fabric", c_int32)]


class bp_cuda_info(Structure):
    _fields_ = [("name", c_char * 64), ("ordinal", c_int32), ("driver_version", c_int32), ("compute_major", c_int32),
                ("compute_minor", c_int32), ("handle_types", c_int32), ("rdma", c_int32), ("peers", c_int32),
                ("stream_ordered", c_int32), ("recommended_granularity", c_uint64), ("multicast_granularity", c_uint64),
                ("total_bytes", c_uint64)]


# ---- device_ops.h --------------------------------------------------------------------------------------------------

BP_ACCESS_NONE = 0
BP_ACCESS_READ_WRITE = 1


class bp_device_traits(Sized):
    _fields_ = [("size", c_size_t), ("granularity", c_uint64), ("page_bytes", c_uint64), ("host_accessible", c_uint32),
                ("no_memory", c_uint32)]


class bp_device_ops(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("destroy", CFUNCTYPE(None, c_void_p)),
                ("traits", CFUNCTYPE(c_int, c_void_p, POINTER(bp_device_traits))),
                ("reserve", CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64, POINTER(c_void_p))),
                ("unreserve", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64)),
                ("commit", CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_uint64))),
                ("decommit", CFUNCTYPE(c_int, c_void_p, c_uint64)),
                ("map", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_uint64)),
                ("unmap", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64)),
                ("protect", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_int)),
                ("allocate", CFUNCTYPE(c_int, c_void_p, c_uint64, c_void_p, POINTER(c_void_p))),
                ("free", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64, c_void_p)),
                ("stream_create", CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))),
                ("stream_import", CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_void_p))),
                ("stream_destroy", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("stream_synchronize", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("synchronize", CFUNCTYPE(c_int, c_void_p)),
                ("call", CFUNCTYPE(c_int, c_void_p, c_void_p, bp_host_function, c_void_p)),
                ("fill", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_uint8, c_uint64)),
                ("copy", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_uint64)),
                ("event_create", CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))),
                ("event_destroy", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("event_record", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)),
                ("stream_wait", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)),
                ("event_synchronize", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("stream_native", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_uint64))),
                ("pin", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64)),
                ("unpin", CFUNCTYPE(c_int, c_void_p, c_void_p, c_uint64)),
                ("capture_of", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_uint64))),
                ("graph_begin", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("graph_end", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p))),
                ("graph_launch", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)),
                ("graph_destroy", CFUNCTYPE(c_int, c_void_p, c_void_p))]


# ---- dlpack.h ------------------------------------------------------------------------------------------------------


class bp_export_config(Sized):
    _fields_ = [("size", c_size_t), ("id", c_uint32), ("dtype", c_int), ("versioned", c_int32)]


# ---- step_plan.h ---------------------------------------------------------------------------------------------------

BP_STEP_ALLOCATE = 1
BP_STEP_FREE = 2
BP_STEP_MARK = 3
BP_STEP_ALIGNMENT = 512
BP_STEP_OUTSIDE = 0xffffffffffffffff
BP_STEP_NO_PLACE = 0xffffffff
BP_STEP_LEAD_AUTO = 0xffffffff
BP_STEP_PLAN_STREAMS = 32
BP_STEP_PLAN_KINDS = 8


class bp_step_plan_item(Structure):
    _fields_ = [("bytes", c_uint64), ("offset", c_uint64), ("stream", c_uint32), ("place", c_uint32),
                ("precedes_stream", c_uint32)]


class bp_step_plan_kind(Structure):
    _fields_ = [("items", POINTER(bp_step_plan_item)), ("item_count", c_size_t), ("marks", POINTER(c_uint32)),
                ("mark_count", c_size_t), ("is_first", c_uint32), ("steps", c_uint32), ("bytes", c_uint64),
                ("lower_bound_bytes", c_uint64), ("proven_bytes", c_uint64), ("method", c_char_p)]


class bp_step_plan_waits(Structure):
    _fields_ = [("waiting", c_uint32), ("before", c_uint32), ("waits", c_uint64)]


class bp_step_plan_info(Structure):
    _fields_ = [("bytes", c_uint64), ("bytes_without_windows", c_uint64), ("lower_bound_bytes", c_uint64),
                ("persistent_bytes", c_uint64), ("outside_bytes", c_uint64), ("peak_live_bytes", c_uint64),
                ("reserved_before_bytes", c_uint64), ("optimal", c_int), ("kinds", POINTER(bp_step_plan_kind)),
                ("kind_count", c_size_t), ("streams", POINTER(c_uint64)), ("stream_count", c_size_t),
                ("waits", POINTER(bp_step_plan_waits)), ("waits_count", c_size_t), ("places", POINTER(c_char_p)),
                ("place_count", c_size_t)]


class bp_step_event(Structure):
    _fields_ = [("address", c_uint64), ("bytes", c_uint64), ("stream", c_uint32), ("action", c_uint32)]


class bp_step_held(Structure):
    _fields_ = [("offset", c_uint64), ("bytes", c_uint64)]


class bp_step_plan_config(Sized):
    _fields_ = [("size", c_size_t), ("work", c_uint64), ("lead", c_uint32), ("is_from_start", c_uint32),
                ("held", POINTER(bp_step_held)), ("held_count", c_size_t), ("reserved_before_bytes", c_uint64)]


# ---- formats.h -----------------------------------------------------------------------------------------------------


class bp_reader_options(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("units", c_char_p), ("dtype", c_int), ("strict", c_uint32)]


# ---- logprob.h -----------------------------------------------------------------------------------------------------

BP_TARGETS_ERROR = 1
BP_TARGETS_MASK = 2
BP_KERNELS_PLAIN = 1
BP_KERNELS_AVX2 = 2
BP_KERNELS_AVX512 = 4
BP_KERNELS_NEON = 8
BP_KERNELS_ALL = 15
BP_LOGPROB_IGNORED = -100
BP_LOGPROB_IGNORE_NONE = -0x8000000000000000
BP_LOGPROB_MAX_TARGETS = 128


class bp_token_values(Structure):
    _fields_ = [("data", c_void_p), ("batch_stride", c_int64), ("stride", c_int64), ("step", c_int64)]


class bp_token_rows(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("batch", c_uint64), ("sequence", c_uint64),
                ("columns", c_uint64), ("batch_stride", c_int64), ("stride", c_int64)]


class bp_logprob_config(Sized):
    _fields_ = [("size", c_size_t), ("max_tokens", c_uint64), ("max_targets", c_uint32), ("vocab", c_uint64),
                ("vocab_start", c_uint64), ("comm", c_void_p), ("targets", c_int), ("threads", c_uint32),
                ("kernels", c_uint32)]


class bp_logprob_info(Structure):
    _fields_ = [("kernels", c_char_p), ("threads", c_uint32), ("workspace_bytes", c_uint64),
                ("planned_bytes", c_uint64), ("vocab", c_uint64), ("pool", c_void_p)]


class bp_logprob_tokens(Structure):
    _fields_ = [("target", bp_token_values), ("target_dtype", c_int), ("targets", c_uint32), ("mask", bp_token_values),
                ("temperature", c_float), ("soft_cap", c_float), ("temperatures", bp_token_values), ("rounding", c_int),
                ("ignore_index", c_int64)]


class bp_logprob_batch(Sized):
    _fields_ = [("size", c_size_t), ("logits", bp_token_rows), ("tokens", bp_logprob_tokens)]


class bp_logprob_outputs(Sized):
    _fields_ = [("size", c_size_t), ("logprob", bp_token_values), ("entropy", bp_token_values),
                ("logsumexp", bp_token_values), ("mean_logprob", bp_token_values), ("saved", c_void_p),
                ("saved_bytes", c_uint64)]


class bp_logprob_gradients(Sized):
    _fields_ = [("size", c_size_t), ("logprob_grad", bp_token_values), ("entropy_grad", bp_token_values),
                ("logsumexp_grad", bp_token_values), ("mean_logprob_grad", bp_token_values), ("saved", c_void_p),
                ("saved_bytes", c_uint64), ("logits_grad", bp_token_rows), ("in_place", c_int32)]


class bp_logprob_divergence_args(Sized):
    _fields_ = [("size", c_size_t), ("reference", bp_token_rows), ("beta", c_float), ("saved", c_void_p),
                ("saved_bytes", c_uint64), ("divergence", bp_token_values), ("divergence_grad", bp_token_values),
                ("logits_grad", bp_token_rows), ("in_place", c_int32)]


# ---- lm_head.h -----------------------------------------------------------------------------------------------------

BP_LM_HEAD_FORWARD = 1
BP_LM_HEAD_BACKWARD = 2
BP_LM_HEAD_ONE_CALL = 4
BP_LM_HEAD_KEPT = 8


class bp_lm_head_config(Sized):
    _fields_ = [("size", c_size_t), ("max_tokens", c_uint64), ("max_targets", c_uint32), ("hidden", c_uint64),
                ("vocab", c_uint64), ("vocab_start", c_uint64), ("dtype", c_int), ("chunk", c_int64),
                ("memory_bytes", c_uint64), ("comm", c_void_p), ("targets", c_int), ("threads", c_uint32),
                ("kernels", c_uint32), ("passes", c_uint32), ("partial_hidden_grad", c_int32)]


class bp_lm_head_sizes(Sized):
    _fields_ = [("size", c_size_t), ("forward_tokens", c_uint64), ("backward_tokens", c_uint64),
                ("one_call_tokens", c_uint64), ("backward_columns", c_uint64), ("piece_tokens", c_uint64),
                ("chunk_bytes", c_uint64), ("second_chunk_bytes", c_uint64), ("scratch_bytes", c_uint64),
                ("hidden_grad_bytes", c_uint64), ("weight_grad_bytes", c_uint64), ("partials_bytes", c_uint64),
                ("gathered_bytes", c_uint64), ("target_bytes", c_uint64), ("bytes", c_uint64)]


class bp_lm_head_info(Structure):
    _fields_ = [("kernels", c_char_p), ("products", c_char_p), ("threads", c_uint32), ("piece_tokens", c_uint64),
                ("sizes", POINTER(bp_lm_head_sizes)), ("workspace_bytes", c_uint64), ("planned_bytes", c_uint64),
                ("vocab", c_uint64), ("pool", c_void_p)]


class bp_lm_head_batch(Sized):
    _fields_ = [("size", c_size_t), ("hidden", bp_token_rows), ("weight", c_void_p), ("weight_stride", c_int64),
                ("bias", POINTER(c_float)), ("tokens", bp_logprob_tokens), ("logits", POINTER(c_float)),
                ("logits_stride", c_int64)]


class bp_lm_head_gradients(Sized):
    _fields_ = [("size", c_size_t), ("logprob_grad", bp_token_values), ("entropy_grad", bp_token_values),
                ("logsumexp_grad", bp_token_values), ("mean_logprob_grad", bp_token_values), ("saved", c_void_p),
                ("saved_bytes", c_uint64), ("hidden_grad", bp_token_rows), ("weight_grad", c_void_p),
                ("weight_grad_stride", c_int64), ("weight_grad_dtype", c_int), ("bias_grad", POINTER(c_float)),
                ("accumulate", c_int32)]


# ---- loss.h --------------------------------------------------------------------------------------------------------

BP_LOSS_AVERAGED = 1
BP_LOSS_SUMMED = 2


class bp_loss_config(Sized):
    _fields_ = [("size", c_size_t), ("tp", c_uint32), ("cp", c_uint32), ("dp", c_uint32), ("tp_rank", c_uint32),
                ("cp_rank", c_uint32), ("dp_rank", c_uint32), ("comm", c_void_p), ("max_sequences", c_uint64),
                ("epsilon", c_double), ("gradients", c_int), ("threads", c_uint32)]


class bp_loss_values(Sized):
    _fields_ = [("size", c_size_t), ("tokens", c_uint64), ("mask", bp_token_values), ("logprob", bp_token_values),
                ("entropy", bp_token_values), ("logit_min", bp_token_values), ("logit_max", bp_token_values)]


class bp_loss_statistics(Sized):
    _fields_ = [("size", c_size_t), ("sequences", c_uint64), ("tokens", c_uint64), ("valid", c_uint64),
                ("logprob_sum", c_double), ("entropy_sum", c_double), ("perplexity_sum", c_double),
                ("perplexity_sequences", c_uint64), ("logit_min", c_double), ("logit_max", c_double),
                ("epsilon", c_double), ("loss", c_double), ("entropy", c_double), ("perplexity", c_double)]


class bp_loss_sequence(Structure):
    _fields_ = [("valid", c_uint64), ("logprob_sum", c_double), ("entropy_sum", c_double), ("perplexity", c_double)]


class bp_loss_info(Structure):
    _fields_ = [("pool", c_void_p), ("sequences", POINTER(bp_loss_sequence)), ("sequence_count", c_uint64)]


# ---- nccl.h --------------------------------------------------------------------------------------------------------


class bp_nccl_functions(Sized):
    _fields_ = [("size", c_size_t), ("ncclGetVersion", CFUNCTYPE(c_int, POINTER(c_int))),
                ("ncclGetErrorString", CFUNCTYPE(c_char_p, c_int)), ("ncclGetLastError", CFUNCTYPE(c_char_p, c_void_p)),
                ("ncclCommCount", CFUNCTYPE(c_int, c_void_p, POINTER(c_int))),
                ("ncclCommUserRank", CFUNCTYPE(c_int, c_void_p, POINTER(c_int))),
                ("ncclCommCuDevice", CFUNCTYPE(c_int, c_void_p, POINTER(c_int))),
                ("ncclCommGetAsyncError", CFUNCTYPE(c_int, c_void_p, POINTER(c_int))),
                ("ncclCommAbort", CFUNCTYPE(c_int, c_void_p)),
                ("ncclAllGather", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p)),
                ("ncclAllReduce", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)),
                ("ncclReduceScatter", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)),
                ("ncclCommRegister", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(c_void_p))),
                ("ncclCommDeregister", CFUNCTYPE(c_int, c_void_p, c_void_p)),
                ("ncclCommWindowRegister", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(c_void_p), c_int)),
                ("ncclCommWindowDeregister", CFUNCTYPE(c_int, c_void_p, c_void_p))]


class bp_nccl_config(Sized):
    _fields_ = [("size", c_size_t), ("comm", c_void_p), ("functions", POINTER(bp_nccl_functions)), ("device", c_void_p),
                ("control", c_void_p), ("name", c_char_p), ("timeout_ms", c_uint32)]


# ---- pinned.h ------------------------------------------------------------------------------------------------------

BP_PINNED_AUTO = 0
BP_PINNED_JEMALLOC = 1
BP_PINNED_PLAIN = 2


class bp_pinned_config(Sized):
    _fields_ = [("size", c_size_t), ("allocator", c_int), ("slab_bytes", c_uint64), ("planned_bytes", c_uint64),
                ("max_bytes", c_uint64), ("touch_threads", c_uint32), ("numa_node", c_int32),
                ("no_huge_pages", c_int32)]


class bp_pinned_statistics(Sized):
    _fields_ = [("size", c_size_t), ("pinned_bytes", c_uint64), ("peak_pinned_bytes", c_uint64),
                ("planned_pieces", c_uint64), ("planned_bytes", c_uint64), ("small_pieces", c_uint64),
                ("small_bytes", c_uint64), ("slab_bytes", c_uint64), ("slab_used_bytes", c_uint64),
                ("huge_bytes", c_uint64), ("touch_ns", c_uint64), ("pin_ns", c_uint64), ("numa_node", c_int32),
                ("allocator", c_char_p), ("because", c_char_p)]


# ---- offload.h -----------------------------------------------------------------------------------------------------

BP_BACKING_AUTO = 0
BP_BACKING_PINNED = 1
BP_BACKING_STAGED = 2
BP_RESTORE_ZERO = 1
BP_RESTORE_LEAVE = 2
BP_RESIDENT = 1
BP_OFFLOADING = 2
BP_OFFLOADED = 3
BP_RESTORING = 4
BP_OFFLOAD_KEEP = 1
BP_OFFLOAD_DISCARD = 2
BP_OFFLOAD_RECAPTURE = 4
bp_offload_progress = CFUNCTYPE(None, c_void_p, c_char_p, c_uint64, c_uint64)


class bp_offload_config(Sized):
    _fields_ = [("size", c_size_t), ("pinned", c_void_p), ("backing", c_int), ("chunk_bytes", c_uint64),
                ("progress", bp_offload_progress), ("user", c_void_p)]


class bp_offload_group(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("residency", c_int), ("slabs", c_uint32), ("bytes", c_uint64),
                ("resident_bytes", c_uint64), ("kept_bytes", c_uint64), ("host_bytes", c_uint64),
                ("unreturned_bytes", c_uint64), ("copied_bytes", c_uint64), ("offloads", c_uint64),
                ("restores", c_uint64), ("leases", c_uint32), ("pinned", c_int32)]


# ---- pack.h --------------------------------------------------------------------------------------------------------

BP_PACK_PLACED = 1
BP_PACK_INFEASIBLE = 2
BP_PACK_NOT_FOUND = 3


class bp_packing_interval(Structure):
    _fields_ = [("begin", c_uint64), ("end", c_uint64), ("item", c_uint32)]


class bp_packing_info(Structure):
    _fields_ = [("sizes", POINTER(c_uint64)), ("item_count", c_size_t), ("intervals", POINTER(bp_packing_interval)),
                ("interval_count", c_size_t)]


class bp_pack_progress(Structure):
    _fields_ = [("bytes", c_uint64), ("proven", c_uint64), ("stop", c_uint32)]


class bp_pack_config(Sized):
    _fields_ = [("size", c_size_t), ("capacity", c_uint64), ("work", c_uint64), ("known", POINTER(c_uint64)),
                ("progress", POINTER(bp_pack_progress))]


class bp_pack_result(Sized):
    _fields_ = [("size", c_size_t), ("outcome", c_int), ("optimal", c_uint32), ("bytes", c_uint64), ("bound", c_uint64),
                ("proven", c_uint64), ("work", c_uint64), ("method", c_char_p)]


class bp_packing_fault(Sized):
    _fields_ = [("size", c_size_t), ("found", c_uint32), ("item", c_uint32), ("other", c_uint32)]


# ---- profile.h -----------------------------------------------------------------------------------------------------

BP_PROFILE_PICKLE = 1
BP_PROFILE_TRACE = 2


class bp_profile_config(Sized):
    _fields_ = [("size", c_size_t), ("directory", c_char_p), ("profile_steps", POINTER(c_uint64)),
                ("profile_step_count", c_size_t), ("max_entries", c_uint64), ("rank", c_uint32), ("ranks", c_uint32),
                ("record_ranks", POINTER(c_uint32)), ("record_rank_count", c_size_t), ("coordinates", c_char_p),
                ("formats", c_uint32), ("plans", POINTER(c_void_p))]


class bp_profile_info(Structure):
    _fields_ = [("recording", c_int32), ("pickle_path", c_char_p), ("trace_path", c_char_p)]


# ---- step_serve.h --------------------------------------------------------------------------------------------------

BP_STEP_SERVED = 0
BP_STEP_UNKNOWN = 1
BP_STEP_MISPLACED = 2
BP_STEP_UNPLANNED = 3
BP_STEP_BUSY = 4
BP_STEP_UNORDERED = 5
BP_STEP_PAUSED = 6
BP_STEP_OUTCOMES = 7
BP_STEP_STREAMS = 32
BP_STEP_DEVIATIONS = 64


class bp_step_server_config(Sized):
    _fields_ = [("size", c_size_t), ("context", c_void_p), ("record", CFUNCTYPE(c_bool, c_void_p, c_uint32, c_uint64)),
                ("wait", CFUNCTYPE(c_bool, c_void_p, c_uint32, c_uint32, c_uint64))]


class bp_step_block(Structure):
    _fields_ = [("offset", c_uint64), ("bytes", c_uint64), ("requested_bytes", c_uint64), ("stream", c_uint32),
                ("kind", c_uint32), ("item", c_uint32)]


class bp_step_statistics(Sized):
    _fields_ = [("size", c_size_t), ("outcomes", c_uint64 * 7), ("anywhere", c_uint64), ("frees", c_uint64),
                ("live", c_uint64), ("live_bytes", c_uint64), ("peak_live_bytes", c_uint64), ("marks", c_uint64),
                ("steps", c_uint64), ("kind_changes", c_uint64), ("resyncs", c_uint64), ("events", c_uint64),
                ("waits", c_uint64), ("kind", c_uint32), ("item", c_uint32)]


class bp_step_deviation(Structure):
    _fields_ = [("outcome", c_int), ("stream", c_uint32), ("bytes", c_uint64), ("count", c_uint64), ("mark", c_uint64),
                ("kind", c_uint32), ("item", c_uint32)]


# ---- torch_allocator.h ---------------------------------------------------------------------------------------------

BP_TORCH_DEVICES = 64


class bp_torch_config(Sized):
    _fields_ = [("size", c_size_t), ("ordinal", c_int32), ("pool", c_void_p), ("request", c_uint32),
                ("device", c_void_p), ("bytes", c_uint64)]


class bp_torch_statistics(Sized):
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("live_bytes", c_uint64), ("peak_live_bytes", c_uint64),
                ("live_segments", c_uint64), ("segments", c_uint64), ("waits", c_uint64), ("refused", c_uint64),
                ("strays", c_uint64), ("because", c_char * 256)]


# ---- whatif.h ------------------------------------------------------------------------------------------------------

BP_MAX_WHATIF_PREFETCH = 64


class bp_alternatives_config(Sized):
    _fields_ = [("size", c_size_t), ("max_prefetch", c_uint32), ("work", c_uint64), ("present", c_void_p)]


class bp_alternative(Structure):
    _fields_ = [("prefetch", c_uint32), ("prefetch_backward", c_uint32), ("streams", c_int), ("joint", c_uint32),
                ("is_present", c_uint32), ("optimal", c_uint32), ("bytes", c_uint64), ("lower_bound_bytes", c_uint64),
                ("proven_bytes", c_uint64), ("max_bytes", c_uint64), ("live_bytes", c_uint64)]


class bp_alternatives_info(Structure):
    _fields_ = [("alternative_count", c_size_t), ("alternatives", POINTER(bp_alternative))]


class bp_peak_holder(Structure):
    _fields_ = [("unit", c_uint32), ("role", c_uint32), ("bytes", c_uint64)]


class bp_peak(Structure):
    _fields_ = [("roles", c_uint32), ("step", c_uint32), ("bytes", c_uint64), ("holder_count", c_size_t),
                ("holders", POINTER(bp_peak_holder)), ("step_count", c_uint32), ("set_count", c_uint32),
                ("next_bytes", c_uint64), ("next_step", c_uint32), ("below_step", c_uint32), ("below_bytes", c_uint64)]


class bp_peaks_info(Structure):
    _fields_ = [("peak_count", c_size_t), ("peaks", POINTER(bp_peak))]


class bp_device(Uncopied, c_void_p):
    pass


class bp_stream(Uncopied, c_void_p):
    pass


class bp_event(Uncopied, c_void_p):
    pass


class bp_graph(Uncopied, c_void_p):
    pass


class bp_model(Uncopied, c_void_p):
    pass


class bp_buckets(Uncopied, c_void_p):
    pass


class bp_schedule(Uncopied, c_void_p):
    pass


class bp_plan(Uncopied, c_void_p):
    pass


class bp_pool(Uncopied, c_void_p):
    pass


class bp_capture(Uncopied, c_void_p):
    pass


class bp_comm(Uncopied, c_void_p):
    pass


class bp_registration(Uncopied, c_void_p):
    pass


class bp_cp_split(Uncopied, c_void_p):
    pass


class bp_cp(Uncopied, c_void_p):
    pass


class bp_step_plan(Uncopied, c_void_p):
    pass


class bp_logprob(Uncopied, c_void_p):
    pass


class bp_lm_head(Uncopied, c_void_p):
    pass


class bp_loss(Uncopied, c_void_p):
    pass


class bp_pinned(Uncopied, c_void_p):
    pass


class bp_offload(Uncopied, c_void_p):
    pass


class bp_lease(Uncopied, c_void_p):
    pass


class bp_packing(Uncopied, c_void_p):
    pass


class bp_profile(Uncopied, c_void_p):
    pass


class bp_step_server(Uncopied, c_void_p):
    pass


class bp_alternatives(Uncopied, c_void_p):
    pass


class bp_peaks(Uncopied, c_void_p):
    pass


FUNCTIONS: Dict[str, Dict[str, Tuple[Any, List[Any]]]] = {
    "core": {
        "bp_status_name": (c_char_p, [c_int]),
        "bp_error_detail": (c_char_p, []),
        "bp_error_record": (c_int, [c_int, c_char_p]),
        "bp_version": (c_char_p, []),
        "bp_host_config_init": (c_int, [POINTER(bp_host_config), c_size_t]),
        "bp_device_create_host": (c_int, [POINTER(bp_host_config), POINTER(bp_device)]),
        "bp_device_create_null": (c_int, [POINTER(bp_device)]),
        "bp_device_destroy": (None, [POINTER(bp_device)]),
        "bp_device_name": (c_char_p, [bp_device]),
        "bp_device_is_host_accessible": (c_int, [bp_device]),
        "bp_device_synchronize": (c_int, [bp_device]),
        "bp_device_usage_get": (c_int, [bp_device, POINTER(bp_device_usage)]),
        "bp_stream_create": (c_int, [bp_device, c_char_p, POINTER(bp_stream)]),
        "bp_stream_import": (c_int, [bp_device, c_uint64, c_char_p, POINTER(bp_stream)]),
        "bp_stream_destroy": (None, [POINTER(bp_stream)]),
        "bp_stream_name": (c_char_p, [bp_stream]),
        "bp_stream_native": (c_int, [bp_stream, POINTER(c_uint64)]),
        "bp_stream_synchronize": (c_int, [bp_stream]),
        "bp_stream_call": (c_int, [bp_stream, bp_host_function, c_void_p]),
        "bp_stream_fill": (c_int, [bp_stream, c_void_p, c_uint8, c_uint64]),
        "bp_stream_copy": (c_int, [bp_stream, c_void_p, c_void_p, c_uint64]),
        "bp_event_create": (c_int, [bp_device, POINTER(bp_event)]),
        "bp_event_destroy": (None, [POINTER(bp_event)]),
        "bp_event_record": (c_int, [bp_event, bp_stream]),
        "bp_stream_wait": (c_int, [bp_stream, bp_event]),
        "bp_event_synchronize": (c_int, [bp_event]),
        "bp_graph_begin": (c_int, [bp_stream]),
        "bp_graph_end": (c_int, [bp_stream, POINTER(bp_graph)]),
        "bp_graph_launch": (c_int, [bp_graph, bp_stream]),
        "bp_graph_destroy": (None, [POINTER(bp_graph)]),
        "bp_stream_capture_of": (c_int, [bp_stream, POINTER(c_uint64)]),
        "bp_device_pin": (c_int, [bp_device, c_void_p, c_uint64]),
        "bp_device_unpin": (c_int, [bp_device, c_void_p, c_uint64]),
        "bp_dtype_bits": (c_uint32, [c_int]),
        "bp_dtype_name": (c_char_p, [c_int]),
        "bp_dtype_parse": (c_int, [c_char_p, POINTER(c_int)]),
        "bp_dtype_storage": (c_int, [c_int]),
        "bp_dtype_is_gradient": (c_int, [c_int]),
        "bp_dtype_bytes": (c_int, [c_int, c_uint64, POINTER(c_uint64)]),
        "bp_parameter_init": (c_int, [POINTER(bp_parameter), c_size_t]),
        "bp_model_create": (c_int, [c_char_p, POINTER(bp_model)]),
        "bp_model_destroy": (None, [POINTER(bp_model)]),
        "bp_model_add_unit": (c_int, [bp_model, c_char_p, c_int32, POINTER(c_uint32)]),
        "bp_model_add_parameter": (c_int, [bp_model, POINTER(bp_parameter)]),
        "bp_model_add_bucket": (c_int, [bp_model, POINTER(bp_given_bucket)]),
        "bp_model_add_event": (c_int, [bp_model, POINTER(bp_model_event)]),
        "bp_model_set_order": (c_int, [bp_model, POINTER(c_uint32), c_size_t]),
        "bp_model_validate": (c_int, [bp_model]),
        "bp_model_add_note": (c_int, [bp_model, c_char_p]),
        "bp_model_get_info": (POINTER(bp_model_info), [bp_model]),
        "bp_model_with_layout": (c_int, [bp_model, c_int, POINTER(bp_model)]),
        "bp_model_shard": (c_int, [bp_model, c_uint32, c_uint32, POINTER(bp_model)]),
        "bp_role_name": (c_char_p, [c_int]),
        "bp_role_parse": (c_int, [c_char_p, POINTER(c_int)]),
        "bp_buckets_config_init": (c_int, [POINTER(bp_buckets_config), c_size_t]),
        "bp_buckets_create": (c_int, [bp_model, POINTER(bp_buckets_config), POINTER(bp_buckets)]),
        "bp_buckets_create_merged": (c_int, [POINTER(bp_buckets), POINTER(c_char_p), c_size_t, POINTER(bp_buckets)]),
        "bp_buckets_destroy": (None, [POINTER(bp_buckets)]),
        "bp_buckets_get_info": (POINTER(bp_buckets_info), [bp_buckets]),
        "bp_schedule_config_init": (c_int, [POINTER(bp_schedule_config), c_size_t]),
        "bp_schedule_create_training": (c_int, [bp_buckets, POINTER(bp_schedule_config), POINTER(bp_schedule)]),
        "bp_recorded_config_init": (c_int, [POINTER(bp_recorded_config), c_size_t]),
        "bp_schedule_create_recorded": (c_int, [bp_model, bp_buckets, POINTER(bp_recorded_config),
                                                POINTER(bp_schedule)]),
        "bp_schedule_create_merged": (c_int, [POINTER(bp_schedule), c_size_t, POINTER(bp_schedule)]),
        "bp_schedule_create_embedded": (c_int, [bp_schedule, bp_buckets, c_size_t, POINTER(bp_schedule)]),
        "bp_schedule_destroy": (None, [POINTER(bp_schedule)]),
        "bp_schedule_get_info": (POINTER(bp_schedule_info), [bp_schedule]),
        "bp_policy_name": (c_char_p, [c_int]),
        "bp_policy_parse": (c_int, [c_char_p, POINTER(c_int)]),
        "bp_plan_config_init": (c_int, [POINTER(bp_plan_config), c_size_t]),
        "bp_plan_create": (c_int, [bp_buckets, bp_schedule, POINTER(bp_plan_config), POINTER(bp_plan)]),
        "bp_plan_destroy": (None, [POINTER(bp_plan)]),
        "bp_plan_get_info": (POINTER(bp_plan_info), [bp_plan]),
        "bp_plan_find": (c_int, [bp_plan, c_char_p, c_uint32, c_int, c_int, c_uint64, POINTER(c_uint32)]),
        "bp_plan_set_group": (c_int, [bp_plan, c_size_t, c_char_p]),
        "bp_plan_set_model": (c_int, [bp_plan, c_char_p]),
        "bp_plan_set_option": (c_int, [bp_plan, c_char_p, c_char_p]),
        "bp_plan_fingerprint": (c_int, [bp_plan, c_char_p]),
        "bp_plan_check": (c_int, [bp_plan, bp_buckets, bp_schedule]),
        "bp_pool_config_init": (c_int, [POINTER(bp_pool_config), c_size_t]),
        "bp_pool_create": (c_int, [bp_device, bp_plan, POINTER(bp_pool_config), POINTER(bp_pool)]),
        "bp_pool_destroy": (None, [POINTER(bp_pool)]),
        "bp_pool_get_info": (POINTER(bp_pool_info), [bp_pool]),
        "bp_bind_init": (c_int, [POINTER(bp_bind), c_size_t]),
        "bp_pool_bind": (c_int, [bp_pool, POINTER(bp_bind), POINTER(c_uint32)]),
        "bp_pool_set_stream": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, bp_stream]),
        "bp_pool_set_zero": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, c_int]),
        "bp_pool_references": (c_uint32, [bp_pool, c_uint32]),
        "bp_pool_address": (c_int, [bp_pool, c_uint32, POINTER(c_void_p), POINTER(c_uint64)]),
        "bp_pool_acquire": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, bp_stream, POINTER(c_void_p)]),
        "bp_pool_try_acquire": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, bp_stream, POINTER(c_void_p),
                                        POINTER(c_int)]),
        "bp_pool_can_acquire": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, POINTER(c_uint32), c_size_t,
                                        POINTER(c_int)]),
        "bp_pool_use": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, bp_stream]),
        "bp_pool_release": (c_int, [bp_pool, POINTER(c_uint32), c_size_t, bp_stream]),
        "bp_pool_cancel": (c_int, [bp_pool, POINTER(c_uint32), c_size_t]),
        "bp_pool_seal": (c_int, [bp_pool]),
        "bp_pool_is_sealed": (c_int, [bp_pool]),
        "bp_pool_allow_overflow": (c_int, [bp_pool, c_int]),
        "bp_pool_set_step": (None, [bp_pool, c_uint64]),
        "bp_pool_statistics_get": (c_int, [bp_pool, POINTER(bp_pool_statistics)]),
        "bp_pool_live": (c_int, [bp_pool, POINTER(bp_live_request), c_size_t, POINTER(c_size_t)]),
        "bp_pool_dump": (c_int, [bp_pool, c_char_p, c_size_t, POINTER(c_size_t)]),
        "bp_pool_sequence": (c_int, [bp_pool, POINTER(c_uint64), POINTER(c_uint64)]),
        "bp_pool_trace_start": (c_int, [bp_pool, c_size_t, c_int]),
        "bp_pool_trace_stop": (None, [bp_pool]),
        "bp_pool_trace_count": (c_size_t, [bp_pool]),
        "bp_pool_trace_get": (c_int, [bp_pool, c_size_t, POINTER(bp_pool_event)]),
        "bp_pool_trace_to_model": (c_int, [bp_pool, c_uint64, c_uint64, bp_model]),
        "bp_capture_config_init": (c_int, [POINTER(bp_capture_config), c_size_t]),
        "bp_capture_begin": (c_int, [bp_pool, POINTER(bp_capture_config), POINTER(bp_capture)]),
        "bp_capture_end": (c_int, [bp_capture]),
        "bp_capture_before_launch": (c_int, [bp_capture, bp_stream]),
        "bp_capture_launched": (c_int, [bp_capture, bp_stream]),
        "bp_capture_destroy": (None, [POINTER(bp_capture)]),
        "bp_capture_get_info": (POINTER(bp_capture_info), [bp_capture]),
        "bp_pool_is_capturing": (c_int, [bp_pool]),
        "bp_comm_create_self": (c_int, [POINTER(bp_comm)]),
        "bp_comm_create_callback": (c_int, [POINTER(bp_comm_callbacks), c_void_p, c_char_p, POINTER(bp_comm)]),
        "bp_comm_destroy": (None, [POINTER(bp_comm)]),
        "bp_comm_get_info": (POINTER(bp_comm_info), [bp_comm]),
        "bp_comm_exchange": (c_int, [bp_comm, c_void_p, c_uint64, c_void_p]),
        "bp_comm_all_gather": (c_int, [bp_comm, c_void_p, c_void_p, c_uint64, bp_stream]),
        "bp_comm_all_reduce": (c_int, [bp_comm, c_void_p, c_void_p, c_uint64, c_int, c_int, bp_stream]),
        "bp_comm_reduce_scatter": (c_int, [bp_comm, c_void_p, c_void_p, c_uint64, c_int, c_int, bp_stream]),
        "bp_comm_abort": (c_int, [bp_comm]),
        "bp_comm_forget": (None, [bp_comm]),
        "bp_register_kind_name": (c_char_p, [c_int]),
        "bp_registration_entry_init": (c_int, [POINTER(bp_registration_entry), c_size_t]),
        "bp_registration_create": (c_int, [bp_pool, POINTER(bp_registration_entry), c_size_t,
                                           POINTER(bp_registration)]),
        "bp_registration_destroy": (None, [POINTER(bp_registration)]),
        "bp_registration_get_info": (POINTER(bp_registration_info), [bp_registration]),
        "bp_registration_report": (c_int, [bp_registration, c_char_p, c_size_t, POINTER(c_size_t)]),
        "bp_comm_create": (c_int, [POINTER(bp_comm_ops), c_void_p, c_char_p, POINTER(bp_comm)]),
        "bp_cuda_config_init": (c_int, [POINTER(bp_cuda_config), c_size_t]),
        "bp_device_create_cuda": (c_int, [POINTER(bp_cuda_config), POINTER(bp_device)]),
        "bp_cuda_get_info": (POINTER(bp_cuda_info), [bp_device]),
        "bp_device_create": (c_int, [POINTER(bp_device_ops), c_void_p, POINTER(bp_device)]),
        "bp_export_config_init": (c_int, [POINTER(bp_export_config), c_size_t]),
        "bp_pool_export": (c_int, [bp_pool, POINTER(bp_export_config), POINTER(c_void_p)]),
        "bp_export_delete": (None, [POINTER(c_void_p)]),
        "bp_step_plan_get_info": (POINTER(bp_step_plan_info), [bp_step_plan]),
        "bp_step_plan_from_info": (c_int, [POINTER(bp_step_plan_info), POINTER(bp_step_plan)]),
        "bp_step_plan_destroy": (None, [POINTER(bp_step_plan)]),
        "bp_step_plan_config_init": (c_int, [POINTER(bp_step_plan_config), c_size_t]),
        "bp_step_plan_create": (c_int, [POINTER(bp_step_event), c_size_t, POINTER(bp_step_plan_config),
                                        POINTER(bp_step_plan)]),
        "bp_nccl_config_init": (c_int, [POINTER(bp_nccl_config), c_size_t]),
        "bp_comm_create_nccl": (c_int, [POINTER(bp_nccl_config), POINTER(bp_comm)]),
        "bp_pinned_config_init": (c_int, [POINTER(bp_pinned_config), c_size_t]),
        "bp_pinned_create": (c_int, [bp_device, POINTER(bp_pinned_config), POINTER(bp_pinned)]),
        "bp_pinned_destroy": (None, [POINTER(bp_pinned)]),
        "bp_pinned_allocate": (c_int, [bp_pinned, c_uint64, c_uint64, POINTER(c_void_p)]),
        "bp_pinned_free": (c_int, [bp_pinned, c_void_p]),
        "bp_pinned_statistics_get": (c_int, [bp_pinned, POINTER(bp_pinned_statistics)]),
        "bp_offload_config_init": (c_int, [POINTER(bp_offload_config), c_size_t]),
        "bp_offload_create": (c_int, [bp_pool, POINTER(bp_offload_config), POINTER(bp_offload)]),
        "bp_offload_destroy": (None, [POINTER(bp_offload)]),
        "bp_offload_begin": (c_int, [bp_offload, c_char_p, c_uint32]),
        "bp_offload_finish": (c_int, [bp_offload, c_char_p]),
        "bp_restore_begin": (c_int, [bp_offload, c_char_p, c_int]),
        "bp_restore_finish": (c_int, [bp_offload, c_char_p]),
        "bp_offload_trim": (None, [bp_offload]),
        "bp_offload_groups": (c_int, [bp_offload, POINTER(bp_offload_group), c_size_t, POINTER(c_size_t)]),
        "bp_lease_take": (c_int, [bp_offload, c_char_p, c_char_p, POINTER(bp_lease)]),
        "bp_lease_return": (None, [POINTER(bp_lease)]),
        "bp_packing_create": (c_int, [POINTER(bp_packing)]),
        "bp_packing_destroy": (None, [POINTER(bp_packing)]),
        "bp_packing_add_item": (c_int, [bp_packing, c_uint64, POINTER(c_size_t)]),
        "bp_packing_add_interval": (c_int, [bp_packing, c_size_t, c_uint64, c_uint64]),
        "bp_packing_add_conflict": (c_int, [bp_packing, c_size_t, c_size_t]),
        "bp_packing_get_info": (POINTER(bp_packing_info), [bp_packing]),
        "bp_packing_bound": (c_int, [bp_packing, POINTER(c_uint32), POINTER(c_size_t), POINTER(c_uint64)]),
        "bp_pack_config_init": (c_int, [POINTER(bp_pack_config), c_size_t]),
        "bp_pack": (c_int, [bp_packing, POINTER(bp_pack_config), POINTER(c_uint64), POINTER(bp_pack_result)]),
        "bp_packing_check": (c_int, [bp_packing, POINTER(c_uint64), c_uint64]),
        "bp_packing_find_fault": (c_int, [bp_packing, POINTER(c_uint64), c_uint64, POINTER(bp_packing_fault)]),
        "bp_profile_config_init": (c_int, [POINTER(bp_profile_config), c_size_t]),
        "bp_profile_create": (c_int, [POINTER(bp_pool), c_size_t, POINTER(bp_profile_config), POINTER(bp_profile)]),
        "bp_profile_destroy": (None, [POINTER(bp_profile)]),
        "bp_profile_step": (c_int, [bp_profile, c_uint64]),
        "bp_profile_start": (c_int, [bp_profile, c_char_p]),
        "bp_profile_stop": (c_int, [bp_profile]),
        "bp_profile_get_info": (POINTER(bp_profile_info), [bp_profile]),
        "bp_profile_write": (c_int, [bp_profile, c_uint32, c_char_p]),
        "bp_step_server_config_init": (c_int, [POINTER(bp_step_server_config), c_size_t]),
        "bp_step_server_create": (c_int, [bp_step_plan, POINTER(bp_step_server_config), POINTER(bp_step_server)]),
        "bp_step_server_destroy": (None, [POINTER(bp_step_server)]),
        "bp_step_server_allocate": (c_int, [bp_step_server, c_uint64, c_uint32, POINTER(c_uint64)]),
        "bp_step_server_allocate_anywhere": (c_int, [bp_step_server, c_uint64, c_uint32, POINTER(c_uint64)]),
        "bp_step_server_free": (c_int, [bp_step_server, c_uint64, POINTER(bp_step_block)]),
        "bp_step_server_use": (c_int, [bp_step_server, c_uint64, c_uint32]),
        "bp_step_server_mark": (None, [bp_step_server]),
        "bp_step_server_replace": (c_int, [bp_step_server, bp_step_plan]),
        "bp_step_server_pause": (None, [bp_step_server, c_bool]),
        "bp_step_server_get_statistics": (c_int, [bp_step_server, POINTER(bp_step_statistics)]),
        "bp_step_server_reset_peak": (None, [bp_step_server]),
        "bp_step_server_waits": (c_uint64, [bp_step_server, c_uint32, c_uint32]),
        "bp_step_server_find": (c_bool, [bp_step_server, c_uint64, POINTER(bp_step_block)]),
        "bp_step_server_deviations": (c_size_t, [bp_step_server, POINTER(bp_step_deviation), c_size_t]),
        "bp_step_server_check": (c_int, [bp_step_server]),
        "bp_torch_config_init": (c_int, [POINTER(bp_torch_config), c_size_t]),
        "bp_torch_serve": (c_int, [POINTER(bp_torch_config)]),
        "bp_torch_stop": (c_int, [c_int32]),
        "bp_torch_statistics_get": (c_int, [c_int32, POINTER(bp_torch_statistics)]),
        "bp_torch_malloc": (c_void_p, [c_size_t, c_int, c_void_p]),
        "bp_torch_free": (None, [c_void_p, c_size_t, c_int, c_void_p]),
        "bp_alternatives_config_init": (c_int, [POINTER(bp_alternatives_config), c_size_t]),
        "bp_alternatives_create": (c_int, [bp_buckets, POINTER(bp_schedule_config), POINTER(bp_plan_config),
                                           POINTER(bp_alternatives_config), POINTER(bp_alternatives)]),
        "bp_alternatives_destroy": (None, [POINTER(bp_alternatives)]),
        "bp_alternatives_get_info": (POINTER(bp_alternatives_info), [bp_alternatives]),
        "bp_peaks_create": (c_int, [bp_buckets, bp_schedule, bp_plan, POINTER(bp_peaks)]),
        "bp_peaks_destroy": (None, [POINTER(bp_peaks)]),
        "bp_peaks_get_info": (POINTER(bp_peaks_info), [bp_peaks]),
    },
    "formats": {
        "bp_reader_options_init": (c_int, [POINTER(bp_reader_options), c_size_t]),
        "bp_model_read": (c_int, [c_char_p, POINTER(bp_reader_options), POINTER(bp_model)]),
        "bp_model_find": (c_int, [c_char_p, c_char_p, c_char_p, c_size_t]),
        "bp_config_parse": (c_int, [c_char_p, c_size_t, c_char_p, POINTER(bp_reader_options), POINTER(bp_model)]),
        "bp_safetensors_read": (c_int, [c_char_p, POINTER(bp_reader_options), POINTER(bp_model)]),
        "bp_safetensors_parse": (c_int, [c_void_p, c_size_t, c_uint64, c_char_p, POINTER(bp_reader_options),
                                         POINTER(bp_model)]),
        "bp_units_parse": (c_int, [c_char_p, c_size_t, c_char_p, POINTER(bp_reader_options), POINTER(bp_model)]),
        "bp_units_write": (c_int, [bp_model, c_char_p]),
        "bp_plan_write": (c_int, [bp_plan, c_char_p]),
        "bp_plan_read": (c_int, [c_char_p, POINTER(bp_plan)]),
        "bp_plan_parse": (c_int, [c_char_p, c_size_t, c_char_p, POINTER(bp_plan)]),
        "bp_step_plan_write": (c_int, [bp_step_plan, c_char_p]),
        "bp_step_plan_read": (c_int, [c_char_p, POINTER(bp_step_plan)]),
        "bp_step_plan_parse": (c_int, [c_char_p, c_size_t, c_char_p, POINTER(bp_step_plan)]),
        "bp_step_plan_read_snapshot": (c_int, [c_char_p, c_uint32, POINTER(bp_step_plan_config),
                                               POINTER(bp_step_plan)]),
    },
    "logprob": {
        "bp_cp_multiple": (c_int, [c_uint32, c_uint32, c_int, POINTER(c_uint64)]),
        "bp_cp_order_name": (c_char_p, [c_int]),
        "bp_cp_split_config_init": (c_int, [POINTER(bp_cp_split_config), c_size_t]),
        "bp_cp_split_create": (c_int, [POINTER(bp_cp_split_config), POINTER(bp_cp_split)]),
        "bp_cp_split_destroy": (None, [POINTER(bp_cp_split)]),
        "bp_cp_split_get_info": (POINTER(bp_cp_split_info), [bp_cp_split]),
        "bp_cp_split_cu_seqlens": (c_int, [bp_cp_split, c_int, c_int, c_uint64, c_void_p]),
        "bp_cp_split_map": (c_int, [bp_cp_split, c_int, c_int, c_int, c_uint64, POINTER(c_int64)]),
        "bp_cp_config_init": (c_int, [POINTER(bp_cp_config), c_size_t]),
        "bp_cp_create": (c_int, [bp_device, POINTER(bp_cp_config), POINTER(bp_cp)]),
        "bp_cp_destroy": (None, [POINTER(bp_cp)]),
        "bp_cp_pool": (c_void_p, [bp_cp]),
        "bp_cp_rearrangement_init": (c_int, [POINTER(bp_cp_rearrangement), c_size_t]),
        "bp_cp_rearrange": (c_int, [bp_cp, bp_cp_split, POINTER(bp_cp_rearrangement), bp_stream]),
        "bp_cp_gather": (c_int, [bp_cp, bp_cp_split, POINTER(bp_cp_tensor), c_int, POINTER(bp_cp_tensor), bp_stream]),
        "bp_cp_gather_backward": (c_int, [bp_cp, bp_cp_split, POINTER(bp_cp_tensor), c_int, c_int,
                                          POINTER(bp_cp_tensor), bp_stream]),
        "bp_logprob_config_init": (c_int, [POINTER(bp_logprob_config), c_size_t]),
        "bp_logprob_create": (c_int, [bp_device, POINTER(bp_logprob_config), POINTER(bp_logprob)]),
        "bp_logprob_destroy": (None, [POINTER(bp_logprob)]),
        "bp_logprob_get_info": (POINTER(bp_logprob_info), [bp_logprob]),
        "bp_logprob_cuda_codes": (c_char_p, []),
        "bp_logprob_batch_init": (c_int, [POINTER(bp_logprob_batch), c_size_t]),
        "bp_logprob_saved_bytes": (c_int, [c_uint64, c_int, POINTER(c_uint64)]),
        "bp_logprob_outputs_init": (c_int, [POINTER(bp_logprob_outputs), c_size_t]),
        "bp_logprob_forward": (c_int, [bp_logprob, POINTER(bp_logprob_batch), POINTER(bp_logprob_outputs), bp_stream]),
        "bp_logprob_gradients_init": (c_int, [POINTER(bp_logprob_gradients), c_size_t]),
        "bp_logprob_backward": (c_int, [bp_logprob, POINTER(bp_logprob_batch), POINTER(bp_logprob_gradients),
                                        bp_stream]),
        "bp_logprob_forward_backward": (c_int, [bp_logprob, POINTER(bp_logprob_batch), POINTER(bp_logprob_outputs),
                                                POINTER(bp_logprob_gradients), bp_stream]),
        "bp_logprob_divergence_args_init": (c_int, [POINTER(bp_logprob_divergence_args), c_size_t]),
        "bp_logprob_divergence_saved_bytes": (c_int, [c_uint64, POINTER(c_uint64)]),
        "bp_logprob_divergence": (c_int, [bp_logprob, POINTER(bp_logprob_batch), POINTER(bp_logprob_divergence_args),
                                          bp_stream]),
        "bp_logprob_divergence_backward": (c_int, [bp_logprob, POINTER(bp_logprob_batch),
                                                   POINTER(bp_logprob_divergence_args), bp_stream]),
        "bp_logprob_range": (c_int, [bp_logprob, POINTER(bp_logprob_batch), POINTER(bp_token_values),
                                     POINTER(bp_token_values), bp_stream]),
        "bp_logprob_check": (c_int, [bp_logprob]),
        "bp_lm_head_config_init": (c_int, [POINTER(bp_lm_head_config), c_size_t]),
        "bp_lm_head_create": (c_int, [bp_device, POINTER(bp_lm_head_config), POINTER(bp_lm_head)]),
        "bp_lm_head_destroy": (None, [POINTER(bp_lm_head)]),
        "bp_lm_head_estimate": (c_int, [POINTER(bp_lm_head_config), c_uint32, c_int32, POINTER(bp_lm_head_sizes)]),
        "bp_lm_head_get_info": (POINTER(bp_lm_head_info), [bp_lm_head]),
        "bp_lm_head_batch_init": (c_int, [POINTER(bp_lm_head_batch), c_size_t]),
        "bp_lm_head_forward": (c_int, [bp_lm_head, POINTER(bp_lm_head_batch), POINTER(bp_logprob_outputs), bp_stream]),
        "bp_lm_head_gradients_init": (c_int, [POINTER(bp_lm_head_gradients), c_size_t]),
        "bp_lm_head_backward": (c_int, [bp_lm_head, POINTER(bp_lm_head_batch), POINTER(bp_lm_head_gradients),
                                        bp_stream]),
        "bp_lm_head_forward_backward": (c_int, [bp_lm_head, POINTER(bp_lm_head_batch), POINTER(bp_logprob_outputs),
                                                POINTER(bp_lm_head_gradients), bp_stream]),
        "bp_lm_head_check": (c_int, [bp_lm_head]),
        "bp_loss_config_init": (c_int, [POINTER(bp_loss_config), c_size_t]),
        "bp_loss_create": (c_int, [bp_device, POINTER(bp_loss_config), POINTER(bp_loss)]),
        "bp_loss_destroy": (None, [POINTER(bp_loss)]),
        "bp_loss_begin": (c_int, [bp_loss]),
        "bp_loss_values_init": (c_int, [POINTER(bp_loss_values), c_size_t]),
        "bp_loss_add": (c_int, [bp_loss, bp_cp_split, POINTER(bp_loss_values), bp_stream]),
        "bp_loss_agree": (c_int, [bp_loss, c_int]),
        "bp_loss_reduce": (c_int, [bp_loss, c_int, bp_stream]),
        "bp_loss_count_set": (c_int, [bp_loss, c_uint64]),
        "bp_loss_seed": (c_int, [bp_loss, bp_cp_split, c_uint64, POINTER(bp_token_values), c_float,
                                 POINTER(bp_token_values), bp_stream]),
        "bp_loss_statistics_init": (c_int, [POINTER(bp_loss_statistics), c_size_t]),
        "bp_loss_statistics_get": (c_int, [bp_loss, POINTER(bp_loss_statistics)]),
        "bp_loss_statistics_merge": (c_int, [POINTER(bp_loss_statistics), POINTER(bp_loss_statistics)]),
        "bp_loss_get_info": (POINTER(bp_loss_info), [bp_loss]),
    },
}
