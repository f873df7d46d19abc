/* SPDX-License-Identifier: Apache-2.0 */
/* The parts common to all units, and the parameters outside units. */
#include "net.h"

#include "try.h"

work net_work(const net *n, int32_t unit, uint32_t which, const weights *w)
{
    const tensor *t = &n->model->tensors[model_tensor(n->model, unit, which)];
    return (work){.weight = w->at[which],
                  .stored = model_stored(t->dtype),
                  .tokens = n->tokens,
                  .rows = t->dims > 1 ? (uint32_t)t->shape[0] : 1,
                  .columns = (uint32_t)t->shape[t->dims - 1],
                  .heads = HEADS,
                  .length = (uint32_t)n->model->options->length};
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

bp_status net_product(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream)
{
    work k = net_work(n, unit, which, w);
    k.items = (uint64_t)k.tokens * k.rows;
    k.x = p.x;
    k.a = p.given;
    k.pick = p.pick;
    k.out = p.out;
    return engine_run(n->engine, OPERATION_linear, &k, stream);
}

bp_status net_product_dx(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream)
{
    work k = net_work(n, unit, which, w);
    k.items = (uint64_t)k.tokens * k.columns;
    k.dy = p.dy;
    k.a = p.given;
    k.pick = p.pick;
    k.out = p.out;
    return engine_run(n->engine, OPERATION_linear_dx, &k, stream);
}

bp_status net_product_dw(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream)
{
    work k = net_work(n, unit, which, w);
    k.items = n->model->tensors[model_tensor(n->model, unit, which)].numel;
    k.x = p.x;
    k.dy = p.dy;
    k.pick = p.pick;
    k.out = w->grad[which];
    return engine_run(n->engine, OPERATION_linear_dw, &k, stream);
}

/* ---- norms ---------------------------------------------------------------------------------------------------------- */

typedef struct normed {
    const float *x;
    float *scale, *y;
} normed;

static bp_status norm_forward(net *n, int32_t unit, uint32_t which, const weights *w, normed m, bp_stream *stream)
{
    work k = net_work(n, unit, which, w);
    k.x = m.x;
    k.items = k.tokens;
    k.out = m.scale;
    TRY(engine_run(n->engine, OPERATION_norm_scale, &k, stream));
    k.items = (uint64_t)k.tokens * k.columns;
    k.a = m.scale;
    k.out = m.y;
    return engine_run(n->engine, OPERATION_norm, &k, stream);
}

/* From scratch.dy, the gradient behind the norm, and `past`, what goes past it, to scratch.dx. */
static bp_status norm_backward(net *n, int32_t unit, uint32_t which, const weights *w, normed m, const float *past,
                               bp_stream *stream)
{
    work k = net_work(n, unit, which, w);
    k.x = m.x;
    k.a = m.scale;
    k.dy = n->scratch.dy;
    k.items = k.columns;
    k.out = w->grad[which];
    TRY(engine_run(n->engine, OPERATION_norm_dw, &k, stream));
    k.items = (uint64_t)k.tokens * k.columns;
    k.b = past;
    k.out = n->scratch.dx;
    return engine_run(n->engine, OPERATION_norm_dx, &k, stream);
}

/* ---- units ---------------------------------------------------------------------------------------------------------- */

static normed norm_of(const net *n, uint32_t unit)
{
    return (normed){n->hidden[unit], n->units[unit].scale, n->units[unit].y};
}

bp_status net_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    TRY(norm_forward(n, (int32_t)unit, NORM, w, norm_of(n, unit), stream));
    switch (model_kind(n->model, unit)) {
    case 'a': return attention_forward(n, unit, w, stream);
    case 'm': return mlp_forward(n, unit, w, stream);
    default: return experts_forward(n, unit, w, stream);
    }
}

bp_status net_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream)
{
    switch (model_kind(n->model, unit)) {
    case 'a': TRY(attention_backward(n, unit, w, stream)); break;
    case 'm': TRY(mlp_backward(n, unit, w, stream)); break;
    default: TRY(experts_backward(n, unit, w, stream));
    }
    return norm_backward(n, (int32_t)unit, NORM, w, norm_of(n, unit), n->scratch.dx, stream);
}

/* ---- outside -------------------------------------------------------------------------------------------------------- */

bp_status net_embed(net *n, const weights *w, bp_stream *stream)
{
    work k = net_work(n, BP_OUTSIDE, EMBEDDING, w);
    k.items = (uint64_t)k.tokens * k.columns;
    k.pick = n->ids;
    k.out = n->hidden[0];
    return engine_run(n->engine, OPERATION_embed, &k, stream);
}

bp_status net_embed_backward(net *n, const weights *w, bp_stream *stream)
{
    work k = net_work(n, BP_OUTSIDE, EMBEDDING, w);
    k.items = (uint64_t)k.rows * k.columns;
    k.pick = n->ids;
    k.dy = n->scratch.dx;
    k.out = w->grad[EMBEDDING];
    return engine_run(n->engine, OPERATION_embed_dw, &k, stream);
}

/* The loss is the mean over the tokens of all ranks. */
static bp_status losses(net *n, bp_stream *stream)
{
    const options *o = n->model->options;
    work k = {.tokens = n->tokens, .columns = (uint32_t)o->vocab, .x = n->logits, .pick = n->targets};
    k.items = n->tokens;
    k.out = n->losses;
    TRY(engine_run(n->engine, OPERATION_loss, &k, stream));
    k.out = n->normaliser;
    TRY(engine_run(n->engine, OPERATION_normaliser, &k, stream));
    k.items = n->tokens * o->vocab;
    k.a = n->normaliser;
    k.scale = 1.0f / (float)(o->rows * o->length);
    k.out = n->scratch.da;
    return engine_run(n->engine, OPERATION_loss_dx, &k, stream);
}

bp_status net_head(net *n, const weights *w, bp_stream *stream)
{
    const normed last = {n->hidden[n->model->units], n->last_scale, n->last_y};
    product p = {.x = n->last_y, .dy = n->scratch.da};
    TRY(norm_forward(n, BP_OUTSIDE, LAST_NORM, w, last, stream));
    p.out = n->logits;
    TRY(net_product(n, BP_OUTSIDE, OUTPUT, w, p, stream));
    TRY(losses(n, stream));
    TRY(net_product_dw(n, BP_OUTSIDE, OUTPUT, w, p, stream));
    p.out = n->scratch.dy;
    TRY(net_product_dx(n, BP_OUTSIDE, OUTPUT, w, p, stream));
    return norm_backward(n, BP_OUTSIDE, LAST_NORM, w, last, NULL, stream);
}
