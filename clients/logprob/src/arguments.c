/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks of the clients, and their conversion into kernel arguments. */
#include "base.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <math.h>
#include <string.h>

bool bp_is_row_dtype(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP32 || dtype == BP_DTYPE_BF16 || dtype == BP_DTYPE_FP16;
}

bp_status bp_check_count(const char *call, uint64_t batch, uint64_t sequence, uint64_t max, uint64_t *tokens)
{
    uint64_t count;
    if (!bp_mul_u64(batch, sequence, &count))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu x %llu tokens do not fit 64 bits", call, (unsigned long long)batch,
                       (unsigned long long)sequence);
    if (count > max)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu x %llu tokens exceed max_tokens %llu of the client", call,
                       (unsigned long long)batch, (unsigned long long)sequence, (unsigned long long)max);
    *tokens = count;
    return BP_OK;
}

/* ---- strided tensors ------------------------------------------------------------------------------------------------- */

#define DIMENSIONS 3

/* A tensor [batch, sequence, values, columns] in elements of `bytes`; columns are contiguous. */
typedef struct shape {
    const void *data;
    uint64_t columns, bytes;
    uint64_t counts[DIMENSIONS]; /* not 0 */
    int64_t strides[DIMENSIONS];
} shape;

/* Extent of the tensor in elements: below `data` (negative strides) and above it, up to the last element. */
static bool reach(const shape *s, uint64_t *below, uint64_t *above)
{
    uint64_t far, sum = 0;
    *below = 0;
    *above = s->columns;
    for (int i = 0; i < DIMENSIONS; i++) {
        uint64_t *side = s->strides[i] < 0 ? below : above;
        if (!bp_mul_u64(s->counts[i] - 1, bp_magnitude(s->strides[i]), &far) || !bp_add_u64(*side, far, side))
            return false;
    }
    return bp_add_u64(*below, *above, &sum) && bp_mul_u64(sum, s->bytes, &sum) && sum <= INT64_MAX;
}

/* Values do not overlap if each stride, in ascending order, is at least the extent of everything under the smaller ones. */
static bool has_disjoint_rows(const shape *s)
{
    uint64_t extent = s->columns;
    uint32_t done = 0;
    for (int round = 0; round < DIMENSIONS; round++) {
        int next = -1;
        for (int i = 0; i < DIMENSIONS; i++)
            if ((done >> i & 1) == 0 && (next < 0 || bp_magnitude(s->strides[i]) < bp_magnitude(s->strides[next])))
                next = i;
        done |= 1u << next;
        if (s->counts[next] == 1)
            continue;
        if (bp_magnitude(s->strides[next]) < extent)
            return false;
        extent += (s->counts[next] - 1) * bp_magnitude(s->strides[next]);
    }
    return true;
}

static bp_status check_shape(const char *call, const char *name, const shape *s, bool written)
{
    uint64_t below, above;
    if (!reach(s, &below, &above))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s span more than 2^63 bytes: strides %lld and %lld of %llu x %llu tokens",
                       call, name, (long long)s->strides[0], (long long)s->strides[1], (unsigned long long)s->counts[0],
                       (unsigned long long)s->counts[1]);
    if ((uintptr_t)s->data % s->bytes != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s at %p are not aligned to their element size of %llu bytes",
                       call, name, s->data, (unsigned long long)s->bytes);
    if (written && !has_disjoint_rows(s))
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "%s: %s are an output, but their rows overlap: %llu x %llu tokens of %llu elements with strides %lld and "
            "%lld",
            call, name, (unsigned long long)s->counts[0], (unsigned long long)s->counts[1],
            (unsigned long long)(s->columns * s->counts[2]), (long long)s->strides[0], (long long)s->strides[1]);
    return BP_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

static shape rows_shape(const bp_token_rows *rows)
{
    return (shape){.data = rows->data,
                   .columns = rows->columns,
                   .bytes = bp_dtype_bits(rows->dtype) / 8,
                   .counts = {rows->batch, rows->sequence, 1},
                   .strides = {rows->batch_stride, rows->stride, 0}};
}

