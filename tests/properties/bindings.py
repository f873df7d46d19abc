# SPDX-License-Identifier: Apache-2.0
"""The library through ctypes, as the Python package declares it (bucketpool._abi, written from the headers), with
shorter names.

Tests call the C functions by their own names (`lib.bp_pool_acquire`), so that a failing example reads like the header.
Functions return the status; `check` turns one that must be BP_OK into an exception with the library's own sentence.
"""

import ctypes
import os
import sys
from ctypes import c_uint32, c_void_p

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))

from bucketpool import _abi  # noqa: E402
from bucketpool._abi import Sized  # noqa: E402,F401


def constants(prefix, names):
    """The values of BP_<prefix><name>, in order."""
    return [getattr(_abi, f"BP_{prefix}{name}") for name in names.split()]


OK, = constants("", "OK")
INVALID_ARGUMENT, NO_DEVICE_MEMORY, SCHEDULE, UNSUPPORTED, INFEASIBLE, MISMATCH, IO, COMM = constants(
    "ERR_", "INVALID_ARGUMENT NO_DEVICE_MEMORY SCHEDULE UNSUPPORTED INFEASIBLE MISMATCH IO COMM")
NONE, FP32, FP16, BF16, FP8, FP4, UINT8, INT32, INT64 = constants(
    "DTYPE_", "NONE FP32 FP16 BF16 FP8_E4M3 FP4_E2M1 UINT8 INT32 INT64")
ROLE_PARAM, ROLE_GRAD, ROLE_STATE, ROLE_MAIN_GRAD, ROLE_OPTIMIZER = constants(
    "ROLE_", "PARAM GRAD STATE MAIN_GRAD OPTIMIZER")
POLICY_DYNAMIC, POLICY_FIXED, POLICY_MAX, POLICY_SCHEDULED = constants("POLICY_", "DYNAMIC FIXED MAX SCHEDULED")
FALLBACK_PERSISTENT, FALLBACK_DYNAMIC = constants("FALLBACK_", "PERSISTENT DYNAMIC")
BUCKETING_GIVEN, PADDING_GIVEN = constants("", "BUCKETING_GIVEN PADDING_GIVEN")
STRICT_OFF, STRICT_WARN, STRICT_ERROR = constants("STRICT_", "OFF WARN ERROR")
GUARD_OFF, = constants("GUARD_", "OFF")
UNPLACED, PLANNED, PERSISTENT, DYNAMIC = constants("PLACE_", "NONE PLANNED PERSISTENT DYNAMIC")
ZERO_NOTHING, ZERO_PADDING, ZERO_ALL = constants("ZERO_", "NOTHING PADDING ALL")
LIVE_STREAMS, = constants("", "LIVE_STREAMS")
PACK_PLACED, PACK_INFEASIBLE, PACK_NOT_FOUND = constants("PACK_", "PLACED INFEASIBLE NOT_FOUND")
EVENT_ACQUIRE, EVENT_REF, EVENT_USE, EVENT_UNREF, EVENT_RELEASE, EVENT_CANCEL = constants(
    "EVENT_", "ACQUIRE REF USE UNREF RELEASE CANCEL")

# Constants that the headers state in comments only.
MAX_REFERENCES = 65535
EXACT_POINTS = 255  # release events are exact for this many releases of their stream

Bind, Bucket, BucketsConfig, GivenBucket, HostConfig, Interval, LiveRequest, PackConfig, PackResult = (
    _abi.bp_bind, _abi.bp_bucket, _abi.bp_buckets_config, _abi.bp_given_bucket, _abi.bp_host_config, _abi.bp_interval,
    _abi.bp_live_request, _abi.bp_pack_config, _abi.bp_pack_result)
PlanConfig, PlanInfo, PlanRequest, PlanSlab, PoolConfig, PoolEvent, Request, ScheduleConfig, Step, UnitPrefetch = (
    _abi.bp_plan_config, _abi.bp_plan_info, _abi.bp_plan_request, _abi.bp_plan_slab, _abi.bp_pool_config,
    _abi.bp_pool_event, _abi.bp_request, _abi.bp_schedule_config, _abi.bp_step, _abi.bp_unit_prefetch)
MessageFunction, HostFunction = _abi.bp_message_function, _abi.bp_host_function


class Statistics(_abi.bp_pool_statistics):
    COUNTS = tuple(name for name, _ in _abi.bp_pool_statistics._fields_[1:])


class DeviceOps(Sized):
    """bp_device_ops, its functions as plain addresses: observed.py replaces some of them."""

    _fields_ = [(name, c_void_p if issubclass(kind, ctypes._CFuncPtr) else kind)
                for name, kind in _abi.bp_device_ops._fields_]


def sized_array(kind, count):
    """An array of output structs whose sizes are set."""
    array = (kind * count)()
    for entry in array:
        entry.size = ctypes.sizeof(kind)
    return array


class Refused(AssertionError):
    """A call failed that had to succeed."""

    def __init__(self, name: str, status: int, detail: str):
        super().__init__(f"{name}: {detail} (status {status})")
        self.status = status


def load(path: str, libraries=("core",)) -> ctypes.CDLL:
    """The library with all functions declared. A missing symbol fails here, not in the middle of a run."""
    lib = ctypes.CDLL(path)
    for library in libraries:
        for name, (result, arguments) in _abi.FUNCTIONS[library].items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    # src/planner/plan.h: private
    lib.bp_plan_from_info.restype = ctypes.c_int
    lib.bp_plan_from_info.argtypes = [ctypes.POINTER(PlanInfo), ctypes.POINTER(_abi.bp_plan)]
    if "core" in libraries:  # exported for our own libraries and tests
        lib.bp_device_table.restype, lib.bp_device_table.argtypes = (
            ctypes.POINTER(_abi.bp_device_ops), [_abi.bp_device, ctypes.POINTER(c_void_p)])
    return lib


def detail(lib) -> str:
    return lib.bp_error_detail().decode(errors="replace")


def check(lib, status: int, name: str) -> None:
    if status != OK:
        raise Refused(name, status, detail(lib))


def made(lib, name: str, *arguments) -> c_void_p:
    """Calls a function whose last argument receives a new object."""
    function = getattr(lib, name)
    handle = function.argtypes[-1]._type_()
    check(lib, function(*arguments, ctypes.byref(handle)), name)
    return handle


def filled(lib, name: str, kind, *arguments):
    """Calls a getter whose last argument is the struct it fills."""
    struct = kind()
    check(lib, getattr(lib, name)(*arguments, ctypes.byref(struct)), name)
    return struct


def ids_array(ids):
    return (c_uint32 * max(1, len(ids)))(*ids)
