/* CUDA kernels, one launch at a time on the emulation: bits do not depend on threads, blocks, alignment and scheduling, and nothing outside
 * the tensors is touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../support/reference.h"
#include "launches.h"

#include <stdlib.h>
#include <string.h>

#include "../../planner/scenarios.h"
#include "../../support/brief.h"

#define ROWS 3u

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
/* Within a tile, on its edge, several tiles, and more than are kept at once. */
static const uint32_t WIDTHS[] = {1, 7, 37, 2048, 2049, 3 * 2048 + 5, 5 * 2048 - 8};

#define FOR_DTYPES(dtype) for (size_t at_##dtype = 0; at_##dtype < 3; at_##dtype++)
#define FOR_WIDTHS(i) for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++)

/* ---- partials ------------------------------------------------------------------------------------------------------ */

static const grid PARTIALS_GRIDS[] = {{ROWS, 1, 128}, {1, 1, 128}, {2, 1, 32}, {ROWS, 1, 96}, {7, 1, 64}};

static void any_grid_makes_the_same_partials(void **state)
{
    (void)state;
    FOR_DTYPES(d)
    FOR_WIDTHS(w)
    for (int entropy = 0; entropy < 2; entropy++) {
        seed(40 + w);
        rows logits = new_rows(DTYPES[at_d], ROWS, WIDTHS[w], 0, 3), moved;
        bp_partial first[ROWS], again[ROWS];
        make_partials(&logits, entropy, PARTIALS_GRIDS[0], first);
        for (uint32_t shift = 0; shift < 9; shift += in_brief() ? 3 : 1) {
            moved = moved_rows(&logits, shift, shift % 4);
            make_partials(&moved, entropy, PARTIALS_GRIDS[shift % 5], again);
            assert_memory_equal(again, first, sizeof first);
            free_rows(&moved);
        }
        free_rows(&logits);
    }
}

static void entropy_changes_no_sum(void **state)
{
    (void)state;
    FOR_DTYPES(d)
    {
        seed(3);
        rows logits = new_rows(DTYPES[at_d], ROWS, 4500, 1, 0);
        bp_partial with[ROWS], without[ROWS];
        make_partials(&logits, 1, PARTIALS_GRIDS[0], with);
        make_partials(&logits, 0, PARTIALS_GRIDS[0], without);
        for (unsigned i = 0; i < ROWS; i++) {
            assert_true(with[i].weighted < 0);
            assert_true(without[i].weighted == 0);
            with[i].weighted = 0;
            assert_memory_equal(&with[i], &without[i], sizeof *with);
        }
        free_rows(&logits);
    }
}

/* More tiles than a block keeps, so several rounds; the last one is partial. */
static void rows_of_any_length_are_summed(void **state)
{
    (void)state;
    const uint32_t columns = 2 * 256 * BP_TILE_COLUMNS + 4097;
    seed(5);
    rows logits = new_rows(BP_DTYPE_BF16, 1, columns, 0, 0);
    double *x = malloc(columns * sizeof *x);
    assert_non_null(x);
    for (uint32_t i = 0; i < columns; i++)
        x[i] = element_at(logits.data, BP_DTYPE_BF16, i);
    true_row expected = row_of(x, columns, 17, 1);
    bp_partial partial, again;
    bp_partials_work work = partials_work(&logits, 1, &partial);
    *(int64_t *)(void *)(uintptr_t)work.tokens.target = 17;
    run("bp_partials_bf16_entropy", (grid){1, 1, 128}, &work);
    finished f = new_finished(1);
    bp_finish_work finish = finish_work(&f, &work.tokens, &partial, 1, columns);
    run("bp_finish", (grid){1, 1, 128}, &finish);
    assert_true(is_near(f.logprob[0], expected.logprob));
    assert_true(is_near(f.entropy[0], expected.entropy));
    work.partials = &again;
    run("bp_partials_bf16_entropy", (grid){1, 1, 64}, &work);
    assert_memory_equal(&again, &partial, sizeof again);
    free_finished(&f);
    free(x);
    free_rows(&logits);
}

