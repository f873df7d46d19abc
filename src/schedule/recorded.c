/* A schedule from the events a model brings along, one step an event. */
#include <stdlib.h>

#include "core/fail.h"
#include "core/structs.h"
#include "schedule/overlaps.h"
#include "schedule/schedule.h"

/* The requests of (unit, role), NULL when there are none. Groups are sorted by unit, then role. */
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

/* Intervals as they are found, in order of their ends; sorted by request afterwards. */
typedef struct found_interval {
    uint32_t request;
    bp_interval interval;
    bp_interval_lanes lanes;
} found_interval;

typedef struct recording {
    const bp_model *model;
    const bp_buckets *buckets;
    uint32_t roles;       /* that are planned */
    uint32_t *live_since; /* by request: event that acquired it + 1, 0: not live */
    found_interval *found;
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

static bp_interval_lanes lanes_of(const bp_model_event *acquire, const bp_model_event *release)
{
    bp_interval_lanes lanes = bp_role_lanes(acquire->role);
    if (acquire->lane != BP_MODEL_EVENT_NO_LANE)
        lanes.acquire = (uint8_t)acquire->lane;
    if (release->lane != BP_MODEL_EVENT_NO_LANE)
        lanes.release = (uint8_t)release->lane;
    return lanes;
}

static bp_status apply(recording *r, size_t at, const bp_model_event *event, uint32_t request)
{
    if (event->acquire) {
        if (r->live_since[request] != 0)
            return fail_event(r, at, event, request, "which is live already");
        r->live_since[request] = (uint32_t)at + 1;
        return BP_OK;
    }
    if (r->live_since[request] == 0)
        return fail_event(r, at, event, request, "which is not live");
    BP_TRY(bp_grow_array((void **)&r->found, &r->capacity, r->count, sizeof *r->found));
    uint32_t since = r->live_since[request] - 1;
    r->found[r->count++] = (found_interval){request, {since, (uint32_t)at}, lanes_of(&r->model->events[since], event)};
    r->live_since[request] = 0;
    return BP_OK;
}

/* The first request of the group whose bucket has at least this ordinal; requests are in order of buckets. */
static uint32_t find_request(const bp_buckets *buckets, const bp_request_group *group, uint32_t ordinal)
{
    uint32_t low = group->first, high = group->first + group->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (buckets->buckets[buckets->requests[middle].bucket].ordinal < ordinal)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bp_status apply_event(recording *r, size_t at, const bp_model_event *event)
{
    const bp_buckets *buckets = r->buckets;
    const char *unit = buckets->units[event->unit].name;
    if (event->role >= BP_ROLE_COUNT || !(r->roles & BP_ROLE_BIT(event->role)))
        return BP_OK; /* of a role that is not planned */
    const bp_request_group *group = recorded_schedule_find_group(buckets, (uint32_t)event->unit, event->role);
    if (group == NULL)
        return bp_fail(BP_ERR_SCHEDULE, "event %zu: unit %s has no bucket in role %s", at, unit,
                       bp_role_name((bp_role)event->role));
    uint32_t first = group->first, end = group->first + group->count;
    if (event->bucket >= 0) {
        first = find_request(buckets, group, (uint32_t)event->bucket);
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
    const found_interval *x = a, *y = b;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    return x->interval.begin < y->interval.begin ? -1 : x->interval.begin > y->interval.begin;
}

static bp_status record(recording *r, const bp_model *model, bp_schedule *schedule)
{
    const bp_buckets *buckets = r->buckets;
    BP_TRY(bp_new_array(buckets->request_count, sizeof *r->live_since, (void **)&r->live_since));
    for (size_t i = 0; i < model->event_count; i++) {
        BP_TRY(bp_schedule_add_step(schedule, BP_PHASE_RECORDED, model->events[i].unit, BP_OUTSIDE));
        BP_TRY(apply_event(r, i, &model->events[i]));
    }
    for (size_t i = 0; i < buckets->request_count; i++) {
        if (r->live_since[i] != 0)
            return fail_event(r, r->live_since[i] - 1, &model->events[r->live_since[i] - 1], (uint32_t)i,
                              "is never followed by a release");
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
            return bp_fail(BP_ERR_SCHEDULE, "%s/%s (%s) has no events in the schedule", buckets->units[b->unit].name,
                           bp_bucket_label(b->name, b->ordinal, text), bp_role_name((bp_role)request->role));
        }
        for (; at < r->count && r->found[at].request == i; at++) {
            bp_interval live = r->found[at].interval;
            bp_interval_lanes lanes = r->found[at].lanes;
            bp_use use = {live.begin, live.end, lanes.acquire, lanes.release};
            BP_TRY(bp_schedule_add_use(schedule, &use));
        }
        BP_TRY(bp_schedule_close_span(schedule));
    }
    return BP_OK;
}

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
        status = bp_schedule_add_overlap_window(created, buckets, config.overlap_window);
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
