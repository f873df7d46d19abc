/* SPDX-License-Identifier: Apache-2.0 */
/* Checks measured results against plain computations in double precision, for some tokens of each row. */
#include "bench/setup.h"

#include <bucketpool/core/fail.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a token's row of logits ------------------------------------------------------------------------------------- */

typedef struct reference {
    double max, log_sum, energy; /* M, log S and E of logprob.h */
    int64_t target;
    double logprob_grad, entropy_grad; /* upstream */
} reference;

static reference reference_of(const bench *b, const double *x, uint64_t columns, uint64_t token)
{
    reference r = {.max = x[0], .target = bench_target(token, columns), .logprob_grad = bench_logprob_grad(token)};
    double sum = 0, weighted = 0;
    for (uint64_t v = 1; v < columns; v++)
        r.max = fmax(r.max, x[v]);
    for (uint64_t v = 0; v < columns; v++) {
        double e = exp(x[v] - r.max);
        sum += e;
        weighted += e * (x[v] - r.max);
    }
    r.log_sum = log(sum);
    r.energy = weighted / sum;
    if (b->options->entropy)
        r.entropy_grad = bench_entropy_grad(token);
    return r;
}

/* A logit's gradient, and the magnitude of its terms. */
static double reference_gradient(const reference *r, const double *x, uint64_t column, double *size)
{
    double above = x[column] - r->max, p = exp(above - r->log_sum);
    double one = (int64_t)column == r->target ? 1 : 0;
    *size = fabs(r->logprob_grad) * (one + p) + fabs(r->entropy_grad) * p * (fabs(r->energy) + fabs(above));
    return r->logprob_grad * (one - p) + r->entropy_grad * p * (r->energy - above);
}

/* Records the first value of the row with an error above `tolerance`: "log-probability 7 is -3.1 instead of -3.2". `number`: of the token,
 * or of the weight row. */
static void compare_value(bench_row *row, const char *what, uint64_t number, double value, double expected,
                          double tolerance)
{
    if (row->wrong || fabs(value - expected) <= tolerance) /* false for NaN */
        return;
    char text[BENCH_ERROR_CHARS];
    snprintf(text, sizeof text, "%s %llu is %.9g instead of %.9g", what, (unsigned long long)number, value, expected);
    bench_refuse_row(row, text);
    row->wrong = true;
}

static void compare_outputs(bench_row *row, uint64_t token, const reference *r, const double *x, const float *logprob,
                            const float *entropy, double tolerance)
{
    compare_value(row, "the log-probability of token", token, *logprob, x[r->target] - r->max - r->log_sum, tolerance);
    if (entropy != NULL)
        compare_value(row, "the entropy of token", token, *entropy, r->log_sum - r->energy, tolerance);
}

/* Rounding error bound of a value in a dtype. */
static double rounding(bp_dtype dtype, double value)
{
    switch (dtype) {
    case BP_DTYPE_BF16: return fabs(value) * 0x1p-8;
    case BP_DTYPE_FP16: return fabs(value) * 0x1p-11 + 0x1p-24; /* the second term covers subnormal numbers */
    default: return 0;
    }
}

/* ---- stored logits --------------------------------------------------------------------------------------------------- */

#define TOLERANCE 2e-5 /* relative to the magnitude of a result's terms */

static bp_status check_logits_token(bench *b, bench_row *row, uint64_t token, double *x, void *gradient)
{
    const bench_shape *shape = row->shape;
    const bool has_entropy = shape->at[TENSOR_ENTROPY] != NULL;
    float logprob = 0, entropy = 0;
    for (uint64_t v = 0; v < shape->vocab; v++)
        x[v] = bench_element(bench_pattern_of(BENCH_LOGITS, 0), token * shape->vocab + v);
    reference r = reference_of(b, x, shape->vocab, token);
    BP_TRY(bench_download(&b->staging, (const float *)shape->at[TENSOR_LOGPROB] + token, sizeof logprob, &logprob));
    if (has_entropy)
        BP_TRY(bench_download(&b->staging, (const float *)shape->at[TENSOR_ENTROPY] + token, sizeof entropy, &entropy));
    compare_outputs(row, token, &r, x, &logprob, has_entropy ? &entropy : NULL, TOLERANCE * (1 + r.log_sum));
    uint64_t bytes = shape->vocab * bp_dtype_bits(b->gradient_dtype) / 8;
    const uint8_t *gradients =
        shape->at[TENSOR_LOGITS_GRAD] != NULL ? shape->at[TENSOR_LOGITS_GRAD] : shape->at[TENSOR_LOGITS]; /* in_place */
    BP_TRY(bench_download(&b->staging, gradients + token * bytes, bytes, gradient));
    for (uint64_t v = 0; v < shape->vocab; v++) {
        double size, expected = reference_gradient(&r, x, v, &size);
        compare_value(row, "a gradient of token", token, bench_read(gradient, b->gradient_dtype, v), expected,
                      TOLERANCE * size + rounding(b->gradient_dtype, expected));
    }
    return BP_OK;
}

