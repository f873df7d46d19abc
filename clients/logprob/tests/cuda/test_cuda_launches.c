/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA kernels, one launch at a time on the emulation: bits depend neither on threads, blocks, alignment and scheduling nor on the part of a
 * row that shared memory keeps. Everything else about them is tested through the client. */
#include "support/harness.h"

#include "launches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/reference.h"
#include "kernels.h"
#include "support/brief.h"
#include "support/scenarios.h"

#define ROWS 3u

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
/* Within a tile, on its edge, several tiles, and more than are kept at once. */
static const uint32_t WIDTHS[] = {1, 7, 37, 2048, 2049, 3 * 2048 + 5, 5 * 2048 - 8};

#define FOR_DTYPES(dtype) for (size_t at_##dtype = 0; at_##dtype < 3; at_##dtype++)
#define FOR_WIDTHS(i) for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++)

#define FOR_FORMS(form) for (int32_t form = BP_SUMS_PLAIN; form <= BP_SUMS_TOTAL; form++)

static const grid PARTIALS_GRIDS[] = {{ROWS, 1, 128}, {1, 1, 128}, {2, 1, 32}, {ROWS, 1, 96}, {7, 1, 64}};

TEST(any_grid_makes_the_same_partials)
{
    FOR_DTYPES(d)
    FOR_WIDTHS(w)
    FOR_FORMS(form)
    {
        seed(40 + w);
        rows logits = new_rows(DTYPES[at_d], ROWS, WIDTHS[w], 0, 3), moved;
        bp_partial first[ROWS], again[ROWS];
        float targets[ROWS], same[ROWS];
        make_partials(&logits, form, PARTIALS_GRIDS[0], first, targets);
        for (uint32_t i = 0; i + 1 < ROWS; i++)
            assert_true(targets[i] == element_at(logits.data, logits.dtype, i * logits.stride + logits.targets[i]));
        assert_true(targets[ROWS - 1] == 0);
        for (uint32_t shift = 0; shift < 9; shift += in_brief() ? 3 : 1) {
            moved = moved_rows(&logits, shift, shift % 4);
            make_partials(&moved, form, PARTIALS_GRIDS[shift % 5], again, same);
            assert_memory_equal(again, first, sizeof first);
            assert_memory_equal(same, targets, sizeof same);
            free_rows(&moved);
        }
        free_rows(&logits);
    }
}

static const bp_dtype PAIRS[][2] = {{BP_DTYPE_FP32, BP_DTYPE_FP32}, {BP_DTYPE_BF16, BP_DTYPE_FP32},
                                    {BP_DTYPE_BF16, BP_DTYPE_BF16}, {BP_DTYPE_FP16, BP_DTYPE_FP32},
                                    {BP_DTYPE_FP16, BP_DTYPE_FP16}, {BP_DTYPE_FP32, BP_DTYPE_BF16},
                                    {BP_DTYPE_FP32, BP_DTYPE_FP16}};
static const grid GRADIENT_GRIDS[] = {{ROWS, 1, 128}, {1, 1, 128},   {ROWS, 3, 128},
                                      {2, 1, 32},     {ROWS, 2, 64}, {7, 7, 96}};

static bool narrows(const bp_dtype *pair)
{
    return pair[0] == BP_DTYPE_FP32 && pair[1] != BP_DTYPE_FP32;
}

static const uint32_t TARGETS[] = {1, 4, 32};

