/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities and their gradient on a GPU, for shapes of SkyRL's table and other vocabularies, and each dtype of logits and gradient.
 * The traffic per logit is known: two reads, and a write of the gradient. The baseline is a copy of the same bytes in the same turns. The
 * fused head is compared with its matrix products alone: same products, library and piece size. */
#include "gpu/gpu.h"

#include "bench/gemm.h"

#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>

#include <stdio.h>

#define PIECE 1024u       /* tokens per call or piece */
#define MIN_LOGIT 0x3f00u /* 1/2 */
#define MIN_STATE 0x3d00u /* 1/32 */

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
    uint64_t bytes;                 /* per logit */
    uint64_t piece;                 /* tokens per call */
    int with_entropy;
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
    line lines[LINES] = {{"copy", 0, 0, 0, moved, all, 0, l},
                         {"forward", 1, 0, 0, l->logit_bytes, all, 0, l},
                         {"forward and backward", 1, 1, 0, moved, all, 0, l},
                         {"backward", 0, 1, 0, moved - l->logit_bytes, all, 0, l},
                         {"both at once", 0, 0, 1, moved - l->logit_bytes, all, 0, l},
                         {"forward and backward, calls of 1024 tokens", 1, 1, 0, moved, PIECE, 0, l},
                         {"both at once, calls of 1024 tokens", 0, 0, 1, moved - l->logit_bytes, PIECE, 0, l},
                         {"forward and backward, with entropy", 1, 1, 0, moved, all, 1, l},
                         {"both at once, with entropy", 0, 0, 1, moved - l->logit_bytes, all, 1, l}};
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

