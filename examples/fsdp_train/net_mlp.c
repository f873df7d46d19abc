/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"
#include "try.h"

bp_status mlp_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    work k = {.items = n->tokens * n->model->inner[unit], .x = m->u, .out = m->a};
    TRY(net_product(n, (int32_t)unit, MLP_UP, w, (product){.x = m->y, .out = m->u}, stream));
    TRY(engine_run(n->engine, OPERATION_silu, &k, stream));
    return net_product(n, (int32_t)unit, MLP_DOWN, w,
                       (product){.x = m->a, .given = n->hidden[unit], .out = n->hidden[unit + 1]}, stream);
}

bp_status mlp_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    const scratch *s = &n->scratch;
    work k = {.items = n->tokens * n->model->inner[unit], .x = m->u, .dy = s->da, .out = s->da};
    product down = {.x = m->a, .dy = s->dx, .out = s->da};
    TRY(net_product_dw(n, (int32_t)unit, MLP_DOWN, w, down, stream));
    TRY(net_product_dx(n, (int32_t)unit, MLP_DOWN, w, down, stream));
    TRY(engine_run(n->engine, OPERATION_silu_dx, &k, stream));
    product up = {.x = m->y, .dy = s->da, .out = s->dy};
    TRY(net_product_dw(n, (int32_t)unit, MLP_UP, w, up, stream));
    return net_product_dx(n, (int32_t)unit, MLP_UP, w, up, stream);
}
