/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"
#include "try.h"

static work routing_work(const net *n, uint32_t unit)
{
    const unit_memory *m = &n->units[unit];
    return (work){.tokens = n->tokens,
                  .rows = EXPERTS,
                  .columns = (uint32_t)n->model->options->hidden,
                  .x = m->logits,
                  .pick = m->choice};
}

static bp_status choose_experts(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    work k = routing_work(n, unit);
    TRY(net_product(n, (int32_t)unit, ROUTER, w, (product){.x = m->y, .out = m->logits}, stream));
    k.items = n->tokens;
    k.out = m->choice;
    TRY(engine_run(n->engine, OPERATION_choose, &k, stream));
    k.out = m->gate;
    return engine_run(n->engine, OPERATION_route, &k, stream);
}

bp_status experts_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    work silu = {.items = n->tokens * n->model->inner[unit], .x = m->u, .out = m->a};
    work sum = routing_work(n, unit);
    TRY(choose_experts(n, unit, w, stream));
    TRY(net_product(n, (int32_t)unit, EXPERTS_UP, w, (product){.x = m->y, .pick = m->choice, .out = m->u}, stream));
    TRY(engine_run(n->engine, OPERATION_silu, &silu, stream));
    TRY(net_product(n, (int32_t)unit, EXPERTS_DOWN, w, (product){.x = m->a, .pick = m->choice, .out = m->z}, stream));
    sum.items = (uint64_t)sum.tokens * sum.columns;
    sum.x = m->z;
    sum.a = n->hidden[unit];
    sum.b = m->gate;
    sum.out = n->hidden[unit + 1];
    return engine_run(n->engine, OPERATION_gated, &sum, stream);
}

/* From scratch.dx to db, the gradient of the logits, and dz, that of what the experts gave. */
static bp_status routing_backward(net *n, uint32_t unit, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    const scratch *s = &n->scratch;
    work k = routing_work(n, unit);
    k.items = (uint64_t)k.tokens * EXPERTS;
    k.dy = s->dx;
    k.a = m->z;
    k.out = s->db;
    TRY(engine_run(n->engine, OPERATION_route_dx, &k, stream));
    work gated = routing_work(n, unit);
    gated.items = (uint64_t)k.tokens * k.columns;
    gated.x = s->dx;
    gated.b = m->gate;
    gated.out = s->dz;
    return engine_run(n->engine, OPERATION_gated, &gated, stream);
}

bp_status experts_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    const unit_memory *m = &n->units[unit];
    const scratch *s = &n->scratch;
    int32_t u = (int32_t)unit;
    work silu = {.items = n->tokens * n->model->inner[unit], .x = m->u, .dy = s->da, .out = s->da};
    TRY(routing_backward(n, unit, stream));
    product down = {.x = m->a, .dy = s->dz, .pick = m->choice, .out = s->da};
    TRY(net_product_dw(n, u, EXPERTS_DOWN, w, down, stream));
    TRY(net_product_dx(n, u, EXPERTS_DOWN, w, down, stream));
    TRY(engine_run(n->engine, OPERATION_silu_dx, &silu, stream));
    product up = {.x = m->y, .dy = s->da, .pick = m->choice, .out = s->dy};
    TRY(net_product_dw(n, u, EXPERTS_UP, w, up, stream));
    TRY(net_product_dx(n, u, EXPERTS_UP, w, up, stream));
    product router = {.x = m->y, .dy = s->db, .given = s->dy, .out = s->dy};
    TRY(net_product_dw(n, u, ROUTER, w, router, stream));
    return net_product_dx(n, u, ROUTER, w, router, stream);
}
