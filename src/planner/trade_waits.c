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

/* What a step without overlap computes with; of it, gradients. */
typedef struct computing {
    largest any, gradient;
} computing;

/* A span's gather that begins after the step, or its release that the step waits for. */
typedef struct move {
    uint32_t step, gathers;  /* 0: a release */
    uint64_t unit;           /* in its role */
    uint32_t request;        /* the largest of the span */
    uint64_t bytes, exposed; /* of that request; of the span, if nothing is left that it could run under */
} move;

typedef struct wait_list {
    const bp_trade *trade;
    computing *computing; /* by chosen step */
    move *moves;
    size_t move_count;
    const uint32_t *steps; /* chosen */
    size_t step_count;
} wait_list;

static void take_larger(const bp_trade *trade, uint32_t request, largest *l)
{
    uint64_t bytes = trade->buckets->requests[request].bytes;
    if (l->request == NO_REQUEST || bytes > l->bytes)
        *l = (largest){bytes, request};
}

static largest largest_of_span(const bp_trade *trade, const bp_span *span)
{
    largest l = {0, NO_REQUEST};
    for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++)
        take_larger(trade, r, &l);
    return l;
}

static bp_status add_bytes(const bp_trade *trade, uint64_t bytes, uint64_t *sum)
{
    if (!bp_add_u64(*sum, bytes, sum))
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

static bp_status add_move(wait_list *l, const bp_span *span, uint32_t step, bool gathers, bool is_exposed)
{
    const bp_buckets *buckets = l->trade->buckets;
    largest of_span = largest_of_span(l->trade, span);
    const bp_request_data *request = &buckets->requests[of_span.request];
    uint64_t unit = (uint64_t)buckets->buckets[request->bucket].unit * BP_ROLE_COUNT + request->role;
    move m = {step, gathers, unit, of_span.request, of_span.bytes, 0};
    for (uint32_t r = span->first_request; is_exposed && r < span->first_request + span->request_count; r++)
        BP_TRY(add_bytes(l->trade, buckets->requests[r].bytes, &m.exposed));
    l->moves[l->move_count++] = m;
    return BP_OK;
}

static void add_computing(wait_list *l, const bp_span *span, const bp_use *use)
{
    uint32_t request = largest_of_span(l->trade, span).request, role = l->trade->buckets->requests[request].role;
    size_t end = steps_before(l->steps, l->step_count, use->needed_end);
    for (size_t i = steps_before(l->steps, l->step_count, use->needed_begin); i < end; i++) {
        take_larger(l->trade, request, &l->computing[i].any);
        if (role == BP_ROLE_GRAD || role == BP_ROLE_GRAD_COMM)
            take_larger(l->trade, request, &l->computing[i].gradient);
    }
}

/* A gather waits for the last of the steps that it was ahead of, a reduction is waited for by the first that it drained into. */
static bp_status add_use(wait_list *l, const bp_span *span, const bp_use *original, const bp_use *use)
{
    add_computing(l, span, use);
    if (use->begin > original->begin)
        BP_TRY(add_move(l, span, use->begin - 1, true, use->begin == use->needed_begin));
    if (use->end < original->end)
        BP_TRY(add_move(l, span, use->end, false, use->end == use->needed_end));
    return BP_OK;
}

/* Releases of a step before its gathers, in the order of the requests. */
static int by_step(const void *a, const void *b)
{
    const move *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->gathers != y->gathers)
        return x->gathers < y->gathers ? -1 : 1;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    return x->request < y->request ? -1 : x->request > y->request;
}

/* Outside units nothing computes that has a request: then what waits stands for both. */
static uint32_t first_known(uint32_t a, uint32_t b, uint32_t c)
{
    return a != NO_REQUEST ? a : b != NO_REQUEST ? b : c;
}

/* One wait of moves of one unit in one role. */
static bp_status add_wait(const wait_list *l, const move *moves, size_t count)
{
    bp_wait wait = {.size = sizeof wait, .step = moves->step};
    const computing *c = &l->computing[steps_before(l->steps, l->step_count, moves->step)];
    const move *most = moves;
    for (size_t i = 0; i < count; i++) {
        most = moves[i].bytes > most->bytes ? &moves[i] : most;
        BP_TRY(add_bytes(l->trade, moves[i].exposed, &wait.exposed_bytes));
    }
    if (moves->gathers) {
        wait.waits = most->request;
        wait.waits_for = first_known(c->any.request, most->request, NO_REQUEST);
    } else {
        wait.waits = first_known(c->gradient.request, c->any.request, most->request);
        wait.waits_for = most->request;
    }
    return bp_schedule_add_wait(l->trade->schedule, &wait);
}

static bp_status add_waits(wait_list *l)
{
    size_t first = 0;
    qsort(l->moves, l->move_count, sizeof *l->moves, by_step);
    for (size_t i = 1; i <= l->move_count; i++) {
        const move *m = &l->moves[first];
        if (i < l->move_count && l->moves[i].step == m->step && l->moves[i].gathers == m->gathers &&
            l->moves[i].unit == m->unit)
            continue;
        BP_TRY(add_wait(l, m, i - first));
        first = i;
    }
    return BP_OK;
}

static bp_status list_waits(wait_list *l, const bp_use *original)
{
    const bp_schedule *s = l->trade->schedule;
    const largest nothing = {0, NO_REQUEST};
    BP_TRY(bp_new_array(l->step_count, sizeof *l->computing, (void **)&l->computing));
    BP_TRY(bp_new_array(2 * s->use_count, sizeof *l->moves, (void **)&l->moves));
    for (size_t i = 0; i < l->step_count; i++)
        l->computing[i] = (computing){nothing, nothing};
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t k = span->first_use; k < span->first_use + span->use_count; k++)
            if (l->trade->slab_of_span[i] != BP_NO_SLAB)
                BP_TRY(add_use(l, span, &original[k], &s->uses[k]));
    }
    return add_waits(l);
}

bp_status bp_trade_note_waits(bp_trade *trade, const bp_use *original, const uint32_t *steps, size_t step_count)
{
    wait_list list = {.trade = trade, .steps = steps, .step_count = step_count};
    bp_status status = list_waits(&list, original);
    free(list.computing);
    free(list.moves);
    return status;
}
