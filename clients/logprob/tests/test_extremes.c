/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest and largest logit of each row against a plain loop, over dtypes, strides, masks and non-finite numbers. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/scenarios.h"

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};

/* ---- the plain loop ------------------------------------------------------------------------------------------------ */

typedef struct range {
    double min, largest;
} range;

static range range_of(const batch *b, uint64_t i, uint64_t s)
{
    const double *x = b->x + (i * b->o.sequence + s) * b->o.columns;
    range r = {x[0], x[0]};
    if (is_masked(b, i, s))
        return (range){0, 0};
    for (uint64_t v = 0; v < b->o.columns; v++) {
        if (isnan(x[v]))
            return (range){NAN, NAN};
        r.min = x[v] < r.min ? x[v] : r.min;
        r.largest = x[v] > r.largest ? x[v] : r.largest;
    }
    return r;
}

static bool is_same(double is, double expected)
{
    return isnan(expected) ? isnan(is) : is == expected;
}

static bool ranges_are_true(const batch *b, const view *min, const view *largest)
{
    for (uint64_t i = 0; i < b->o.batch; i++) {
        for (uint64_t s = 0; s < b->o.sequence; s++) {
            const range r = range_of(b, i, s);
            const double low = min == NULL ? r.min : upstream_at(min, i, s);
            const double high = largest == NULL ? r.largest : upstream_at(largest, i, s);
            if (!is_same(low, r.min) || !is_same(high, r.largest)) {
                fprintf(stderr, "row %llu, %llu of %llu %s: from %g to %g, not from %g to %g\n", (unsigned long long)i,
                        (unsigned long long)s, (unsigned long long)b->o.columns, bp_dtype_name(b->o.dtype), low, high,
                        r.min, r.largest);
                return false;
            }
        }
    }
    return (min == NULL || gaps_are_whole(min, "least")) && (largest == NULL || gaps_are_whole(largest, "largest"));
}

static view new_values(const batch *b, layout where)
{
    return new_view(BP_DTYPE_FP32, b->o.batch, b->o.sequence, 1, where, 0x7b);
}

static bp_status enqueue_range(bp_logprob *client, const batch *b, const view *min, const view *largest,
                               bp_stream *stream)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    const bp_token_values none = {0};
    if (largest == NULL) /* not requested */
        call.tokens.target = none;
    const bp_token_values low = min == NULL ? none : values_of(min);
    const bp_token_values high = largest == NULL ? none : values_of(largest);
    return bp_logprob_range(client, &call, &low, &high, stream);
}

enum { LEAST = 1, LARGEST = 2, BOTH = 3 };

static void check_range(bp_logprob *client, const batch *b, layout where, int which)
{
    view min = new_values(b, where), largest = new_values(b, where);
    const view *low = (which & LEAST) != 0 ? &min : NULL, *high = (which & LARGEST) != 0 ? &largest : NULL;
    assert_ok(enqueue_range(client, b, low, high, NULL));
    assert_true(ranges_are_true(b, low, high));
    assert_true(inputs_are_whole(b));
    free_view(&min);
    free_view(&largest);
}

/* ---- batches ------------------------------------------------------------------------------------------------------- */

