/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of requests and buffers, statistics, live requests, the hash of acquires. Cold path: requests of other threads are read as
 * relaxed atomics. */
#include "allocators/report.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdio.h>
#include <string.h>

#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/residency.h"
#include "core/text.h"

/* ---- sentences --------------------------------------------------------------------------------------------------- */

const char *bp_explain_request(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES])
{
    const bp_plan_request *request = &pool->requests[id];
    const char *role = bp_role_name((bp_role)request->role);
    const char *unit = request->unit[0] != '\0' ? request->unit : "outside units";
    if (request->bucket != NULL)
        snprintf(text, BP_REQUEST_BYTES, "%s of %.80s, bucket %.40s", role, unit, request->bucket);
    else
        snprintf(text, BP_REQUEST_BYTES, "%s of %.80s, bucket.%u", role, unit, request->ordinal);
    return text;
}

static const bp_stream *since_stream(const bp_entry *r)
{
    return atomic_load_explicit((_Atomic(const bp_stream *) *)&r->since_stream, memory_order_acquire);
}

const char *bp_explain_since(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES])
{
    const bp_entry *r = &pool->entries[id];
    const bp_stream *stream = since_stream(r);
    snprintf(text, BP_REQUEST_BYTES, "acquire %llu (stream %s, step %llu)",
             (unsigned long long)bp_read(&r->since_acquire), stream != NULL ? stream->name : "unknown",
             (unsigned long long)bp_read(&r->since_step));
    return text;
}

/* "buffer 3 (slab param at 805306368, 402653184 bytes)". */
static void explain_buffer(const bp_pool *pool, uint32_t segment, char text[BP_REQUEST_BYTES])
{
    const bp_segment_place *place = &pool->places[segment];
    snprintf(text, BP_REQUEST_BYTES, "buffer %u (slab %.40s at %llu, %llu bytes)", segment,
             pool->slab_infos[place->slab].group, (unsigned long long)place->offset,
             (unsigned long long)pool->segments[segment].bytes);
}

void bp_explain_deviation(const bp_pool *pool, uint32_t id, uint32_t before, uint32_t now,
                          char text[BP_EXPLANATION_BYTES])
{
    char request[BP_REQUEST_BYTES], first[BP_REQUEST_BYTES], second[BP_REQUEST_BYTES];
    explain_buffer(pool, before, first);
    explain_buffer(pool, now, second);
    snprintf(text, BP_EXPLANATION_BYTES, "pool %.40s: %s moved from %s to %s", pool->info.name,
             bp_explain_request(pool, id, request), first, second);
}

/* The pool's present position: "acquire 324, step 5". */
static void explain_moment(const bp_pool *pool, char text[64])
{
    snprintf(text, 64, "acquire %llu, step %llu", (unsigned long long)bp_tally_acquires(&pool->tally),
             (unsigned long long)bp_read(&pool->step));
}

/* The segment of the request's possible memory that the holder has. */
static uint32_t find_held(const bp_pool *pool, const bp_entry *r, uint32_t holder)
{
    for (uint32_t s = r->home.first; s < r->home.first + r->home.count; s++) {
        if (bp_segment_holder(&pool->segments[s]) == holder)
            return s;
    }
    const bp_range copies = bp_copies_of(pool, r);
    for (uint32_t i = 0; i < copies.count; i++) {
        uint32_t s = pool->copies[copies.first + i];
        if (bp_segment_holder(&pool->segments[s]) == holder)
            return s;
    }
    return r->home.first; /* released meanwhile */
}

bp_status bp_fail_held(const bp_pool *pool, uint32_t id, uint32_t holder)
{
    const bp_entry *r = &pool->entries[id];
    char request[BP_REQUEST_BYTES], buffer[BP_REQUEST_BYTES], other[BP_REQUEST_BYTES], moment[64];
    bp_explain_request(pool, id, request);
    explain_moment(pool, moment);
    if (r->home.count > 0)
        explain_buffer(pool, find_held(pool, r, holder), buffer);
    else
        snprintf(buffer, sizeof buffer, "its buffer");
    if (holder == BP_HELD_BY_LAUNCH)
        return bp_fail(
            BP_ERR_SCHEDULE,
            "pool %.40s: %s cannot have %s: the launch of a graph has it (between bp_capture_before_launch and "
            "bp_capture_launched); %s",
            pool->info.name, request, buffer, moment);
    if (holder == BP_HELD_BY_OFFLOAD)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot have %s: its group is offloaded; %s", pool->info.name,
                       request, buffer, moment);
    if (holder == BP_NONE || holder >= bp_request_count(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot have %s: it was held a moment ago; %s", pool->info.name,
                       request, buffer, moment);
    const bp_entry *h = &pool->entries[holder];
    if (BP_WORD_REFERENCES(atomic_load_explicit(h->word, memory_order_relaxed)) == 0)
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: %s cannot have %s: %s is acquired or released at the same time; %s",
                       pool->info.name, request, buffer, bp_explain_request(pool, holder, other), moment);
    char since[BP_REQUEST_BYTES];
    return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot have %s: %s holds it since %s; %s", pool->info.name, request,
                   buffer, bp_explain_request(pool, holder, other), bp_explain_since(pool, holder, since), moment);
}