static void partials_of_masked_rows_stay_as_they_are(void **state)
{
    (void)state;
    seed(6);
    rows logits = new_rows(BP_DTYPE_FP16, ROWS, 100, 0, 0);
    bp_partial partials[ROWS];
    const uint8_t mask[ROWS] = {0, 1, 0};
    memset(partials, 0x5a, sizeof partials);
    bp_partial before = partials[0];
    bp_partials_work work = partials_work(&logits, 0, partials);
    work.tokens.has_mask = 1;
    work.tokens.mask = mask;
    work.tokens.mask_batch_stride = ROWS;
    work.tokens.mask_stride = 1;
    run("bp_partials_fp16", (grid){ROWS, 1, 128}, &work);
    assert_memory_equal(&partials[0], &before, sizeof before);
    assert_memory_equal(&partials[2], &before, sizeof before);
    assert_memory_not_equal(&partials[1], &before, sizeof before);
    free_rows(&logits);
}

/* ---- finish -------------------------------------------------------------------------------------------------------- */

/* Three ranks that share a vocabulary. */
static void ranks_are_merged(void **state)
{
    (void)state;
    static const uint32_t ends[] = {0, 700, 707, 3000};
    seed(7);
    rows logits = new_rows(BP_DTYPE_FP32, ROWS, 3000, 0, 0);
    bp_partial partials[3][ROWS];
    bp_partials_work work;
    for (uint32_t rank = 0; rank < 3; rank++) {
        work = partials_work(&logits, 1, partials[rank]);
        work.logits.data = (const float *)work.logits.data + ends[rank];
        work.logits.first = ends[rank];
        work.logits.columns = ends[rank + 1] - ends[rank];
        run("bp_partials_fp32_entropy", (grid){ROWS, 1, 128}, &work);
    }
    finished f = new_finished(ROWS);
    bp_finish_work finish = finish_work(&f, &work.tokens, partials[0], 3, 3000);
    run("bp_finish", (grid){1, 1, 128}, &finish);
    for (unsigned i = 0; i < ROWS; i++) {
        double x[3000];
        for (unsigned v = 0; v < 3000; v++)
            x[v] = ((const float *)(const void *)logits.data)[i * 3000 + v];
        true_row expected = row_of(x, 3000, logits.targets[i], 1);
        assert_true(is_near(f.logprob[i], expected.logprob));
        assert_true(is_near(f.entropy[i], expected.entropy));
    }
    free_finished(&f);
    free_rows(&logits);
}

/* The lowest token is recorded, in any scheduling and for any distance of its id, and kept over calls. */
static void the_lowest_bad_target_is_recorded(void **state)
{
    (void)state;
    enum { TOKENS = 600 };
    static const int64_t values[] = {INT64_MIN, INT64_MAX, -1, 99, 200, INT64_MIN + 100};
    static bp_partial partials[TOKENS];
    finished f = new_finished(TOKENS);
    for (unsigned round = 0, rounds = (unsigned)share_of(24); round < rounds; round++) {
        seed(90 + round);
        int64_t target[TOKENS];
        uint8_t mask[TOKENS];
        uint32_t first = 100 + random_below(400);
        bp_bad_target bad = {UINT64_MAX, -1};
        for (unsigned i = 0; i < TOKENS; i++) {
            target[i] = 100 + random_below(100);
            mask[i] = i != 50;
            if (i > first && random_below(3) == 0)
                target[i] = values[random_below(6)];
        }
        target[first] = values[round % 6];
        target[50] = -7;
        bp_tokens_work tokens = {1, TOKENS, target, TOKENS, 1, 1, 1, mask, TOKENS, 1};
        bp_finish_work finish = finish_work(&f, &tokens, partials, 1, 100);
        finish.vocab_first = 100;
        finish.bad = &bad;
        run("bp_finish", (grid){1 + round % 5, 1, 128}, &finish);
        run("bp_finish_bad", (grid){1, 1, 1}, &finish);
        assert_int_equal(bad.token, first);
        assert_int_equal(bad.value, values[round % 6]);
        target[first] = 100; /* valid in the second call */
        run("bp_finish", (grid){5, 1, 128}, &finish);
        run("bp_finish_bad", (grid){1, 1, 1}, &finish);
        assert_int_equal(bad.token, first);
        assert_int_equal(bad.value, values[round % 6]);
    }
    free_finished(&f);
}

