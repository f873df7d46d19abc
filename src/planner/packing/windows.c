/* SPDX-License-Identifier: Apache-2.0 */
/* Search in windows (large neighbourhood search), for long problems that are hard in a few places. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"
#include "planner/packing/solve.h"

#define MAX_BEHIND 512u /* largest number of earlier items that a window frees */

typedef struct windowing {
    const bp_problem *p;
    const bp_order *order;
    const bp_windows_config *config;
    bp_work *work;
    uint64_t *offsets;
    uint32_t *items; /* of the window, and the placed items that conflict with them; increasing */
    uint32_t count;
    uint64_t *fixed, *found; /* by number in the window */
    uint32_t *seen;          /* by item: the latest window that contains it */
    uint32_t *number_of;     /* by item: for bp_problem_subset */
    uint32_t windows;
} windowing;

static bool stays(const windowing *w, uint32_t item)
{
    const bp_lists *neighbours = &w->p->neighbours;
    uint64_t begin = w->offsets[item], size = w->p->sizes[item];
    if (size > w->config->capacity || begin > w->config->capacity - size)
        return false;
    w->work->spent += neighbours->first[item + 1] - neighbours->first[item];
    for (uint32_t n = neighbours->first[item]; n < neighbours->first[item + 1]; n++) {
        uint32_t other = neighbours->entries[n];
        bool before = w->order->place[other] < w->order->place[item];
        if (before && begin < w->offsets[other] + w->p->sizes[other] && w->offsets[other] < begin + size)
            return false;
    }
    return true;
}

static void windows_add_item(windowing *w, uint32_t item)
{
    if (w->seen[item] == w->windows)
        return;
    w->seen[item] = w->windows;
    w->items[w->count++] = item;
}

/* Collects the items [from, end) of the order, and the earlier items that conflict with them, which stay fixed. Returns the number of the
 * latter. */
static uint32_t windows_collect(windowing *w, uint32_t from, uint32_t end)
{
    const bp_lists *neighbours = &w->p->neighbours;
    uint32_t staying = 0;
    w->windows++;
    w->count = 0;
    for (uint32_t at = from; at < end; at++) {
        uint32_t item = w->order->items[at];
        windows_add_item(w, item);
        for (uint32_t n = neighbours->first[item]; n < neighbours->first[item + 1]; n++) {
            if (w->order->place[neighbours->entries[n]] < from)
                windows_add_item(w, neighbours->entries[n]);
        }
    }
    qsort(w->items, w->count, sizeof *w->items, bp_compare_numbers);
    for (uint32_t i = 0; i < w->count; i++) {
        bool stay = w->order->place[w->items[i]] < from;
        w->fixed[i] = stay ? w->offsets[w->items[i]] : BP_NOT_FIXED;
        staying += stay;
    }
    return staying;
}

/* Positions [at, until) of the order have to be placed. */
typedef struct place {
    uint32_t at, until;
    uint32_t behind;   /* least number of earlier items to free: fewer are proven impossible */
    bool found, fails; /* fails: impossible, and no earlier items are left to free */
} place;

/* Frees more and more earlier items, each time with the same work. */
static bp_status free_earlier_items(windowing *w, place *p, uint64_t share, bp_verdict *verdict)
{
    for (uint32_t behind = p->behind; !p->found && behind <= MAX_BEHIND && !bp_work_is_over(w->work);
         behind = behind == 0 ? w->config->ahead : 2 * behind) {
        uint32_t from = p->at > behind ? p->at - behind : 0, staying = windows_collect(w, from, p->until);
        bp_work part = bp_work_part(w->work, share);
        bp_problem window;
        bp_verdict answer;
        p->fails = w->count > BP_SEARCH_ITEMS;
        if (p->fails)
            return BP_OK;
        BP_TRY(bp_problem_subset(w->p, w->items, w->count, w->number_of, &window));
        bp_status status =
            bp_search(&window, w->config->capacity, w->fixed, w->config->series, &part, w->found, &answer);
        bp_problem_finish(&window);
        BP_TRY(status);
        w->work->spent = part.spent + w->count;
        for (uint32_t i = 0; answer.found && i < w->count; i++)
            w->offsets[w->items[i]] = w->found[i];
        p->found = answer.found;
        verdict->impossible = answer.impossible && staying == 0;
        p->fails = answer.impossible && from == 0;
        if (p->fails || verdict->impossible)
            return BP_OK;
        if (answer.impossible && behind == p->behind)
            p->behind = behind == 0 ? w->config->ahead : 2 * behind;
        if (from == 0)
            return BP_OK;
    }
    return BP_OK;
}

static bp_status place_all(windowing *w, bp_verdict *verdict)
{
    for (uint32_t at = 0; at < w->p->count; at++) {
        if (stays(w, w->order->items[at]))
            continue;
        uint32_t left = w->p->count - at;
        place p = {.at = at, .until = at + (left < w->config->ahead ? left : w->config->ahead)};
        for (uint64_t share = w->config->share / 16; share <= w->config->share && !p.found && !p.fails; share *= 4) {
            BP_TRY(free_earlier_items(w, &p, share, verdict));
            if (verdict->impossible || bp_work_is_over(w->work))
                break;
        }
        if (!p.found)
            return BP_OK;
        at = p.until - 1;
    }
    verdict->found = true;
    return BP_OK;
}

bp_status bp_windows(const bp_problem *problem, const bp_order *order, const bp_windows_config *config, bp_work *work,
                     uint64_t *offsets, bp_verdict *verdict)
{
    windowing w = {.p = problem, .order = order, .config = config, .work = work, .offsets = offsets};
    *verdict = (bp_verdict){0};
    bp_status status = bp_new_array(3 * (size_t)problem->count, sizeof *w.items, (void **)&w.items);
    if (status == BP_OK)
        status = bp_new_array(2 * (size_t)problem->count, sizeof *w.fixed, (void **)&w.fixed);
    if (status == BP_OK) {
        w.seen = w.items + problem->count;
        w.number_of = w.seen + problem->count;
        for (uint32_t i = 0; i < problem->count; i++)
            w.number_of[i] = BP_NO_ITEM;
        w.found = w.fixed + problem->count;
        status = place_all(&w, verdict);
    }
    verdict->proven = verdict->impossible ? config->capacity + 1 : 0;
    free(w.items);
    free(w.fixed);
    return status;
}
