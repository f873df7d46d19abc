/* Predecessors where buffers overlap partly: a map from byte ranges to their latest users, carried through the step twice, so that
 * the second time it begins with what the step before left. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "planner/predecessors.h"
#include "planner/time_order.h"

#define NONE UINT32_MAX

/* Bytes [begin, end) of a slab, used last by an assignment. */
typedef struct range {
    uint64_t begin, end;
    uint32_t user;
    uint16_t slab;
} range;

typedef struct link {
    uint32_t assignment, predecessor;
} link;

typedef struct walk {
    const bp_schedule *schedule;
    const uint32_t *slot_of_request, *assignment_of_request;
    bp_plan *plan;
    bp_time_order order;
    range *ranges; /* by slab and begin, disjoint */
    size_t range_count, range_capacity;
    link *links; /* found in the second pass */
    size_t link_count, link_capacity;
    bool collects;
} walk;

/* The first range of the slab that ends above `offset`, or what comes after it. */
static size_t find_range(const walk *w, uint16_t slab, uint64_t offset)
{
    size_t low = 0, high = w->range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const range *r = &w->ranges[middle];
        if (r->slab < slab || (r->slab == slab && r->end <= offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts `count` ranges in the place of those from `first` to before `end`. */
static bp_status replace(walk *w, size_t first, size_t end, const range *with, size_t count)
{
    size_t after = w->range_count - end;
    while (w->range_capacity < first + count + after)
        BP_TRY(bp_grow_array((void **)&w->ranges, &w->range_capacity, w->range_capacity, sizeof *w->ranges));
    memmove(w->ranges + first + count, w->ranges + end, after * sizeof *w->ranges);
    memcpy(w->ranges + first, with, count * sizeof *with);
    w->range_count = first + count + after;
    return BP_OK;
}

static bp_status note_link(walk *w, uint32_t assignment, uint32_t predecessor)
{
    if (!w->collects || assignment == predecessor)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&w->links, &w->link_capacity, w->link_count, sizeof *w->links));
    w->links[w->link_count++] = (link){assignment, predecessor};
    return BP_OK;
}

/* The assignment takes over its bytes from their latest users. */
static bp_status take_over(walk *w, uint32_t index)
{
    const bp_assignment_data *a = &w->plan->assignments[index];
    uint64_t begin = a->offset, end = a->offset + a->bytes;
    if (begin == end)
        return BP_OK;
    size_t first = find_range(w, a->slab, begin), last = first, made = 0;
    range with[3];
    for (; last < w->range_count && w->ranges[last].slab == a->slab && w->ranges[last].begin < end; last++)
        BP_TRY(note_link(w, index, w->ranges[last].user));
    if (last > first && w->ranges[first].begin < begin) {
        with[made] = w->ranges[first];
        with[made++].end = begin;
    }
    with[made++] = (range){begin, end, index, a->slab};
    if (last > first && w->ranges[last - 1].end > end) {
        with[made] = w->ranges[last - 1];
        with[made++].begin = end;
    }
    return replace(w, first, last, with, made);
}

static bp_status walk_step(walk *w)
{
    for (size_t i = 0; i < w->order.count; i++) {
        const bp_span *span = &w->schedule->spans[w->order.spans[i]];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            if (w->slot_of_request[r] != NONE)
                BP_TRY(take_over(w, w->assignment_of_request[r]));
        }
    }
    return BP_OK;
}

/* Sorts the links by assignment, each once, in the order in which they were found. */
static bp_status store(walk *w)
{
    bp_plan *plan = w->plan;
    void *ends, *seen, *entries;
    BP_TRY(bp_new_array(plan->assignment_count + 2, sizeof(size_t), &ends));
    bp_status status = bp_new_array(plan->assignment_count, sizeof(uint32_t), &seen);
    if (status != BP_OK) {
        free(ends);
        return status;
    }
    status = bp_new_array(w->link_count, sizeof(uint32_t), &entries);
    if (status == BP_OK) {
        size_t *at = ends, kept = 0, begin = 0;
        uint32_t *seen_by = seen, *list = entries; /* seen_by: the latest list, from 1, that has the assignment */
        for (size_t i = 0; i < w->link_count; i++)
            at[w->links[i].assignment + 2]++;
        for (size_t a = 2; a < plan->assignment_count + 2; a++)
            at[a] += at[a - 1];
        for (size_t i = 0; i < w->link_count; i++)
            list[at[w->links[i].assignment + 1]++] = w->links[i].predecessor;
        for (uint32_t a = 0; a < plan->assignment_count; a++) {
            size_t end = at[a + 1];
            plan->assignments[a].first_predecessor = (uint32_t)kept;
            for (; begin < end; begin++) {
                if (seen_by[list[begin]] == a + 1)
                    continue;
                seen_by[list[begin]] = a + 1;
                list[kept++] = list[begin];
            }
        }
        plan->predecessors = list;
        plan->predecessor_count = plan->predecessor_capacity = kept;
    }
    free(ends);
    free(seen);
    return status;
}

bp_status bp_find_range_predecessors(const bp_schedule *schedule, const uint32_t *slot_of_request,
                                     const uint32_t *assignment_of_request, bp_plan *plan)
{
    walk w = {.schedule = schedule,
              .slot_of_request = slot_of_request,
              .assignment_of_request = assignment_of_request,
              .plan = plan};
    bp_status status = bp_time_order_init(schedule, &w.order);
    if (status == BP_OK)
        status = walk_step(&w);
    w.collects = true;
    if (status == BP_OK)
        status = walk_step(&w);
    if (status == BP_OK)
        status = store(&w);
    bp_time_order_finish(&w.order);
    free(w.ranges);
    free(w.links);
    return status;
}
