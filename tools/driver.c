#include "driver_state.h"

#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- on the streams' threads -------------------------------------------------------------------------------------------- */

static void fill(void *argument)
{
    const operation *o = argument;
    if (atomic_load_explicit(&o->driver->stopped, memory_order_relaxed))
        return;
    pattern_fill(o->address, o->bytes, o->seed);
    atomic_fetch_add_explicit(&o->driver->filled_bytes, o->bytes, memory_order_relaxed);
}

static void note_corruption(const operation *o, const pattern_difference *difference)
{
    driver *d = o->driver;
    pthread_mutex_lock(&d->lock);
    if (atomic_fetch_add(&d->corrupted, 1) == 0 || o->number < d->first_number) {
        d->first_number = o->number;
        d->result.first = (driver_corruption){{o->iteration, o->step}, o->request, *difference};
    }
    pthread_mutex_unlock(&d->lock);
}

static void check(void *argument)
{
    const operation *o = argument;
    pattern_difference difference;
    if (atomic_load_explicit(&o->driver->stopped,
                             memory_order_relaxed)) /* then the fill may have been passed over too */
        return;
    if (!pattern_check(o->address, o->bytes, o->seed, &difference))
        note_corruption(o, &difference);
    atomic_fetch_add_explicit(&o->driver->checked, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&o->driver->checked_bytes, o->bytes, memory_order_relaxed);
}

/* ---- on the host -------------------------------------------------------------------------------------------------------- */

static operation *next_operation(driver *d)
{
    size_t arena = (size_t)(d->result.position.iteration % d->arenas);
    return &d->operations[arena * d->operations_each + d->next_operation++];
}

/* `held`: where the operation is kept when it is not of the iteration. */
static bp_status enqueue(driver *d, bp_host_function *function, uint8_t stream, uint32_t request, uint64_t seed,
                         operation *held)
{
    if (!d->config.has_memory || d->bytes[request] == 0)
        return BP_OK;
    operation *o = held != NULL ? held : next_operation(d);
    *o = (operation){.driver = d,
                     .address = d->addresses[request],
                     .bytes = d->bytes[request],
                     .seed = seed,
                     .number = d->issued++,
                     .iteration = d->result.position.iteration,
                     .step = d->result.position.step,
                     .request = request};
    return bp_stream_call(d->streams[stream], function, o);
}

static uint64_t seed_of(const driver *d, program_entry entry)
{
    return pattern_seed(d->config.seed, entry.request, d->result.position.iteration, entry.interval);
}

/* `to` waits for what `from` has so far. */
static bp_status hand_over(driver *d, bp_event *event, uint8_t from, uint8_t to)
{
    bp_status status = bp_event_record(event, d->streams[from]);
    return status == BP_OK ? bp_stream_wait(d->streams[to], event) : status;
}

/* The neighbours in `entries` that belong to one group: served by one call. */
static size_t batch_of(driver *d, const program_entry *entries, size_t count)
{
    size_t n = 0;
    uint32_t group = d->program.group_of[entries[0].request];
    for (; n < count && d->program.group_of[entries[n].request] == group; n++)
        d->called[n] = d->ids[entries[n].request];
    return n;
}

static void count_call(driver *d, uint64_t began)
{
    d->result.call_ns += now_ns() - began;
    d->result.calls++;
}

static bp_status acquire(driver *d, const program_group *g, group_events *events, size_t count)
{
    uint64_t began = now_ns();
    bp_status status = bp_pool_acquire(d->config.pool, d->called, count, d->streams[g->acquire], d->served);
    count_call(d, began);
    if (status != BP_OK || g->fill == g->acquire)
        return status;
    status = hand_over(d, events->acquired, g->acquire, g->fill);
    if (status != BP_OK)
        return status;
    began = now_ns();
    status = bp_pool_use(d->config.pool, d->called, count, d->streams[g->fill]);
    count_call(d, began);
    return status;
}

/* Acquires a batch and fills it. `held`: where the operations of requests that are held all the time are kept. */
static bp_status begin_batch(driver *d, const program_entry *entries, size_t count, operation *held)
{
    uint32_t group = d->program.group_of[entries[0].request];
    const program_group *g = &d->program.groups[group];
    bp_status status = acquire(d, g, &d->events[group], count);
    for (size_t i = 0; status == BP_OK && i < count; i++) {
        uint64_t seed = seed_of(d, entries[i]);
        d->addresses[entries[i].request] = d->served[i];
        d->seeds[entries[i].request] = seed;
        status = enqueue(d, fill, g->fill, entries[i].request, seed, held != NULL ? &held[i] : NULL);
    }
    if (status == BP_OK && g->check != g->fill)
        status = bp_event_record(d->events[group].filled, d->streams[g->fill]);
    return status;
}

