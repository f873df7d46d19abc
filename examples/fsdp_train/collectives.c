/* SPDX-License-Identifier: Apache-2.0 */
/* All-gathers of parameters and reduce-scatters of gradients, on separate streams. */
#include "trainer.h"
#include "try.h"

static size_t ids_of(bucket *const *buckets, size_t count, bp_role role, uint32_t *ids)
{
    for (size_t i = 0; i < count; i++)
        ids[i] = buckets[i]->ids[role];
    return count;
}

/* ---- parameters ----------------------------------------------------------------------------------------------------- */

bp_status acquire_params(trainer *t, uint32_t unit)
{
    bucket *buckets[UNIT_TENSORS];
    uint32_t ids[UNIT_TENSORS];
    void *addresses[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, (int32_t)unit, buckets);
    TRY(bp_pool_acquire(t->pool, ids, ids_of(buckets, count, BP_ROLE_PARAM, ids), t->gather, addresses));
    for (size_t i = 0; i < count; i++) {
        buckets[i]->param = addresses[i];
        memory_count_held(t, buckets[i], BP_ROLE_PARAM);
    }
    return BP_OK;
}

static bp_status gather(trainer *t, bucket *const *buckets, size_t count, bp_event *gathered)
{
    for (size_t i = 0; i < count; i++) {
        TRY(engine_dawdle(&t->engine, t->gather));
        TRY(bp_comm_all_gather(t->comm, buckets[i]->state, buckets[i]->param, buckets[i]->bytes[BP_ROLE_STATE],
                               t->gather));
    }
    return bp_event_record(gathered, t->gather);
}

bp_status gather_params(trainer *t, uint32_t unit)
{
    bucket *buckets[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, (int32_t)unit, buckets);
    return gather(t, buckets, count, t->gathered[unit]);
}

bp_status gather_outside(trainer *t)
{
    bucket *buckets[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, BP_OUTSIDE, buckets);
    return gather(t, buckets, count, t->outside_gathered);
}

bp_status release_params(trainer *t, uint32_t unit)
{
    bucket *buckets[UNIT_TENSORS];
    uint32_t ids[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, (int32_t)unit, buckets);
    for (size_t i = 0; i < count; i++)
        memory_count_released(t, buckets[i], BP_ROLE_PARAM);
    return bp_pool_release(t->pool, ids, ids_of(buckets, count, BP_ROLE_PARAM, ids), t->compute);
}

/* ---- gradients ------------------------------------------------------------------------------------------------------ */

/* Padding is reduced too, so it must be zero. */
static bp_status clear_padding(trainer *t, const bucket *b)
{
    uint64_t used = b->info.numel * b->element_bytes, bytes = b->bytes[BP_ROLE_GRAD];
    return used < bytes ? bp_stream_fill(t->compute, (uint8_t *)b->grad + used, 0, bytes - used) : BP_OK;
}

bp_status acquire_grads(trainer *t, uint32_t unit)
{
    bucket *buckets[UNIT_TENSORS];
    uint32_t ids[UNIT_TENSORS];
    void *addresses[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, (int32_t)unit, buckets);
    TRY(bp_pool_acquire(t->pool, ids, ids_of(buckets, count, BP_ROLE_GRAD, ids), t->compute, addresses));
    for (size_t i = 0; i < count; i++) {
        buckets[i]->grad = addresses[i];
        memory_count_held(t, buckets[i], BP_ROLE_GRAD);
        TRY(clear_padding(t, buckets[i]));
    }
    return BP_OK;
}

/* In place: this rank's piece of the bucket gets the sum, and goes to the shard in fp32. */
static bp_status reduce(trainer *t, bucket *const *buckets, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bucket *b = buckets[i];
        uint8_t *piece = (uint8_t *)b->grad + t->sharding.rank * b->shard * b->element_bytes;
        work w = {.items = b->shard, .weight = piece, .stored = model_stored(b->info.dtype), .out = b->main_grad};
        TRY(engine_dawdle(&t->engine, t->reduce));
        TRY(bp_comm_reduce_scatter(t->comm, b->grad, piece, b->shard, b->info.dtype, BP_REDUCE_SUM, t->reduce));
        TRY(engine_run(&t->engine, OPERATION_widen, &w, t->reduce));
    }
    return BP_OK;
}

bp_status reduce_grads(trainer *t, uint32_t unit)
{
    bucket *buckets[UNIT_TENSORS];
    uint32_t ids[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, (int32_t)unit, buckets);
    TRY(bp_stream_wait(t->reduce, t->backward_done[unit]));
    TRY(reduce(t, buckets, count));
    for (size_t i = 0; i < count; i++)
        memory_count_released(t, buckets[i], BP_ROLE_GRAD);
    return bp_pool_release(t->pool, ids, ids_of(buckets, count, BP_ROLE_GRAD, ids), t->reduce);
}

bp_status reduce_outside(trainer *t)
{
    bucket *buckets[UNIT_TENSORS];
    size_t count = sharding_unit(&t->sharding, BP_OUTSIDE, buckets);
    TRY(bp_stream_wait(t->reduce, t->outside_ready));
    return reduce(t, buckets, count);
}
