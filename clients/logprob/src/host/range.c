/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of rows, numbers compared by their bits, and sums of columns. */
#include "host/rows.h"

/* ---- ranges -------------------------------------------------------------------------------------------------------- */

#define BF16_INFINITY 0x7f80
#define FP16_INFINITY 0x7c00
#define FP32_INFINITY 0x7f800000

/* Maps bits to keys that compare as signed integers, and back: negative numbers have their other bits inverted. NaN sorts beyond the
 * infinities, and plain loops vectorize. */
#define TURNED(bits, type, max) ((type)((bits) ^ (((bits) >> (sizeof(type) * 8 - 1)) & (max))))

#define FIND(name, type, max)                                                                                          \
    static void name(const type *bits, uint64_t count, type *min, type *largest)                                       \
    {                                                                                                                  \
        type low = (max), high = (type)(-(max)-1);                                                                     \
        for (uint64_t i = 0; i < count; i++) {                                                                         \
            const type key = TURNED(bits[i], type, max);                                                               \
            low = key < low ? key : low;                                                                               \
            high = key > high ? key : high;                                                                            \
        }                                                                                                              \
        *min = low;                                                                                                    \
        *largest = high;                                                                                               \
    }
FIND(find_16, int16_t, INT16_MAX)
FIND(find_32, int32_t, INT32_MAX)

typedef struct range {
    float min, largest;
} range;

static range range_of_32(const void *row, uint64_t columns)
{
    int32_t min, largest;
    find_32(row, columns, &min, &largest);
    if (largest > FP32_INFINITY || min < ~FP32_INFINITY)
        return (range){NAN, NAN};
    return (range){bp_fp32_of_bits((uint32_t)TURNED(min, int32_t, INT32_MAX)),
                   bp_fp32_of_bits((uint32_t)TURNED(largest, int32_t, INT32_MAX))};
}

static range range_of_16(int dtype, const void *row, uint64_t columns)
{
    const int16_t infinity = dtype == BP_ROW_BF16 ? BF16_INFINITY : FP16_INFINITY;
    int16_t min, largest;
    find_16(row, columns, &min, &largest);
    if (largest > infinity || min < ~infinity)
        return (range){NAN, NAN};
    min = TURNED(min, int16_t, INT16_MAX);
    largest = TURNED(largest, int16_t, INT16_MAX);
    return (range){bp_row_value(dtype, &min, 0), bp_row_value(dtype, &largest, 0)};
}

static void range_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_range_work *work = context;
    const bp_tokens_work *tokens = &work->tokens;
    const int dtype = bp_row_dtype(work->logits.dtype);
    for (uint64_t token = begin; token < end; token++) {
        const char *row = bp_logits_row(tokens, &work->logits, token);
        range found = {0, 0};
        if (!bp_token_is_masked(tokens, token))
            found = dtype == BP_ROW_FP32 ? range_of_32(row, work->logits.columns)
                                         : range_of_16(dtype, row, work->logits.columns);
        const bp_output_work min = {work->min, work->min_batch_stride, work->min_stride, 0};
        const bp_output_work largest = {work->largest, work->largest_batch_stride, work->largest_stride, 0};
        bp_put_output(&min, tokens, token, 0, found.min);
        bp_put_output(&largest, tokens, token, 0, found.largest);
    }
}

void bp_host_range(bp_host_team *team, const bp_range_work *work)
{
    bp_host_distribute(team, work->tokens.batch * work->tokens.sequence, bp_rows_of_piece(work->logits.columns),
                       range_rows, work);
}

/* ---- column sums ------------------------------------------------------------------------------------------------- */

static void sum_columns(const void *context, uint64_t begin, uint64_t end)
{
    const bp_columns_work *work = context;
    const int dtype = bp_row_dtype(work->dtype);
    if (!work->adds)
        memset(work->to + begin, 0, (end - begin) * sizeof *work->to);
    for (uint64_t row = 0; row < work->rows; row++) {
        const char *from =
            (const char *)work->from + (int64_t)row * work->stride * (int64_t)bp_row_element_bytes(dtype);
        for (uint64_t i = begin; i < end; i++)
            work->to[i] += bp_row_value(dtype, from, i);
    }
}

void bp_host_columns(bp_host_team *team, const bp_columns_work *work)
{
    bp_host_distribute(team, work->columns, BP_TILE_COLUMNS, sum_columns, work);
}
