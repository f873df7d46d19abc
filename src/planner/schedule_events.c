/* A schedule as a list of acquires and releases, as a host would issue them. */
#include "planner/schedule.h"

#include <stdlib.h>

#include "core/fail.h"

typedef struct event_list {
    bp_schedule_event *events; /* NULL: they are only counted */
    size_t count;
} event_list;

static void add_event(event_list *list, const bp_schedule_event *event)
{
    if (list->events != NULL)
        list->events[list->count] = *event;
    list->count++;
}

/* Requests of one group and one span: each interval is an acquire and a release. */
static void add_piece(event_list *list, const bp_schedule *s, const bp_span *span, uint32_t first, uint32_t count)
{
    for (uint32_t k = 0; k < span->interval_count; k++) {
        bp_use live = bp_schedule_use(s, span->first_interval + k);
        add_event(list,
                  &(bp_schedule_event){sizeof(bp_schedule_event), live.begin, 1, live.acquire_lane, first, count});
        add_event(list, &(bp_schedule_event){sizeof(bp_schedule_event), live.end, 0, live.release_lane, first, count});
    }
}

/* Spans and groups both are in the order of the requests; a span may cross groups. */
static void add_events(event_list *list, const bp_schedule *s, const bp_buckets *buckets)
{
    const bp_request_group *group = buckets->groups;
    for (size_t i = 0; i < s->span_count; i++) {
        uint32_t at = s->spans[i].first_request, end = at + s->spans[i].request_count;
        while (at < end) {
            while (group->first + group->count <= at)
                group++;
            uint32_t next = group->first + group->count < end ? group->first + group->count : end;
            add_piece(list, s, &s->spans[i], at, next - at);
            at = next;
        }
    }
}

static int in_order(const void *a, const void *b)
{
    const bp_schedule_event *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->acquire != y->acquire)
        return x->acquire < y->acquire ? -1 : 1;
    return x->first_request < y->first_request ? -1 : x->first_request > y->first_request;
}

static bool is_same_group(const bp_buckets *buckets, uint32_t one, uint32_t other)
{
    const bp_request_data *x = &buckets->requests[one], *y = &buckets->requests[other];
    return x->role == y->role && buckets->buckets[x->bucket].unit == buckets->buckets[y->bucket].unit;
}

/* Recorded schedules have a span a request: those of a group that come or go together become one event. */
static size_t merge_neighbours(const bp_buckets *buckets, bp_schedule_event *events, size_t count)
{
    size_t merged = 0;
    for (size_t i = 0; i < count; i++) {
        const bp_schedule_event *e = &events[i];
        bp_schedule_event *last = merged > 0 ? &events[merged - 1] : NULL;
        if (last != NULL && last->step == e->step && last->acquire == e->acquire && last->lane == e->lane &&
            last->first_request + last->request_count == e->first_request &&
            is_same_group(buckets, last->first_request, e->first_request))
            last->request_count += e->request_count;
        else
            events[merged++] = *e;
    }
    return merged;
}

bp_status bp_schedule_events_create(const bp_schedule *schedule, const bp_buckets *buckets, bp_schedule_event **events,
                                    size_t *count)
{
    if (schedule == NULL || buckets == NULL || events == NULL || count == NULL ||
        schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_schedule_events_create: needs a schedule, the buckets it was made for, and both outputs");
    event_list list = {0};
    add_events(&list, schedule, buckets);
    void *memory;
    BP_TRY(bp_new_array(list.count, sizeof *list.events, &memory));
    list = (event_list){.events = memory};
    add_events(&list, schedule, buckets);
    qsort(list.events, list.count, sizeof *list.events, in_order);
    *count = merge_neighbours(buckets, list.events, list.count);
    *events = list.events;
    return BP_OK;
}

void bp_schedule_events_destroy(bp_schedule_event **events)
{
    if (events == NULL)
        return;
    free(*events);
    *events = NULL;
}
