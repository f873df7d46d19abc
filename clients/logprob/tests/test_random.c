/* SPDX-License-Identifier: Apache-2.0 */
/* Random shapes, strides, alignments, dtypes, masks and temperatures against fp64, for all kernels. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>

#include "support/brief.h"
#include "support/scenarios.h"

static bp_dtype random_dtype(void)
{
    return (bp_dtype)(BP_DTYPE_FP32 + random_below(3));
}

static uint64_t random_columns(void)
{
    switch (random_below(4)) {
    case 0: return 1 + random_below(20);
    case 1: return 1 + random_below(600);
    case 2: return 2000 + random_below(100);
    default: return 1 + random_below(9000);
    }
}

static layout values_layout(void)
{
    layout where = random_layout();
    where.repeated = random_below(8) == 0;
    return where;
}

static batch_options random_options(void)
{
    static const double temperatures[] = {0, 0.25, 0.9, 2.5};
    batch_options o = {.columns = random_columns(), .dtype = random_dtype()};
    uint64_t max = 1 + 20000 / o.columns;
    o.batch = 1 + random_below(max < 4 ? (uint32_t)max : 4);
    o.sequence = 1 + random_below(max < 19 ? (uint32_t)max : 19);
    o.grad_dtype = random_below(2) == 0 ? BP_DTYPE_FP32 : o.dtype;
    o.target_dtype = random_below(2) == 0 ? BP_DTYPE_INT64 : BP_DTYPE_INT32;
    o.logits = random_layout();
    o.grad = random_layout();
    o.outputs = random_layout();
    o.target = values_layout();
    o.mask = values_layout();
    o.upstream = values_layout();
    o.masked = random_below(3) == 0;
    o.in_place = random_below(4) == 0;
    o.with_entropy = random_below(2) == 0;
    o.without_logprob = random_below(6) == 0;
    o.temperature = temperatures[random_below(4)];
    o.spread = random_below(4) == 0 ? 40 : 0;
    o.offset = random_below(4) == 0 ? 300 * random_fraction() : 0;
    o.vocab_start = random_below(2) == 0 ? 0 : (int64_t)random_below(1u << 20);
    o.outside_in_16 = random_below(5);
    o.ignored_in_16 = random_below(3) * 3;
    o.ignores_first = random_below(3) == 0;
    o.strict = random_below(2) == 0;
    o.fused = random_below(3) == 0;
    if (random_below(2) == 0)
        return o;
    static const uint32_t targets[] = {1, 2, 5, 128};
    o.targets = targets[random_below(4)];
    o.with_logsumexp = random_below(2) == 0;
    o.with_mean = random_below(2) == 0;
    o.heated = random_below(3) == 0;
    o.soft_cap = random_below(3) == 0 ? 3 + 30 * (1 + random_fraction()) : 0;
    o.rounding = random_below(3) == 0 ? random_dtype() : BP_DTYPE_FP32;
    return o;
}

static void check_random(const kernels_row *kernels, uint64_t round)
{
    seed(1000 + round);
    batch_options options = random_options();
    uint32_t threads = random_below(4);
    check_options(device, &options, kernels->bit, threads, NULL);
}

TEST(random_batches_are_true)
{
    FOR_KERNELS(kernels)
    for (uint64_t round = 0, rounds = (uint64_t)share_of(150); round < rounds; round++)
        check_random(kernels, round);
}

/* Negative strides of sequences and batches. */
TEST(strides_may_be_negative)
{
    FOR_KERNELS(kernels)
    {
        for (uint32_t bits = 1; bits < 4; bits++) {
            layout back = {.batch_backwards = (bits & 1) != 0, .sequence_backwards = (bits & 2) != 0, .row_gap = 3};
            batch_options options = {.batch = 3,
                                     .sequence = 5,
                                     .columns = 77,
                                     .with_entropy = true,
                                     .masked = true,
                                     .target = back,
                                     .mask = back,
                                     .upstream = back,
                                     .outputs = back};
            for (int rows = 0; rows < 2; rows++) {
                options.logits = options.grad = rows ? back : (layout){0};
                check_options(device, &options, kernels->bit, 0, NULL);
            }
        }
    }
}

/* The largest forward error over rows as long as vocabularies, as promised in the header. */
TEST(long_rows_stay_within_2e_6)
{
    static const uint64_t widths[] = {32000, 131072};
    FOR_KERNELS(kernels)
    {
        for (size_t i = 0; i < 2; i++) {
            for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
                seed(77);
                batch_options options = {.batch = 1,
                                         .sequence = 2,
                                         .columns = widths[i],
                                         .dtype = (bp_dtype)dtype,
                                         .with_entropy = true,
                                         .spread = 1};
                batch b = new_batch(&options);
                bp_logprob *client = new_client(device, &b, kernels->bit, 0);
                check_both(client, &b);
                for (uint64_t s = 0; s < 2; s++) {
                    double of_logprob = fabs(upstream_at(&b.logprob, 0, s) - truth_of(&b, 0, s).logprob);
                    double of_entropy = fabs(upstream_at(&b.entropy, 0, s) - truth_of(&b, 0, s).entropy);
                    if (of_logprob > 2e-6 || of_entropy > 2e-6)
                        fail_msg("%s, %llu columns: errors %.3g and %.3g", kernels->name, (unsigned long long)widths[i],
                                 of_logprob, of_entropy);
                }
                bp_logprob_destroy(&client);
                free_batch(&b);
            }
        }
    }
}

/* The loss that a token's upstream gradients belong to, in fp64. */
static double loss_of(const batch *b, uint64_t s)
{
    const true_row row = truth_of(b, 0, s);
    const true_upstream up = upstream_of(b, 0, s, -1);
    double loss = up.entropy * row.entropy + up.logsumexp * row.logsumexp + up.mean * row.mean_logprob;
    for (uint32_t k = 0; k < b->o.targets; k++)
        loss += value_of(&b->logprob_grad, 0, s, k) *
                logprob_at(&row, logit_at(b, 0, s, (uint64_t)target_column(b, 0, s, k)));
    return loss;
}

/* Gradients against central differences of the reference's forward in fp64. */
TEST(gradients_match_finite_differences)
{
    FOR_KERNELS(kernels)
    {
        for (int more = 0; more < 2; more++) {
            seed(9);
            batch_options options = {
                .batch = 1, .sequence = 4, .columns = 37, .with_entropy = true, .temperature = 0.7};
            if (more) {
                options.targets = 6;
                options.with_logsumexp = options.with_mean = options.heated = true;
                options.soft_cap = 5;
            }
            batch b = new_batch(&options);
            bp_logprob *client = new_client(device, &b, kernels->bit, 0);
            run_forward(client, &b);
            run_backward(client, &b);
            for (uint64_t s = 0; s < 4; s++) {
                double *x = b.x + s * 37;
                for (uint64_t v = 0; v < 37; v++) {
                    const double kept = x[v], step = 1e-5;
                    x[v] = kept + step;
                    const double above = loss_of(&b, s);
                    x[v] = kept - step;
                    const double below = loss_of(&b, s);
                    x[v] = kept;
                    assert_true(is_within(((const float *)row_at(&b.grad, 0, s))[v], (above - below) / (2 * step),
                                          more ? 2e-5 : 2e-6));
                }
            }
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

TESTS(open_host, close_host)
