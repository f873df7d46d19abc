#include "planner/trade_pairs.h"

#include <stdlib.h>

#include "core/fail.h"

uint8_t bp_trade_slab_of(const bp_window_trade *t, uint32_t request)
{
    return t->trade->slab_of_span[t->span_of_request[request]];
}

/* Adds the entry's request to the sums, or takes it away with the last window that keeps it. */
static void count_entry(bp_window_trade *t, const bp_trade_entry *e, bool drops)
{
    bp_kept_request *kept = &t->kept[e->kept];
    uint64_t *sum = &t->sums[bp_trade_slab_of(t, kept->request)][kept->step];
    if (drops && --kept->windows == 0)
        *sum -= kept->bytes;
    if (!drops && kept->windows++ == 0)
        *sum += kept->bytes;
}

void bp_trade_count_pair(bp_window_trade *t, uint32_t pair, bool drops)
{
    for (uint32_t i = t->first_of_pair[pair]; i < t->first_of_pair[pair + 1]; i++)
        count_entry(t, &t->entries[i], drops);
    bp_trade_spend(t->trade, t->first_of_pair[pair + 1] - t->first_of_pair[pair]);
}

static int by_pair(const void *a, const void *b)
{
    const bp_trade_entry *x = a, *y = b;
    if (x->units != y->units)
        return x->units < y->units ? -1 : 1;
    if (x->window.step != y->window.step)
        return x->window.step < y->window.step ? -1 : 1;
    if (x->window.later != y->window.later)
        return x->window.later < y->window.later ? -1 : 1;
    return x->window.earlier < y->window.earlier ? -1 : x->window.earlier > y->window.earlier;
}

static int by_place(const void *a, const void *b)
{
    const bp_trade_place *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* A number for the unit in its role. */
static uint64_t unit_in_role(const bp_buckets *buckets, uint32_t request)
{
    const bp_request_data *r = &buckets->requests[request];
    return (uint64_t)buckets->buckets[r->bucket].unit * BP_ROLE_COUNT + r->role;
}

static void collect_entries(bp_window_trade *t)
{
    const bp_buckets *buckets = t->trade->buckets;
    uint64_t most = (uint64_t)buckets->unit_count * BP_ROLE_COUNT;
    for (size_t i = 0; i < t->s->window_count; i++) {
        const bp_window *w = &t->s->windows[i];
        if (bp_trade_slab_of(t, w->earlier) == BP_NO_SLAB ||
            bp_trade_slab_of(t, w->earlier) != bp_trade_slab_of(t, w->later))
            continue;
        uint64_t units = unit_in_role(buckets, w->earlier) * most + unit_in_role(buckets, w->later);
        t->entries[t->entry_count++] = (bp_trade_entry){units, *w, (uint32_t)i, 0, 0};
    }
    qsort(t->entries, t->entry_count, sizeof *t->entries, by_pair);
    for (uint32_t i = 0; i < t->entry_count; i++) {
        if (i == 0 || t->entries[i].units != t->entries[i - 1].units)
            t->first_of_pair[t->pair_count++] = i;
        t->entries[i].pair = t->pair_count - 1;
        t->places[i] = (bp_trade_place){t->entries[i].window.step, t->entries[i].window.earlier, i};
    }
    t->first_of_pair[t->pair_count] = t->entry_count;
    qsort(t->places, t->entry_count, sizeof *t->places, by_place);
}

/* Spans of recorded schedules are of one request each. */
static uint64_t bytes_of(const bp_window_trade *t, uint32_t request)
{
    return t->trade->bytes_of_span[t->span_of_request[request]];
}

static void collect_kept(bp_window_trade *t)
{
    for (uint32_t i = 0; i < t->entry_count; i++) {
        const bp_trade_place *p = &t->places[i];
        if (i == 0 || p->step != p[-1].step || p->request != p[-1].request)
            t->kept[t->kept_count++] = (bp_kept_request){bytes_of(t, p->request), p->step, p->request, 0};
        t->entries[p->entry].kept = t->kept_count - 1;
    }
    for (uint32_t i = 0; i < t->entry_count; i++)
        count_entry(t, &t->entries[i], false);
}

static void add_live(bp_window_trade *t)
{
    for (uint32_t i = 0; i < t->s->span_count; i++) {
        const bp_span *span = &t->s->spans[i];
        uint8_t slab = t->trade->slab_of_span[i];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
            t->span_of_request[r] = i;
        for (uint32_t k = 0; slab != BP_NO_SLAB && k < span->interval_count; k++) {
            const bp_interval *live = &t->s->intervals[span->first_interval + k];
            t->sums[slab][live->begin] += t->trade->bytes_of_span[i];
            t->sums[slab][live->end] -= t->trade->bytes_of_span[i];
        }
    }
    for (uint32_t k = 0; k < t->trade->slab_count; k++)
        for (size_t step = 1; step <= t->s->step_count; step++)
            t->sums[k][step] += t->sums[k][step - 1];
}

bp_status bp_window_trade_init(bp_trade *trade, bp_window_trade *t)
{
    *t = (bp_window_trade){.trade = trade, .s = trade->schedule};
    size_t windows = t->s->window_count;
    for (uint32_t k = 0; k < trade->slab_count; k++)
        BP_TRY(bp_new_array(t->s->step_count + 1, sizeof(uint64_t), (void **)&t->sums[k]));
    BP_TRY(bp_new_array(t->s->request_count, sizeof(uint32_t), (void **)&t->span_of_request));
    BP_TRY(bp_new_array(windows, sizeof(bp_trade_entry), (void **)&t->entries));
    BP_TRY(bp_new_array(windows, sizeof(bp_trade_place), (void **)&t->places));
    BP_TRY(bp_new_array(windows, sizeof(bp_kept_request), (void **)&t->kept));
    BP_TRY(bp_new_array(windows + 1, sizeof(uint32_t), (void **)&t->first_of_pair));
    add_live(t);
    collect_entries(t);
    collect_kept(t);
    BP_TRY(bp_new_array(t->pair_count, sizeof(bool), (void **)&t->is_dropped));
    BP_TRY(bp_new_array(t->pair_count, sizeof(bool), (void **)&t->is_tried));
    return bp_new_array(t->pair_count, sizeof(uint32_t), (void **)&t->chosen);
}

void bp_window_trade_finish(bp_window_trade *t)
{
    for (uint32_t k = 0; k < t->trade->slab_count; k++)
        free(t->sums[k]);
    free(t->span_of_request);
    free(t->entries);
    free(t->places);
    free(t->kept);
    free(t->first_of_pair);
    free(t->is_dropped);
    free(t->is_tried);
    free(t->chosen);
}
