/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the host log-probability kernels, against scalar loops with libm and against loops that only move memory.
 * Run: meson test -C build --benchmark --verbose
 *
 * Figures are nanoseconds per logit. "ratio" is to the first line of a table, the kernels: for scalar loops it is the speedup of the
 * kernels, for loops that only move memory the fraction of bandwidth that they reach. Windows walk through far more rows than caches hold. */
#include "measure.h"

#include <bucketpool/logprob.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "engine.h"

#define COLUMNS 131072u
#define LOGITS_BYTES ((uint64_t)512 << 20)
#define WINDOW_ROWS 72u /* makes gradients of bf16 exceed the caches, too */
#define SCALAR_ROWS 2u

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

typedef struct table {
    int is_bf16;
    size_t rows, next; /* next: first row of the next window */
    char *logits, *gradient;
    int64_t *targets;
    float *logprobs, *upstream;
    float *saved; /* max, log_sum */
    float *kept;  /* of divergences */
} table;

static void *take(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("bench");
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static size_t row_bytes(const table *t)
{
    return (size_t)COLUMNS * (t->is_bf16 ? 2 : 4);
}

/* Approximately normal logits with standard deviation 2. */
static void fill(table *t)
{
    uint64_t state = BENCH_SEED;
    for (size_t i = 0; i < t->rows * COLUMNS; i++) {
        uint64_t r = bench_random(&state);
        float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) + (float)(r >> 48);
        float value = (sum - 131070) / 37837 * 2;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (t->is_bf16)
            ((uint16_t *)t->logits)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)t->logits)[i] = value;
    }
    for (size_t r = 0; r < t->rows; r++) {
        t->targets[r] = (int64_t)(r * 7919 % COLUMNS);
        t->upstream[r] = 1;
    }
}

static table open_table(int is_bf16)
{
    table t = {.is_bf16 = is_bf16};
    t.rows = LOGITS_BYTES / row_bytes(&t);
    t.logits = take(LOGITS_BYTES);
    t.gradient = take(t.rows * COLUMNS * 4);
    t.targets = take(t.rows * sizeof *t.targets);
    t.logprobs = take(t.rows * sizeof *t.logprobs);
    t.upstream = take(t.rows * sizeof *t.upstream);
    t.saved = take(2 * t.rows * sizeof *t.saved);
    t.kept = take(t.rows * sizeof *t.kept);
    memset(t.gradient, 1, t.rows * COLUMNS * 4);
    fill(&t);
    return t;
}

static void close_table(const table *t)
{
    munmap(t->logits, LOGITS_BYTES);
    munmap(t->gradient, t->rows * COLUMNS * 4);
    munmap(t->targets, t->rows * sizeof *t->targets);
    munmap(t->logprobs, t->rows * sizeof *t->logprobs);
    munmap(t->upstream, t->rows * sizeof *t->upstream);
    munmap(t->saved, 2 * t->rows * sizeof *t->saved);
    munmap(t->kept, t->rows * sizeof *t->kept);
}

static size_t next_rows(table *t, size_t rows)
{
    size_t first = t->next + rows > t->rows ? 0 : t->next;
    t->next = first + rows;
    return first;
}

/* ---- the kernels ---------------------------------------------------------------------------------------------------- */

typedef struct kernels {
    table *t;
    bp_engine *engine;
    bp_stream *stream;
    bp_dtype out; /* of the gradient */
    int in_place;
    unsigned threads;
} kernels;

static bp_tokens_work tokens_of(const table *t, size_t first, size_t rows)
{
    return (bp_tokens_work){.batch = 1,
                            .sequence = rows,
                            .target = t->targets + first,
                            .target_stride = 1,
                            .targets = 1,
                            .target_is_64 = 1,
                            .scale = 1,
                            .vocab = COLUMNS};
}

static bp_logits_work logits_of(const table *t, size_t first)
{
    return (bp_logits_work){.data = t->logits + first * row_bytes(t),
                            .stride = COLUMNS,
                            .columns = COLUMNS,
                            .dtype = t->is_bf16 ? BP_DTYPE_BF16 : BP_DTYPE_FP32,
                            .rounding = BP_DTYPE_FP32};
}

