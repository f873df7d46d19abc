/* SPDX-License-Identifier: Apache-2.0 */
/* What-if: bytes of plans for other schedules; the requests that set a plan's lower bound, and the peak without them. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/whatif.h>

#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "planner/policy.h"

/* ---- alternatives ---------------------------------------------------------------------------------------------------- */

#define DEFAULT_WORK (UINT64_C(1) << 26)
#define ALL_ROLES (BP_ROLE_BIT(BP_ROLE_COUNT) - 1)
#define GRADIENTS (BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLE_BIT(BP_ROLE_GRAD_COMM))
#define PARAMETERS (BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_PARAM_TRANSPOSE))

struct bp_alternatives {
    bp_alternative *items;
    size_t count, capacity;
    bp_alternatives_info info;
};

typedef struct survey {
    const bp_buckets *buckets;
    const bp_schedule_config *schedule;
    const bp_plan_config *plan;
    const bp_alternatives_config *config;
    bp_alternative present; /* the options of the current choice, without sums */
    bp_alternatives *made;
} survey;

static const bp_alternatives_config alternatives_defaults = {
    .size = sizeof alternatives_defaults, .max_prefetch = 4, .work = DEFAULT_WORK};

bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size)
{
    return bp_struct_init("bp_alternatives_config_init", config, size, &alternatives_defaults,
                          sizeof alternatives_defaults);
}

/* Sums of a plan. */
typedef struct plan_bytes {
    uint64_t bytes, lower_bound_bytes, proven_bytes;
    bool optimal, feasible;
} plan_bytes;

static bp_status read_sums(const bp_plan *plan, plan_bytes *sums)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    *sums = (plan_bytes){.bytes = info->bytes,
                         .lower_bound_bytes = info->lower_bound_bytes,
                         .optimal = info->optimal,
                         .feasible = info->feasible};
    for (size_t i = 0; i < info->role_count; i++) {
        if (!bp_add_u64(sums->proven_bytes, info->roles[i].proven_bytes, &sums->proven_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the proven bytes of the roles of model \"%s\" do not fit 64 bits",
                           info->model);
    }
    return BP_OK;
}

static bp_status plan_bytes_of(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                               bp_policy policy, uint64_t work, plan_bytes *sums)
{
    bp_plan_config changed = *config;
    bp_plan *plan;
    changed.policy = policy;
    changed.work = work;
    BP_TRY(bp_plan_create(buckets, schedule, &changed, &plan));
    bp_status status = read_sums(plan, sums);
    bp_plan_destroy(&plan);
    return status;
}

static bp_status add_sums(const survey *s, const bp_schedule *schedule, const bp_plan_config *plan,
                          bp_alternative *choice)
{
    plan_bytes scheduled, max;
    bp_bound live;
    if (choice->is_present && s->config->present != NULL)
        BP_TRY(read_sums(s->config->present, &scheduled));
    else
        BP_TRY(plan_bytes_of(s->buckets, schedule, plan, BP_POLICY_SCHEDULED,
                             choice->is_present ? plan->work : s->config->work, &scheduled));
    BP_TRY(plan_bytes_of(s->buckets, schedule, plan, BP_POLICY_MAX, 0, &max));
    BP_TRY(bp_bound_of(s->buckets, schedule, ALL_ROLES, plan->alignment, NULL, &live));
    choice->optimal = scheduled.optimal;
    choice->bytes = scheduled.bytes;
    choice->lower_bound_bytes = scheduled.lower_bound_bytes;
    choice->proven_bytes = scheduled.proven_bytes;
    choice->max_bytes = max.feasible ? max.bytes : 0;
    choice->live_bytes = live.bytes;
    return BP_OK;
}

static bp_status add_choice(survey *s, bp_alternative choice)
{
    bp_alternatives *made = s->made;
    bp_plan_config plan = *s->plan;
    bp_schedule_config config = *s->schedule;
    bp_schedule *schedule;
    choice.is_present = choice.prefetch == s->present.prefetch &&
                        choice.prefetch_backward == s->present.prefetch_backward &&
                        choice.streams == s->present.streams && choice.joint == s->present.joint;
    plan.joint = choice.joint;
    config.prefetch = choice.prefetch;
    config.prefetch_backward = choice.prefetch_backward;
    config.streams = choice.streams;
    BP_TRY(bp_grow_array((void **)&made->items, &made->capacity, made->count, sizeof *made->items));
    BP_TRY(bp_schedule_create_training(s->buckets, &config, &schedule));
    bp_status status = add_sums(s, schedule, &plan, &choice);
    bp_schedule_destroy(&schedule);
    if (status == BP_OK)
        made->items[made->count++] = choice;
    return status;
}

