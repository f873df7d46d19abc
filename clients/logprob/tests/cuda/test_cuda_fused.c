/* The CUDA kernels that make results and gradient at once, on the emulation: the bits of the separate kernels, for any part of a row that
 * shared memory keeps. */
#include "support/harness.h"

#include "launches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/reference.h"
#include "support/brief.h"
#include "support/scenarios.h"

#define ROWS 3u

static const bp_dtype PAIRS[][2] = {{BP_DTYPE_FP32, BP_DTYPE_FP32},
                                    {BP_DTYPE_BF16, BP_DTYPE_FP32},
                                    {BP_DTYPE_BF16, BP_DTYPE_BF16},
                                    {BP_DTYPE_FP16, BP_DTYPE_FP32},
                                    {BP_DTYPE_FP16, BP_DTYPE_FP16}};
#define FOR_PAIRS(p) for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)

/* Vectors of both dtypes are aligned in every row. */
static uint32_t gap_of(uint32_t columns)
{
    return (8 - columns % 8) % 8;
}

static uint32_t tiles_of(uint32_t columns)
{
    return (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
}

static unsigned shared_bytes(const rows *logits, grid g, uint32_t places)
{
    return tiles_of(logits->columns) * (unsigned)sizeof(bp_partial) +
           places * g.threads / 32 * BP_TILE_COLUMNS * bp_dtype_bits(logits->dtype) / 8;
}

static void run_fused(const bp_fused_work *work, int32_t form, grid g, unsigned bytes)
{
    char name[64];
    snprintf(name, sizeof name, "bp_fused_%s_%s%s", bp_dtype_name((bp_dtype)work->forward.logits.dtype),
             bp_dtype_name((bp_dtype)work->gradient.out_dtype), FORMS[form]);
    run_with(name, g, bytes, work);
}

static bp_fused_work fused_work(const rows *logits, const statistics *s, int32_t form, const rows *out)
{
    bp_fused_work work = {partials_work(logits, form, NULL, NULL), gradient_work(logits, s, form, out)};
    work.forward.results = results_work(&s->f, form);
    work.gradient.saved = work.forward.results.saved;
    return work;
}

/* `places`: per warp. The upstream gradients of `s` are used, its results are replaced. */
static void check(const rows *logits, const statistics *s, const rows *expected, const finished *results, int32_t form,
                  grid g, uint32_t places)
{
    rows in = moved_rows(logits, 0, gap_of(logits->columns));
    rows out = empty_rows(expected->dtype, logits->count, logits->columns, 0, gap_of(logits->columns));
    for (int in_place = 0; in_place <= (in.dtype == out.dtype); in_place++) {
        statistics mine = *s;
        mine.f = new_finished(logits->count, logits->targets_each);
        const bp_fused_work work = fused_work(&in, &mine, form, in_place ? &in : &out);
        run_fused(&work, form, g, shared_bytes(logits, g, places));
        assert_true(finished_are_equal(&mine.f, results));
        assert_true(rows_are_equal(in_place ? &in : &out, expected));
        assert_true(row_gaps_are_whole(in_place ? &in : &out));
        assert_true(in_place || rows_are_equal(&in, logits));
        free_finished(&mine.f);
    }
    free_rows(&out);
    free_rows(&in);
}

/* Fewer tiles than warps, one tile a warp, tiles that are read again, ends of rows in each of them. */
TEST(any_part_of_a_row_may_be_kept)
{
    static const uint32_t widths[] = {8, 37, 2048, 2056, 4 * 2048 + 5, 9 * 2048 + 1024, 25 * 2048 - 8, 33 * 2048 + 3};
    static const grid grids[] = {{ROWS, 1, 128}, {1, 1, 128}, {2, 1, 256}};
    FOR_PAIRS(p)
    for (size_t w = 0; w < (in_brief() ? 6 : 8); w++) {
        const int32_t form = (int32_t)((p + w) % 3);
        seed(200 + w);
        rows logits = new_rows(PAIRS[p][0], ROWS, widths[w], 0, 0);
        set_targets(&logits, w % 2 == 0 ? 1 : 9);
        statistics s = new_statistics(&logits);
        finished results = new_finished(ROWS, logits.targets_each);
        bp_forward_work forward = partials_work(&logits, form, NULL, NULL);
        forward.results = results_work(&results, form);
        run_forward(&forward, (grid){ROWS, 1, 128});
        rows expected = empty_rows(PAIRS[p][1], ROWS, widths[w], 0, 0);
        make_gradient(&logits, &s, form, &expected, (grid){ROWS, 1, 128});
        for (size_t i = 0; i < 3; i++) {
            const uint32_t each = (tiles_of(widths[w]) + grids[i].threads / 32 - 1) / (grids[i].threads / 32);
            for (uint32_t places = each < 2 ? each : 2; places <= each; places++)
                check(&logits, &s, &expected, &results, form, grids[i], places);
        }
        free_rows(&expected);
        free_finished(&results);
        free_statistics(&s);
        free_rows(&logits);
    }
}

/* A block takes masked rows between others. Nothing of a masked row is read. */
TEST(masked_rows_are_zero)
{
    FOR_PAIRS(p)
    {
        seed(12);
        rows logits = new_rows(PAIRS[p][0], ROWS, 5003, 0, 5), out = empty_rows(PAIRS[p][1], ROWS, 5003, 0, 5);
        set_targets(&logits, 2);
        statistics s = new_statistics(&logits);
        const uint8_t mask[] = {0, 1, 0};
        for (uint32_t v = 0; v < 5003; v++)
            put_element(logits.data, logits.dtype, v, NAN);
        memset(s.f.logprob, 0xff, sizeof(float) * 2 * ROWS);
        bp_fused_work work = fused_work(&logits, &s, BP_SUMS_TOTAL, &out);
        work.forward.tokens.mask = work.gradient.tokens.mask = mask;
        work.forward.tokens.mask_stride = work.gradient.tokens.mask_stride = 1;
        run_fused(&work, BP_SUMS_TOTAL, (grid){1, 1, 128}, shared_bytes(&logits, (grid){1, 1, 128}, 1));
        for (uint32_t i = 0; i < ROWS; i++) {
            double sum = 0;
            for (uint32_t v = 0; v < 5003; v++)
                sum += fabs(element_at(out.data, out.dtype, i * out.stride + v));
            assert_true(mask[i] != 0 ? sum > 0 : sum == 0);
            const float *of[] = {s.f.entropy, s.f.logsumexp, s.f.mean_logprob, s.f.max, s.f.log_sum, s.f.energy};
            for (unsigned k = 0; k < 6; k++)
                assert_true(mask[i] != 0 ? of[k][i] != 0 : of[k][i] == 0);
            assert_true(mask[i] != 0 || (s.f.logprob[2 * i] == 0 && s.f.logprob[2 * i + 1] == 0));
        }
        assert_true(row_gaps_are_whole(&out));
        free_statistics(&s);
        free_rows(&out);
        free_rows(&logits);
    }
}

TESTS(NULL, NULL)