TEST(any_dtype_layout_and_mask)
{
    seed(71);
    FOR_KERNELS(kernels)
    {
        for (int round = 0; round < 24; round++) {
            const batch_options options = {.batch = 1 + random_below(3),
                                           .sequence = 1 + random_below(6),
                                           .columns = 1 + random_below(round % 8 == 0 ? 3000 : 150),
                                           .dtype = DTYPES[round % 3],
                                           .target_dtype = round % 2 == 0 ? BP_DTYPE_INT32 : BP_DTYPE_INT64,
                                           .logits = random_layout(),
                                           .target = random_layout(),
                                           .mask = random_layout(),
                                           .masked = random_below(2) == 0,
                                           .offset = random_below(3) == 0 ? -200 : 0,
                                           .temperature = random_below(2) == 0 ? 0.7 : 3};
            batch b = new_batch(&options);
            bp_logprob *client = new_client(device, &b, kernels->bit, 1 + random_below(3));
            for (int which = LEAST; which <= BOTH; which++)
                check_range(client, &b, random_layout(), which);
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

/* Every number of columns around the sizes of vectors and tiles, at every alignment. */
TEST(any_columns_at_any_address)
{
    seed(72);
    FOR_KERNELS(kernels)
    {
        for (uint64_t columns = 1; columns <= 4100; columns += columns < 70 ? 1 : columns < 2000 ? 483 : 29) {
            batch_options options = {.batch = 1, .sequence = 2, .columns = columns, .dtype = DTYPES[columns % 3]};
            options.logits.shift = columns % 37;
            options.logits.row_gap = columns % 5;
            batch b = new_batch(&options);
            /* at both ends, for off-by-one errors of loops */
            put_logit(&b, 0, 0, 0, -90);
            put_logit(&b, 0, 0, columns - 1, 90);
            put_logit(&b, 0, 1, 0, 90);
            put_logit(&b, 0, 1, columns - 1, -90);
            bp_logprob *client = new_client(device, &b, kernels->bit, 1);
            check_range(client, &b, (layout){0}, BOTH);
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

/* Rows with one extreme value at varying positions. */
TEST(extremes_may_be_anywhere)
{
    seed(73);
    FOR_KERNELS(kernels)
    {
        const batch_options options = {.batch = 1, .sequence = 150, .columns = 150, .dtype = BP_DTYPE_BF16};
        batch b = new_batch(&options);
        for (uint64_t s = 0; s < 150; s++) {
            put_logit(&b, 0, s, s, s % 2 == 0 ? 1000 : -1000);
            put_logit(&b, 0, s, (s + 77) % 150, s % 2 == 0 ? -2000 : 2000);
        }
        bp_logprob *client = new_client(device, &b, kernels->bit, 2);
        check_range(client, &b, (layout){0}, BOTH);
        bp_logprob_destroy(&client);
        free_batch(&b);
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

TEST(nan_and_infinities)
{
    enum { COLUMNS = 77, ROWS = 12 };
    seed(74);
    FOR_KERNELS(kernels)
    {
        for (size_t d = 0; d < 3; d++) {
            for (uint64_t at = 0; at < COLUMNS; at += at == 0 ? 15 : at == 75 ? 1 : 30) {
                const batch_options options = {.batch = 1, .sequence = ROWS, .columns = COLUMNS, .dtype = DTYPES[d]};
                batch b = new_batch(&options);
                const double largest = DTYPES[d] == BP_DTYPE_FP16 ? 65504 : 3e38;
                put_logit(&b, 0, 0, at, NAN);
                put_logit(&b, 0, 1, at, INFINITY);
                put_logit(&b, 0, 2, at, -INFINITY);
                put_logit(&b, 0, 3, at, INFINITY);
                put_logit(&b, 0, 3, (at + 40) % COLUMNS, -INFINITY);
                put_logit(&b, 0, 4, at, INFINITY);
                put_logit(&b, 0, 4, (at + 40) % COLUMNS, NAN);
                put_logit(&b, 0, 5, at, -INFINITY);
                put_logit(&b, 0, 5, (at + 1) % COLUMNS, NAN);
                for (uint64_t v = 0; v < COLUMNS; v++) {
                    put_logit(&b, 0, 6, v, -INFINITY);
                    put_logit(&b, 0, 7, v, INFINITY);
                    put_logit(&b, 0, 8, v, NAN);
                    put_logit(&b, 0, 9, v, v % 2 == 0 ? 0.0 : -0.0);
                }
                put_logit(&b, 0, 10, at, largest);
                put_logit(&b, 0, 10, (at + 3) % COLUMNS, -largest);
                put_logit(&b, 0, 11, at, -NAN); /* the sign of NaN does not order it */
                bp_logprob *client = new_client(device, &b, kernels->bit, 1);
                check_range(client, &b, (layout){0}, BOTH);
                bp_logprob_destroy(&client);
                free_batch(&b);
            }
        }
    }
}

TEST(one_column_is_both)
{
    seed(75);
    FOR_KERNELS(kernels)
    {
        for (size_t d = 0; d < 3; d++) {
            batch_options options = {.batch = 2, .sequence = 5, .columns = 1, .dtype = DTYPES[d], .masked = true};
            options.logits.shift = 3;
            options.logits.row_gap = 1;
            batch b = new_batch(&options);
            for (uint64_t i = 0; i < 2; i++)
                for (uint64_t s = 0; s < 5; s++)
                    if (!is_masked(&b, i, s))
                        put_logit(&b, i, s, 0, s == 0 ? NAN : s == 1 ? -INFINITY : -3.5);
            bp_logprob *client = new_client(device, &b, kernels->bit, 1);
            check_range(client, &b, (layout){.row_gap = 1}, BOTH);
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static const batch_options SMALL = {.batch = 2, .sequence = 9, .columns = 700, .masked = true};

TEST(batches_without_tokens_succeed)
{
    batch b = new_batch(&SMALL);
    view min = new_values(&b, (layout){0});
    bp_logprob *client = new_client(device, &b, BP_KERNELS_PLAIN, 1);
    bp_logprob_batch call = call_of(&b, whole_shard(&b));
    const bp_token_values low = values_of(&min), none = {0};
    assert_ok(bp_logprob_range(client, &call, &none, &none, NULL)); /* nothing requested */
    call.logits.batch = 0;
    assert_ok(bp_logprob_range(client, &call, &low, &low, NULL));
    bp_logprob_destroy(&client);
    free_view(&min);
    free_batch(&b);
}

#define BAD BP_ERR_INVALID_ARGUMENT

TEST(overflows_are_refused)
{
    batch b = new_batch(&SMALL);
    view min = new_values(&b, (layout){0}), largest = new_values(&b, (layout){0});
    bp_logprob *client = new_client(device, &b, BP_KERNELS_PLAIN, 1);
    const bp_logprob_batch good = call_of(&b, whole_shard(&b));
    bp_logprob_batch call = good;
    bp_token_values low = values_of(&min), high = values_of(&largest);
    assert_fails(bp_logprob_range(NULL, &call, &low, &high, NULL), BAD, "bp_logprob_range");
    assert_fails(bp_logprob_range(client, NULL, &low, &high, NULL), BAD, "bp_logprob_range");
    call.logits.data = NULL;
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "logits");
    call = good;
    call.logits.columns = 699;
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "699", "700");
    call = good;
    call.logits.dtype = BP_DTYPE_INT32;
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "int32");
    call = good;
    call.logits.sequence = 10;
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "18");
    call = good;
    low.stride = low.batch_stride = 0; /* stride 0 */
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "least", "overlap");
    low = values_of(&min);
    high.data = (char *)high.data + 2;
    assert_fails(bp_logprob_range(client, &call, &low, &high, NULL), BAD, "largest", "align");
    assert_ok(bp_device_synchronize(device));
    for (size_t i = 0; i < min.bytes; i++)
        assert_true(min.memory[i] == 0x7b && largest.memory[i] == 0x7b);
    bp_logprob_destroy(&client);
    free_view(&min);
    free_view(&largest);
    free_batch(&b);
}

TESTS(open_host, close_host)
