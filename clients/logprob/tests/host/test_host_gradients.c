/* Gradients of every host kernel of this machine, against fp64: all dtypes, odd sizes, alignments, special values, in place. Rows end at a
 * page that traps, and outputs are between canaries. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/kernels.h"
#include "tables.h"

#define TILE BP_TILE_COLUMNS
#define CANARIES 64u
#define CANARY 0x5a
#define MOST_COLUMNS (3 * TILE)

static const uint64_t row_columns[] = {1,
                                       2,
                                       7,
                                       8,
                                       15,
                                       17,
                                       31,
                                       33,
                                       63,
                                       64,
                                       65,
                                       127,
                                       129,
                                       1000,
                                       TILE - 1,
                                       TILE,
                                       TILE + 1,
                                       2 * TILE - 1,
                                       2 * TILE + 129,
                                       3 * TILE - 1};
static const float scales[] = {1, 0.37f, 4};

/* With factor 1 and nothing subtracted, the gradient is exp(x). In units in the last place; libm has at most 1. */
TEST(test_exp)
{
    enum { STEPS = 1 << 16 };
    static float x[STEPS], out[STEPS];
    const bp_host_kernels *found[3];
    const bp_row_gradient row = {.scale = 1, .factor = 1};
    size_t count = tables(found);
    for (size_t k = 0; k < count; k++) {
        double most = 0;
        for (unsigned part = 0; part < 16; part++) {
            for (unsigned i = 0; i < STEPS; i++)
                x[i] = -87.3f * (float)(part * STEPS + i) / (16 * STEPS);
            found[k]->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, STEPS, &row, out);
            for (unsigned i = 0; i < STEPS; i++) {
                double exact = exp(x[i]);
                most = fmax(most, fabs(out[i] - exact) / ldexp(1, ilogb(exact) - 23));
            }
            assert_true(part > 0 || out[0] == 1);
        }
        print_message("%s: %.3f units\n", found[k]->name, most);
        assert_true(most <= 1.2);
        x[0] = -INFINITY, x[1] = -105, x[2] = -FLT_MAX;
        found[k]->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, 3, &row, out);
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0);
    }
}

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

/* Saved statistics of a row; cycles through kinds of upstream gradients. */
static bp_row_gradient gradient_for(int dtype, const void *x, uint64_t columns, float scale, unsigned turn)
{
    static const float g[] = {0.5f, -1.25f, 0, 3, 0}, h[] = {0, 0.75f, -2, 1e-3f, 0};
    exact_sums exact = sums_of(dtype, x, columns, scale);
    return (bp_row_gradient){.max = (float)exact.max,
                             .log_sum = (float)log(exact.sum),
                             .energy = (float)(exact.weighted / exact.sum),
                             .scale = scale,
                             .factor = -g[turn % COUNT(g)],
                             .entropy_grad = h[turn % COUNT(h)],
                             .streams = turn % 2 == 1};
}

/* Half a unit in the last place of `dtype` at `value`. */
static double rounding_of(int dtype, double value)
{
    static const int digits[DTYPES] = {24, 8, 11}, least[DTYPES] = {-149, -133, -24};
    int exponent = 0;
    (void)frexp(value, &exponent);
    return ldexp(1, exponent - digits[dtype] < least[dtype] ? least[dtype] - 1 : exponent - digits[dtype] - 1) * 1.0001;
}

static void compare_gradient(const bp_host_kernels *kernels, int dtype, int out_dtype, const void *x, uint64_t columns,
                             const bp_row_gradient *row, const void *out)
{
    for (uint64_t i = 0; i < columns; i++) {
        double tolerance, exact = gradient_of_row(row, value_at(dtype, x, i), false, &tolerance);
        double is = value_at(out_dtype, out, i);
        if (!(fabs(is - exact) <= tolerance + 2 * rounding_of(out_dtype, exact)))
            fail_msg("%s %s to %s, %llu columns, scale %g, g %g, h %g: element %llu (x %.9g) is %.9g, "
                     "expected %.9g",
                     kernels->name, dtype_names[dtype], dtype_names[out_dtype], (unsigned long long)columns,
                     (double)row->scale, -row->factor, (double)row->entropy_grad, (unsigned long long)i,
                     value_at(dtype, x, i), is, exact);
    }
}

/* Output with canaries before it, and after it unless a guard page follows. */
static char *new_out(uint64_t columns, int out_dtype, size_t behind)
{
    size_t bytes = columns * element_bytes(out_dtype);
    char *out = take_guarded(CANARIES + bytes + behind);
    memset(out, CANARY, CANARIES + bytes + behind);
    memset(out + CANARIES, 0xff, bytes); /* NaN */
    return out + CANARIES;
}

static void end_out(char *out, uint64_t columns, int out_dtype, size_t behind)
{
    size_t bytes = columns * element_bytes(out_dtype);
    for (size_t i = 0; i < CANARIES; i++)
        assert_int_equal((out - CANARIES)[i], CANARY);
    for (size_t i = 0; i < behind; i++)
        assert_int_equal((out + bytes)[i], CANARY);
    give_guarded(out - CANARIES, CANARIES + bytes + behind);
}

