/* The curve of bytes over the overlap that is given up for them.
 *
 * A trade of k stalls uses u of them, and one of anything from u to k makes the same choices. So each trade settles a range of
 * numbers. Up to twice as many stalls are looked at in turn, each range from its end: a curve that is cut short has points among few
 * stalls and among many. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/trade.h"
#include "planner/whatif.h"

#define DEFAULT_WORK (UINT64_C(1) << 24)
#define DEFAULT_TOTAL_WORK (UINT64_C(1) << 31)
#define WORK_OF_REQUEST (UINT64_C(1) << 12) /* to plan it, whatever the search does */

typedef struct point_data {
    bp_tradeoff_point info;
    size_t first_wait;
} point_data;

struct bp_tradeoff {
    point_data *points;
    size_t count, capacity;
    bp_wait *waits;
    size_t wait_count, wait_capacity;
    bool is_complete;
};

/* Numbers of stalls that nothing is known of, not empty. */
typedef struct range {
    uint32_t first, last;
} range;

typedef struct survey {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *plan;
    const bp_tradeoff_config *config;
    bp_tradeoff *made;
    range *ranges;
    size_t range_count, range_capacity, next_range;
    uint64_t work; /* done so far */
} survey;

bp_status bp_tradeoff_config_init(bp_tradeoff_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_tradeoff_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_tradeoff_config){.size = sizeof *config, .work = DEFAULT_WORK, .total_work = DEFAULT_TOTAL_WORK};
    return BP_OK;
}

/* ---- points ---------------------------------------------------------------------------------------------------------- */

static void spend(survey *s, uint64_t work)
{
    if (!bp_add_u64(s->work, work, &s->work))
        s->work = UINT64_MAX;
}

static bp_status add_waits(survey *s, const bp_schedule *traded, point_data *point)
{
    bp_tradeoff *made = s->made;
    point->first_wait = made->wait_count;
    point->info.waits = traded->wait_count;
    for (size_t i = 0; i < traded->wait_count; i++) {
        BP_TRY(bp_grow_array((void **)&made->waits, &made->wait_capacity, made->wait_count, sizeof *made->waits));
        made->waits[made->wait_count++] = traded->waits[i];
        if (!bp_add_u64(point->info.exposed_bytes, traded->waits[i].exposed_bytes, &point->info.exposed_bytes))
            return bp_fail(BP_ERR_OVERFLOW, "the collectives that %u stalls of model \"%s\" expose do not fit 64 bits",
                           point->info.stalls, s->buckets->model);
    }
    return BP_OK;
}

static bp_status add_point(survey *s, const bp_schedule *traded, uint32_t stalls)
{
    bp_plan_sums sums;
    bp_tradeoff *made = s->made;
    point_data point = {.info = {.size = sizeof point.info, .stalls = stalls}};
    if (stalls == 0 && s->config->present != NULL)
        BP_TRY(bp_whatif_sums(s->config->present, &sums));
    else
        BP_TRY(bp_whatif_plan(s->buckets, traded, s->plan, BP_POLICY_SCHEDULED,
                              stalls == 0 ? s->plan->work : s->config->work, &sums));
    spend(s, s->buckets->request_count * WORK_OF_REQUEST);
    for (uint32_t i = 0; i < sums.unproven; i++)
        spend(s, s->config->work);
    point.info.optimal = sums.optimal;
    point.info.bytes = sums.bytes;
    point.info.lower_bound_bytes = sums.lower_bound_bytes;
    BP_TRY(add_waits(s, traded, &point));
    BP_TRY(bp_grow_array((void **)&made->points, &made->capacity, made->count, sizeof *made->points));
    made->points[made->count++] = point;
    return BP_OK;
}

static bool has_point(const bp_tradeoff *made, uint32_t stalls)
{
    for (size_t i = 0; i < made->count; i++) {
        if (made->points[i].info.stalls == stalls)
            return true;
    }
    return false;
}

static int by_stalls(const void *a, const void *b)
{
    const point_data *x = a, *y = b;
    return x->info.stalls < y->info.stalls ? -1 : x->info.stalls > y->info.stalls;
}

/* Keeps what takes fewer bytes than everything with fewer stalls. */
static void keep_best(bp_tradeoff *made)
{
    size_t kept = 1;
    qsort(made->points, made->count, sizeof *made->points, by_stalls);
    for (size_t i = 1; i < made->count; i++) {
        if (made->points[i].info.bytes < made->points[kept - 1].info.bytes)
            made->points[kept++] = made->points[i];
    }
    made->count = kept;
}