bp_status bench_check_logits(bench *b, bench_row *row)
{
    uint64_t seq = row->shape->seq;
    const uint64_t tokens[] = {0, seq / 3, seq / 2, seq - 1};
    double *x = calloc(row->shape->vocab, sizeof *x);
    float *gradient = calloc(row->shape->vocab, sizeof *gradient); /* or narrower */
    bp_status status = BP_OK;
    if (x == NULL || gradient == NULL)
        status = bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for a row of logits");
    for (size_t i = 0; status == BP_OK && i < sizeof tokens / sizeof *tokens; i++)
        status = check_logits_token(b, row, tokens[i], x, gradient);
    free(x);
    free(gradient);
    return status;
}

/* ---- the fused head ---------------------------------------------------------------------------------------------- */

/* Compares with sums over the whole weight or all hidden states: their elements are integers times a power of two, so logits are exact. */

#define HEAD_TOLERANCE 3e-5 /* relative to the sum of the terms' magnitudes */

/* One period of a pattern, as integers. */
typedef struct whole_numbers {
    int8_t *elements;
    double unit;
} whole_numbers;

typedef struct head_check {
    bench *bench;
    bench_row *row;
    whole_numbers hidden, weight;
    double *x;                       /* logits of a token */
    double *sums, *sizes, *squares;  /* for a gradient row: sums of terms, of magnitudes, of squared rounding errors */
    float *read, *logprob, *entropy; /* read: [hidden]; others: [tokens] */
} head_check;

/* Dot product of a hidden row and a weight row, in runs that end at period boundaries. */
static double dot(const head_check *c, uint64_t token, uint64_t column)
{
    uint64_t hidden = c->bench->options->head, a = token * hidden % BENCH_PERIOD, b = column * hidden % BENCH_PERIOD;
    int64_t sum = 0;
    for (uint64_t left = hidden, run; left > 0; left -= run) {
        int32_t part = 0;
        run = left < 65536 ? left : 65536; /* 127 * 127 summed this often fits 32 bits */
        run = run < BENCH_PERIOD - a ? run : BENCH_PERIOD - a;
        run = run < BENCH_PERIOD - b ? run : BENCH_PERIOD - b;
        for (uint64_t i = 0; i < run; i++)
            part += c->hidden.elements[a + i] * c->weight.elements[b + i];
        sum += part;
        a = (a + run) % BENCH_PERIOD;
        b = (b + run) % BENCH_PERIOD;
    }
    return (double)sum * c->hidden.unit * c->weight.unit;
}

static void begin_sums(head_check *c)
{
    for (uint64_t i = 0; i < c->bench->options->head; i++)
        c->sums[i] = c->sizes[i] = c->squares[i] = 0;
}

/* Adds d times a row. `size`: magnitude of the terms of d, which products in bf16 and on cuda take rounded. */
static void add_row(head_check *c, double d, double size, const whole_numbers *pattern, uint64_t row)
{
    const bench_options *o = c->bench->options;
    double rounded = rounding(o->dtype, d); /* 0 for fp32 */
    for (uint64_t i = 0; i < o->head; i++) {
        double element = (double)pattern->elements[(row * o->head + i) % BENCH_PERIOD] * pattern->unit;
        c->sums[i] += d * element;
        c->sizes[i] += size * fabs(element);
        c->squares[i] += rounded * element * rounded * element;
    }
}

/* Compares a gradient row with the sums. Rounding errors of many terms add in squares. */
static bp_status compare_sums(head_check *c, const char *what, int tensor, uint64_t row, bp_dtype dtype)
{
    uint64_t hidden = c->bench->options->head, bytes = hidden * bp_dtype_bits(dtype) / 8;
    const uint8_t *gradient = c->row->shape->at[tensor];
    BP_TRY(bench_download(&c->bench->staging, gradient + row * bytes, bytes, c->read));
    for (uint64_t i = 0; i < hidden; i++) {
        double tolerance = HEAD_TOLERANCE * c->sizes[i] + 8 * sqrt(c->squares[i]) + rounding(dtype, c->sums[i]);
        compare_value(c->row, what, row, bench_read(c->read, dtype, i), c->sums[i], tolerance);
    }
    return BP_OK;
}

