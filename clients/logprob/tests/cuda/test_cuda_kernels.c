/* CUDA kernels, one launch at a time on the emulation: bits do not depend on threads, blocks, alignment and scheduling, and nothing outside
 * the tensors is touched. */
#include "support/harness.h"

#include "../support/reference.h"
#include "launches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/brief.h"
#include "support/scenarios.h"

#define ROWS 3u

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
/* Within a tile, on its edge, several tiles, and more than are kept at once. */
static const uint32_t WIDTHS[] = {1, 7, 37, 2048, 2049, 3 * 2048 + 5, 5 * 2048 - 8};

#define FOR_DTYPES(dtype) for (size_t at_##dtype = 0; at_##dtype < 3; at_##dtype++)
#define FOR_WIDTHS(i) for (size_t i = 0; i < sizeof WIDTHS / sizeof *WIDTHS; i++)

#define FOR_FORMS(form) for (int32_t form = BP_SUMS_PLAIN; form <= BP_SUMS_TOTAL; form++)

/* ---- partials ------------------------------------------------------------------------------------------------------ */

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

TEST(further_sums_change_none)
{
    FOR_DTYPES(d)
    {
        seed(3);
        rows logits = new_rows(DTYPES[at_d], ROWS, 4500, 1, 0);
        bp_partial of[3][ROWS];
        float targets[ROWS];
        FOR_FORMS(form)
        make_partials(&logits, form, PARTIALS_GRIDS[0], of[form], targets);
        for (unsigned i = 0; i < ROWS; i++) {
            double total = 0;
            for (unsigned v = 0; v < 4500; v++)
                total += element_at(logits.data, logits.dtype, i * logits.stride + v);
            assert_true(is_near(of[2][i].total / 4500, total / 4500));
            assert_true(of[0][i].weighted == 0 && of[1][i].weighted < 0 && of[1][i].total == 0);
            of[2][i].total = 0;
            assert_memory_equal(&of[2][i], &of[1][i], sizeof of[2][i]);
            of[1][i].weighted = 0;
            assert_memory_equal(&of[1][i], &of[0][i], sizeof of[1][i]);
        }
        free_rows(&logits);
    }
}

/* More tiles than a block keeps, so several rounds; the last one is partial. */
TEST(rows_of_any_length_are_summed)
{
    const uint32_t columns = 2 * 256 * BP_TILE_COLUMNS + 4097;
    seed(5);
    rows logits = new_rows(BP_DTYPE_BF16, 1, columns, 0, 0);
    double *x = malloc(columns * sizeof *x);
    assert_non_null(x);
    for (uint32_t i = 0; i < columns; i++)
        x[i] = element_at(logits.data, BP_DTYPE_BF16, i);
    logits.targets[0] = 17;
    true_row expected = row_of(x, columns, 17, 1);
    finished f = new_finished(1, 1), again = new_finished(1, 1);
    bp_forward_work work = partials_work(&logits, BP_SUMS_WEIGHTED, NULL, NULL);
    work.results = results_work(&f, BP_SUMS_WEIGHTED);
    run_forward(&work, (grid){1, 1, 128});
    assert_true(is_near(f.logprob[0], expected.logprob));
    assert_true(is_near(f.entropy[0], expected.entropy));
    work.results = results_work(&again, BP_SUMS_WEIGHTED);
    run_forward(&work, (grid){1, 1, 64});
    assert_true(finished_are_equal(&again, &f));
    free_finished(&f);
    free_finished(&again);
    free(x);
    free_rows(&logits);
}