/* For any alignment of input and output. */
TEST(any_grid_makes_the_same_gradient)
{
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        FOR_WIDTHS(w)
        {
            const int32_t form = (int32_t)((p + w) % 3);
            seed(60 + w);
            rows logits = new_rows(PAIRS[p][0], ROWS, WIDTHS[w], 0, 0);
            set_targets(&logits, TARGETS[w % 3]);
            statistics s = new_statistics(&logits);
            rows first = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], 0, 0);
            make_gradient(&logits, &s, form, &first, GRADIENT_GRIDS[0]);
            for (uint32_t shift = 0; shift < 9; shift += in_brief() ? 3 : 1) {
                grid g = GRADIENT_GRIDS[shift % 6];
                g.parts = narrows(PAIRS[p]) ? 1 : g.parts;
                rows in = moved_rows(&logits, shift, shift % 4);
                rows out = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], (shift * 5) % 9, shift % 3);
                make_gradient(&in, &s, form, &out, g);
                assert_true(rows_are_equal(&out, &first));
                assert_true(row_gaps_are_whole(&out));
                assert_true(rows_are_equal(&in, &logits));
                free_rows(&out);
                free_rows(&in);
            }
            free_rows(&first);
            free_statistics(&s);
            free_rows(&logits);
        }
}

#define FOR_PAIRS(p) for (size_t p = 0; p < 5; p++) /* without fp32 to 16 bits */

/* Vectors of both dtypes are aligned in every row. */
static uint32_t gap_of(uint32_t columns)
{
    return (8 - columns % 8) % 8;
}