bp_status bp_check_rows(const char *call, const char *name, const bp_token_rows *rows, uint64_t columns, bool written,
                        bp_token_rows *checked)
{
    *checked = *rows;
    if (rows->batch == 0 || rows->sequence == 0)
        return BP_OK;
    if (!bp_is_row_dtype(rows->dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s are %s; use fp32, bf16 or fp16", call, name,
                       bp_dtype_name(rows->dtype));
    if (rows->columns != columns)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s have %llu columns instead of %llu", call, name,
                       (unsigned long long)rows->columns, (unsigned long long)columns);
    if (rows->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s are missing (data is NULL)", call, name);
    if (rows->batch_stride == 0 && rows->stride == 0) {
        uint64_t batch_stride;
        if (columns > INT64_MAX || !bp_mul_u64(columns, rows->sequence, &batch_stride) || batch_stride > INT64_MAX)
            return bp_fail(BP_ERR_OVERFLOW, "%s: %s of %llu x %llu elements do not fit 63 bits", call, name,
                           (unsigned long long)rows->sequence, (unsigned long long)columns);
        checked->stride = (int64_t)columns;
        checked->batch_stride = (int64_t)batch_stride;
    }
    const shape s = rows_shape(checked);
    return check_shape(call, name, &s, written);
}

bool bp_rows_overlap(const bp_token_rows *a, const bp_token_rows *b)
{
    const shape one = rows_shape(a), two = rows_shape(b);
    uint64_t one_below, one_above, two_below, two_above;
    if (!reach(&one, &one_below, &one_above) || !reach(&two, &two_below, &two_above))
        return true;
    const uintptr_t one_at = (uintptr_t)one.data - one_below * one.bytes;
    const uintptr_t two_at = (uintptr_t)two.data - two_below * two.bytes;
    return one_at < (uintptr_t)two.data + two_above * two.bytes && two_at < (uintptr_t)one.data + one_above * one.bytes;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

/* `count` values of each of the tokens. */
static bp_status check_values(const char *call, const char *name, const bp_token_values *values,
                              const bp_tokens_work *tokens, uint32_t count, uint64_t bytes, bool written)
{
    if (values->data == NULL)
        return BP_OK;
    const shape s = {.data = values->data,
                     .columns = 1,
                     .bytes = bytes,
                     .counts = {tokens->batch, tokens->sequence, count},
                     .strides = {values->batch_stride, values->stride, values->step}};
    return check_shape(call, name, &s, written);
}

bp_status bp_check_values(const char *call, const char *name, const bp_token_values *values, uint64_t batch,
                          uint64_t sequence, bool written)
{
    const bp_tokens_work tokens = {.batch = batch, .sequence = sequence};
    return check_values(call, name, values, &tokens, 1, sizeof(float), written);
}

bp_status bp_check_mask(const char *call, const bp_token_values *mask, uint64_t batch, uint64_t sequence)
{
    const bp_tokens_work tokens = {.batch = batch, .sequence = sequence};
    return check_values(call, "mask", mask, &tokens, 1, 1, false);
}

/* The inverse must be normal as well: a subnormal one would cost the results their precision. */
static bool is_scale(float value)
{
    return isnormal(value) && value > 0 && isnormal(1 / value);
}

static bp_status check_targets(const char *call, const bp_logprob_tokens *given, uint32_t max, bp_tokens_work *work)
{
    const bp_token_values *target = &given->target;
    if (given->target_dtype != BP_DTYPE_INT64 && given->target_dtype != BP_DTYPE_INT32)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets are %s; use int64 or int32", call,
                       bp_dtype_name(given->target_dtype));
    if (target->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets are missing (data is NULL)", call);
    if (given->targets == 0 || given->targets > max)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %u targets for each token; use 1 to the client's max_targets %u",
                       call, given->targets, max);
    work->target = target->data;
    work->target_batch_stride = target->batch_stride;
    work->target_stride = target->stride;
    work->target_step = given->targets == 1 ? 0 : target->step;
    work->targets = given->targets;
    work->target_is_64 = given->target_dtype == BP_DTYPE_INT64;
    return check_values(call, "targets", target, work, given->targets, bp_dtype_bits(given->target_dtype) / 8, false);
}

bp_status bp_check_tokens(const char *call, const bp_base *base, const bp_logprob_tokens *given, bool reads_targets,
                          uint64_t batch, uint64_t sequence, bp_tokens_work *checked)
{
    bp_tokens_work work = {
        .batch = batch, .sequence = sequence, .vocab_first = base->shards.first, .vocab = base->shards.vocab};
    if (!is_scale(given->temperature))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: temperature %g is outside [1.2e-38, 8.5e37]", call,
                       (double)given->temperature);
    if (given->soft_cap != 0 && !is_scale(given->soft_cap))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: soft_cap %g is outside [1.2e-38, 8.5e37]; use 0 for none", call,
                       (double)given->soft_cap);
    if (!bp_is_row_dtype(given->rounding))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: rounding is %s; use fp32 for none, bf16 or fp16", call,
                       bp_dtype_name(given->rounding));
    if (batch != 0 && sequence != 0) {
        if (reads_targets) {
            BP_TRY(check_targets(call, given, base->max_targets, &work));
            work.ignores = given->ignore_index != BP_LOGPROB_IGNORE_NONE;
            work.ignored = given->ignore_index;
            work.bad = base->bad;
        }
        BP_TRY(bp_check_mask(call, &given->mask, batch, sequence));
        BP_TRY(check_values(call, "temperatures", &given->temperatures, &work, 1, sizeof(float), false));
    }
    work.mask = given->mask.data;
    work.mask_batch_stride = given->mask.batch_stride;
    work.mask_stride = given->mask.stride;
    work.temperature = given->temperatures.data;
    work.temperature_batch_stride = given->temperatures.batch_stride;
    work.temperature_stride = given->temperatures.stride;
    work.scale = 1 / given->temperature;
    *checked = work;
    return BP_OK;
}

