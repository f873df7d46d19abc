/* Overlap that is given up for bytes: as many of the stalls that are allowed as make the smallest plan. */
#include "analysis_parts.h"

/* Plans that are tried for that. */
#define MOST_TRIED 32

static bp_status trade(const plan_options *options, const analysis *a, uint32_t stalls, bp_schedule **traded)
{
    bp_trade_config config;
    bp_status status = bp_trade_config_init(&config, sizeof config);
    config.stalls = stalls;
    config.joint = options->joint;
    if (options->joint) /* state keeps a slab of its own */
        config.roles = options->roles & ~BP_ROLES_STATE;
    config.alignment = options->alignment;
    return status == BP_OK ? bp_schedule_create_traded(a->buckets, a->schedule, &config, traded) : status;
}

static bp_status scheduled_bytes(const plan_options *options, const analysis *a, const bp_schedule *schedule,
                                 uint64_t *bytes)
{
    bp_plan_config config;
    bp_plan *plan = NULL;
    bp_plan_summary summary = {.size = sizeof summary};
    bp_status status = analysis_plan_config(options, BP_POLICY_SCHEDULED, options->alignment, &config);
    if (status == BP_OK)
        status = bp_plan_create(a->buckets, schedule, &config, &plan);
    if (status == BP_OK)
        status = bp_plan_summary_get(plan, &summary);
    bp_plan_destroy(&plan);
    *bytes = summary.bytes;
    return status;
}

/* Schedules that were traded from the same one differ in their waits. */
static bool is_same(const bp_schedule *one, const bp_schedule *other)
{
    size_t count = bp_schedule_wait_count(one);
    bool same = bp_schedule_wait_count(other) == count;
    for (size_t i = 0; same && i < count; i++) {
        bp_wait x = {.size = sizeof x}, y = {.size = sizeof y};
        same = bp_schedule_wait(one, i, &x) == BP_OK && bp_schedule_wait(other, i, &y) == BP_OK && x.step == y.step &&
               x.waits == y.waits && x.waits_for == y.waits_for && x.exposed_bytes == y.exposed_bytes;
    }
    return same;
}

/* All numbers of stalls, or if those are too many 1, 2, 4, ... and the last. */
static uint32_t next_number(uint32_t stalls, uint32_t most)
{
    if (most <= MOST_TRIED)
        return stalls + 1;
    return stalls > most / 2 ? most : stalls == 0 ? 1 : 2 * stalls;
}

typedef struct choice {
    bp_schedule *best, *last; /* NULL: the untraded schedule; last: the one tried before */
    uint64_t bytes;
} choice;

static bp_status try_stalls(const plan_options *options, const analysis *a, uint32_t stalls, choice *c)
{
    bp_schedule *traded = NULL;
    uint64_t bytes = 0;
    bp_status status = trade(options, a, stalls, &traded);
    if (status != BP_OK)
        return status;
    if (is_same(traded, c->last != NULL ? c->last : a->schedule)) {
        bp_schedule_destroy(&traded);
        return BP_OK;
    }
    status = scheduled_bytes(options, a, traded, &bytes);
    if (c->last != c->best)
        bp_schedule_destroy(&c->last);
    c->last = traded;
    if (status == BP_OK && bytes < c->bytes) {
        bp_schedule_destroy(&c->best);
        c->best = traded;
        c->bytes = bytes;
    }
    return status;
}

bp_status analysis_trade(const plan_options *options, analysis *a)
{
    choice c = {0};
    uint32_t most = options->schedule.stalls;
    if (most == 0)
        return BP_OK;
    bp_status status = scheduled_bytes(options, a, a->schedule, &c.bytes);
    for (uint32_t stalls = 0; status == BP_OK && stalls < most;) {
        stalls = next_number(stalls, most);
        status = try_stalls(options, a, stalls, &c);
    }
    if (c.last != c.best)
        bp_schedule_destroy(&c.last);
    if (status != BP_OK || c.best == NULL) {
        bp_schedule_destroy(&c.best);
        return status;
    }
    a->untraded = a->schedule;
    a->schedule = c.best;
    return BP_OK;
}