static bp_forward_work forward_of(const table *t, size_t first, size_t rows)
{
    return (bp_forward_work){.tokens = tokens_of(t, first, rows),
                             .logits = logits_of(t, first),
                             .results = {.logprob = {.data = t->logprobs + first, .stride = 1},
                                         .saved = {t->saved + first, t->saved + t->rows + first, NULL}}};
}

static void forward(const kernels *k, size_t first, size_t rows)
{
    const table *t = k->t;
    const bp_forward_work work = forward_of(t, first, rows);
    must(k->engine->ops->forward(k->engine, &work, k->stream));
    must(bp_stream_synchronize(k->stream));
}

static void run_forward(void *user, size_t rows)
{
    const kernels *k = user;
    forward(k, next_rows(k->t, rows), rows);
}

static bp_gradient_work gradient_of(const kernels *k, size_t first, size_t rows)
{
    const table *t = k->t;
    const size_t out_bytes = k->out == BP_DTYPE_FP32 ? 4 : 2;
    return (bp_gradient_work){.tokens = tokens_of(t, first, rows),
                              .logits = logits_of(t, first),
                              .saved = {t->saved + first, t->saved + t->rows + first, NULL},
                              .logprob = {.data = t->upstream + first, .stride = 1},
                              .out = k->in_place ? t->logits + first * row_bytes(t)
                                                 : t->gradient + first * COLUMNS * out_bytes,
                              .out_stride = COLUMNS,
                              .out_dtype = (int32_t)k->out};
}

static void run_backward(void *user, size_t rows)
{
    const kernels *k = user;
    const bp_gradient_work work = gradient_of(k, next_rows(k->t, rows), rows);
    must(k->engine->ops->gradient(k->engine, &work, k->stream));
    must(bp_stream_synchronize(k->stream));
}

/* Two passes over the same rows. In place the gradient takes the logits' place, and the next round reads it. */
static void run_two_passes(void *user, size_t rows)
{
    const kernels *k = user;
    const size_t first = next_rows(k->t, rows);
    const bp_gradient_work work = gradient_of(k, first, rows);
    forward(k, first, rows);
    must(k->engine->ops->gradient(k->engine, &work, k->stream));
    must(bp_stream_synchronize(k->stream));
}

static void run_one_pass(void *user, size_t rows)
{
    const kernels *k = user;
    const size_t first = next_rows(k->t, rows);
    const bp_fused_work work = {forward_of(k->t, first, rows), gradient_of(k, first, rows)};
    must(k->engine->ops->fused(k->engine, &work, k->stream));
    must(bp_stream_synchronize(k->stream));
}

/* ---- divergences: the reference is the half of the logits that the rows are not in ------------------------------------ */

typedef struct diverging {
    kernels *k;
    float beta;
} diverging;

static bp_divergence_work divergence_of(const diverging *d, size_t first, size_t rows)
{
    const table *t = d->k->t;
    const size_t other = (first + t->rows / 2) % (t->rows - rows);
    return (bp_divergence_work){
        .tokens = tokens_of(t, first, rows),
        .logits = logits_of(t, first),
        .reference = logits_of(t, other),
        .logits_saved = {t->saved + first, t->saved + t->rows + first, NULL},
        .reference_saved = {t->saved + other, t->saved + t->rows + other, NULL},
        .beta = d->beta,
        .results = {.divergence = {.data = t->logprobs + first, .stride = 1}, .kept = t->kept + first}};
}

static void run_divergence(void *user, size_t rows)
{
    const diverging *d = user;
    const bp_divergence_work work = divergence_of(d, next_rows(d->k->t, rows), rows);
    must(d->k->engine->ops->divergence(d->k->engine, &work, d->k->stream));
    must(bp_stream_synchronize(d->k->stream));
}

static void run_divergence_gradient(void *user, size_t rows)
{
    const diverging *d = user;
    const size_t first = next_rows(d->k->t, rows);
    const bp_divergence_work sums = divergence_of(d, first, rows);
    const bp_gradient_work gradient = gradient_of(d->k, first, rows);
    const bp_divergence_gradient_work work = {.tokens = sums.tokens,
                                              .logits = sums.logits,
                                              .reference = sums.reference,
                                              .logits_saved = sums.logits_saved,
                                              .reference_saved = sums.reference_saved,
                                              .beta = d->beta,
                                              .kept = d->k->t->kept + first,
                                              .upstream = gradient.logprob,
                                              .out = gradient.out,
                                              .out_stride = gradient.out_stride,
                                              .out_dtype = gradient.out_dtype};
    must(d->k->engine->ops->divergence_gradient(d->k->engine, &work, d->k->stream));
    must(bp_stream_synchronize(d->k->stream));
}

