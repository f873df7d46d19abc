#include "bench/check.h"

#include <stdlib.h>

#include "bench/verify.h"

#define TOLERANCE 2e-5 /* of the size of the terms that a result is the sum of */

/* A token's place in one of the tensors of a value for each. */
static bp_status read_value(bench *b, const bench_row *row, int tensor, uint64_t token, double *value)
{
    float read = 0;
    bp_status status = bench_download(&b->staging, (const float *)row->shape->at[tensor] + token, sizeof read, &read);
    *value = read;
    return status;
}

static bp_status check_outputs(bench *b, bench_row *row, uint64_t token, const bench_reference *r, const double *x)
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

static bp_status check_token(bench *b, bench_row *row, uint64_t token, double *x)
{
    uint64_t vocab = row->shape->vocab;
    for (uint64_t v = 0; v < vocab; v++)
        x[v] = bench_element(bench_logits_pattern(), token * vocab + v);
    bench_reference r = bench_reference_of(x, vocab);
    bp_status status = check_outputs(b, row, token, &r, x);
    return status == BP_OK ? check_gradient(b, row, token, &r, x) : status;
}

bp_status bench_check_logits(bench *b, bench_row *row)
{
    uint64_t seq = row->shape->seq;
    const uint64_t tokens[] = {0, seq / 3, seq / 2, seq - 1};
    bp_status status = BP_OK;
    double *x = malloc(row->shape->vocab * sizeof *x);
    if (x == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for a row of logits");
    for (size_t i = 0; status == BP_OK && i < sizeof tokens / sizeof *tokens; i++)
        status = check_token(b, row, tokens[i], x);
    free(x);
    return status;
}
