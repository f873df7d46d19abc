/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head on a GPU, in each way from hidden states to gradients, against its three matrix products alone: of all tokens at once, by the
 * same library, with the gradient of the weight written once. */
#include "gpu/gpu.h"

#include "bench/gemm.h"

#include <bucketpool/lm_head.h>

#include <stdio.h>

#define CUBLAS_BYTES (32u << 20)
#define MIN_STATE 0x3d00u /* 1/32 */
#define PIECE 1024u       /* tokens, where a line names pieces */

/* The calls of a line, its pieces, and the dtype of weight_grad. */
typedef struct way {
    const char *name;
    int64_t chunk; /* 0: as memory_bytes, of a GiB, allows */
    uint32_t passes;
    bp_dtype weights; /* dtype of weight_grad */
} way;

static const way ways[] = {
    {"one call", 0, BP_LM_HEAD_ONE_CALL, BP_DTYPE_FP32},
    {"one call, pieces of 1024 tokens in two workspaces", PIECE, BP_LM_HEAD_ONE_CALL, BP_DTYPE_FP32},
    {"kept logits", 0, BP_LM_HEAD_KEPT, BP_DTYPE_FP32},
    {"kept logits, bf16 weight gradient", 0, BP_LM_HEAD_KEPT, BP_DTYPE_BF16},
    {"two calls", 0, BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD, BP_DTYPE_FP32},
    {"two calls, pieces of 1024 tokens", PIECE, BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD, BP_DTYPE_FP32}};
#define WAYS (sizeof ways / sizeof *ways)

/* Tensors of all lines: each overwrites the gradients of the one before. */
typedef struct tensors {
    uint64_t tokens, size, vocab;
    bp_stream *stream;
    bench_products products;
    char *hidden, *weight, *hidden_grad, *weight_grad, *target, *logprob, *upstream, *saved, *logits, *scratch;
} tensors;

typedef struct line {
    const way *way;
    bp_lm_head *head;
    bp_lm_head_batch batch;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
    bp_stream *stream;
} line;

static bp_lm_head_config config_of(const gpu *g, const way *w, uint64_t tokens, uint64_t size, uint64_t vocab)
{
    bp_lm_head_config config;
    must(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = tokens;
    config.hidden = size;
    config.vocab = vocab;
    config.chunk = w->chunk == 0 ? 0 : (int64_t)gpu_divided(g, (uint64_t)w->chunk);
    config.passes = w->passes;
    return config;
}

static void make_line(const tensors *t, const way *w, line *l)
{
    l->way = w;
    l->stream = t->stream;
    must(bp_lm_head_batch_init(&l->batch, sizeof l->batch));
    must(bp_logprob_outputs_init(&l->outputs, sizeof l->outputs));
    must(bp_lm_head_gradients_init(&l->gradients, sizeof l->gradients));
    l->batch.hidden = (bp_token_rows){
        .data = t->hidden, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = t->tokens, .columns = t->size};
    l->batch.weight = t->weight;
    l->batch.tokens.target = (bp_token_values){t->target, 0, 1};
    if (w->passes == BP_LM_HEAD_KEPT)
        l->batch.logits = (float *)(void *)t->logits;
    l->outputs.logprob = (bp_token_values){t->logprob, 0, 1};
    l->outputs.saved = t->saved;
    l->gradients.saved = t->saved;
    l->outputs.saved_bytes = l->gradients.saved_bytes = 8 * t->tokens;
    l->gradients.logprob_grad = (bp_token_values){t->upstream, 0, 1};
    l->gradients.hidden_grad = l->batch.hidden;
    l->gradients.hidden_grad.data = t->hidden_grad;
    l->gradients.weight_grad = t->weight_grad;
    l->gradients.weight_grad_dtype = w->weights;
}

static void run_line(void *user)
{
    const line *l = user;
    if (l->way->passes == BP_LM_HEAD_ONE_CALL) {
        must(bp_lm_head_forward_backward(l->head, &l->batch, &l->outputs, &l->gradients, l->stream));
        return;
    }
    must(bp_lm_head_forward(l->head, &l->batch, &l->outputs, l->stream));
    must(bp_lm_head_backward(l->head, &l->batch, &l->gradients, l->stream));
}

/* Logits and both gradients. bf16 gradients of logits are in place of the logits, so their stride is doubled. */
static void make_products(tensors *t)
{
    t->products = (bench_products){.gemm = t->products.gemm,
                                   .tokens = t->tokens,
                                   .hidden_size = t->size,
                                   .vocab = t->vocab,
                                   .piece = t->tokens,
                                   .hidden = {t->hidden, BP_DTYPE_BF16, (int)t->size},
                                   .hidden_grad = {t->hidden_grad, BP_DTYPE_BF16, (int)t->size},
                                   .weight = {t->weight, BP_DTYPE_BF16, (int)t->size},
                                   .weight_grad = {t->weight_grad, BP_DTYPE_FP32, (int)t->size},
                                   .logits = {t->logits, BP_DTYPE_FP32, (int)t->vocab},
                                   .logits_grad = {t->logits, BP_DTYPE_BF16, 2 * (int)t->vocab}};
}

static void run_products(void *user)
{
    const tensors *t = user;
    must(bench_products_backward(&t->products));
}

static void measure(const gpu *g, bp_device *device, tensors *t)
{
    line lines[WAYS] = {{NULL}};
    run_products(t);
    bench_turns(11);
    (void)bench_add_once("three matrix products alone", run_products, t, t->stream, 1);
    for (size_t i = 0; i < WAYS; i++) {
        const bp_lm_head_config config = config_of(g, &ways[i], t->tokens, t->size, t->vocab);
        must(bp_lm_head_create(device, &config, &lines[i].head));
        make_line(t, &ways[i], &lines[i]);
        run_line(&lines[i]);
        must(bp_stream_synchronize(t->stream));
        (void)bench_add_once(ways[i].name, run_line, &lines[i], t->stream, 1);
    }
    bench_end();
    for (size_t i = 0; i < WAYS; i++)
        bp_lm_head_destroy(&lines[i].head);
}

static uint64_t workspaces(const gpu *g, const tensors *t)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < WAYS; i++) {
        const bp_lm_head_config config = config_of(g, &ways[i], t->tokens, t->size, t->vocab);
        bp_lm_head_sizes sizes = {.size = sizeof sizes};
        must(bp_lm_head_estimate(&config, 1, 0, &sizes));
        bytes += sizes.bytes;
    }
    return bytes;
}

