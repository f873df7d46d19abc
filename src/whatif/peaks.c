/* What-if: what is live where the lower bound of a plan is reached, and the peak without it. */
#include <bucketpool/whatif.h>

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "plan/bound.h"
#include "plan/plan.h"

struct bp_peaks {
    bp_peak *peaks;
    size_t count;
    bp_peak_holder *holders; /* of the peaks, one after the other */
    size_t holder_count, holder_capacity;
    bp_peaks_info info;
};

/* What a step has, from what changes as it begins. */
typedef struct step_sums {
    uint64_t live;
    uint64_t set;     /* stands for the spans that are live */
    uint32_t holding; /* how many spans are live of those that hold the peak */
} step_sums;

typedef struct finder {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan *plan;
    bp_peaks *made;
    step_sums *steps; /* one more than there are: where things end */
    uint64_t *sets;   /* of steps that reach the peak */
} finder;

/* ---- holders -------------------------------------------------------------------------------------------------------- */

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

static bp_status add_holder(bp_peaks *made, uint32_t unit, uint32_t role, uint64_t bytes)
{
    if (bytes == 0)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&made->holders, &made->holder_capacity, made->holder_count, sizeof *made->holders));
    made->holders[made->holder_count++] = (bp_peak_holder){unit, role, bytes};
    return BP_OK;
}

/* One entry for each unit in a role, the largest first. */
static void merge_holders(bp_peaks *made, size_t first, bp_peak *peak)
{
    bp_peak_holder *holders = made->holders + first;
    size_t count = made->holder_count - first, kept = 0;
    if (count == 0)
        return;
    qsort(holders, count, sizeof *holders, by_unit);
    for (size_t i = 1; i < count; i++) {
        if (by_unit(&holders[kept], &holders[i]) == 0)
            holders[kept].bytes += holders[i].bytes; /* all together they are the bound */
        else
            holders[++kept] = holders[i];
    }
    peak->holder_count = kept + 1;
    made->holder_count = first + kept + 1;
    qsort(holders, kept + 1, sizeof *holders, by_bytes);
}

/* ---- sums of steps --------------------------------------------------------------------------------------------------- */

/* Numbers of which different sets have different sums: those of the splitmix64 generator. */
static uint64_t whatif_peaks_number_of(uint64_t index)
{
    uint64_t z = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static bp_status bytes_of(const finder *f, const bp_span *span, uint64_t *bytes)
{
    *bytes = 0;
    for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
        uint64_t aligned;
        if (!bp_round_up_u64(f->buckets->requests[r].bytes, f->plan->info.alignment, &aligned) ||
            !bp_add_u64(*bytes, aligned, bytes))
            return bp_fail(BP_ERR_OVERFLOW, "a unit of model \"%s\" does not fit 64 bits", f->buckets->model);
    }
    return BP_OK;
}

/* Sums wrap, but no bound does that was found: those of a plan of this schedule are right. */
static void add_changes(finder *f, size_t index, uint64_t bytes, bool holds)
{
    const bp_span *span = &f->schedule->spans[index];
    for (uint32_t k = 0; k < span->interval_count; k++) {
        const bp_interval *live = &f->schedule->intervals[span->first_interval + k];
        step_sums *begin = &f->steps[live->begin], *end = &f->steps[live->end];
        begin->live += bytes;
        end->live -= bytes;
        begin->set += whatif_peaks_number_of(index);
        end->set -= whatif_peaks_number_of(index);
        begin->holding += holds;
        end->holding -= holds;
    }
}

/* Fills the steps; the holders are those that are live in the peak's step. Counts the spans that they are. */
static bp_status sum_steps(finder *f, const bp_peak *peak, uint32_t *holding)
{
    *holding = 0;
    memset(f->steps, 0, (f->schedule->step_count + 1) * sizeof *f->steps);
    for (size_t i = 0; i < f->schedule->span_count; i++) {
        const bp_span *span = &f->schedule->spans[i];
        uint64_t bytes;
        BP_TRY(bytes_of(f, span, &bytes));
        if (!(peak->roles & BP_ROLE_BIT(f->buckets->requests[span->first_request].role)) || bytes == 0)
            continue;
        bool holds = bp_span_is_live(f->schedule, span, peak->step);
        *holding += holds;
        add_changes(f, i, bytes, holds);
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

/* What else reaches the peak, and what comes after it. */
static void look_elsewhere(finder *f, uint32_t holding, bp_peak *peak)
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

/* ---- a peak ---------------------------------------------------------------------------------------------------------- */

static bp_status whatif_peaks_add_live(finder *f, const bp_peak *peak)
{
    for (size_t i = 0; i < f->schedule->span_count; i++) {
        const bp_span *span = &f->schedule->spans[i];
        const bp_request *first = &f->buckets->requests[span->first_request];
        uint64_t bytes;
        if (!(peak->roles & BP_ROLE_BIT(first->role)) || !bp_span_is_live(f->schedule, span, peak->step))
            continue;
        BP_TRY(bytes_of(f, span, &bytes));
        BP_TRY(add_holder(f->made, (uint32_t)f->buckets->buckets[first->bucket].unit, first->role, bytes));
    }
    return BP_OK;
}

/* Overlap windows keep more from a request than any step has. */
static bp_status add_witnesses(finder *f, const bp_plan_role *role)
{
    for (size_t i = 0; i < role->witness_count; i++) {
        const bp_request *r = &f->buckets->requests[role->witnesses[i]];
        uint64_t bytes;
        bp_round_up_u64(r->bytes, f->plan->info.alignment, &bytes); /* the plan's bound checked it */
        BP_TRY(add_holder(f->made, (uint32_t)f->buckets->buckets[r->bucket].unit, r->role, bytes));
    }
    return BP_OK;
}

static bp_status find_peak(finder *f, const bp_plan_role *role, bp_peak *peak)
{
    uint32_t holding;
    size_t first = f->made->holder_count;
    *peak = (bp_peak){.roles = role->roles, .step = role->lower_bound_step, .bytes = role->lower_bound_bytes};
    if (peak->bytes == 0)
        return BP_OK;
    BP_TRY(sum_steps(f, peak, &holding));
    bool of_step = peak->step < f->schedule->step_count && f->steps[peak->step].live == peak->bytes;
    if (!of_step && f->schedule->overlap_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_peaks_create: the plan's bound of %llu bytes is not reached in step %u of this schedule",
                       (unsigned long long)peak->bytes, peak->step);
    if (of_step)
        look_elsewhere(f, holding, peak);
    BP_TRY(of_step ? whatif_peaks_add_live(f, peak) : add_witnesses(f, role));
    merge_holders(f->made, first, peak);
    return BP_OK;
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
    const bp_peak_holder *holders = f->made->holders; /* they do not move any more */
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
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_peaks), &memory));
    finder f = {.buckets = buckets, .schedule = schedule, .plan = plan, .made = memory};
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