/* ---- scalar loops with libm -------------------------------------------------------------------------------------- */

static inline float element(const table *t, size_t row, size_t i)
{
    const char *x = t->logits + row * row_bytes(t);
    if (!t->is_bf16)
        return ((const float *)(const void *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Maximum, sum of expf, output. */
static void run_scalar_forward(void *user, size_t rows)
{
    const kernels *k = user;
    const table t = *k->t;
    size_t first = next_rows(k->t, rows);
    for (size_t r = first; r < first + rows; r++) {
        float max = -INFINITY, sum = 0;
        for (size_t i = 0; i < COLUMNS; i++)
            max = element(&t, r, i) > max ? element(&t, r, i) : max;
        for (size_t i = 0; i < COLUMNS; i++)
            sum += expf(element(&t, r, i) - max);
        t.logprobs[r] = element(&t, r, (size_t)t.targets[r]) - max - logf(sum);
    }
}

static void run_scalar_backward(void *user, size_t rows)
{
    const kernels *k = user;
    const table t = *k->t;
    size_t first = next_rows(k->t, rows);
    for (size_t r = first; r < first + rows; r++) {
        float *out = (float *)(void *)t.gradient + r * COLUMNS, max = t.saved[r], log_sum = t.saved[t.rows + r];
        for (size_t i = 0; i < COLUMNS; i++)
            out[i] = -expf(element(&t, r, i) - max - log_sum);
        out[t.targets[r]] += 1;
    }
}

/* In fp64. */
static double exact_forward(const table *t, size_t row)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < COLUMNS; i++)
        max = fmax(max, element(t, row, i));
    for (size_t i = 0; i < COLUMNS; i++)
        sum += exp(element(t, row, i) - max);
    return element(t, row, (size_t)t->targets[row]) - max - log(sum);
}

/* ---- loops that only move memory ------------------------------------------------------------------------------------- */

/* Reads every byte, a multiple of 64. */
static void read_bytes(const void *from, size_t bytes)
{
    static volatile uint64_t seen; /* keeps the loop from being optimized out */
    const uint64_t *words = from;
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    for (size_t i = 0; i < bytes / sizeof *words; i += 8) {
        a ^= words[i], b ^= words[i + 1], c ^= words[i + 2], d ^= words[i + 3];
        e ^= words[i + 4], f ^= words[i + 5], g ^= words[i + 6], h ^= words[i + 7];
    }
    seen = a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
    (void)seen;
}

/* Reads `from`, and for every two bytes read writes two or four with non-temporal stores; `to` is aligned to 16. */
#if defined(__x86_64__)
static void spread_bytes(const void *from, size_t bytes, int doubles, void *to)
{
    const __m128i *in = from, zero = _mm_setzero_si128();
    __m128i *out = to;
    for (size_t i = 0; i < bytes / sizeof *in; i++) {
        __m128i values = _mm_loadu_si128(in + i);
        if (doubles) {
            _mm_stream_si128(out++, _mm_unpacklo_epi16(zero, values));
            _mm_stream_si128(out++, _mm_unpackhi_epi16(zero, values));
        } else {
            _mm_stream_si128(out++, values);
        }
    }
    _mm_sfence();
}
#else
static void spread_bytes(const void *from, size_t bytes, int doubles, void *to)
{
    const uint16_t *in = from;
    uint32_t *out = to;
    if (!doubles)
        memcpy(to, from, bytes);
    for (size_t i = 0; doubles && i < bytes / sizeof *in; i++)
        out[i] = (uint32_t)in[i] << 16;
}
#endif

/* Memory loops on the kernels' stream, with the same number of threads. */
typedef struct moving {
    const kernels *k;
    size_t first, rows;
    int writes; /* as many bytes as the gradient; 0: reads only */
} moving;

static void move_rows(void *argument)
{
    const moving *m = argument;
    const table *t = m->k->t;
    size_t bytes = row_bytes(t), out_bytes = (size_t)COLUMNS * (m->k->out == BP_DTYPE_FP32 ? 4 : 2);
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)m->k->threads) schedule(dynamic, 1)
#endif
    for (size_t r = m->first; r < m->first + m->rows; r++) {
        if (m->writes)
            spread_bytes(t->logits + r * bytes, bytes, out_bytes > bytes, t->gradient + r * out_bytes);
        else
            read_bytes(t->logits + r * bytes, bytes);
    }
}

