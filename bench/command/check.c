/* The measured results against plain computations in double precision, for some tokens of each row. */
#include "bench/command/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what is compared -------------------------------------------------------------------------------------------- */

static bench_reference bench_reference_of(const double *x, uint64_t columns)
{
    bench_reference r = {.max = x[0]};
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
    return r;
}

static double bench_reference_logprob(const bench_reference *r, const double *x, int64_t target)
{
    return x[target] - r->max - r->log_sum;
}

static double bench_reference_entropy(const bench_reference *r)
{
    return r->log_sum - r->energy;
}

/* A logit's gradient, and how large the terms are that it is the sum of. */
static double bench_reference_gradient(const bench_reference *r, const bench_upstream *u, const double *x,
                                       uint64_t column, double *size)
{
    double above = x[column] - r->max, p = exp(above - r->log_sum);
    double one = (int64_t)column == u->target ? 1 : 0;
    *size = fabs(u->logprob_grad) * (one + p) + fabs(u->entropy_grad) * p * (fabs(r->energy) + fabs(above));
    return u->logprob_grad * (one - p) + u->entropy_grad * p * (r->energy - above);
}

/* Notes in the row the first value that is further from its reference than `tolerance`: "log-probability 7 is -3.1 instead of -3.2".
 * `number`: of the token, or of the row of the weight. */
static void bench_judge(bench_row *row, const char *what, uint64_t number, double value, double reference,
                        double tolerance)
{
    if (row->wrong || fabs(value - reference) <= tolerance) /* false for NaN */
        return;
    char text[BENCH_ERROR_CHARS];
    snprintf(text, sizeof text, "%s %llu is %.9g instead of %.9g", what, (unsigned long long)number, value, reference);
    bench_refuse_row(row, text);
    row->wrong = true;
}

/* What rounding a value to a dtype may change it by. */
static double bench_rounding(bp_dtype dtype, double value)
{
    switch (dtype) {
    case BP_DTYPE_BF16: return fabs(value) * 0x1p-8;
    case BP_DTYPE_FP16: return fabs(value) * 0x1p-11 + 0x1p-24; /* subnormal numbers, too */
    default: return 0;
    }
}

/* ---- the fused head ---------------------------------------------------------------------------------------------- */

/* The fused head beside sums over all of its weight, or all of its hidden states: whole numbers times a power of two, so that logits
 * have no rounding at all. */

#define HEAD_TOLERANCE 3e-5 /* of the sum of the sizes of terms */

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
        double tolerance = HEAD_TOLERANCE * c->sizes[i] + 8 * sqrt(c->squares[i]) + bench_rounding(dtype, c->sums[i]);
        bench_judge(c->row, what, row, bench_read(read, dtype, i), c->sums[i], tolerance);
    }
}

/* ---- a token ------------------------------------------------------------------------------------------------------------------ */

static void check_outputs(head_check *c, uint64_t token, const bench_reference *r)
{
    int64_t target = bench_target(token, c->row->shape->vocab);
    double size = 1 + r->log_sum + fabs(r->max);
    bench_judge(c->row, "the log-probability of token", token, c->logprob[token],
                bench_reference_logprob(r, c->x, target), HEAD_TOLERANCE * size);
    if (c->entropy != NULL)
        bench_judge(c->row, "the entropy of token", token, c->entropy[token], bench_reference_entropy(r),
                    HEAD_TOLERANCE * size);
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

/* ---- all of it --------------------------------------------------------------------------------------------------- */

#define TOLERANCE 2e-5 /* of the size of the terms that a result is the sum of */

/* A token's place in one of the tensors of a value for each. */
static bp_status read_value(bench *b, const bench_row *row, int tensor, uint64_t token, double *value)
{
    float read = 0;
    bp_status status = bench_download(&b->staging, (const float *)row->shape->at[tensor] + token, sizeof read, &read);
    *value = read;
    return status;
}

static bp_status check_logits_outputs(bench *b, bench_row *row, uint64_t token, const bench_reference *r,
                                      const double *x)
{
    double value = 0, size = 1 + r->log_sum;
    bp_status status = read_value(b, row, TENSOR_LOGPROB, token, &value);
    double reference = bench_reference_logprob(r, x, bench_target(token, row->shape->vocab));
    if (status == BP_OK)
        bench_judge(row, "the log-probability of token", token, value, reference, TOLERANCE * size);
    if (status != BP_OK || row->shape->at[TENSOR_ENTROPY] == NULL)
        return status;
    status = read_value(b, row, TENSOR_ENTROPY, token, &value);
    if (status == BP_OK)
        bench_judge(row, "the entropy of token", token, value, bench_reference_entropy(r), TOLERANCE * size);
    return status;
}

static bp_status check_gradient(bench *b, bench_row *row, uint64_t token, const bench_reference *r, const double *x)
{
    const bench_shape *shape = row->shape;
    bp_dtype dtype = bench_gradient_dtype(b->options);
    uint64_t bytes = shape->vocab * bp_dtype_bits(dtype) / 8;
    const uint8_t *gradient =
        shape->at[TENSOR_LOGITS_GRAD] != NULL ? shape->at[TENSOR_LOGITS_GRAD] : shape->at[TENSOR_LOGITS]; /* in place */
    const bench_upstream u = {.target = bench_target(token, shape->vocab),
                              .logprob_grad = bench_logprob_grad(token),
                              .entropy_grad = b->options->entropy ? bench_entropy_grad(token) : 0};
    void *read = malloc(bytes);
    if (read == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for a row of gradients");
    bp_status status = bench_download(&b->staging, gradient + token * bytes, bytes, read);
    for (uint64_t v = 0; status == BP_OK && v < shape->vocab; v++) {
        double size, reference = bench_reference_gradient(r, &u, x, v, &size);
        bench_judge(row, "a gradient of token", token, bench_read(read, dtype, v), reference,
                    TOLERANCE * size + bench_rounding(dtype, reference));
    }
    free(read);
    return status;
}

static bp_status check_logits_token(bench *b, bench_row *row, uint64_t token, double *x)
{
    uint64_t vocab = row->shape->vocab;
    for (uint64_t v = 0; v < vocab; v++)
        x[v] = bench_element(bench_logits_pattern(), token * vocab + v);
    bench_reference r = bench_reference_of(x, vocab);
    bp_status status = check_logits_outputs(b, row, token, &r, x);
    return status == BP_OK ? check_gradient(b, row, token, &r, x) : status;
}

bp_status bench_check_logits(bench *b, bench_row *row)
{
    uint64_t seq = row->shape->seq;
    const uint64_t tokens[] = {0, seq / 3, seq / 2, seq - 1};
    bp_status status = BP_OK;
    double *x = calloc(row->shape->vocab, sizeof *x);
    if (x == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for a row of logits");
    for (size_t i = 0; status == BP_OK && i < sizeof tokens / sizeof *tokens; i++)
        status = check_logits_token(b, row, tokens[i], x);
    free(x);
    return status;
}