bp_status bp_fail_order(const bp_pool *pool, uint32_t id, const char *what)
{
    char request[BP_REQUEST_BYTES], moment[64];
    explain_moment(pool, moment);
    return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s %s; %s", pool->info.name, bp_explain_request(pool, id, request),
                   what, moment);
}

bp_status bp_fail_unknown(const bp_pool *pool, uint32_t id)
{
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "pool %.40s: request %u is not bound; there are %u", pool->info.name, id,
                   atomic_load_explicit((atomic_uint *)&pool->request_count, memory_order_relaxed));
}

bp_status bp_check_ids(const bp_pool *pool, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= bp_request_count(pool))
            return bp_fail_unknown(pool, ids[i]);
    }
    return BP_OK;
}

bp_status bp_fail_twice(const bp_pool *pool, uint32_t id)
{
    char request[BP_REQUEST_BYTES];
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "pool %.40s: %s occurs twice in one call", pool->info.name,
                   bp_explain_request(pool, id, request));
}

bp_status bp_fail_offloaded(const bp_pool *pool, uint32_t id, uint32_t slab)
{
    char what[96];
    snprintf(what, sizeof what, "is offloaded with group %.40s; restore the group before",
             pool->slab_infos[slab].group);
    return bp_fail_order(pool, id, what);
}

bp_status bp_fail_race(const bp_pool *pool, uint32_t id)
{
    if (bp_home_is_closed(pool, id))
        return bp_fail_offloaded(pool, id, bp_home_slab(pool, id));
    return bp_fail_order(pool, id, "is being acquired or released by another call at the same time");
}

bp_status bp_fail_busy(const bp_pool *pool, const uint32_t *ids, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (ids[i] == ids[index])
            return bp_fail_twice(pool, ids[index]);
    }
    return bp_fail_race(pool, ids[index]);
}

bp_status bp_fail_streams(const bp_pool *pool, uint32_t id)
{
    char what[64];
    snprintf(what, sizeof what, "is held on %d streams already, the largest number", BP_LIVE_STREAMS);
    return bp_fail_order(pool, id, what);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static uint32_t references_of(const bp_pool *pool, uint32_t id)
{
    uint64_t word = atomic_load_explicit(pool->entries[id].word, memory_order_relaxed);
    return BP_WORD_ID(word) == id ? BP_WORD_REFERENCES(word) : 0;
}

uint32_t bp_pool_references(const bp_pool *pool, uint32_t id)
{
    return pool != NULL && id < bp_request_count(pool) ? references_of(pool, id) : 0;
}

bp_status bp_pool_statistics_get(const bp_pool *pool, bp_pool_statistics *statistics)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_statistics_get: the pool is NULL");
    bp_pool_statistics s = {.size = sizeof s, .requests = bp_request_count(pool)};
    for (uint32_t id = 0; id < s.requests; id++) {
        const bp_entry *r = &pool->entries[id];
        s.acquires += bp_read(&r->acquires);
        s.repeated += bp_read(&r->repeated);
        s.releases += bp_read(&r->releases);
        s.cancelled += bp_read(&r->cancelled);
        s.records += bp_read(&r->records);
        s.elided += bp_read(&r->elided);
        s.waits += bp_read(&r->waits);
        s.deviations += bp_read(&r->deviations);
        s.overflows += bp_read(&r->overflows);
        s.dynamic += bp_read(&r->dynamic);
        s.live_requests += references_of(pool, id) > 0;
    }
    for (size_t i = 0; i < pool->slabs.count; i++)
        s.slab_bytes += pool->slabs.slabs[i].bytes;
    s.busy = bp_read(&pool->busy);
    s.refused = bp_read(&pool->refused);
    s.live_bytes = bp_tally_live(&pool->tally, &s.peak_live_bytes);
    return bp_struct_write("bp_pool_statistics_get", &s, sizeof s, statistics);
}

