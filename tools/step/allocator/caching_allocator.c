/* SPDX-License-Identifier: Apache-2.0 */
/* The caching allocator's model: settings, searches, splits, merges, segments and their releases. Expandable segments are in
 * expandable.c. */
#include "step/allocator/allocator.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define MIB ((uint64_t)1 << 20)
#define SMALLEST_BLOCK ((uint64_t)512)
#define LARGEST_SMALL MIB         /* blocks of the small pool */
#define LARGEST_PACKED (10 * MIB) /* smaller blocks share segments */
#define SEGMENT_STEP (2 * MIB)

/* ---- settings ---------------------------------------------------------------------------------------------------- */

void bp_caching_settings_init(bp_caching_settings *settings)
{
    *settings = (bp_caching_settings){.large_segment_bytes = 20 * MIB, .max_rounding_bytes = 20 * MIB};
}

/* A setting that snapshots have in their text alone: "key:number", in MiB. */
static void read_mebibytes(const char *text, const char *key, uint64_t *bytes)
{
    const char *found = text != NULL ? strstr(text, key) : NULL;
    if (found == NULL)
        return;
    char *end;
    const char *number = found + strlen(key);
    unsigned long long value = strtoull(number, &end, 10);
    if (end != number && value < BP_LARGEST_REQUEST / MIB)
        *bytes = value * MIB;
}

void bp_caching_settings_read(const bp_trace *trace, bp_caching_settings *settings)
{
    bp_caching_settings_init(settings);
    if (!trace->settings.recorded)
        return;
    settings->expandable_segments = trace->settings.expandable_segments;
    settings->max_split_bytes = trace->settings.max_split_bytes;
    settings->garbage_collection_threshold = trace->settings.garbage_collection_threshold;
    for (size_t i = 0; i < 16; i++)
        settings->roundup_power2_divisions[i] = trace->settings.roundup_power2_divisions[i];
    read_mebibytes(trace->settings.text, "max_non_split_rounding_mb:", &settings->max_rounding_bytes);
    read_mebibytes(trace->settings.text, "large_segment_size_mb:", &settings->large_segment_bytes);
}

static unsigned log2_of(uint64_t value)
{
    return 63 - (unsigned)__builtin_clzll(value);
}

static bp_status check_settings(const bp_caching_settings *settings)
{
    for (size_t i = 0; i < 16; i++) {
        uint64_t divisions = settings->roundup_power2_divisions[i];
        if (divisions != 0 && (!bp_is_power_of_two(divisions) || divisions > MIB))
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "roundup_power2_divisions: %llu is not a power of two up to 1048576; PyTorch refuses others",
                           (unsigned long long)divisions);
    }
    double threshold = settings->garbage_collection_threshold;
    if (!(threshold >= 0 && threshold < 1))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "garbage_collection_threshold: %g; it must be in [0, 1)", threshold);
    if (settings->large_segment_bytes < SEGMENT_STEP || settings->large_segment_bytes % SEGMENT_STEP != 0 ||
        settings->large_segment_bytes > BP_LARGEST_REQUEST)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "large_segment_bytes: %llu is not a multiple of 2 MiB",
                       (unsigned long long)settings->large_segment_bytes);
    if (settings->device_bytes > BP_LARGEST_REQUEST || settings->limit_bytes > BP_LARGEST_REQUEST)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "device_bytes, limit_bytes: %llu, %llu; a device has at most 1 EiB",
                       (unsigned long long)settings->device_bytes, (unsigned long long)settings->limit_bytes);
    if (settings->max_split_bytes != 0 && settings->max_split_bytes < settings->large_segment_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "max_split_bytes: %llu; it must be 0 (unlimited) or at least %llu",
                       (unsigned long long)settings->max_split_bytes,
                       (unsigned long long)settings->large_segment_bytes);
    return BP_OK;
}

