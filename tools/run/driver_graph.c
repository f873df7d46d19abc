/* SPDX-License-Identifier: Apache-2.0 */
/* Capture and replay of the driver's graphs. A capture forks from one stream to all others at its beginning and
 * joins them at its end. */
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/driver_state.h"

/* ---- selection of requests for graphs of units ------------------------------------------------------------------- */

/* Selects about half of the units by a hash: units rotate through buffers, and graphs must share each buffer with
 * eager work for any number of copies. */
static bool is_replayed(int32_t unit)
{
    return unit >= 0 && __builtin_popcount((unsigned)unit) % 2 == 0;
}

static void count_checks(driver *d)
{
    const program *p = &d->program;
    for (int action = ACTION_COMPUTE; action <= ACTION_DRAIN; action++) {
        if (action == ACTION_PRODUCE)
            continue;
        for (size_t i = 0; i < p->begins[action][p->steps]; i++)
            d->checks[d->interval[p->entries[action][i].request] + p->entries[action][i].interval]++;
    }
}

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the run's graphs");
}

static bp_status make_arrays(driver *d)
{
    const program *p = &d->program;
    size_t intervals = 0;
    d->interval = calloc((size_t)p->requests + 1, sizeof *d->interval);
    d->owned = calloc((size_t)p->held_count + 1, sizeof *d->owned);
    d->captured_operations = calloc(d->operations_each + 1, sizeof *d->captured_operations);
    d->graph_count = d->config.graphs == DRIVER_GRAPHS_UNITS ? p->steps : 1;
    d->graphs = calloc(d->graph_count + 1, sizeof *d->graphs);
    if (d->interval == NULL || d->owned == NULL || d->captured_operations == NULL || d->graphs == NULL)
        return fail_memory();
    for (uint32_t i = 0; i < p->requests; i++) {
        d->interval[i] = intervals;
        intervals += bp_schedule_get_info(d->config.schedule)->requests[i].interval_count;
    }
    d->checks = calloc(intervals + 1, sizeof *d->checks);
    if (d->checks == NULL)
        return fail_memory();
    count_checks(d);
    for (uint32_t i = 0; i < p->held_count; i++)
        d->owned[i] = p->held[i].request;
    return BP_OK;
}

bp_status driver_graphs_make(driver *d)
{
    if (d->config.graphs == DRIVER_GRAPHS_OFF)
        return BP_OK;
    atomic_store(&d->replay_time, UINT64_MAX); /* the first iteration wraps to 0 */
    bp_status status = make_arrays(d);
    if (status == BP_OK && d->config.graphs == DRIVER_GRAPHS_UNITS) {
        /* Requests of the whole run belong to no step. */
        const program *p = &d->program;
        for (uint32_t i = 0; i < p->requests; i++)
            d->replayed[i] = is_replayed(p->groups[p->group_of[i]].unit);
        for (uint32_t i = 0; i < p->held_count; i++)
            d->replayed[p->held[i].request] = false;
    }
    if (status == BP_OK)
        status = bp_event_create(d->config.device, &d->forks);
    for (int s = 0; status == BP_OK && s < STREAM_COUNT; s++) {
        if (d->streams[s] != NULL)
            status = bp_event_create(d->config.device, &d->joins[s]);
    }
    return status;
}

