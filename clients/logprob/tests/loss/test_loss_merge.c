/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of several steps, merged. */
#include "support/harness.h"

#include "token_batches.h"

#include <math.h>

#include "support/scenarios.h"

/* Every token has the same weight, and epsilon counts once, as in a single step. */
TEST(merging_is_as_one_step)
{
    const corpus_options o = {.seed = 15, .sequences = 30, .longest = 15, .empty_in_8 = 1, .masked_in_8 = 1};
    corpus c = new_corpus(&o);
    const uint64_t ends[] = {0, 3, 3, 17, 30};
    bp_loss_statistics total;
    assert_ok(bp_loss_statistics_init(&total, sizeof total));
    for (size_t i = 0; i < 4; i++) {
        const bp_loss_statistics expected = true_statistics_of(&c, 0, ends[i + 1], 0.25, WITH_ALL);
        bp_loss_statistics one = true_statistics_of(&c, ends[i], ends[i + 1], 0.25, WITH_ALL);
        one.size = sizeof one;
        assert_ok(bp_loss_statistics_merge(&one, &total));
        assert_true(same_statistics(&total, &expected, "merged"));
    }
    free_corpus(&c);
}

TEST(merging_keeps_nan)
{
    bp_loss_statistics step, total;
    assert_ok(bp_loss_statistics_init(&step, sizeof step));
    assert_ok(bp_loss_statistics_init(&total, sizeof total));
    assert_ok(bp_loss_statistics_merge(&step, &total)); /* both empty */
    assert_true(total.valid == 0 && total.loss == 0 && total.entropy == 0 && total.perplexity == 0);
    step.valid = step.tokens = step.sequences = 1;
    step.logit_min = NAN;
    step.logit_max = 4;
    assert_ok(bp_loss_statistics_merge(&step, &total));
    assert_true(total.loss == 0 && !signbit(total.loss)); /* never "-0" in logs */
    step.logit_min = -3;
    assert_ok(bp_loss_statistics_merge(&step, &total));
    assert_true(isnan(total.logit_min) && total.logit_max == 4);
    step.logit_max = INFINITY;
    assert_ok(bp_loss_statistics_merge(&step, &total));
    assert_true(total.logit_max == INFINITY);
}

TEST(merging_is_checked)
{
    bp_loss_statistics step, total;
    assert_ok(bp_loss_statistics_init(&step, sizeof step));
    assert_ok(bp_loss_statistics_init(&total, sizeof total));
    uint64_t *const counts[] = {&step.sequences, &step.tokens, &step.valid, &step.perplexity_sequences};
    total.sequences = total.tokens = total.valid = total.perplexity_sequences = 2;
    for (size_t i = 0; i < 4; i++) {
        const bp_loss_statistics before = total;
        *counts[i] = UINT64_MAX - 1;
        assert_fails(bp_loss_statistics_merge(&step, &total), BP_ERR_OVERFLOW, "bp_loss_statistics_merge");
        assert_memory_equal(&before, &total, sizeof total);
        *counts[i] = 0;
    }
    step.size = 0;
    assert_fails(bp_loss_statistics_merge(&step, &total), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_merge");
    step.size = sizeof step;
    total.size = 0;
    assert_fails(bp_loss_statistics_merge(&step, &total), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_merge");
    assert_fails(bp_loss_statistics_merge(NULL, &total), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_merge");
    assert_fails(bp_loss_statistics_merge(&step, NULL), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_merge");
}

TESTS(NULL, NULL)
