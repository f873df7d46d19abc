/* Overlaps: windows of recordings, the pairs of requests that they keep apart, and the tails that this adds to live ranges. */
#include "schedule/overlaps.h"

#include <stdlib.h>

#include "core/fail.h"

/* Recordings of hostile length with windows of hostile width. */
#define MOST_WINDOWS (1u << 22)

bp_status bp_schedule_add_window(bp_schedule *s, const bp_window *window)
{
    if (s->window_count == MOST_WINDOWS)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "the overlap window keeps requests apart more than %u times: choose a smaller one",
                       MOST_WINDOWS);
    BP_TRY(bp_grow_array((void **)&s->windows, &s->window_capacity, s->window_count, sizeof *s->windows));
    s->windows[s->window_count++] = *window;
    return BP_OK;
}

/* ---- windows of a recording ---------------------------------------------------------------------------------------- */

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

static int by_acquire_step(const void *a, const void *b)
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
    qsort(m->acquires, m->acquire_count, sizeof *m->acquires, by_acquire_step);
}

static bool is_same_run(const window_maker *m, const acquire *a, const acquire *b)
{
    const bp_request *x = &m->buckets->requests[a->request], *y = &m->buckets->requests[b->request];
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
static bp_status overlaps_add_run(window_maker *m, uint32_t earlier, uint32_t run, uint32_t after, uint32_t before,
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
        BP_TRY(overlaps_add_run(m, request, m->others[lane][first + i], step, UINT32_MAX, i + 1));
    for (uint32_t i = 0; i <= first && i < count && i + count - first < m->width; i++)
        BP_TRY(overlaps_add_run(m, request, m->others[lane][i], 0, step, i + count - first + 1));
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
    return status;
}

/* ---- pairs --------------------------------------------------------------------------------------------------------- */

static int overlaps_by_pair(const void *a, const void *b)
{
    const bp_window *x = a, *y = b;
    if (x->later != y->later)
        return x->later < y->later ? -1 : 1;
    if (x->earlier != y->earlier)
        return x->earlier < y->earlier ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->distance < y->distance ? -1 : x->distance > y->distance;
}

static bool are_live_together(const bp_schedule *s, uint32_t a, uint32_t b)
{
    size_t count_a, count_b, i = 0, k = 0;
    const bp_interval *x = bp_schedule_intervals(s, a, &count_a), *y = bp_schedule_intervals(s, b, &count_b);
    while (i < count_a && k < count_b) {
        if (x[i].begin < y[k].end && y[k].begin < x[i].end)
            return true;
        if (x[i].end <= y[k].end)
            i++;
        else
            k++;
    }
    return false;
}

static bool is_pair(const bp_window *window, const bp_overlap *overlap)
{
    return window->earlier == overlap->earlier && window->later == overlap->later;
}

bp_status bp_schedule_derive_overlaps(bp_schedule *s)
{
    size_t kept = 0, pairs = 0, capacity = 0;
    if (s->window_count > 0)
        qsort(s->windows, s->window_count, sizeof *s->windows, overlaps_by_pair);
    for (size_t i = 0; i < s->window_count;) {
        bp_overlap pair = {s->windows[i].earlier, s->windows[i].later};
        bool apart = !are_live_together(s, pair.earlier, pair.later);
        if (apart) {
            BP_TRY(bp_grow_array((void **)&s->overlaps, &capacity, pairs, sizeof *s->overlaps));
            s->overlaps[pairs++] = pair;
        }
        for (size_t first = i; i < s->window_count && is_pair(&s->windows[i], &pair); i++) {
            bool repeated = i > first && s->windows[i].step == s->windows[i - 1].step; /* the nearer came first */
            if (apart && !repeated)
                s->windows[kept++] = s->windows[i];
        }
    }
    s->window_count = kept;
    s->overlap_count = pairs;
    return BP_OK;
}

/* ---- tails --------------------------------------------------------------------------------------------------------- */

static int overlaps_by_request(const void *a, const void *b)
{
    const bp_tail *x = a, *y = b;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    if (x->interval.begin != y->interval.begin)
        return x->interval.begin < y->interval.begin ? -1 : 1;
    return (x->interval.end > y->interval.end) - (x->interval.end < y->interval.end);
}

/* From the latest release of `earlier` to the acquire that it keeps off, around the end of the recording if need be. */
static size_t add_tail(const bp_schedule *s, const bp_window *window, bp_tail *tails)
{
    size_t count;
    const bp_interval *intervals = bp_schedule_intervals(s, window->earlier, &count);
    uint32_t before = window->first_step,
             last = window->first_step; /* latest releases: before the acquire, and of all */
    for (size_t i = 0; i < count; i++) {
        bool within = intervals[i].begin >= window->first_step && intervals[i].end <= window->end_step;
        if (within && intervals[i].end <= window->step)
            before = intervals[i].end;
        if (within)
            last = intervals[i].end;
    }
    tails[0] = (bp_tail){window->earlier, {before, window->step + 1}};
    if (before > window->first_step || last == window->end_step)
        return 1;
    tails[1] = (bp_tail){window->earlier, {last, window->end_step}};
    return 2;
}

bp_status bp_schedule_find_tails(const bp_schedule *schedule, bp_tail **tails, size_t *count)
{
    BP_TRY(bp_new_array(2 * schedule->window_count, sizeof **tails, (void **)tails));
    *count = 0;
    for (size_t i = 0; i < schedule->window_count; i++)
        *count += add_tail(schedule, &schedule->windows[i], *tails + *count);
    if (*count > 0)
        qsort(*tails, *count, sizeof **tails, overlaps_by_request);
    return BP_OK;
}
