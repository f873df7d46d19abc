#include "planner/overlaps.h"

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

static int by_pair(const void *a, const void *b)
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
        qsort(s->windows, s->window_count, sizeof *s->windows, by_pair);
    free(s->overlaps);
    s->overlaps = NULL;
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

static int by_request(const void *a, const void *b)
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
    void *memory;
    BP_TRY(bp_new_array(2 * schedule->window_count, sizeof **tails, &memory));
    *tails = memory;
    *count = 0;
    for (size_t i = 0; i < schedule->window_count; i++)
        *count += add_tail(schedule, &schedule->windows[i], *tails + *count);
    if (*count > 0)
        qsort(*tails, *count, sizeof **tails, by_request);
    return BP_OK;
}
