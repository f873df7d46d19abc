/* SPDX-License-Identifier: Apache-2.0 */
/* The host engine: its choice of kernels and threads, and the accuracy of each kernel's exponential. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "engine.h"
#include "host/kernels.h"
#include "support/batches.h"
#include "support/hosts.h"
#include "support/scenarios.h"

#define ALL_KERNELS (BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512)

TEST(the_fastest_kernels_are_chosen)
{
    const bp_host_kernels *fastest = NULL;
    FOR_KERNELS(kernels)
    {
        fastest = bp_kernels_choose(kernels->bit);
        assert_int_equal(fastest->bit, kernels->bit);
    }
    assert_ptr_equal(bp_kernels_choose(0), &bp_kernels_plain);
    assert_ptr_equal(bp_kernels_choose(ALL_KERNELS), fastest);
}

TEST(threads_are_as_asked)
{
    bp_engine *engine = NULL;
    assert_int_equal(bp_engine_create_host(5000, ALL_KERNELS, 10, &engine), BP_ERR_INVALID_ARGUMENT);
    assert_null(engine);
    assert_ok(bp_engine_create_host(0, ALL_KERNELS, 10, &engine));
    assert_true(engine->threads > 0);
    engine->ops->destroy(engine);
    assert_ok(bp_engine_create_host(3, ALL_KERNELS, 10, &engine));
#ifdef __SANITIZE_THREAD__
    const bool has_openmp = false;
#else
    const bool has_openmp = dlopen("libgomp.so.1", RTLD_NOW) != NULL;
#endif
    assert_int_equal(engine->threads, has_openmp ? 3 : 1);
    engine->ops->destroy(engine);
}

/* With factor 1 and nothing subtracted, the gradient is exp(x). In units in the last place; libm has at most 1. */
TEST(exponentials_are_within_a_unit)
{
    enum { STEPS = 1 << 16 };
    static float x[STEPS], out[STEPS];
    const bp_row_gradient row = {.scale = 1, .factor = 1};
    FOR_KERNELS(kernels)
    {
        const bp_host_kernels *table = bp_kernels_choose(kernels->bit);
        double max = 0;
        for (unsigned part = 0; part < 16; part++) {
            for (unsigned i = 0; i < STEPS; i++)
                x[i] = -87.3f * (float)(part * STEPS + i) / (16 * STEPS);
            table->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, STEPS, &row, out);
            for (unsigned i = 0; i < STEPS; i++) {
                const double exact = exp(x[i]);
                max = fmax(max, fabs(out[i] - exact) / ldexp(1, ilogb(exact) - 23));
            }
            assert_true(part > 0 || out[0] == 1);
        }
        print_message("%s: %.3f units\n", kernels->name, max);
        assert_true(max <= 1.2);
        x[0] = -INFINITY, x[1] = -105, x[2] = -FLT_MAX;
        table->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, 3, &row, out);
        assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0);
    }
}

TESTS(open_host, close_host)