/* Most important shapes first, in all variants. */
void gpu_logprob(const gpu *g)
{
    static const struct {
        uint64_t sequence, vocab;
        size_t variants;
    } shapes[] = {{65536, 128000, VARIANTS}, {32768, 151936, VARIANTS}, {32768, 50257, VARIANTS}, {32768, 32000, 1},
                  {32768, 64000, 1},         {32768, 128000, 1},        {65536, 32000, 1},        {65536, 64000, 1},
                  {131072, 32000, 1},        {131072, 64000, 1},        {131072, 128000, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t v = 0; v < shapes[s].variants; v++)
            shape(g, &variants[v], gpu_divided(g, shapes[s].sequence), gpu_divided(g, shapes[s].vocab));
}

/* ---- the fused head ---------------------------------------------------------------------------------------------- */

#define CUBLAS_BYTES (32u << 20)

typedef struct head_bench {
    bp_stream *stream;
    bp_lm_head *head;
    bp_lm_head_batch batch;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
    bench_products products;
    char *hidden, *weight, *hidden_grad, *weight_grad, *target, *logprob, *upstream, *saved, *logits, *scratch;
} head_bench;

/* bf16 gradients of logits are in place of the logits, so their stride is doubled. */
static void make_calls(head_bench *h, uint64_t tokens, uint64_t size, uint64_t vocab, uint64_t piece)
{
    must(bp_lm_head_batch_init(&h->batch, sizeof h->batch));
    must(bp_logprob_outputs_init(&h->outputs, sizeof h->outputs));
    must(bp_lm_head_gradients_init(&h->gradients, sizeof h->gradients));
    h->batch.hidden =
        (bp_token_rows){.data = h->hidden, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = tokens, .columns = size};
    h->batch.weight = h->weight;
    h->batch.tokens.target = (bp_token_values){h->target, 0, 1};
    h->outputs.logprob = (bp_token_values){h->logprob, 0, 1};
    h->outputs.saved = h->saved;
    h->gradients.saved = h->saved;
    h->outputs.saved_bytes = h->gradients.saved_bytes = 8 * tokens;
    h->gradients.logprob_grad = (bp_token_values){h->upstream, 0, 1};
    h->gradients.hidden_grad = h->batch.hidden;
    h->gradients.hidden_grad.data = h->hidden_grad;
    h->gradients.weight_grad = h->weight_grad;
    h->products = (bench_products){.tokens = tokens,
                                   .hidden_size = size,
                                   .vocab = vocab,
                                   .piece = piece,
                                   .hidden = {h->hidden, BP_DTYPE_BF16, (int)size},
                                   .hidden_grad = {h->hidden_grad, BP_DTYPE_BF16, (int)size},
                                   .weight = {h->weight, BP_DTYPE_BF16, (int)size},
                                   .weight_grad = {h->weight_grad, BP_DTYPE_FP32, (int)size},
                                   .logits = {h->logits, BP_DTYPE_FP32, (int)vocab},
                                   .logits_grad = {h->logits, BP_DTYPE_BF16, 2 * (int)vocab}};
}

static void run_head(void *user)
{
    const head_bench *h = user;
    must(bp_lm_head_forward(h->head, &h->batch, &h->outputs, h->stream));
    must(bp_lm_head_backward(h->head, &h->batch, &h->gradients, h->stream));
}

static void run_products(void *user)
{
    const head_bench *h = user;
    must(bench_products_forward(&h->products));
    must(bench_products_backward(&h->products));
}

static void measure_head(head_bench *h)
{
    run_head(h);
    run_products(h);
    must(bp_stream_synchronize(h->stream));
    bench_turns(11);
    (void)bench_add_once("matrix products alone, pieces of 1024 tokens", run_products, h, h->stream, 1);
    (void)bench_add_once("forward and backward, pieces of 1024 tokens", run_head, h, h->stream, 1);
    bench_end();
}

void gpu_head(const gpu *g)
{
    const uint64_t tokens = gpu_divided(g, 8192), size = gpu_divided(g, 4096), vocab = gpu_divided(g, 128000);
    const uint64_t piece = gpu_divided(g, PIECE);
    char group[40];
    head_bench h = {.head = NULL};
    const gpu_part parts[] = {
        {&h.hidden, 2 * tokens * size},     {&h.weight, 2 * vocab * size}, {&h.hidden_grad, 2 * tokens * size},
        {&h.weight_grad, 4 * vocab * size}, {&h.target, 8 * tokens},       {&h.logprob, 4 * tokens},
        {&h.upstream, 4 * tokens},          {&h.saved, 8 * tokens},        {&h.logits, 4 * piece * vocab},
        {&h.scratch, CUBLAS_BYTES}};
    const size_t count = sizeof parts / sizeof *parts;
    snprintf(group, sizeof group, "gpu: fused head %llu x %llu x %llu", (unsigned long long)tokens,
             (unsigned long long)size, (unsigned long long)vocab);
    if (!bench_begin(group) || !gpu_has_room(g, gpu_parts_bytes(parts, count) + 2 * 4 * piece * vocab))
        return;
    bench_device device = {.device = gpu_device(g), .cuda = true};
    must(bp_stream_create(device.device, "head", &device.stream));
    h.stream = device.stream;
    bp_lm_head_config config;
    must(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = tokens;
    config.hidden = size;
    config.vocab = vocab;
    config.chunk = (int64_t)piece;
    if (bp_lm_head_create(device.device, &config, &h.head) == BP_OK) {
        const uint64_t memory = gpu_place(g, parts, count);
        gpu_fill(h.stream, h.hidden, 2 * tokens * size, MIN_STATE);
        gpu_fill(h.stream, h.weight, 2 * vocab * size, MIN_STATE);
        gpu_fill_tokens(h.stream, tokens, vocab, 1, h.target, h.upstream);
        make_calls(&h, tokens, size, vocab, piece);
        must(bench_gemm_create_cublas(&device, h.scratch, CUBLAS_BYTES, &h.products.gemm));
        measure_head(&h);
        bench_gemm_destroy(&h.products.gemm);
        gpu_free(g, memory);
    } else {
        bench_skip("%s", bp_error_detail());
    }
    bp_lm_head_destroy(&h.head);
    bp_stream_destroy(&device.stream);
    bp_device_destroy(&device.device);
}