static bp_status add_all(survey *s)
{
    uint32_t roles = 0;
    for (size_t g = 0; g < s->buckets->group_count; g++)
        roles |= BP_ROLE_BIT(s->buckets->groups[g].role);
    uint32_t shared = roles & ~BP_ROLES_STATE;
    bool streams_matter = !s->buckets->fsdp2 && (roles & GRADIENTS) != 0 && (roles & PARAMETERS) != 0 &&
                          s->schedule->passes != BP_PASSES_EVAL;
    bool joint_matters = (shared & (shared - 1)) != 0;
    uint32_t max = s->config->max_prefetch;
    if (s->present.prefetch != s->present.prefetch_backward || s->present.prefetch > max)
        BP_TRY(add_choice(s, s->present));
    for (uint32_t prefetch = s->buckets->fsdp2 ? 1 : 0; prefetch <= max; prefetch++) { /* FSDP2: 0 is 1 */
        for (int streams = BP_STREAMS_SEPARATE; streams <= BP_STREAMS_UNIFIED; streams++) {
            for (uint32_t joint = 0; joint <= 1; joint++) {
                if ((!streams_matter && (bp_streams)streams != s->present.streams) ||
                    (!joint_matters && joint != s->present.joint))
                    continue;
                BP_TRY(add_choice(s, (bp_alternative){.prefetch = prefetch,
                                                      .prefetch_backward = prefetch,
                                                      .streams = (bp_streams)streams,
                                                      .joint = joint}));
            }
        }
    }
    return BP_OK;
}

bp_status bp_alternatives_create(const bp_buckets *buckets, const bp_schedule_config *schedule,
                                 const bp_plan_config *plan, const bp_alternatives_config *config,
                                 bp_alternatives **alternatives)
{
    static const char function[] = "bp_alternatives_create";
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    bp_alternatives_config own_config = alternatives_defaults;
    if (buckets == NULL || alternatives == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs buckets and an output", function);
    BP_TRY(bp_schedule_config_init(&schedule_config, sizeof schedule_config));
    BP_TRY(bp_struct_read(function, schedule, false, &schedule_config, sizeof schedule_config));
    BP_TRY(bp_plan_config_init(&plan_config, sizeof plan_config));
    BP_TRY(bp_struct_read(function, plan, false, &plan_config, sizeof plan_config));
    BP_TRY(bp_struct_read(function, config, true, &own_config, sizeof own_config));
    if (own_config.max_prefetch > BP_MAX_WHATIF_PREFETCH)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "max_prefetch is %u; at most %u is supported", own_config.max_prefetch,
                       BP_MAX_WHATIF_PREFETCH);
    survey s = {buckets, &schedule_config, &plan_config, &own_config, {.joint = plan_config.joint != 0}, NULL};
    BP_TRY(bp_new_array(1, sizeof *s.made, (void **)&s.made));
    s.present.prefetch = s.present.prefetch_backward = schedule_config.prefetch;
    if (buckets->fsdp2 && s.present.prefetch == 0)
        s.present.prefetch = s.present.prefetch_backward = 1;
    if (schedule_config.prefetch_backward != BP_PREFETCH_SAME)
        s.present.prefetch_backward = schedule_config.prefetch_backward;
    s.present.streams = schedule_config.streams;
    bp_status status = add_all(&s);
    if (status != BP_OK) {
        bp_alternatives_destroy(&s.made);
        return status;
    }
    s.made->info = (bp_alternatives_info){s.made->count, s.made->items};
    *alternatives = s.made;
    return BP_OK;
}

void bp_alternatives_destroy(bp_alternatives **alternatives)
{
    if (alternatives == NULL || *alternatives == NULL)
        return;
    free((*alternatives)->items);
    free(*alternatives);
    *alternatives = NULL;
}

const bp_alternatives_info *bp_alternatives_get_info(const bp_alternatives *alternatives)
{
    return alternatives != NULL ? &alternatives->info : NULL;
}

/* ---- peaks ------------------------------------------------------------------------------------------------------------ */

struct bp_peaks {
    bp_peak *peaks;
    size_t count;
    bp_peak_holder *holders; /* of all peaks, consecutive */
    size_t holder_count, holder_capacity;
    bp_peaks_info info;
};

