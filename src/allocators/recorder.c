/* SPDX-License-Identifier: Apache-2.0 */
/* Event recorder of a pool, traces for callers, and conversion of a trace into a recorded schedule. */
#include "allocators/recorder.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "allocators/observers.h"
#include "allocators/report.h"
#include "core/clock.h"

bp_status bp_recorder_create(size_t entries, bool timestamps, bp_recorder **recorder)
{
    void *memory;
    size_t size = 1;
    while (size < entries)
        size *= 2;
    BP_TRY(bp_new_array(1, sizeof(bp_recorder), &memory));
    bp_recorder *made = memory;
    size_t bytes = size > 1 ? size * sizeof *made->ring : 64;
    made->ring = aligned_alloc(64, bytes);
    if (made->ring == NULL) {
        free(made);
        return bp_fail_memory(bytes);
    }
    memset(made->ring, 0, bytes);
    made->mask = size - 1;
    made->timestamps = timestamps;
    *recorder = made;
    return BP_OK;
}

void bp_recorder_destroy(bp_recorder **recorder)
{
    if (*recorder == NULL)
        return;
    free((*recorder)->ring);
    free(*recorder);
    *recorder = NULL;
}

/* True if a newer event owns the record's slot. The atomics here and around it are sequentially consistent: a writer that finds no newer
 * owner has stored its record before that owner starts. The owner's stores are releases: plain ones may overtake the store that takes a slot on
 * processors that take it by an exclusive pair. */
static bool is_lapped(const bp_recorder *recorder, uint64_t number)
{
    return atomic_load(&recorder->next) - number > recorder->mask + 1;
}

/* The clock is read before the slot is taken: an event that follows from this one then has a later time. */
static void recorder_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    bp_recorder *recorder = atomic_load_explicit(&pool->recorder, memory_order_relaxed);
    if (recorder == NULL)
        return;
    uint64_t number = stream != NULL ? stream->number : 0, now = 0;
    if (recorder->timestamps)
        now = bp_clock_ns();
    const void *address = bp_entry_address(&pool->entries[id]);
    uint64_t index = atomic_fetch_add(&recorder->next, 1);
    bp_record *record = &recorder->ring[index & recorder->mask];
    if (is_lapped(recorder, index)) /* the thread was descheduled: the event is overwritten already */
        return;
    atomic_store_explicit(&record->step, bp_read(&pool->step), memory_order_release);
    atomic_store_explicit(&record->time_ns, now, memory_order_release);
    atomic_store_explicit(&record->address, address, memory_order_release);
    atomic_store(&record->what, (uint64_t)kind << 56 | (number & 0xffffff) << 32 | id);
    if (!is_lapped(recorder, index))
        return;
    /* Two writers shared a slot, and which record survived is unknown. Later readers must skip both. */
    uint64_t next = atomic_load(&recorder->next), whole = bp_read(&recorder->whole);
    while (whole < next && !atomic_compare_exchange_weak(&recorder->whole, &whole, next)) {
    }
}

const bp_observer bp_recorder_observer = {.note = recorder_note};

bp_status bp_recorder_start(bp_pool *pool, bp_recorder *recorder)
{
    const bp_recorder *other = atomic_load_explicit(&pool->recorder, memory_order_relaxed);
    if (other != NULL && other != recorder)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s is being recorded already; %s first", pool->info.name,
                       other == pool->recording.last ? "end the trace (bp_pool_trace_stop)"
                                                     : "stop the profile (bp_profile_stop)");
    atomic_store_explicit(&recorder->next, 0, memory_order_relaxed);
    atomic_store_explicit(&recorder->whole, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->recorder, recorder, memory_order_release);
    bp_observe(pool, BP_OBSERVER_RECORDER);
    return BP_OK;
}

void bp_recorder_stop(bp_pool *pool, const bp_recorder *recorder)
{
    if (recorder == NULL || atomic_load_explicit(&pool->recorder, memory_order_relaxed) != recorder)
        return;
    bp_unobserve(pool, BP_OBSERVER_RECORDER);
    atomic_store_explicit(&pool->recorder, NULL, memory_order_release);
}

