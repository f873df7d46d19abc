/* The fused head beside sums over all of its weight, or all of its hidden states: whole numbers times a power of two, so that logits
 * have no rounding at all. */
#include <math.h>
#include <stdlib.h>

#include "bench/check.h"
#include "bench/verify.h"

#define TOLERANCE 3e-5 /* of the sum of the sizes of terms */

/* One period of the patterns, as whole numbers. */
typedef struct head_check {
    bench *bench;
    bench_row *row;
    int8_t *hidden, *weight;
    double hidden_unit, weight_unit, logit_unit;
    double *x, *sums, *sizes,
        *squares;                    /* logits of a token; a row of a gradient, and of its terms sizes and roundings */
    float *read, *logprob, *entropy; /* a row of hidden size; of each token */
} head_check;

static double whole(const int8_t *pattern, uint64_t index)
{
    return pattern[index % BENCH_PERIOD];
}

/* Of rows `a` and `b`: in runs that do not pass the end of a period. */
static double dot(const head_check *c, uint64_t token, uint64_t column)
{
    uint64_t hidden = c->bench->options->head, a = token * hidden % BENCH_PERIOD, b = column * hidden % BENCH_PERIOD;
    int64_t sum = 0;
    for (uint64_t left = hidden, run; left > 0; left -= run) {
        int32_t part = 0;
        run = left < 65536 ? left : 65536; /* 127 * 127 of them fit 32 bits */
        run = run < BENCH_PERIOD - a ? run : BENCH_PERIOD - a;
        run = run < BENCH_PERIOD - b ? run : BENCH_PERIOD - b;
        for (uint64_t i = 0; i < run; i++)
            part += c->hidden[a + i] * c->weight[b + i];
        sum += part;
        a = (a + run) % BENCH_PERIOD;
        b = (b + run) % BENCH_PERIOD;
    }
    return (double)sum * c->logit_unit;
}

/* ---- sums of a gradient ------------------------------------------------------------------------------------------------------ */

static void begin_sums(head_check *c)
{
    for (uint64_t i = 0; i < c->bench->options->head; i++)
        c->sums[i] = c->sizes[i] = c->squares[i] = 0;
}

/* Adds d times a row. `size`: of the terms of d; on cuda d is rounded before it is multiplied. */
static void add_row(head_check *c, double d, double size, const int8_t *pattern, double unit, uint64_t row)
{
    const bench_options *o = c->bench->options;
    double rounding = o->cuda ? bench_rounding(o->dtype, d) : 0;
    for (uint64_t i = 0; i < o->head; i++) {
        double element = whole(pattern, row * o->head + i) * unit;
        c->sums[i] += d * element;
        c->sizes[i] += size * fabs(element);
        c->squares[i] += rounding * element * rounding * element;
    }
}

/* Roundings of many terms add up as their squares do. */
static void judge_sums(head_check *c, const char *what, uint64_t row, const void *read, bp_dtype dtype)
{
    for (uint64_t i = 0; i < c->bench->options->head; i++) {
        double tolerance = TOLERANCE * c->sizes[i] + 8 * sqrt(c->squares[i]) + bench_rounding(dtype, c->sums[i]);
        bench_judge(c->row, what, row, bench_read(read, dtype, i), c->sums[i], tolerance);
    }
}

/* ---- a token ------------------------------------------------------------------------------------------------------------------ */

static void check_outputs(head_check *c, uint64_t token, const bench_reference *r)
{
    int64_t target = bench_target(token, c->row->shape->vocab);
    double size = 1 + r->log_sum + fabs(r->max);
    bench_judge(c->row, "the log-probability of token", token, c->logprob[token],
                bench_reference_logprob(r, c->x, target), TOLERANCE * size);
    if (c->entropy != NULL)
        bench_judge(c->row, "the entropy of token", token, c->entropy[token], bench_reference_entropy(r),
                    TOLERANCE * size);
}

static bp_status check_hidden_grad(head_check *c, uint64_t token, const bench_reference *r)
{
    bench *b = c->bench;
    bp_dtype dtype = bench_gradient_dtype(b->options);
    uint64_t bytes = b->options->head * bp_dtype_bits(dtype) / 8;
    const bench_upstream u = {.target = bench_target(token, c->row->shape->vocab),
                              .logprob_grad = bench_logprob_grad(token),
                              .entropy_grad = c->entropy != NULL ? bench_entropy_grad(token) : 0};
    begin_sums(c);
    for (uint64_t v = 0; v < c->row->shape->vocab; v++) {
        double size, d = bench_reference_gradient(r, &u, c->x, v, &size);
        add_row(c, d, size, c->weight, c->weight_unit, v);
    }
    const uint8_t *gradient = c->row->shape->at[TENSOR_HIDDEN_GRAD];
    bp_status status = bench_download(&b->staging, gradient + token * bytes, bytes, c->read);
    if (status == BP_OK)
        judge_sums(c, "the gradient of hidden state", token, c->read, dtype);
    return status;
}

