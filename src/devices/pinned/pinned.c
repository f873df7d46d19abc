/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory: pages within a limit. Planned pieces have separate pages; small pieces share a slab, which jemalloc or whole pages
 * divide. */
#include "devices/pinned/pinned.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "devices/device.h"

#define DEFAULT_SLAB_BYTES (UINT64_C(64) << 20)
#define DEFAULT_PLANNED_BYTES (UINT64_C(1) << 20)
#define DEFAULT_ALIGNMENT 64u

static const bp_pinned_config pinned_config_defaults = {
    .size = sizeof pinned_config_defaults, .allocator = BP_PINNED_AUTO, .numa_node = -1};

bp_status bp_pinned_config_init(bp_pinned_config *config, size_t size)
{
    return bp_struct_init("bp_pinned_config_init", config, size, &pinned_config_defaults,
                          sizeof pinned_config_defaults);
}

/* ---- pages -------------------------------------------------------------------------------------------------------- */

static bp_status pinned_get_pages(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    uint64_t whole;
    if (!bp_round_up_u64(bytes, bp_page_bytes(), &whole) || whole > pinned->config.max_bytes - pinned->pinned_bytes)
        return bp_fail(BP_ERR_NO_HOST_MEMORY,
                       "pinned memory: %llu bytes more would exceed max_bytes, which is %llu: %llu are pinned",
                       (unsigned long long)bytes, (unsigned long long)pinned->config.max_bytes,
                       (unsigned long long)pinned->pinned_bytes);
    BP_TRY(bp_pages_get(&pinned->source, whole, alignment, pages));
    pinned->pinned_bytes += whole;
    if (pinned->pinned_bytes > pinned->peak_pinned_bytes)
        pinned->peak_pinned_bytes = pinned->pinned_bytes;
    return BP_OK;
}