bp_pool_event bp_recorder_read(const bp_recorder *recorder, uint64_t number)
{
    const bp_record *record = &recorder->ring[number & recorder->mask];
    uint64_t what = bp_read(&record->what);
    return (bp_pool_event){.size = sizeof(bp_pool_event),
                           .kind = (bp_pool_event_kind)(what >> 56),
                           .id = (uint32_t)what,
                           .stream = (uint32_t)(what >> 32) & 0xffffff,
                           .step = bp_read(&record->step),
                           .time_ns = bp_read(&record->time_ns),
                           .address =
                               atomic_load_explicit((_Atomic(const void *) *)&record->address, memory_order_relaxed)};
}

/* ---- traces of the caller ------------------------------------------------------------------------------------------- */

bp_status bp_pool_trace_start(bp_pool *pool, size_t entries, int timestamps)
{
    if (pool == NULL || entries == 0 || entries > BP_MAX_ENTRIES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_trace_start: expected a pool and 1 to %zu entries, got %zu",
                       BP_MAX_ENTRIES, entries);
    bp_recorder *recorder, *before = pool->recording.last;
    BP_TRY(bp_recorder_create(entries, timestamps != 0, &recorder));
    bp_pool_trace_stop(pool);
    bp_status status = bp_recorder_start(pool, recorder);
    if (status == BP_OK)
        pool->recording.last = recorder;
    bp_recorder_destroy(status == BP_OK ? &before : &recorder);
    return status;
}

void bp_pool_trace_stop(bp_pool *pool)
{
    bp_recorder_stop(pool, pool->recording.last);
}

size_t bp_pool_trace_count(const bp_pool *pool)
{
    const bp_recorder *recorder = pool->recording.last;
    return recorder != NULL ? (size_t)(bp_recorder_next(recorder) - bp_recorder_oldest(recorder)) : 0;
}