static bp_status check_batch(driver *d, const program_entry *entries, size_t count)
{
    uint32_t group = d->program.group_of[entries[0].request];
    const program_group *g = &d->program.groups[group];
    bp_status status = BP_OK;
    if (g->check != g->fill)
        status = bp_stream_wait(d->streams[g->check], d->events[group].filled);
    for (size_t i = 0; status == BP_OK && i < count; i++)
        status = enqueue(d, check, g->check, entries[i].request, d->seeds[entries[i].request], NULL);
    return status;
}

static bp_status release_batch(driver *d, const program_entry *entries, size_t count)
{
    const program_group *g = &d->program.groups[d->program.group_of[entries[0].request]];
    uint64_t began = now_ns();
    bp_status status = bp_pool_release(d->config.pool, d->called, count, d->streams[g->check]);
    count_call(d, began);
    return status;
}

static bp_status act(driver *d, program_action action, uint32_t step)
{
    const program *p = &d->program;
    const program_entry *entries = p->entries[action];
    bp_status status = BP_OK;
    for (size_t at = p->begins[action][step], end = p->begins[action][step + 1]; status == BP_OK && at < end;) {
        size_t count = batch_of(d, entries + at, end - at);
        switch (action) {
        case ACTION_GATHER:
        case ACTION_PRODUCE: status = begin_batch(d, entries + at, count, NULL); break;
        case ACTION_COMPUTE:
        case ACTION_DRAIN: status = check_batch(d, entries + at, count); break;
        default: status = release_batch(d, entries + at, count);
        }
        at += count;
    }
    return status;
}

/* ---- the window ----------------------------------------------------------------------------------------------------------- */

static bool report_progress(driver *d, uint64_t done)
{
    if (d->config.progress != NULL && !d->config.progress(d->config.user, done))
        atomic_store(&d->stopped, true);
    return !d->stopped;
}

static bp_status wait_for_step(driver *d, uint64_t number)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_event *event = d->window[number % d->config.steps_ahead][s];
        bp_status status = event != NULL ? bp_event_synchronize(event) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

static bp_status open_step(driver *d)
{
    if (d->steps_issued < d->config.steps_ahead)
        return BP_OK;
    bp_status status = wait_for_step(d, d->steps_issued - d->config.steps_ahead);
    if (status == BP_OK)
        report_progress(d, d->steps_issued - d->config.steps_ahead + 1);
    return status;
}

static bp_status close_step(driver *d)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_event *event = d->window[d->steps_issued % d->config.steps_ahead][s];
        bp_status status = event != NULL ? bp_event_record(event, d->streams[s]) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    d->steps_issued++;
    return BP_OK;
}

/* ---- a run ---------------------------------------------------------------------------------------------------------------- */

bp_status driver_begin(driver *d)
{
    bp_status status = BP_OK;
    d->started_ns = now_ns();
    for (size_t at = 0; status == BP_OK && at < d->program.held_count;) {
        size_t count = batch_of(d, d->program.held + at, d->program.held_count - at);
        status = begin_batch(d, d->program.held + at, count, d->held_operations + at);
        at += count;
    }
    return status;
}

bp_status driver_iterate(driver *d)
{
    driver_position *at = &d->result.position;
    bp_status status = BP_OK;
    d->next_operation = 0;
    for (at->step = 0; at->step < d->program.steps; at->step++) {
        status = open_step(d);
        if (status != BP_OK || d->stopped)
            return status;
        bp_pool_set_step(d->config.pool, d->steps_issued);
        for (int action = 0; status == BP_OK && action < ACTION_COUNT; action++)
            status = act(d, (program_action)action, at->step);
        if (status == BP_OK)
            status = close_step(d);
        if (status != BP_OK)
            return status;
    }
    at->iteration++;
    return BP_OK;
}

/* The steps still in the window, one after the other, so that progress goes on. */
static bp_status wait_for_window(driver *d)
{
    bp_status status = BP_OK;
    uint64_t first = d->steps_issued > d->config.steps_ahead ? d->steps_issued - d->config.steps_ahead : 0;
    for (uint64_t number = first; status == BP_OK && number < d->steps_issued; number++) {
        status = wait_for_step(d, number);
        if (status == BP_OK)
            report_progress(d, number + 1);
    }
    return status;
}

bp_status driver_end(driver *d)
{
    bp_status status = wait_for_window(d);
    driver_drain(d);
    bp_pool_set_step(d->config.pool, d->steps_issued); /* not a part of the last iteration */
    for (size_t at = 0; status == BP_OK && at < d->program.held_count;) {
        size_t count = batch_of(d, d->program.held + at, d->program.held_count - at);
        status = release_batch(d, d->program.held + at, count);
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
    d->result.wall_ns = now_ns() - d->started_ns;
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
