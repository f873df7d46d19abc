#include <stdlib.h>

#include "core/fail.h"
#include "planner/overlaps.h"

/* An acquire of the recording. */
typedef struct acquire {
    uint32_t step, request;
    uint8_t lane;
} acquire;

/* Consecutive acquires of one unit and role on one lane. */
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
    uint32_t *others[BP_LANE_COUNT]; /* by lane that releases: the runs on another one */
    uint32_t other_count[BP_LANE_COUNT];
} window_maker;

static int by_step(const void *a, const void *b)
{
    const acquire *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->request < y->request ? -1 : x->request > y->request;
}

static void collect_acquires(window_maker *m)
{
    for (size_t i = 0; i < m->s->span_count; i++) {
        const bp_span *span = &m->s->spans[i];
        for (uint32_t k = span->first_interval; k < span->first_interval + span->interval_count; k++)
            m->acquires[m->acquire_count++] =
                (acquire){m->s->intervals[k].begin, span->first_request, m->s->lanes[k].acquire};
    }
    qsort(m->acquires, m->acquire_count, sizeof *m->acquires, by_step);
}

static bool is_same_run(const window_maker *m, const acquire *a, const acquire *b)
{
    const bp_request_data *x = &m->buckets->requests[a->request], *y = &m->buckets->requests[b->request];
    return a->lane == b->lane && x->role == y->role &&
           m->buckets->buckets[x->bucket].unit == m->buckets->buckets[y->bucket].unit;
}

static void collect_runs(window_maker *m)
{
    for (uint32_t i = 0; i < m->acquire_count; i++) {
        if (i == 0 || !is_same_run(m, &m->acquires[i - 1], &m->acquires[i]))
            m->runs[m->run_count++] = (acquire_run){i, i};
        m->runs[m->run_count - 1].end = i + 1;
    }
}

/* Made when the first release on the lane needs them. */
static bp_status list_others(window_maker *m, uint32_t lane)
{
    if (m->others[lane] != NULL)
        return BP_OK;
    BP_TRY(bp_new_array(m->run_count, sizeof(uint32_t), (void **)&m->others[lane]));
    for (uint32_t i = 0; i < m->run_count; i++)
        if (m->acquires[m->runs[i].first].lane != lane)
            m->others[lane][m->other_count[lane]++] = i;
    return BP_OK;
}

static uint32_t last_step(const window_maker *m, uint32_t run)
{
    return m->acquires[m->runs[run].end - 1].step;
}

/* The first of the lane's others that has an acquire after the step; their number where none has. */
static uint32_t first_after(const window_maker *m, uint32_t lane, uint32_t step)
{
    uint32_t low = 0, high = m->other_count[lane];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (last_step(m, m->others[lane][middle]) < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The acquires of a run between two steps. */
static bp_status add_run(window_maker *m, uint32_t earlier, uint32_t run, uint32_t after, uint32_t before,
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

/* Goes round the recording once at most. A run that the release falls into is met as a first and as a last unit. */
static bp_status add_release(window_maker *m, uint32_t request, uint32_t step, uint32_t lane)
{
    BP_TRY(list_others(m, lane));
    uint32_t first = first_after(m, lane, step), count = m->other_count[lane];
    for (uint32_t i = 0; i < count - first && i < m->width; i++)
        BP_TRY(add_run(m, request, m->others[lane][first + i], step, UINT32_MAX, i + 1));
    for (uint32_t i = 0; i <= first && i < count && i + count - first < m->width; i++)
        BP_TRY(add_run(m, request, m->others[lane][i], 0, step, i + count - first + 1));
    return BP_OK;
}

static bp_status make_windows(window_maker *m)
{
    BP_TRY(bp_new_array(m->s->interval_count, sizeof *m->acquires, (void **)&m->acquires));
    BP_TRY(bp_new_array(m->s->interval_count, sizeof *m->runs, (void **)&m->runs));
    collect_acquires(m);
    collect_runs(m);
    for (size_t i = 0; i < m->s->span_count; i++) {
        const bp_span *span = &m->s->spans[i];
        for (uint32_t k = span->first_interval; k < span->first_interval + span->interval_count; k++)
            BP_TRY(add_release(m, span->first_request, m->s->intervals[k].end, m->s->lanes[k].release));
    }
    return BP_OK;
}

bp_status bp_schedule_add_overlap_window(bp_schedule *schedule, const bp_buckets *buckets, uint32_t width)
{
    window_maker m = {.s = schedule, .buckets = buckets, .width = width};
    bp_status status = make_windows(&m);
    free(m.acquires);
    free(m.runs);
    for (uint32_t lane = 0; lane < BP_LANE_COUNT; lane++)
        free(m.others[lane]);
    return status == BP_OK ? bp_schedule_derive_overlaps(schedule) : status;
}
