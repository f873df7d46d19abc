/* CUDA kernels for the smallest and largest logit, one launch at a time on the emulation, against a plain loop. */
#include "support/harness.h"

#include "../support/reference.h"
#include "launches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/scenarios.h"

#define ROWS 3u
#define FAR_APART 5 /* elements between outputs */

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
/* Less than a vector, a few, some per thread, and more than a thread has in flight. */
static const uint32_t WIDTHS[] = {1, 2, 7, 8, 37, 1029, 4096 + 3, 8192 + 64, 2 * 8192 + 1029};
static const grid GRIDS[] = {{ROWS, 1, 128}, {1, 1, 128}, {2, 1, 32}, {7, 1, 96}, {ROWS, 1, 64}};

typedef struct outputs {
    float least[ROWS], largest[ROWS * FAR_APART];
} outputs;

static bp_range_work range_work(const rows *logits, outputs *out)
{
    memset(out, 0xff, sizeof *out);
    return (bp_range_work){.tokens = tokens_work(logits),
                           .logits = logits_work(logits),
                           .least = out->least,
                           .least_batch_stride = ROWS,
                           .least_stride = 1,
                           .largest = out->largest,
                           .largest_batch_stride = (int64_t)ROWS * FAR_APART,
                           .largest_stride = FAR_APART};
}

static void run_range(const bp_range_work *work, grid g)
{
    char name[32];
    snprintf(name, sizeof name, "bp_range_%s", bp_dtype_name((bp_dtype)work->logits.dtype));
    run(name, g, work);
}

static bool is_same(double made, double expected)
{
    return made == expected || (isnan(made) && isnan(expected));
}

static void check(const rows *logits, grid g)
{
    outputs out;
    bp_range_work work = range_work(logits, &out);
    run_range(&work, g);
    for (uint32_t i = 0; i < ROWS; i++) {
        double least = INFINITY, largest = -INFINITY;
        for (uint32_t v = 0; v < logits->columns; v++) {
            const double x = element_at(logits->data, logits->dtype, i * logits->stride + v);
            least = isnan(x) || x < least ? x : least;
            largest = isnan(x) || x > largest ? x : largest;
            if (isnan(x))
                break;
        }
        assert_true(is_same((double)out.least[i], least));
        assert_true(is_same((double)out.largest[(size_t)i * FAR_APART], largest));
        for (unsigned k = 1; k < FAR_APART; k++)
            assert_true(isnan(out.largest[(size_t)i * FAR_APART + k]));
    }
}

TEST(any_grid_and_alignment_finds_the_same)
{
    for (unsigned d = 0; d < 3; d++)
        for (unsigned w = 0; w < 9; w++)
            for (uint32_t shift = 0; shift < 9; shift++) {
                seed(10 * w + shift);
                rows logits = new_rows(DTYPES[d], ROWS, WIDTHS[w], shift, shift % 4);
                check(&logits, GRIDS[(shift + w) % 5]);
                free_rows(&logits);
            }
}

/* Extremes, infinities and NaN at any position of a row. */
TEST(every_element_counts)
{
    const double special[] = {-40, 40, -INFINITY, INFINITY, (double)NAN};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned i = 0; i < 5; i++)
            for (unsigned round = 0; round < 12; round++) {
                seed(70 + round);
                const uint32_t columns = 1 + random_below(round % 3 == 0 ? 9000 : 60);
                rows logits = new_rows(DTYPES[d], ROWS, columns, random_below(9), random_below(3));
                for (uint32_t row = 0; row < ROWS; row++) {
                    const uint32_t at = round == 0 ? 0 : round == 1 ? columns - 1 : random_below(columns);
                    put_element(logits.data, DTYPES[d], row * logits.stride + at, special[i]);
                }
                check(&logits, GRIDS[round % 5]);
                free_rows(&logits);
            }
}

/* Rows of only -inf (both results), of positive and of negative numbers. */
TEST(rows_of_equal_signs)
{
    const double kinds[] = {-INFINITY, INFINITY, -200, 200};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned i = 0; i < 4; i++) {
            rows logits = new_rows(DTYPES[d], ROWS, 1029, i, 1);
            for (uint32_t row = 0; row < ROWS; row++)
                for (uint32_t v = 0; v < 1029; v++)
                    put_element(logits.data, DTYPES[d], row * logits.stride + v, kinds[i]);
            check(&logits, GRIDS[i]);
            free_rows(&logits);
        }
}

TEST(masked_rows_are_not_read)
{
    seed(6);
    rows logits = new_rows(BP_DTYPE_BF16, ROWS, 100, 0, 0);
    outputs out;
    uint8_t mask[ROWS] = {0, 1, 0};
    bp_range_work work = range_work(&logits, &out);
    work.tokens.mask = mask;
    work.tokens.mask_batch_stride = ROWS;
    work.tokens.mask_stride = 1;
    run_range(&work, (grid){2, 1, 128});
    assert_true(out.least[0] == 0 && out.largest[0] == 0 && out.least[2] == 0 && out.largest[2 * FAR_APART] == 0);
    assert_true(out.least[1] < 0 && out.largest[FAR_APART] > 0);
    mask[1] = 0;
    work.logits.data = NULL;
    run_range(&work, (grid){2, 1, 128});
    assert_true(out.least[1] == 0 && out.largest[FAR_APART] == 0);
    free_rows(&logits);
}

TEST(outputs_are_independent)
{
    seed(8);
    rows logits = new_rows(BP_DTYPE_FP16, ROWS, 500, 3, 0);
    outputs both, one;
    bp_range_work work = range_work(&logits, &both);
    run_range(&work, GRIDS[0]);
    work = range_work(&logits, &one);
    work.largest = NULL;
    run_range(&work, GRIDS[1]);
    assert_memory_equal(one.least, both.least, sizeof both.least);
    assert_true(isnan(one.largest[0]));
    work = range_work(&logits, &one);
    work.least = NULL;
    run_range(&work, GRIDS[2]);
    assert_memory_equal(one.largest, both.largest, sizeof both.largest);
    assert_true(isnan(one.least[0]));
    free_rows(&logits);
}

TESTS(NULL, NULL)
