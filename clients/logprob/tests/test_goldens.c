/* SPDX-License-Identifier: Apache-2.0 */
/* Golden values, derived by hand in fp64, for all kernels and every dtype that represents the inputs. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <string.h>

#include "support/scenarios.h"

static const bp_dtype DTYPES[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};

/* Rows of 1, 2, 3, 4 with so many targets. */
static batch one_to_four(bp_dtype dtype, const int64_t *targets, uint64_t count)
{
    batch_options options = {.batch = 1, .sequence = count, .columns = 4, .dtype = dtype, .with_entropy = true};
    batch b = new_batch(&options);
    for (uint64_t s = 0; s < count; s++) {
        put_whole(&b.target, 0, s, targets[s]);
        for (uint64_t v = 0; v < 4; v++)
            put_logit(&b, 0, s, v, (double)v + 1);
    }
    return b;
}

static void set_upstream(batch *b, float g, float h)
{
    for (uint64_t s = 0; s < b->o.sequence; s++) {
        *(float *)row_at(&b->logprob_grad, 0, s) = g;
        *(float *)row_at(&b->entropy_grad, 0, s) = h;
    }
}

#define assert_close(value, expected, slack)                                                                           \
    do {                                                                                                               \
        if (!(fabs((value) - (expected)) <= (slack)))                                                                  \
            fail_msg("%.9g is not %.9g", (double)(value), (double)(expected));                                         \
    } while (0)

static void assert_gradient(const batch *b, uint64_t s, const double expected[4])
{
    for (int64_t v = 0; v < 4; v++)
        assert_close(element_at(row_at(&b->grad, 0, s), BP_DTYPE_FP32, v), expected[v], 1e-7);
}

static void check_goldens(const kernels_row *kernels, bp_dtype dtype)
{
    static const int64_t targets[] = {2, 0, 4, -1};
    batch b = one_to_four(dtype, targets, 4);
    bp_logprob *client = new_client(device, &b, kernels->bit, 0);
    run_forward(client, &b);
    const double logprobs[] = {-1.440189699, -3.440189699, 0, 0};
    for (uint64_t s = 0; s < 4; s++) {
        assert_close(upstream_at(&b.logprob, 0, s), logprobs[s], 3e-7);
        assert_close(upstream_at(&b.entropy, 0, s), 0.947536964, 3e-7);
    }
    set_upstream(&b, 0.5f, 0);
    run_backward(client, &b);
    assert_gradient(&b, 0, (const double[]){-.016029302, -.043572159, .381558591, -.321957130});
    assert_gradient(&b, 2, (const double[]){-.016029302, -.043572159, -.118441409, -.321957130});
    assert_gradient(&b, 3, (const double[]){-.016029302, -.043572159, -.118441409, -.321957130});
    set_upstream(&b, 0, 1);
    run_backward(client, &b);
    for (uint64_t s = 0; s < 4; s++)
        assert_gradient(&b, s, (const double[]){.079910965, .130076206, .116700968, -.326688139});
    bp_logprob_destroy(&client);
    free_batch(&b);
}

TEST(golden_values)
{
    FOR_KERNELS(kernels)
    for (size_t d = 0; d < 3; d++)
        check_goldens(kernels, DTYPES[d]);
}

/* lp = -log V, H = log V, and the entropy of equal logits has a zero gradient. */
static void check_uniform(const kernels_row *kernels, uint64_t columns, double level)
{
    batch_options options = {.batch = 1, .sequence = 2, .columns = columns, .with_entropy = true};
    batch b = new_batch(&options);
    for (uint64_t s = 0; s < 2; s++) {
        float *row = row_at(&b.logits, 0, s);
        for (uint64_t v = 0; v < columns; v++)
            row[v] = (float)level;
    }
    bp_logprob *client = new_client(device, &b, kernels->bit, 0);
    run_forward(client, &b);
    assert_close(upstream_at(&b.logprob, 0, 1), -log((double)columns), 2e-6);
    assert_close(upstream_at(&b.entropy, 0, 1), log((double)columns), 2e-6);
    set_upstream(&b, 0, 1);
    run_backward(client, &b);
    for (uint64_t v = 0; v < columns; v++)
        assert_close(element_at(row_at(&b.grad, 0, 1), BP_DTYPE_FP32, (int64_t)v), 0, 2e-6 / (double)columns);
    bp_logprob_destroy(&client);
    free_batch(&b);
}

