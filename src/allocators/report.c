/* What is going on in a pool: sums, live requests, the sequence of acquires. Cold, and beside the hot path: what it reads of other
 * threads' requests are relaxed atomics. */
#include <stdio.h>
#include <string.h>

#include "allocators/explain.h"
#include "core/fail.h"
#include "core/structs.h"
#include "core/text.h"

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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_statistics_get: needs a pool");
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
    s.live_bytes = bp_tally_live(&pool->tally);
    s.peak_live_bytes = bp_read(&pool->tally.peak);
    return bp_struct_write("bp_pool_statistics_get", &s, sizeof s, statistics);
}

static void get_live(const bp_pool *pool, uint32_t id, uint32_t references, bp_live_request *live)
{
    const bp_entry *r = &pool->entries[id];
    const bp_plan_request *request = &pool->requests[id];
    const bp_stream *stream =
        atomic_load_explicit((_Atomic(const bp_stream *) *)&r->since_stream, memory_order_acquire);
    *live = (bp_live_request){.size = sizeof *live,
                              .id = id,
                              .role = request->role,
                              .ordinal = request->ordinal,
                              .references = references,
                              .unit = request->unit,
                              .stream = stream != NULL ? stream->name : "",
                              .address = atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed),
                              .bytes = r->bytes,
                              .acquire_number = bp_read(&r->since_acquire),
                              .step = bp_read(&r->since_step)};
}

bp_status bp_pool_live(const bp_pool *pool, bp_live_request *entries, size_t capacity, size_t *count)
{
    if (pool == NULL || count == NULL || (entries == NULL && capacity > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_live: needs a pool and a place for the count");
    size_t found = 0, stride = capacity > 0 ? entries[0].size : 0; /* the caller's struct may be longer, or shorter */
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_dump: needs a pool and a place for the length");
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
             (unsigned long long)(bp_tally_live(&pool->tally)), (unsigned long long)acquires, (unsigned long long)hash,
             (unsigned long long)bp_read(&pool->step));
    bp_lines_add(&l, line);
    *needed = l.needed;
    return BP_OK;
}

bp_status bp_pool_sequence(const bp_pool *pool, uint64_t *hash, uint64_t *acquires)
{
    if (pool == NULL || hash == NULL || acquires == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_sequence: needs a pool and places for hash and count");
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_address: needs a pool and places for address and bytes");
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
    *address = atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed);
    return BP_OK;
}
