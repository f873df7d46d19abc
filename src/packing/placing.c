/* Places items from the bottom up, propagates lower bounds to the others, and undoes both. */
#include "packing/placing.h"

#include <stdlib.h>

#include "core/fail.h"

/* ---- memory of the path --------------------------------------------------------------------------------------------- */

void bp_placing_stop(bp_placing *s, bp_status status)
{
    s->stopped = true;
    if (s->status == BP_OK)
        s->status = status;
}

static void placing_note(bp_placing *s, uint64_t *where, uint64_t old)
{
    bp_status status = bp_grow_array((void **)&s->trail, &s->trail_capacity, s->trail_count, sizeof *s->trail);
    if (status != BP_OK)
        bp_placing_stop(s, status); /* the search ends; what is not undone does not matter */
    else
        s->trail[s->trail_count++] = (bp_change){where, old};
}

static void placing_set(bp_placing *s, uint64_t *where, uint64_t value)
{
    placing_note(s, where, *where);
    *where = value;
}

void bp_placing_undo(bp_placing *s, size_t mark)
{
    while (s->trail_count > mark) {
        const bp_change *c = &s->trail[--s->trail_count];
        if (c->where == NULL)
            s->placed[c->old] = false;
        else
            *c->where = c->old;
    }
}

/* ---- consequences --------------------------------------------------------------------------------------------------- */

static bool check_section(bp_placing *s, uint32_t section)
{
    const bp_problem *p = s->p;
    uint32_t first = p->sections.first[section], end = p->sections.first[section + 1];
    uint64_t low = UINT64_MAX;
    s->work.spent += end - first;
    for (uint32_t e = first; e < end; e++) {
        uint32_t item = p->sections.entries[e];
        if (!s->placed[item] && s->lowest[item] < low)
            low = s->lowest[item];
    }
    if (low == UINT64_MAX)
        return true;
    if (low > s->floor_of[section])
        placing_set(s, &s->floor_of[section], low);
    return s->floor_of[section] <= s->capacity && s->rest[section] <= s->capacity - s->floor_of[section];
}

bool bp_check_sections_of(bp_placing *s, uint32_t item, uint64_t before)
{
    const bp_problem *p = s->p;
    s->work.spent += p->memberships.first[item + 1] - p->memberships.first[item];
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        uint32_t section = p->memberships.entries[m];
        if (s->stamp[section] == s->stamps || s->floor_of[section] < before)
            continue;
        s->stamp[section] = s->stamps;
        if (!check_section(s, section))
            return false;
    }
    return true;
}

bool bp_raise(bp_placing *s, uint32_t item, uint64_t lowest)
{
    if (lowest > s->capacity - s->p->sizes[item])
        return false;
    if (lowest > s->lowest[item]) {
        if (bp_is_fixed(s, item))
            return false;
        placing_set(s, &s->lowest[item], lowest);
    }
    return true;
}

bool bp_place(bp_placing *s, uint32_t item, uint64_t at)
{
    const bp_problem *p = s->p;
    uint64_t top = at + p->sizes[item];
    s->placed[item] = true;
    s->offsets[item] = at;
    placing_note(s, NULL, item);
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        uint32_t section = p->memberships.entries[m];
        placing_set(s, &s->rest[section], s->rest[section] - p->sizes[item]);
        placing_set(s, &s->floor_of[section], top);
    }
    uint32_t raised = 0;
    s->work.spent += p->neighbours.first[item + 1] - p->neighbours.first[item];
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (s->placed[other])
            continue;
        if (s->supported[other] < top)
            placing_set(s, &s->supported[other], top);
        if (s->lowest[other] < top) {
            s->before[raised] = s->lowest[other];
            s->raised[raised++] = other;
            if (!bp_raise(s, other, top))
                return false;
        }
    }
    s->stamps++;
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        s->stamp[p->memberships.entries[m]] = s->stamps;
        if (!check_section(s, p->memberships.entries[m]))
            return false;
    }
    for (uint32_t i = 0; i < raised; i++) {
        if (!bp_check_sections_of(s, s->raised[i], s->before[i]))
            return false;
    }
    return true;
}

uint64_t bp_next_support(bp_placing *s, uint32_t item)
{
    const bp_problem *p = s->p;
    uint64_t low = UINT64_MAX;
    s->work.spent += p->neighbours.first[item + 1] - p->neighbours.first[item];
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (!s->placed[other] && s->lowest[other] + p->sizes[other] < low)
            low = s->lowest[other] + p->sizes[other];
    }
    return low;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------------ */

bool bp_placing_begin(bp_placing *s, bp_work work)
{
    const bp_problem *p = s->p;
    bool fits = true;
    s->trail_count = 0;
    s->stopped = false;
    s->work = work;
    for (uint32_t i = 0; i < p->count; i++) {
        s->placed[i] = false;
        s->supported[i] = 0;
        s->lowest[i] = bp_is_fixed(s, i) ? s->fixed[i] : 0;
        fits = fits && p->sizes[i] <= s->capacity && s->lowest[i] <= s->capacity - p->sizes[i];
    }
    for (uint32_t c = 0; c < p->sections.count; c++) {
        s->floor_of[c] = s->rest[c] = 0;
        for (uint32_t e = p->sections.first[c]; e < p->sections.first[c + 1]; e++)
            s->rest[c] += p->sizes[p->sections.entries[e]];
        fits = fits && s->rest[c] <= s->capacity;
    }
    return fits;
}

static bp_status new_arrays(bp_placing *s)
{
    size_t items = s->p->count, sections = s->p->sections.count;
    const struct {
        void *pointer;
        size_t count, size;
    } arrays[] = {
        {&s->placed, items, sizeof *s->placed}, {&s->supported, items, sizeof *s->supported},
        {&s->lowest, items, sizeof *s->lowest}, {&s->floor_of, sections, sizeof *s->floor_of},
        {&s->rest, sections, sizeof *s->rest},  {&s->stamp, sections, sizeof *s->stamp},
        {&s->raised, items, sizeof *s->raised}, {&s->before, items, sizeof *s->before},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        BP_TRY(bp_new_array(arrays[i].count, arrays[i].size, arrays[i].pointer));
    return BP_OK;
}

bp_status bp_placing_init(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint64_t *offsets,
                          bp_placing *placing)
{
    *placing = (bp_placing){.p = problem, .capacity = capacity, .fixed = fixed, .offsets = offsets};
    bp_status status = new_arrays(placing);
    if (status != BP_OK)
        bp_placing_finish(placing);
    return status;
}

void bp_placing_finish(bp_placing *placing)
{
    free(placing->placed);
    free(placing->supported);
    free(placing->lowest);
    free(placing->floor_of);
    free(placing->rest);
    free(placing->stamp);
    free(placing->raised);
    free(placing->before);
    free(placing->trail);
    *placing = (bp_placing){0};
}
