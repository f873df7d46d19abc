/* Argument checks of the clients, and their conversion into kernel arguments. */
#include "logprob/base.h"

#include <math.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

bool bp_is_row_dtype(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP32 || dtype == BP_DTYPE_BF16 || dtype == BP_DTYPE_FP16;
}

bp_status bp_check_tokens(const char *call, uint64_t batch, uint64_t sequence, uint64_t most, uint64_t *tokens)
{
    uint64_t count;
    if (!bp_mul_u64(batch, sequence, &count))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu x %llu tokens do not fit 64 bits", call, (unsigned long long)batch,
                       (unsigned long long)sequence);
    if (count > most)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu x %llu tokens exceed max_tokens %llu of the client", call,
                       (unsigned long long)batch, (unsigned long long)sequence, (unsigned long long)most);
    *tokens = count;
    return BP_OK;
}

/* ---- strided tensors ------------------------------------------------------------------------------------------------- */

/* A tensor [batch, sequence, columns] in elements of `bytes`. */
typedef struct shape {
    const void *data;
    uint64_t batch, sequence, columns, bytes;
    int64_t batch_stride, stride;
} shape;

/* Extent of the tensor in elements: below `data` (negative strides) and above it, up to the last element. */
static bool reach(const shape *s, uint64_t *below, uint64_t *above)
{
    uint64_t batches, rows, sum = 0;
    if (!bp_mul_u64(s->batch - 1, bp_magnitude(s->batch_stride), &batches) ||
        !bp_mul_u64(s->sequence - 1, bp_magnitude(s->stride), &rows))
        return false;
    *below = *above = 0;
    if (!bp_add_u64(*(s->batch_stride < 0 ? below : above), batches, s->batch_stride < 0 ? below : above) ||
        !bp_add_u64(*(s->stride < 0 ? below : above), rows, s->stride < 0 ? below : above) ||
        !bp_add_u64(*above, s->columns, above))
        return false;
    return bp_add_u64(*below, *above, &sum) && bp_mul_u64(sum, s->bytes, &sum) && sum <= INT64_MAX;
}

/* Tokens do not overlap if the larger stride exceeds the extent of everything under the smaller one. */
static bool has_disjoint_rows(const shape *s)
{
    const uint64_t outer = bp_magnitude(s->batch_stride), inner = bp_magnitude(s->stride);
    if (s->batch == 1)
        return s->sequence == 1 || inner >= s->columns;
    if (s->sequence == 1)
        return outer >= s->columns;
    const uint64_t small = outer < inner ? outer : inner, large = outer < inner ? inner : outer;
    const uint64_t count = outer < inner ? s->batch : s->sequence;
    return small >= s->columns && large >= (count - 1) * small + s->columns;
}

static bp_status check_shape(const char *call, const char *name, const shape *s, bool written)
{
    uint64_t below, above;
    if (!reach(s, &below, &above))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s span more than 2^63 bytes: strides %lld and %lld of %llu x %llu tokens",
                       call, name, (long long)s->batch_stride, (long long)s->stride, (unsigned long long)s->batch,
                       (unsigned long long)s->sequence);
    if ((uintptr_t)s->data % s->bytes != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s at %p are not aligned to their element size of %llu bytes",
                       call, name, s->data, (unsigned long long)s->bytes);
    if (written && !has_disjoint_rows(s))
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "%s: %s are an output, but their rows overlap: %llu x %llu tokens of %llu elements with strides %lld and "
            "%lld",
            call, name, (unsigned long long)s->batch, (unsigned long long)s->sequence, (unsigned long long)s->columns,
            (long long)s->batch_stride, (long long)s->stride);
    return BP_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

