/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are refused, with and without a stream: the error has the argument and its numbers, and nothing is written. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <string.h>

#include "support/scenarios.h"

typedef struct setting {
    batch b;
    bp_logprob *client;
    bp_stream *stream;
    bp_logprob_batch call;
    bp_logprob_outputs outputs;
    bp_logprob_gradients gradients;
} setting;

static setting s;

static int begin(void **state)
{
    (void)state;
    batch_options options = {.batch = 2, .sequence = 5, .columns = 100, .with_entropy = true, .dtype = BP_DTYPE_FP32};
    s.b = new_batch(&options);
    s.client = new_client(device, &s.b, BP_KERNELS_PLAIN, 1);
    assert_ok(bp_stream_create(device, "s", &s.stream));
    s.call = call_of(&s.b, whole_shard(&s.b));
    s.outputs = outputs_of(&s.b);
    s.gradients = gradients_of(&s.b, whole_shard(&s.b));
    return 0;
}

static int end(void **state)
{
    (void)state;
    bp_stream_destroy(&s.stream);
    bp_logprob_destroy(&s.client);
    free_batch(&s.b);
    return 0;
}

static void assert_nothing_written(void)
{
    assert_ok(bp_device_synchronize(device));
    assert_true(inputs_are_whole(&s.b));
    view *const outputs[] = {&s.b.logprob, &s.b.entropy, &s.b.grad};
    for (size_t i = 0; i < 3; i++)
        for (size_t byte = 0; byte < outputs[i]->bytes; byte++)
            assert_int_equal(outputs[i]->memory[byte], POISON);
    for (size_t byte = 0; byte < s.b.saved_bytes; byte++)
        assert_int_equal(s.b.saved[64 + byte], POISON);
}

/* Restores the setting for the next case. */
static void restore_scenario(void)
{
    s.call = call_of(&s.b, whole_shard(&s.b));
    s.outputs = outputs_of(&s.b);
    s.gradients = gradients_of(&s.b, whole_shard(&s.b));
}

#define assert_forward_fails(status, ...)                                                                              \
    do {                                                                                                               \
        assert_fails(bp_logprob_forward(s.client, &s.call, &s.outputs, NULL), status, __VA_ARGS__);                    \
        assert_fails(bp_logprob_forward(s.client, &s.call, &s.outputs, s.stream), status, __VA_ARGS__);                \
        assert_nothing_written();                                                                                      \
    } while (0)

#define assert_backward_fails(status, ...)                                                                             \
    do {                                                                                                               \
        assert_fails(bp_logprob_backward(s.client, &s.call, &s.gradients, NULL), status, __VA_ARGS__);                 \
        assert_fails(bp_logprob_backward(s.client, &s.call, &s.gradients, s.stream), status, __VA_ARGS__);             \
        assert_nothing_written();                                                                                      \
    } while (0)

/* For arguments that forward and backward both check. */
#define assert_both_fail(status, ...)                                                                                  \
    do {                                                                                                               \
        s.gradients.logits_grad.columns = s.call.logits.columns;                                                       \
        s.gradients.logits_grad.batch = s.call.logits.batch;                                                           \
        s.gradients.logits_grad.sequence = s.call.logits.sequence;                                                     \
        assert_forward_fails(status, __VA_ARGS__);                                                                     \
        assert_backward_fails(status, __VA_ARGS__);                                                                    \
        restore_scenario();                                                                                            \
    } while (0)

/* With one change, which is undone. */
#define BOTH_FAIL(change, ...)                                                                                         \
    do {                                                                                                               \
        change;                                                                                                        \
        assert_both_fail(__VA_ARGS__);                                                                                 \
    } while (0)
#define FORWARD_FAILS(change, ...)                                                                                     \
    do {                                                                                                               \
        change;                                                                                                        \
        assert_forward_fails(__VA_ARGS__);                                                                             \
        restore_scenario();                                                                                            \
    } while (0)
