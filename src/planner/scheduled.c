/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of policy scheduled: the conflict graph of a role's requests, packed. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "planner/policy.h"

#define NO_ITEM UINT32_MAX

typedef struct placing {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *config;
    uint32_t roles;
    bp_scheduled_pool *pool;
    bp_packing *packing; /* item i is pool->requests[i] */
    uint32_t *item_of;   /* by request */
    uint64_t *known;     /* by item: offsets that the search starts from */
} placing;

static bp_status scheduled_pool_add_items(placing *p)
{
    const bp_schedule *s = p->schedule;
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            const bp_request *request = &p->buckets->requests[r];
            uint64_t bytes;
            size_t item;
            p->item_of[r] = NO_ITEM;
            if (span->interval_count == 0 || !(p->roles & BP_ROLE_BIT(request->role)) || request->bytes == 0)
                continue;
            if (!bp_round_up_u64(request->bytes, p->config->alignment, &bytes))
                return bp_fail(BP_ERR_OVERFLOW, "%llu bytes in units of %llu do not fit 64 bits",
                               (unsigned long long)request->bytes, (unsigned long long)p->config->alignment);
            BP_TRY(bp_packing_add_item(p->packing, bytes, &item));
            p->item_of[r] = (uint32_t)item;
            p->pool->requests[p->pool->count++] = r;
            for (uint32_t k = 0; k < span->interval_count; k++) {
                const bp_interval *interval = &s->intervals[span->first_interval + k];
                BP_TRY(bp_packing_add_interval(p->packing, item, interval->begin, interval->end));
            }
        }
    }
    for (size_t i = 0; i < s->overlap_count; i++) {
        uint32_t one = p->item_of[s->overlaps[i].earlier], other = p->item_of[s->overlaps[i].later];
        if (one != NO_ITEM && other != NO_ITEM)
            BP_TRY(bp_packing_add_conflict(p->packing, one, other));
    }
    return BP_OK;
}

static bp_status offsets_of_layout(placing *p, const bp_role_layout *layout, bool *fits)
{
    uint64_t *offsets, stride = 0, whole;
    BP_TRY(bp_new_array(layout->class_count, sizeof *offsets, (void **)&offsets));
    *fits = true;
    for (size_t c = 0; c < layout->class_count; c++) {
        offsets[c] = stride;
        *fits = *fits && bp_add_u64(stride, layout->classes[c].bytes, &stride);
    }
    *fits = *fits && bp_mul_u64(stride, layout->copies, &whole);
    for (size_t i = 0; *fits && i < p->pool->count; i++) {
        const bp_place *place = &layout->places[p->pool->requests[i]];
        p->known[i] = offsets[place->class_index] + place->copy * stride;
    }
    free(offsets);
    return BP_OK;
}

/* Starts from the layout of policy max for one role. *found is false if there is none, it overflows, or overlap windows make it invalid. */
static bp_status start_from_max_pool(placing *p, bool *found)
{
    bp_plan_config config = *p->config;
    config.copies = 0;
    bp_live_units units = {0};
    bp_role_layout layout = {0};
    BP_TRY(bp_new_array(p->buckets->request_count, sizeof *layout.places, (void **)&layout.places));
    bp_policy_input input = {p->buckets, p->schedule, &config, &units};
    bp_status status = bp_live_units_init(p->buckets, p->schedule, (uint32_t)__builtin_ctz(p->roles), &units);
    if (status == BP_OK)
        status = bp_policy_max(&input, &layout);
    if (status == BP_OK)
        status = offsets_of_layout(p, &layout, found);
    *found = *found && layout.feasible;
    bp_live_units_finish(&units);
    free(layout.classes);
    free(layout.places);
    BP_TRY(status);
    if (!*found)
        return BP_OK;
    status = bp_packing_check(p->packing, p->known, UINT64_MAX);
    *found = status == BP_OK;
    return status == BP_ERR_MISMATCH ? BP_OK : status;
}

/* Starts from the roles' separate pools, stacked: a joint pool never takes more. */
static bp_status start_from_separate_pools(placing *p, bool *found)
{
    uint64_t base = 0;
    *found = true;
    for (uint32_t role = 0; role < BP_ROLE_COUNT && *found; role++) {
        if (!(p->roles & BP_ROLE_BIT(role)))
            continue;
        bp_scheduled_pool own;
        BP_TRY(bp_scheduled_pool_init(p->buckets, p->schedule, p->config, BP_ROLE_BIT(role), &own));
        for (size_t i = 0; i < own.count; i++)
            p->known[p->item_of[own.requests[i]]] = base + own.offsets[i];
        *found = bp_add_u64(base, own.result.bytes, &base);
        bp_scheduled_pool_finish(&own);
    }
    return BP_OK;
}

static bp_status pack(placing *p)
{
    size_t requests = p->buckets->request_count;
    BP_TRY(bp_new_array(requests, sizeof *p->pool->requests, (void **)&p->pool->requests));
    BP_TRY(bp_new_array(requests, sizeof *p->item_of, (void **)&p->item_of));
    BP_TRY(bp_packing_create(&p->packing));
    BP_TRY(scheduled_pool_add_items(p));
    BP_TRY(bp_new_array(p->pool->count, sizeof *p->pool->offsets, (void **)&p->pool->offsets));
    BP_TRY(bp_new_array(p->pool->count, sizeof *p->known, (void **)&p->known));
    bool known = false;
    bool joint = (p->roles & (p->roles - 1)) != 0;
    BP_TRY(joint ? start_from_separate_pools(p, &known) : start_from_max_pool(p, &known));
    bp_pack_config config;
    BP_TRY(bp_pack_config_init(&config, sizeof config));
    config.work = p->config->work;
    config.known = known ? p->known : NULL;
    BP_TRY(bp_pack(p->packing, &config, p->pool->offsets, &p->pool->result));
    uint64_t bound;
    uint32_t **witness = &p->pool->witness;
    BP_TRY(bp_new_array(p->pool->count, sizeof **witness, (void **)witness));
    BP_TRY(bp_packing_bound(p->packing, *witness, &p->pool->witness_count, &bound));
    for (size_t i = 0; i < p->pool->witness_count; i++)
        (*witness)[i] = p->pool->requests[(*witness)[i]];
    return BP_OK;
}

bp_status bp_scheduled_pool_init(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                 uint32_t roles, bp_scheduled_pool *pool)
{
    *pool = (bp_scheduled_pool){.result = {.size = sizeof pool->result}};
    placing p = {.buckets = buckets, .schedule = schedule, .config = config, .roles = roles, .pool = pool};
    bp_status status = pack(&p);
    bp_packing_destroy(&p.packing);
    free(p.item_of);
    free(p.known);
    if (status != BP_OK)
        bp_scheduled_pool_finish(pool);
    return status;
}

void bp_scheduled_pool_finish(bp_scheduled_pool *pool)
{
    free(pool->requests);
    free(pool->offsets);
    free(pool->witness);
    *pool = (bp_scheduled_pool){0};
}
