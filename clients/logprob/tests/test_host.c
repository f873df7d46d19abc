/* SPDX-License-Identifier: Apache-2.0 */
/* The host engine: its choice of kernels and threads, the accuracy of exponentials, and gradients of all pairs of dtypes. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine.h"
#include "host/kernels.h"
#include "host/rows.h"
#include "support/batches.h"
#include "support/hosts.h"
#include "support/scenarios.h"

TEST(the_fastest_kernels_are_chosen)
{
    const bp_host_kernels *fastest = NULL;
    FOR_KERNELS(kernels)
    {
        fastest = bp_kernels_choose(kernels->bit);
        assert_int_equal(fastest->bit, kernels->bit);
    }
    assert_ptr_equal(bp_kernels_choose(0), &bp_kernels_plain);
    assert_ptr_equal(bp_kernels_choose(BP_KERNELS_ALL), fastest);
}

TEST(threads_are_as_asked)
{
    bp_engine *engine = NULL;
    assert_int_equal(bp_engine_create_host(5000, BP_KERNELS_ALL, 10, &engine), BP_ERR_INVALID_ARGUMENT);
    assert_null(engine);
    assert_ok(bp_engine_create_host(0, BP_KERNELS_ALL, 10, &engine));
    assert_true(engine->threads > 0);
    engine->ops->destroy(engine);
    assert_ok(bp_engine_create_host(3, BP_KERNELS_ALL, 10, &engine));
#ifdef __SANITIZE_THREAD__
    const bool has_openmp = false;
#else
    const bool has_openmp = dlopen("libgomp.so.1", RTLD_NOW) != NULL;
#endif
    assert_int_equal(engine->threads, has_openmp ? 3 : 1);
    engine->ops->destroy(engine);
}

/* With factor 1 and nothing subtracted, the gradient is exp(x). In units in the last place; libm has at most 1. */
TEST(exponentials_are_within_a_unit)
{
    enum { STEPS = 1 << 16 };
    static float x[STEPS], out[STEPS];
    const bp_row_gradient row = {.scale = 1, .factor = 1};
    FOR_KERNELS(kernels)
    {
        const bp_host_kernels *table = bp_kernels_choose(kernels->bit);
        double max = 0;
        for (unsigned part = 0; part < 16; part++) {
            for (unsigned i = 0; i < STEPS; i++)
                x[i] = -87.3f * (float)(part * STEPS + i) / (16 * STEPS);
            table->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, STEPS, &row, out);
            for (unsigned i = 0; i < STEPS; i++) {
                const double exact = exp(x[i]);
                max = fmax(max, fabs(out[i] - exact) / ldexp(1, ilogb(exact) - 23));
            }
            assert_true(part > 0 || out[0] == 1);
        }
        print_message("%s: %.3f units\n", kernels->name, max);
        assert_true(max <= 1.2);
        x[0] = -INFINITY, x[1] = -105, x[2] = -FLT_MAX;
        table->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, 3, &row, out);
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0);
    }
}

/* Narrow gradients are the rounded fp32 ones for all pairs of dtypes, addresses, pieces and kinds of stores, also in place from fp32. Nothing
 * else is written. */
