/* SPDX-License-Identifier: Apache-2.0 */
/* The null device: addresses without memory, and streams that run nothing. */
#include "devices/device.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define GRANULARITY 4096u
#define ALLOCATION_ALIGNMENT 256u
/* Stream-ordered allocations are addresses of the upper half, which no user process can have; each is used once. */
#define ALLOCATED_FROM (UINT64_C(1) << 63)
#define ALLOCATED_BYTES (ALLOCATED_FROM - ALLOCATION_ALIGNMENT) /* the end of the last allocation is an address, too */
#define ADDRESS_BYTES (UINT64_C(1) << 56)                       /* address space of a process: more cannot be mapped */

typedef struct null_device {
    bp_address_space space;   /* must be the first field */
    _Atomic uint64_t handles; /* physical handles so far; streams and events are numbers too */
    _Atomic uint64_t objects;
    _Atomic uint64_t allocated_bytes; /* never decreases */
} null_device;

/* An identity; never dereferenced. */
static void *as_pointer(uint64_t number)
{
    void *pointer;
    uintptr_t bits = (uintptr_t)number;
    memcpy(&pointer, &bits, sizeof pointer);
    return pointer;
}

static void null_destroy(void *self)
{
    null_device *null = self;
    bp_address_space_finish(&null->space);
    free(null);
}

static bp_status null_traits(void *self, bp_device_traits *traits)
{
    (void)self;
    *traits = (bp_device_traits){.size = sizeof *traits, .granularity = GRANULARITY, .no_memory = 1};
    return BP_OK;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bp_status null_commit(void *self, uint64_t bytes, uint64_t *handle)
{
    null_device *null = self;
    BP_TRY(bp_address_space_check_bytes(&null->space, bytes, "commit"));
    if (bytes > ADDRESS_BYTES)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "null: commit of %llu bytes, an address space has %llu",
                       (unsigned long long)bytes, (unsigned long long)ADDRESS_BYTES);
    *handle = atomic_fetch_add(&null->handles, 1) + 1;
    return BP_OK;
}

static bp_status decommit(void *self, uint64_t handle)
{
    (void)self;
    (void)handle;
    return BP_OK;
}

static bp_status null_map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    (void)handle;
    null_device *null = self;
    return bp_address_space_check(&null->space, address, bytes, GRANULARITY, "map");
}

static bp_status null_unmap(void *self, void *address, uint64_t bytes)
{
    null_device *null = self;
    return bp_address_space_check(&null->space, address, bytes, GRANULARITY, "unmap");
}

static bp_status null_allocate(void *self, uint64_t bytes, void *stream, void **address)
{
    (void)stream;
    null_device *null = self;
    uint64_t offset = atomic_load_explicit(&null->allocated_bytes, memory_order_relaxed), step;
    do {
        uint64_t left = ALLOCATED_BYTES - offset;
        if (!bp_round_up_u64(bytes > 0 ? bytes : 1, ALLOCATION_ALIGNMENT, &step) || step > left)
            return bp_fail(BP_ERR_NO_DEVICE_MEMORY,
                           "null: allocate of %llu bytes, %llu of %llu addresses are left, and each is used once; make "
                           "another device",
                           (unsigned long long)bytes, (unsigned long long)left, (unsigned long long)ALLOCATED_BYTES);
    } while (!atomic_compare_exchange_weak_explicit(&null->allocated_bytes, &offset, offset + step,
                                                    memory_order_relaxed, memory_order_relaxed));
    *address = as_pointer(ALLOCATED_FROM + offset);
    return BP_OK;
}

static bp_status free_memory(void *self, void *address, uint64_t bytes, void *stream)
{
    (void)self;
    (void)address;
    (void)bytes;
    (void)stream;
    return BP_OK;
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

/* Streams and events are unique numbers. */
static bp_status create_object(void *self, void **object)
{
    null_device *null = self;
    *object = as_pointer(atomic_fetch_add(&null->objects, 1) + 1);
    return BP_OK;
}

static bp_status touch_object(void *self, void *object)
{
    (void)self;
    (void)object;
    return BP_OK;
}

static bp_status touch_two_objects(void *self, void *first, void *second)
{
    (void)self;
    (void)first;
    (void)second;
    return BP_OK;
}

static bp_status null_synchronize(void *self)
{
    (void)self;
    return BP_OK;
}

static bp_status null_call(void *self, void *stream, bp_host_function *function, void *argument)
{
    (void)self;
    (void)stream;
    function(argument);
    return BP_OK;
}

static bp_status null_fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes)
{
    (void)self;
    (void)stream;
    (void)address;
    (void)value;
    (void)bytes;
    return BP_OK;
}

static bp_status null_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    (void)self;
    (void)stream;
    (void)to;
    (void)from;
    (void)bytes;
    return BP_OK;
}

static const bp_device_ops null_ops = {
    .size = sizeof null_ops,
    .name = "null",
    .destroy = null_destroy,
    .traits = null_traits,
    .reserve = bp_address_space_reserve,
    .unreserve = bp_address_space_unreserve,
    .commit = null_commit,
    .decommit = decommit,
    .map = null_map,
    .unmap = null_unmap,
    .allocate = null_allocate,
    .free = free_memory,
    .stream_create = create_object,
    .stream_destroy = touch_object,
    .stream_synchronize = touch_object,
    .synchronize = null_synchronize,
    .call = null_call,
    .fill = null_fill,
    .copy = null_copy,
    .event_create = create_object,
    .event_destroy = touch_object,
    .event_record = touch_two_objects,
    .stream_wait = touch_two_objects,
    .event_synchronize = touch_object,
};

bp_status bp_device_create_null(bp_device **device)
{
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_null: the output is NULL");
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(null_device), &memory));
    null_device *null = memory;
    bp_address_space_init(&null->space, null_ops.name, GRANULARITY);
    return bp_device_create(&null_ops, null, device);
}