static void get_live(const bp_pool *pool, uint32_t id, uint32_t references, bp_live_request *live)
{
    const bp_entry *r = &pool->entries[id];
    const bp_plan_request *request = &pool->requests[id];
    const bp_stream *stream = since_stream(r);
    *live = (bp_live_request){.size = sizeof *live,
                              .id = id,
                              .role = request->role,
                              .ordinal = request->ordinal,
                              .references = references,
                              .unit = request->unit,
                              .stream = stream != NULL ? stream->name : "",
                              .address = bp_entry_address(r),
                              .bytes = r->bytes,
                              .acquire_number = bp_read(&r->since_acquire),
                              .step = bp_read(&r->since_step)};
}

bp_status bp_pool_live(const bp_pool *pool, bp_live_request *entries, size_t capacity, size_t *count)
{
    if (pool == NULL || count == NULL || (entries == NULL && capacity > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_live: the pool or the count is NULL");
    size_t found = 0, stride = capacity > 0 ? entries[0].size : 0; /* the caller's struct may have another size */
    for (uint32_t id = 0, end = bp_request_count(pool); id < end; id++) {
        uint32_t references = references_of(pool, id);
        if (references == 0)
            continue;
        if (found < capacity) {
            bp_live_request live;
            get_live(pool, id, references, &live);
            BP_TRY(bp_struct_init("bp_pool_live", (char *)entries + found * stride, stride, &live, sizeof live));
        }
        found++;
    }
    *count = found;
    return BP_OK;
}

bp_status bp_pool_dump(const bp_pool *pool, char *text, size_t capacity, size_t *needed)
{
    if (pool == NULL || (text == NULL && capacity > 0) || needed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_dump: the pool or the length is NULL");
    bp_lines l;
    bp_lines_init(&l, text, capacity);
    char line[BP_EXPLANATION_BYTES], request[BP_REQUEST_BYTES];
    uint64_t live_requests = 0, hash = 0, acquires = 0;
    for (uint32_t id = 0, end = bp_request_count(pool); id < end; id++) {
        uint32_t references = references_of(pool, id);
        if (references == 0)
            continue;
        bp_live_request live;
        get_live(pool, id, references, &live);
        snprintf(line, sizeof line, "%s: %u reference%s since acquire %llu (stream %s, step %llu), %llu bytes at %p\n",
                 bp_explain_request(pool, id, request), references, references == 1 ? "" : "s",
                 (unsigned long long)live.acquire_number, live.stream, (unsigned long long)live.step,
                 (unsigned long long)live.bytes, live.address);
        bp_lines_add(&l, line);
        live_requests++;
    }
    BP_TRY(bp_pool_sequence(pool, &hash, &acquires));
    snprintf(line, sizeof line,
             "pool %.40s (%s): %llu live requests, %llu bytes; %llu acquires, sequence %016llx, step %llu\n",
             pool->info.name, bp_policy_name(pool->info.policy), (unsigned long long)live_requests,
             (unsigned long long)bp_tally_live(&pool->tally, NULL), (unsigned long long)acquires,
             (unsigned long long)hash, (unsigned long long)bp_read(&pool->step));
    bp_lines_add(&l, line);
    *needed = l.needed;
    return BP_OK;
}

bp_status bp_pool_sequence(const bp_pool *pool, uint64_t *hash, uint64_t *acquires)
{
    if (pool == NULL || hash == NULL || acquires == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_sequence: the pool, the hash or the count is NULL");
    uint64_t sum = 0;
    for (uint32_t id = 0, end = bp_request_count(pool); id < end; id++)
        sum += bp_read(&pool->entries[id].hash);
    *hash = sum;
    *acquires = bp_tally_acquires(&pool->tally);
    return BP_OK;
}

bp_status bp_pool_address(const bp_pool *pool, uint32_t id, void **address, uint64_t *bytes)
{
    if (pool == NULL || address == NULL || bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_address: the pool, the address or the bytes are NULL");
    if (id >= bp_request_count(pool))
        return bp_fail_unknown(pool, id);
    const bp_entry *r = &pool->entries[id];
    *bytes = r->bytes;
    if (references_of(pool, id) == 0 && (r->kind == BP_KIND_DYNAMIC || r->kind == BP_KIND_UNUSED))
        return bp_fail_order(pool, id, "has no memory now: it is not live");
    if (references_of(pool, id) == 0 && r->kind == BP_KIND_CHOSEN) {
        *address = pool->segments[r->home.first].address;
        return BP_OK;
    }
    *address = bp_entry_address(r);
    return BP_OK;
}
