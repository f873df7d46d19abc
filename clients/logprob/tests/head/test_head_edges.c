/* The fused head: workspaces, batches of no tokens, unusual strides, bad targets, and refused arguments. */
#include "support/harness.h"

#include <math.h>
#include <string.h>

#include "head_runs.h"
#include "support/pools.h"

/* ---- workspaces ---------------------------------------------------------------------------------------------------- */

static bp_lm_head_info info_of(const bp_lm_head *head)
{
    const bp_lm_head_info info = *bp_lm_head_get_info(head);
    return info;
}

TEST(test_info)
{
    bp_lm_head_config config;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = 5000;
    config.hidden = 64;
    config.vocab = 1000;
    uint64_t bytes[3];
    for (int i = 0; i < 3; i++) {
        config.chunk = i == 0 ? 128 : i == 1 ? 0 : 5000;
        bp_device_usage usage = {.size = sizeof usage};
        bp_lm_head *head = new_head(&config);
        const bp_lm_head_info info = info_of(head);
        assert_ok(bp_device_usage_get(device, &usage));
        assert_int_equal(info.workspace_bytes, info.planned_bytes);
        assert_int_equal(info.workspace_bytes, usage.committed_bytes);
        assert_int_equal(info.chunk_bytes, (i == 0 ? 128 : 5000) * 1000 * 4);
        assert_int_equal(info.workspace_bytes, info.chunk_bytes + info.other_bytes);
        assert_int_equal(info.vocab, 1000);
        assert_non_null(strstr(info.products, ".so"));
        assert_true(info.threads > 0);
        assert_non_null(bp_lm_head_get_info(head)->pool);
        bytes[i] = info.other_bytes;
        bp_lm_head_destroy(&head);
    }
    /* nothing per token; hidden states and sums of 128 or 5000 tokens, 1000 rows of the weight */
    assert_in_range(bytes[0], 1256 * 64 * 4, 1256 * 64 * 4 + 5 * 4096);
    assert_in_range(bytes[1], 11000 * 64 * 4, 11000 * 64 * 4 + 5 * 4096);
    assert_int_equal(bytes[1], bytes[2]);
}

/* With one rank, memory does not grow with the number of tokens. */
TEST(test_memory_per_token)
{
    bp_lm_head_config config;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.hidden = 16;
    config.vocab = 100;
    config.chunk = 32;
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        config.max_tokens = i == 0 ? 1 << 10 : 1 << 20;
        bp_lm_head *head = new_head(&config);
        bytes[i] = info_of(head).workspace_bytes;
        bp_lm_head_destroy(&head);
    }
    assert_int_equal(bytes[1], bytes[0]);
}

/* ---- edges --------------------------------------------------------------------------------------------------------- */

static const head_case small = {.batch = 2,
                                .sequence = 6,
                                .hidden = 4,
                                .vocab = 9,
                                .dtype = BP_DTYPE_BF16,
                                .grad_dtype = BP_DTYPE_FP32,
                                .chunk = 4,
                                .temperature = 1,
                                .gap = 1,
                                .seed = 3};

TEST(test_no_tokens)
{
    head_values v = values_of(&small);
    head_tensors t = tensors_of(&v, 0, small.vocab);
    bp_lm_head_config config = head_config_of(&small);
    bp_lm_head *head = new_head(&config);
    const uint64_t before = bits_of(&t);
    t.batch.hidden.sequence = t.gradients.hidden_grad.sequence = 0;
    assert_ok(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL));
    t.gradients.accumulate = 1;
    assert_ok(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL));
    assert_true(bits_of(&t) == before);
    t.gradients.accumulate = 0;
    assert_ok(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL));
    const float *grad = (const float *)(const void *)t.weight_grad;
    for (uint64_t i = 0; i < t.columns * (small.hidden + small.gap); i++)
        assert_true(i % (small.hidden + small.gap) == small.hidden ? isnan(grad[i]) : grad[i] == 0);
    bp_device *another = new_host();
    bp_stream *foreign = NULL;
    assert_ok(bp_stream_create(another, "foreign", &foreign));
    assert_fails(bp_lm_head_backward(head, &t.batch, &t.gradients, foreign), BP_ERR_INVALID_ARGUMENT, "another device");
    bp_stream_destroy(&foreign);
    bp_device_destroy(&another);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

/* Strides that BLAS does not support: 0 and negative. */
TEST(test_odd_strides)
{
    head_case c = small;
    c.gap = 0;
    head_values v = values_of(&c);
    head_tensors t = tensors_of(&v, 0, c.vocab);
    bp_lm_head_config config = head_config_of(&c);
    bp_lm_head *head = new_head(&config);
    t.gradients.hidden_grad.data = t.hidden_grad + (v.tokens - 1) * c.hidden * sizeof(float);
    t.gradients.hidden_grad.stride = -(int64_t)c.hidden;
    t.gradients.hidden_grad.batch_stride = -(int64_t)(c.hidden * c.sequence);
    run(head, &t, NULL);
    for (uint64_t i = 0; i < v.tokens * c.hidden; i++) {
        const uint64_t token = v.tokens - 1 - i / c.hidden;
        assert_true(fabs((double)((const float *)(const void *)t.hidden_grad)[i] -
                         v.hidden_grad[token * c.hidden + i % c.hidden]) < 1e-5);
    }
    t.batch.hidden.stride = 0;
    t.batch.hidden.batch_stride = (int64_t)c.hidden; /* one row per sequence */
    t.batch.tokens.target.stride = 0;
    assert_ok(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL));
    const float *logprob = (const float *)(const void *)t.logprob;
    for (uint64_t i = 0; i < v.tokens; i++)
        assert_true(logprob[i] == logprob[i / c.sequence * c.sequence]);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

