/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation of activations. */
#include "net.h"

#include <string.h>

#define ALIGNMENT 256

typedef struct divider {
    uint8_t *base;
    uint64_t used;
} divider;

static void *take(divider *d, uint64_t elements)
{
    uint64_t at = d->used;
    d->used += (elements * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; /* every element has 4 bytes */
    return d->base != NULL ? d->base + at : NULL;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void divide_unit(net *n, divider *d, uint32_t u)
{
    const options *o = n->model->options;
    uint64_t tokens = n->tokens, inner = n->model->inner[u];
    unit_memory *m = &n->units[u];
    m->scale = take(d, tokens);
    m->y = take(d, tokens * o->hidden);
    switch (model_kind(n->model, u)) {
    case 'a':
        m->qkv = take(d, tokens * 3 * o->hidden);
        m->p = take(d, tokens * HEADS * o->length);
        m->mixed = take(d, tokens * o->hidden);
        return;
    case 'e':
        m->logits = take(d, tokens * EXPERTS);
        m->gate = take(d, tokens);
        m->z = take(d, tokens * o->hidden);
        m->choice = take(d, tokens);
        break;
    default: break;
    }
    m->u = take(d, tokens * inner);
    m->a = take(d, tokens * inner);
}

uint64_t net_lay_out(net *n, const model *m, engine *e, uint32_t tokens, void *base)
{
    const options *o = m->options;
    divider d = {.base = base};
    uint64_t widest = 3 * o->hidden;
    *n = (net){.model = m, .engine = e, .tokens = tokens};
    n->ids = take(&d, 2 * (uint64_t)tokens + 2);
    n->targets = n->ids != NULL ? n->ids + tokens : NULL;
    n->corrections = n->ids != NULL ? (float *)(n->targets + tokens) : NULL;
    for (uint32_t u = 0; u <= m->units; u++)
        n->hidden[u] = take(&d, tokens * o->hidden);
    for (uint32_t u = 0; u < m->units; u++) {
        divide_unit(n, &d, u);
        widest = larger(widest, m->inner[u]);
    }
    n->last_scale = take(&d, tokens);
    n->last_y = take(&d, tokens * o->hidden);
    n->logits = take(&d, tokens * o->vocab);
    n->normaliser = take(&d, tokens);
    n->losses = take(&d, tokens);
    n->scratch = (scratch){.dx = take(&d, tokens * o->hidden),
                           .dy = take(&d, tokens * o->hidden),
                           .da = take(&d, tokens * larger(widest, o->vocab)),
                           .db = take(&d, tokens * larger(HEADS * o->length, EXPERTS)),
                           .dz = take(&d, tokens * o->hidden)};
    return d.used;
}

uint64_t net_input_bytes(const net *n)
{
    return (2 * (uint64_t)n->tokens + 2) * sizeof(uint32_t);
}
