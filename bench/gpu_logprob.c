/* Log-probabilities and their gradient on a GPU: the shapes of SkyRL's table (bf16 logits, fp32 gradient). What a logit costs in bytes is
 * known: 2 to read it forward, 2 and 4 for its gradient. A copy that moves as many bytes says what the GPU's memory can do, in the same
 * turns. */
#include "gpu.h"
#include "windows.h"
#include "worlds.h"

#include <bucketpool/logprob.h>

#include <stdio.h>
#include <stdlib.h>

#define PIECE 1024u /* tokens, of callers that chunk */
#define PATTERN_BYTES (8u << 20)

typedef struct logits {
    const gpu *gpu;
    uint64_t sequence, vocab;
    bp_device *device;
    bp_stream *stream;
    bp_logprob *client;
    uint64_t memory; /* of everything below */
    char *x, *grad, *target, *logprob, *entropy, *upstream, *saved;
    int with_entropy;
} logits;

static uint64_t count_of(const logits *l)
{
    return l->sequence * l->vocab;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Places one after the other; `base` NULL: how many bytes that takes. */
static uint64_t place(logits *l, char *base)
{
    struct {
        char **at;
        uint64_t bytes;
    } parts[] = {{&l->x, 2 * count_of(l)},       {&l->grad, 4 * count_of(l)},    {&l->target, 8 * l->sequence},
                 {&l->logprob, 4 * l->sequence}, {&l->entropy, 4 * l->sequence}, {&l->upstream, 4 * l->sequence},
                 {&l->saved, 12 * l->sequence}};
    uint64_t next = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (base != NULL)
            *parts[i].at = base + next;
        next += rounded(parts[i].bytes);
    }
    return next;
}

/* bf16 numbers between -4 and 4. */
static void fill_pattern(uint16_t *pattern, size_t count)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        pattern[i] = (uint16_t)((state & 0x80ffu) | (0x3f00u + (state >> 20 & 0x80u)));
    }
}

/* The pattern at the beginning, then what is there again and again. */
static void fill_logits(const logits *l)
{
    uint64_t bytes = 2 * count_of(l), done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    uint16_t *pattern = malloc(PATTERN_BYTES);
    if (pattern == NULL)
        abort();
    fill_pattern(pattern, PATTERN_BYTES / 2);
    must(bp_stream_copy(l->stream, l->x, pattern, done));
    while (done < bytes) {
        uint64_t more = bytes - done < done ? bytes - done : done;
        must(bp_stream_copy(l->stream, l->x + done, l->x, more));
        done += more;
    }
    must(bp_stream_synchronize(l->stream));
    free(pattern);
}

static void fill_tokens(const logits *l)
{
    int64_t *target = malloc(8 * l->sequence);
    float *upstream = malloc(4 * l->sequence);
    if (target == NULL || upstream == NULL)
        abort();
    for (uint64_t i = 0; i < l->sequence; i++) {
        target[i] = (int64_t)(i * 7919 % l->vocab);
        upstream[i] = 1 / (float)l->sequence;
    }
    must(bp_stream_copy(l->stream, l->target, target, 8 * l->sequence));
    must(bp_stream_copy(l->stream, l->upstream, upstream, 4 * l->sequence));
    must(bp_stream_synchronize(l->stream));
    free(target);
    free(upstream);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static bp_logprob_batch batch_of(const logits *l, uint64_t first, uint64_t count)
{
    bp_logprob_batch batch;
    must(bp_logprob_batch_init(&batch, sizeof batch));
    batch.logits = (bp_token_rows){.data = l->x + 2 * first * l->vocab,
                                   .dtype = BP_DTYPE_BF16,
                                   .batch = 1,
                                   .sequence = count,
                                   .columns = l->vocab};
    batch.target = (bp_token_values){l->target + 8 * first, 0, 1};
    return batch;
}

static void forward(const logits *l, uint64_t first, uint64_t count)
{
    bp_logprob_batch batch = batch_of(l, first, count);
    bp_logprob_outputs outputs;
    must(bp_logprob_outputs_init(&outputs, sizeof outputs));
    outputs.logprob = (bp_token_values){l->logprob + 4 * first, 0, 1};
    if (l->with_entropy)
        outputs.entropy = (bp_token_values){l->entropy + 4 * first, 0, 1};
    outputs.saved = l->saved + 12 * first;
    outputs.saved_bytes = 12 * count;
    must(bp_logprob_forward(l->client, &batch, &outputs, l->stream));
}

static void backward(const logits *l, uint64_t first, uint64_t count)
{
    bp_logprob_batch batch = batch_of(l, first, count);
    bp_logprob_gradients gradients;
    must(bp_logprob_gradients_init(&gradients, sizeof gradients));
    gradients.logprob_grad = (bp_token_values){l->upstream + 4 * first, 0, 1};
    if (l->with_entropy)
        gradients.entropy_grad = gradients.logprob_grad;
    gradients.saved = l->saved + 12 * first;
    gradients.saved_bytes = 12 * count;
    gradients.logits_grad = batch.logits;
    gradients.logits_grad.dtype = BP_DTYPE_FP32;
    gradients.logits_grad.data = l->grad + 4 * first * l->vocab;
    must(bp_logprob_backward(l->client, &batch, &gradients, l->stream));
}

/* 8 bytes a logit, too: half the gradient there, and back. */
static void copy(const logits *l)
{
    uint64_t half = 2 * count_of(l);
    must(bp_stream_copy(l->stream, l->grad + half, l->grad, half));
    must(bp_stream_copy(l->stream, l->grad, l->grad + half, half));
}

static void both_whole(const logits *l)
{
    forward(l, 0, l->sequence);
    backward(l, 0, l->sequence);
}

static void forward_whole(const logits *l)
{
    forward(l, 0, l->sequence);
}

static void backward_whole(const logits *l)
{
    backward(l, 0, l->sequence);
}

static void both_in_pieces(const logits *l)
{
    for (uint64_t first = 0; first < l->sequence; first += PIECE) {
        uint64_t count = l->sequence - first < PIECE ? l->sequence - first : PIECE;
        forward(l, first, count);
        backward(l, first, count);
    }
}

static double window(logits *l, int with_entropy, void (*work)(const logits *), size_t pairs)
{
    l->with_entropy = with_entropy;
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++)
        work(l);
    must(bp_stream_synchronize(l->stream));
    return bench_now_ns() - begin;
}

