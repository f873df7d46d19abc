/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the iterations of a schedule through a pool, as a training loop would. */
#include "run/driver_state.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- making and unmaking ----------------------------------------------------------------------------------------- */

static const char *const stream_names[STREAM_COUNT] = {"gather", "compute", "reduce", "outer_reduce"};

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the run's operations");
}

/* Never NULL for 0 elements. */
static bool new_array(size_t count, size_t each, void *array)
{
    void *memory = calloc(count + 1, each);
    memcpy(array, &memory, sizeof memory);
    return memory != NULL;
}

static bp_status make_arrays(driver *d)
{
    const program *p = &d->program;
    /* an arena is reused after its last step has left the window */
    d->arenas = 1 + ((uint64_t)d->config.steps_ahead + p->steps - 2) / p->steps;
    d->operations_each = d->config.has_memory ? (size_t)(p->fills + p->checks) : 0;
    size_t operations;
    if (__builtin_mul_overflow(d->operations_each, d->arenas, &operations) ||
        !new_array(p->group_count, sizeof *d->events, &d->events) ||
        !new_array(p->requests, sizeof *d->holds, &d->holds) ||
        !new_array(p->requests, sizeof *d->replayed, &d->replayed) ||
        !new_array(p->requests, sizeof *d->served, &d->served) ||
        !new_array(p->requests, sizeof *d->called, &d->called) ||
        !new_array(operations, sizeof *d->operations, &d->operations) ||
        !new_array(p->held_count, sizeof *d->held_operations, &d->held_operations))
        return fail_memory();
    d->requests = bp_pool_get_info(d->config.pool)->requests;
    return BP_OK;
}

/* Promises the pool the requests that are acquired on the stream. */
static bp_status promise_stream(driver *d, int stream)
{
    size_t count = 0;
    for (uint32_t id = 0; id < d->program.requests; id++) {
        if (program_acquire_stream(d->requests[id].role) == stream)
            d->called[count++] = id;
    }
    return bp_pool_set_stream(d->config.pool, d->called, count, d->streams[stream]);
}

static bp_status make_streams(driver *d)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        if (!d->program.streams[s])
            continue;
        bp_status status = bp_stream_create(d->config.device, stream_names[s], &d->streams[s]);
        if (status == BP_OK && d->config.promises)
            status = promise_stream(d, s);
        for (uint32_t slot = 0; status == BP_OK && slot < d->config.steps_ahead; slot++)
            status = bp_event_create(d->config.device, &d->window[slot].events[s]);
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

/* ---- staging ----------------------------------------------------------------------------------------------------- */

#define PIECE_BYTES ((uint64_t)4 << 20)

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* A piece has whole pages, at most those of the largest bucket. */
static uint64_t piece_bytes(const driver *d, uint64_t page)
{
    uint64_t largest = 1, max = d->config.piece_bytes > 0 ? d->config.piece_bytes : PIECE_BYTES;
    for (uint32_t i = 0; i < d->program.requests; i++)
        largest = d->requests[i].bytes > largest ? d->requests[i].bytes : largest;
    return round_up(largest < max ? largest : max, page);
}

