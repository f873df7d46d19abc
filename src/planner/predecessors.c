#include "planner/predecessors.h"

#include <stdlib.h>

#include "core/fail.h"
#include "planner/time_order.h"

typedef struct search {
    const bp_schedule *schedule;
    const uint32_t *slot_of_request, *assignment_of_request;
    bp_time_order order;
    uint32_t *holder;  /* by slot: the request that used it last */
    uint32_t *ends;    /* by assignment + 1: how many reuses, then where its list ends */
    uint32_t *entries; /* all lists */
} search;

/* What a walk through the step does with `request` taking over from `before`. */
typedef enum walk_purpose { WALK_HOLDERS, WALK_COUNT, WALK_FILL } walk_purpose;

static void walk_step(search *s, walk_purpose purpose)
{
    for (size_t i = 0; i < s->order.count; i++) {
        const bp_span *span = &s->schedule->spans[s->order.spans[i]];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            uint32_t slot = s->slot_of_request[r];
            if (slot == UINT32_MAX)
                continue;
            uint32_t before = s->holder[slot], assignment = s->assignment_of_request[r];
            s->holder[slot] = r;
            if (purpose == WALK_HOLDERS || before == r)
                continue;
            if (purpose == WALK_COUNT)
                s->ends[assignment + 1]++;
            else
                s->entries[s->ends[assignment]++] = s->assignment_of_request[before];
        }
    }
}

/* Drops repeated entries and closes the lists up. `seen_by` has for each assignment the last list, from 1, that has it. */
static void store(bp_plan *plan, const search *s, uint32_t *seen_by)
{
    uint32_t kept = 0, begin = 0;
    for (uint32_t a = 0; a < plan->assignment_count; a++) {
        uint32_t first = kept, end = s->ends[a];
        for (uint32_t i = begin; i < end; i++) {
            uint32_t entry = s->entries[i];
            if (seen_by[entry] != a + 1)
                s->entries[kept++] = entry;
            seen_by[entry] = a + 1;
        }
        begin = end;
        plan->assignments[a].first_predecessor = first;
    }
    plan->predecessors = s->entries;
    plan->predecessor_count = plan->predecessor_capacity = kept;
}

/* Walks the step three times. The first walk only finds who holds each slot at its end, which the next step begins with. */
static bp_status find(search *s, bp_plan *plan)
{
    void *memory;
    walk_step(s, WALK_HOLDERS);
    BP_TRY(bp_new_array(plan->assignment_count + 1, sizeof *s->ends, &memory));
    s->ends = memory;
    walk_step(s, WALK_COUNT); /* begins and ends with the same holders, so that the third walk finds the same */
    for (size_t a = 0; a < plan->assignment_count; a++)
        s->ends[a + 1] += s->ends[a];
    void *seen_by;
    BP_TRY(bp_new_array(plan->assignment_count, sizeof(uint32_t), &seen_by));
    bp_status status = bp_new_array(s->ends[plan->assignment_count], sizeof *s->entries, &memory);
    if (status == BP_OK) {
        s->entries = memory;
        walk_step(s, WALK_FILL); /* ends[a] was where a's list begins and becomes where it ends */
        store(plan, s, seen_by);
    }
    free(seen_by);
    return status;
}

bp_status bp_find_predecessors(const bp_schedule *schedule, const uint32_t *slot_of_request, size_t slot_count,
                               const uint32_t *assignment_of_request, bp_plan *plan)
{
    search s = {schedule, slot_of_request, assignment_of_request, {0}, NULL, NULL, NULL};
    void *memory;
    BP_TRY(bp_new_array(slot_count, sizeof(uint32_t), &memory));
    s.holder = memory;
    bp_status status = bp_time_order_init(schedule, &s.order);
    if (status == BP_OK)
        status = find(&s, plan);
    free(s.holder);
    bp_time_order_finish(&s.order);
    free(s.ends);
    return status;
}
