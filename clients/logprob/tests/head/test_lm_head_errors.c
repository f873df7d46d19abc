/* SPDX-License-Identifier: Apache-2.0 */
/* Heads and calls that are refused: the error has the argument and its numbers, and nothing is written. */
#include "support/harness.h"

#include "../support/hosts.h"
#include "heads.h"

#include <math.h>
#include <string.h>

#include "support/scenarios.h"

#define BAD BP_ERR_INVALID_ARGUMENT

typedef struct setting {
    head_batch h;
    bp_lm_head *head;
    bp_stream *stream;
    bp_lm_head_batch call;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
} setting;

static setting s;

static void restore_scenario(void)
{
    s.call = head_call_of(&s.h, whole_shard(&s.h.tokens));
    s.outputs = outputs_of(&s.h.tokens);
    s.gradients = head_gradients_of(&s.h, whole_shard(&s.h.tokens));
}

static int begin(void **state)
{
    (void)state;
    head_options o = {.batch = 2, .sequence = 5, .hidden = 12, .columns = 100, .with_entropy = true, .chunk = 2};
    s.h = new_head_batch(&o);
    s.head = new_head(device, &s.h);
    assert_ok(bp_stream_create(device, "s", &s.stream));
    restore_scenario();
    return 0;
}

static int end(void **state)
{
    (void)state;
    bp_stream_destroy(&s.stream);
    bp_lm_head_destroy(&s.head);
    free_head_batch(&s.h);
    return 0;
}

static void assert_nothing_written(void)
{
    assert_ok(bp_device_synchronize(device));
    view *const outputs[] = {&s.h.tokens.logprob, &s.h.tokens.entropy, &s.h.hidden_grad, &s.h.weight_grad};
    for (size_t i = 0; i < 4; i++)
        for (size_t byte = 0; byte < outputs[i]->bytes; byte++)
            assert_int_equal(outputs[i]->memory[byte], POISON);
}

#define assert_forward_fails(status, ...)                                                                              \
    do {                                                                                                               \
        assert_fails(bp_lm_head_forward(s.head, &s.call, &s.outputs, NULL), status, __VA_ARGS__);                      \
        assert_fails(bp_lm_head_forward(s.head, &s.call, &s.outputs, s.stream), status, __VA_ARGS__);                  \
        assert_nothing_written();                                                                                      \
    } while (0)

#define assert_backward_fails(status, ...)                                                                             \
    do {                                                                                                               \
        assert_fails(bp_lm_head_backward(s.head, &s.call, &s.gradients, NULL), status, __VA_ARGS__);                   \
        assert_fails(bp_lm_head_backward(s.head, &s.call, &s.gradients, s.stream), status, __VA_ARGS__);               \
        assert_nothing_written();                                                                                      \
    } while (0)

