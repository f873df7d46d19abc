/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"
#include "try.h"

#include <math.h>

/* Common arguments of its operations: queries, keys, values and their scale. */
static work attention_work(const net *n, uint32_t unit)
{
    const options *o = n->model->options;
    uint64_t size = o->hidden / HEADS;
    return (work){.tokens = n->tokens,
                  .columns = (uint32_t)o->hidden,
                  .heads = HEADS,
                  .length = (uint32_t)o->length,
                  .scale = 1.0f / sqrtf((float)size),
                  .x = n->units[unit].qkv};
}

bp_status attention_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    work k = attention_work(n, unit);
    TRY(net_product(n, (int32_t)unit, QKV, w, (product){.x = m->y, .out = m->qkv}, stream));
    k.items = (uint64_t)k.tokens * HEADS;
    k.out = m->p;
    TRY(engine_run(n->engine, OPERATION_scores, &k, stream));
    k.items = (uint64_t)k.tokens * k.columns;
    k.a = m->p;
    k.out = m->mixed;
    TRY(engine_run(n->engine, OPERATION_mix, &k, stream));
    return net_product(n, (int32_t)unit, ATTENTION_OUT, w,
                       (product){.x = m->mixed, .given = n->hidden[unit], .out = n->hidden[unit + 1]}, stream);
}

bp_status attention_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    const scratch *s = &n->scratch;
    work k = attention_work(n, unit);
    product out = {.x = m->mixed, .dy = s->dx, .out = s->dz};
    TRY(net_product_dw(n, (int32_t)unit, ATTENTION_OUT, w, out, stream));
    TRY(net_product_dx(n, (int32_t)unit, ATTENTION_OUT, w, out, stream));
    k.a = m->p;
    k.dy = s->dz;
    k.items = (uint64_t)k.tokens * HEADS;
    k.out = s->db;
    TRY(engine_run(n->engine, OPERATION_scores_dx, &k, stream));
    k.b = s->db;
    k.items = (uint64_t)k.tokens * 3 * k.columns;
    k.out = s->da;
    TRY(engine_run(n->engine, OPERATION_attention_dx, &k, stream));
    product in = {.x = m->y, .dy = s->da, .out = s->dy};
    TRY(net_product_dw(n, (int32_t)unit, QKV, w, in, stream));
    return net_product_dx(n, (int32_t)unit, QKV, w, in, stream);
}
