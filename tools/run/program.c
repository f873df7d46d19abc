/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a schedule into the acquires, fills, checks and releases of each step. */
#include "run/driver.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>

/* Streams that acquire, fill and check the buckets of a role. Gradients are written by compute and read by
 * reduce-scatter. Its output for the outer all-reduce is acquired on compute, so that the reduce stream waits only
 * for its input. */
static const struct {
    uint8_t acquire, fill, check;
} streams_of[BP_ROLE_COUNT] = {
    [BP_ROLE_PARAM] = {BP_LANE_GATHER, BP_LANE_GATHER, BP_LANE_COMPUTE},
    [BP_ROLE_PARAM_TRANSPOSE] = {BP_LANE_GATHER, BP_LANE_GATHER, BP_LANE_COMPUTE},
    [BP_ROLE_GRAD] = {BP_LANE_COMPUTE, BP_LANE_COMPUTE, BP_LANE_REDUCE},
    [BP_ROLE_GRAD_COMM] = {BP_LANE_COMPUTE, BP_LANE_REDUCE, BP_LANE_OUTER_REDUCE},
    [BP_ROLE_STATE] = {BP_LANE_COMPUTE, BP_LANE_COMPUTE, BP_LANE_COMPUTE},
    [BP_ROLE_MAIN_GRAD] = {BP_LANE_COMPUTE, BP_LANE_COMPUTE, BP_LANE_COMPUTE},
    [BP_ROLE_OPTIMIZER] = {BP_LANE_COMPUTE, BP_LANE_COMPUTE, BP_LANE_COMPUTE},
};

int program_acquire_stream(uint32_t role)
{
    return streams_of[role].acquire;
}

static bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the steps of the schedule");
}

static bool same_streams(const program_group *g, uint32_t role)
{
    return g->acquire == streams_of[role].acquire && g->fill == streams_of[role].fill &&
           g->check == streams_of[role].check;
}

typedef struct compute_steps {
    size_t *begins;  /* by unit, one more than units */
    uint32_t *steps; /* in increasing order */
    size_t units;
} compute_steps;

/* The units (0 to 2) that compute in a step; none in a recorded schedule, whose steps are events. Returns their number. */
static size_t computing_units(const bp_schedule *schedule, uint32_t index, size_t units[2])
{
    bp_step step = bp_schedule_get_info(schedule)->steps[index];
    size_t count = 0;
    if (step.phase == BP_PHASE_RECORDED)
        return 0;
    if (step.unit >= 0)
        units[count++] = (size_t)step.unit;
    if (step.forward_unit >= 0 && step.forward_unit != step.unit)
        units[count++] = (size_t)step.forward_unit;
    return count;
}

/* Two passes: one counts the entries of each step, the second (`fills`) writes them. */
typedef struct pass {
    program *p;
    const bp_schedule *schedule;
    const compute_steps *compute;
    const int32_t *unit_of;
    bool fills;
} pass;

static void add(const pass *a, program_action action, uint32_t step, uint32_t request, uint32_t interval)
{
    size_t *begins = a->p->begins[action];
    if (a->fills)
        a->p->entries[action][begins[step + 1]++] = (program_entry){request, interval};
    else
        begins[step + 2]++;
}