static void move(const kernels *k, size_t rows, int writes)
{
    moving m = {k, next_rows(k->t, rows), rows, writes};
    must(bp_stream_call(k->stream, move_rows, &m));
    must(bp_stream_synchronize(k->stream));
}

static void run_reading(void *user, size_t rows)
{
    move(user, rows, 0);
}

static void run_moving(void *user, size_t rows)
{
    move(user, rows, 1);
}

/* ---- figures -------------------------------------------------------------------------------------------------------- */

static void add_rows(const char *name, bench_loop *loop, kernels *k, size_t rows)
{
    bench_per(bench_add(name, loop, k, rows), COLUMNS);
}

static void measure_forward(kernels *k)
{
    char name[72];
    snprintf(name, sizeof name, "forward, %s, %u thread%s", k->t->is_bf16 ? "bf16" : "fp32", k->threads,
             k->threads > 1 ? "s" : "");
    if (!bench_begin(name))
        return;
    add_rows(k->engine->kernels, run_forward, k, WINDOW_ROWS);
    if (k->threads == 1)
        add_rows("scalar loops with libm", run_scalar_forward, k, SCALAR_ROWS);
    add_rows("reading the logits", run_reading, k, WINDOW_ROWS);
    bench_end();
}

static void measure_backward(kernels *k, bp_dtype out)
{
    char name[72];
    k->out = out;
    snprintf(name, sizeof name, "backward, %s to %s, %u thread%s", k->t->is_bf16 ? "bf16" : "fp32", bp_dtype_name(out),
             k->threads, k->threads > 1 ? "s" : "");
    if (!bench_begin(name))
        return;
    add_rows(k->engine->kernels, run_backward, k, WINDOW_ROWS);
    if (k->threads == 1 && out == BP_DTYPE_FP32)
        add_rows("scalar loops with libm", run_scalar_backward, k, SCALAR_ROWS);
    add_rows("reading and writing the same bytes", run_moving, k, WINDOW_ROWS);
    bench_end();
}

/* Both passes, apart and in one. Their bytes of memory for a logit: twice its own and the gradient's, or its own and the gradient's. */
static void measure_both(kernels *k, bp_dtype out, int in_place)
{
    char name[72];
    const char *logits = k->t->is_bf16 ? "bf16" : "fp32";
    const int bytes = k->t->is_bf16 ? 2 : 4, written = out == BP_DTYPE_FP32 ? 4 : 2;
    k->out = out;
    k->in_place = in_place;
    snprintf(name, sizeof name, "both passes, %s to %s%s, %u thread%s", logits, bp_dtype_name(out),
             in_place ? " in place" : "", k->threads, k->threads > 1 ? "s" : "");
    if (bench_begin(name)) {
        char two[32], one[32];
        snprintf(two, sizeof two, "two calls, %d bytes a logit", 2 * bytes + written);
        snprintf(one, sizeof one, "one call, %d bytes a logit", bytes + written);
        add_rows(two, run_two_passes, k, WINDOW_ROWS);
        add_rows(one, run_one_pass, k, WINDOW_ROWS);
        bench_end();
    }
    k->in_place = 0;
}

static void measure_divergence(kernels *k, float beta)
{
    diverging d = {k, beta};
    char name[72];
    k->out = k->t->is_bf16 ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    snprintf(name, sizeof name, "divergence, beta %.1f, %s, %u thread%s", (double)beta, k->t->is_bf16 ? "bf16" : "fp32",
             k->threads, k->threads > 1 ? "s" : "");
    if (!bench_begin(name))
        return;
    bench_per(bench_add("sums", run_divergence, &d, WINDOW_ROWS), COLUMNS);
    bench_per(bench_add("gradient", run_divergence_gradient, &d, WINDOW_ROWS), COLUMNS);
    add_rows("reading the logits", run_reading, k, WINDOW_ROWS);
    bench_end();
}