#define BACKWARD_FAILS(change, ...)                                                                                    \
    do {                                                                                                               \
        change;                                                                                                        \
        assert_backward_fails(__VA_ARGS__);                                                                            \
        restore_scenario();                                                                                            \
    } while (0)

#define BAD BP_ERR_INVALID_ARGUMENT

TEST(everything_may_be_missing)
{
    assert_fails(bp_logprob_forward(NULL, &s.call, &s.outputs, NULL), BAD, "");
    assert_fails(bp_logprob_forward(s.client, NULL, &s.outputs, NULL), BAD, "");
    assert_fails(bp_logprob_forward(s.client, &s.call, NULL, NULL), BAD, "");
    assert_fails(bp_logprob_backward(NULL, &s.call, &s.gradients, NULL), BAD, "");
    assert_fails(bp_logprob_backward(s.client, NULL, &s.gradients, NULL), BAD, "");
    assert_fails(bp_logprob_backward(s.client, &s.call, NULL, NULL), BAD, "");
    assert_fails(bp_logprob_check(NULL), BAD, "");
    assert_fails(bp_logprob_batch_init(NULL, sizeof(bp_logprob_batch)), BAD, "");
    assert_fails(bp_logprob_outputs_init(NULL, sizeof(bp_logprob_outputs)), BAD, "");
    assert_fails(bp_logprob_gradients_init(NULL, sizeof(bp_logprob_gradients)), BAD, "");
    assert_null(bp_logprob_get_info(NULL));
    assert_nothing_written();
}

TEST(pointers_are_needed)
{
    BOTH_FAIL(s.call.logits.data = NULL, BAD, "logits");
    BOTH_FAIL(s.call.tokens.target.data = NULL, BAD, "target");
    BACKWARD_FAILS(s.gradients.logits_grad.data = NULL, BAD, "gradient");
    s.gradients.saved = NULL;
    assert_backward_fails(BAD, "saved");
}

TEST(pointers_are_aligned_to_their_elements)
{
    BOTH_FAIL(s.call.logits.data = (char *)s.call.logits.data + 2, BAD, "logits", "align");
    BOTH_FAIL(s.call.tokens.target.data = (char *)s.call.tokens.target.data + 4, BAD, "target", "align");
    FORWARD_FAILS(s.outputs.logprob.data = (char *)s.outputs.logprob.data + 1, BAD, "prob", "align");
    FORWARD_FAILS(s.outputs.entropy.data = (char *)s.outputs.entropy.data + 2, BAD, "entrop", "align");
    FORWARD_FAILS(s.outputs.saved = (char *)s.outputs.saved + 2, BAD, "saved", "align");
    BACKWARD_FAILS(s.gradients.saved = (const char *)s.gradients.saved + 2, BAD, "saved", "align");
    BACKWARD_FAILS(s.gradients.logits_grad.data = (char *)s.gradients.logits_grad.data + 2, BAD, "gradient", "align");
    BACKWARD_FAILS(s.gradients.logprob_grad.data = (char *)s.gradients.logprob_grad.data + 2, BAD, "grad", "align");
    s.gradients.entropy_grad.data = (char *)s.gradients.entropy_grad.data + 2;
    assert_backward_fails(BAD, "grad", "align");
}

TEST(dtypes_are_those_served)
{
    static const bp_dtype others[] = {BP_DTYPE_NONE, BP_DTYPE_FP64, BP_DTYPE_FP8_E4M3, BP_DTYPE_INT32, BP_DTYPE_UINT16};
    for (size_t i = 0; i < 5; i++) {
        BOTH_FAIL(s.call.logits.dtype = others[i], BAD, "logits", bp_dtype_name(others[i]));
        BACKWARD_FAILS(s.gradients.logits_grad.dtype = others[i], BAD, "gradient", bp_dtype_name(others[i]));
    }
    static const bp_dtype no_targets[] = {BP_DTYPE_FP32,  BP_DTYPE_FP64,   BP_DTYPE_BF16,
                                          BP_DTYPE_INT16, BP_DTYPE_UINT64, BP_DTYPE_NONE};
    for (size_t i = 0; i < 6; i++) {
        BOTH_FAIL(s.call.tokens.target_dtype = no_targets[i], BAD, "target", bp_dtype_name(no_targets[i]));
    }
    BOTH_FAIL(s.call.logits.dtype = (bp_dtype)999, BAD, "logits");
}

