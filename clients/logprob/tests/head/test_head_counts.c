/* SPDX-License-Identifier: Apache-2.0 */
/* The products of a head and the bytes of its gradients, counted between the head and its library: on the host, and on the emulated driver or a
 * GPU. */
#include "support/harness.h"

#include <stdio.h>
#include <stdlib.h>

#include "device_tensors.h"
#include "support/driver.h"
#include "support/pools.h"

/* ---- counting products ------------------------------------------------------------------------------------------- */

typedef struct counts {
    uint64_t terms[3];                   /* multiplications of logits, hidden_grad and weight_grad */
    uint64_t weight_bytes, hidden_bytes; /* read and written as results of products */
    uint64_t products;
} counts;

static counts counted;

typedef struct counting {
    bp_products products;
    bp_products *inner;
} counting;

static bp_products *inner_of(bp_products *products)
{
    counting *c = (counting *)products;
    c->inner->own = products->own;
    return c->inner;
}

static uint64_t result_bytes(const bp_product_work *work, uint64_t rows)
{
    return rows * work->hidden * (bp_dtype_bits(work->c.dtype) / 8) * (work->adds ? 2 : 1);
}

static bp_status count_logits(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    counted.terms[0] += work->rows * work->columns * work->hidden;
    counted.products++;
    return inner_of(products)->ops->logits(inner_of(products), work, stream);
}

static bp_status count_hidden_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    counted.terms[1] += work->rows * work->columns * work->hidden;
    counted.hidden_bytes += result_bytes(work, work->rows);
    counted.products++;
    return inner_of(products)->ops->hidden_grad(inner_of(products), work, stream);
}

/* Rows that join later ones are only copied. */
static bp_status count_weight_grad(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    counted.terms[2] += work->rows * work->columns * work->hidden;
    counted.weight_bytes += work->joins ? 0 : result_bytes(work, work->columns);
    counted.products += !work->joins;
    return inner_of(products)->ops->weight_grad(inner_of(products), work, stream);
}

static bp_status pass_place(bp_products *products, const bp_product_work *work, bp_stream *stream)
{
    return inner_of(products)->ops->place(inner_of(products), work, stream);
}

static void end_counting(bp_products *products)
{
    bp_products *inner = inner_of(products);
    inner->ops->destroy(inner);
    free(products);
}

static bp_status count_products(bp_status status, bp_products **products)
{
    static const bp_products_ops ops = {.destroy = end_counting,
                                        .logits = count_logits,
                                        .hidden_grad = count_hidden_grad,
                                        .weight_grad = count_weight_grad,
                                        .place = pass_place};
    if (status != BP_OK)
        return status;
    counting *c = calloc(1, sizeof *c);
    assert_non_null(c);
    *c = (counting){.products = **products, .inner = *products};
    c->products.ops = &ops;
    *products = &c->products;
    return BP_OK;
}

/* Instead of the functions of engine.h: the linker's --wrap. */
bp_status __real_bp_products_create_blas(uint32_t threads, uint64_t rows, uint64_t columns, uint64_t hidden,
                                         bp_dtype dtype, bp_products **products);
bp_status __real_bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                           bp_products **products);
bp_status __wrap_bp_products_create_blas(uint32_t threads, uint64_t rows, uint64_t columns, uint64_t hidden,
                                         bp_dtype dtype, bp_products **products);
bp_status __wrap_bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                           bp_products **products);

bp_status __wrap_bp_products_create_blas(uint32_t threads, uint64_t rows, uint64_t columns, uint64_t hidden,
                                         bp_dtype dtype, bp_products **products)
{
    return count_products(__real_bp_products_create_blas(threads, rows, columns, hidden, dtype, products), products);
}

bp_status __wrap_bp_products_create_cublas(bp_device *device, uint64_t rows, uint64_t hidden, bp_dtype dtype,
                                           bp_products **products)
{
    return count_products(__real_bp_products_create_cublas(device, rows, hidden, dtype, products), products);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 300, HIDDEN = 4, VOCAB = 4500 };