TEST(uniform_logits_have_minus_log_v)
{
    static const uint64_t columns[] = {1, 2, 7, 2047, 2048, 2049, 32000, 128001};
    static const double levels[] = {0, -200, 1e4, -3e38};
    FOR_KERNELS(kernels)
    for (size_t c = 0; c < 8; c++)
        for (size_t l = 0; l < 4; l++)
            check_uniform(kernels, columns[c], levels[l]);
}

/* The reference of other tests matches the golden values. */
TEST(reference_matches_golden_values)
{
    const double x[] = {1, 2, 3, 4};
    true_row row = row_of(x, 4, 2, 1);
    assert_close(row.logprob, -1.440189699, 1e-9);
    assert_close(row.entropy, 0.947536964, 1e-9);
    assert_close(gradient_at(&row, 3, 2, 0.5, 0), .381558591, 1e-9);
    assert_close(gradient_at(&row, 4, 3, 0.5, 0), -.321957130, 1e-9);
    assert_close(gradient_at(&row, 1, 0, 0, 1), .079910965, 1e-9);
    assert_close(gradient_at(&row, 4, 3, 0, 1), -.326688139, 1e-9);
    assert_close(row_of(x, 4, 0, 1).logprob, -3.440189699, 1e-9);
}

/* Against finite differences of the reference's forward, with temperatures. */
TEST(reference_gradients_match_differences)
{
    seed(3);
    for (int round = 0; round < 20; round++) {
        double x[9], temperature = 0.3 + 0.2 * round, g = random_fraction(), h = random_fraction();
        int64_t target = (int64_t)random_below(11) - 1;
        for (size_t v = 0; v < 9; v++)
            x[v] = 3 * random_fraction();
        true_row row = row_of(x, 9, target, temperature);
        for (int64_t v = 0; v < 9; v++) {
            double kept = x[v], step = 1e-5;
            x[v] = kept + step;
            true_row above = row_of(x, 9, target, temperature);
            x[v] = kept - step;
            true_row below = row_of(x, 9, target, temperature);
            x[v] = kept;
            double slope = (g * (above.logprob - below.logprob) + h * (above.entropy - below.entropy)) / (2 * step);
            bool inside = target >= 0 && target < 9;
            double expected = gradient_at(&row, kept, v, inside ? g : 0, h);
            assert_close(slope, expected, 1e-8);
        }
    }
}

TEST(reference_rounding)
{
    uint16_t bits = 0;
    for (int dtype = BP_DTYPE_FP16; dtype <= BP_DTYPE_BF16; dtype++) {
        for (uint32_t i = 0; i < 65536; i++) {
            bits = (uint16_t)i;
            double value = element_at(&bits, (bp_dtype)dtype, 0);
            if (isnan(value))
                continue;
            put_element(&bits, (bp_dtype)dtype, 0, value);
            assert_int_equal(bits, i);
        }
    }
    put_element(&bits, BP_DTYPE_FP16, 0, 1 + ldexp(1, -11));
    assert_int_equal(bits, 0x3c00);
    put_element(&bits, BP_DTYPE_FP16, 0, 1 + 3 * ldexp(1, -11));
    assert_int_equal(bits, 0x3c02);
    put_element(&bits, BP_DTYPE_FP16, 0, 65520);
    assert_int_equal(bits, 0x7c00);
    put_element(&bits, BP_DTYPE_BF16, 0, 1 + ldexp(1, -8));
    assert_int_equal(bits, 0x3f80);
    put_element(&bits, BP_DTYPE_BF16, 0, 1 + ldexp(1, -8) + ldexp(1, -30));
    assert_int_equal(bits, 0x3f81);
}

TESTS(open_host, close_host)