/* A gradient is fp32 or of the logits' dtype. */
TEST(gradients_are_not_of_a_third_dtype)
{
    s.gradients.logits_grad.dtype = BP_DTYPE_BF16;
    assert_backward_fails(BAD, "gradient", "bf16", "fp32");
    s.call.logits.dtype = BP_DTYPE_FP16;
    assert_backward_fails(BAD, "gradient", "bf16", "fp16");
}

TEST(temperatures_and_their_inverses_are_normal_numbers)
{
    const float bad[] = {0, -0.0f, -1, NAN, INFINITY, -INFINITY, 1e-38f, 8.6e37f};
    for (size_t i = 0; i < 8; i++) {
        BOTH_FAIL(s.call.tokens.temperature = bad[i], BAD, "temperature", "8.5e37");
    }
}

TEST(shapes_are_the_configs)
{
    BOTH_FAIL(s.call.logits.columns = 99, BAD, "99", "100");
    BOTH_FAIL(s.call.logits.columns = 0, BAD, "100");
    BOTH_FAIL(s.call.logits.sequence = 6, BAD, "6", "10");
    s.call.logits.batch = UINT64_MAX;
    s.call.logits.sequence = 3;
    s.call.logits.batch_stride = 1000;
    s.call.logits.stride = 100;
    assert_fails(bp_logprob_forward(s.client, &s.call, &s.outputs, NULL), BP_ERR_OVERFLOW, "");
    restore_scenario();
    BACKWARD_FAILS(s.gradients.logits_grad.columns = 101, BAD, "gradient", "101", "100");
    BACKWARD_FAILS(s.gradients.logits_grad.sequence = 4, BAD, "gradient");
    s.gradients.logits_grad.batch = 1;
    assert_backward_fails(BAD, "gradient");
}

/* Overlapping rows of a gradient, and overlapping elements of an output. */
TEST(rows_that_are_written_do_not_overlap)
{
    s.gradients.logits_grad.stride = 99;
    s.gradients.logits_grad.batch_stride = 500;
    assert_backward_fails(BAD, "gradient", "99");
    s.gradients.logits_grad.stride = 100;
    s.gradients.logits_grad.batch_stride = 499;
    assert_backward_fails(BAD, "gradient", "499");
    s.gradients.logits_grad.stride = 100;
    s.gradients.logits_grad.batch_stride = 0;
    assert_backward_fails(BAD, "gradient");
    s.gradients.logits_grad.stride = 0;
    s.gradients.logits_grad.batch_stride = 500;
    assert_backward_fails(BAD, "gradient");
    s.gradients.logits_grad.stride = INT64_MAX;
    s.gradients.logits_grad.batch_stride = INT64_MAX;
    assert_int_not_equal(bp_logprob_backward(s.client, &s.call, &s.gradients, NULL), BP_OK);
    s.gradients.logits_grad.stride = INT64_MIN;
    s.gradients.logits_grad.batch_stride = INT64_MIN;
    assert_int_not_equal(bp_logprob_backward(s.client, &s.call, &s.gradients, NULL), BP_OK);
    restore_scenario();
    FORWARD_FAILS(s.outputs.logprob.stride = 0, BAD, "prob");
    s.outputs.entropy.batch_stride = 4;
    assert_forward_fails(BAD, "entrop");
    assert_nothing_written();
}

