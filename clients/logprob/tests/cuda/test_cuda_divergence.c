/* The CUDA kernels of divergences, and of column sums, one launch at a time on the emulation, against fp64. */
#include "support/harness.h"

#include "launches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../support/reference.h"
#include "support/brief.h"
#include "support/scenarios.h"

#define ROWS 3u

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
static const bp_dtype PAIRS[][2] = {{BP_DTYPE_FP32, BP_DTYPE_FP32},
                                    {BP_DTYPE_BF16, BP_DTYPE_FP32},
                                    {BP_DTYPE_BF16, BP_DTYPE_BF16},
                                    {BP_DTYPE_FP16, BP_DTYPE_FP32},
                                    {BP_DTYPE_FP16, BP_DTYPE_FP16}};
static const uint32_t WIDTHS[] = {1, 7, 37, 2048, 2049, 3 * 2048 + 5};
static const float BETAS[] = {0, 0.1f, 0.5f, 1};
static const grid GRIDS[] = {{ROWS, 1, 128}, {1, 1, 128}, {2, 1, 32}, {ROWS, 1, 96}};

/* ---- a pair of rows -------------------------------------------------------------------------------------------------- */

typedef struct pair {
    rows logits, reference;
    finished p, q;
    float divergence[ROWS], kept[ROWS];
    float temperatures[ROWS];
    float cap;
} pair;

static void change(const pair *of, bp_tokens_work *tokens, bp_logits_work *logits)
{
    logits->cap = of->cap;
    tokens->temperature = of->temperatures;
    tokens->temperature_stride = 1;
}

static void make_statistics(const pair *of, const rows *logits, const finished *f)
{
    bp_forward_work work = partials_work(logits, BP_SUMS_TOTAL, NULL, NULL);
    work.results = results_work(f, BP_SUMS_PLAIN);
    change(of, &work.tokens, &work.logits);
    run_forward(&work, (grid){ROWS, 1, 128});
}

static pair new_pair(bp_dtype dtype, uint32_t columns, float cap)
{
    pair of = {.logits = new_rows(dtype, ROWS, columns, 0, 0),
               .reference = new_rows(dtype, ROWS, columns, 0, 0),
               .p = new_finished(ROWS, 1),
               .q = new_finished(ROWS, 1),
               .temperatures = {1, 1.5f, 0.8f},
               .cap = cap};
    return of;
}

static void free_pair(pair *of)
{
    free_rows(&of->logits);
    free_rows(&of->reference);
    free_finished(&of->p);
    free_finished(&of->q);
}

static bp_divergence_work divergence_work(pair *of, const rows *logits, const rows *reference, float beta)
{
    bp_divergence_work work = {.tokens = tokens_work(logits),
                               .logits = logits_work(logits),
                               .reference = logits_work(reference),
                               .logits_saved = {of->p.max, of->p.log_sum, NULL},
                               .reference_saved = {of->q.max, of->q.log_sum, NULL},
                               .beta = beta,
                               .results = {{of->divergence, ROWS, 1, 0}, of->kept}};
    change(of, &work.tokens, &work.logits);
    change(of, &work.tokens, &work.reference);
    return work;
}

static void run_divergence(const bp_divergence_work *work, grid g)
{
    char name[64];
    snprintf(name, sizeof name, "bp_divergence_%s", bp_dtype_name((bp_dtype)work->logits.dtype));
    run(name, g, work);
}

/* ---- in fp64 --------------------------------------------------------------------------------------------------------- */

static double x_of(const pair *of, const rows *r, uint32_t row, uint32_t column)
{
    const double x = element_at(r->data, r->dtype, row * r->stride + column);
    return of->cap == 0 ? x : of->cap * tanh(x / of->cap);
}

static void logs_of(const pair *of, const rows *r, uint32_t row, double *logs)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t v = 0; v < r->columns; v++) {
        logs[v] = x_of(of, r, row, v) / of->temperatures[row];
        max = fmax(max, logs[v]);
    }
    for (uint32_t v = 0; v < r->columns; v++)
        sum += exp(logs[v] - max);
    for (uint32_t v = 0; v < r->columns; v++)
        logs[v] -= max + log(sum);
}

static double ratio_term(double log_a, double log_m)
{
    return log_a == -INFINITY ? 0 : exp(log_a) * (log_a - log_m);
}

