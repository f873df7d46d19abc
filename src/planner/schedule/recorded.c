/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded schedules: one step for each event of the model's recording, and overlap windows. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>

#include "planner/schedule/schedule.h"

/* Binary search: groups are sorted by unit, then role. NULL: the unit has no requests in the role. */
static const bp_request_group *recorded_schedule_find_group(const bp_buckets *buckets, uint32_t unit, uint32_t role)
{
    size_t low = 0, high = buckets->group_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const bp_request_group *g = &buckets->groups[middle];
        if (g->unit < unit || (g->unit == unit && g->role < role))
            low = middle + 1;
        else
            high = middle;
    }
    const bp_request_group *g = &buckets->groups[low];
    return low < buckets->group_count && g->unit == unit && g->role == role ? g : NULL;
}

/* A use, found when it ends; sorted by request afterwards. */
typedef struct found_use {
    uint32_t request;
    bp_use use;
} found_use;

typedef struct recording {
    const bp_model *model;
    const bp_buckets *buckets;
    uint32_t roles;       /* the planned roles */
    uint32_t *live_since; /* by request: index of the acquiring event + 1; 0: not live */
    found_use *found;
    size_t count, capacity;
    bool partial; /* requests may have no events */
} recording;

static const bp_recorded_config recorded_defaults = {.size = sizeof recorded_defaults};

bp_status bp_recorded_config_init(bp_recorded_config *config, size_t size)
{
    return bp_struct_init("bp_recorded_config_init", config, size, &recorded_defaults, sizeof recorded_defaults);
}

static bp_status fail_event(const recording *r, size_t at, const bp_model_event *event, uint32_t request,
                            const char *what)
{
    const bp_bucket *b = &r->buckets->buckets[r->buckets->requests[request].bucket];
    char text[24];
    return bp_fail(BP_ERR_SCHEDULE, "event %zu: %s of %s/%s (%s) %s", at, event->acquire ? "acquire" : "release",
                   r->buckets->units[event->unit].name, bp_bucket_label(b->name, b->ordinal, text),
                   bp_role_name((bp_role)event->role), what);
}

static bp_status apply(recording *r, size_t at, const bp_model_event *event, uint32_t request)
{
    if (event->acquire) {
        if (r->live_since[request] != 0)
            return fail_event(r, at, event, request, "is live already");
        r->live_since[request] = (uint32_t)at + 1;
        return BP_OK;
    }
    if (r->live_since[request] == 0)
        return fail_event(r, at, event, request, "is not live");
    BP_TRY(bp_grow_array((void **)&r->found, &r->capacity, r->count, sizeof *r->found));
    uint32_t since = r->live_since[request] - 1;
    const bp_model_event *acquire = r->model->events[since];
    bp_interval_lanes lanes = bp_role_lanes(acquire->role);
    if (acquire->lane != BP_MODEL_EVENT_NO_LANE)
        lanes.acquire = (uint8_t)acquire->lane;
    if (event->lane != BP_MODEL_EVENT_NO_LANE)
        lanes.release = (uint8_t)event->lane;
    r->found[r->count++] = (found_use){request, {since, (uint32_t)at, lanes.acquire, lanes.release}};
    r->live_since[request] = 0;
    return BP_OK;
}

static bp_status apply_event(recording *r, size_t at, const bp_model_event *event)
{
    const bp_buckets *buckets = r->buckets;
    const char *unit = buckets->units[event->unit].name;
    if (event->role >= BP_ROLE_COUNT || !(r->roles & BP_ROLE_BIT(event->role)))
        return BP_OK; /* the role is not planned */
    const bp_request_group *group = recorded_schedule_find_group(buckets, (uint32_t)event->unit, event->role);
    if (group == NULL)
        return bp_fail(BP_ERR_SCHEDULE, "event %zu: unit %s has no bucket in role %s", at, unit,
                       bp_role_name((bp_role)event->role));
    uint32_t first = group->first, end = group->first + group->count;
    if (event->bucket >= 0) {
        for (uint32_t high = end; first < high;) { /* requests are in the order of buckets */
            uint32_t middle = first + (high - first) / 2;
            if (buckets->buckets[buckets->requests[middle].bucket].ordinal < (uint32_t)event->bucket)
                first = middle + 1;
            else
                high = middle;
        }
        if (first == end || buckets->buckets[buckets->requests[first].bucket].ordinal != (uint32_t)event->bucket)
            return bp_fail(BP_ERR_SCHEDULE, "event %zu: unit %s has no bucket number %d in role %s", at, unit,
                           event->bucket, bp_role_name((bp_role)event->role));
        end = first + 1;
    }
    for (uint32_t i = first; i < end; i++)
        BP_TRY(apply(r, at, event, i));
    return BP_OK;
}