static shape rows_shape(const bp_token_rows *rows)
{
    return (shape){.data = rows->data,
                   .batch = rows->batch,
                   .sequence = rows->sequence,
                   .columns = rows->columns,
                   .bytes = bp_dtype_bits(rows->dtype) / 8,
                   .batch_stride = rows->batch_stride,
                   .stride = rows->stride};
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

static shape values_shape(const bp_token_values *values, uint64_t batch, uint64_t sequence, uint64_t bytes)
{
    return (shape){.data = values->data,
                   .batch = batch,
                   .sequence = sequence,
                   .columns = 1,
                   .bytes = bytes,
                   .batch_stride = values->batch_stride,
                   .stride = values->stride};
}

bp_status bp_check_values(const char *call, const char *name, const bp_token_values *values, uint64_t batch,
                          uint64_t sequence, bool written)
{
    if (values->data == NULL)
        return BP_OK;
    const shape s = values_shape(values, batch, sequence, sizeof(float));
    return check_shape(call, name, &s, written);
}

bp_status bp_check_mask(const char *call, const bp_token_values *mask, uint64_t batch, uint64_t sequence)
{
    if (mask->data == NULL)
        return BP_OK;
    const shape s = values_shape(mask, batch, sequence, 1);
    return check_shape(call, "mask", &s, false);
}

bp_status bp_check_targets(const char *call, const bp_token_values *target, bp_dtype dtype, const bp_token_values *mask,
                           uint64_t batch, uint64_t sequence, bp_tokens_work *tokens)
{
    if (dtype != BP_DTYPE_INT64 && dtype != BP_DTYPE_INT32)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets are %s; use int64 or int32", call, bp_dtype_name(dtype));
    if (target->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets are missing (data is NULL)", call);
    const shape targets = values_shape(target, batch, sequence, bp_dtype_bits(dtype) / 8);
    BP_TRY(check_shape(call, "targets", &targets, false));
    BP_TRY(bp_check_mask(call, mask, batch, sequence));
    *tokens = (bp_tokens_work){.batch = batch,
                               .sequence = sequence,
                               .target = target->data,
                               .target_batch_stride = target->batch_stride,
                               .target_stride = target->stride,
                               .target_is_64 = dtype == BP_DTYPE_INT64,
                               .has_mask = mask->data != NULL,
                               .mask = mask->data,
                               .mask_batch_stride = mask->batch_stride,
                               .mask_stride = mask->stride};
    return BP_OK;
}

/* The scale must be normal as well: a subnormal one would cost the results their precision. */
bp_status bp_check_temperature(const char *call, float temperature)
{
    if (!isnormal(temperature) || temperature < 0 || !isnormal(1 / temperature))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: temperature %g is outside [1.2e-38, 8.5e37]", call,
                       (double)temperature);
    return BP_OK;
}

static bp_status check_saved(const char *call, const void *saved, uint64_t saved_bytes, uint64_t tokens,
                             bool with_entropy, bp_saved_work *work)
{
    uint64_t needed;
    BP_TRY(bp_logprob_saved_bytes(tokens, with_entropy, &needed));
    if (saved_bytes < needed)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved_bytes is %llu, but %llu tokens %s need %llu", call,
                       (unsigned long long)saved_bytes, (unsigned long long)tokens,
                       with_entropy ? "with entropy" : "without entropy", (unsigned long long)needed);
    if ((uintptr_t)saved % sizeof(float) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved at %p is not aligned to 4 bytes", call, saved);
    float *planes;
    memcpy(&planes, &saved, sizeof saved); /* backward reads them only */
    *work =
        (bp_saved_work){.max = planes, .log_sum = planes + tokens, .energy = with_entropy ? planes + 2 * tokens : NULL};
    return BP_OK;
}

bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, uint64_t batch, uint64_t sequence,
                           bp_outputs_work *work)
{
    *work = (bp_outputs_work){.outputs = outputs};
    BP_TRY(bp_check_values(call, "log-probabilities", &outputs->logprob, batch, sequence, true));
    BP_TRY(bp_check_values(call, "entropies", &outputs->entropy, batch, sequence, true));
    if (outputs->saved == NULL)
        return BP_OK;
    return check_saved(call, outputs->saved, outputs->saved_bytes, batch * sequence, outputs->entropy.data != NULL,
                       &work->saved);
}

bp_status bp_check_upstream(const char *call, const bp_token_values *logprob_grad, const bp_token_values *entropy_grad,
                            const void *saved, uint64_t saved_bytes, uint64_t batch, uint64_t sequence,
                            bp_gradient_work *work)
{
    BP_TRY(bp_check_values(call, "upstream gradients of log-probabilities", logprob_grad, batch, sequence, false));
    BP_TRY(bp_check_values(call, "upstream gradients of entropies", entropy_grad, batch, sequence, false));
    if (saved == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved is missing; pass the buffer that forward filled", call);
    BP_TRY(check_saved(call, saved, saved_bytes, batch * sequence, entropy_grad->data != NULL, &work->saved));
    work->logprob_grad = logprob_grad->data;
    work->logprob_grad_batch_stride = logprob_grad->batch_stride;
    work->logprob_grad_stride = logprob_grad->stride;
    work->entropy_grad = entropy_grad->data;
    work->entropy_grad_batch_stride = entropy_grad->batch_stride;
    work->entropy_grad_stride = entropy_grad->stride;
    return BP_OK;
}