static double log_mean(double log_p, double log_q, double beta)
{
    return beta == 0 ? log_p : beta == 1 ? log_q : log((1 - beta) * exp(log_p) + beta * exp(log_q));
}

/* Sums of the reference and of the logits. */
static void true_sums(const double *p, const double *q, uint32_t columns, double beta, double (*sums)[2])
{
    (*sums)[0] = (*sums)[1] = 0;
    for (uint32_t v = 0; v < columns; v++) {
        const double m = log_mean(p[v], q[v], beta);
        (*sums)[0] += beta < 1 ? ratio_term(q[v], m) : 0;
        (*sums)[1] += beta > 0 ? ratio_term(p[v], m) : 0;
    }
}

static double true_divergence(double (*sums)[2], double beta)
{
    return beta == 0 ? (*sums)[0] : beta == 1 ? (*sums)[1] : beta * (*sums)[0] + (1 - beta) * (*sums)[1];
}

static double true_gradient(double p, double q, double beta, double kept)
{
    if (beta == 0)
        return exp(p) - exp(q);
    return p == -INFINITY ? 0 : (beta == 1 ? 1 : 1 - beta) * exp(p) * (p - log_mean(p, q, beta) - kept);
}

static bool is_close(double value, double expected)
{
    return is_within(value, expected, 2e-6 * (1 + fabs(expected)));
}

/* ---- tests ------------------------------------------------------------------------------------------------------------- */

TEST(any_grid_and_alignment_makes_the_same_sums)
{
    static double p[4 * 2048], q[4 * 2048];
    for (unsigned d = 0; d < 3; d++)
        for (unsigned w = 0; w < 6; w++)
            for (unsigned b = 0; b < 4; b++) {
                seed(400 + w);
                pair of = new_pair(DTYPES[d], WIDTHS[w], (w + b) % 2 == 0 ? 0 : 6);
                make_statistics(&of, &of.logits, &of.p);
                make_statistics(&of, &of.reference, &of.q);
                bp_divergence_work work = divergence_work(&of, &of.logits, &of.reference, BETAS[b]);
                run_divergence(&work, GRIDS[0]);
                const pair first = of;
                for (uint32_t i = 0; i < ROWS; i++) {
                    double sums[2];
                    logs_of(&of, &of.logits, i, p);
                    logs_of(&of, &of.reference, i, q);
                    true_sums(p, q, WIDTHS[w], BETAS[b], &sums);
                    assert_true(is_close(of.divergence[i], true_divergence(&sums, BETAS[b])));
                    assert_true(is_close(of.kept[i], sums[1]));
                }
                for (uint32_t shift = 1; shift < 9; shift += in_brief() ? 3 : 1) {
                    rows logits = moved_rows(&of.logits, shift, shift % 3);
                    rows reference = moved_rows(&of.reference, (5 * shift) % 8, shift % 4);
                    work = divergence_work(&of, &logits, &reference, BETAS[b]);
                    memset(of.divergence, 0xff, sizeof of.divergence);
                    run_divergence(&work, GRIDS[shift % 4]);
                    assert_memory_equal(of.divergence, first.divergence, sizeof of.divergence);
                    assert_memory_equal(of.kept, first.kept, sizeof of.kept);
                    free_rows(&logits);
                    free_rows(&reference);
                }
                free_pair(&of);
            }
}

/* Two ranks that share a vocabulary, and one rank in two steps. */
TEST(ranks_are_added)
{
    for (unsigned b = 0; b < 4; b++) {
        seed(420);
        pair of = new_pair(BP_DTYPE_FP32, 5000, 0);
        make_statistics(&of, &of.logits, &of.p);
        make_statistics(&of, &of.reference, &of.q);
        bp_divergence_work work = divergence_work(&of, &of.logits, &of.reference, BETAS[b]);
        run_divergence(&work, GRIDS[0]);
        const pair direct = of;
        bp_divergence_sums sums[2][ROWS];
        bp_divergence_finish_work finish = {
            .tokens = work.tokens, .sums = sums[0], .ranks = 1, .beta = BETAS[b], .results = work.results};
        work.sums = sums[0];
        run_divergence(&work, GRIDS[1]);
        memset(of.divergence, 0xff, sizeof of.divergence);
        run("bp_divergence_finish", (grid){1, 1, 128}, &finish);
        assert_memory_equal(of.divergence, direct.divergence, sizeof of.divergence);
        assert_memory_equal(of.kept, direct.kept, sizeof of.kept);
        for (unsigned rank = 0; rank < 2; rank++) {
            work = divergence_work(&of, &of.logits, &of.reference, BETAS[b]);
            work.sums = sums[rank];
            work.logits.data = (const float *)work.logits.data + (rank == 0 ? 0 : 2001);
            work.reference.data = (const float *)work.reference.data + (rank == 0 ? 0 : 2001);
            work.logits.columns = work.reference.columns = rank == 0 ? 2001 : 2999;
            run_divergence(&work, GRIDS[rank]);
        }
        finish.ranks = 2;
        const uint8_t mask[ROWS] = {1, 0, 1};
        finish.tokens.mask = mask;
        finish.tokens.mask_stride = 1;
        run("bp_divergence_finish", (grid){1, 1, 128}, &finish);
        for (unsigned i = 0; i < ROWS; i++)
            assert_true(i == 1 ? of.divergence[i] == 0 && of.kept[i] == 0
                               : is_close(of.divergence[i], direct.divergence[i]));
        free_pair(&of);
    }
}