#define assert_both_fail(status, ...)                                                                                  \
    do {                                                                                                               \
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

/* ---- heads --------------------------------------------------------------------------------------------------------- */

/* `config` is the variable in `change`. */
#define assert_no_head(on, change, status, ...)                                                                        \
    do {                                                                                                               \
        config = head_config_of(&s.h, whole_shard(&s.h.tokens));                                                       \
        change;                                                                                                        \
        bp_lm_head *no_head = (bp_lm_head *)&no_head;                                                                  \
        assert_fails(bp_lm_head_create(on, &config, &no_head), status, __VA_ARGS__);                                   \
        assert_ptr_equal(no_head, &no_head);                                                                           \
    } while (0)

TEST(invalid_heads_are_refused)
{
    bp_lm_head_config config;
    assert_no_head(device, config.hidden = 0, BAD, "hidden");
    assert_no_head(device, config.vocab = 0, BAD, "vocab");
    assert_no_head(device, config.vocab = UINT64_MAX / 2, BAD, "vocab");
    assert_no_head(device, config.max_tokens = 0, BAD, "token");
    assert_no_head(device, config.chunk = -3, BAD, "chunk", "-3");
    assert_no_head(device, config.passes = 0, BAD, "passes", "0x0");
    assert_no_head(device, config.passes = 17, BAD, "passes", "0x11");
    assert_no_head(device, config.dtype = BP_DTYPE_FP64, BAD, "fp64");
    assert_no_head(device, config.dtype = BP_DTYPE_NONE, BAD, "none");
    assert_no_head(device, config.targets = (bp_targets)9, BAD, "9");
    assert_no_head(device, config.size = 0, BAD, "");
    assert_no_head(NULL, (void)0, BAD, "");
    assert_no_head(device, config.max_tokens = UINT64_MAX, BP_ERR_OVERFLOW, "");
    assert_no_head(device, config.vocab_start = UINT64_MAX - 5, BP_ERR_OVERFLOW, "");
    bp_lm_head *none = NULL;
    config = head_config_of(&s.h, whole_shard(&s.h.tokens));
    assert_fails(bp_lm_head_create(device, NULL, &none), BAD, "");
    assert_fails(bp_lm_head_create(device, &config, NULL), BAD, "");
    bp_lm_head_destroy(NULL);
    bp_lm_head_destroy(&none);
    bp_device *nothing = NULL;
    assert_ok(bp_device_create_null(&nothing));
    assert_no_head(nothing, (void)0, BP_ERR_UNSUPPORTED, "null");
    bp_device_destroy(&nothing);
}

TEST(defaults_are_as_written)
{
    bp_lm_head_config config;
    bp_lm_head_batch call;
    bp_lm_head_gradients gradients;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    assert_true(config.chunk == 0 && config.memory_bytes == UINT64_C(1) << 30 && config.dtype == BP_DTYPE_BF16 &&
                config.comm == NULL && config.vocab_start == 0);
    assert_true(config.targets == BP_TARGETS_ERROR && config.passes == (BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD) &&
                config.partial_hidden_grad == 0);
    assert_ok(bp_lm_head_batch_init(&call, sizeof call));
    assert_true(call.tokens.temperature == 1 && call.tokens.target_dtype == BP_DTYPE_INT64 &&
                call.tokens.mask.data == NULL);
    assert_ok(bp_lm_head_gradients_init(&gradients, sizeof gradients));
    assert_true(gradients.accumulate == 0 && gradients.weight_grad_dtype == BP_DTYPE_FP32 &&
                gradients.hidden_grad.dtype == BP_DTYPE_FP32);
    assert_fails(bp_lm_head_config_init(NULL, sizeof config), BAD, "");
    assert_fails(bp_lm_head_batch_init(NULL, sizeof call), BAD, "");
    assert_fails(bp_lm_head_gradients_init(&gradients, 1), BAD, "");
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

TEST(everything_may_be_missing)
{
    assert_fails(bp_lm_head_forward(NULL, &s.call, &s.outputs, NULL), BAD, "");
    assert_fails(bp_lm_head_forward(s.head, NULL, &s.outputs, NULL), BAD, "");
    assert_fails(bp_lm_head_forward(s.head, &s.call, NULL, NULL), BAD, "");
    assert_fails(bp_lm_head_backward(NULL, &s.call, &s.gradients, NULL), BAD, "");
    assert_fails(bp_lm_head_backward(s.head, NULL, &s.gradients, NULL), BAD, "");
    assert_fails(bp_lm_head_backward(s.head, &s.call, NULL, NULL), BAD, "");
    assert_fails(bp_lm_head_check(NULL), BAD, "");
    BOTH_FAIL(s.call.hidden.data = NULL, BAD, "hidden");
    BOTH_FAIL(s.call.weight = NULL, BAD, "weight");
    BOTH_FAIL(s.call.tokens.target.data = NULL, BAD, "target");
    s.gradients.saved = NULL;
    assert_backward_fails(BAD, "saved");
}

TEST(shapes_and_dtypes_are_the_configs)
{
    BOTH_FAIL(s.call.hidden.columns = 13, BAD, "hidden", "13", "12");
    BOTH_FAIL(s.call.hidden.dtype = BP_DTYPE_BF16, BAD, "hidden", "bf16", "fp32");
    BOTH_FAIL(s.call.hidden.sequence = 6, BAD, "10");
    BOTH_FAIL(s.call.tokens.target_dtype = BP_DTYPE_FP32, BAD, "target", "fp32");
    BACKWARD_FAILS(s.gradients.hidden_grad.columns = 11, BAD, "11", "12");
    BACKWARD_FAILS(s.gradients.hidden_grad.sequence = 4, BAD, "4", "5");
    BACKWARD_FAILS(s.gradients.hidden_grad.dtype = BP_DTYPE_FP16, BAD, "fp16");
    BOTH_FAIL(s.call.weight_stride = 11, BAD, "weight", "11", "12");
    s.gradients.weight_grad_stride = 11;
    assert_backward_fails(BAD, "weight", "11", "12");
}

/* In separate memory: what malloc places behind a tensor would overlap, too. */
TEST(gradients_share_no_memory)
{
    _Alignas(64) static char apart[65536];
    BACKWARD_FAILS(s.gradients.hidden_grad.data = s.call.hidden.data, BAD, "overlaps");
    BACKWARD_FAILS(s.gradients.weight_grad = (float *)s.call.weight, BAD, "overlaps");
    s.call.weight = s.gradients.hidden_grad.data = apart;
    assert_backward_fails(BAD, "overlaps the weights");
    restore_scenario();
    s.gradients.weight_grad = s.gradients.hidden_grad.data = apart;
    assert_backward_fails(BAD, "overlaps the gradients of weights");
}

TEST(pointers_are_aligned)
{
    BOTH_FAIL(s.call.hidden.data = (char *)s.call.hidden.data + 2, BAD, "hidden", "align");
    BOTH_FAIL(s.call.weight = (const char *)s.call.weight + 1, BAD, "weight", "align");
    BOTH_FAIL(s.call.tokens.target.data = (char *)s.call.tokens.target.data + 4, BAD, "target", "align");
    BACKWARD_FAILS(s.gradients.hidden_grad.data = (char *)s.gradients.hidden_grad.data + 1, BAD, "hidden", "align");
    s.gradients.weight_grad = (char *)s.gradients.weight_grad + 2;
    assert_backward_fails(BAD, "weight", "align");
}

TEST(values_are_within_their_limits)
{
    const float bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        BOTH_FAIL(s.call.tokens.temperature = bad[i], BAD, "temperature");
    }
    s.outputs.saved_bytes = 119;
    assert_forward_fails(BAD, "saved", "119", "120");
    BACKWARD_FAILS(s.gradients.saved_bytes = 119, BAD, "saved", "119", "120");
    s.gradients.hidden_grad.stride = 11;
    BACKWARD_FAILS(s.gradients.hidden_grad.batch_stride = 60, BAD, "hidden", "11");
    FORWARD_FAILS(s.outputs.logprob.stride = 0, BAD, "prob");
    BOTH_FAIL(s.call.size = s.outputs.size = s.gradients.size = 2, BAD, "");
}

TEST(a_head_for_forward_has_no_backward)
{
    bp_lm_head *forward_only = NULL;
    bp_lm_head_config config = head_config_of(&s.h, whole_shard(&s.h.tokens));
    config.passes = BP_LM_HEAD_FORWARD;
    assert_ok(bp_lm_head_create(device, &config, &forward_only));
    assert_fails(bp_lm_head_backward(forward_only, &s.call, &s.gradients, NULL), BP_ERR_SCHEDULE, "0x1",
                 "BP_LM_HEAD_BACKWARD");
    assert_nothing_written();
    assert_ok(bp_lm_head_forward(forward_only, &s.call, &s.outputs, NULL));
    assert_true(head_outputs_are_true(&s.h));
    assert_true(bp_lm_head_get_info(forward_only)->workspace_bytes <= bp_lm_head_get_info(s.head)->workspace_bytes);
    bp_lm_head_destroy(&forward_only);
}

/* Each call needs its pass, and kept logits theirs. */
TEST(calls_are_among_the_passes)
{
    static const char *const names[] = {"BP_LM_HEAD_FORWARD", "BP_LM_HEAD_BACKWARD", "BP_LM_HEAD_ONE_CALL",
                                        "BP_LM_HEAD_KEPT"};
    bp_lm_head_batch kept = s.call;
    kept.logits = s.h.kept;
    for (int pass = 0; pass < 4; pass++) {
        bp_lm_head *head = NULL;
        bp_lm_head_config config = head_config_of(&s.h, whole_shard(&s.h.tokens));
        config.passes = 1u << pass;
        assert_ok(bp_lm_head_create(device, &config, &head));
        for (int called = 0; called < 5; called++) {
            const bp_lm_head_batch *call = called < 3 ? &s.call : &kept;
            const bool is_forward = called == 0 || called == 3, is_allowed = pass == (called < 3 ? called : 3);
            poison_head(&s.h);
            const bp_status status = called == 2
                                         ? bp_lm_head_forward_backward(head, call, &s.outputs, &s.gradients, NULL)
                                     : is_forward ? bp_lm_head_forward(head, call, &s.outputs, NULL)
                                                  : bp_lm_head_backward(head, call, &s.gradients, NULL);
            if (is_allowed)
                assert_ok(status);
            else
                assert_fails(status, BP_ERR_SCHEDULE, names[called < 3 ? called : 3]);
        }
        bp_lm_head_destroy(&head);
    }
    poison_head(&s.h);
    assert_fails(bp_lm_head_forward_backward(s.head, &kept, &s.outputs, &s.gradients, NULL), BAD, "kept");
}

TEST(kept_logits_are_checked)
{
    bp_lm_head *head = NULL;
    bp_lm_head_config config = head_config_of(&s.h, whole_shard(&s.h.tokens));
    bp_lm_head_batch kept = s.call;
    kept.logits = s.h.kept;
    config.passes = BP_LM_HEAD_KEPT;
    assert_ok(bp_lm_head_create(device, &config, &head));
    kept.logits_stride = 99;
    assert_fails(bp_lm_head_forward(head, &kept, &s.outputs, NULL), BAD, "kept logits", "99", "100");
    assert_fails(bp_lm_head_backward(head, &kept, &s.gradients, NULL), BAD, "kept logits", "99", "100");
    kept.logits_stride = INT64_C(1) << 32;
    assert_fails(bp_lm_head_forward(head, &kept, &s.outputs, NULL), BAD, "kept logits", "4294967296");
    kept.logits_stride = 0;
    kept.logits = (float *)(void *)((char *)s.h.kept + 1);
    assert_fails(bp_lm_head_forward(head, &kept, &s.outputs, NULL), BAD, "kept logits", "align");
    assert_nothing_written();
    bp_lm_head_destroy(&head);
}

TEST(one_call_is_checked)
{
    bp_lm_head *head = NULL;
    bp_lm_head_config config = head_config_of(&s.h, whole_shard(&s.h.tokens));
    bp_logprob_outputs none;
    float other[64];
    config.passes = BP_LM_HEAD_ONE_CALL;
    assert_ok(bp_lm_head_create(device, &config, &head));
#define ONE_CALL_FAILS(...)                                                                                            \
    do {                                                                                                               \
        assert_fails(bp_lm_head_forward_backward(head, &s.call, &s.outputs, &s.gradients, NULL), BAD, __VA_ARGS__);    \
        assert_nothing_written();                                                                                      \
        restore_scenario();                                                                                            \
    } while (0)
    s.gradients.saved = other;
    ONE_CALL_FAILS("saved", "use one");
    s.outputs.saved = NULL;
    s.gradients.saved = NULL;
    ONE_CALL_FAILS("saved is missing");
    s.outputs.entropy.data = NULL;
    ONE_CALL_FAILS("entropies", "output entropy");
    s.gradients.weight_grad_dtype = BP_DTYPE_BF16;
    ONE_CALL_FAILS("bf16", "fp32");
    s.call.tokens.temperature = -1;
    ONE_CALL_FAILS("temperature");
    assert_fails(bp_lm_head_forward_backward(NULL, &s.call, &s.outputs, &s.gradients, NULL), BAD, "head");
    assert_fails(bp_lm_head_forward_backward(head, NULL, &s.outputs, &s.gradients, NULL), BAD, "");
    assert_fails(bp_lm_head_forward_backward(head, &s.call, NULL, &s.gradients, NULL), BAD, "");
    assert_fails(bp_lm_head_forward_backward(head, &s.call, &s.outputs, NULL, NULL), BAD, "");
    assert_ok(bp_logprob_outputs_init(&none, sizeof none)); /* no tokens: gradients are cleared */
    s.call.hidden.batch = s.gradients.hidden_grad.batch = 0;
    s.gradients.saved = NULL;
    s.gradients.entropy_grad.data = NULL;
    assert_ok(bp_lm_head_forward_backward(head, &s.call, &none, &s.gradients, NULL));
    assert_true(*(const float *)row_at(&s.h.weight_grad, 0, 99) == 0);
    bp_lm_head_destroy(&head);
}

/* A gradient of the weight in its dtype is written once, so it has one piece and adds to nothing. */
TEST(narrow_gradients_have_one_piece)
{
    head_options o = {.batch = 2, .sequence = 5, .hidden = 12, .columns = 100, .dtype = BP_DTYPE_BF16, .chunk = 4};
    o.narrow_weight_grad = true;
    head_batch h = new_head_batch(&o);
    const shard all = whole_shard(&h.tokens);
    bp_lm_head *head = new_head(device, &h);
    bp_lm_head_batch call = head_call_of(&h, all);
    bp_lm_head_gradients gradients = head_gradients_of(&h, all);
    assert_fails(bp_lm_head_backward(head, &call, &gradients, NULL), BAD, "10 tokens", "up to 4", "memory_bytes");
    gradients.accumulate = 1;
    assert_fails(bp_lm_head_backward(head, &call, &gradients, NULL), BAD, "bf16", "added");
    gradients.accumulate = 0;
    gradients.weight_grad_dtype = BP_DTYPE_FP16;
    assert_fails(bp_lm_head_backward(head, &call, &gradients, NULL), BAD, "fp16", "bf16");
    for (size_t i = 0; i < h.weight_grad.bytes; i++)
        assert_int_equal(h.weight_grad.memory[i], POISON);
    bp_lm_head_destroy(&head);
    free_head_batch(&h);
}

TEST(targets_outside_are_named)
{
    bp_lm_head *checked = NULL;
    bp_lm_head_config config = head_config_of(&s.h, whole_shard(&s.h.tokens));
    config.targets = BP_TARGETS_ERROR;
    assert_ok(bp_lm_head_create(device, &config, &checked));
    static const int64_t bad[] = {100, -1, INT64_MIN, INT64_MAX};
    static const char *const named[] = {"100", "-1", "-2147483648 or less", "2147483647 or more"};
    for (size_t i = 0; i < 4; i++) {
        put_whole(&s.h.tokens.target, 1, 3, bad[i]);
        assert_fails(bp_lm_head_forward(checked, &s.call, &s.outputs, NULL), BAD, "target", "8", named[i]);
        assert_ok(bp_lm_head_forward(checked, &s.call, &s.outputs, s.stream));
        assert_fails(bp_lm_head_check(checked), BAD, "target", "8", named[i]);
        assert_ok(bp_lm_head_check(checked));
    }
    bp_lm_head_destroy(&checked);
}

TEST(empty_calls_succeed)
{
    s.call.hidden.batch = s.gradients.hidden_grad.batch = 0;
    assert_ok(bp_lm_head_forward(s.head, &s.call, &s.outputs, NULL));
    s.gradients.accumulate = 1;
    assert_ok(bp_lm_head_backward(s.head, &s.call, &s.gradients, NULL));
    assert_nothing_written();
    /* a sum over no tokens is 0, and is written */
    s.gradients.accumulate = 0;
    assert_ok(bp_lm_head_backward(s.head, &s.call, &s.gradients, NULL));
    for (uint64_t v = 0; v < 100; v++)
        for (uint64_t k = 0; k < 12; k++)
            assert_true(((const float *)row_at(&s.h.weight_grad, 0, v))[k] == 0);
}

TEST(errors_leave_a_head_that_works)
{
    BOTH_FAIL(s.call.tokens.temperature = -1, BAD, "temperature");
    check_head(s.head, &s.h);
}

int main(void)
{
    void *none = NULL;
    if (open_host(&none) != 0)
        return 1;
    bool has = has_products(device);
    close_host(&none);
    return has ? run_registered(begin, end, open_host, close_host) : 77;
}