uint64_t bp_caching_round(const bp_caching_settings *settings, uint64_t bytes)
{
    if (bytes < SMALLEST_BLOCK)
        return SMALLEST_BLOCK;
    if (bytes >= BP_LARGEST_REQUEST) /* refused by bp_caching_allocate */
        return bytes;
    unsigned log2 = log2_of(bytes), row = log2 < 20 ? 0 : log2 - 20 > 15 ? 15 : log2 - 20;
    uint64_t divisions = settings->roundup_power2_divisions[row];
    if (divisions <= 1 || bytes <= SMALLEST_BLOCK * divisions)
        return (bytes + SMALLEST_BLOCK - 1) / SMALLEST_BLOCK * SMALLEST_BLOCK;
    uint64_t step = ((uint64_t)1 << log2) >> log2_of(divisions);
    return (bytes + step - 1) / step * step;
}

uint64_t bp_caching_segment_bytes(const bp_caching_settings *settings, uint64_t bytes)
{
    const uint64_t rounded = bp_caching_round(settings, bytes);
    if (rounded <= LARGEST_SMALL)
        return SEGMENT_STEP;
    if (rounded < LARGEST_PACKED)
        return settings->large_segment_bytes;
    return rounded < BP_LARGEST_REQUEST ? (rounded + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP : rounded;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

bp_status bp_caching_create(const bp_caching_settings *settings, const bp_caching_device *device,
                            bp_caching_allocator **allocator)
{
    BP_TRY(check_settings(settings));
    bp_caching_allocator *created;
    BP_TRY(bp_new_array(1, sizeof *created, (void **)&created));
    created->settings = *settings;
    if (created->settings.max_split_bytes == 0)
        created->settings.max_split_bytes = UINT64_MAX;
    if (device != NULL)
        created->device = *device;
    created->lowest_address = (uint64_t)1 << 63;
    *allocator = created;
    return BP_OK;
}

void bp_caching_destroy(bp_caching_allocator **allocator)
{
    if (allocator == NULL || *allocator == NULL)
        return;
    bp_caching_allocator *a = *allocator;
    *allocator = NULL;
    for (size_t i = 0; i < a->pool_count; i++)
        free(a->pools[i]);
    free(a->pools);
    while (a->expandables != NULL) {
        bp_expandable *expandable = a->expandables;
        a->expandables = expandable->next;
        free(expandable);
    }
    free(a->released);
    bp_blocks_finish(&a->blocks);
    free(a);
}

bp_status bp_caching_find_pool(bp_caching_allocator *a, uint32_t number, bool is_small, bp_blocks_pool **pool)
{
    while (a->pool_count <= number) {
        BP_TRY(bp_grow_array((void **)&a->pools, &a->pool_capacity, a->pool_count, sizeof *a->pools));
        bp_blocks_pool *pair; /* of large and small blocks */
        BP_TRY(bp_new_array(2, sizeof *pair, (void **)&pair));
        pair[0].number = pair[1].number = (uint32_t)a->pool_count;
        pair[1].is_small = true;
        a->pools[a->pool_count++] = pair;
    }
    *pool = &a->pools[number][is_small];
    return BP_OK;
}

bp_status bp_caching_set_pool(bp_caching_allocator *allocator, uint32_t number, bool own_allocator, bool no_split)
{
    bp_blocks_pool *pool;
    for (int is_small = 0; is_small < 2; is_small++) {
        BP_TRY(bp_caching_find_pool(allocator, number, is_small, &pool));
        pool->own_allocator = own_allocator;
        pool->no_split = no_split;
    }
    return BP_OK;
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

static void add_to(uint64_t *now, uint64_t *peak, uint64_t bytes)
{
    *now += bytes;
    if (*now > *peak)
        *peak = *now;
}

void bp_caching_count_reserved(bp_caching_allocator *a, uint64_t bytes)
{
    add_to(&a->counters.reserved_bytes, &a->counters.peak_reserved_bytes, bytes);
    a->counters.device_allocations++;
}

void bp_caching_count_active(bp_caching_allocator *a, const bp_caching_block *block)
{
    add_to(&a->counters.active_bytes, &a->counters.peak_active_bytes, block->bytes);
    add_to(&a->counters.requested_bytes, &a->counters.peak_requested_bytes, block->requested_bytes);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

void bp_caching_insert_free(bp_caching_block *freed)
{
    freed->search_base = freed->pool->searches;
    bp_block_set_insert(&freed->pool->free, freed);
}

static bool is_active(const bp_caching_block *block)
{
    return block->allocated || block->pending;
}

bool bp_caching_merge(bp_caching_allocator *a, bp_caching_block *into, bp_caching_block *from)
{
    if (from == NULL || is_active(from) || into->mapped != from->mapped)
        return false;
    bp_block_set_remove(from->mapped ? &from->pool->free : &from->pool->unmapped, from);
    if (into->previous == from) {
        into->address = from->address;
        into->previous = from->previous;
        if (into->previous != NULL)
            into->previous->next = into;
    } else {
        into->next = from->next;
        if (into->next != NULL)
            into->next->previous = into;
    }
    into->bytes += from->bytes;
    bp_blocks_return(&a->blocks, from);
    return true;
}

bp_status bp_caching_split(bp_caching_allocator *a, bp_caching_block *first, uint64_t bytes, bp_caching_block **rest)
{
    bp_caching_block *added;
    BP_TRY(bp_blocks_new(&a->blocks, &added));
    added->stream = first->stream;
    added->address = first->address + bytes;
    added->bytes = first->bytes - bytes;
    added->pool = first->pool;
    added->expandable = first->expandable;
    added->mapped = first->mapped;
    added->previous = first;
    added->next = first->next;
    if (added->next != NULL)
        added->next->previous = added;
    first->next = added;
    first->bytes = bytes;
    *rest = added;
    return BP_OK;
}

static bool splits(const bp_caching_allocator *a, const bp_caching_request *request, const bp_caching_block *block)
{
    uint64_t rest = block->bytes - request->bytes;
    if (block->pool->no_split)
        return false;
    if (block->pool->is_small || request->expands)
        return rest >= SMALLEST_BLOCK;
    return request->bytes < a->settings.max_split_bytes && rest > LARGEST_SMALL;
}

/* ---- searches ---------------------------------------------------------------------------------------------------- */

static uint64_t bytes_with_growth(const bp_caching_block *block)
{
    return block->bytes + (block->next != NULL && !block->next->mapped ? block->next->bytes : 0);
}

/* Best fit. A block that can grow counts with the bytes that it can grow to. */
static bp_caching_block *find_cached(const bp_caching_allocator *a, const bp_caching_request *request)
{
    const bp_block_set *set = &request->pool->free;
    uint64_t stream = request->stream;
    bp_caching_block *found = bp_block_set_from(set, (bp_block_key){stream, request->bytes, 0});
    if (found == NULL || found->stream != stream)
        return NULL;
    if (found->expandable != NULL && request->expands) {
        bp_caching_block *next = bp_block_set_after(set, bp_block_key_of(found));
        while (found->expandable != NULL && next != NULL && next->stream == stream &&
               bytes_with_growth(next) < bytes_with_growth(found)) {
            found = next;
            next = bp_block_set_after(set, bp_block_key_of(found));
        }
    } else if (found->expandable != NULL) {
        while (found != NULL && found->expandable != NULL && found->stream == stream)
            found = bp_block_set_after(set, bp_block_key_of(found));
        if (found == NULL || found->stream != stream)
            return NULL;
    }
    uint64_t limit = a->settings.max_split_bytes;
    if (request->bytes < limit && found->bytes >= limit)
        return NULL;
    if (request->bytes >= limit && found->bytes - request->bytes >= a->settings.max_rounding_bytes)
        return NULL;
    return found;
}

static bool collects_garbage(const bp_caching_allocator *a)
{
    return a->settings.limit_bytes != 0 && a->settings.garbage_collection_threshold > 0;
}

static bp_caching_block *take_cached(bp_caching_allocator *a, const bp_caching_request *request)
{
    request->pool->searches += collects_garbage(a);
    if (a->search_fails) {
        a->search_fails = false;
        return NULL;
    }
    bp_caching_block *found = find_cached(a, request);
    if (found != NULL)
        bp_block_set_remove(&request->pool->free, found);
    return found;
}

static bp_status make_request(bp_caching_allocator *a, uint64_t bytes, uint64_t stream, uint32_t number,
                              bp_caching_request *request)
{
    if (bytes >= BP_LARGEST_REQUEST)
        return bp_fail(BP_ERR_OVERFLOW, "an allocation of %llu bytes; PyTorch refuses 1 EiB and more",
                       (unsigned long long)bytes);
    *request = (bp_caching_request){.bytes = bp_caching_round(&a->settings, bytes), .stream = stream};
    bool is_small = request->bytes <= LARGEST_SMALL;
    BP_TRY(bp_caching_find_pool(a, number, is_small, &request->pool));
    request->expands = a->settings.expandable_segments && !request->pool->own_allocator;
    request->segment_bytes = bp_caching_segment_bytes(&a->settings, bytes);
    return BP_OK;
}

bool bp_caching_is_cached(const bp_caching_allocator *a, uint64_t bytes, uint64_t stream, uint32_t pool)
{
    bp_caching_request request = {.bytes = bp_caching_round(&a->settings, bytes), .stream = stream};
    if (pool >= a->pool_count || bytes >= BP_LARGEST_REQUEST)
        return false;
    request.pool = &a->pools[pool][request.bytes <= LARGEST_SMALL];
    request.expands = a->settings.expandable_segments && !request.pool->own_allocator;
    return find_cached(a, &request) != NULL;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

bool bp_caching_has_memory(const bp_caching_allocator *a, uint64_t bytes)
{
    uint64_t capacity = a->settings.device_bytes, reserved = a->counters.reserved_bytes;
    return capacity == 0 || (reserved <= capacity && bytes <= capacity - reserved);
}

bool bp_caching_take_addresses(bp_caching_allocator *a, uint64_t bytes, uint64_t *address)
{
    uint64_t taken =
        bytes <= UINT64_MAX - SEGMENT_STEP ? (bytes + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP : UINT64_MAX;
    if (taken >= a->lowest_address)
        return false;
    a->lowest_address -= taken;
    *address = a->lowest_address;
    return true;
}

/* A block of device memory; NULL if there is none. */
static bp_status obtain(bp_caching_allocator *a, const bp_caching_request *request, bp_caching_block **obtained)
{
    *obtained = NULL;
    uint64_t bytes = request->segment_bytes, limit = a->settings.limit_bytes, address;
    if (limit != 0 && (a->counters.reserved_bytes > limit || bytes > limit - a->counters.reserved_bytes))
        return BP_OK;
    if (request->expands)
        return bp_caching_expand(a, request, obtained);
    bool has_memory = a->device.allocate != NULL
                          ? a->device.allocate(a->device.user, bytes, &address)
                          : bp_caching_has_memory(a, bytes) && bp_caching_take_addresses(a, bytes, &address);
    if (!has_memory)
        return BP_OK;
    bp_caching_block *segment;
    BP_TRY(bp_blocks_new(&a->blocks, &segment));
    segment->stream = request->stream;
    segment->address = address;
    segment->bytes = bytes;
    segment->pool = request->pool;
    segment->mapped = true;
    a->counters.segments++;
    bp_caching_count_reserved(a, bytes);
    *obtained = segment;
    return BP_OK;
}

bool bp_caching_may_release(bp_caching_allocator *a, bp_caching_reason reason, bool is_mapping, uint64_t address,
                            uint64_t bytes)
{
    return a->device.release == NULL || a->device.release(a->device.user, reason, is_mapping, address, bytes);
}

static bool release_segment(bp_caching_allocator *a, bp_caching_block *segment, bp_caching_reason reason)
{
    if (!bp_caching_may_release(a, reason, false, segment->address, segment->bytes))
        return false;
    a->counters.reserved_bytes -= segment->bytes;
    a->counters.segments--;
    a->counters.device_releases++;
    bp_block_set_remove(&segment->pool->free, segment);
    bp_blocks_return(&a->blocks, segment);
    return true;
}

static bool is_split(const bp_caching_block *block)
{
    return block->previous != NULL || block->next != NULL;
}

static bp_caching_block *first_of(const bp_block_set *set)
{
    return bp_block_set_from(set, (bp_block_key){0, 0, 0});
}

/* Large unsplit blocks of the default pool that are of average age or older, until enough is released. */
static void collect_garbage(bp_caching_allocator *a)
{
    uint64_t threshold = (uint64_t)(a->settings.garbage_collection_threshold * (double)a->settings.limit_bytes);
    if (a->counters.reserved_bytes <= threshold || a->pool_count == 0)
        return;
    bp_blocks_pool *pool = &a->pools[0][false];
    uint64_t target = a->counters.reserved_bytes - threshold, released = 0, age = 0, count = 0;
    for (bp_caching_block *b = first_of(&pool->free); b != NULL;
         b = bp_block_set_after(&pool->free, bp_block_key_of(b))) {
        if (!is_split(b)) {
            age += pool->searches - b->search_base;
            count++;
        }
    }
    for (bool progress = true; released < target && progress && count > 0;) {
        double oldest = (double)age / (double)count;
        progress = false;
        bp_caching_block *next;
        for (bp_caching_block *b = first_of(&pool->free); b != NULL; b = next) {
            next = bp_block_set_after(&pool->free, bp_block_key_of(b));
            uint64_t block_age = pool->searches - b->search_base, bytes = b->bytes;
            if (is_split(b) || b->expandable != NULL || (double)block_age < oldest ||
                !release_segment(a, b, BP_CACHING_GARBAGE))
                continue;
            progress = true;
            released += bytes;
            age -= block_age;
            count--;
        }
    }
}

/* With max_split_bytes: the smallest block that suffices, or several, the largest first. */
static bool release_oversize(bp_caching_allocator *a, const bp_caching_request *request)
{
    uint64_t limit = a->settings.max_split_bytes;
    if (limit == UINT64_MAX)
        return false;
    bp_block_set *set = &request->pool->free;
    bp_block_key key = {request->stream, request->bytes < limit ? limit : request->bytes, 0};
    bp_caching_block *found = bp_block_set_from(set, key);
    if (found != NULL && found->stream == request->stream && found->expandable == NULL)
        return release_segment(a, found, BP_CACHING_OVERSIZE);
    uint64_t released = 0;
    bp_caching_block *next = found != NULL
                                 ? bp_block_set_before(set, bp_block_key_of(found))
                                 : bp_block_set_before(set, (bp_block_key){UINT64_MAX, UINT64_MAX, UINT64_MAX});
    while (next != NULL && released < key.bytes && next->bytes >= limit && next->stream == request->stream) {
        found = next;
        next = bp_block_set_before(set, bp_block_key_of(found));
        uint64_t bytes = found->bytes;
        if (found->expandable == NULL) {
            if (!release_segment(a, found, BP_CACHING_OVERSIZE))
                return false;
            released += bytes;
        }
    }
    return released >= key.bytes;
}

static bp_status release_unused(bp_caching_allocator *a, bp_blocks_pool *pool)
{
    size_t count = 0;
    bp_caching_block *next;
    for (bp_caching_block *b = first_of(&pool->free); b != NULL; b = next) {
        next = bp_block_set_after(&pool->free, bp_block_key_of(b));
        if (b->expandable != NULL) {
            BP_TRY(bp_grow_array((void **)&a->released, &a->released_capacity, count, sizeof(bp_caching_block *)));
            a->released[count++] = b;
        } else if (!is_split(b)) {
            release_segment(a, b, BP_CACHING_CACHED);
        }
    }
    for (size_t i = 0; i < count; i++)
        BP_TRY(bp_caching_unmap(a, a->released[i]));
    return BP_OK;
}

bp_status bp_caching_release(bp_caching_allocator *allocator, uint32_t pool)
{
    if (pool >= allocator->pool_count)
        return BP_OK;
    /* PyTorch begins with the large blocks of the default pool, and with the small blocks of others. */
    BP_TRY(release_unused(allocator, &allocator->pools[pool][pool != 0]));
    return release_unused(allocator, &allocator->pools[pool][pool == 0]);
}

/* ---- allocation and free ----------------------------------------------------------------------------------------- */

bp_status bp_caching_allocate(bp_caching_allocator *a, uint64_t bytes, uint64_t stream, uint32_t pool,
                              bp_caching_block **allocated)
{
    bp_caching_request request;
    BP_TRY(make_request(a, bytes, stream, pool, &request));
    bp_caching_block *found = take_cached(a, &request), *rest;
    if (found == NULL) {
        if (collects_garbage(a))
            collect_garbage(a);
        BP_TRY(obtain(a, &request, &found));
    }
    if (found == NULL && release_oversize(a, &request))
        BP_TRY(obtain(a, &request, &found));
    /* Private pools are used while graphs are captured and in use_mem_pool: PyTorch releases nothing then. */
    if (found == NULL && pool == 0 && (a->device.synchronize == NULL || a->device.synchronize(a->device.user))) {
        BP_TRY(bp_caching_release(a, 0));
        a->counters.retries++;
        BP_TRY(obtain(a, &request, &found));
    }
    if (found == NULL) {
        a->counters.failures++;
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY,
                       "an allocation of %llu bytes: the device has no memory; %llu bytes are reserved and %llu active",
                       (unsigned long long)bytes, (unsigned long long)a->counters.reserved_bytes,
                       (unsigned long long)a->counters.active_bytes);
    }
    if (splits(a, &request, found)) {
        BP_TRY(bp_caching_split(a, found, request.bytes, &rest));
        bp_caching_insert_free(rest);
    }
    found->allocated = true;
    found->requested_bytes = bytes;
    bp_caching_count_active(a, found);
    *allocated = found;
    return BP_OK;
}

void bp_caching_request_free(bp_caching_allocator *a, bp_caching_block *freed)
{
    (void)a;
    freed->allocated = false;
    freed->pending = true;
}

void bp_caching_complete_free(bp_caching_allocator *a, bp_caching_block *freed)
{
    a->counters.active_bytes -= freed->bytes;
    a->counters.requested_bytes -= freed->requested_bytes;
    freed->allocated = freed->pending = false;
    freed->requested_bytes = 0;
    bp_caching_merge(a, freed, freed->previous);
    bp_caching_merge(a, freed, freed->next);
    bp_caching_insert_free(freed);
}

bool bp_caching_is_free(const bp_caching_allocator *a, const bp_caching_segment *segment, uint64_t address,
                        uint64_t bytes)
{
    if (segment->pool >= a->pool_count)
        return false;
    bp_block_key key = {segment->stream, bytes, address};
    const bp_caching_block *found = bp_block_set_from(&a->pools[segment->pool][segment->is_small].free, key);
    return found != NULL && found->stream == segment->stream && found->bytes == bytes && found->address == address &&
           (found->expandable != NULL) == segment->is_expandable;
}

uint64_t bp_caching_address(const bp_caching_block *block)
{
    return block->address;
}

uint64_t bp_caching_bytes(const bp_caching_block *block)
{
    return block->bytes;
}

const bp_caching_counters *bp_caching_get_counters(const bp_caching_allocator *allocator)
{
    return &allocator->counters;
}

typedef struct visiting {
    bp_caching_visitor *visit;
    void *user;
} visiting;

/* Visits the segment of its first block. */
static void visit_segment(void *user, const bp_caching_block *first)
{
    const visiting *v = user;
    if (first->previous != NULL)
        return;
    const bp_caching_segment segment = {.address = first->address,
                                        .stream = first->stream,
                                        .pool = first->pool->number,
                                        .is_small = first->pool->is_small,
                                        .is_expandable = first->expandable != NULL};
    for (const bp_caching_block *block = first; block != NULL; block = block->next) {
        const bp_caching_piece piece = {.bytes = block->bytes,
                                        .requested_bytes = block->requested_bytes,
                                        .state = !block->mapped     ? BP_CACHING_UNMAPPED
                                                 : block->pending   ? BP_CACHING_PENDING
                                                 : block->allocated ? BP_CACHING_ALLOCATED
                                                                    : BP_CACHING_FREE};
        v->visit(v->user, &segment, block->address, &piece);
    }
}

void bp_caching_visit(const bp_caching_allocator *allocator, bp_caching_visitor *visit, void *user)
{
    visiting v = {visit, user};
    bp_blocks_each(&allocator->blocks, visit_segment, &v);
}
