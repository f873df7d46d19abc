/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of examples/fsdp_train's layers against differences of the loss: in every tensor, along a direction at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data.h"
#include "net.h"

#define STEP 0x1p-9 /* of what moves each element by its spread, or a norm's by 1 */

typedef struct bench {
    options options;
    model model;
    engine engine;
    net net;
    void *memory;
    float *values[MAX_TENSORS], *grads[MAX_TENSORS];
} bench;

static void *allocate(uint64_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    return memory;
}

static void begin(bench *b, const char *stack)
{
    *b = (bench){
        .options = {
            .stack = stack, .precision = PRECISION_FP32, .rows = 5, .length = 6, .hidden = 8, .vocab = 11, .seed = 3}};
    const uint32_t tokens = (uint32_t)(b->options.rows * b->options.length);
    model_make(&b->options, &b->model);
    assert_int_equal(engine_create(ENGINE_NOW, NULL, 0, &b->engine), BP_OK);
    b->memory = allocate(net_lay_out(&b->net, &b->model, &b->engine, tokens, NULL));
    net_lay_out(&b->net, &b->model, &b->engine, tokens, b->memory);
    for (uint32_t i = 0; i < b->model.count; i++) {
        b->values[i] = allocate(b->model.tensors[i].numel * sizeof(float));
        b->grads[i] = allocate(b->model.tensors[i].numel * sizeof(float));
        for (uint64_t e = 0; e < b->model.tensors[i].numel; e++)
            b->values[i][e] = model_value(&b->model, i, e);
    }
    data_make(&b->options, 0, (row_range){0, b->options.rows}, b->net.ids, b->net.targets);
}

static void end(bench *b)
{
    for (uint32_t i = 0; i < b->model.count; i++) {
        free(b->values[i]);
        free(b->grads[i]);
    }
    free(b->memory);
    engine_destroy(&b->engine);
}

static weights weights_of(const bench *b, int32_t unit)
{
    weights w = {{NULL}, {NULL}};
    uint32_t first = model_tensor(&b->model, unit, 0);
    for (uint32_t i = 0; first + i < b->model.count && b->model.tensors[first + i].unit == unit; i++) {
        w.at[i] = b->values[first + i];
        w.grad[i] = b->grads[first + i];
    }
    return w;
}

static double forward(bench *b)
{
    const weights outside = weights_of(b, BP_OUTSIDE);
    double sum = 0;
    assert_int_equal(net_embed(&b->net, &outside, NULL), BP_OK);
    for (uint32_t u = 0; u < b->model.units; u++) {
        const weights w = weights_of(b, (int32_t)u);
        assert_int_equal(net_forward(&b->net, u, &w, NULL), BP_OK);
    }
    assert_int_equal(net_head(&b->net, &outside, NULL), BP_OK);
    for (uint32_t n = 0; n < b->net.tokens; n++)
        sum += b->net.losses[n];
    return sum / b->net.tokens;
}

static void backward(bench *b)
{
    const weights outside = weights_of(b, BP_OUTSIDE);
    for (uint32_t u = b->model.units; u-- > 0;) {
        const weights w = weights_of(b, (int32_t)u);
        assert_int_equal(net_backward(&b->net, u, &w, NULL), BP_OK);
    }
    assert_int_equal(net_embed_backward(&b->net, &outside, NULL), BP_OK);
}

static double direction(const bench *b, uint32_t index, uint64_t element)
{
    const float spread = b->model.tensors[index].spread;
    const double sign = data_random(99, index, element) % 2 == 0 ? 1 : -1;
    return sign * (spread > 0 ? (double)spread : 1);
}

/* The loss with a tensor so far along its direction. */
static double loss_at(bench *b, uint32_t index, double far)
{
    const uint64_t numel = b->model.tensors[index].numel;
    float *kept = allocate(numel * sizeof *kept), *values = b->values[index];
    for (uint64_t e = 0; e < numel; e++) {
        kept[e] = values[e];
        values[e] = (float)(values[e] + far * direction(b, index, e));
    }
    const double loss = forward(b);
    for (uint64_t e = 0; e < numel; e++)
        values[e] = kept[e];
    free(kept);
    return loss;
}

static void check_tensor(bench *b, uint32_t index)
{
    double slope = 0, norm = 0;
    for (uint64_t e = 0; e < b->model.tensors[index].numel; e++) {
        const double along = b->grads[index][e] * direction(b, index, e);
        slope += along;
        norm += along * along;
    }
    float *grads = b->grads[index]; /* what the head computes anew */
    b->grads[index] = allocate(b->model.tensors[index].numel * sizeof *grads);
    const double measured = (loss_at(b, index, STEP) - loss_at(b, index, -STEP)) / (2 * STEP);
    free(b->grads[index]);
    b->grads[index] = grads;
    if (norm == 0 || fabs(measured - slope) > 0.01 * sqrt(norm))
        fail_msg("%s: the loss falls by %g, its gradient says %g (norm %g)", b->model.tensors[index].name, measured,
                 slope, sqrt(norm));
}

static void check_stack(const char *stack)
{
    bench b;
    begin(&b, stack);
    const double loss = forward(&b);
    assert_true(loss > 1 && loss < 5);
    backward(&b);
    for (uint32_t i = 0; i < b.model.count; i++)
        check_tensor(&b, i);
    end(&b);
}

static void test_attention(void **state)
{
    (void)state;
    check_stack("a");
}

static void test_mlp(void **state)
{
    (void)state;
    check_stack("m");
}

static void test_experts(void **state)
{
    (void)state;
    check_stack("e");
}

static void test_all(void **state)
{
    (void)state;
    check_stack("aeam");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