static void add_checks_while_computing(const pass *a, uint32_t request, uint32_t interval, const bp_interval *live)
{
    size_t unit = (size_t)a->unit_of[request];
    size_t low = a->compute->begins[unit], end = a->compute->begins[unit + 1];
    for (size_t high = end; low < high;) { /* the first step from begin on */
        size_t middle = low + (high - low) / 2;
        if (a->compute->steps[middle] < live->begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < end && a->compute->steps[low] + 1 < live->end; low++)
        add(a, ACTION_COMPUTE, a->compute->steps[low], request, interval);
    add(a, ACTION_COMPUTE, live->end - 1, request, interval); /* the last step, even if another unit computes */
}

static void add_interval(const pass *a, uint32_t request, uint32_t interval, const bp_interval *live)
{
    const program_group *g = &a->p->groups[a->p->group_of[request]];
    bool gathered = g->acquire == BP_LANE_GATHER;
    add(a, gathered ? ACTION_GATHER : ACTION_PRODUCE, live->begin, request, interval);
    if (gathered)
        add_checks_while_computing(a, request, interval, live);
    else
        add(a, ACTION_DRAIN, live->end - 1, request, interval);
    add(a, ACTION_RELEASE, live->end - 1, request, interval);
}

static void walk(pass *a, const bp_buckets *buckets)
{
    for (uint32_t i = 0; i < a->p->requests; i++) {
        size_t count = bp_schedule_get_info(a->schedule)->requests[i].interval_count;
        const bp_request *r = &bp_buckets_get_info(buckets)->requests[i];
        const bp_interval *live = bp_schedule_get_info(a->schedule)->requests[i].intervals;
        bool always = count == 1 && live[0].begin == 0 && live[0].end == a->p->steps;
        if (always && (BP_ROLES_STATE & BP_ROLE_BIT(r->role))) {
            add(a, ACTION_DRAIN, a->p->steps - 1, i, 0);
            if (a->fills)
                a->p->held[a->p->held_count++] = (program_entry){i, 0};
            continue;
        }
        for (size_t k = 0; k < count; k++)
            add_interval(a, i, (uint32_t)k, &live[k]);
    }
}

static bp_status make_program(const bp_buckets *buckets, const bp_schedule *schedule, program *p, int32_t *unit_of,
                              compute_steps *compute)
{
    /* Requests are ordered by unit, role, bucket. */
    int32_t before = BP_OUTSIDE;
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    for (uint32_t i = 0; i < p->requests; i++) {
        bp_request r = info->requests[i];
        bp_bucket b = info->buckets[r.bucket];
        unit_of[i] = b.unit;
        if (i == 0 || b.unit != before || !same_streams(&p->groups[p->group_count - 1], r.role)) {
            program_group *g = &p->groups[p->group_count++];
            *g = (program_group){
                i, 0, b.unit, streams_of[r.role].acquire, streams_of[r.role].fill, streams_of[r.role].check};
            p->streams[g->acquire] = p->streams[g->fill] = p->streams[g->check] = true;
        }
        before = b.unit;
        p->group_of[i] = p->group_count - 1;
        p->groups[p->group_of[i]].count++;
    }

    uint32_t steps = p->steps;
    size_t units[2];
    compute->units = bp_buckets_get_info(buckets)->unit_count;
    compute->begins = calloc(compute->units + 2, sizeof *compute->begins);
    compute->steps = calloc(2 * (size_t)steps + 1, sizeof *compute->steps);
    if (compute->begins == NULL || compute->steps == NULL)
        return fail_memory();
    for (uint32_t t = 0; t < steps; t++) {
        for (size_t i = computing_units(schedule, t, units); i-- > 0;)
            compute->begins[units[i] + 2]++;
    }
    for (size_t u = 2; u < compute->units + 2; u++)
        compute->begins[u] += compute->begins[u - 1];
    for (uint32_t t = 0; t < steps; t++) { /* begins[u + 1] moves from the beginning of u's steps to their end */
        for (size_t i = computing_units(schedule, t, units); i-- > 0;)
            compute->steps[compute->begins[units[i] + 1]++] = t;
    }

    pass a = {p, schedule, compute, unit_of, false};
    walk(&a, buckets);

    /* After counting, begins[step + 1] is where a step's entries begin; filling moves it to their end. */
    for (int action = 0; action < ACTION_COUNT; action++) {
        size_t *begins = p->begins[action];
        for (size_t step = 2; step < (size_t)p->steps + 2; step++)
            begins[step] += begins[step - 1];
        p->entries[action] = calloc(begins[p->steps + 1] + 1, sizeof *p->entries[action]);
        if (p->entries[action] == NULL)
            return fail_memory();
    }

    a.fills = true;
    walk(&a, buckets);
    p->fills = p->begins[ACTION_GATHER][p->steps] + p->begins[ACTION_PRODUCE][p->steps];
    p->checks = p->begins[ACTION_COMPUTE][p->steps] + p->begins[ACTION_DRAIN][p->steps];
    return BP_OK;
}

bp_status program_init(const bp_buckets *buckets, const bp_schedule *schedule, program *p)
{
    *p = (program){0};
    size_t requests = bp_buckets_get_info(buckets)->request_count, steps = bp_schedule_get_info(schedule)->step_count;
    if (requests >= UINT32_MAX || steps >= UINT32_MAX - 2)
        return bp_error_record(BP_ERR_OVERFLOW, "more than 2^32 requests or steps; plan fewer units or buckets");
    p->requests = (uint32_t)requests;
    p->steps = (uint32_t)steps;
    p->groups = calloc(requests + 1, sizeof *p->groups);
    p->group_of = calloc(requests + 1, sizeof *p->group_of);
    p->held = calloc(requests + 1, sizeof *p->held);
    bool failed = p->groups == NULL || p->group_of == NULL || p->held == NULL;
    for (int action = 0; action < ACTION_COUNT; action++) {
        p->begins[action] = calloc(steps + 2, sizeof *p->begins[action]);
        failed = failed || p->begins[action] == NULL;
    }
    int32_t *unit_of = calloc(requests + 1, sizeof *unit_of);
    compute_steps compute = {0};
    bp_status status =
        failed || unit_of == NULL ? fail_memory() : make_program(buckets, schedule, p, unit_of, &compute);
    free(unit_of);
    free(compute.begins);
    free(compute.steps);
    return status;
}

void program_finish(program *p)
{
    free(p->groups);
    free(p->group_of);
    free(p->held);
    for (int action = 0; action < ACTION_COUNT; action++) {
        free(p->begins[action]);
        free(p->entries[action]);
    }
    *p = (program){0};
}
