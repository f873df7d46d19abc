/* Predecessors where buffers overlap partly. A segment tree over the pieces that the ends of the buffers cut the slabs into has the
 * latest user of each, and is carried through the step twice, so that the second time it begins with what the step before left.
 * O(n log n) for n acquires and links. */
#include <stdlib.h>

#include "core/fail.h"
#include "planner/predecessors.h"
#include "planner/time_order.h"

#define NONE UINT32_MAX
#define MIXED (UINT32_MAX - 1) /* the two halves of a node have different users */

/* A byte at which a buffer begins or ends. */
typedef struct cut {
    uint64_t offset;
    uint16_t slab;
} cut;

typedef struct link {
    uint32_t assignment, predecessor;
} link;

typedef struct walk {
    const bp_schedule *schedule;
    const uint32_t *slot_of_request, *assignment_of_request;
    bp_plan *plan;
    bp_time_order order;
    cut *cuts; /* sorted, each once; piece i lies between cuts i and i + 1 */
    size_t cut_count;
    uint32_t *
        users; /* by node: the latest user of all its pieces, NONE or MIXED; the halves of node i are 2 i and 2 i + 1 */
    size_t pieces; /* below the root, node 1: a power of two */
    link *links;   /* found in the second pass */
    size_t link_count, link_capacity;
    bool collects;
} walk;

/* ---- the tree ------------------------------------------------------------------------------------------------------- */

static int compare_cuts(const void *left, const void *right)
{
    const cut *a = left, *b = right;
    if (a->slab != b->slab)
        return a->slab < b->slab ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static bp_status plant(walk *w)
{
    const bp_plan *plan = w->plan;
    void *memory;
    BP_TRY(bp_new_array(2 * plan->assignment_count, sizeof *w->cuts, &memory));
    w->cuts = memory;
    for (size_t i = 0; i < plan->assignment_count; i++) {
        const bp_assignment_data *a = &plan->assignments[i];
        w->cuts[2 * i] = (cut){a->offset, a->slab};
        w->cuts[2 * i + 1] = (cut){a->offset + a->bytes, a->slab};
    }
    if (plan->assignment_count > 0)
        qsort(w->cuts, 2 * plan->assignment_count, sizeof *w->cuts, compare_cuts);
    for (size_t i = 0; i < 2 * plan->assignment_count; i++)
        if (i == 0 || compare_cuts(&w->cuts[i], &w->cuts[w->cut_count - 1]) != 0)
            w->cuts[w->cut_count++] = w->cuts[i];
    for (w->pieces = 1; w->pieces < w->cut_count; w->pieces *= 2)
        continue;
    BP_TRY(bp_new_array(2 * w->pieces, sizeof *w->users, &memory));
    w->users = memory;
    w->users[1] = NONE;
    return BP_OK;
}

static size_t find_cut(const walk *w, uint16_t slab, uint64_t offset)
{
    const cut wanted = {offset, slab};
    size_t low = 0, high = w->cut_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_cuts(&w->cuts[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bp_status note_link(walk *w, uint32_t assignment, uint32_t predecessor)
{
    if (!w->collects || assignment == predecessor || predecessor == NONE)
        return BP_OK;
    const link *last = w->link_count > 0 ? &w->links[w->link_count - 1] : NULL;
    if (last != NULL && last->assignment == assignment && last->predecessor == predecessor)
        return BP_OK; /* neighbouring nodes */
    BP_TRY(bp_grow_array((void **)&w->links, &w->link_capacity, w->link_count, sizeof *w->links));
    w->links[w->link_count++] = (link){assignment, predecessor};
    return BP_OK;
}

/* Pieces [first, end). */
typedef struct part {
    size_t first, end;
} part;

/* The assignment takes over the wanted pieces from their latest users, in order of address. `below`: the pieces of the node. */
static bp_status take_over(walk *w, uint32_t assignment, part wanted, size_t node, part below)
{
    bool whole = wanted.first <= below.first && below.end <= wanted.end;
    uint32_t user = w->users[node];
    if (whole && user != MIXED) {
        w->users[node] = assignment;
        return note_link(w, assignment, user);
    }
    uint32_t *halves = &w->users[2 * node];
    if (user != MIXED)
        halves[0] = halves[1] = user;
    size_t middle = below.first + (below.end - below.first) / 2;
    if (wanted.first < middle)
        BP_TRY(take_over(w, assignment, wanted, 2 * node, (part){below.first, middle}));
    if (wanted.end > middle)
        BP_TRY(take_over(w, assignment, wanted, 2 * node + 1, (part){middle, below.end}));
    w->users[node] = halves[0] == halves[1] ? halves[0] : MIXED;
    return BP_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------- */

static bp_status acquire(walk *w, uint32_t assignment)
{
    const bp_assignment_data *a = &w->plan->assignments[assignment];
    if (a->bytes == 0)
        return BP_OK;
    part wanted = {find_cut(w, a->slab, a->offset), find_cut(w, a->slab, a->offset + a->bytes)};
    return take_over(w, assignment, wanted, 1, (part){0, w->pieces});
}

static bp_status walk_step(walk *w)
{
    for (size_t i = 0; i < w->order.count; i++) {
        const bp_span *span = &w->schedule->spans[w->order.spans[i]];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            if (w->slot_of_request[r] != NONE)
                BP_TRY(acquire(w, w->assignment_of_request[r]));
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
        status = plant(&w);
    if (status == BP_OK)
        status = walk_step(&w);
    w.collects = true;
    if (status == BP_OK)
        status = walk_step(&w);
    if (status == BP_OK)
        status = store(&w);
    bp_time_order_finish(&w.order);
    free(w.cuts);
    free(w.users);
    free(w.links);
    return status;
}
