/* The fused head on a GPU beside its matrix products alone: the same products, by the same library, in pieces of the same size. */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"
#include "bench/pools.h"

#include "bench/command/gemm.h"

#include <bucketpool/lm_head.h>

#include <stdio.h>
#include <stdlib.h>

#define PIECE 1024u /* tokens */
#define CUBLAS_BYTES (32u << 20)
#define PATTERN_BYTES (4u << 20)

typedef struct head_bench {
    const gpu *gpu;
    uint64_t sequence, hidden_size, vocab, piece;
    bench_device device;
    bp_lm_head *head;
    bench_gemm *gemm;
    uint64_t memory; /* of everything below */
    char *hidden, *weight, *hidden_grad, *weight_grad, *target, *logprob, *upstream, *saved, *logits, *scratch;
} head_bench;

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* Places one after the other; `base` NULL: how many bytes that takes. */
static uint64_t place(head_bench *h, char *base)
{
    uint64_t tokens = h->sequence, states = tokens * h->hidden_size, weights = h->vocab * h->hidden_size;
    struct {
        char **at;
        uint64_t bytes;
    } parts[] = {{&h->hidden, 2 * states},       {&h->weight, 2 * weights}, {&h->hidden_grad, 2 * states},
                 {&h->weight_grad, 4 * weights}, {&h->target, 8 * tokens},  {&h->logprob, 4 * tokens},
                 {&h->upstream, 4 * tokens},     {&h->saved, 8 * tokens},   {&h->logits, 4 * h->piece * h->vocab},
                 {&h->scratch, CUBLAS_BYTES}};
    uint64_t next = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (base != NULL)
            *parts[i].at = base + next;
        next += (parts[i].bytes + 255) / 256 * 256;
    }
    return next;
}

/* bf16 numbers below 1/8 in size: products of zeros, or of numbers alike, take less power and are faster than those of a model. */
static void fill(const head_bench *h, char *to, uint64_t bytes)
{
    uint64_t state = 88172645463325252u, done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    uint16_t *pattern = malloc(PATTERN_BYTES);
    if (pattern == NULL)
        abort();
    for (size_t i = 0; i < PATTERN_BYTES / 2; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        pattern[i] = (uint16_t)((state & 0x80ffu) | 0x3d00u);
    }
    must(bp_stream_copy(h->device.stream, to, pattern, done));
    for (uint64_t more; done < bytes; done += more) {
        more = bytes - done < done ? bytes - done : done;
        must(bp_stream_copy(h->device.stream, to + done, to, more));
    }
    must(bp_stream_synchronize(h->device.stream));
    free(pattern);
}

static void fill_tokens(const head_bench *h)
{
    int64_t *target = malloc(8 * h->sequence);
    float *upstream = malloc(4 * h->sequence);
    if (target == NULL || upstream == NULL)
        abort();
    for (uint64_t i = 0; i < h->sequence; i++) {
        target[i] = (int64_t)(i * 7919 % h->vocab);
        upstream[i] = 1;
    }
    must(bp_stream_copy(h->device.stream, h->target, target, 8 * h->sequence));
    must(bp_stream_copy(h->device.stream, h->upstream, upstream, 4 * h->sequence));
    must(bp_stream_synchronize(h->device.stream));
    free(target);
    free(upstream);
}

/* ---- the head ------------------------------------------------------------------------------------------------------ */

static bp_token_rows states_at(const head_bench *h, void *data)
{
    return (bp_token_rows){
        .data = data, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = h->sequence, .columns = h->hidden_size};
}

static void run_head_once(const head_bench *h)
{
    bp_lm_head_batch batch;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
    must(bp_lm_head_batch_init(&batch, sizeof batch));
    must(bp_logprob_outputs_init(&outputs, sizeof outputs));
    must(bp_lm_head_gradients_init(&gradients, sizeof gradients));
    batch.hidden = states_at(h, h->hidden);
    batch.weight = h->weight;
    batch.target = (bp_token_values){h->target, 0, 1};
    outputs.logprob = (bp_token_values){h->logprob, 0, 1};
    outputs.saved = h->saved;
    gradients.saved = h->saved;
    outputs.saved_bytes = gradients.saved_bytes = 8 * h->sequence;
    gradients.logprob_grad = (bp_token_values){h->upstream, 0, 1};
    gradients.hidden_grad = states_at(h, h->hidden_grad);
    gradients.weight_grad = h->weight_grad;
    must(bp_lm_head_forward(h->head, &batch, &outputs, h->device.stream));
    must(bp_lm_head_backward(h->head, &batch, &gradients, h->device.stream));
}

/* ---- products alone ------------------------------------------------------------------------------------------------ */

