# SPDX-License-Identifier: Apache-2.0
"""Random models, schedules and plans of the property tests: strategies that draw them, functions that create them."""

import ctypes
from dataclasses import dataclass
from typing import Optional

from hypothesis import strategies as st

import bindings as b
from bindings import check, made

DTYPES = (b.FP32, b.BF16, b.BF16, b.FP8, b.FP4, b.UINT8, b.INT64)


@dataclass(frozen=True)
class Shape:
    """A bucket of a unit."""

    numel: int
    padding: int
    dtype: int


@dataclass(frozen=True)
class Wanted:
    """A request as the library derived it from a bucket. Its index is its id."""

    index: int
    unit: str
    ordinal: int
    role: int
    dtype: int  # storage
    bytes: int

    @property
    def key(self):
        return self.unit, self.ordinal, self.role


def shapes():
    sizes = st.one_of(st.integers(1, 40), st.integers(1, 700), st.just(0), st.sampled_from((64, 256, 512)))
    return st.builds(Shape, sizes, st.integers(0, 40), st.sampled_from(DTYPES)).map(
        lambda shape: shape if shape.numel else Shape(0, 0, shape.dtype))


@st.composite
def units(draw, most=6):
    """Units as lists of buckets, of a few kinds as in real models: policy fixed pools equal units."""
    kinds = draw(st.lists(st.lists(shapes(), min_size=1, max_size=3), min_size=1, max_size=3))
    order = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=most))
    made_of = [tuple(kinds[kind]) for kind in order]
    if not any(shape.numel and shape.dtype in (b.FP32, b.BF16) for unit in made_of for shape in unit):
        made_of[0] = (Shape(8, 0, b.BF16),)  # at least one request in every role
    return tuple(made_of)


def make_buckets(lib, units_of_model, roles):
    model = made(lib, "bp_model_create", b"m")
    try:
        for u, unit in enumerate(units_of_model):
            index = ctypes.c_uint32()
            check(lib, lib.bp_model_add_unit(model, b"u%d" % u, -1, ctypes.byref(index)), "bp_model_add_unit")
            for shape in unit:
                bucket = b.GivenBucket(unit=u, dtype=shape.dtype, numel=shape.numel,
                                       padded_numel=shape.numel + shape.padding)
                check(lib, lib.bp_model_add_bucket(model, ctypes.byref(bucket)), "bp_model_add_bucket")
        config = b.BucketsConfig()
        check(lib, lib.bp_buckets_config_init(ctypes.byref(config), ctypes.sizeof(config)), "bp_buckets_config_init")
        config.bucketing, config.padding, config.roles = b.BUCKETING_GIVEN, b.PADDING_GIVEN, roles
        return made(lib, "bp_buckets_create", model, config)
    finally:
        lib.bp_model_destroy(ctypes.byref(model))


def read_requests(lib, buckets) -> list:
    info = lib.bp_buckets_get_info(buckets).contents
    result = []
    for index, request in enumerate(info.requests[:info.request_count]):
        bucket = info.buckets[request.bucket]
        unit = info.units[bucket.unit].name.decode()
        result.append(Wanted(index, unit, bucket.ordinal, request.role, request.dtype, request.bytes))
    return result


@dataclass(frozen=True)
class Options:
    """Options of a training schedule, named as in bp_schedule_config."""

    prefetch: int = 1
    prefetch_backward: int = 0xFFFFFFFF
    grad_units: int = 2
    passes: int = 0
    keep_after_forward: int = 0
    streams: int = 0
    outside: int = 0
    microbatches: int = 0
    combined: int = 0
    overrides: tuple = ()  # unit, forward, backward


@st.composite
def options(draw, units_count):
    """Mostly defaults: each drawn option makes the others rarer."""
    rarely = st.sampled_from((0, 0, 0, 1))
    depth = st.integers(0, 4)
    overridden = draw(st.lists(st.integers(0, units_count - 1), unique=True, max_size=2))
    return Options(prefetch=draw(depth), prefetch_backward=draw(st.one_of(st.just(0xFFFFFFFF), depth)),
                   grad_units=draw(st.integers(1, 3)), passes=draw(st.sampled_from((0, 0, 0, 2))),
                   keep_after_forward=draw(rarely), streams=draw(rarely), outside=draw(rarely),
                   microbatches=draw(st.sampled_from((0, 0, 0, 1, 2, 5))), combined=draw(rarely),
                   overrides=tuple((unit, draw(depth), draw(depth)) for unit in overridden))