TEST(partials_of_masked_rows_stay_as_they_are)
{
    seed(6);
    rows logits = new_rows(BP_DTYPE_FP16, ROWS, 100, 0, 0);
    bp_partial partials[ROWS];
    float targets[ROWS];
    const uint8_t mask[ROWS] = {0, 1, 0};
    memset(partials, 0x5a, sizeof partials);
    bp_partial before = partials[0];
    bp_forward_work work = partials_work(&logits, BP_SUMS_PLAIN, partials, targets);
    work.tokens.mask = mask;
    work.tokens.mask_batch_stride = ROWS;
    work.tokens.mask_stride = 1;
    run_forward(&work, (grid){ROWS, 1, 128});
    assert_memory_equal(&partials[0], &before, sizeof before);
    assert_memory_equal(&partials[2], &before, sizeof before);
    assert_memory_not_equal(&partials[1], &before, sizeof before);
    free_rows(&logits);
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* The kernel that writes results makes the bits of partials and a finish of one rank. */
TEST(results_need_no_partials)
{
    static const uint32_t targets[] = {1, 3, 128};
    FOR_DTYPES(d)
    FOR_FORMS(form)
    for (unsigned t = 0; t < 3; t++) {
        seed(9 + t);
        rows logits = new_rows(DTYPES[at_d], ROWS, 5000, t, 1);
        set_targets(&logits, targets[t]);
        finished direct = new_finished(ROWS, targets[t]), merged = new_finished(ROWS, targets[t]);
        bp_partial partials[ROWS];
        float *x = calloc(ROWS * targets[t], sizeof *x);
        const uint8_t mask[ROWS] = {1, t != 1, 1};
        bp_forward_work work = partials_work(&logits, form, NULL, NULL);
        work.tokens.mask = mask;
        work.tokens.mask_stride = 1;
        work.results = results_work(&direct, form);
        run_forward(&work, (grid){2, 1, 128});
        bp_finish_work finish = {
            .tokens = work.tokens, .partials = partials, .target_logits = x, .ranks = 1, .results = work.results};
        finish.results = results_work(&merged, form);
        work.partials = partials;
        work.target_logits = x;
        run_forward(&work, (grid){3, 1, 128});
        run("bp_finish", (grid){1, 1, 128}, &finish);
        assert_true(finished_are_equal(&direct, &merged));
        assert_true(t != 1 || (direct.logsumexp[1] == 0 && direct.logprob[targets[t]] == 0 && direct.max[1] == 0));
        free(x);
        free_finished(&direct);
        free_finished(&merged);
        free_rows(&logits);
    }
}

/* Three ranks that share a vocabulary. A rank's partials and target logits are one piece. */
TEST(ranks_are_merged)
{
    enum { TARGETS = 5 };
    static const uint32_t ends[] = {0, 700, 707, 3000};
    struct of_rank {
        bp_partial partials[ROWS];
        float targets[ROWS * TARGETS], unused;
    } ranks[3];
    seed(7);
    rows logits = new_rows(BP_DTYPE_FP32, ROWS, 3000, 0, 0);
    set_targets(&logits, TARGETS);
    logits.targets[0] = 700; /* of the second rank */
    bp_forward_work work;
    for (uint32_t rank = 0; rank < 3; rank++) {
        work = partials_work(&logits, BP_SUMS_TOTAL, ranks[rank].partials, ranks[rank].targets);
        work.logits.data = (const float *)work.logits.data + ends[rank];
        work.logits.first = ends[rank];
        work.logits.columns = ends[rank + 1] - ends[rank];
        run_forward(&work, (grid){ROWS, 1, 128});
    }
    finished f = new_finished(ROWS, TARGETS);
    bp_finish_work finish = {.tokens = work.tokens,
                             .partials = ranks[0].partials,
                             .target_logits = ranks[0].targets,
                             .rank_bytes = sizeof *ranks,
                             .ranks = 3,
                             .results = results_work(&f, BP_SUMS_TOTAL)};
    run("bp_finish", (grid){1, 1, 128}, &finish);
    for (unsigned i = 0; i < ROWS; i++) {
        double x[3000], total = 0;
        for (unsigned v = 0; v < 3000; v++)
            total += x[v] = ((const float *)(const void *)logits.data)[i * 3000 + v];
        for (unsigned k = 0; k < TARGETS; k++) {
            true_row expected = row_of(x, 3000, logits.targets[i * TARGETS + k], 1);
            assert_true(is_near(f.logprob[i * TARGETS + k], expected.logprob));
            assert_true(is_near(f.entropy[i], expected.entropy));
            assert_true(is_near(f.logsumexp[i], expected.max + expected.log_sum));
            assert_true(is_near(f.mean_logprob[i], total / 3000 - expected.max - expected.log_sum));
        }
    }
    free_finished(&f);
    free_rows(&logits);
}

/* The lowest token is recorded, in any scheduling and for any distance of its id, and kept over calls. */
TEST(the_lowest_bad_target_is_recorded)
{
    enum { TOKENS = 600, FIRST = 1000 };
    static const int64_t values[] = {INT64_MIN, INT64_MAX, -1, 99, 200, INT64_MIN + 100};
    static bp_partial partials[TOKENS];
    static float x[TOKENS];
    finished f = new_finished(TOKENS, 1);
    for (unsigned round = 0, rounds = (unsigned)share_of(24); round < rounds; round++) {
        seed(90 + round);
        int64_t target[TOKENS];
        uint8_t mask[TOKENS];
        uint32_t first = 100 + random_below(400);
        uint64_t bad = UINT64_MAX;
        for (unsigned i = 0; i < TOKENS; i++) {
            target[i] = 100 + random_below(100);
            mask[i] = i != 50;
            if (i > first && random_below(3) == 0)
                target[i] = values[random_below(6)];
        }
        target[first] = values[round % 6];
        target[50] = -7;
        bp_finish_work finish = {.tokens = {.batch = 1,
                                            .sequence = TOKENS,
                                            .target = target,
                                            .target_stride = 1,
                                            .targets = 1,
                                            .target_is_64 = 1,
                                            .mask = mask,
                                            .mask_stride = 1,
                                            .scale = 1,
                                            .vocab_first = 100,
                                            .vocab = 100,
                                            .bad = &bad},
                                 .partials = partials,
                                 .target_logits = x,
                                 .ranks = 1,
                                 .results = results_work(&f, BP_SUMS_PLAIN)};
        finish.results.first_token = FIRST;
        run("bp_finish", (grid){1 + round % 5, 1, 128}, &finish);
        assert_true(bad == bp_bad_target(FIRST + first, values[round % 6], 100));
        target[first] = 100; /* valid in the second call */
        run("bp_finish", (grid){5, 1, 128}, &finish);
        assert_true(bad == bp_bad_target(FIRST + first, values[round % 6], 100));
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

/* Upstream gradients of 0 and of NULL make the same bits in each form. */
TEST(forms_make_the_same_gradient)
{
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++) {
        seed(70 + p);
        rows logits = new_rows(PAIRS[p][0], ROWS, 3000, 0, 0);
        set_targets(&logits, 2);
        put_element(logits.data, PAIRS[p][0], 5, -INFINITY);
        put_element(logits.data, PAIRS[p][0], 6, -9000);
        statistics s = new_statistics(&logits);
        s.g[0] = s.g[1] = 0;
        memset(s.h, 0, ROWS * sizeof *s.h);
        memset(s.z, 0, ROWS * sizeof *s.z);
        rows first = empty_rows(PAIRS[p][1], ROWS, 3000, 0, 0), out = empty_rows(PAIRS[p][1], ROWS, 3000, 0, 0);
        make_gradient(&logits, &s, BP_SUMS_PLAIN, &first, GRADIENT_GRIDS[0]);
        for (int32_t form = BP_SUMS_WEIGHTED; form <= BP_SUMS_TOTAL; form++)
            for (int32_t given = 0; given <= form; given++) {
                bp_gradient_work work = gradient_work(&logits, &s, given, &out);
                work.mean_logprob.data = NULL;
                run_gradient(&work, form, GRADIENT_GRIDS[0]);
                assert_true(rows_are_equal(&out, &first));
            }
        free_rows(&first);
        free_rows(&out);
        free_statistics(&s);
        free_rows(&logits);
    }
}

/* Targets on both sides of every border: of the head, pieces, tiles, parts, and the row's ends. */
TEST(targets_lie_at_any_border)
{
    enum { COLUMNS = 3 * 2048 + 3 };
    static const int64_t columns[] = {0,    1,    2,    3,    4,    7,    8,    9,    1023, 1024, 1025,
                                      1027, 1028, 1029, 2047, 2048, 2051, 2052, 3071, 3072, 3075, 4095,
                                      4096, 4099, 5119, 5120, 5123, 6143, 6144, 6145, 6146, 6147};
    enum { COUNT = sizeof columns / sizeof *columns };
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        for (uint32_t shift = 0; shift < 8; shift += 3) {
            seed(75 + shift);
            rows logits = new_rows(PAIRS[p][0], 1, COLUMNS, shift, 0);
            set_targets(&logits, COUNT);
            memcpy(logits.targets, columns, sizeof columns);
            statistics s = new_statistics(&logits);
            float total = 0;
            for (unsigned k = 0; k < COUNT; k++) {
                s.g[k] = 1000.0f + (float)k; /* far from other elements */
                total += s.g[k];
            }
            grid g = {1, narrows(PAIRS[p]) ? 1 : 1 + shift, 32};
            rows out = empty_rows(PAIRS[p][1], 1, COLUMNS, (shift + 1) % 5, 0);
            make_gradient(&logits, &s, BP_SUMS_PLAIN, &out, g);
            for (unsigned v = 0; v < COLUMNS; v++) {
                const double of = exp(element_at(logits.data, logits.dtype, v) - s.f.max[0] - s.f.log_sum[0]);
                double expected = -of * total;
                for (unsigned k = 0; k < COUNT; k++)
                    expected += columns[k] == v ? s.g[k] : 0;
                assert_true(is_within(element_at(out.data, out.dtype, v), expected, 4 + 0.01 * of * total));
            }
            free_rows(&out);
            free_statistics(&s);
            free_rows(&logits);
        }
}

/* Rounding, soft cap and temperatures of tokens, against fp64, from results to gradient. */
TEST(logits_are_rounded_capped_and_scaled)
{
    enum { COLUMNS = 2500 };
    static const float temperatures[ROWS] = {0.7f, 1, 2.5f};
    static double x[COLUMNS];
    for (unsigned round = 0; round < 6; round++) {
        const bp_dtype rounding = round < 2 ? BP_DTYPE_FP32 : round < 4 ? BP_DTYPE_BF16 : BP_DTYPE_FP16;
        const float cap = round % 2 == 0 ? 0 : 7.5f;
        seed(300 + round);
        rows logits = new_rows(BP_DTYPE_FP32, ROWS, COLUMNS, 1, 0);
        statistics s = new_statistics(&logits);
        rows out = empty_rows(BP_DTYPE_FP32, ROWS, COLUMNS, 0, 0);
        bp_forward_work work = partials_work(&logits, BP_SUMS_TOTAL, NULL, NULL);
        bp_gradient_work backward = gradient_work(&logits, &s, BP_SUMS_TOTAL, &out);
        work.results = results_work(&s.f, BP_SUMS_TOTAL);
        work.logits.rounding = (int32_t)rounding;
        work.logits.cap = cap;
        work.tokens.temperature = temperatures;
        work.tokens.temperature_stride = 1;
        backward.tokens = work.tokens;
        backward.logits = work.logits;
        run_forward(&work, (grid){ROWS, 1, 128});
        run_gradient(&backward, BP_SUMS_TOTAL, GRADIENT_GRIDS[2]);
        for (unsigned i = 0; i < ROWS; i++) {
            for (unsigned v = 0; v < COLUMNS; v++) {
                const double y = rounded_to(rounding, element_at(logits.data, BP_DTYPE_FP32, i * logits.stride + v));
                x[v] = cap == 0 ? y : cap * tanh(y / cap);
            }
            true_row row = row_of(x, COLUMNS, logits.targets[i], temperatures[i]);
            row.cap = cap;
            assert_true(is_near(s.f.logprob[i], row.logprob));
            assert_true(is_near(s.f.entropy[i], row.entropy));
            assert_true(is_near(s.f.logsumexp[i], row.logsumexp));
            assert_true(is_near(s.f.mean_logprob[i], row.mean_logprob));
            for (unsigned v = 0; v < COLUMNS; v++) {
                const true_upstream up = {s.g[i], v == logits.targets[i] ? s.g[i] : 0, s.h[i], s.z[i], s.m[i]};
                assert_true(is_within(element_at(out.data, BP_DTYPE_FP32, i * out.stride + v),
                                      gradient_of_all(&row, x[v], &up), slack_of_all(&row, x[v], &up, BP_DTYPE_FP32)));
            }
        }
        free_rows(&out);
        free_statistics(&s);
        free_rows(&logits);
    }
}

TEST(temperatures_outside_their_range_make_nan)
{
    static const float temperatures[] = {1e-38f, 0, -1, INFINITY, NAN, 9e37f};
    rows logits = new_rows(BP_DTYPE_BF16, 6, 500, 0, 0), out = empty_rows(BP_DTYPE_BF16, 6, 500, 0, 0);
    statistics s = new_statistics(&logits);
    for (int32_t form = BP_SUMS_PLAIN; form <= BP_SUMS_TOTAL; form++) {
        bp_forward_work work = partials_work(&logits, form, NULL, NULL);
        bp_gradient_work backward = gradient_work(&logits, &s, form, &out);
        work.results = results_work(&s.f, form);
        work.tokens.temperature = backward.tokens.temperature = temperatures;
        work.tokens.temperature_stride = backward.tokens.temperature_stride = 1;
        run_forward(&work, (grid){6, 1, 128});
        run_gradient(&backward, form, (grid){6, 1, 128});
        for (unsigned i = 0; i < 6; i++) {
            assert_true(isnan(s.f.logsumexp[i]) && (i == 5 ? s.f.logprob[i] == 0 : isnan(s.f.logprob[i])));
            assert_true(form < BP_SUMS_WEIGHTED || isnan(s.f.entropy[i]));
            assert_true(form < BP_SUMS_TOTAL || isnan(s.f.mean_logprob[i]));
            for (unsigned v = 0; v < 500; v++)
                assert_true(isnan(element_at(out.data, BP_DTYPE_BF16, i * 500 + v)));
        }
    }
    free_statistics(&s);
    free_rows(&out);
    free_rows(&logits);
}

/* In place, with equal dtypes and narrowing. */
TEST(gradients_may_overwrite_their_logits)
{
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++)
        FOR_WIDTHS(w)
    for (uint32_t shift = 0; shift < 5; shift++) {
        if (PAIRS[p][0] != PAIRS[p][1] && !narrows(PAIRS[p]))
            continue;
        const int32_t form = (int32_t)shift % 3;
        seed(80 + w);
        rows logits = new_rows(PAIRS[p][0], ROWS, WIDTHS[w], shift, 2);
        set_targets(&logits, TARGETS[shift % 3]);
        statistics s = new_statistics(&logits);
        rows apart = empty_rows(PAIRS[p][1], ROWS, WIDTHS[w], 0, 0);
        make_gradient(&logits, &s, form, &apart, GRADIENT_GRIDS[0]);
        rows out = logits;
        out.dtype = PAIRS[p][1];
        out.stride = logits.stride * (narrows(PAIRS[p]) ? 2 : 1);
        make_gradient(&logits, &s, form, &out, narrows(PAIRS[p]) ? GRADIENT_GRIDS[shift % 2] : GRADIENT_GRIDS[shift]);
        assert_true(rows_are_equal(&out, &apart));
        assert_true(row_gaps_are_whole(&logits));
        free_rows(&apart);
        free_statistics(&s);
        free_rows(&logits);
    }
}

/* Narrowing in place takes one block per row for any number of rows. */
TEST(masked_rows_have_gradients_of_zero)
{
    for (size_t p = 0; p < sizeof PAIRS / sizeof *PAIRS; p++) {
        seed(11);
        rows logits = new_rows(PAIRS[p][0], ROWS, 3333, 0, 0), out = empty_rows(PAIRS[p][1], ROWS, 3333, 1, 1);
        statistics s = new_statistics(&logits);
        bp_gradient_work work = gradient_work(&logits, &s, BP_SUMS_PLAIN, &out);
        const uint8_t mask = 0;
        work.tokens.mask = &mask;
        work.logits.data = NULL; /* must not be read */
        work.logprob.data = NULL;
        work.saved = (bp_saved_work){0};
        run_gradient(&work, (int32_t)(p % 3), (grid){ROWS, 1, 128});
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t v = 0; v < 3333; v++)
                assert_true(element_at(out.data, out.dtype, (int64_t)i * out.stride + v) == 0);
        assert_true(row_gaps_are_whole(&out));
        free_statistics(&s);
        free_rows(&out);
        free_rows(&logits);
    }
}

TESTS(NULL, NULL)