static void multiply_logits(const head_bench *h, uint64_t first, int rows)
{
    int size = (int)h->hidden_size, vocab = (int)h->vocab;
    const bench_gemm_work work = {.m = rows,
                                  .n = vocab,
                                  .k = size,
                                  .a = {h->hidden + 2 * first * h->hidden_size, BP_DTYPE_BF16, size},
                                  .b = {h->weight, BP_DTYPE_BF16, size},
                                  .b_across = true,
                                  .c = {h->logits, BP_DTYPE_FP32, vocab}};
    must(h->gemm->ops->run(h->gemm, &work));
}

/* Gradients of logits lie in bf16 where the logits were: rows are twice as far apart. */
static void multiply_gradients(const head_bench *h, uint64_t first, int rows)
{
    int size = (int)h->hidden_size, vocab = (int)h->vocab;
    const bench_matrix gradient = {h->logits, BP_DTYPE_BF16, 2 * vocab};
    const bench_gemm_work hidden_grad = {.m = rows,
                                         .n = size,
                                         .k = vocab,
                                         .a = gradient,
                                         .b = {h->weight, BP_DTYPE_BF16, size},
                                         .c = {h->hidden_grad + 2 * first * h->hidden_size, BP_DTYPE_BF16, size}};
    const bench_gemm_work weight_grad = {.m = vocab,
                                         .n = size,
                                         .k = rows,
                                         .a = gradient,
                                         .a_across = true,
                                         .b = {h->hidden + 2 * first * h->hidden_size, BP_DTYPE_BF16, size},
                                         .c = {h->weight_grad, BP_DTYPE_FP32, size},
                                         .adds = first > 0};
    must(h->gemm->ops->run(h->gemm, &hidden_grad));
    must(h->gemm->ops->run(h->gemm, &weight_grad));
}

static void run_products_once(const head_bench *h)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t first = 0; first < h->sequence; first += h->piece) {
            uint64_t left = h->sequence - first;
            int rows = (int)(left < h->piece ? left : h->piece);
            multiply_logits(h, first, rows);
            if (pass == 1)
                multiply_gradients(h, first, rows);
        }
}

/* ---- measuring ----------------------------------------------------------------------------------------------------- */

static double window(const head_bench *h, void (*once)(const head_bench *), size_t pairs)
{
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++)
        once(h);
    must(bp_stream_synchronize(h->device.stream));
    return bench_now_ns() - begin;
}

static double run_products(void *user, size_t pairs)
{
    return window(user, run_products_once, pairs);
}

static double run_head(void *user, size_t pairs)
{
    return window(user, run_head_once, pairs);
}

static void measure(head_bench *h)
{
    uint64_t bytes = place(h, NULL);
    gpu_must(h->gpu, h->gpu->driver.cuMemAlloc(&h->memory, bytes), "memory for the head");
    place(h, (char *)(uintptr_t)h->memory); /* NOLINT(performance-no-int-to-ptr): it is one of the GPU */
    fill(h, h->hidden, 2 * h->sequence * h->hidden_size);
    fill(h, h->weight, 2 * h->vocab * h->hidden_size);
    fill_tokens(h);
    must(bench_gemm_create_cublas(&h->device, 0, BP_DTYPE_BF16, h->scratch, CUBLAS_BYTES, &h->gemm));
    run_head(h, 1);
    run_products(h, 1);
    bench_turns(11);
    (void)bench_add_run("matrix products alone, pieces of 1024 tokens", run_products, h, 1);
    (void)bench_add_run("forward and backward, pieces of 1024 tokens", run_head, h, 1);
    bench_end();
    h->gemm->ops->destroy(h->gemm);
    gpu_must(h->gpu, h->gpu->driver.cuMemFree(h->memory), "freeing the head's memory");
}

static bp_status make_head(head_bench *h)
{
    bp_lm_head_config config;
    must(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = h->sequence;
    config.hidden = h->hidden_size;
    config.vocab = h->vocab;
    config.chunk = (int64_t)h->piece;
    return bp_lm_head_create(h->device.device, &config, &h->head);
}

void gpu_head(const gpu *g, uint64_t divisor)
{
    char group[40];
    head_bench h = {.gpu = g,
                    .sequence = 1 + 8191 / divisor,
                    .hidden_size = 1 + 4095 / divisor,
                    .vocab = 1 + 127999 / divisor,
                    .piece = 1 + (PIECE - 1) / divisor,
                    .device = {.cuda = true}};
    snprintf(group, sizeof group, "gpu: fused head %llu x %llu x %llu", (unsigned long long)h.sequence,
             (unsigned long long)h.hidden_size, (unsigned long long)h.vocab);
    if (!bench_begin(group) || !gpu_has_room(g, place(&h, NULL) + 2 * 4 * h.piece * h.vocab))
        return;
    h.device.device = gpu_device(g);
    must(bp_stream_create(h.device.device, "head", &h.device.stream));
    if (make_head(&h) == BP_OK)
        measure(&h);
    else
        bench_skip("%s", bp_error_detail());
    bp_lm_head_destroy(&h.head);
    bp_stream_destroy(&h.device.stream);
    bp_device_destroy(&h.device.device);
}