static uint32_t tiles_of(uint32_t columns)
{
    return (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
}

static unsigned shared_bytes(const rows *logits, grid g, uint32_t places, bool realigned)
{
    return tiles_of(logits->columns) * (unsigned)sizeof(bp_partial) +
           places * g.threads / 32 * (BP_TILE_COLUMNS * bp_dtype_bits(logits->dtype) / 8 + (realigned ? 16u : 0u));
}

static void run_fused(const bp_fused_work *work, int32_t form, grid g, unsigned bytes, bool realigned)
{
    char name[64];
    snprintf(name, sizeof name, "bp_fused_%s%s_%s%s", realigned ? "realigned_" : "",
             bp_dtype_name((bp_dtype)work->forward.logits.dtype), bp_dtype_name((bp_dtype)work->gradient.out_dtype),
             FORMS[form]);
    run_with(name, g, bytes, work);
}

static bp_fused_work fused_work(const rows *logits, const statistics *s, int32_t form, const rows *out)
{
    bp_fused_work work = {partials_work(logits, form, NULL, NULL), gradient_work(logits, s, form, out)};
    work.forward.results = results_work(&s->f, form);
    work.gradient.saved = work.forward.results.saved;
    return work;
}

/* `places`: per warp. The upstream gradients of `s` are used, its results are replaced. `shift`: of the rows, which then have gaps of that many
 * columns; aligned if it is 0. */
static void check(const rows *logits, const statistics *s, const rows *expected, const finished *results, int32_t form,
                  grid g, uint32_t places, uint32_t shift)
{
    const uint32_t gap = shift == 0 ? gap_of(logits->columns) : shift;
    rows in = moved_rows(logits, shift, gap);
    rows out = empty_rows(expected->dtype, logits->count, logits->columns, shift, gap);
    for (int in_place = 0; in_place <= (in.dtype == out.dtype); in_place++) {
        statistics mine = *s;
        mine.f = new_finished(logits->count, logits->targets_each);
        const bp_fused_work work = fused_work(&in, &mine, form, in_place ? &in : &out);
        run_fused(&work, form, g, shared_bytes(logits, g, places, shift != 0), shift != 0);
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
    static const uint32_t widths[] = {3, 37, 2048, 2056, 4 * 2048 + 5, 9 * 2048 + 1024, 25 * 2048 - 8, 33 * 2048 + 3};
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
            for (uint32_t places = each < 2 ? each : 2; places <= each; places++) {
                check(&logits, &s, &expected, &results, form, grids[i], places, 0);
                if (form != BP_SUMS_TOTAL)
                    check(&logits, &s, &expected, &results, form, grids[i], places, 1 + (uint32_t)random_below(8));
            }
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
    for (int32_t form = BP_SUMS_WEIGHTED; form <= BP_SUMS_TOTAL; form++) {
        const bool realigned = form != BP_SUMS_TOTAL;
        const uint32_t gap = realigned ? 4 : 5;
        seed(12);
        rows logits = new_rows(PAIRS[p][0], ROWS, 5003, 0, gap), out = empty_rows(PAIRS[p][1], ROWS, 5003, 0, gap);
        set_targets(&logits, 2);
        statistics s = new_statistics(&logits);
        const uint8_t mask[] = {0, 1, 0};
        for (uint32_t v = 0; v < 5003; v++)
            put_element(logits.data, logits.dtype, v, NAN);
        memset(s.f.logprob, 0xff, sizeof(float) * 2 * ROWS);
        bp_fused_work work = fused_work(&logits, &s, form, &out);
        work.forward.tokens.mask = work.gradient.tokens.mask = mask;
        work.forward.tokens.mask_stride = work.gradient.tokens.mask_stride = 1;
        run_fused(&work, form, (grid){1, 1, 128}, shared_bytes(&logits, (grid){1, 1, 128}, 1, realigned), realigned);
        for (uint32_t i = 0; i < ROWS; i++) {
            double sum = 0;
            for (uint32_t v = 0; v < 5003; v++)
                sum += fabs(element_at(out.data, out.dtype, i * out.stride + v));
            assert_true(mask[i] != 0 ? sum > 0 : sum == 0);
            const float *of[] = {s.f.entropy, s.f.logsumexp, s.f.max, s.f.log_sum, s.f.energy, s.f.mean_logprob};
            for (unsigned k = 0; k < (form == BP_SUMS_TOTAL ? 6 : 5); k++)
                assert_true(mask[i] != 0 ? of[k][i] != 0 : of[k][i] == 0);
            assert_true(mask[i] != 0 || (s.f.logprob[2 * i] == 0 && s.f.logprob[2 * i + 1] == 0));
        }
        assert_true(row_gaps_are_whole(&out));
        free_statistics(&s);
        free_rows(&out);
        free_rows(&logits);
    }
}

/* ---- traffic --------------------------------------------------------------------------------------------------------- */

/* At most `wanted` bytes an element, and 2 % for ends of rows, targets, and vectors that realigned tiles share. */
static bool is_about(uint64_t bytes, double wanted, uint64_t elements)
{
    const double each = (double)bytes / (double)elements;
    if (each >= wanted * 0.98 && each <= wanted * 1.02)
        return true;
    fprintf(stderr, "%.3f bytes an element instead of %.3f\n", each, wanted);
    return false;
}

/* Of aligned and unaligned rows: forward reads them once; both passes at once, too, where all tiles are kept; where each warp keeps two of three
 * tiles, one is read again. */
TEST(each_logit_is_read_once)
{
    enum { COLUMNS = 12 * 2048 };
    static const grid g = {ROWS, 1, 128};
    FOR_PAIRS(p)
    for (uint32_t shift = 0; shift < 8; shift += 3)
        for (int32_t form = BP_SUMS_PLAIN; form <= BP_SUMS_WEIGHTED; form++) {
            const double in_bytes = bp_dtype_bits(PAIRS[p][0]) / 8, out_bytes = bp_dtype_bits(PAIRS[p][1]) / 8;
            const uint32_t gap = shift == 0 ? 0 : shift;
            seed(90);
            rows logits = new_rows(PAIRS[p][0], ROWS, COLUMNS, shift, gap);
            rows out = empty_rows(PAIRS[p][1], ROWS, COLUMNS, shift, gap);
            statistics s = new_statistics(&logits);
            bp_partial partials[ROWS];
            float targets[ROWS];
            (void)simt_take_traffic();
            make_partials(&logits, form, g, partials, targets);
            assert_true(is_about(simt_take_traffic().loaded, in_bytes, ROWS * COLUMNS));
            const bp_fused_work work = fused_work(&logits, &s, form, &out);
            for (uint32_t places = 2; places <= 3; places++) {
                run_fused(&work, form, g, shared_bytes(&logits, g, places, shift != 0), shift != 0);
                const simt_traffic both = simt_take_traffic();
                assert_true(is_about(both.loaded, in_bytes * (places == 3 ? 1 : 4.0 / 3), ROWS * COLUMNS));
                assert_true(is_about(both.stored, out_bytes, ROWS * COLUMNS));
            }
            free_statistics(&s);
            free_rows(&out);
            free_rows(&logits);
        }
}

/* Seeds move 5 bytes a token and dense tokens twice their bytes, 16 bytes at once where they are stored; shifted by a token, sources are read
 * twice, the second time from a cache. */
TEST(small_tokens_move_in_vectors)
{
    enum { TOKENS = 65536 };
    static const uint32_t bytes[] = {1, 2, 4, 8};
    uint8_t *from = malloc(9 * TOKENS), *to = malloc(9 * TOKENS);
    assert_true(from != NULL && to != NULL);
    memset(from, 1, 9 * TOKENS);
    bp_sequence_group group = {
        .packed = {0, TOKENS}, .padded = {0, TOKENS}, .padded_tokens = TOKENS, .count = 1, .data = 1, .ranks = 1};
    for (uint32_t shift = BP_CP_KEEP; shift <= BP_CP_NEXT; shift++)
        for (size_t i = 0; i < 4; i++) {
            char name[32];
            const bp_rearrange_work work = {.group = group,
                                            .from = from,
                                            .to = to,
                                            .from_stride = bytes[i],
                                            .to_stride = bytes[i],
                                            .token_bytes = bytes[i],
                                            .from_order = BP_CP_PACKED,
                                            .to_order = BP_CP_PADDED,
                                            .shift = (int32_t)shift,
                                            .word_bytes = bytes[i]};
            snprintf(name, sizeof name, "bp_rearrange_%u", bytes[i]);
            (void)simt_take_traffic();
            run(name, (grid){4, 1, 128}, &work);
            const simt_traffic moved = simt_take_traffic();
            const uint32_t loads = shift == BP_CP_KEEP ? 1 : 2;
            assert_true(moved.stored == TOKENS * (uint64_t)bytes[i]);
            assert_true(is_about(moved.loaded, loads * (double)bytes[i], TOKENS));
            assert_true(moved.accesses <= TOKENS * bytes[i] / 16 * (1 + loads) * 11 / 10);
        }
    const bp_seed_work seeds = {
        .group = group, .mask = from, .seed = (float *)(void *)to, .mask_stride = 1, .seed_stride = 1, .value = 3};
    run("bp_seed", (grid){4, 1, 128}, &seeds);
    const simt_traffic moved = simt_take_traffic();
    assert_true(moved.loaded == TOKENS && moved.stored == 4 * TOKENS && moved.accesses == TOKENS / 2);
    for (size_t i = 0; i < TOKENS; i++)
        assert_true(((float *)(void *)to)[i] == 3);
    free(from);
    free(to);
}

/* ---- sums of columns ------------------------------------------------------------------------------------------------- */

TEST(columns_are_summed_in_row_order)
{
    static const uint32_t counts[] = {1, 8, 9, 31};
    for (unsigned d = 0; d < 3; d++)
        for (unsigned c = 0; c < 4; c++)
            for (int32_t adds = 0; adds < 2; adds++) {
                seed(460 + c);
                rows from = new_rows(DTYPES[d], counts[c], 333, c, 3);
                float to[333], expected[333];
                for (unsigned v = 0; v < 333; v++) {
                    float sum = 0;
                    for (unsigned i = 0; i < counts[c]; i++)
                        sum += (float)element_at(from.data, from.dtype, i * from.stride + v);
                    to[v] = adds != 0 ? (float)v : NAN;
                    expected[v] = adds != 0 ? (float)v + sum : sum;
                }
                const bp_columns_work work = {.from = from.data,
                                              .stride = from.stride,
                                              .rows = counts[c],
                                              .columns = 333,
                                              .dtype = (int32_t)from.dtype,
                                              .adds = adds,
                                              .to = to};
                char name[64];
                snprintf(name, sizeof name, "bp_columns_%s", bp_dtype_name(from.dtype));
                run(name, (grid){1 + c, 1, 128}, &work);
                assert_memory_equal(to, expected, sizeof to);
                free_rows(&from);
            }
}

TESTS(NULL, NULL)
