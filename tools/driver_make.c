#include "driver_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const stream_names[STREAM_COUNT] = {"gather", "compute", "reduce", "outer_reduce"};

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

/* Tells the pool which requests are acquired on the stream. */
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

/* ---- staging ------------------------------------------------------------------------------------------------------------ */

#define PIECE_BYTES ((uint64_t)4 << 20)

static uint64_t round_up(uint64_t bytes, uint64_t step)
{
    return (bytes + step - 1) / step * step;
}

/* Pieces of whole pages, not larger than the largest bucket. */
static uint64_t piece_bytes(const driver *d, uint64_t page)
{
    uint64_t largest = 1, most = d->config.piece_bytes > 0 ? d->config.piece_bytes : PIECE_BYTES;
    for (uint32_t i = 0; i < d->program.requests; i++)
        largest = d->requests[i].bytes > largest ? d->requests[i].bytes : largest;
    return round_up(largest < most ? largest : most, page);
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

static void free_staging(driver *d)
{
    for (int kind = 0; kind < STAGING_KINDS; kind++) {
        for (int s = 0; s < STREAM_COUNT; s++) {
            staging *one = &d->staging[kind][s];
            if (one->memory != NULL)
                (void)bp_device_unpin(d->config.device, one->memory, one->bytes);
            free(one->memory);
        }
    }
}

/* ---- all of it ----------------------------------------------------------------------------------------------------------- */

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
    for (int slot = 0; slot < MOST_STEPS_AHEAD; slot++) {
        for (int s = 0; s < STREAM_COUNT; s++)
            bp_event_destroy(&d->window[slot].events[s]);
    }
    for (uint32_t i = 0; d->events != NULL && i < d->program.group_count; i++) {
        bp_event_destroy(&d->events[i].acquired);
        bp_event_destroy(&d->events[i].filled);
    }
    free_staging(d);
    void *const arrays[] = {d->events, d->holds, d->served, d->called, d->replayed, d->operations, d->held_operations};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    program_finish(&d->program);
    pthread_mutex_destroy(&d->lock);
    free(d);
    *destroyed = NULL;
}