static int recorded_schedule_by_request(const void *a, const void *b)
{
    const found_use *x = a, *y = b;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    return x->use.begin < y->use.begin ? -1 : x->use.begin > y->use.begin;
}

static bp_status record(recording *r, const bp_model *model, bp_schedule *schedule)
{
    const bp_buckets *buckets = r->buckets;
    BP_TRY(bp_new_array(buckets->request_count, sizeof *r->live_since, (void **)&r->live_since));
    for (size_t i = 0; i < model->event_count; i++) {
        BP_TRY(bp_schedule_add_step(schedule, BP_PHASE_RECORDED, model->events[i]->unit, BP_OUTSIDE));
        BP_TRY(apply_event(r, i, model->events[i]));
    }
    for (size_t i = 0; i < buckets->request_count; i++) {
        if (r->live_since[i] != 0)
            return fail_event(r, r->live_since[i] - 1, model->events[r->live_since[i] - 1], (uint32_t)i,
                              "has no release after it");
    }
    if (r->count > 0)
        qsort(r->found, r->count, sizeof *r->found, recorded_schedule_by_request);
    const bp_request_group *group = buckets->groups;
    size_t at = 0;
    for (uint32_t i = 0; i < buckets->request_count; i++) {
        while (group + 1 < buckets->groups + buckets->group_count && group[1].first <= i)
            group++;
        BP_TRY(bp_schedule_add_span(schedule, i, 1, i == group->first));
        if ((at == r->count || r->found[at].request != i) && !r->partial) {
            const bp_request *request = &buckets->requests[i];
            const bp_bucket *b = &buckets->buckets[request->bucket];
            char text[24];
            return bp_fail(BP_ERR_SCHEDULE, "%s/%s (%s) has no events in the recording; record a whole step",
                           buckets->units[b->unit].name, bp_bucket_label(b->name, b->ordinal, text),
                           bp_role_name((bp_role)request->role));
        }
        for (; at < r->count && r->found[at].request == i; at++)
            BP_TRY(bp_schedule_add_use(schedule, &r->found[at].use));
        BP_TRY(bp_schedule_close_span(schedule));
    }
    return BP_OK;
}

/* ---- overlap windows ----------------------------------------------------------------------------------------------- */

/* An acquire of the recording. */
typedef struct acquire {
    uint32_t step, request;
    uint8_t lane;
} acquire;

/* Consecutive acquires of one unit and role on one lane: one unit of a window. */
typedef struct acquire_run {
    uint32_t first, end; /* acquires */
} acquire_run;

typedef struct window_maker {
    bp_schedule *s;
    const bp_buckets *buckets;
    uint32_t width;
    acquire *acquires; /* in order of steps */
    acquire_run *runs;
    uint32_t acquire_count, run_count;
    uint32_t *others[BP_LANE_COUNT]; /* by releasing lane: the runs on other lanes; built at the first release */
    uint32_t other_count[BP_LANE_COUNT];
} window_maker;

static int by_acquire_step(const void *a, const void *b)
{
    const acquire *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->request < y->request ? -1 : x->request > y->request;
}

static bool is_same_run(const window_maker *m, const acquire *a, const acquire *b)
{
    const bp_request *x = &m->buckets->requests[a->request], *y = &m->buckets->requests[b->request];
    return a->lane == b->lane && x->role == y->role &&
           m->buckets->buckets[x->bucket].unit == m->buckets->buckets[y->bucket].unit;
}

/* Adds windows for a run's acquires between two steps. */
static bp_status add_windows_of_run(window_maker *m, uint32_t earlier, uint32_t run, uint32_t after, uint32_t before,
                                    uint32_t distance)
{
    for (uint32_t i = m->runs[run].first; i < m->runs[run].end; i++) {
        const acquire *later = &m->acquires[i];
        bp_window window = {earlier, later->request, later->step, distance, 0, (uint32_t)m->s->step_count};
        if (later->step >= after && later->step < before && later->request != earlier)
            BP_TRY(bp_schedule_add_window(m->s, &window));
    }
    return BP_OK;
}