/* -inf in one of both, in both, and in neither. */
TEST(columns_without_probability_count_nothing)
{
    static double p[100], q[100];
    for (unsigned b = 0; b < 4; b++)
        for (unsigned which = 1; which < 4; which++) {
            seed(430);
            pair of = new_pair(BP_DTYPE_BF16, 100, 0);
            for (unsigned i = 0; i < ROWS; i++) {
                if ((which & 1) != 0)
                    put_element(of.logits.data, BP_DTYPE_BF16, i * of.logits.stride + 5, -INFINITY);
                if ((which & 2) != 0)
                    put_element(of.reference.data, BP_DTYPE_BF16, i * of.reference.stride + 5, -INFINITY);
            }
            make_statistics(&of, &of.logits, &of.p);
            make_statistics(&of, &of.reference, &of.q);
            bp_divergence_work work = divergence_work(&of, &of.logits, &of.reference, BETAS[b]);
            run_divergence(&work, GRIDS[0]);
            for (uint32_t i = 0; i < ROWS; i++) {
                double sums[2];
                logs_of(&of, &of.logits, i, p);
                logs_of(&of, &of.reference, i, q);
                true_sums(p, q, 100, BETAS[b], &sums);
                const double expected = true_divergence(&sums, BETAS[b]);
                assert_true(isinf(expected) == ((b == 0 && which == 1) || (b == 3 && which == 2)));
                assert_true(isinf(expected) ? of.divergence[i] == INFINITY : is_close(of.divergence[i], expected));
            }
            free_pair(&of);
        }
}

static bp_divergence_gradient_work gradient_of(pair *of, const rows *logits, const rows *reference, float beta,
                                               const float *upstream, const rows *out)
{
    const bp_divergence_work sums = divergence_work(of, logits, reference, beta);
    return (bp_divergence_gradient_work){.tokens = sums.tokens,
                                         .logits = sums.logits,
                                         .reference = sums.reference,
                                         .logits_saved = sums.logits_saved,
                                         .reference_saved = sums.reference_saved,
                                         .beta = beta,
                                         .kept = of->kept,
                                         .upstream = {upstream, ROWS, 1, 0},
                                         .out = out->data,
                                         .out_stride = out->stride,
                                         .out_dtype = out->dtype};
}

static void run_divergence_gradient(const bp_divergence_gradient_work *work, grid g)
{
    char name[64];
    snprintf(name, sizeof name, "bp_divergence_gradient_%s_%s", bp_dtype_name((bp_dtype)work->logits.dtype),
             bp_dtype_name((bp_dtype)work->out_dtype));
    run(name, g, work);
}

