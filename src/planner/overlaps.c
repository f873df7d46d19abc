#include "planner/overlaps.h"

#include <stdlib.h>

#include "core/fail.h"

/* Recordings of hostile length with windows of hostile width. */
#define MOST_WINDOWS (1u << 24)

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
