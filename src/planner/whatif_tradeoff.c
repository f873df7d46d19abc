/* The curve of bytes over the overlap that is given up for them.
 *
 * A trade of k stalls uses u of them, and one of anything from u to k makes the same choices. So each trade settles a range of
 * numbers; what is left is tried from the middle, ranges in turn, so that a curve that is cut short is a thinned one. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/trade.h"
#include "planner/whatif.h"

#define DEFAULT_TRADES 256
#define DEFAULT_WORK (UINT64_C(1) << 24)

typedef struct point_data {
    bp_tradeoff_point info;
    size_t first_wait;
} point_data;

struct bp_tradeoff {
    point_data *points;
    size_t count, capacity;
    bp_wait *waits;
    size_t wait_count, wait_capacity;
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
} survey;

bp_status bp_tradeoff_config_init(bp_tradeoff_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_tradeoff_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_tradeoff_config){.size = sizeof *config, .most_trades = DEFAULT_TRADES, .work = DEFAULT_WORK};
    return BP_OK;
}

/* ---- points ---------------------------------------------------------------------------------------------------------- */

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
    if (first > last)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&s->ranges, &s->range_capacity, s->range_count, sizeof *s->ranges));
    s->ranges[s->range_count++] = (range){first, last};
    return BP_OK;
}

/* Trades `stalls`, a number of the range, and adds what is left of that. */
static bp_status try_stalls(survey *s, range all, uint32_t stalls)
{
    bp_trade_config config = bp_whatif_trade(s->plan, stalls);
    bp_schedule *traded;
    uint32_t used;
    BP_TRY(bp_trade_schedule(s->buckets, s->schedule, &config, &traded, &used));
    bp_status status = has_point(s->made, used) ? BP_OK : add_point(s, traded, used);
    bp_schedule_destroy(&traded);
    BP_TRY(status);
    if (used > all.first)
        BP_TRY(add_range(s, all.first, used - 1));
    return stalls < all.last ? add_range(s, stalls + 1, all.last) : BP_OK;
}

static bp_status find_points(survey *s)
{
    const range all = {1, s->config->most_stalls != 0 ? s->config->most_stalls : UINT32_MAX};
    BP_TRY(add_point(s, s->schedule, 0));
    BP_TRY(try_stalls(s, all, all.last));
    for (uint32_t trades = 1; trades < s->config->most_trades && s->next_range < s->range_count; trades++) {
        range r = s->ranges[s->next_range++];
        BP_TRY(try_stalls(s, r, r.first + (r.last - r.first) / 2));
    }
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
    if (config->most_trades == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "most_trades is 0: the curve needs at least 1");
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

static bp_status check_entry(const char *what, size_t index, size_t count, size_t size, size_t expected)
{
    if (index >= count || size < expected)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s %zu of %zu, size %zu of at least %zu", what, index, count, size,
                       expected);
    return BP_OK;
}

bp_status bp_tradeoff_get(const bp_tradeoff *tradeoff, size_t index, bp_tradeoff_point *point)
{
    BP_TRY(check_entry("point", index, tradeoff->count, point->size, sizeof *point));
    *point = tradeoff->points[index].info;
    return BP_OK;
}

bp_status bp_tradeoff_wait(const bp_tradeoff *tradeoff, size_t point, size_t index, bp_wait *wait)
{
    BP_TRY(check_entry("point", point, tradeoff->count, wait->size, sizeof *wait));
    BP_TRY(check_entry("wait", index, tradeoff->points[point].info.waits, wait->size, sizeof *wait));
    *wait = tradeoff->waits[tradeoff->points[point].first_wait + index];
    return BP_OK;
}
