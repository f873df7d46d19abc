/* SPDX-License-Identifier: Apache-2.0 */
/* The order of a step, which is that of the schedule. Communicators of CPUs block the host, so compute gets its work before a collective that
 * is to run beside it. */
#include "trainer.h"
#include "try.h"

#define LEARNING_RATE 0.01f

/* Gathers and reductions follow what the step before left, and the step's own beginning. */
static bp_status begin(trainer *t)
{
    TRY(bp_event_record(t->start, t->compute));
    TRY(bp_stream_wait(t->gather, t->start));
    TRY(bp_stream_wait(t->reduce, t->start));
    return bp_stream_copy(t->compute, t->net.ids, t->staging.inputs, net_input_bytes(&t->net));
}

static bp_status forward(trainer *t)
{
    uint32_t units = t->model.units;
    weights outside = memory_weights(t, BP_OUTSIDE);
    TRY(gather_outside(t));
    TRY(acquire_params(t, 0));
    TRY(gather_params(t, 0));
    TRY(bp_stream_wait(t->compute, t->outside_gathered));
    TRY(net_embed(&t->net, &outside, t->compute));
    for (uint32_t u = 0; u < units; u++) {
        weights w = memory_weights(t, (int32_t)u);
        if (u + 1 < units)
            TRY(acquire_params(t, u + 1));
        TRY(bp_stream_wait(t->compute, t->gathered[u]));
        TRY(net_forward(&t->net, u, &w, t->compute));
        if (u + 1 < units)
            TRY(gather_params(t, u + 1));
        TRY(release_params(t, u));
    }
    return net_head(&t->net, &outside, t->compute);
}

static bp_status backward_unit(trainer *t, uint32_t unit)
{
    TRY(acquire_grads(t, unit));
    weights w = memory_weights(t, (int32_t)unit);
    TRY(bp_stream_wait(t->compute, t->gathered[unit]));
    TRY(net_backward(&t->net, unit, &w, t->compute));
    return bp_event_record(t->backward_done[unit], t->compute);
}

/* While a unit runs backward, the one before it is gathered and the gradients of the one behind it are reduced. */
static bp_status backward(trainer *t)
{
    uint32_t units = t->model.units;
    TRY(acquire_params(t, units - 1));
    TRY(gather_params(t, units - 1));
    for (uint32_t u = units; u-- > 0;) {
        if (u > 0)
            TRY(acquire_params(t, u - 1));
        TRY(backward_unit(t, u));
        if (u > 0)
            TRY(gather_params(t, u - 1));
        TRY(release_params(t, u));
        if (u + 1 < units)
            TRY(reduce_grads(t, u + 1));
    }
    return BP_OK;
}

static bp_status optimize(trainer *t)
{
    for (size_t i = 0; i < t->sharding.count; i++) {
        const bucket *b = &t->sharding.list[i];
        work w = {.items = b->shard,
                  .state = b->optimizer,
                  .dy = b->main_grad,
                  .a = t->net.corrections,
                  .out = b->state,
                  .stored = model_stored(b->info.dtype),
                  .scale = LEARNING_RATE};
        TRY(engine_run(&t->engine, OPERATION_adam, &w, t->compute));
    }
    return BP_OK;
}

bp_status step_enqueue(trainer *t)
{
    TRY(begin(t));
    TRY(forward(t));
    TRY(backward(t));
    weights outside = memory_weights(t, BP_OUTSIDE);
    TRY(net_embed_backward(&t->net, &outside, t->compute));
    TRY(bp_event_record(t->outside_ready, t->compute));
    TRY(reduce_grads(t, 0));
    TRY(reduce_outside(t));
    TRY(bp_event_record(t->reduced, t->reduce));
    TRY(bp_stream_wait(t->compute, t->reduced));
    TRY(optimize(t));
    return bp_stream_copy(t->compute, t->staging.losses, t->net.losses, t->net.tokens * sizeof(float));
}
