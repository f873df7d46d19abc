/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probability and entropy together have the same values as apart, and their gradients add up. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <string.h>

#include "support/scenarios.h"

static const batch_options BOTH = {.batch = 2,
                                   .sequence = 6,
                                   .columns = 3001,
                                   .with_entropy = true,
                                   .outside_in_16 = 3,
                                   .masked = true,
                                   .temperature = 1.2};

static batch batch_for(bool logprob, bool entropy, bp_dtype dtype)
{
    batch_options options = BOTH;
    options.without_logprob = !logprob;
    options.with_entropy = entropy;
    options.dtype = dtype;
    seed(31);
    return new_batch(&options);
}

/* Statistics without entropy are the first planes of those with it. */
static void together_or_apart(const kernels_row *kernels, bp_dtype dtype)
{
    batch both = batch_for(true, true, dtype), one = batch_for(true, false, dtype),
          other = batch_for(false, true, dtype);
    bp_logprob *client = new_client(device, &both, kernels->bit, 2);
    run_forward(client, &both);
    run_forward(client, &one);
    run_forward(client, &other);
    assert_true(outputs_are_true(&both) && outputs_are_true(&one) && outputs_are_true(&other));
    assert_true(same_rows(&both.logprob, &one.logprob, "log-probabilities"));
    assert_true(same_rows(&both.entropy, &other.entropy, "entropies"));
    run_backward(client, &both);
    run_backward(client, &one);
    run_backward(client, &other);
    for (uint64_t i = 0; i < BOTH.batch; i++) {
        for (uint64_t s = 0; s < BOTH.sequence; s++) {
            const float *sum = row_at(&both.grad, i, s), *a = row_at(&one.grad, i, s), *b = row_at(&other.grad, i, s);
            for (uint64_t v = 0; v < BOTH.columns; v++) {
                double first = a[v], second = b[v];
                assert_true(is_within(sum[v], first + second, 1e-6 * (fabs(first) + fabs(second)) + 1e-30));
            }
        }
    }
    bp_logprob_destroy(&client);
    free_batch(&both);
    free_batch(&one);
    free_batch(&other);
}

TEST(together_equals_each_alone)
{
    FOR_KERNELS(kernels)
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++)
        together_or_apart(kernels, (bp_dtype)dtype);
}

/* Statistics with entropies also serve a backward without them, repeatedly. */
TEST(one_forward_serves_several_backwards)
{
    FOR_KERNELS(kernels)
    {
        batch both = batch_for(true, true, BP_DTYPE_BF16), one = batch_for(true, false, BP_DTYPE_BF16);
        bp_logprob *client = new_client(device, &both, kernels->bit, 2);
        run_forward(client, &both);
        run_forward(client, &one);
        run_backward(client, &one);
        bp_logprob_batch call = call_of(&both, whole_shard(&both));
        bp_logprob_gradients gradients = gradients_of(&both, whole_shard(&both));
        gradients.entropy_grad.data = NULL;
        assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
        assert_true(same_rows(&both.grad, &one.grad, "gradients"));
        run_backward(client, &both);
        assert_true(gradient_is_true(&both, whole_shard(&both)));
        assert_true(inputs_are_whole(&both));
        bp_logprob_destroy(&client);
        free_batch(&both);
        free_batch(&one);
    }
}

/* Saved statistics belong to the caller: another client with the same kernels can use them. */
TEST(saved_statistics_belong_to_the_caller)
{
    FOR_KERNELS(kernels)
    {
        batch b = batch_for(true, true, BP_DTYPE_FP32);
        bp_logprob *first = new_client(device, &b, kernels->bit, 1), *second = new_client(device, &b, kernels->bit, 2);
        run_forward(first, &b);
        bp_logprob_destroy(&first);
        run_backward(second, &b);
        assert_true(gradient_is_true(&b, whole_shard(&b)));
        bp_logprob_destroy(&second);
        free_batch(&b);
    }
}

TESTS(open_host, close_host)