/* ---- gradient ------------------------------------------------------------------------------------------------------ */

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

/* For any alignment of input and output. */
static void any_grid_makes_the_same_gradient(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        FOR_WIDTHS(w)
        {
            seed(60 + w);
            rows logits = new_rows(PAIRS[p][0], ROWS, WIDTHS[w], 0, 0);
            statistics s = new_statistics(&logits);
            rows first = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], 0, 0);
            make_gradient(&logits, &s, &first, GRADIENT_GRIDS[0]);
            for (uint32_t shift = 0; shift < 9; shift += in_brief() ? 3 : 1) {
                grid g = GRADIENT_GRIDS[shift % 6];
                g.parts = narrows(PAIRS[p]) ? 1 : g.parts;
                rows in = moved_rows(&logits, shift, shift % 4);
                rows out = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], (shift * 5) % 9, shift % 3);
                make_gradient(&in, &s, &out, g);
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

/* In place, with equal dtypes and narrowing. */
static void gradients_may_overwrite_their_logits(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        FOR_WIDTHS(w)
    for (uint32_t shift = 0; shift < 5; shift++) {
        if (PAIRS[p][0] != PAIRS[p][1] && !narrows(PAIRS[p]))
            continue;
        seed(80 + w);
        rows logits = new_rows(PAIRS[p][0], ROWS, WIDTHS[w], shift, 2);
        statistics s = new_statistics(&logits);
        rows apart = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], 0, 0);
        make_gradient(&logits, &s, &apart, GRADIENT_GRIDS[0]);
        rows out = logits;
        out.dtype = PAIRS[p][1];
        out.stride = logits.stride * (narrows(PAIRS[p]) ? 2 : 1);
        make_gradient(&logits, &s, &out, narrows(PAIRS[p]) ? GRADIENT_GRIDS[shift % 2] : GRADIENT_GRIDS[shift]);
        assert_true(rows_are_equal(&out, &apart));
        assert_true(row_gaps_are_whole(&logits));
        free_rows(&apart);
        free_statistics(&s);
        free_rows(&logits);
    }
}

/* Narrowing in place takes one block per row for any number of rows. */
static void masked_rows_have_gradients_of_zero(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++) {
        seed(11);
        rows logits = new_rows(PAIRS[p][0], ROWS, 3333, 0, 0), out = empty_rows(PAIRS[p][1], ROWS, 3333, 1, 1);
        statistics s = new_statistics(&logits);
        bp_gradient_work work = gradient_work(&logits, &s, &out);
        const uint8_t mask = 0;
        work.tokens.has_mask = 1;
        work.tokens.mask = &mask;
        work.logits.data = NULL; /* must not be read */
        work.logprob_grad = work.entropy_grad = NULL;
        work.saved = (bp_saved_work){0};
        run_gradient(&work, (grid){ROWS, 1, 128});
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t v = 0; v < 3333; v++)
                assert_true(element_at(out.data, out.dtype, (int64_t)i * out.stride + v) == 0);
        assert_true(row_gaps_are_whole(&out));
        free_statistics(&s);
        free_rows(&out);
        free_rows(&logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_grid_makes_the_same_partials),
        cmocka_unit_test(entropy_changes_no_sum),
        cmocka_unit_test(rows_of_any_length_are_summed),
        cmocka_unit_test(partials_of_masked_rows_stay_as_they_are),
        cmocka_unit_test(ranks_are_merged),
        cmocka_unit_test(the_lowest_bad_target_is_recorded),
        cmocka_unit_test(any_grid_makes_the_same_gradient),
        cmocka_unit_test(gradients_may_overwrite_their_logits),
        cmocka_unit_test(masked_rows_have_gradients_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
