#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pattern.h"

/* How many steps the host may be ahead of the streams, as runtimes are: enough for every ordering mistake to show, little enough to
 * report progress and to bound what is in flight. */
#define WINDOW 32

/* One bucket to fill or to check, read by a stream's thread some time after it was enqueued. */
typedef struct operation {
    driver *driver;
    unsigned char *address;
    uint64_t bytes, seed;
    uint64_t number; /* in the order of the host */
    uint64_t iteration;
    uint32_t step, request;
} operation;

/* Events of a group: its acquire is in order, its buckets are full. NULL where one stream does both sides. */
typedef struct group_events {
    bp_event *acquired, *filled;
} group_events;

struct driver {
    driver_config config;
    program program;
    uint32_t *ids;
    uint64_t *bytes;
    bp_stream *streams[STREAM_COUNT];
    bp_event *window[WINDOW][STREAM_COUNT];
    group_events *events;      /* by group */
    unsigned char **addresses; /* by request: of the hold it has now */
    void **served;             /* addresses of one call */
    uint32_t *called;          /* ids of one call */
    uint64_t *seeds;           /* by request: of the hold it has now */
    /* Operations live until their step is done. The window says when that is, so that a few iterations' worth is enough. */
    operation *operations, *held_operations;
    size_t operations_each;
    uint64_t arenas, next_operation; /* of the arena in use */
    uint64_t issued;                 /* operations */
    uint64_t steps_issued, started_ns;
    bool stopped;
    driver_result result;
    /* written by the streams' threads */
    atomic_uint_least64_t checked, checked_bytes, filled_bytes, corrupted;
    pthread_mutex_t lock; /* of the first corruption */
    uint64_t first_number;
};

static const char *const stream_names[STREAM_COUNT] = {"gather", "compute", "reduce", "outer_reduce"};

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
        d->stopped = true;
    return !d->stopped;
}

static bp_status wait_for_step(driver *d, uint64_t number)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_event *event = d->window[number % WINDOW][s];
        bp_status status = event != NULL ? bp_event_synchronize(event) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

static bp_status open_step(driver *d)
{
    if (d->steps_issued < WINDOW)
        return BP_OK;
    bp_status status = wait_for_step(d, d->steps_issued - WINDOW);
    if (status == BP_OK)
        report_progress(d, d->steps_issued - WINDOW + 1);
    return status;
}

static bp_status close_step(driver *d)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        bp_event *event = d->window[d->steps_issued % WINDOW][s];
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
    uint64_t first = d->steps_issued > WINDOW ? d->steps_issued - WINDOW : 0;
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

/* ---- making and unmaking ------------------------------------------------------------------------------------------------- */

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the run's operations");
}

/* An array that is there even when it has no elements. */
static bool new_array(size_t count, size_t each, void *array)
{
    void *memory = calloc(count + 1, each);
    memcpy(array, &memory, sizeof memory);
    return memory != NULL;
}

static bp_status make_arrays(driver *d)
{
    const program *p = &d->program;
    /* an arena is used again when the step that ended it has left the window */
    d->arenas = 1 + (WINDOW - 1 + p->steps - 1) / p->steps;
    d->operations_each = d->config.has_memory ? (size_t)(p->fills + p->checks) : 0;
    size_t operations;
    if (__builtin_mul_overflow(d->operations_each, d->arenas, &operations) ||
        !new_array(p->requests, sizeof *d->ids, &d->ids) || !new_array(p->requests, sizeof *d->bytes, &d->bytes) ||
        !new_array(p->group_count, sizeof *d->events, &d->events) ||
        !new_array(p->requests, sizeof *d->addresses, &d->addresses) ||
        !new_array(p->requests, sizeof *d->served, &d->served) ||
        !new_array(p->requests, sizeof *d->called, &d->called) ||
        !new_array(p->requests, sizeof *d->seeds, &d->seeds) ||
        !new_array(operations, sizeof *d->operations, &d->operations) ||
        !new_array(p->held_count, sizeof *d->held_operations, &d->held_operations))
        return fail_memory();
    memcpy(d->ids, d->config.ids, p->requests * sizeof *d->ids);
    memcpy(d->bytes, d->config.bytes, p->requests * sizeof *d->bytes);
    return BP_OK;
}

static bp_status make_streams(driver *d)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        if (!d->program.streams[s])
            continue;
        bp_status status = bp_stream_create(d->config.device, stream_names[s], &d->streams[s]);
        if (status == BP_OK && d->config.lanes)
            status = bp_pool_set_lane(d->config.pool, (uint32_t)s, d->streams[s]);
        for (int slot = 0; status == BP_OK && slot < WINDOW; slot++)
            status = bp_event_create(d->config.device, &d->window[slot][s]);
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

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
    d->config.ids = NULL; /* the copies count */
    d->config.bytes = NULL;
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
    for (int s = 0; s < STREAM_COUNT; s++)
        bp_stream_destroy(&d->streams[s]);
    for (int slot = 0; slot < WINDOW; slot++) {
        for (int s = 0; s < STREAM_COUNT; s++)
            bp_event_destroy(&d->window[slot][s]);
    }
    for (uint32_t i = 0; d->events != NULL && i < d->program.group_count; i++) {
        bp_event_destroy(&d->events[i].acquired);
        bp_event_destroy(&d->events[i].filled);
    }
    void *const arrays[] = {d->ids,    d->bytes, d->events,     d->addresses,      d->served,
                            d->called, d->seeds, d->operations, d->held_operations};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    program_finish(&d->program);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *destroyed = NULL;
}