static double run_copy(void *user, size_t pairs)
{
    return window(user, 0, copy, pairs);
}

static double run_both(void *user, size_t pairs)
{
    return window(user, 0, both_whole, pairs);
}

static double run_backward(void *user, size_t pairs)
{
    return window(user, 0, backward_whole, pairs);
}

static double run_forward(void *user, size_t pairs)
{
    return window(user, 0, forward_whole, pairs);
}

static double run_pieces(void *user, size_t pairs)
{
    return window(user, 0, both_in_pieces, pairs);
}

static double run_with_entropy(void *user, size_t pairs)
{
    return window(user, 1, both_whole, pairs);
}

/* ---- shapes -------------------------------------------------------------------------------------------------------- */

static bp_status make_client(logits *l)
{
    bp_logprob_config config;
    must(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = l->sequence;
    config.vocab = l->vocab;
    return bp_logprob_create(l->device, &config, &l->client);
}

/* Backward needs the statistics of a forward pass: the first entry that makes them comes first in no turn but by chance. */
static void measure(logits *l)
{
    static const struct {
        const char *name;
        bench_run *run;
        unsigned bytes; /* of a logit */
    } entries[] = {{"copy, 8 bytes a logit", run_copy, 8},
                   {"forward and backward", run_both, 8},
                   {"forward", run_forward, 2},
                   {"backward", run_backward, 6},
                   {"forward and backward, calls of 1024 tokens", run_pieces, 8},
                   {"forward and backward, with entropy", run_with_entropy, 8}};
    size_t pairs = 1 + (size_t)((4ull << 30) / count_of(l)); /* some tens of milliseconds */
    l->with_entropy = 1;
    both_whole(l);
    must(bp_stream_synchronize(l->stream));
    bench_turns(count_of(l) < 1u << 20 ? 3 : 11);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        size_t number = bench_add_run(entries[i].name, entries[i].run, l, count_of(l) < 1u << 20 ? 1 : pairs);
        bench_moves(number, entries[i].bytes * count_of(l), count_of(l));
    }
    bench_end();
}

static void shape(const gpu *g, uint64_t sequence, uint64_t vocab)
{
    char group[40];
    logits l = {.gpu = g, .sequence = sequence, .vocab = vocab};
    uint64_t bytes = place(&l, NULL), spare = 64 * sequence + (64u << 20);
    snprintf(group, sizeof group, "gpu: logprob %llu x %llu", (unsigned long long)sequence, (unsigned long long)vocab);
    if (bytes > g->free_bytes / 4 && bytes + spare > g->free_bytes) {
        printf("%s is skipped: it needs %.1f GiB, and %.1f GiB are free\n\n", group, (double)bytes / (1u << 30),
               (double)g->free_bytes / (1u << 30));
        return;
    }
    if (!bench_begin(group))
        return;
    l.device = gpu_device(g);
    if (make_client(&l) != BP_OK) {
        printf("%s is skipped: %s\n\n", group, bp_error_detail());
        bp_device_destroy(&l.device);
        return;
    }
    must(bp_stream_create(l.device, "logprob", &l.stream));
    gpu_must(g, g->driver.cuMemAlloc(&l.memory, bytes), "memory for logits and gradient");
    place(&l, (char *)(uintptr_t)l.memory); /* NOLINT(performance-no-int-to-ptr): it is one of the GPU */
    fill_logits(&l);
    fill_tokens(&l);
    measure(&l);
    gpu_must(g, g->driver.cuMemFree(l.memory), "freeing logits and gradient");
    bp_logprob_destroy(&l.client);
    bp_stream_destroy(&l.stream);
    bp_device_destroy(&l.device);
}

void gpu_logprob(const gpu *g, uint64_t divisor)
{
    static const uint64_t sequences[] = {32768, 65536, 131072}, vocabularies[] = {32000, 64000, 128000};
    for (size_t s = 0; s < 3; s++)
        for (size_t v = 0; v < 3; v++)
            shape(g, 1 + (sequences[s] - 1) / divisor, 1 + (vocabularies[v] - 1) / divisor);
}