/* Counts both passes, and compares their results. */
static counts count_calls(const head_case *c)
{
    bp_device *device = has_driver() ? new_cuda() : new_host();
    device_tensors w;
    begin_device_tensors(&w, device, c, 0, c->vocab);
    bp_lm_head_config config = head_config_of(c);
    bp_lm_head *head = NULL;
    config.targets = BP_TARGETS_ERROR;
    bp_status status = bp_lm_head_create(device, &config, &head);
    if (status == BP_ERR_UNSUPPORTED) {
        printf("%s\n", bp_error_detail());
        fflush(stdout);
        _Exit(77);
    }
    assert_ok(status);
    reset_device_tensors(&w);
    counted = (counts){0};
    assert_ok(call_head(head, &w.there, w.stream));
    const counts result = counted;
    assert_true(matches_reference(&w));
    bp_lm_head_destroy(&head);
    end_device_tensors(&w);
    bp_device_destroy(&device);
    return result;
}

static head_case case_of(head_way way, int64_t chunk)
{
    return (head_case){.batch = 1,
                       .sequence = TOKENS,
                       .hidden = HIDDEN,
                       .vocab = VOCAB,
                       .dtype = BP_DTYPE_BF16,
                       .grad_dtype = BP_DTYPE_FP32,
                       .chunk = chunk,
                       .temperature = 1,
                       .masks_finite = true,
                       .ignores = true,
                       .seed = 4,
                       .way = way};
}

/* Four products in two calls, three in one call or with kept logits, in one piece or several. */
TEST(test_products)
{
    const uint64_t product = (uint64_t)TOKENS * HIDDEN * VOCAB;
    for (int way = 0; way < HEAD_WAYS; way++) {
        for (int64_t chunk = 0; chunk < 200; chunk += 128) {
            const head_case c = case_of((head_way)way, chunk);
            const counts is = count_calls(&c);
            assert_int_equal(is.terms[0], way == TWO_CALLS ? 2 * product : product);
            assert_int_equal(is.terms[1], product);
            assert_int_equal(is.terms[2], product);
        }
    }
}

/* The gradient of the weight is written by the first piece, and read and written by the others. */
TEST(test_bytes_of_the_weight)
{
    const uint64_t weight = (uint64_t)VOCAB * HIDDEN * sizeof(float);
    for (int way = 0; way < HEAD_WAYS; way++) {
        head_case c = case_of((head_way)way, 0);
        assert_int_equal(count_calls(&c).weight_bytes, weight);
        c.accumulate = true;
        assert_int_equal(count_calls(&c).weight_bytes, 2 * weight);
        c = case_of((head_way)way, 128); /* three pieces */
        assert_int_equal(count_calls(&c).weight_bytes, 5 * weight);
    }
}

/* Also with a mask, and where the hidden states are no matrix: cuBLAS gets copies. */
TEST(test_bytes_of_a_masked_weight)
{
    const uint64_t weight = (uint64_t)VOCAB * HIDDEN;
    for (int way = 0; way < HEAD_WAYS; way++) {
        head_case c = case_of((head_way)way, 0);
        c.batch = 2;
        c.sequence = TOKENS / 2;
        c.by_token = true;
        c.has_mask = true;
        c.narrow_weight_grad = true;
        const uint64_t bytes = count_calls(&c).weight_bytes;
        if (has_driver()) /* in bf16, once */
            assert_int_equal(bytes, weight * 2);
        else /* fp32 sums of each tile, in caches */
            assert_int_equal(bytes, weight * sizeof(float) * 3);
    }
}

/* Parts of the vocabulary read and write the sums of hidden_grad instead. */
TEST(test_parts)
{
    head_case c = case_of(TWO_CALLS, 0);
    const uint64_t row = HIDDEN * sizeof(float), parts = (VOCAB + 2047) / 2048;
    c.sequence = 1300; /* tiles of 2048 columns on the host */
    assert_int_equal(count_calls(&c).hidden_bytes, (has_driver() ? 1 : 2 * parts - 1) * 1300 * row);
    c.sequence = 1000;
    c.memory_bytes = 1; /* parts of the least size */
    const counts is = count_calls(&c);
    assert_int_equal(is.weight_bytes, VOCAB * row);
    assert_int_equal(is.hidden_bytes, (2 * parts - 1) * 1000 * row);
}

TESTS(NULL, NULL)