static bp_status pinned_give_back_pages(bp_pinned *pinned, const bp_pages *pages)
{
    const uint64_t bytes = pages->bytes;
    BP_TRY(bp_pages_give_back(&pinned->source, pages));
    pinned->pinned_bytes -= bytes;
    return BP_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* The first piece at or above `address`. */
static size_t lower_bound(const bp_pieces *pieces, const void *address)
{
    size_t first = 0, end = pieces->count;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        if ((uintptr_t)pieces->pieces[middle].address < (uintptr_t)address)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static void pieces_add(bp_pieces *pieces, const bp_pinned_piece *piece)
{
    const size_t index = lower_bound(pieces, piece->address);
    bp_pinned_piece *place = &pieces->pieces[index];
    memmove(place + 1, place, (pieces->count - index) * sizeof *place);
    *place = *piece;
    pieces->count++;
    pieces->bytes += piece->bytes;
}

static bool pieces_find(const bp_pieces *pieces, const void *address, size_t *index)
{
    const size_t found = lower_bound(pieces, address);
    if (found == pieces->count || pieces->pieces[found].address != address)
        return false;
    *index = found;
    return true;
}

static void pieces_remove(bp_pieces *pieces, size_t index)
{
    bp_pinned_piece *place = &pieces->pieces[index];
    pieces->bytes -= place->bytes;
    pieces->count--;
    memmove(place, place + 1, (pieces->count - index) * sizeof *place);
}

/* ---- whole pages ------------------------------------------------------------------------------------------------- */

static uintptr_t round_up(uintptr_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static uint8_t *small_plain_take(bp_small *small, uint64_t bytes, uint64_t alignment)
{
    const uint64_t page = bp_page_bytes(), step = alignment > page ? alignment : page;
    const uintptr_t slab = (uintptr_t)small->slab.address, slab_end = slab + small->slab.bytes;
    uintptr_t from = slab;
    for (size_t i = 0; i <= small->pieces.count; i++) {
        const bp_pinned_piece *next = i < small->pieces.count ? &small->pieces.pieces[i] : NULL;
        const uintptr_t to = next != NULL ? (uintptr_t)next->address : slab_end;
        const uintptr_t at = round_up(from, step);
        if (at <= to && bytes <= to - at)
            return small->slab.address + (at - slab);
        if (next != NULL)
            from = round_up((uintptr_t)next->address + next->bytes, page);
    }
    return NULL;
}

static uint64_t small_plain_used(const bp_small *small)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < small->pieces.count; i++)
        bytes += round_up(small->pieces.pieces[i].bytes, bp_page_bytes());
    return bytes;
}

static const bp_small_ops plain_ops = {.take = small_plain_take, .used = small_plain_used};

/* ---- creation ----------------------------------------------------------------------------------------------------- */

static bp_status choose_allocator(bp_pinned *pinned)
{
    bp_jemalloc jemalloc;
    const bp_pinned_allocator wanted = pinned->config.allocator;
    if (wanted != BP_PINNED_PLAIN && bp_jemalloc_find(&jemalloc, pinned->because)) {
        snprintf(pinned->name, sizeof pinned->name, "%s", jemalloc.name);
        if (bp_small_jemalloc_create(&pinned->small, &jemalloc))
            return BP_OK;
        snprintf(pinned->because, sizeof pinned->because, "%s cannot make an arena: out of memory, or too many arenas",
                 jemalloc.name);
    }
    if (wanted == BP_PINNED_JEMALLOC)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_pinned_create: allocator requires jemalloc: %s", pinned->because);
    pinned->small.ops = &plain_ops;
    snprintf(pinned->name, sizeof pinned->name, "plain");
    return BP_OK;
}

bp_status bp_pinned_create(bp_device *device, const bp_pinned_config *config, bp_pinned **pinned)
{
    bp_pinned_config own = pinned_config_defaults;
    void *memory;
    if (device == NULL || pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: the device or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_pinned_create"));
    BP_TRY(bp_struct_read("bp_pinned_create", config, true, &own, sizeof own));
    if (own.allocator != BP_PINNED_AUTO && own.allocator != BP_PINNED_JEMALLOC && own.allocator != BP_PINNED_PLAIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: unknown allocator %d", (int)own.allocator);
    if (own.touch_threads > BP_MAX_TOUCH_THREADS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: touch_threads is %u, expected at most %u",
                       own.touch_threads, BP_MAX_TOUCH_THREADS);
    if (own.numa_node < -1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: numa_node is %d, expected -1 or a node",
                       own.numa_node);
    if (own.no_huge_pages != 0 && own.no_huge_pages != 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: no_huge_pages is %d, expected 0 or 1",
                       own.no_huge_pages);
    if (own.slab_bytes == 0)
        own.slab_bytes = DEFAULT_SLAB_BYTES;
    if (own.planned_bytes == 0)
        own.planned_bytes = DEFAULT_PLANNED_BYTES;
    if (own.max_bytes == 0)
        own.max_bytes = UINT64_MAX;
    if (own.touch_threads == 0)
        own.touch_threads = bp_touch_default_threads();

    BP_TRY(bp_new_array(1, sizeof(bp_pinned), &memory));
    bp_pinned *created = memory;
    created->config = own;
    const int32_t node = own.numa_node >= 0 ? own.numa_node : bp_numa_node_of(device);
    const bool usable = node >= 0 && bp_numa_is_usable(node);
    created->source = (bp_page_source){
        .device = device, .threads = own.touch_threads, .node = usable ? node : -1, .huge = own.no_huge_pages == 0};
    bp_status status = own.numa_node < 0 || usable
                           ? choose_allocator(created)
                           : bp_fail(BP_ERR_INVALID_ARGUMENT,
                                     "bp_pinned_create: numa_node is %d: this process cannot place memory there (%s)",
                                     own.numa_node, strerror(errno));
    if (status != BP_OK) {
        free(created);
        return status;
    }
    atomic_init(&created->references, 1);
    pthread_mutex_init(&created->lock, NULL); /* cannot fail for a plain mutex */
    bp_device_retain(device);
    *pinned = created;
    return BP_OK;
}

/* ---- references --------------------------------------------------------------------------------------------------- */

void bp_pinned_retain(bp_pinned *pinned)
{
    atomic_fetch_add_explicit(&pinned->references, 1, memory_order_relaxed);
}

/* Memory that the device fails to unpin stays mapped: the device may still write to it. */
void bp_pinned_destroy(bp_pinned **given)
{
    if (given == NULL || *given == NULL)
        return;
    bp_pinned *pinned = *given;
    *given = NULL;
    if (!bp_device_is_here(pinned->source.device) ||
        atomic_fetch_sub_explicit(&pinned->references, 1, memory_order_acq_rel) > 1)
        return;
    BP_KEEP_ERROR;
    for (size_t i = 0; i < pinned->planned.count; i++)
        (void)bp_pages_give_back(&pinned->source, &pinned->planned.pieces[i].pages);
    if (pinned->small.ops->finish != NULL)
        pinned->small.ops->finish(&pinned->small);
    if (pinned->small.slab.bytes > 0)
        (void)bp_pages_give_back(&pinned->source, &pinned->small.slab);
    free(pinned->planned.pieces);
    free(pinned->small.pieces.pieces);
    pthread_mutex_destroy(&pinned->lock);
    bp_device_release(pinned->source.device);
    free(pinned);
}

/* ---- allocating --------------------------------------------------------------------------------------------------- */

/* A small piece, under the lock. The first one makes the slab. */
static bp_status small_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_small *small = &pinned->small;
    if (!small->ready) {
        if (small->slab.bytes == 0)
            BP_TRY(pinned_get_pages(pinned, pinned->config.slab_bytes, BP_HUGE_PAGE_BYTES, &small->slab));
        bp_status status = small->ops->start != NULL ? small->ops->start(small) : BP_OK;
        if (status != BP_OK && pinned_give_back_pages(pinned, &small->slab) == BP_OK)
            small->slab = (bp_pages){.bytes = 0};
        BP_TRY(status);
        small->ready = true;
    }
    uint8_t *at = small->ops->take(small, bytes, alignment);
    if (at == NULL)
        return bp_fail(
            BP_ERR_NO_HOST_MEMORY,
            "pinned memory: no room for %llu bytes at a multiple of %llu in the slab of %llu bytes, of which %llu "
            "are used by %zu pieces; free some, or set a larger slab_bytes",
            (unsigned long long)bytes, (unsigned long long)alignment, (unsigned long long)small->slab.bytes,
            (unsigned long long)small->ops->used(small), small->pieces.count);
    *address = at;
    return BP_OK;
}

bp_status bp_pinned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    if (pinned == NULL || address == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_allocate: the pinned memory or the output is NULL");
    if (bytes == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_allocate: 0 bytes");
    if (alignment > BP_HUGE_PAGE_BYTES || (alignment & (alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pinned_allocate: alignment %llu, expected a power of two up to %llu",
                       (unsigned long long)alignment, (unsigned long long)BP_HUGE_PAGE_BYTES);
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_allocate"));
    if (alignment == 0)
        alignment = DEFAULT_ALIGNMENT;
    pthread_mutex_lock(&pinned->lock);
    const bool planned = bytes >= pinned->config.planned_bytes;
    bp_pieces *pieces = planned ? &pinned->planned : &pinned->small.pieces;
    bp_pinned_piece piece = {.bytes = bytes};
    void *memory = NULL;
    /* room for one more entry, so that adding it cannot fail */
    bp_status status =
        bp_grow_array((void **)&pieces->pieces, &pieces->capacity, pieces->count, sizeof *pieces->pieces);
    if (status == BP_OK)
        status = planned ? pinned_get_pages(pinned, bytes, alignment, &piece.pages)
                         : small_allocate(pinned, bytes, alignment, &memory);
    if (status == BP_OK) {
        piece.address = planned ? piece.pages.address : memory;
        pieces_add(pieces, &piece);
        *address = piece.address;
    }
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

bp_status bp_pinned_free(bp_pinned *pinned, void *address)
{
    if (pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_free: the pinned memory is NULL");
    if (address == NULL)
        return BP_OK;
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_free"));
    pthread_mutex_lock(&pinned->lock);
    bp_small *small = &pinned->small;
    bp_status status = BP_OK;
    size_t index;
    if (pieces_find(&pinned->planned, address, &index)) {
        status = pinned_give_back_pages(pinned, &pinned->planned.pieces[index].pages);
        if (status == BP_OK)
            pieces_remove(&pinned->planned, index);
    } else if (pieces_find(&small->pieces, address, &index)) {
        if (small->ops->give != NULL)
            small->ops->give(small, address);
        pieces_remove(&small->pieces, index);
    } else {
        status = bp_fail(BP_ERR_INVALID_ARGUMENT,
                         "bp_pinned_free: %p is not the address of an allocated piece (%zu pieces are allocated)",
                         address, pinned->planned.count + small->pieces.count);
    }
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

bp_status bp_pinned_statistics_get(const bp_pinned *pinned, bp_pinned_statistics *statistics)
{
    if (pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_statistics_get: the pinned memory is NULL");
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_statistics_get"));
    pthread_mutex_t *lock = (pthread_mutex_t *)&pinned->lock; /* a getter: only the lock changes */
    pthread_mutex_lock(lock);
    const bp_small *small = &pinned->small;
    const bp_pinned_statistics now = {
        .size = sizeof now,
        .pinned_bytes = pinned->pinned_bytes,
        .peak_pinned_bytes = pinned->peak_pinned_bytes,
        .planned_pieces = pinned->planned.count,
        .planned_bytes = pinned->planned.bytes,
        .small_pieces = small->pieces.count,
        .small_bytes = small->pieces.bytes,
        .slab_bytes = small->slab.bytes,
        .slab_used_bytes = small->slab.bytes > 0 ? small->ops->used(small) : 0,
        .huge_bytes = pinned->source.huge_bytes,
        .touch_ns = pinned->source.touch_ns,
        .pin_ns = pinned->source.pin_ns,
        .numa_node = pinned->source.node,
        .allocator = pinned->name,
        .because = pinned->because,
    };
    pthread_mutex_unlock(lock);
    return bp_struct_write("bp_pinned_statistics_get", &now, sizeof now, statistics);
}