static void print_error(const kernels *k)
{
    double most = 0;
    forward(k, 0, WINDOW_ROWS);
    for (size_t r = 0; r < WINDOW_ROWS; r++)
        most = fmax(most, fabs(k->t->logprobs[r] - exact_forward(k->t, r)));
    printf("%s, %s: log-probabilities of %u rows have errors of at most %.2g\n\n", k->engine->kernels,
           k->t->is_bf16 ? "bf16" : "fp32", WINDOW_ROWS, most);
}

static void measure(uint32_t allowed, int is_bf16)
{
    table t = open_table(is_bf16);
    for (unsigned threads = 1; threads <= 2; threads++) {
        bp_device *device;
        kernels k = {.t = &t, .threads = threads};
        must(bp_device_create_host(NULL, &device));
        must(bp_stream_create(device, NULL, &k.stream));
        must(bp_engine_create_host(threads, allowed, COLUMNS, &k.engine));
        if (threads == 1)
            print_error(&k);
        else
            fill(&t);           /* again, after gradients in place */
        forward(&k, 0, t.rows); /* statistics for backward */
        measure_forward(&k);
        measure_backward(&k, BP_DTYPE_FP32);
        if (is_bf16)
            measure_backward(&k, BP_DTYPE_BF16);
        measure_divergence(&k, 0);
        measure_divergence(&k, 0.5f);
        measure_both(&k, BP_DTYPE_FP32, 0);
        measure_both(&k, is_bf16 ? BP_DTYPE_BF16 : BP_DTYPE_FP32, 1); /* last: overwrites the logits */
        k.engine->ops->destroy(k.engine);
        bp_stream_destroy(&k.stream);
        bp_device_destroy(&device);
    }
    close_table(&t);
}

/* ---- the range of logits -------------------------------------------------------------------------------------------- */

#define RANGE_COLUMNS 151936u
#define RANGE_ROWS 128u
#define RANGE_BYTES ((size_t)RANGE_ROWS * RANGE_COLUMNS * 2)

typedef struct ranging {
    bp_logprob *client;
    bp_logprob_batch batch;
    float range[2][RANGE_ROWS];
} ranging;

static void run_range_reading(void *user)
{
    const ranging *r = user;
    read_bytes(r->batch.logits.data, RANGE_BYTES);
}

static void run_range(void *user)
{
    ranging *r = user;
    const bp_token_values min = {.data = r->range[0], .stride = 1}, largest = {.data = r->range[1], .stride = 1};
    must(bp_logprob_range(r->client, &r->batch, &min, &largest, NULL));
}

static void measure_range(void)
{
    static int64_t targets[RANGE_ROWS];
    static ranging r;
    bp_device *device;
    bp_logprob_config config;
    if (!bench_begin("the range of bf16 logits, 128 x 151936"))
        return;
    void *logits = take(RANGE_BYTES);
    memset(logits, 1, RANGE_BYTES);
    bench_turns(31);
    must(bp_device_create_host(NULL, &device));
    must(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = RANGE_ROWS;
    config.vocab = RANGE_COLUMNS;
    config.threads = 1;
    must(bp_logprob_create(device, &config, &r.client));
    must(bp_logprob_batch_init(&r.batch, sizeof r.batch));
    r.batch.tokens.target = (bp_token_values){.data = targets, .stride = 1};
    r.batch.logits = (bp_token_rows){
        .data = logits, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = RANGE_ROWS, .columns = RANGE_COLUMNS};
    bench_per(bench_add_once("reading them", run_range_reading, &r, NULL, 0), RANGE_ROWS);
    bench_per(bench_add_once("bp_logprob_range", run_range, &r, NULL, 0), RANGE_ROWS);
    bench_end();
    bp_logprob_destroy(&r.client);
    bp_device_destroy(&device);
    munmap(logits, RANGE_BYTES);
}

int main(int argc, char **argv)
{
    int allowed = BP_KERNELS_ALL;
    const bench_option option = {"--kernels", .number = &allowed};
    bench_start(argc, argv, 101, " [--kernels BITS]", &option, 1, 0);
    for (int is_bf16 = 1; is_bf16 >= 0; is_bf16--)
        measure((uint32_t)allowed, is_bf16);
    measure_range();
    return bench_finish_groups();
}
