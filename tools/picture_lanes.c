#include "picture_lanes.h"

#include <stdlib.h>

/* How far ahead of its compute a gather is looked for: further ahead, its box ends there. */
#define MOST_STEPS_AHEAD 1024

static bool computes(const schedule_view *v, uint32_t index, int32_t unit)
{
    const bp_step *step = &bp_schedule_get_info(v->analysed->schedule)->steps[index];
    return step->phase != BP_PHASE_RECORDED && (step->unit == unit || step->forward_unit == unit);
}

/* The interval of the event's requests that begins with it. */
static bp_interval interval_of(const schedule_view *v, const bp_schedule_event *event)
{
    const bp_scheduled_request *r = &bp_schedule_get_info(v->analysed->schedule)->requests[event->first_request];
    for (size_t i = 0; i < r->interval_count; i++) {
        if (r->intervals[i].begin == event->step)
            return r->intervals[i];
    }
    return (bp_interval){event->step, event->step + 1};
}

static void add(lane_items *lanes, lane_row row, uint32_t begin, uint32_t end, int32_t unit, bp_phase phase)
{
    lanes->items[lanes->count++] = (lane_item){
        .begin = begin, .end = end > begin ? end : begin + 1, .unit = unit, .phase = phase, .row = (uint8_t)row};
}

static void add_gather(const schedule_view *v, lane_items *lanes, const bp_interval *live, int32_t unit)
{
    uint32_t end = live->begin;
    while (end < live->end && end - live->begin < MOST_STEPS_AHEAD && !computes(v, end, unit))
        end++;
    add(lanes, ROW_GATHER, live->begin, end == live->end ? live->begin + 1 : end, unit, BP_PHASE_FORWARD);
}

static void add_reduction(const schedule_view *v, lane_items *lanes, const bp_interval *live, int32_t unit)
{
    uint32_t begin = live->begin;
    while (begin + 1 < live->end && computes(v, begin, unit))
        begin++;
    add(lanes, ROW_REDUCE, begin, live->end, unit, BP_PHASE_BACKWARD);
}

/* An event of each unit is enough: what is gathered with it runs beside it. */
static void add_events(const schedule_view *v, lane_items *lanes)
{
    int32_t gathered = BP_OUTSIDE, reduced = BP_OUTSIDE;
    for (size_t i = 0; i < v->event_count; i++) {
        const bp_schedule_event *event = &v->events[i];
        request_view r;
        if (i > 0 && event->step != v->events[i - 1].step)
            gathered = reduced = BP_OUTSIDE;
        if (!event->acquire || !schedule_view_request(v, event->first_request, &r) ||
            (BP_ROLES_STATE & BP_ROLE_BIT(r.request.role)))
            continue;
        bool is_gather = event->lane == BP_LANE_GATHER;
        int32_t *before = is_gather ? &gathered : &reduced;
        bp_interval live = interval_of(v, event);
        if (*before != r.bucket.unit && is_gather)
            add_gather(v, lanes, &live, r.bucket.unit);
        else if (*before != r.bucket.unit)
            add_reduction(v, lanes, &live, r.bucket.unit);
        *before = r.bucket.unit;
    }
}

static void add_steps(const schedule_view *v, lane_items *lanes)
{
    for (uint32_t i = 0; i < v->steps; i++) {
        bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[i];
        if (step.phase == BP_PHASE_RECORDED)
            continue;
        lane_item *last = lanes->count > 0 ? &lanes->items[lanes->count - 1] : NULL;
        if (last != NULL && step.phase == BP_PHASE_BACKWARD_GATHER && last->unit == step.unit)
            last->end = i + 1; /* the other half of its step */
        else
            add(lanes, ROW_COMPUTE, i, i + 1, step.unit, step.phase);
    }
}

static int by_begin(const void *a, const void *b)
{
    const lane_item *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* The first track that is free; where all are taken, the last. */
static void find_tracks(lane_items *lanes)
{
    uint32_t free_from[ROW_COUNT][MOST_TRACKS] = {0};
    qsort(lanes->items, lanes->count, sizeof *lanes->items, by_begin);
    for (size_t i = 0; i < lanes->count; i++) {
        lane_item *item = &lanes->items[i];
        uint8_t track = 0;
        while (track + 1 < MOST_TRACKS && free_from[item->row][track] > item->begin)
            track++;
        item->track = track;
        free_from[item->row][track] = item->end;
        if (track >= lanes->tracks[item->row])
            lanes->tracks[item->row] = track + 1u;
    }
}

bool lane_items_init(const schedule_view *v, lane_items *lanes)
{
    *lanes = (lane_items){.items = calloc((size_t)v->steps + v->event_count + 1, sizeof *lanes->items)};
    if (lanes->items == NULL)
        return false;
    add_steps(v, lanes);
    add_events(v, lanes);
    find_tracks(lanes);
    return true;
}

void lane_items_finish(lane_items *lanes)
{
    free(lanes->items);
    *lanes = (lane_items){0};
}