void gpu_head(const gpu *g)
{
    char group[48];
    tensors t = {.tokens = gpu_divided(g, 8192), .size = gpu_divided(g, 4096), .vocab = gpu_divided(g, 128256)};
    const gpu_part parts[] = {{&t.hidden, 2 * t.tokens * t.size},
                              {&t.weight, 2 * t.vocab * t.size},
                              {&t.hidden_grad, 2 * t.tokens * t.size},
                              {&t.weight_grad, 4 * t.vocab * t.size},
                              {&t.target, 8 * t.tokens},
                              {&t.logprob, 4 * t.tokens},
                              {&t.upstream, 4 * t.tokens},
                              {&t.saved, 8 * t.tokens},
                              {&t.logits, 4 * t.tokens * t.vocab},
                              {&t.scratch, CUBLAS_BYTES}};
    const size_t count = sizeof parts / sizeof *parts;
    snprintf(group, sizeof group, "gpu: fused head %llu x %llu x %llu", (unsigned long long)t.tokens,
             (unsigned long long)t.size, (unsigned long long)t.vocab);
    if (!bench_begin(group) || !gpu_has_room(g, gpu_parts_bytes(parts, count) + workspaces(g, &t)))
        return;
    bench_device device = {.device = gpu_device(g), .cuda = true};
    must(bp_stream_create(device.device, "head", &device.stream));
    t.stream = device.stream;
    const bp_lm_head_config config = config_of(g, &ways[0], t.tokens, t.size, t.vocab);
    bp_lm_head *head = NULL;
    if (bp_lm_head_create(device.device, &config, &head) == BP_OK) { /* loads cuBLAS */
        const uint64_t memory = gpu_place(g, parts, count);
        gpu_fill(t.stream, t.hidden, 2 * t.tokens * t.size, MIN_STATE);
        gpu_fill(t.stream, t.weight, 2 * t.vocab * t.size, MIN_STATE);
        gpu_fill_tokens(t.stream, t.tokens, t.vocab, 1, t.target, t.upstream);
        must(bench_gemm_create_cublas(&device, t.scratch, CUBLAS_BYTES, &t.products.gemm));
        make_products(&t);
        bp_lm_head_destroy(&head);
        measure(g, device.device, &t);
        bench_gemm_destroy(&t.products.gemm);
        gpu_free(g, memory);
    } else {
        bench_skip("%s", bp_error_detail());
    }
    bp_stream_destroy(&device.stream);
    bp_device_destroy(&device.device);
}