static bp_status check_token(head_check *c, uint64_t token)
{
    uint64_t vocab = c->row->shape->vocab;
    for (uint64_t v = 0; v < vocab; v++)
        c->x[v] = dot(c, token, v);
    reference r = reference_of(c->bench, c->x, vocab, token);
    compare_outputs(c->row, token, &r, c->x, &c->logprob[token], c->entropy != NULL ? &c->entropy[token] : NULL,
                    HEAD_TOLERANCE * (1 + r.log_sum + fabs(r.max)));
    begin_sums(c);
    for (uint64_t v = 0; v < vocab; v++) {
        double size, d = reference_gradient(&r, c->x, v, &size);
        add_row(c, d, size, &c->weight, v);
    }
    return compare_sums(c, "the gradient of hidden state", TENSOR_HIDDEN_GRAD, token, c->bench->gradient_dtype);
}

/* Log-probability and entropy determine the sum over the vocabulary: log S + M = x[t] - lp, and M and E cancel in the gradient. */
static bp_status check_weight_grad(head_check *c, uint64_t column)
{
    const bench_shape *shape = c->row->shape;
    begin_sums(c);
    for (uint64_t t = 0; t < shape->seq; t++) {
        int64_t target = bench_target(t, shape->vocab);
        double x = dot(c, t, column), total = dot(c, t, (uint64_t)target) - c->logprob[t], p = exp(x - total);
        double g = bench_logprob_grad(t), h = c->entropy != NULL ? bench_entropy_grad(t) : 0;
        double one = (uint64_t)target == column ? 1 : 0, below = total - x;
        double entropy = c->entropy != NULL ? c->entropy[t] : 0;
        add_row(c, g * (one - p) + h * p * (below - entropy),
                fabs(g) * (one + p) + fabs(h) * p * (fabs(below) + entropy), &c->hidden, t);
    }
    return compare_sums(c, "the gradient of weight row", TENSOR_WEIGHT_GRAD, column, BP_DTYPE_FP32);
}

static void write_pattern(bench_pattern pattern, whole_numbers *out)
{
    out->unit = ldexp(1, pattern.shift);
    for (uint64_t i = 0; i < BENCH_PERIOD; i++)
        out->elements[i] = (int8_t)ldexp(bench_element(pattern, i), -pattern.shift);
}

static bp_status look(head_check *c)
{
    bench_staging *staging = &c->bench->staging;
    const bench_shape *shape = c->row->shape;
    const uint64_t bytes = shape->seq * sizeof(float);
    write_pattern(bench_pattern_of(BENCH_HIDDEN, 0), &c->hidden);
    write_pattern(bench_pattern_of(BENCH_WEIGHT, c->bench->options->head), &c->weight);
    BP_TRY(bench_download(staging, shape->at[TENSOR_LOGPROB], bytes, c->logprob));
    if (c->entropy != NULL)
        BP_TRY(bench_download(staging, shape->at[TENSOR_ENTROPY], bytes, c->entropy));
    BP_TRY(check_token(c, 0));
    BP_TRY(check_token(c, shape->seq - 1));
    BP_TRY(check_weight_grad(c, shape->vocab / 2));
    return check_weight_grad(c, (uint64_t)bench_target(0, shape->vocab));
}

bp_status bench_check_head(bench *b, bench_row *row)
{
    head_check c = {.bench = b, .row = row};
    const size_t hidden = (size_t)b->options->head, seq = row->shape->seq;
    const struct {
        void **at;
        size_t count, bytes;
    } parts[] = {{(void **)&c.hidden.elements, BENCH_PERIOD, 1},  {(void **)&c.weight.elements, BENCH_PERIOD, 1},
                 {(void **)&c.x, row->shape->vocab, sizeof *c.x}, {(void **)&c.sums, hidden, sizeof *c.sums},
                 {(void **)&c.sizes, hidden, sizeof *c.sizes},    {(void **)&c.squares, hidden, sizeof *c.squares},
                 {(void **)&c.read, hidden, sizeof *c.read},      {(void **)&c.logprob, seq, sizeof *c.logprob},
                 {(void **)&c.entropy, seq, sizeof *c.entropy}};
    const size_t count = sizeof parts / sizeof *parts - (b->options->entropy ? 0 : 1);
    bp_status status = BP_OK;
    for (size_t i = 0; i < count; i++) {
        *parts[i].at = calloc(parts[i].count, parts[i].bytes);
        if (*parts[i].at == NULL)
            status = bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for checking the head");
    }
    if (status == BP_OK)
        status = look(&c);
    for (size_t i = 0; i < count; i++)
        free(*parts[i].at);
    return status;
}