static bp_status make_staged(driver *d, uint64_t page, staging *s)
{
    uint64_t bytes = piece_bytes(d, page);
    void *memory = aligned_alloc(page, bytes);
    if (memory == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for copies to and from the device");
    bp_status status = bp_device_pin(d->config.device, memory, bytes);
    if (status != BP_OK) {
        free(memory);
        return status;
    }
    *s = (staging){memory, bytes};
    return BP_OK;
}

static bp_status make_staging(driver *d)
{
    bp_status status = BP_OK;
    if (!d->config.has_memory || bp_device_is_host_accessible(d->config.device))
        return BP_OK;
    long page = sysconf(_SC_PAGESIZE);
    for (int kind = 0; kind < (d->config.graphs != DRIVER_GRAPHS_OFF ? STAGING_KINDS : 1); kind++) {
        for (int s = 0; status == BP_OK && s < STREAM_COUNT; s++) {
            if (d->program.streams[s])
                status = make_staged(d, page > 0 ? (uint64_t)page : 4096, &d->staging[kind][s]);
        }
    }
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bp_status make_events(driver *d)
{
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < d->program.group_count; i++) {
        const program_group *g = &d->program.groups[i];
        if (g->fill != g->acquire)
            status = bp_event_create(d->config.device, &d->events[i].acquired);
        if (status == BP_OK && g->check != g->fill)
            status = bp_event_create(d->config.device, &d->events[i].filled);
    }
    return status;
}

bp_status driver_create(const driver_config *config, driver **created)
{
    driver *d = calloc(1, sizeof *d);
    if (d == NULL)
        return fail_memory();
    d->config = *config;
    pthread_mutex_init(&d->lock, NULL);
    bp_status status = program_init(config->buckets, config->schedule, &d->program);
    if (status == BP_OK)
        status = make_arrays(d);
    if (status == BP_OK)
        status = make_streams(d);
    if (status == BP_OK)
        status = make_events(d);
    if (status == BP_OK)
        status = make_staging(d);
    if (status == BP_OK)
        status = driver_graphs_make(d);
    *created = d;
    if (status != BP_OK)
        driver_destroy(created);
    return status;
}

void driver_destroy(driver **destroyed)
{
    driver *d = *destroyed;
    if (d == NULL)
        return;
    driver_graphs_destroy(d);
    for (int s = 0; s < STREAM_COUNT; s++)
        bp_stream_destroy(&d->streams[s]);
    for (int slot = 0; slot < MAX_STEPS_AHEAD; slot++) {
        for (int s = 0; s < STREAM_COUNT; s++)
            bp_event_destroy(&d->window[slot].events[s]);
    }
    for (uint32_t i = 0; d->events != NULL && i < d->program.group_count; i++) {
        bp_event_destroy(&d->events[i].acquired);
        bp_event_destroy(&d->events[i].filled);
    }

    for (int kind = 0; kind < STAGING_KINDS; kind++) {
        for (int s = 0; s < STREAM_COUNT; s++) {
            staging *one = &d->staging[kind][s];
            if (one->memory != NULL)
                (void)bp_device_unpin(d->config.device, one->memory, one->bytes);
            free(one->memory);
        }
    }

    void *const arrays[] = {d->events, d->holds, d->served, d->called, d->replayed, d->operations, d->held_operations};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    program_finish(&d->program);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *destroyed = NULL;
}

uint64_t driver_now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static operation *next_operation(driver *d)
{
    if (d->capturing)
        return &d->captured_operations[d->next_captured++];
    size_t arena = (size_t)(d->eager_iterations % d->arenas);
    return &d->operations[arena * d->operations_each + d->next_operation++];
}

/* `held`: storage for an operation that outlives the iteration, else NULL. Returns NULL if there is nothing to do. */
static operation *make_operation(driver *d, uint8_t stream, uint32_t request, operation *held)
{
    if (!d->config.has_memory || d->requests[request].bytes == 0)
        return NULL;
    operation *o = held != NULL ? held : next_operation(d);
    const staging *through = &d->staging[d->capturing ? STAGING_GRAPHS : STAGING_EAGER][stream];
    *o = (operation){.driver = d,
                     .hold = d->holds[request],
                     .bytes = d->requests[request].bytes,
                     .staged = through->memory,
                     .piece = through->memory != NULL ? through->bytes : d->requests[request].bytes,
                     .number = d->issued++,
                     .iteration = d->result.position.iteration,
                     .step = d->result.position.step,
                     .request = request,
                     .replayed = d->capturing};
    return o;
}

/* Leading entries of one group that are all in graphs of units or all not: one call serves them. */
size_t driver_batch(driver *d, const program_entry *entries, size_t count)
{
    size_t n = 0;
    uint32_t group = d->program.group_of[entries[0].request];
    bool replayed = d->replayed[entries[0].request];
    for (; n < count && d->program.group_of[entries[n].request] == group && d->replayed[entries[n].request] == replayed;
         n++)
        d->called[n] = entries[n].request;
    return n;
}

void driver_count_call(driver *d, uint64_t began)
{
    d->result.call_ns += driver_now_ns() - began;
    d->result.calls++;
}

static bp_status acquire(driver *d, const program_group *g, group_events *events, size_t count)
{
    uint64_t began = driver_now_ns();
    bp_status status = bp_pool_acquire(d->config.pool, d->called, count, d->streams[g->acquire], d->served);
    driver_count_call(d, began);
    if (status != BP_OK || g->fill == g->acquire)
        return status;
    /* orders `to` after the current work of `from` */
    BP_TRY(bp_event_record(events->acquired, d->streams[g->acquire]));
    BP_TRY(bp_stream_wait(d->streams[g->fill], events->acquired));
    began = driver_now_ns();
    status = bp_pool_use(d->config.pool, d->called, count, d->streams[g->fill]);
    driver_count_call(d, began);
    return status;
}

/* Acquires and fills a batch. `held`: storage for operations of requests that are live during the whole run. */
bp_status driver_begin_batch(driver *d, const program_entry *entries, size_t count, operation *held)
{
    uint32_t group = d->program.group_of[entries[0].request];
    const program_group *g = &d->program.groups[group];
    bp_status status = acquire(d, g, &d->events[group], count);
    for (size_t i = 0; status == BP_OK && i < count; i++) {
        uint32_t request = entries[i].request;
        d->holds[request] = (hold){d->served[i], d->result.position.iteration, entries[i].interval, held != NULL};
        operation *o = make_operation(d, g->fill, request, held != NULL ? &held[i] : NULL);
        status = o != NULL ? driver_enqueue_fill(o, d->streams[g->fill]) : BP_OK;
    }
    if (status == BP_OK && g->check != g->fill)
        status = bp_event_record(d->events[group].filled, d->streams[g->fill]);
    return status;
}

bp_status driver_order_checks(driver *d, uint32_t group)
{
    const program_group *g = &d->program.groups[group];
    return g->check != g->fill ? bp_stream_wait(d->streams[g->check], d->events[group].filled) : BP_OK;
}

bp_status driver_check_entry(driver *d, const program_entry *entry)
{
    const program_group *g = &d->program.groups[d->program.group_of[entry->request]];
    operation *o = make_operation(d, g->check, entry->request, NULL);
    return o != NULL ? driver_enqueue_check(o, d->streams[g->check]) : BP_OK;
}

static bp_status check_batch(driver *d, const program_entry *entries, size_t count)
{
    bp_status status = driver_order_checks(d, d->program.group_of[entries[0].request]);
    for (size_t i = 0; status == BP_OK && i < count; i++)
        status = driver_check_entry(d, &entries[i]);
    return status;
}

bp_status driver_release_batch(driver *d, const program_entry *entries, size_t count)
{
    const program_group *g = &d->program.groups[d->program.group_of[entries[0].request]];
    uint64_t began = driver_now_ns();
    bp_status status = bp_pool_release(d->config.pool, d->called, count, d->streams[g->check]);
    driver_count_call(d, began);
    return status;
}

/* Skipped in replayed iterations if graphs of units contain it. */
static bp_status act(driver *d, program_action action, uint32_t step)
{
    const program *p = &d->program;
    const program_entry *entries = p->entries[action];
    bp_status status = BP_OK;
    for (size_t at = p->begins[action][step], end = p->begins[action][step + 1]; status == BP_OK && at < end;) {
        size_t count = driver_batch(d, entries + at, end - at);
        if (!d->replaying || !d->replayed[entries[at].request]) {
            switch (action) {
            case ACTION_GATHER:
            case ACTION_PRODUCE: status = driver_begin_batch(d, entries + at, count, NULL); break;
            case ACTION_COMPUTE:
            case ACTION_DRAIN: status = check_batch(d, entries + at, count); break;
            default: status = driver_release_batch(d, entries + at, count);
            }
        }
        at += count;
    }
    return status;
}

/* ---- the window -------------------------------------------------------------------------------------------------- */

static bool report_progress(driver *d, uint64_t done)
{
    if (d->config.progress != NULL && !d->config.progress(d->config.user, done))
        atomic_store(&d->stopped, true);
    return !d->stopped;
}

static bp_status wait_for_slot(driver *d, uint64_t number)
{
    const window_slot *slot = &d->window[number % d->config.steps_ahead];
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_status status = slot->events[s] != NULL ? bp_event_synchronize(slot->events[s]) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    report_progress(d, slot->steps);
    return BP_OK;
}

static bp_status open_slot(driver *d)
{
    return d->slots_issued < d->config.steps_ahead ? BP_OK : wait_for_slot(d, d->slots_issued - d->config.steps_ahead);
}

/* Closes a window slot: the work since the last slot is `steps` steps. */
static bp_status close_slot(driver *d, uint32_t steps)
{
    window_slot *slot = &d->window[d->slots_issued % d->config.steps_ahead];
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_status status = slot->events[s] != NULL ? bp_event_record(slot->events[s], d->streams[s]) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    d->steps_issued += steps;
    slot->steps = d->steps_issued;
    d->slots_issued++;
    return BP_OK;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

bp_status driver_begin(driver *d)
{
    bp_status status = BP_OK;
    d->started_ns = driver_now_ns();
    for (size_t at = 0; status == BP_OK && at < d->program.held_count;) {
        size_t count = driver_batch(d, d->program.held + at, d->program.held_count - at);
        status = driver_begin_batch(d, d->program.held + at, count, d->held_operations + at);
        at += count;
    }
    return status;
}

bp_status driver_act(driver *d, uint32_t step)
{
    bp_status status = BP_OK;
    d->issued = 0;
    for (int action = 0; status == BP_OK && action < ACTION_COUNT; action++) {
        if (action == ACTION_RELEASE && d->replaying) /* while the buckets released by other units are live */
            status = driver_graph_launch(d, step);
        if (status == BP_OK)
            status = act(d, (program_action)action, step);
    }
    return status;
}

/* Enqueues the steps of an iteration one by one. */
static bp_status walk(driver *d)
{
    driver_position *at = &d->result.position;
    d->next_operation = 0;
    for (at->step = 0; at->step < d->program.steps; at->step++) {
        bp_status status = open_slot(d);
        if (status != BP_OK || d->stopped)
            return status;
        bp_pool_set_step(d->config.pool, d->steps_issued);
        status = driver_act(d, at->step);
        if (status == BP_OK)
            status = close_slot(d, 1);
        if (status != BP_OK)
            return status;
    }
    d->eager_iterations++;
    return BP_OK;
}

static bp_status launch_iteration(driver *d)
{
    d->result.position.step = 0;
    bp_status status = open_slot(d);
    if (status != BP_OK || d->stopped)
        return status;
    bp_pool_set_step(d->config.pool, d->steps_issued);
    BP_TRY(driver_graph_launch(d, 0));
    return close_slot(d, d->program.steps);
}

bp_status driver_iterate(driver *d, bool eager)
{
    bool replays = !eager && d->config.graphs != DRIVER_GRAPHS_OFF;
    bp_status status = BP_OK;
    if (d->config.graphs != DRIVER_GRAPHS_OFF)
        status = bp_stream_call(d->streams[LAUNCH_STREAM], driver_next_iteration, d);
    if (status == BP_OK && replays && !d->captured)
        status = driver_graphs_capture(d);
    d->replaying = replays && d->config.graphs == DRIVER_GRAPHS_UNITS;
    if (status == BP_OK)
        status = replays && !d->replaying ? launch_iteration(d) : walk(d);
    d->replaying = false;
    if (status != BP_OK || d->stopped)
        return status;
    d->result.replayed += replays;
    d->result.position.iteration++;
    return BP_OK;
}

/* A check that did not run must not count as passed. */
static bp_status count_checks(driver *d)
{
    const program *p = &d->program;
    uint64_t each = 0, ran = atomic_load(&d->checked);
    char text[160];
    for (size_t i = 0; i < p->begins[ACTION_COMPUTE][p->steps]; i++)
        each += d->requests[p->entries[ACTION_COMPUTE][i].request].bytes > 0;
    for (size_t i = 0; i < p->begins[ACTION_DRAIN][p->steps]; i++)
        each += d->requests[p->entries[ACTION_DRAIN][i].request].bytes > 0;
    uint64_t given = d->config.has_memory ? each * d->result.position.iteration : 0;
    if (d->stopped || driver_is_corrupted(d) || ran == given)
        return BP_OK;
    snprintf(text, sizeof text, "the device ran %llu of the %llu checks that it was given", (unsigned long long)ran,
             (unsigned long long)given);
    return bp_error_record(BP_ERR_DEVICE, text);
}

bp_status driver_end(driver *d)
{
    /* Waits slot by slot, so that progress is still reported. */
    bp_status status = BP_OK;
    uint64_t first = d->slots_issued > d->config.steps_ahead ? d->slots_issued - d->config.steps_ahead : 0;
    for (uint64_t number = first; status == BP_OK && number < d->slots_issued; number++)
        status = wait_for_slot(d, number);

    driver_drain(d);
    if (status == BP_OK)
        status = count_checks(d);
    bp_pool_set_step(d->config.pool, d->steps_issued); /* after the last iteration */
    for (size_t at = 0; status == BP_OK && at < d->program.held_count;) {
        size_t count = driver_batch(d, d->program.held + at, d->program.held_count - at);
        status = driver_release_batch(d, d->program.held + at, count);
        at += count;
    }
    return status;
}

void driver_drain(driver *d)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        if (d->streams[s] != NULL)
            bp_stream_synchronize(d->streams[s]);
    }
    d->result.wall_ns = driver_now_ns() - d->started_ns;
}

bool driver_stopped(const driver *d)
{
    return d->stopped;
}

bool driver_is_corrupted(driver *d)
{
    return atomic_load(&d->corrupted) > 0;
}

void driver_result_get(const driver *d, driver_result *result)
{
    *result = d->result;
    result->iterations = d->result.position.iteration;
    result->checked = atomic_load(&d->checked);
    result->checked_bytes = atomic_load(&d->checked_bytes);
    result->filled_bytes = atomic_load(&d->filled_bytes);
    result->corrupted = atomic_load(&d->corrupted);
    result->digest = atomic_load(&d->digest);
}

size_t driver_trace_entries(const driver *d)
{
    size_t entries = 2 * (size_t)d->program.fills; /* acquires and releases */
    for (size_t i = 0; i < d->program.begins[ACTION_PRODUCE][d->program.steps]; i++) {
        const program_group *g = &d->program.groups[d->program.group_of[d->program.entries[ACTION_PRODUCE][i].request]];
        entries += g->fill != g->acquire;
    }
    return entries;
}

const program *driver_program(const driver *d)
{
    return &d->program;
}