/* Also where the columns are taken in tiles. */
static void check_bad_targets(uint64_t vocab)
{
    head_case c = small;
    c.vocab = vocab;
    c.gap = 0;
    head_values v = values_of(&c);
    for (uint64_t i = 0; i < v.tokens; i++)
        v.target[i] = i == 7 || i == 9 ? (int64_t)vocab : 1;
    head_tensors t = tensors_of(&v, 0, vocab);
    bp_lm_head_config config = head_config_of(&c);
    config.targets = BP_TARGETS_ERROR;
    bp_lm_head *head = new_head(&config);
    assert_fails(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL), BP_ERR_INVALID_ARGUMENT, "token 7 ");
    assert_ok(bp_lm_head_check(head));
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "caller", &stream));
    assert_ok(bp_lm_head_forward(head, &t.batch, &t.outputs, stream));
    assert_fails(bp_lm_head_check(head), BP_ERR_INVALID_ARGUMENT, "token 7 ");
    for (uint64_t i = 0; i < v.tokens; i++)
        assert_int_equal(isnan(((const float *)(const void *)t.logprob)[i]) != 0, i == 7 || i == 9);
    bp_stream_destroy(&stream);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

TEST(test_bad_targets)
{
    check_bad_targets(small.vocab);
    check_bad_targets(5000);
}

TEST(test_refused_configs)
{
    bp_lm_head *head = NULL;
    const bp_lm_head_config good = head_config_of(&small);
    bp_lm_head_config bad = good;
    bad.hidden = 0;
    assert_fails(bp_lm_head_create(device, &bad, &head), BP_ERR_INVALID_ARGUMENT, "hidden 0");
    bad = good;
    bad.chunk = -1;
    assert_fails(bp_lm_head_create(device, &bad, &head), BP_ERR_INVALID_ARGUMENT, "chunk is -1");
    bad = good;
    bad.dtype = BP_DTYPE_INT32;
    assert_fails(bp_lm_head_create(device, &bad, &head), BP_ERR_INVALID_ARGUMENT, "int32");
    bad = good;
    bad.vocab = UINT64_MAX / 2;
    assert_fails(bp_lm_head_create(device, &bad, &head), BP_ERR_INVALID_ARGUMENT, "vocab");
    bad = good;
    bad.max_tokens = UINT64_MAX / 8;
    assert_fails(bp_lm_head_create(device, &bad, &head), BP_ERR_OVERFLOW, "tokens");
    assert_null(head);
}

TEST(test_refused_calls)
{
    head_values v = values_of(&small);
    head_tensors t = tensors_of(&v, 0, small.vocab);
    bp_lm_head_config config = head_config_of(&small);
    bp_lm_head *head = new_head(&config);
    const bp_lm_head_batch batch = t.batch;
    const bp_lm_head_gradients gradients = t.gradients;
    const uint64_t before = bits_of(&t);
#define FORWARD_FAILS(field, value, word)                                                                              \
    t.batch.field = (value);                                                                                           \
    assert_fails(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL), BP_ERR_INVALID_ARGUMENT, word);                 \
    t.batch = batch
    FORWARD_FAILS(weight, NULL, "weights are missing");
    FORWARD_FAILS(weight_stride, 3, "stride of 3");
    FORWARD_FAILS(weight_stride, -5, "stride of -5");
    FORWARD_FAILS(hidden.dtype, BP_DTYPE_FP32, "fp32");
    FORWARD_FAILS(hidden.columns, 5, "5 columns");
    FORWARD_FAILS(hidden.sequence, 7, "2 x 7 tokens");
    FORWARD_FAILS(tokens.temperature, 0, "temperature 0");
    FORWARD_FAILS(tokens.target.data, NULL, "targets");
#define BACKWARD_FAILS(field, value, status, word)                                                                     \
    t.gradients.field = (value);                                                                                       \
    assert_fails(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL), status, word);                               \
    t.gradients = gradients
    BACKWARD_FAILS(hidden_grad.dtype, BP_DTYPE_FP16, BP_ERR_INVALID_ARGUMENT, "fp16");
    BACKWARD_FAILS(hidden_grad.batch, 1, BP_ERR_INVALID_ARGUMENT, "1 x 6 tokens");
    BACKWARD_FAILS(hidden_grad.data, t.hidden, BP_ERR_INVALID_ARGUMENT, "overlaps");
    /* separate memory: what malloc places behind the weights would overlap, too */
    _Alignas(64) static char apart[4096];
    t.batch.weight = apart;
    BACKWARD_FAILS(hidden_grad.data, apart, BP_ERR_INVALID_ARGUMENT, "overlaps the weights");
    t.batch = batch;
    t.gradients.weight_grad = apart;
    BACKWARD_FAILS(hidden_grad.data, apart, BP_ERR_INVALID_ARGUMENT, "overlaps the gradients of weights");
    BACKWARD_FAILS(hidden_grad.stride, 1, BP_ERR_INVALID_ARGUMENT, "overlap");
    BACKWARD_FAILS(weight_grad, t.weight, BP_ERR_INVALID_ARGUMENT, "overlaps");
    BACKWARD_FAILS(weight_grad_stride, 2, BP_ERR_INVALID_ARGUMENT, "stride of 2");
    BACKWARD_FAILS(saved, NULL, BP_ERR_INVALID_ARGUMENT, "saved");
    BACKWARD_FAILS(saved_bytes, 95, BP_ERR_INVALID_ARGUMENT, "saved_bytes is 95");
    assert_true(bits_of(&t) == before);
    bp_lm_head_destroy(&head);
    config.forward_only = 1;
    head = new_head(&config);
    assert_ok(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL));
    assert_fails(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL), BP_ERR_SCHEDULE, "forward_only");
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

TESTS(begin, end)