TEST(strides_must_not_leave_64_bits)
{
    const int64_t far[] = {INT64_MAX, INT64_MAX / 4, INT64_MIN, INT64_MIN / 4};
    for (size_t i = 0; i < 4; i++) {
        BOTH_FAIL(s.call.logits.stride = s.call.logits.batch_stride = far[i], BP_ERR_OVERFLOW, "logits");
        BOTH_FAIL(s.call.tokens.target.stride = s.call.tokens.target.batch_stride = far[i], BP_ERR_OVERFLOW, "target");
        FORWARD_FAILS(s.outputs.logprob.stride = far[i], BP_ERR_OVERFLOW, "prob");
    }
}

TEST(the_gradient_is_beside_the_logits_or_in_place)
{
    s.gradients.logits_grad.data = s.call.logits.data;
    assert_backward_fails(BAD, "logits", "in_place");
    s.gradients.logits_grad.data = (float *)s.call.logits.data + 100;
    assert_backward_fails(BAD, "logits");
    BACKWARD_FAILS(s.gradients.logits_grad.data = (float *)s.call.logits.data - 999, BAD, "logits");
    s.gradients.in_place = 1;
    assert_backward_fails(BAD, "in_place");
    s.gradients.logits_grad = s.call.logits;
    s.gradients.logits_grad.stride = 101;
    s.gradients.logits_grad.batch_stride = 505;
    assert_backward_fails(BAD, "in_place");
    s.gradients.logits_grad = s.call.logits;
    s.gradients.logits_grad.dtype = BP_DTYPE_BF16;
    assert_backward_fails(BAD, "");
    s.gradients.logits_grad = s.call.logits;
    s.gradients.logits_grad.data = (float *)s.call.logits.data + 1;
    assert_backward_fails(BAD, "in_place");
}

TEST(saved_memory_is_large_enough)
{
    s.outputs.saved_bytes = 119;
    assert_forward_fails(BAD, "saved", "119", "120");
    s.outputs.entropy.data = NULL;
    s.outputs.saved_bytes = 79;
    assert_forward_fails(BAD, "saved", "79", "80");
    s.gradients.saved_bytes = 119;
    assert_backward_fails(BAD, "saved", "119", "120");
    s.gradients.entropy_grad.data = NULL;
    s.gradients.saved_bytes = 79;
    assert_backward_fails(BAD, "saved", "79", "80");
}

TEST(structs_say_their_size)
{
    BOTH_FAIL(s.call.size = 3, BAD, "");
    s.outputs.size = 0;
    assert_forward_fails(BAD, "");
    s.gradients.size = 1;
    assert_backward_fails(BAD, "");
}

TEST(streams_are_of_the_same_device)
{
    bp_device *other = NULL;
    bp_stream *stream = NULL;
    assert_ok(bp_device_create_host(NULL, &other));
    assert_ok(bp_stream_create(other, "foreign", &stream));
    assert_fails(bp_logprob_forward(s.client, &s.call, &s.outputs, stream), BAD, "foreign");
    assert_fails(bp_logprob_backward(s.client, &s.call, &s.gradients, stream), BAD, "foreign");
    assert_nothing_written();
    bp_stream_destroy(&stream);
    bp_device_destroy(&other);
}

/* A call without tokens succeeds, and needs no memory. */
TEST(batches_without_tokens_succeed)
{
    for (int which = 0; which < 3; which++) {
        s.call.logits.batch = s.gradients.logits_grad.batch = which == 1 ? 2 : 0;
        s.call.logits.sequence = s.gradients.logits_grad.sequence = which == 2 ? 3 : 0;
        assert_ok(bp_logprob_forward(s.client, &s.call, &s.outputs, NULL));
        assert_ok(bp_logprob_backward(s.client, &s.call, &s.gradients, s.stream));
    }
    assert_nothing_written();
}