/* Sums of a step; before the prefix sum, the changes at its begin. */
typedef struct step_sums {
    uint64_t live;
    uint64_t set;     /* hash of the set of live spans */
    uint32_t holding; /* number of live spans that hold the peak */
} step_sums;

typedef struct finder {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan *plan;
    bp_peaks *made;
    step_sums *steps; /* one more than the schedule has: intervals end there */
    uint64_t *sets;   /* set hashes of the steps that reach the peak */
} finder;

static int by_unit(const void *a, const void *b)
{
    const bp_peak_holder *x = a, *y = b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    return x->role < y->role ? -1 : x->role > y->role;
}

static int by_bytes(const void *a, const void *b)
{
    const bp_peak_holder *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return by_unit(a, b);
}

/* A span's contribution to the set hash (Zobrist hashing with splitmix64). */
static uint64_t span_hash(uint64_t index)
{
    uint64_t z = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Computes the steps' sums. *holding: the number of spans that are live in the peak's step. */
static bp_status sum_steps(finder *f, const bp_peak *peak, uint32_t *holding)
{
    *holding = 0;
    memset(f->steps, 0, (f->schedule->step_count + 1) * sizeof *f->steps);
    for (size_t i = 0; i < f->schedule->span_count; i++) {
        const bp_span *span = &f->schedule->spans[i];
        uint64_t bytes;
        BP_TRY(bp_span_bytes(f->buckets, span, f->plan->info.alignment, NULL, &bytes));
        if (!(peak->roles & BP_ROLE_BIT(f->buckets->requests[span->first_request].role)) || bytes == 0)
            continue;
        bool holds = bp_span_is_live(f->schedule, span, peak->step);
        *holding += holds;
        /* sums may wrap, but not if the plan belongs to this schedule: its bound fits 64 bits */
        for (uint32_t k = 0; k < span->interval_count; k++) {
            const bp_interval *live = &f->schedule->intervals[span->first_interval + k];
            step_sums *begin = &f->steps[live->begin], *end = &f->steps[live->end];
            begin->live += bytes;
            end->live -= bytes;
            begin->set += span_hash(i);
            end->set -= span_hash(i);
            begin->holding += holds;
            end->holding -= holds;
        }
    }
    for (size_t step = 1; step < f->schedule->step_count; step++) {
        f->steps[step].live += f->steps[step - 1].live;
        f->steps[step].set += f->steps[step - 1].set;
        f->steps[step].holding += f->steps[step - 1].holding;
    }
    return BP_OK;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Finds the other steps that reach the peak, the peak without its holders, and the next lower sum. */
static void find_other_steps(finder *f, uint32_t holding, bp_peak *peak)
{
    for (uint32_t step = 0; step < f->schedule->step_count; step++) {
        const step_sums *s = &f->steps[step];
        if (s->live == peak->bytes)
            f->sets[peak->step_count++] = s->set;
        if (s->holding < holding && s->live > peak->next_bytes) {
            peak->next_bytes = s->live;
            peak->next_step = step;
        }
        if (s->live < peak->bytes && s->live > peak->below_bytes) {
            peak->below_bytes = s->live;
            peak->below_step = step;
        }
    }
    qsort(f->sets, peak->step_count, sizeof *f->sets, by_value);
    for (uint32_t i = 0; i < peak->step_count; i++)
        peak->set_count += i == 0 || f->sets[i] != f->sets[i - 1];
}

static bp_status add_holder(finder *f, const bp_request *request, uint64_t bytes)
{
    bp_peaks *made = f->made;
    if (bytes == 0)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&made->holders, &made->holder_capacity, made->holder_count, sizeof *made->holders));
    made->holders[made->holder_count++] =
        (bp_peak_holder){(uint32_t)f->buckets->buckets[request->bucket].unit, request->role, bytes};
    return BP_OK;
}

/* Lists the peak's holders, one entry for each unit and role, largest first: those live in the peak's step or, where overlap windows
 * make the bound larger than any step, the plan's witnesses. */