static void check_gradients(const bp_host_kernels *kernels, int dtype)
{
    unsigned turn = 0;
    for (size_t c = 0; c < COUNT(row_columns); c++) {
        uint64_t columns = row_columns[c];
        void *x = take_guarded(columns * element_bytes(dtype));
        for (int kind = 0; row_is_regular((row_kind)kind); kind++) {
            fill_row((row_kind)kind, dtype, x, columns, c + 100);
            for (int out_dtype = 0; out_dtype < DTYPES; out_dtype++, turn++) {
                bp_row_gradient row = gradient_for(dtype, x, columns, scales[turn % COUNT(scales)], turn);
                size_t behind = turn % 3 * 6 * element_bytes(out_dtype);
                char *out = new_out(columns, out_dtype, behind);
                kernels->gradient[dtype][out_dtype](x, 0, columns, &row, out);
                compare_gradient(kernels, dtype, out_dtype, x, columns, &row, out);
                end_out(out, columns, out_dtype, behind);
            }
        }
        give_guarded(x, columns * element_bytes(dtype));
    }
}

TEST(test_gradients)
{
    each(check_gradients);
}

/* A row with NaN or +inf, or of only -inf, has a log_sum of NaN. */
static void check_special_gradients(const bp_host_kernels *kernels, int dtype)
{
    uint16_t x[2 * 100];
    for (int kind = ROW_NOTHING; kind < ROW_KINDS; kind++) {
        fill_row((row_kind)kind, dtype, x, 100, 5);
        float max = kind == ROW_NAN ? 3 : kind == ROW_INFINITE ? INFINITY : -INFINITY;
        for (int out_dtype = 0; out_dtype < DTYPES; out_dtype++) {
            for (int with_entropy = 0; with_entropy < 2; with_entropy++) {
                bp_row_gradient row = {.max = max,
                                       .log_sum = NAN,
                                       .energy = with_entropy ? NAN : 0,
                                       .scale = 1,
                                       .entropy_grad = (float)with_entropy};
                float out[100] = {0};
                kernels->gradient[dtype][out_dtype](x, 0, 100, &row, out);
                for (uint64_t i = 0; i < 100; i++)
                    assert_true(isnan(value_at(out_dtype, out, i)));
            }
        }
    }
}

TEST(test_special_gradients)
{
    each(check_special_gradients);
}

/* Bits do not depend on alignment, streaming stores, or pieces; narrow results are the rounded fp32 ones. */
static void check_gradient_bits(const bp_host_kernels *kernels, int dtype)
{
    const uint64_t columns = TILE + 333;
    size_t bytes = element_bytes(dtype);
    static char memory[4 * MOST_COLUMNS + 128], to[4 * MOST_COLUMNS + 128];
    static float wide[MOST_COLUMNS], first[MOST_COLUMNS];
    fill_row(ROW_SPARSE, dtype, memory, columns, 9);
    for (unsigned turn = 0; turn < 4; turn++) {
        bp_row_gradient row = gradient_for(dtype, memory, columns, 0.9f, turn);
        kernels->gradient[dtype][BP_ROW_FP32](memory, 0, columns, &row, wide);
        for (int out_dtype = 0; out_dtype < DTYPES; out_dtype++) {
            size_t out_bytes = columns * element_bytes(out_dtype);
            for (uint64_t i = 0; i < columns; i++)
                bp_row_set(out_dtype, first, i, wide[i]);
            for (unsigned k = 0; k < 130; k++) {
                char *x = memory + k * 7 % 32 * bytes,
                     *out = to + k % 64 / element_bytes(out_dtype) * element_bytes(out_dtype);
                fill_row(ROW_SPARSE, dtype, x, columns, 9);
                memset(to, 0xff, sizeof to);
                row.streams = k >= 65;
                uint64_t cut = k * 61 % columns;
                kernels->gradient[dtype][out_dtype](x, cut, columns, &row, out);
                kernels->gradient[dtype][out_dtype](x, 0, cut, &row, out);
                assert_memory_equal(out, first, out_bytes);
            }
            fill_row(ROW_SPARSE, dtype, memory, columns, 9);
        }
    }
}

TEST(test_gradient_bits)
{
    each(check_gradient_bits);
}

/* In place with one dtype, and narrowed from fp32 at the row's start, where nothing after the output changes. */
static void check_in_place(const bp_host_kernels *kernels, int dtype)
{
    for (int out_dtype = 0; out_dtype < DTYPES; out_dtype++) {
        if (out_dtype != dtype && dtype != BP_ROW_FP32)
            continue;
        for (size_t c = 0; c < COUNT(row_columns); c++) {
            uint64_t columns = row_columns[c];
            size_t bytes = columns * element_bytes(dtype), out_bytes = columns * element_bytes(out_dtype);
            static float apart[MOST_COLUMNS], before[MOST_COLUMNS];
            char *x = take_guarded(bytes);
            for (unsigned turn = 0; turn < 8; turn++) {
                fill_row(ROW_NORMAL, dtype, x, columns, turn + 1);
                bp_row_gradient row = gradient_for(dtype, x, columns, 1, turn);
                memcpy(before, x, bytes);
                kernels->gradient[dtype][out_dtype](x, 0, columns, &row, apart);
                kernels->gradient[dtype][out_dtype](x, 0, columns, &row, x);
                assert_memory_equal(x, apart, out_bytes);
                assert_memory_equal(x + out_bytes, (char *)before + out_bytes, bytes - out_bytes);
            }
            give_guarded(x, bytes);
        }
    }
}

TEST(test_in_place)
{
    each(check_in_place);
}

TESTS(NULL, NULL)
