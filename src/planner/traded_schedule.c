/* A schedule that gives up overlap for bytes. */
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/trade.h"

/* Of a second or two, but the same on any machine. */
#define MOST_WORK (UINT64_C(1) << 28)

#define ALL_ROLES (BP_ROLE_BIT(BP_ROLE_COUNT) - 1)

bp_status bp_trade_config_init(bp_trade_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_trade_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_trade_config){.size = sizeof *config, .alignment = 256};
    return BP_OK;
}

static bp_status check_config(const bp_buckets *buckets, const bp_schedule *schedule, const bp_trade_config *config)
{
    if (config->alignment == 0 || (config->alignment & (config->alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "alignment %llu is no power of two",
                       (unsigned long long)config->alignment);
    if ((config->roles & ~ALL_ROLES) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "roles 0x%x: expected a mask of known roles", config->roles);
    if (schedule->request_count != buckets->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the schedule is of %zu requests, the buckets have %zu",
                       schedule->request_count, buckets->request_count);
    return BP_OK;
}

/* The roles that count and have requests. */
static uint32_t roles_of(const bp_trade *trade, const bp_trade_config *config)
{
    uint32_t roles = 0;
    for (size_t i = 0; i < trade->schedule->span_count; i++)
        roles |= BP_ROLE_BIT(trade->buckets->requests[trade->schedule->spans[i].first_request].role);
    return roles & (config->roles != 0 ? config->roles : ALL_ROLES);
}

/* Which slab each span is in, and what it takes there. Slabs are in the order of the roles. */
static bp_status fill_slabs(bp_trade *trade, const bp_trade_config *config)
{
    uint32_t roles = roles_of(trade, config);
    uint64_t sum = 0;
    trade->slab_count = config->joint ? 1 : (uint32_t)__builtin_popcount(roles);
    for (size_t i = 0; i < trade->schedule->span_count; i++) {
        const bp_span *span = &trade->schedule->spans[i];
        uint32_t role = trade->buckets->requests[span->first_request].role;
        trade->slab_of_span[i] = BP_NO_SLAB;
        if (!(roles & BP_ROLE_BIT(role)))
            continue;
        trade->slab_of_span[i] = config->joint ? 0 : (uint8_t)__builtin_popcount(roles & (BP_ROLE_BIT(role) - 1));
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            uint64_t aligned;
            if (!bp_round_up_u64(trade->buckets->requests[r].bytes, config->alignment, &aligned) ||
                !bp_add_u64(sum, aligned, &sum))
                return bp_fail(BP_ERR_OVERFLOW, "the requests of model \"%s\" do not fit 64 bits",
                               trade->buckets->model);
            trade->bytes_of_span[i] += aligned;
        }
    }
    return BP_OK;
}

static bp_status trade_for_bytes(bp_trade *trade, const bp_trade_config *config)
{
    size_t spans = trade->schedule->span_count;
    BP_TRY(bp_new_array(spans, sizeof *trade->slab_of_span, (void **)&trade->slab_of_span));
    BP_TRY(bp_new_array(spans, sizeof *trade->bytes_of_span, (void **)&trade->bytes_of_span));
    BP_TRY(fill_slabs(trade, config));
    if (trade->schedule->window_count > 0)
        return bp_trade_windows(trade);
    BP_TRY(bp_trade_steps(trade));
    return bp_schedule_renew_intervals(trade->schedule);
}

bp_status bp_schedule_create_traded(const bp_buckets *buckets, const bp_schedule *schedule,
                                    const bp_trade_config *config, bp_schedule **traded)
{
    if (buckets == NULL || schedule == NULL || config == NULL || traded == NULL || config->size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_schedule_create_traded: needs buckets, a schedule and an initialised configuration");
    bp_trade_cost cost;
    return bp_trade_schedule(buckets, schedule, config, traded, &cost);
}

bp_status bp_trade_schedule(const bp_buckets *buckets, const bp_schedule *schedule, const bp_trade_config *config,
                            bp_schedule **traded, bp_trade_cost *cost)
{
    BP_TRY(check_config(buckets, schedule, config));
    bp_trade trade = {.buckets = buckets, .stalls = config->stalls, .work = MOST_WORK};
    BP_TRY(bp_schedule_copy(schedule, &trade.schedule));
    bp_status status = config->stalls > 0 ? trade_for_bytes(&trade, config) : BP_OK;
    free(trade.slab_of_span);
    free(trade.bytes_of_span);
    if (status != BP_OK) {
        bp_schedule_destroy(&trade.schedule);
        return status;
    }
    *traded = trade.schedule;
    *cost = (bp_trade_cost){config->stalls - trade.stalls, MOST_WORK - trade.work};
    return BP_OK;
}