def make_schedule(lib, buckets, wanted):
    config = b.ScheduleConfig()
    check(lib, lib.bp_schedule_config_init(ctypes.byref(config), ctypes.sizeof(config)), "bp_schedule_config_init")
    for name in ("prefetch", "prefetch_backward", "grad_units", "passes", "keep_after_forward", "streams", "outside",
                 "microbatches", "combined"):
        setattr(config, name, getattr(wanted, name))
    config.overrides = (b.UnitPrefetch * len(wanted.overrides))(*wanted.overrides)
    config.override_count = len(wanted.overrides)
    return made(lib, "bp_schedule_create_training", buckets, config)


def read_intervals(lib, schedule, requests) -> list:
    info = lib.bp_schedule_get_info(schedule).contents
    found = [info.requests[request.index] for request in requests]
    return [[(i.begin, i.end) for i in live.intervals[:live.interval_count]] for live in found]


def make_plan(lib, buckets, schedule, policy, copies, fallback, alignment):
    config = b.PlanConfig()
    check(lib, lib.bp_plan_config_init(ctypes.byref(config), ctypes.sizeof(config)), "bp_plan_config_init")
    config.policy, config.copies, config.fallback, config.alignment = policy, copies, fallback, alignment
    return made(lib, "bp_plan_create", buckets, schedule, config)


def align(count, alignment):
    return (count + alignment - 1) // alignment * alignment


def first_fit(requests, intervals, alignment, order=None) -> list:
    """First fit in one slab: requests with overlapping live ranges are disjoint. Other buffers overlap partially."""
    offsets: list[Optional[int]] = [None] * len(requests)
    for i in order or range(len(requests)):
        size = align(requests[i].bytes, alignment)
        if not size:
            continue
        taken = sorted((offsets[j], offsets[j] + align(requests[j].bytes, alignment)) for j in range(len(requests))
                       if offsets[j] is not None
                       and any(x < d and c < y for x, y in intervals[i] for c, d in intervals[j]))
        offset = 0
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets[i] = offset
    return offsets


def build_plan(lib, requests, offsets, alignment, used=(100,)):
    """A plan of one slab. Requests without an offset have no memory. `used`: used bytes in percent, repeated."""
    total = max(offset + align(request.bytes, alignment) for request, offset in zip(requests, offsets)
                if offset is not None)
    planned = (b.PlanRequest * len(requests))(*(
        b.PlanRequest(unit=r.unit.encode(), ordinal=r.ordinal, role=r.role, dtype=r.dtype, bytes=r.bytes,
                      used_bytes=r.bytes * used[i % len(used)] // 100, offset=offset or 0,
                      placement=b.UNPLACED if offset is None else b.PLANNED)
        for i, (r, offset) in enumerate(zip(requests, offsets))))
    slab = b.PlanSlab(bytes=total, group=b"joint")
    info = b.PlanInfo(policy=b.POLICY_SCHEDULED, feasible=1, stable=1, alignment=alignment, bytes=total,
                      request_count=len(planned), requests=planned, slab_count=1, slabs=ctypes.pointer(slab))
    return made(lib, "bp_plan_from_info", info)


def plan_info(lib, plan):
    return lib.bp_plan_get_info(plan).contents


def class_of(placed, info) -> Optional[int]:
    """The class of a request of a plan."""
    for index in range(info.class_count):
        c = info.classes[index]
        copies = [c.offset + copy * c.stride for copy in range(c.copies)]
        if c.slab == placed.slab and placed.offset in copies:
            return index
    return None


def pool_config(lib, **values):
    config = b.PoolConfig()
    check(lib, lib.bp_pool_config_init(ctypes.byref(config), ctypes.sizeof(config)), "bp_pool_config_init")
    config.guard = b.GUARD_OFF  # with guards release waits for streams, and the layout differs
    for name, value in values.items():
        setattr(config, name, value)
    return config


def pool_slabs(lib, pool) -> list:
    info = lib.bp_pool_get_info(pool).contents
    return info.slabs[:info.slab_count]
