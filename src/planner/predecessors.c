#include "planner/predecessors.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* Spans in the order in which their intervals begin: a counting sort over the steps. */
typedef struct time_order {
    uint32_t *spans;
    size_t count;
} time_order;

static bp_status sort_by_time(const bp_schedule *schedule, time_order *order)
{
    void *memory;
    BP_TRY(bp_new_array(schedule->step_count + 1, sizeof(uint32_t), &memory));
    uint32_t *starts = memory;
    bp_status status = bp_new_array(schedule->interval_count, sizeof *order->spans, &memory);
    if (status != BP_OK) {
        free(starts);
        return status;
    }
    order->spans = memory;
    order->count = schedule->interval_count;
    for (size_t i = 0; i < schedule->interval_count; i++)
        starts[schedule->intervals[i].begin + 1]++;
    for (size_t step = 0; step < schedule->step_count; step++)
        starts[step + 1] += starts[step];
    for (size_t s = 0; s < schedule->span_count; s++) {
        const bp_span *span = &schedule->spans[s];
        for (uint32_t k = 0; k < span->interval_count; k++)
            order->spans[starts[schedule->intervals[span->first_interval + k].begin]++] = (uint32_t)s;
    }
    free(starts);
    return BP_OK;
}

/* One reuse: `request` takes over from `before`. */
typedef struct reuse {
    uint32_t assignment, before;
} reuse;

typedef struct reuses {
    reuse *items;
    size_t count, capacity;
} reuses;

/* Walks the step twice: the first walk only finds who holds each slot at the end, which the next step begins with. */
static bp_status collect_reuses(const bp_schedule *schedule, const time_order *order, const uint32_t *slot_of_request,
                                const uint32_t *assignment_of_request, uint32_t *holder, reuses *found)
{
    for (int walk = 0; walk < 2; walk++) {
        for (size_t i = 0; i < order->count; i++) {
            const bp_span *span = &schedule->spans[order->spans[i]];
            for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
                uint32_t slot = slot_of_request[r];
                if (slot == UINT32_MAX)
                    continue;
                uint32_t before = holder[slot];
                holder[slot] = r;
                if (walk == 0 || before == r)
                    continue;
                BP_TRY(bp_grow_array((void **)&found->items, &found->capacity, found->count, sizeof *found->items));
                found->items[found->count++] = (reuse){assignment_of_request[r], assignment_of_request[before]};
            }
        }
    }
    return BP_OK;
}

/* Lists by assignment, each entry once. */
static bp_status store(bp_plan *plan, const reuses *found)
{
    size_t n = plan->assignment_count;
    void *memory;
    BP_TRY(bp_new_array(n + 1, sizeof(uint32_t), &memory));
    uint32_t *ends = memory;
    bp_status status = bp_new_array(found->count, sizeof *plan->predecessors, &memory);
    if (status != BP_OK) {
        free(ends);
        return status;
    }
    uint32_t *sorted = memory;
    for (size_t i = 0; i < found->count; i++)
        ends[found->items[i].assignment + 1]++;
    for (size_t i = 0; i < n; i++)
        ends[i + 1] += ends[i];
    for (size_t i = 0; i < found->count; i++)
        sorted[ends[found->items[i].assignment]++] = found->items[i].before; /* ends[a] becomes the end of a's list */
    size_t kept = 0, begin = 0;
    for (size_t a = 0; a < n; a++) {
        size_t first = kept;
        for (size_t i = begin; i < ends[a]; i++) {
            size_t k = first;
            while (k < kept && sorted[k] != sorted[i])
                k++;
            if (k == kept)
                sorted[kept++] = sorted[i];
        }
        begin = ends[a];
        plan->assignments[a].first_predecessor = (uint32_t)first;
    }
    free(ends);
    plan->predecessors = sorted;
    plan->predecessor_count = plan->predecessor_capacity = kept;
    return BP_OK;
}

bp_status bp_find_predecessors(const bp_schedule *schedule, const uint32_t *slot_of_request, size_t slot_count,
                               const uint32_t *assignment_of_request, bp_plan *plan)
{
    time_order order = {0};
    reuses found = {0};
    void *memory;
    BP_TRY(bp_new_array(slot_count, sizeof(uint32_t), &memory));
    uint32_t *holder = memory;
    bp_status status = sort_by_time(schedule, &order);
    if (status == BP_OK)
        status = collect_reuses(schedule, &order, slot_of_request, assignment_of_request, holder, &found);
    if (status == BP_OK)
        status = store(plan, &found);
    free(holder);
    free(order.spans);
    free(found.items);
    return status;
}