/* Walks around the recording at most once. A run that contains the release counts twice: as the first and as the last unit. */
static bp_status add_release(window_maker *m, uint32_t request, uint32_t step, uint32_t lane)
{
    if (m->others[lane] == NULL) {
        BP_TRY(bp_new_array(m->run_count, sizeof(uint32_t), (void **)&m->others[lane]));
        for (uint32_t i = 0; i < m->run_count; i++) {
            if (m->acquires[m->runs[i].first].lane != lane)
                m->others[lane][m->other_count[lane]++] = i;
        }
    }
    const uint32_t *others = m->others[lane];
    uint32_t first = 0, count = m->other_count[lane]; /* binary search: the first run with an acquire after the step */
    for (uint32_t high = count; first < high;) {
        uint32_t middle = first + (high - first) / 2;
        if (m->acquires[m->runs[others[middle]].end - 1].step < step)
            first = middle + 1;
        else
            high = middle;
    }
    for (uint32_t i = 0; i < count - first && i < m->width; i++)
        BP_TRY(add_windows_of_run(m, request, others[first + i], step, UINT32_MAX, i + 1));
    for (uint32_t i = 0; i <= first && i < count && i + count - first < m->width; i++)
        BP_TRY(add_windows_of_run(m, request, others[i], 0, step, i + count - first + 1));
    return BP_OK;
}

static bp_status make_windows(window_maker *m)
{
    const bp_schedule *s = m->s;
    BP_TRY(bp_new_array(s->interval_count, sizeof *m->acquires, (void **)&m->acquires));
    BP_TRY(bp_new_array(s->interval_count, sizeof *m->runs, (void **)&m->runs));
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t k = span->first_interval; k < span->first_interval + span->interval_count; k++)
            m->acquires[m->acquire_count++] =
                (acquire){s->intervals[k].begin, span->first_request, s->lanes[k].acquire};
    }
    qsort(m->acquires, m->acquire_count, sizeof *m->acquires, by_acquire_step);
    for (uint32_t i = 0; i < m->acquire_count; i++) {
        if (i == 0 || !is_same_run(m, &m->acquires[i - 1], &m->acquires[i]))
            m->runs[m->run_count++] = (acquire_run){i, i};
        m->runs[m->run_count - 1].end = i + 1;
    }
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t k = span->first_interval; k < span->first_interval + span->interval_count; k++)
            BP_TRY(add_release(m, span->first_request, s->intervals[k].end, s->lanes[k].release));
    }
    return BP_OK;
}

/* Adds windows: memory released on one lane is kept from the next `width` units that acquire on another, also across the end of the
 * recording. Needs the spans. */
static bp_status add_overlap_windows(bp_schedule *schedule, const bp_buckets *buckets, uint32_t width)
{
    window_maker m = {.s = schedule, .buckets = buckets, .width = width};
    bp_status status = make_windows(&m);
    free(m.acquires);
    free(m.runs);
    for (uint32_t lane = 0; lane < BP_LANE_COUNT; lane++)
        free(m.others[lane]);
    return status;
}

/* ---- recordings ---------------------------------------------------------------------------------------------------- */

bp_status bp_schedule_create_recorded(const bp_model *model, const bp_buckets *buckets, const bp_recorded_config *given,
                                      bp_schedule **schedule)
{
    bp_recorded_config config = recorded_defaults;
    if (model == NULL || buckets == NULL || schedule == NULL || model->event_count == 0 ||
        model->unit_count != buckets->unit_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_schedule_create_recorded: needs a model with events and its buckets");
    BP_TRY(bp_struct_read("bp_schedule_create_recorded", given, true, &config, sizeof config));
    bp_schedule *created;
    BP_TRY(bp_schedule_new(buckets->request_count, &created));
    recording r = {.model = model, .buckets = buckets, .partial = config.partial != 0};
    for (size_t g = 0; g < buckets->group_count; g++)
        r.roles |= BP_ROLE_BIT(buckets->groups[g].role);
    bp_status status = record(&r, model, created);
    if (status == BP_OK && config.overlap_window > 0)
        status = add_overlap_windows(created, buckets, config.overlap_window);
    if (status == BP_OK)
        status = bp_schedule_finish(created);
    free(r.live_since);
    free(r.found);
    if (status != BP_OK) {
        bp_schedule_destroy(&created);
        return status;
    }
    *schedule = created;
    return BP_OK;
}