void driver_graphs_destroy(driver *d)
{
    for (size_t i = 0; d->graphs != NULL && i < d->graph_count; i++) {
        bp_graph_destroy(&d->graphs[i].graph);
        bp_capture_destroy(&d->graphs[i].capture);
    }
    bp_event_destroy(&d->forks);
    for (int s = 0; s < STREAM_COUNT; s++)
        bp_event_destroy(&d->joins[s]);
    free(d->graphs);
    free(d->captured_operations);
    free(d->interval);
    free(d->checks);
    free(d->owned);
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

/* Captures one interval of each request of a batch in its last step: acquire and fill, all checks, release. */
static bp_status capture_batch(driver *d, const program_entry *entries, size_t count)
{
    bp_status status = driver_begin_batch(d, entries, count, NULL);
    if (status == BP_OK)
        status = driver_order_checks(d, d->program.group_of[entries[0].request]);
    for (size_t i = 0; i < count; i++) {
        uint32_t checks = d->checks[d->interval[entries[i].request] + entries[i].interval];
        for (uint32_t k = 0; status == BP_OK && k < checks; k++)
            status = driver_check_entry(d, &entries[i]);
    }
    return status == BP_OK ? driver_release_batch(d, entries, count) : status;
}

static bool has_units(const driver *d, uint32_t step)
{
    const program *p = &d->program;
    for (size_t at = p->begins[ACTION_RELEASE][step]; at < p->begins[ACTION_RELEASE][step + 1]; at++) {
        if (d->replayed[p->entries[ACTION_RELEASE][at].request])
            return true;
    }
    return false;
}

static bp_status capture_units(driver *d, uint32_t step)
{
    const program_entry *entries = d->program.entries[ACTION_RELEASE];
    bp_status status = BP_OK;
    d->issued = 0;
    for (size_t at = d->program.begins[ACTION_RELEASE][step], end = d->program.begins[ACTION_RELEASE][step + 1];
         status == BP_OK && at < end;) {
        size_t count = driver_batch(d, entries + at, end - at);
        if (d->replayed[entries[at].request])
            status = capture_batch(d, entries + at, count);
        at += count;
    }
    return status;
}

static bp_status capture_iteration(driver *d)
{
    driver_position *at = &d->result.position;
    bp_status status = BP_OK;
    for (at->step = 0; status == BP_OK && at->step < d->program.steps; at->step++) {
        bp_pool_set_step(d->config.pool, d->steps_issued + at->step);
        status = driver_act(d, at->step);
        if (status != BP_OK)
            break; /* the result has the position */
    }
    return status;
}

static bp_status join_streams(driver *d)
{
    bp_status status = BP_OK;
    for (int s = 0; status == BP_OK && s < STREAM_COUNT; s++) {
        if (d->streams[s] == NULL || s == LAUNCH_STREAM)
            continue;
        status = bp_event_record(d->joins[s], d->streams[s]);
        if (status == BP_OK)
            status = bp_stream_wait(d->streams[LAUNCH_STREAM], d->joins[s]);
    }
    return status;
}

static bp_status capture_body(driver *d)
{
    /* forks to the other streams */
    bp_status status = bp_event_record(d->forks, d->streams[LAUNCH_STREAM]);
    for (int s = 0; status == BP_OK && s < STREAM_COUNT; s++) {
        if (d->streams[s] != NULL && s != LAUNCH_STREAM)
            status = bp_stream_wait(d->streams[s], d->forks);
    }

    if (status == BP_OK)
        status =
            d->config.graphs == DRIVER_GRAPHS_UNITS ? capture_units(d, d->result.position.step) : capture_iteration(d);
    return status == BP_OK ? join_streams(d) : status;
}

/* Ends the capture also after a failure. Returns the first error, with its detail. */
static bp_status capture_graph(driver *d, bp_graph **graph)
{
    char detail[512];
    bp_stream *stream = d->streams[LAUNCH_STREAM];
    BP_TRY(bp_graph_begin(stream));
    d->capturing = true;
    bp_status status = capture_body(d);
    d->capturing = false;
    snprintf(detail, sizeof detail, "%s", bp_error_detail());
    bp_status ended = bp_graph_end(stream, graph);
    return status != BP_OK ? bp_error_record(status, detail) : ended;
}

static bp_status capture(driver *d, driver_graph *g)
{
    char detail[512];
    bp_capture_config config;
    bp_status status = bp_capture_config_init(&config, sizeof config);
    config.owned = d->owned;
    config.owned_count = d->program.held_count;
    if (status == BP_OK)
        status = bp_capture_begin(d->config.pool, &config, &g->capture);
    if (status != BP_OK)
        return status;
    status = capture_graph(d, &g->graph);
    if (status == BP_OK)
        status = bp_capture_end(g->capture);
    if (status == BP_OK) {
        d->result.graphs++;
        return BP_OK;
    }
    snprintf(detail, sizeof detail, "%s", bp_error_detail());
    bp_capture_destroy(&g->capture);
    return bp_error_record(status, detail);
}

bp_status driver_graphs_capture(driver *d)
{
    bool units = d->config.graphs == DRIVER_GRAPHS_UNITS;
    driver_position *at = &d->result.position;
    d->captured = true;
    if (!units)
        return capture(d, &d->graphs[0]);
    for (at->step = 0; at->step < d->program.steps; at->step++) {
        bp_status status = has_units(d, at->step) ? capture(d, &d->graphs[at->step]) : BP_OK;
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

bp_status driver_graph_launch(driver *d, size_t index)
{
    driver_graph *g = &d->graphs[index];
    bp_stream *stream = d->streams[LAUNCH_STREAM];
    if (g->graph == NULL)
        return BP_OK;
    uint64_t began = driver_now_ns();
    bp_status status = bp_capture_before_launch(g->capture, stream);
    driver_count_call(d, began);
    if (status == BP_OK)
        status = bp_graph_launch(g->graph, stream);
    if (status != BP_OK)
        return status;
    began = driver_now_ns();
    status = bp_capture_launched(g->capture, stream);
    driver_count_call(d, began);
    d->result.launches++;
    return status;
}
