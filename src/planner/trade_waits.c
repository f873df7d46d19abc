/* What waits where overlap is given up, and for what. */
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/trade.h"

/* A request, the largest of those that it was chosen from. */
typedef struct largest {
    uint64_t bytes;
    uint32_t request;
} largest;

#define NO_REQUEST UINT32_MAX

/* What a step without overlap changes. */
typedef struct loss {
    largest gather, reduction;              /* that waits for the step; that the step waits for */
    largest computes, gradient;             /* what the step computes with; of it, gradients */
    uint64_t gather_bytes, reduction_bytes; /* that no longer run under compute */
} loss;

static void take_larger(const bp_trade *trade, uint32_t request, largest *l)
{
    uint64_t bytes = trade->buckets->requests[request].bytes;
    if (l->request == NO_REQUEST || bytes > l->bytes)
        *l = (largest){bytes, request};
}

static uint32_t largest_of_span(const bp_trade *trade, const bp_span *span)
{
    largest l = {0, NO_REQUEST};
    for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
        take_larger(trade, r, &l);
    return l.request;
}

static bp_status add_bytes(const bp_trade *trade, const bp_span *span, uint64_t *sum)
{
    for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
        if (!bp_add_u64(*sum, trade->buckets->requests[r].bytes, sum))
            return bp_fail(BP_ERR_OVERFLOW, "the collectives that a step of model \"%s\" exposes do not fit 64 bits",
                           trade->buckets->model);
    return BP_OK;
}

/* How many of the steps come before `step`. */
static size_t steps_before(const uint32_t *steps, size_t count, uint32_t step)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (steps[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A gather waits for the last of the steps that it was ahead of, a reduction is waited for by the first that it drained into. */
static bp_status add_use(const bp_trade *trade, const bp_span *span, const bp_use *use, const uint32_t *steps,
                         size_t count, loss *losses)
{
    uint32_t request = largest_of_span(trade, span), role = trade->buckets->requests[request].role;
    size_t computes = steps_before(steps, count, use->needed_begin);
    size_t after = steps_before(steps, count, use->needed_end);
    if (computes > 0 && steps[computes - 1] >= use->begin) {
        loss *l = &losses[computes - 1];
        take_larger(trade, request, &l->gather);
        if (steps[computes - 1] + 1 == use->needed_begin)
            BP_TRY(add_bytes(trade, span, &l->gather_bytes));
    }
    if (after < count && steps[after] < use->end) {
        take_larger(trade, request, &losses[after].reduction);
        if (steps[after] == use->needed_end)
            BP_TRY(add_bytes(trade, span, &losses[after].reduction_bytes));
    }
    for (size_t i = computes; i < after; i++) {
        take_larger(trade, request, &losses[i].computes);
        if (role == BP_ROLE_GRAD || role == BP_ROLE_GRAD_COMM)
            take_larger(trade, request, &losses[i].gradient);
    }
    return BP_OK;
}

/* Outside units nothing computes that has a request: then what waits stands for both. */
static uint32_t first_known(uint32_t a, uint32_t b, uint32_t c)
{
    return a != NO_REQUEST ? a : b != NO_REQUEST ? b : c;
}

static bp_status add_waits(bp_schedule *s, uint32_t step, const loss *l)
{
    bp_wait wait = {.size = sizeof wait, .step = step};
    if (l->reduction.request != NO_REQUEST) {
        wait.waits = first_known(l->gradient.request, l->computes.request, l->reduction.request);
        wait.waits_for = l->reduction.request;
        wait.exposed_bytes = l->reduction_bytes;
        BP_TRY(bp_schedule_add_wait(s, &wait));
    }
    if (l->gather.request != NO_REQUEST) {
        wait.waits = l->gather.request;
        wait.waits_for = first_known(l->computes.request, l->gather.request, NO_REQUEST);
        wait.exposed_bytes = l->gather_bytes;
        BP_TRY(bp_schedule_add_wait(s, &wait));
    }
    return BP_OK;
}

bp_status bp_trade_note_waits(bp_trade *trade, const bp_use *original, const uint32_t *steps, size_t step_count)
{
    void *memory;
    BP_TRY(bp_new_array(step_count, sizeof(loss), &memory));
    loss *losses = memory;
    const largest nothing = {0, NO_REQUEST};
    for (size_t i = 0; i < step_count; i++)
        losses[i] = (loss){nothing, nothing, nothing, nothing, 0, 0};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < trade->schedule->span_count; i++) {
        const bp_span *span = &trade->schedule->spans[i];
        for (uint32_t k = 0; status == BP_OK && trade->slab_of_span[i] != BP_NO_SLAB && k < span->use_count; k++)
            status = add_use(trade, span, &original[span->first_use + k], steps, step_count, losses);
    }
    for (size_t i = 0; status == BP_OK && i < step_count; i++)
        status = add_waits(trade->schedule, steps[i], &losses[i]);
    free(losses);
    return status;
}