static bp_status list_holders(finder *f, const bp_plan_role *role, bool of_step, bp_peak *peak)
{
    size_t first = f->made->holder_count, kept = 0;
    uint64_t bytes, alignment = f->plan->info.alignment;
    for (size_t i = 0; of_step && i < f->schedule->span_count; i++) {
        const bp_span *span = &f->schedule->spans[i];
        const bp_request *request = &f->buckets->requests[span->first_request];
        if (!(peak->roles & BP_ROLE_BIT(request->role)) || !bp_span_is_live(f->schedule, span, peak->step))
            continue;
        BP_TRY(bp_span_bytes(f->buckets, span, alignment, NULL, &bytes));
        BP_TRY(add_holder(f, request, bytes));
    }
    for (size_t i = 0; !of_step && i < role->witness_count; i++) {
        const bp_request *request = &f->buckets->requests[role->witnesses[i]];
        bp_round_up_u64(request->bytes, alignment, &bytes); /* cannot overflow: the plan's bound checked it */
        BP_TRY(add_holder(f, request, bytes));
    }
    bp_peak_holder *holders = f->made->holders + first;
    size_t count = f->made->holder_count - first;
    if (count == 0)
        return BP_OK;
    qsort(holders, count, sizeof *holders, by_unit);
    for (size_t i = 1; i < count; i++) {
        if (by_unit(&holders[kept], &holders[i]) == 0)
            holders[kept].bytes += holders[i].bytes; /* cannot wrap: their sum is the bound */
        else
            holders[++kept] = holders[i];
    }
    peak->holder_count = kept + 1;
    f->made->holder_count = first + kept + 1;
    qsort(holders, kept + 1, sizeof *holders, by_bytes);
    return BP_OK;
}

static bp_status find_peak(finder *f, const bp_plan_role *role, bp_peak *peak)
{
    uint32_t holding;
    *peak = (bp_peak){.roles = role->roles, .step = role->lower_bound_step, .bytes = role->lower_bound_bytes};
    if (peak->bytes == 0)
        return BP_OK;
    BP_TRY(sum_steps(f, peak, &holding));
    bool of_step = peak->step < f->schedule->step_count && f->steps[peak->step].live == peak->bytes;
    if (!of_step && f->schedule->overlap_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_peaks_create: no step reaches the plan's bound of %llu bytes, expected in step %u; give the "
                       "plan's schedule",
                       (unsigned long long)peak->bytes, peak->step);
    if (of_step)
        find_other_steps(f, holding, peak);
    return list_holders(f, role, of_step, peak);
}

static bp_status find_all(finder *f)
{
    BP_TRY(bp_new_array(f->plan->role_count, sizeof *f->made->peaks, (void **)&f->made->peaks));
    BP_TRY(bp_new_array(f->schedule->step_count + 1, sizeof *f->steps, (void **)&f->steps));
    BP_TRY(bp_new_array(f->schedule->step_count, sizeof *f->sets, (void **)&f->sets));
    for (size_t i = 0; i < f->plan->role_count; i++) {
        BP_TRY(find_peak(f, &f->plan->roles[i], &f->made->peaks[i]));
        f->made->count++;
    }
    const bp_peak_holder *holders = f->made->holders; /* the array does not grow any more */
    for (size_t i = 0; i < f->made->count; i++) {
        f->made->peaks[i].holders = holders;
        holders += f->made->peaks[i].holder_count;
    }
    f->made->info = (bp_peaks_info){f->made->count, f->made->peaks};
    return BP_OK;
}

bp_status bp_peaks_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan *plan, bp_peaks **peaks)
{
    if (buckets == NULL || schedule == NULL || plan == NULL || peaks == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_peaks_create: needs buckets, a schedule and a plan");
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the schedule was made for %zu requests, these buckets have %zu",
                       schedule->request_count, buckets->request_count);
    if (plan->role_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_peaks_create: a plan that was read from a file does not say what sets its bound");
    finder f = {.buckets = buckets, .schedule = schedule, .plan = plan};
    BP_TRY(bp_new_array(1, sizeof *f.made, (void **)&f.made));
    bp_status status = find_all(&f);
    free(f.steps);
    free(f.sets);
    if (status != BP_OK) {
        bp_peaks_destroy(&f.made);
        return status;
    }
    *peaks = f.made;
    return BP_OK;
}

void bp_peaks_destroy(bp_peaks **peaks)
{
    if (peaks == NULL || *peaks == NULL)
        return;
    free((*peaks)->peaks);
    free((*peaks)->holders);
    free(*peaks);
    *peaks = NULL;
}

const bp_peaks_info *bp_peaks_get_info(const bp_peaks *peaks)
{
    return peaks != NULL ? &peaks->info : NULL;
}
