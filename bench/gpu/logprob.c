/* Log-probabilities and their gradient on a GPU: the shapes of SkyRL's table and of other vocabularies, for each dtype of logits and
 * gradient. The bytes of a logit are known: it is read forward, read again for its gradient, and the gradient is written. A copy that moves
 * as many bytes as both passes says what the GPU's memory can do, in the same turns. */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"
#include "bench/pools.h"

#include <bucketpool/logprob.h>

#include <stdio.h>
#include <stdlib.h>

#define PIECE 1024u /* tokens, of callers that chunk */
#define PATTERN_BYTES (8u << 20)

/* Dtypes of logits and gradient, and where the gradient lies. */
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
    const gpu *gpu;
    const variant *variant;
    uint64_t sequence, vocab;
    uint64_t logit_bytes, grad_bytes; /* of one */
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
    } parts[] = {
        {&l->x, l->logit_bytes * count_of(l)}, {&l->grad, l->variant->in_place ? 0 : l->grad_bytes * count_of(l)},
        {&l->target, 8 * l->sequence},         {&l->logprob, 4 * l->sequence},
        {&l->entropy, 4 * l->sequence},        {&l->upstream, 4 * l->sequence},
        {&l->saved, 12 * l->sequence}};
    uint64_t next = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (base != NULL)
            *parts[i].at = base + next;
        next += rounded(parts[i].bytes);
    }
    if (base != NULL && l->variant->in_place)
        l->grad = l->x;
    return next;
}

/* bf16 numbers between -4 and 4. Two of them are an fp32 number between -4 and 4. */
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
    uint64_t bytes = l->logit_bytes * count_of(l), done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    uint16_t *pattern = malloc(PATTERN_BYTES);
    if (pattern == NULL)
        abort();
    fill_pattern(pattern, done / 2);
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
    batch.logits = (bp_token_rows){.data = l->x + l->logit_bytes * first * l->vocab,
                                   .dtype = l->variant->logits,
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
    gradients.logits_grad.dtype = l->variant->grad;
    gradients.logits_grad.data = l->grad + l->grad_bytes * first * l->vocab;
    gradients.in_place = l->variant->in_place;
    must(bp_logprob_backward(l->client, &batch, &gradients, l->stream));
}

/* What both passes move: the logits twice and the gradient. */
static uint64_t bytes_of_both(const logits *l)
{
    return 2 * l->logit_bytes + l->grad_bytes;
}

/* As many bytes, from one half of the gradient's memory to the other and back: a logit's gradient takes 2 or 4 bytes, so that a copy of a
 * half moves that many for each logit. The last copy is the remainder. Logits in place stay logits. */
static void copy(const logits *l)
{
    uint64_t half = l->grad_bytes * count_of(l) / 2, left = bytes_of_both(l) * count_of(l) / 2;
    for (unsigned i = 0; left > 0; i++) {
        uint64_t bytes = left < half ? left : half;
        char *low = l->grad, *high = l->grad + half;
        must(bp_stream_copy(l->stream, i % 2 == 0 ? high : low, i % 2 == 0 ? low : high, bytes));
        left -= bytes;
    }
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
    if (l->variant->in_place)
        fill_logits(l); /* the window before left gradients there */
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

/* Logits that are small because of --divide. */
static int is_small(const logits *l)
{
    return count_of(l) < 1u << 20;
}

/* Backward needs the statistics of a forward pass: the first entry that makes them comes first in no turn but by chance. In place a window
 * of several pairs reads gradients as logits, and backward alone has statistics of other logits: finite numbers, moved alike. */
static void measure(logits *l)
{
    const unsigned forward_bytes = (unsigned)l->logit_bytes, both = (unsigned)bytes_of_both(l);
    const struct {
        const char *name;
        bench_run *run;
        unsigned bytes; /* of a logit */
    } entries[] = {{"forward and backward", run_both, both},
                   {"backward", run_backward, both - forward_bytes},
                   {"forward and backward, calls of 1024 tokens", run_pieces, both},
                   {"forward and backward, with entropy", run_with_entropy, both}};
    const size_t pairs = is_small(l) ? 1 : 1 + (size_t)((4ull << 30) / count_of(l)); /* some tens of milliseconds */
    char name[72];
    l->with_entropy = 1;
    both_whole(l);
    must(bp_stream_synchronize(l->stream));
    bench_turns(is_small(l) ? 3 : 11);
    snprintf(name, sizeof name, "copy, %u bytes a logit", both);
    bench_moves(bench_add_run(name, run_copy, l, pairs), both * count_of(l), count_of(l));
    bench_moves(bench_add_run("forward", run_forward, l, pairs), forward_bytes * count_of(l), count_of(l));
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        snprintf(name, sizeof name, "%s, %s", entries[i].name, l->variant->name);
        bench_moves(bench_add_run(name, entries[i].run, l, pairs), entries[i].bytes * count_of(l), count_of(l));
    }
    bench_end();
}

static void shape(const gpu *g, const variant *v, uint64_t sequence, uint64_t vocab)
{
    char group[72];
    logits l = {.gpu = g,
                .variant = v,
                .sequence = sequence,
                .vocab = vocab,
                .logit_bytes = v->logits == BP_DTYPE_FP32 ? 4 : 2,
                .grad_bytes = v->grad == BP_DTYPE_FP32 ? 4 : 2};
    uint64_t bytes = place(&l, NULL), spare = 64 * sequence + (64u << 20);
    snprintf(group, sizeof group, "gpu: logprob %llu x %llu %s, %s", (unsigned long long)sequence,
             (unsigned long long)vocab, v->logits == BP_DTYPE_FP32 ? "fp32" : "bf16", v->name);
    if (!bench_begin(group) || !gpu_has_room(g, bytes + spare))
        return;
    l.device = gpu_device(g);
    if (make_client(&l) != BP_OK) {
        bench_skip("%s", bp_error_detail());
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

/* Shapes that say most come first, in all variants. */
void gpu_logprob(const gpu *g, uint64_t divisor)
{
    static const struct {
        uint64_t sequence, vocab;
        size_t variants;
    } shapes[] = {{65536, 128000, VARIANTS}, {32768, 151936, VARIANTS}, {32768, 50257, VARIANTS}, {32768, 32000, 1},
                  {32768, 64000, 1},         {32768, 128000, 1},        {65536, 32000, 1},        {65536, 64000, 1},
                  {131072, 32000, 1},        {131072, 64000, 1},        {131072, 128000, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t v = 0; v < shapes[s].variants; v++)
            shape(g, &variants[v], 1 + (shapes[s].sequence - 1) / divisor, 1 + (shapes[s].vocab - 1) / divisor);
}