TEST(targets_and_caps_are_in_range)
{
    BOTH_FAIL(s.call.tokens.targets = 0, BAD, "0 targets", "max_targets 1");
    s.call.tokens.targets = 2; /* of a client with 1 */
    assert_both_fail(BAD, "2 targets", "max_targets 1");
    BOTH_FAIL(s.call.tokens.targets = UINT32_MAX, BAD, "targets");
    const float caps[] = {-1, NAN, INFINITY, 1e-38f, 8.6e37f};
    for (size_t i = 0; i < 5; i++) {
        BOTH_FAIL(s.call.tokens.soft_cap = caps[i], BAD, "soft_cap");
    }
    const bp_dtype no_rounding[] = {BP_DTYPE_NONE, BP_DTYPE_FP64, BP_DTYPE_FP8_E4M3, (bp_dtype)999};
    for (size_t i = 0; i < 4; i++) {
        BOTH_FAIL(s.call.tokens.rounding = no_rounding[i], BAD, "rounding");
    }
    BOTH_FAIL(s.call.tokens.temperatures.data = (char *)s.b.saved + 2, BAD, "temperatures", "align");
    s.call.tokens.temperatures = (bp_token_values){s.b.saved, INT64_MAX, 1, 0};
    assert_both_fail(BP_ERR_OVERFLOW, "temperatures");
}

/* The values of a token must not overlap those of another. */
TEST(values_of_targets_do_not_overlap)
{
    batch_options options = {.batch = 2, .sequence = 5, .columns = 100, .targets = 3};
    batch b = new_batch(&options);
    bp_logprob *client = new_client(device, &b, BP_KERNELS_PLAIN, 1);
    static const struct {
        int64_t batch_stride, stride, step;
        bool good;
    } layouts[] = {{15, 3, 1, true}, {5, 1, 10, true},  {1, 6, 2, true}, {15, 3, 0, false}, {15, 2, 1, false},
                   {5, 1, 9, false}, {14, 3, 1, false}, {3, 6, 1, true}, {3, 5, 1, false}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        float values[64];
        bp_logprob_batch call = call_of(&b, whole_shard(&b));
        bp_logprob_outputs outputs = outputs_of(&b);
        outputs.logprob = (bp_token_values){values + 20, layouts[i].batch_stride, layouts[i].stride, layouts[i].step};
        if (layouts[i].good)
            assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
        else
            assert_fails(bp_logprob_forward(client, &call, &outputs, NULL), BAD, "overlap", "log-probabilities");
    }
    bp_logprob_destroy(&client);
    free_batch(&b);
}

TEST(one_call_checks_both)
{
    s.outputs.saved = NULL;
    s.gradients.saved = NULL;
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, &s.gradients, NULL), BAD, "saved");
    restore_scenario();
    s.gradients.saved = &s;
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, &s.gradients, s.stream), BAD, "saved");
    restore_scenario();
    s.outputs.entropy.data = NULL;
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, &s.gradients, NULL), BAD, "entropies");
    restore_scenario();
    s.gradients.logits_grad = s.call.logits;
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, &s.gradients, NULL), BAD, "in_place");
    restore_scenario();
    s.outputs.logprob.stride = 0;
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, &s.gradients, NULL), BAD, "overlap");
    restore_scenario();
    assert_fails(bp_logprob_forward_backward(NULL, &s.call, &s.outputs, &s.gradients, NULL), BAD, "");
    assert_fails(bp_logprob_forward_backward(s.client, NULL, &s.outputs, &s.gradients, NULL), BAD, "");
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, NULL, &s.gradients, NULL), BAD, "");
    assert_fails(bp_logprob_forward_backward(s.client, &s.call, &s.outputs, NULL, NULL), BAD, "");
    assert_nothing_written();
}

/* After all these errors the client still works. */
TEST(errors_leave_a_client_that_works)
{
    BOTH_FAIL(s.call.tokens.temperature = -5, BAD, "-5");
    check_both(s.client, &s.b);
}

TESTS_EACH(begin, end, open_host, close_host)