/* ---- numbers of stalls ----------------------------------------------------------------------------------------------- */

static bp_status add_range(survey *s, uint32_t first, uint32_t last)
{
    BP_TRY(bp_grow_array((void **)&s->ranges, &s->range_capacity, s->range_count, sizeof *s->ranges));
    s->ranges[s->range_count++] = (range){first, last};
    return BP_OK;
}

/* Trades the most stalls of the range, and adds what that leaves of it. */
static bp_status try_range(survey *s, range r)
{
    bp_trade_config config = bp_whatif_trade(s->plan, r.last);
    bp_schedule *traded;
    bp_trade_cost cost;
    BP_TRY(bp_trade_schedule(s->buckets, s->schedule, &config, &traded, &cost));
    spend(s, cost.work);
    bp_status status = has_point(s->made, cost.stalls) ? BP_OK : add_point(s, traded, cost.stalls);
    bp_schedule_destroy(&traded);
    BP_TRY(status);
    return cost.stalls > r.first ? add_range(s, r.first, cost.stalls - 1) : BP_OK;
}

static bp_status add_all_ranges(survey *s)
{
    size_t there = s->schedule->step_count + s->schedule->window_count; /* no trade has more */
    uint32_t most = s->config->most_stalls;
    if (most == 0 || most > there)
        most = there < UINT32_MAX ? (uint32_t)there : UINT32_MAX;
    for (uint64_t first = 1; first <= most; first *= 2)
        BP_TRY(add_range(s, (uint32_t)first, 2 * first - 1 < most ? (uint32_t)(2 * first - 1) : most));
    return BP_OK;
}

static bp_status find_points(survey *s)
{
    BP_TRY(add_point(s, s->schedule, 0));
    BP_TRY(add_all_ranges(s));
    while (s->work < s->config->total_work && s->next_range < s->range_count)
        BP_TRY(try_range(s, s->ranges[s->next_range++]));
    s->made->is_complete = s->next_range == s->range_count;
    keep_best(s->made);
    return BP_OK;
}

/* ---- the curve ------------------------------------------------------------------------------------------------------- */

bp_status bp_tradeoff_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *plan,
                             const bp_tradeoff_config *config, bp_tradeoff **tradeoff)
{
    if (buckets == NULL || schedule == NULL || plan == NULL || plan->size < sizeof *plan || config == NULL ||
        config->size < sizeof *config || tradeoff == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_tradeoff_create: needs buckets, a schedule and initialised configurations");
    if (schedule->wait_count > 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "the schedule has %zu waits already: the curve begins with one that gives up nothing",
                       schedule->wait_count);
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_tradeoff), &memory));
    survey s = {.buckets = buckets, .schedule = schedule, .plan = plan, .config = config, .made = memory};
    bp_status status = find_points(&s);
    free(s.ranges);
    if (status != BP_OK) {
        bp_tradeoff_destroy(&s.made);
        return status;
    }
    *tradeoff = s.made;
    return BP_OK;
}

void bp_tradeoff_destroy(bp_tradeoff **tradeoff)
{
    if (tradeoff == NULL || *tradeoff == NULL)
        return;
    free((*tradeoff)->points);
    free((*tradeoff)->waits);
    free(*tradeoff);
    *tradeoff = NULL;
}

size_t bp_tradeoff_count(const bp_tradeoff *tradeoff)
{
    return tradeoff->count;
}

uint32_t bp_tradeoff_is_complete(const bp_tradeoff *tradeoff)
{
    return tradeoff->is_complete;
}

bp_status bp_tradeoff_get(const bp_tradeoff *tradeoff, size_t index, bp_tradeoff_point *point)
{
    BP_TRY(bp_whatif_check_entry("point", index, tradeoff->count, point->size, sizeof *point));
    *point = tradeoff->points[index].info;
    return BP_OK;
}

bp_status bp_tradeoff_wait(const bp_tradeoff *tradeoff, size_t point, size_t index, bp_wait *wait)
{
    BP_TRY(bp_whatif_check_entry("point", point, tradeoff->count, wait->size, sizeof *wait));
    BP_TRY(bp_whatif_check_entry("wait", index, tradeoff->points[point].info.waits, wait->size, sizeof *wait));
    *wait = tradeoff->waits[tradeoff->points[point].first_wait + index];
    return BP_OK;
}
