/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities and their gradient on a GPU, for shapes of SkyRL's table and other vocabularies, and each dtype of logits and gradient.
 * The traffic per logit is known: two reads, and a write of the gradient. The baseline is a copy of the same bytes in the same turns. */
#include "gpu/gpu.h"

#include <bucketpool/logprob.h>

#include <stdio.h>

#define PIECE 1024u       /* tokens per call or piece */
#define MIN_LOGIT 0x3f00u /* 1/2 */

/* ---- stored logits ----------------------------------------------------------------------------------------------- */

/* Dtypes of logits and gradient, and the gradient's memory. */
typedef struct variant {
    const char *name; /* of the gradient */
    bp_dtype logits, grad;
    int in_place;
} variant;

static const variant variants[] = {{"gradient fp32", BP_DTYPE_BF16, BP_DTYPE_FP32, 0},
                                   {"gradient bf16", BP_DTYPE_BF16, BP_DTYPE_BF16, 0},
                                   {"gradient bf16 in place", BP_DTYPE_BF16, BP_DTYPE_BF16, 1},
                                   {"gradient fp32", BP_DTYPE_FP32, BP_DTYPE_FP32, 0}};
#define VARIANTS (sizeof variants / sizeof *variants)

typedef struct logits {
    const variant *variant;
    uint64_t sequence, vocab, count;  /* count: number of logits */
    uint64_t logit_bytes, grad_bytes; /* per element */
    bp_stream *stream;
    bp_logprob *client;
    char *x, *grad, *target, *logprob, *entropy, *upstream, *saved;
    int with_entropy;
} logits;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bp_logprob_batch batch_of(const logits *l, uint64_t first, uint64_t count)
{
    bp_logprob_batch batch;
    must(bp_logprob_batch_init(&batch, sizeof batch));
    batch.logits = (bp_token_rows){.data = l->x + l->logit_bytes * first * l->vocab,
                                   .dtype = l->variant->logits,
                                   .batch = 1,
                                   .sequence = count,
                                   .columns = l->vocab};
    batch.tokens.target = (bp_token_values){l->target + 8 * first, 0, 1};
    return batch;
}

static bp_logprob_outputs outputs_of(const logits *l, uint64_t first, uint64_t count)
{
    bp_logprob_outputs outputs;
    must(bp_logprob_outputs_init(&outputs, sizeof outputs));
    outputs.logprob = (bp_token_values){l->logprob + 4 * first, 0, 1};
    if (l->with_entropy)
        outputs.entropy = (bp_token_values){l->entropy + 4 * first, 0, 1};
    outputs.saved = l->saved + 12 * first;
    outputs.saved_bytes = 12 * count;
    return outputs;
}

static bp_logprob_gradients gradients_of(const logits *l, const bp_logprob_batch *batch, uint64_t first, uint64_t count)
{
    bp_logprob_gradients gradients;
    must(bp_logprob_gradients_init(&gradients, sizeof gradients));
    gradients.logprob_grad = (bp_token_values){l->upstream + 4 * first, 0, 1};
    if (l->with_entropy)
        gradients.entropy_grad = gradients.logprob_grad;
    gradients.saved = l->saved + 12 * first;
    gradients.saved_bytes = 12 * count;
    gradients.logits_grad = batch->logits;
    gradients.logits_grad.dtype = l->variant->grad;
    gradients.logits_grad.data = l->grad + l->grad_bytes * first * l->vocab;
    gradients.in_place = l->variant->in_place;
    return gradients;
}

static void forward(const logits *l, uint64_t first, uint64_t count)
{
    const bp_logprob_batch batch = batch_of(l, first, count);
    const bp_logprob_outputs outputs = outputs_of(l, first, count);
    must(bp_logprob_forward(l->client, &batch, &outputs, l->stream));
}

static void backward(const logits *l, uint64_t first, uint64_t count)
{
    const bp_logprob_batch batch = batch_of(l, first, count);
    const bp_logprob_gradients gradients = gradients_of(l, &batch, first, count);
    must(bp_logprob_backward(l->client, &batch, &gradients, l->stream));
}

/* Both passes in one call, which reads the logits once. */
static void forward_backward(const logits *l, uint64_t first, uint64_t count)
{
    const bp_logprob_batch batch = batch_of(l, first, count);
    const bp_logprob_outputs outputs = outputs_of(l, first, count);
    const bp_logprob_gradients gradients = gradients_of(l, &batch, first, count);
    must(bp_logprob_forward_backward(l->client, &batch, &outputs, &gradients, l->stream));
}

/* Bytes of both passes: the logits twice and the gradient. */
static uint64_t bytes_of_both(const logits *l)
{
    return 2 * l->logit_bytes + l->grad_bytes;
}

/* Copies the same bytes between the halves of the gradient's memory: a gradient element has 2 or 4 bytes, so copying a half moves that many
 * per logit. The last copy is the remainder. In place, logits remain logits. */