static void check_pair(const bp_host_kernels *table, int dtype, int out_dtype, uint64_t columns)
{
    enum { MOST = 2 * BP_TILE_COLUMNS, MARGIN = 64 };
    static float wide[MOST], first[MOST];
    static _Alignas(64) char x[4 * MOST + MARGIN], to[4 * MOST + 2 * MARGIN], before[4 * MOST + 2 * MARGIN];
    static const size_t bytes[] = {4, 2, 2};
    const bp_row_gradient of_turn[] = {{.max = 4, .log_sum = 3, .scale = 0.9f, .factor = 1.25f},
                                       {.max = 4, .log_sum = 2, .energy = -1, .scale = 1, .entropy_grad = 0.75f}};
    for (uint32_t turn = 0; turn < 12; turn++) {
        bp_row_gradient row = of_turn[turn % 2];
        char *const at = x + turn * bytes[dtype], *const out = to + MARGIN / 2 + turn * 5 % 16 * bytes[out_dtype];
        const uint64_t cut = columns * turn / 12;
        row.streams = turn % 3 == 0;
        seed(turn);
        for (uint64_t i = 0; i < columns; i++)
            bp_row_set(dtype, at, i, i % 7 == 3 ? -INFINITY : (float)(4 * random_fraction()));
        table->gradient[dtype][BP_ROW_FP32](at, 0, columns, &row, wide);
        for (uint64_t i = 0; i < columns; i++)
            bp_row_set(out_dtype, first, i, wide[i]);
        memset(to, 0x5a, sizeof to);
        memcpy(before, to, sizeof to);
        table->gradient[dtype][out_dtype](at, cut, columns, &row, out);
        table->gradient[dtype][out_dtype](at, 0, cut, &row, out);
        memcpy(before + (out - to), first, columns * bytes[out_dtype]);
        assert_memory_equal(to, before, sizeof to);
        if (dtype == out_dtype || dtype == BP_ROW_FP32) {
            memcpy(before, x, sizeof x);
            memcpy(before + (at - x), first, columns * bytes[out_dtype]);
            table->gradient[dtype][out_dtype](at, 0, columns, &row, at);
            assert_memory_equal(x, before, sizeof x);
        }
    }
}

TEST(narrow_gradients_are_rounded_ones)
{
    static const uint64_t widths[] = {1, 7, 15, 33, 65, 129, 1000, BP_TILE_COLUMNS + 333};
    FOR_KERNELS(kernels)
    for (int pair = 0; pair < 9; pair++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            check_pair(bp_kernels_choose(kernels->bit), pair / 3, pair % 3, widths[w]);
}

/* The same bits for all 16-bit numbers and for fp32 at and beside the middle of two of them, except those of NaN. */
TEST(conversions_are_those_of_plain_kernels)
{
    enum { ALL = 1 << 16 };
    static const uint32_t low[] = {0, 0xfff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    static uint16_t halves[ALL], narrow[ALL], expected[ALL];
    static float wide[ALL], values[ALL];
    for (uint32_t i = 0; i < ALL; i++)
        halves[i] = (uint16_t)i;
    FOR_KERNELS(kernels)
    for (int dtype = BP_ROW_BF16; dtype <= BP_ROW_FP16; dtype++) {
        const bp_host_kernels *table = bp_kernels_choose(kernels->bit);
        for (uint32_t i = 0; i < ALL; i += BP_TILE_COLUMNS)
            table->widen[dtype](halves + i, BP_TILE_COLUMNS, BP_ROW_FP32, 0, wide + i);
        for (uint32_t i = 0; i < ALL; i++)
            values[i] = isnan(wide[i]) ? wide[i] : bp_row_value(dtype, halves, i);
        assert_memory_equal(wide, values, sizeof wide);
        for (size_t k = 0; k < sizeof low / sizeof *low; k++) {
            for (uint32_t i = 0; i < ALL; i++) {
                const uint32_t bits = i << 16 | low[k];
                memcpy(&wide[i], &bits, sizeof bits);
            }
            for (uint32_t i = 0; i < ALL; i += BP_TILE_COLUMNS)
                table->narrow[dtype](wide + i, NULL, BP_TILE_COLUMNS, 0, narrow + i);
            for (uint32_t i = 0; i < ALL; i++) {
                bp_row_set(dtype, expected, i, wide[i]);
                if (isnan(wide[i]) && isnan(bp_row_value(dtype, narrow, i)))
                    expected[i] = narrow[i];
            }
            assert_memory_equal(narrow, expected, sizeof narrow);
        }
    }
}

TESTS(open_host, close_host)
