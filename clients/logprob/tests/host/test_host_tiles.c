/* Tiles of every host kernel of this machine, against fp64: all dtypes, odd sizes, alignments, special values. Rows end at a page that
 * traps. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/kernels.h"
#include "tables.h"

#define TILE BP_TILE_COLUMNS

static const uint32_t tile_columns[] = {1,  2,  3,  5,  7,  8,   9,   15,  16,  17,   31,   32,
                                        33, 63, 64, 65, 96, 127, 129, 255, 999, 1023, 2047, 2048};
static const float scales[] = {1, 0.37f, 4};

TEST(test_choice)
{
    const bp_host_kernels *found[3];
    size_t count = tables(found);
    assert_ptr_equal(found[0], &bp_kernels_plain);
    assert_ptr_equal(bp_kernels_choose(0), &bp_kernels_plain);
    assert_ptr_equal(bp_kernels_choose(BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512), found[count - 1]);
    for (size_t i = 0; i < count; i++)
        print_message("%s\n", found[i]->name);
}

/* ---- tiles --------------------------------------------------------------------------------------------------------- */

static bp_partial reduce(const bp_host_kernels *kernels, int dtype, const void *x, uint32_t columns, float scale,
                         int level)
{
    bp_partial partial;
    memset(&partial, 0xff, sizeof partial); /* NaN */
    kernels->tile[dtype](x, columns, scale, level, &partial);
    return partial;
}

static void compare_sums(const bp_host_kernels *kernels, int dtype, row_kind kind, uint32_t columns, float scale,
                         const bp_partial *partial, const exact_sums *exact)
{
    bool is_close = partial->max == exact->max && fabs(partial->sum - exact->sum) <= 1e-6 * exact->sum &&
                    fabs(partial->weighted - exact->weighted) <= 2e-6 * (exact->weight + exact->sum);
    if (!is_close)
        fail_msg("%s %s, kind %d, %u columns, scale %g: max %.9g sum %.9g weighted %.9g, expected %.9g %.9g %.9g",
                 kernels->name, dtype_names[dtype], (int)kind, columns, (double)scale, (double)partial->max,
                 (double)partial->sum, (double)partial->weighted, exact->max, exact->sum, exact->weighted);
}

/* -inf in the row and not in the padding makes it -inf. */
static void assert_total(const bp_host_kernels *kernels, int dtype, const void *x, uint32_t columns, float total)
{
    double sum = 0, sizes = 0;
    for (uint32_t i = 0; i < columns; i++) {
        sum += value_at(dtype, x, i);
        sizes += fabs(value_at(dtype, x, i));
    }
    if (!(total == sum || fabs(total - sum) <= 1e-6 * sizes) && fabs(sum) < 3e38)
        fail_msg("%s %s, %u columns: total %.9g, expected %.9g", kernels->name, dtype_names[dtype], columns,
                 (double)total, sum);
}

static void check_tiles(const bp_host_kernels *kernels, int dtype)
{
    for (size_t c = 0; c < COUNT(tile_columns); c++) {
        uint32_t columns = tile_columns[c];
        void *x = take_guarded(columns * element_bytes(dtype));
        for (int kind = 0; row_is_regular((row_kind)kind); kind++) {
            fill_row((row_kind)kind, dtype, x, columns, c + 1);
            for (size_t s = 0; s < COUNT(scales); s++) {
                exact_sums exact = sums_of(dtype, x, columns, scales[s]);
                bp_partial partial = reduce(kernels, dtype, x, columns, scales[s], BP_SUMS_WEIGHTED);
                compare_sums(kernels, dtype, (row_kind)kind, columns, scales[s], &partial, &exact);
                bp_partial without = reduce(kernels, dtype, x, columns, scales[s], BP_SUMS_PLAIN);
                assert_true(without.weighted == 0);
                assert_memory_equal(&without.max, &partial.max, 2 * sizeof(float));
                assert_true(without.total == 0 && partial.total == 0);
                bp_partial all = reduce(kernels, dtype, x, columns, scales[s], BP_SUMS_TOTAL);
                assert_memory_equal(&all.max, &partial.max, 3 * sizeof(float));
                assert_total(kernels, dtype, x, columns, all.total);
            }
        }
        give_guarded(x, columns * element_bytes(dtype));
    }
}

TEST(test_tiles)
{
    each(check_tiles);
}

/* Rows without a distribution: only -inf gives sums of 0; NaN and +inf give NaN at any position. */
static void check_special_tiles(const bp_host_kernels *kernels, int dtype)
{
    uint16_t memory[2 * TILE] = {0};
    for (size_t c = 0; c < COUNT(tile_columns); c++) {
        uint32_t columns = tile_columns[c];
        for (uint64_t seed = 1; seed < 20; seed++) {
            fill_row(ROW_NOTHING, dtype, memory, columns, seed);
            bp_partial partial = reduce(kernels, dtype, memory, columns, 1, BP_SUMS_WEIGHTED);
            assert_true(partial.max == -INFINITY && partial.sum == 0 && partial.weighted == 0);
            fill_row(ROW_NAN, dtype, memory, columns, seed);
            partial = reduce(kernels, dtype, memory, columns, 1, BP_SUMS_WEIGHTED);
            assert_true(isnan(partial.sum) && isnan(partial.weighted));
            fill_row(ROW_NAN_ALONE, dtype, memory, columns, seed);
            partial = reduce(kernels, dtype, memory, columns, 1, BP_SUMS_WEIGHTED);
            assert_true(isnan(partial.sum) && isnan(partial.weighted));
            fill_row(ROW_INFINITE, dtype, memory, columns, seed);
            partial = reduce(kernels, dtype, memory, columns, 1, BP_SUMS_WEIGHTED);
            assert_true(partial.max == INFINITY && isnan(partial.sum) && isnan(partial.weighted));
        }
    }
}

TEST(test_special_tiles)
{
    each(check_special_tiles);
}

static void check_tile_alignments(const bp_host_kernels *kernels, int dtype)
{
    static const uint32_t sizes[] = {33, 1000, TILE};
    size_t bytes = element_bytes(dtype);
    char *memory = take_guarded(TILE * bytes + 128);
    for (size_t c = 0; c < COUNT(sizes); c++) {
        bp_partial first = {0};
        for (size_t offset = 0; offset < 128; offset += bytes) {
            char *x = memory + 128 - offset; /* offset 0: the guard page follows a whole tile */
            fill_row(ROW_WIDE, dtype, x, sizes[c], 77);
            bp_partial partial = reduce(kernels, dtype, x, sizes[c], 0.7f, BP_SUMS_WEIGHTED);
            first = offset == 0 ? partial : first;
            assert_memory_equal(&partial, &first, sizeof first);
        }
    }
    give_guarded(memory, TILE * bytes + 128);
}

TEST(test_tile_alignments)
{
    each(check_tile_alignments);
}

TESTS(NULL, NULL)
