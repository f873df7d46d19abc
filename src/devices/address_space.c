/* Reservations of address space, and the check of every MAP_FIXED against them. */
#include "devices/address_space.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"

void bp_address_space_init(bp_address_space *space, const char *device, uint64_t granularity)
{
    *space = (bp_address_space){.device = device, .granularity = granularity};
    pthread_mutex_init(&space->lock, NULL);
}

void bp_address_space_finish(bp_address_space *space)
{
    for (size_t i = 0; i < space->count; i++)
        munmap(space->ranges[i].address, space->ranges[i].bytes);
    free(space->ranges);
    pthread_mutex_destroy(&space->lock);
}

bp_status bp_address_space_check_bytes(const bp_address_space *space, uint64_t bytes, const char *operation)
{
    if (bytes == 0 || bytes % space->granularity != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes, expected a multiple of %llu", space->device,
                       operation, (unsigned long long)bytes, (unsigned long long)space->granularity);
    return BP_OK;
}

bp_status bp_address_space_check(bp_address_space *space, const void *address, uint64_t bytes, uint64_t step,
                                 const char *operation)
{
    uintptr_t at = (uintptr_t)address;
    bool reserved = false;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < space->count && !reserved; i++) {
        const bp_address_range *range = &space->ranges[i];
        uintptr_t start = (uintptr_t)range->address;
        reserved = at >= start && bytes <= range->bytes && at - start <= range->bytes - bytes;
    }
    pthread_mutex_unlock(&space->lock);
    if (!reserved)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes at %p, which are not reserved", space->device,
                       operation, (unsigned long long)bytes, address);
    if (bytes == 0 || bytes % step != 0 || at % step != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes at %p, expected multiples of %llu", space->device,
                       operation, (unsigned long long)bytes, address, (unsigned long long)step);
    return BP_OK;
}

/* Address space that starts at a multiple of `alignment`: more is mapped, and both ends are cut off. */
static bp_status map_aligned(const bp_address_space *space, uint64_t bytes, uint64_t alignment, void **address)
{
    uint64_t mapped;
    int reason = ENOMEM;
    void *memory = MAP_FAILED;
    if (bp_add_u64(bytes, alignment, &mapped)) {
        memory = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        reason = errno;
    }
    if (memory == MAP_FAILED)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "%s: no address space for %llu bytes aligned to %llu: %s",
                       space->device, (unsigned long long)bytes, (unsigned long long)alignment, strerror(reason));
    uint64_t before = -(uintptr_t)memory & (alignment - 1), after = mapped - before - bytes;
    char *aligned = (char *)memory + before;
    if ((before > 0 && munmap(memory, before) != 0) || (after > 0 && munmap(aligned + bytes, after) != 0)) {
        reason = errno;
        munmap(memory, mapped);
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: reserve of %llu bytes aligned to %llu: %s", space->device,
                       (unsigned long long)bytes, (unsigned long long)alignment, strerror(reason));
    }
    *address = aligned;
    return BP_OK;
}

bp_status bp_address_space_reserve(bp_address_space *space, uint64_t bytes, uint64_t alignment, void **address)
{
    BP_TRY(bp_address_space_check_bytes(space, bytes, "reserve"));
    if (alignment < space->granularity || (alignment & (alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: reserve with alignment %llu, expected a power of two that is at least %llu", space->device,
                       (unsigned long long)alignment, (unsigned long long)space->granularity);
    bp_address_range range = {.bytes = bytes};
    pthread_mutex_lock(&space->lock);
    bp_status status = bp_grow_array((void **)&space->ranges, &space->capacity, space->count, sizeof *space->ranges);
    if (status == BP_OK)
        status = map_aligned(space, bytes, alignment, &range.address);
    if (status == BP_OK)
        space->ranges[space->count++] = range;
    pthread_mutex_unlock(&space->lock);
    if (status == BP_OK)
        *address = range.address;
    return status;
}

bp_status bp_address_space_unreserve(bp_address_space *space, void *address, uint64_t bytes)
{
    bool found = false;
    int reason = 0;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < space->count; i++) {
        bp_address_range *range = &space->ranges[i];
        if (range->address != address || range->bytes != bytes)
            continue;
        found = true;
        if (munmap(address, bytes) == 0)
            *range = space->ranges[--space->count];
        else
            reason = errno;
        break;
    }
    pthread_mutex_unlock(&space->lock);
    if (!found)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: unreserve of %llu bytes at %p, which were not reserved as one",
                       space->device, (unsigned long long)bytes, address);
    if (reason != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: unreserve of %llu bytes at %p: %s", space->device,
                       (unsigned long long)bytes, address, strerror(reason));
    return BP_OK;
}