/* ---- outputs and upstream gradients ------------------------------------------------------------------------------ */

bp_status bp_check_output(const char *call, const char *name, const bp_token_values *values,
                          const bp_tokens_work *tokens, uint32_t count, bp_output_work *work)
{
    BP_TRY(check_values(call, name, values, tokens, count, sizeof(float), true));
    *work = (bp_output_work){values->data, values->batch_stride, values->stride, count == 1 ? 0 : values->step};
    return BP_OK;
}

bp_status bp_check_upstream(const char *call, const char *name, const bp_token_values *values,
                            const bp_tokens_work *tokens, uint32_t count, bp_upstream_work *work)
{
    BP_TRY(check_values(call, name, values, tokens, count, sizeof(float), false));
    *work = (bp_upstream_work){values->data, values->batch_stride, values->stride, count == 1 ? 0 : values->step};
    return BP_OK;
}

bp_status bp_check_saved(const char *call, const void *saved, uint64_t saved_bytes, uint64_t needed, uint64_t tokens,
                         const char *words, float **planes)
{
    if (saved_bytes < needed)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved_bytes is %llu, but %llu tokens %s need %llu", call,
                       (unsigned long long)saved_bytes, (unsigned long long)tokens, words, (unsigned long long)needed);
    if ((uintptr_t)saved % sizeof(float) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved at %p is not aligned to 4 bytes", call, saved);
    memcpy(planes, &saved, sizeof saved); /* backward reads them only */
    return BP_OK;
}

static bp_status check_statistics(const char *call, const void *saved, uint64_t saved_bytes,
                                  const bp_tokens_work *tokens, bool with_entropy, bp_saved_work *work)
{
    const uint64_t count = tokens->batch * tokens->sequence;
    uint64_t needed;
    float *planes;
    BP_TRY(bp_logprob_saved_bytes(count, with_entropy, &needed));
    BP_TRY(bp_check_saved(call, saved, saved_bytes, needed, count, with_entropy ? "with entropy" : "without entropy",
                          &planes));
    *work =
        (bp_saved_work){.max = planes, .log_sum = planes + count, .energy = with_entropy ? planes + 2 * count : NULL};
    return BP_OK;
}

bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, const bp_tokens_work *tokens,
                           bp_results_work *work)
{
    BP_TRY(bp_check_output(call, "log-probabilities", &outputs->logprob, tokens, tokens->targets, &work->logprob));
    BP_TRY(bp_check_output(call, "entropies", &outputs->entropy, tokens, 1, &work->entropy));
    BP_TRY(bp_check_output(call, "logsumexp", &outputs->logsumexp, tokens, 1, &work->logsumexp));
    BP_TRY(bp_check_output(call, "mean_logprob", &outputs->mean_logprob, tokens, 1, &work->mean_logprob));
    if (outputs->saved == NULL)
        return BP_OK;
    return check_statistics(call, outputs->saved, outputs->saved_bytes, tokens, outputs->entropy.data != NULL,
                            &work->saved);
}

int32_t bp_sums_level(const bp_results_work *results)
{
    return results->mean_logprob.data != NULL ? BP_SUMS_TOTAL
           : results->entropy.data != NULL    ? BP_SUMS_WEIGHTED
                                              : BP_SUMS_PLAIN;
}

bp_status bp_check_gradients(const char *call, const bp_logprob_gradients *gradients, const bp_tokens_work *tokens,
                             bp_gradient_work *work)
{
    BP_TRY(bp_check_upstream(call, "upstream gradients of log-probabilities", &gradients->logprob_grad, tokens,
                             tokens->targets, &work->logprob));
    BP_TRY(bp_check_upstream(call, "upstream gradients of entropies", &gradients->entropy_grad, tokens, 1,
                             &work->entropy));
    BP_TRY(bp_check_upstream(call, "upstream gradients of logsumexp", &gradients->logsumexp_grad, tokens, 1,
                             &work->logsumexp));
    BP_TRY(bp_check_upstream(call, "upstream gradients of mean_logprob", &gradients->mean_logprob_grad, tokens, 1,
                             &work->mean_logprob));
    if (gradients->saved == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved is missing; pass the buffer that forward filled", call);
    return check_statistics(call, gradients->saved, gradients->saved_bytes, tokens,
                            gradients->entropy_grad.data != NULL, &work->saved);
}

bp_status bp_check_one_call(const char *call, const bp_logprob_outputs *outputs, const void *saved,
                            const bp_token_values *entropy_grad)
{
    if (saved != NULL && saved != outputs->saved)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved of the gradients is %p, that of the outputs %p; use one",
                       call, saved, outputs->saved);
    if (entropy_grad->data != NULL && outputs->entropy.data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: upstream gradients of entropies need the output entropy", call);
    return BP_OK;
}