TEST(any_grid_makes_the_same_gradient_of_divergences)
{
    static double p[4 * 2048], q[4 * 2048];
    static const float upstream[ROWS] = {1, -0.5f, 3};
    for (unsigned pairs = 0; pairs < 5; pairs++)
        for (unsigned w = 0; w < 6; w++)
            for (unsigned b = 0; b < 4; b++) {
                seed(440 + w);
                pair of = new_pair(PAIRS[pairs][0], WIDTHS[w], (w + b) % 2 == 0 ? 0 : 6);
                make_statistics(&of, &of.logits, &of.p);
                make_statistics(&of, &of.reference, &of.q);
                bp_divergence_work work = divergence_work(&of, &of.logits, &of.reference, BETAS[b]);
                run_divergence(&work, GRIDS[0]);
                rows first = empty_rows(PAIRS[pairs][1], ROWS, WIDTHS[w], 0, 0);
                bp_divergence_gradient_work backward =
                    gradient_of(&of, &of.logits, &of.reference, BETAS[b], upstream, &first);
                run_divergence_gradient(&backward, GRIDS[0]);
                for (uint32_t i = 0; i < ROWS; i++) {
                    double sums[2];
                    logs_of(&of, &of.logits, i, p);
                    logs_of(&of, &of.reference, i, q);
                    true_sums(p, q, WIDTHS[w], BETAS[b], &sums);
                    for (uint32_t v = 0; v < WIDTHS[w]; v++) {
                        const double t =
                            tanh(element_at(of.logits.data, of.logits.dtype, i * of.logits.stride + v) / 6);
                        const double expected = upstream[i] / of.temperatures[i] * (of.cap == 0 ? 1 : 1 - t * t) *
                                                true_gradient(p[v], q[v], BETAS[b], sums[1]);
                        const double rounding = first.dtype == BP_DTYPE_FP32   ? 0
                                                : first.dtype == BP_DTYPE_BF16 ? fabs(expected) / 250
                                                                               : fabs(expected) / 2000 + 4e-8;
                        const double terms = (exp(p[v]) + exp(q[v])) * (2 + fabs(p[v]) + fabs(q[v]) + sums[1]);
                        assert_true(is_within(element_at(first.data, first.dtype, i * first.stride + v), expected,
                                              rounding + 2e-6 * fabs(upstream[i]) / of.temperatures[i] * terms));
                    }
                }
                for (uint32_t shift = 0; shift < 9; shift += in_brief() ? 4 : 2) {
                    rows logits = moved_rows(&of.logits, shift, shift % 3);
                    rows reference = moved_rows(&of.reference, (5 * shift) % 8, shift % 4);
                    rows out = empty_rows(PAIRS[pairs][1], ROWS, WIDTHS[w], (3 * shift) % 7, 2);
                    for (int in_place = 0; in_place <= (logits.dtype == out.dtype); in_place++) {
                        const rows *to = in_place ? &logits : &out;
                        backward = gradient_of(&of, &logits, &reference, BETAS[b], upstream, to);
                        run_divergence_gradient(&backward, (grid){1 + shift % 3, 1 + shift / 2, shift == 2 ? 32 : 128});
                        assert_true(rows_are_equal(to, &first));
                        assert_true(row_gaps_are_whole(to));
                    }
                    free_rows(&out);
                    free_rows(&logits);
                    free_rows(&reference);
                }
                free_rows(&first);
                free_pair(&of);
            }
}

/* Divergence and gradient are exactly 0. Masked rows are not read. */
TEST(equal_and_masked_rows_make_zeros)
{
    static const float upstream[ROWS] = {1, 2, 3};
    const uint8_t mask[ROWS] = {1, 0, 1};
    for (unsigned b = 0; b < 4; b++)
        for (unsigned d = 0; d < 3; d++) {
            seed(450);
            pair of = new_pair(DTYPES[d], 3000, 5);
            make_statistics(&of, &of.logits, &of.p);
            rows reference = moved_rows(&of.logits, 3, 2), out = empty_rows(DTYPES[d], ROWS, 3000, 1, 1);
            bp_divergence_work work = divergence_work(&of, &of.logits, &reference, BETAS[b]);
            of.p.max[1] = of.p.log_sum[1] = NAN;
            memset(of.divergence, 0xff, sizeof of.divergence);
            work.reference_saved = work.logits_saved;
            work.tokens.mask = mask;
            work.tokens.mask_stride = 1;
            run_divergence(&work, GRIDS[1]);
            bp_divergence_gradient_work backward = gradient_of(&of, &of.logits, &reference, BETAS[b], upstream, &out);
            backward.reference_saved = work.logits_saved;
            backward.tokens = work.tokens;
            run_divergence_gradient(&backward, (grid){2, 3, 64});
            for (uint32_t i = 0; i < ROWS; i++) {
                assert_true(of.divergence[i] == 0 && of.kept[i] == 0);
                for (uint32_t v = 0; v < 3000; v++)
                    assert_true(element_at(out.data, out.dtype, i * out.stride + v) == 0);
            }
            assert_true(row_gaps_are_whole(&out));
            free_rows(&out);
            free_rows(&reference);
            free_pair(&of);
        }
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