static bp_status check_token(head_check *c, uint64_t token)
{
    for (uint64_t v = 0; v < c->row->shape->vocab; v++)
        c->x[v] = dot(c, token, v);
    bench_reference r = bench_reference_of(c->x, c->row->shape->vocab);
    check_outputs(c, token, &r);
    return check_hidden_grad(c, token, &r);
}

/* ---- a row of the weight -------------------------------------------------------------------------------------------------------- */

/* Log-probability and entropy say what the sum over the vocabulary was: log S + M = x[t] - lp, and M, E fall out of the gradient. */
static bp_status check_weight_grad(head_check *c, uint64_t column)
{
    bench *b = c->bench;
    const bench_shape *shape = c->row->shape;
    uint64_t bytes = b->options->head * sizeof(float);
    begin_sums(c);
    for (uint64_t t = 0; t < shape->seq; t++) {
        int64_t target = bench_target(t, shape->vocab);
        double x = dot(c, t, column), total = dot(c, t, (uint64_t)target) - c->logprob[t], p = exp(x - total);
        double g = bench_logprob_grad(t), h = c->entropy != NULL ? bench_entropy_grad(t) : 0;
        double one = (uint64_t)target == column ? 1 : 0, below = total - x;
        double entropy = c->entropy != NULL ? c->entropy[t] : 0;
        add_row(c, g * (one - p) + h * p * (below - entropy),
                fabs(g) * (one + p) + fabs(h) * p * (fabs(below) + entropy), c->hidden, c->hidden_unit, t);
    }
    const uint8_t *gradient = shape->at[TENSOR_WEIGHT_GRAD];
    bp_status status = bench_download(&b->staging, gradient + column * bytes, bytes, c->read);
    if (status == BP_OK)
        judge_sums(c, "the gradient of weight row", column, c->read, BP_DTYPE_FP32);
    return status;
}

/* ---- all of it -------------------------------------------------------------------------------------------------------------------- */

static void write_pattern(bench_pattern pattern, int8_t *out)
{
    for (uint64_t i = 0; i < BENCH_PERIOD; i++)
        out[i] = (int8_t)ldexp(bench_element(pattern, i), -pattern.shift);
}

static bool make(head_check *c)
{
    const bench_options *o = c->bench->options;
    const bench_shape *shape = c->row->shape;
    size_t hidden = (size_t)o->head;
    c->hidden = malloc(BENCH_PERIOD);
    c->weight = malloc(BENCH_PERIOD);
    c->x = calloc(shape->vocab, sizeof *c->x);
    c->sums = calloc(hidden, sizeof *c->sums);
    c->sizes = calloc(hidden, sizeof *c->sizes);
    c->squares = calloc(hidden, sizeof *c->squares);
    c->read = calloc(hidden, sizeof *c->read);
    c->logprob = calloc(shape->seq, sizeof *c->logprob);
    c->entropy = o->entropy ? calloc(shape->seq, sizeof *c->entropy) : NULL;
    return c->hidden != NULL && c->weight != NULL && c->x != NULL && c->sums != NULL && c->sizes != NULL &&
           c->squares != NULL && c->read != NULL && c->logprob != NULL && (c->entropy != NULL || !o->entropy);
}

static void finish(head_check *c)
{
    free(c->hidden);
    free(c->weight);
    free(c->x);
    free(c->sums);
    free(c->sizes);
    free(c->squares);
    free(c->read);
    free(c->logprob);
    free(c->entropy);
}

static bp_status look(head_check *c)
{
    bench *b = c->bench;
    const bench_shape *shape = c->row->shape;
    bp_status status =
        bench_download(&b->staging, shape->at[TENSOR_LOGPROB], shape->tensors.bytes[TENSOR_LOGPROB], c->logprob);
    if (status == BP_OK && c->entropy != NULL)
        status =
            bench_download(&b->staging, shape->at[TENSOR_ENTROPY], shape->tensors.bytes[TENSOR_ENTROPY], c->entropy);
    if (status == BP_OK)
        status = check_token(c, 0);
    if (status == BP_OK)
        status = check_token(c, shape->seq - 1);
    if (status == BP_OK)
        status = check_weight_grad(c, shape->vocab / 2);
    return status == BP_OK ? check_weight_grad(c, (uint64_t)bench_target(0, shape->vocab)) : status;
}

bp_status bench_check_head(bench *b, bench_row *row)
{
    bench_pattern hidden = bench_hidden_pattern(), weight = bench_weight_pattern(b->options->head);
    head_check c = {.bench = b,
                    .row = row,
                    .hidden_unit = ldexp(1, hidden.shift),
                    .weight_unit = ldexp(1, weight.shift),
                    .logit_unit = ldexp(1, hidden.shift + weight.shift)};
    bp_status status = BP_ERR_NO_HOST_MEMORY;
    if (make(&c)) {
        write_pattern(hidden, c.hidden);
        write_pattern(weight, c.weight);
        status = look(&c);
    } else {
        (void)bp_error_record(status, "out of memory for checking the head");
    }
    finish(&c);
    return status;
}