static void copy(const logits *l)
{
    uint64_t half = l->grad_bytes * l->count / 2, left = bytes_of_both(l) * l->count / 2;
    for (unsigned i = 0; left > 0; i++) {
        uint64_t bytes = left < half ? left : half;
        char *low = l->grad, *high = l->grad + half;
        must(bp_stream_copy(l->stream, i % 2 == 0 ? high : low, i % 2 == 0 ? low : high, bytes));
        left -= bytes;
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct line {
    const char *name;
    int forward, backward, at_once; /* all 0: a copy */
    int with_entropy;
    uint64_t bytes; /* per logit */
    uint64_t piece; /* tokens per call */
    logits *logits;
} line;

static double run_line(void *user, size_t pairs)
{
    const line *n = user;
    logits *l = n->logits;
    l->with_entropy = n->with_entropy;
    if (l->variant->in_place)
        gpu_fill(l->stream, l->x, l->logit_bytes * l->count, MIN_LOGIT); /* the previous window left gradients there */
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++) {
        if (!n->forward && !n->backward && !n->at_once)
            copy(l);
        for (uint64_t first = 0; first < l->sequence; first += n->piece) {
            const uint64_t count = l->sequence - first < n->piece ? l->sequence - first : n->piece;
            if (n->forward)
                forward(l, first, count);
            if (n->backward)
                backward(l, first, count);
            if (n->at_once)
                forward_backward(l, first, count);
        }
    }
    must(bp_stream_synchronize(l->stream));
    return bench_now_ns() - begin;
}

#define LINES 9

/* Backward needs the statistics of a forward pass; turns are in random order, so a forward pass runs once before. In place, further pairs
 * of a window read gradients as logits, and backward alone has statistics of other logits: finite numbers, the same traffic. */
static void measure(logits *l)
{
    const uint64_t moved = bytes_of_both(l), all = l->sequence;
    const int small = l->count < 1u << 20;                                  /* with --divide */
    const size_t pairs = small ? 1 : 1 + (size_t)((4ull << 30) / l->count); /* tens of milliseconds */
    char names[LINES][72];
    line lines[LINES] = {{"copy", 0, 0, 0, 0, moved, all, l},
                         {"forward", 1, 0, 0, 0, l->logit_bytes, all, l},
                         {"forward and backward", 1, 1, 0, 0, moved, all, l},
                         {"backward", 0, 1, 0, 0, moved - l->logit_bytes, all, l},
                         {"both at once", 0, 0, 1, 0, moved - l->logit_bytes, all, l},
                         {"forward and backward, calls of 1024 tokens", 1, 1, 0, 0, moved, PIECE, l},
                         {"both at once, calls of 1024 tokens", 0, 0, 1, 0, moved - l->logit_bytes, PIECE, l},
                         {"forward and backward, with entropy", 1, 1, 0, 1, moved, all, l},
                         {"both at once, with entropy", 0, 0, 1, 1, moved - l->logit_bytes, all, l}};
    (void)run_line(&lines[LINES - 2], 1);
    bench_turns(small ? 3 : 11);
    for (size_t i = 0; i < LINES; i++) {
        snprintf(names[i], sizeof names[i], "%s, %s", lines[i].name, l->variant->name);
        if (i == 0)
            snprintf(names[i], sizeof names[i], "copy, %u bytes per logit", (unsigned)moved);
        bench_moves(bench_add_run(i == 1 ? lines[i].name : names[i], run_line, &lines[i], pairs),
                    lines[i].bytes * l->count, l->count);
    }
    bench_end();
}

static void shape(const gpu *g, const variant *v, uint64_t sequence, uint64_t vocab)
{
    char group[72];
    logits l = {.variant = v,
                .sequence = sequence,
                .vocab = vocab,
                .count = sequence * vocab,
                .logit_bytes = v->logits == BP_DTYPE_FP32 ? 4 : 2,
                .grad_bytes = v->grad == BP_DTYPE_FP32 ? 4 : 2};
    const gpu_part parts[] = {{&l.x, l.logit_bytes * l.count}, {&l.grad, v->in_place ? 0 : l.grad_bytes * l.count},
                              {&l.target, 8 * sequence},       {&l.logprob, 4 * sequence},
                              {&l.entropy, 4 * sequence},      {&l.upstream, 4 * sequence},
                              {&l.saved, 12 * sequence}};
    const size_t count = sizeof parts / sizeof *parts;
    snprintf(group, sizeof group, "gpu: logprob %llu x %llu %s, %s", (unsigned long long)sequence,
             (unsigned long long)vocab, v->logits == BP_DTYPE_FP32 ? "fp32" : "bf16", v->name);
    if (!bench_begin(group) || !gpu_has_room(g, gpu_parts_bytes(parts, count) + 64 * sequence + (64u << 20)))
        return;
    bp_device *device = gpu_device(g);
    bp_logprob_config config;
    must(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = sequence;
    config.vocab = vocab;
    if (bp_logprob_create(device, &config, &l.client) == BP_OK) {
        must(bp_stream_create(device, "logprob", &l.stream));
        const uint64_t memory = gpu_place(g, parts, count);
        if (v->in_place)
            l.grad = l.x;
        gpu_fill(l.stream, l.x, l.logit_bytes * l.count, MIN_LOGIT);
        gpu_fill_tokens(l.stream, sequence, vocab, 1 / (float)sequence, l.target, l.upstream);
        measure(&l);
        gpu_free(g, memory);
        bp_logprob_destroy(&l.client);
        bp_stream_destroy(&l.stream);
    } else {
        bench_skip("%s", bp_error_detail());
    }
    bp_device_destroy(&device);
}

/* Changed and most important shapes first, in all variants. */
void gpu_logprob(const gpu *g)
{
    static const struct {
        uint64_t sequence, vocab;
        size_t variants;
    } shapes[] = {{32768, 50257, VARIANTS}, {65536, 128000, VARIANTS}, {32768, 151936, VARIANTS}, {32768, 32000, 1},
                  {32768, 64000, 1},        {32768, 128000, 1},        {65536, 32000, 1},         {65536, 64000, 1},
                  {131072, 32000, 1},       {131072, 64000, 1},        {131072, 128000, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t v = 0; v < shapes[s].variants; v++)
            shape(g, &variants[v], gpu_divided(g, shapes[s].sequence), gpu_divided(g, shapes[s].vocab));
}