bp_status bp_pool_trace_get(const bp_pool *pool, size_t index, bp_pool_event *event)
{
    const size_t count = pool != NULL ? bp_pool_trace_count(pool) : 0;
    if (index >= count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_trace_get: event %zu of %zu", index, count);
    const bp_pool_event found =
        bp_recorder_read(pool->recording.last, bp_recorder_oldest(pool->recording.last) + index);
    return bp_struct_write("bp_pool_trace_get", &found, sizeof found, event);
}

/* ---- a trace as a schedule ------------------------------------------------------------------------------------------ */

#define NO_UNIT INT32_MIN

typedef struct window {
    const bp_pool *pool;
    uint64_t first_step, last_step;
    int32_t *units; /* unit of the model, by id; NO_UNIT: not looked up, BP_OUTSIDE: left out */
    size_t *open;   /* by id: 1 + index of the open acquire */
    bool *left_out; /* by event */
} window;

static bp_status find_unit(window *w, const bp_model *model, uint32_t id)
{
    const char *name = w->pool->requests[id].unit;
    for (size_t u = 0; u < bp_model_get_info(model)->unit_count; u++) {
        if (strcmp(bp_model_get_info(model)->units[u].name, name) == 0) {
            w->units[id] = (int32_t)u;
            return BP_OK;
        }
    }
    return bp_fail(BP_ERR_MISMATCH, "the trace has unit %s, which the model lacks", name);
}

/* Chooses the window's events, and checks that each live range begins and ends in it. */
static bp_status check_window(window *w, const bp_model *model)
{
    for (size_t i = 0; i < bp_pool_trace_count(w->pool); i++) {
        bp_pool_event e = {.size = sizeof e};
        BP_TRY(bp_pool_trace_get(w->pool, i, &e));
        bool begins = e.kind == BP_EVENT_ACQUIRE, ends = e.kind == BP_EVENT_RELEASE || e.kind == BP_EVENT_CANCEL;
        const bp_plan_request *r = &w->pool->requests[e.id];
        w->left_out[i] = true;
        if (e.step < w->first_step || e.step > w->last_step || (!begins && !ends) || r->unit[0] == '\0' ||
            r->placement == BP_PLACE_PERSISTENT || r->bytes == 0)
            continue;
        if (w->units[e.id] == NO_UNIT)
            BP_TRY(find_unit(w, model, e.id));
        char name[BP_REQUEST_BYTES];
        if (begins && w->open[e.id] != 0)
            return bp_fail(
                BP_ERR_SCHEDULE,
                "the trace of steps %llu to %llu lacks events: %s is acquired twice; trace with more entries",
                (unsigned long long)w->first_step, (unsigned long long)w->last_step,
                bp_explain_request(w->pool, e.id, name));
        if (ends && w->open[e.id] == 0)
            return bp_fail(BP_ERR_SCHEDULE,
                           "steps %llu to %llu are incomplete: %s is released, but was acquired before",
                           (unsigned long long)w->first_step, (unsigned long long)w->last_step,
                           bp_explain_request(w->pool, e.id, name));
        w->left_out[i] = e.kind == BP_EVENT_CANCEL;
        if (e.kind == BP_EVENT_CANCEL)
            w->left_out[w->open[e.id] - 1] = true;
        w->open[e.id] = begins ? i + 1 : 0;
    }
    for (uint32_t id = 0, count = bp_request_count(w->pool); id < count; id++) {
        char name[BP_REQUEST_BYTES];
        if (w->open[id] != 0)
            return bp_fail(BP_ERR_SCHEDULE, "steps %llu to %llu are incomplete: %s is not released in them",
                           (unsigned long long)w->first_step, (unsigned long long)w->last_step,
                           bp_explain_request(w->pool, id, name));
    }
    size_t used = 0;
    for (size_t i = 0; i < bp_pool_trace_count(w->pool); i++)
        used += !w->left_out[i];
    if (used == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the trace has no events in steps %llu to %llu",
                       (unsigned long long)w->first_step, (unsigned long long)w->last_step);
    return BP_OK;
}

static bp_status add_events(const window *w, bp_model *model)
{
    for (size_t i = 0; i < bp_pool_trace_count(w->pool); i++) {
        bp_pool_event e = {.size = sizeof e};
        if (w->left_out[i])
            continue;
        BP_TRY(bp_pool_trace_get(w->pool, i, &e));
        const bp_plan_request *request = &w->pool->requests[e.id];
        const bp_model_event event = {.size = sizeof event,
                                      .acquire = e.kind == BP_EVENT_ACQUIRE,
                                      .unit = w->units[e.id],
                                      .bucket = (int32_t)request->ordinal,
                                      .role = request->role,
                                      .lane = BP_MODEL_EVENT_NO_LANE};
        BP_TRY(bp_model_add_event(model, &event));
    }
    return BP_OK;
}

bp_status bp_pool_trace_to_model(const bp_pool *pool, uint64_t first_step, uint64_t last_step, bp_model *model)
{
    if (pool == NULL || model == NULL || first_step > last_step)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pool_trace_to_model: the pool or the model is NULL, or the last step precedes the first");
    const uint32_t count = bp_request_count(pool);
    void *units = NULL, *open = NULL, *left_out = NULL;
    window w = {.pool = pool, .first_step = first_step, .last_step = last_step};
    bp_status status = bp_new_array(count, sizeof *w.units, &units);
    if (status == BP_OK)
        status = bp_new_array(count, sizeof *w.open, &open);
    if (status == BP_OK)
        status = bp_new_array(bp_pool_trace_count(pool), sizeof *w.left_out, &left_out);
    w.units = units;
    w.open = open;
    w.left_out = left_out;
    for (uint32_t id = 0; id < count && status == BP_OK; id++)
        w.units[id] = NO_UNIT;
    if (status == BP_OK)
        status = check_window(&w, model);
    if (status == BP_OK)
        status = add_events(&w, model);
    free(units);
    free(open);
    free(left_out);
    return status;
}
