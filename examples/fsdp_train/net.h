/* SPDX-License-Identifier: Apache-2.0 */
/* The model's forward and backward on some tokens: operations put on a stream, with weights and gradients wherever
 * the caller has them. The sharded trainer and the unsharded one that it is compared with both use this, with
 * nothing else in common. */
#ifndef FSDP_TRAIN_NET_H
#define FSDP_TRAIN_NET_H

#include "engine.h"
#include "model.h"

/* Activations that a unit's forward saves for its backward. */
typedef struct unit_memory {
    float *scale, *y;         /* of the norm */
    float *qkv, *p, *mixed;   /* attention */
    float *logits, *gate, *z; /* experts */
    uint32_t *choice;
    float *u, *a; /* before and behind the activation */
} unit_memory;

/* Workspace of backward, of the size of the largest unit. */
typedef struct scratch {
    float *dx; /* of what goes from unit to unit */
    float *dy, *da, *db, *dz;
} scratch;

typedef struct net {
    const model *model;
    engine *engine;
    uint32_t tokens;
    /* inputs, in one piece: tokens, what follows them, and Adam's corrections of the step */
    uint32_t *ids, *targets;
    float *corrections;
    float *hidden[MAX_UNITS + 1]; /* what goes into each unit, and comes out of the last */
    unit_memory units[MAX_UNITS];
    float *last_scale, *last_y, *logits, *normaliser;
    float *losses; /* of the tokens */
    scratch scratch;
} net;

/* Current addresses of a unit's weights and gradients (or of those outside units). */
typedef struct weights {
    const void *at[UNIT_TENSORS];
    void *grad[UNIT_TENSORS];
} weights;

/* Divides memory at `base` for so many tokens; returns the bytes that takes. With base NULL only that. */
uint64_t net_lay_out(net *n, const model *m, engine *e, uint32_t tokens, void *base);
uint64_t net_input_bytes(const net *n);

bp_status net_embed(net *n, const weights *w, bp_stream *stream);
bp_status net_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
/* The loss of each token, and all of its gradients but the embedding's; scratch.dx is what the last unit gets. */
bp_status net_head(net *n, const weights *w, bp_stream *stream);
/* Turns scratch.dx from the gradient of the unit's output into that of its input. */
bp_status net_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status net_embed_backward(net *n, const weights *w, bp_stream *stream);

/* ---- of attention.c and the like ------------------------------------------------------------------------------------- */

/* A product with a tensor of a unit; `which` as in model.h. */
work net_work(const net *n, int32_t unit, uint32_t which, const weights *w);

bp_status attention_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status attention_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status mlp_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status mlp_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status experts_forward(net *n, uint32_t unit, const weights *w, bp_stream *stream);
bp_status experts_backward(net *n, uint32_t unit, const weights *w, bp_stream *stream);

/* y, dy, and the weight's gradient: of one product x times weight. `given`: added to the result, NULL: nothing.
 * `pick`: experts. */
typedef struct product {
    const float *x, *dy, *given;
    float *out;
    const uint32_t *pick;
} product;
bp_status net_product(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream);
bp_status net_product_dx(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream);
bp_status net_product_dw(net *n, int32_t unit, uint32_t which, const weights *w, product p, bp_stream *stream);

#endif
