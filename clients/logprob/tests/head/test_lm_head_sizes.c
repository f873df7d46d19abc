/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces and workspaces of heads: shapes of models in one GiB, and random ones within what was asked. */
#include "support/harness.h"

#include "../support/hosts.h"
#include "heads.h"

#include "support/scenarios.h"

#define GIB (UINT64_C(1) << 30)
#define BAD BP_ERR_INVALID_ARGUMENT
#define ANY_TWO_CALLS (BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD)

static bp_lm_head_config config_of(uint64_t tokens, uint64_t hidden, uint64_t vocab, uint32_t passes)
{
    bp_lm_head_config config;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = tokens;
    config.hidden = hidden;
    config.vocab = vocab;
    config.passes = passes;
    return config;
}

static bp_lm_head_sizes sizes_of(const bp_lm_head_config *config, uint32_t ranks, bool is_host)
{
    bp_lm_head_sizes sizes = {.size = sizeof sizes};
    assert_ok(bp_lm_head_estimate(config, ranks, is_host, &sizes));
    return sizes;
}

/* The head of Llama 3 8B on a GPU, in each way. */
TEST(a_gib_is_enough)
{
    bp_lm_head_config config = config_of(8192, 4096, 128256, BP_LM_HEAD_ONE_CALL);
    bp_lm_head_sizes s = sizes_of(&config, 1, false);
    assert_int_equal(s.one_call_tokens, 1664); /* 5 pieces */
    assert_int_equal(s.piece_tokens, 1664);
    assert_int_equal(s.chunk_bytes, UINT64_C(1664) * 128256 * 4);
    assert_int_equal(s.second_chunk_bytes, 0);
    assert_int_equal(s.scratch_bytes, (32u << 20) + 1664u * 4096 * 2);
    assert_int_equal(s.hidden_grad_bytes + s.forward_tokens + s.backward_tokens + s.backward_columns, 0);
    assert_true(s.bytes <= GIB);

    config.passes = ANY_TWO_CALLS;
    s = sizes_of(&config, 1, false);
    assert_int_equal(s.backward_tokens, 8192);
    assert_int_equal(s.piece_tokens, 8192);      /* weight_grad is written once */
    assert_int_equal(s.backward_columns, 11712); /* 11 parts */
    assert_int_equal(s.hidden_grad_bytes, 8192u * 4096 * 4);
    assert_int_equal(s.chunk_bytes, s.second_chunk_bytes);
    assert_true(s.bytes <= GIB);

    config.passes = BP_LM_HEAD_KEPT; /* bf16 gradients of the logits alone */
    s = sizes_of(&config, 1, false);
    assert_int_equal(s.backward_tokens, 8192);
    assert_int_equal(s.backward_columns, 21376); /* 6 parts */
    assert_int_equal(s.chunk_bytes, UINT64_C(8192) * 21376 * 2);
    assert_true(s.bytes <= GIB);

    config.passes = BP_LM_HEAD_FORWARD;
    s = sizes_of(&config, 1, false);
    assert_true(s.bytes <= GIB && s.forward_tokens >= 512 && s.piece_tokens == 0);
    assert_int_equal(s.scratch_bytes, 32u << 20);
    assert_int_equal(s.hidden_grad_bytes, 0);
}

TEST(a_chunk_is_taken_as_given)
{
    bp_lm_head_config config = config_of(8192, 4096, 128256, ANY_TWO_CALLS);
    config.chunk = 1000;
    bp_lm_head_sizes s = sizes_of(&config, 1, false);
    assert_int_equal(s.forward_tokens, 960); /* 9 pieces of 64 n tokens, as 9 of 1000 would be */
    assert_int_equal(s.backward_tokens, 960);
    assert_int_equal(s.backward_columns, 128256);
    assert_int_equal(s.second_chunk_bytes, s.chunk_bytes);
    config.chunk = 3;
    assert_int_equal(sizes_of(&config, 1, false).forward_tokens, 3);
    config.chunk = 1 << 20;
    s = sizes_of(&config, 1, false);
    assert_int_equal(s.forward_tokens, 8192);
    assert_int_equal(s.second_chunk_bytes, 0);
}

/* Within the memory, or the least pieces; never with room for one more piece of tokens that is worth it. */
TEST(random_sizes_are_within_the_memory)
{
    for (uint64_t round = 0; round < 2000; round++) {
        seed(900 + round);
        bp_lm_head_config config = config_of(1 + random_below(200000), 1 + random_below(9000), 1 + random_below(300000),
                                             1 + (uint32_t)random_below(15));
        config.dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3));
        config.memory_bytes = (UINT64_C(1) << (26 + random_below(8))) + random_below(1u << 26);
        config.max_targets = 1 + (uint32_t)random_below(3);
        const uint32_t ranks = 1 + (uint32_t)random_below(2) * (uint32_t)random_below(8);
        const bool is_host = random_below(2) != 0;
        const bp_lm_head_sizes s = sizes_of(&config, ranks, is_host);
        const bool is_least = (s.one_call_tokens != 0 && s.one_call_tokens <= 1024) ||
                              (s.forward_tokens != 0 && (is_host || s.forward_tokens <= 512)) ||
                              (s.backward_tokens != 0 && (is_host || s.backward_tokens <= 1024));
        if (s.bytes > config.memory_bytes && !is_least)
            fail_msg("%llu tokens, hidden %llu, vocab %llu, passes 0x%x, %s, %u ranks%s: %llu of %llu bytes, pieces of "
                     "%llu, %llu and %llu tokens",
                     (unsigned long long)config.max_tokens, (unsigned long long)config.hidden,
                     (unsigned long long)config.vocab, config.passes, bp_dtype_name(config.dtype), ranks,
                     is_host ? ", host" : "", (unsigned long long)s.bytes, (unsigned long long)config.memory_bytes,
                     (unsigned long long)s.forward_tokens, (unsigned long long)s.backward_tokens,
                     (unsigned long long)s.one_call_tokens);
        const uint64_t tokens[] = {s.forward_tokens, s.backward_tokens, s.one_call_tokens};
        for (int i = 0; i < 3; i++) {
            assert_true(tokens[i] <= config.max_tokens);
            assert_true(tokens[i] == config.max_tokens || tokens[i] % 64 == 0);
        }
        assert_true(s.backward_columns <= config.vocab);
        assert_true((s.piece_tokens == 0) == (config.passes == BP_LM_HEAD_FORWARD));
        config.memory_bytes *= 2; /* monotonous */
        if (config.passes == BP_LM_HEAD_ONE_CALL)
            assert_true(sizes_of(&config, ranks, is_host).one_call_tokens >= s.one_call_tokens);
    }
}

/* A head has the sizes of its estimate, and its pool no more than was asked. */
TEST(heads_have_their_estimates)
{
    if (!has_products(device))
        return;
    for (uint64_t round = 0; round < 12; round++) {
        seed(40 + round);
        bp_lm_head_config config = config_of(1 + random_below(6000), 1 + random_below(60), 1 + random_below(5000),
                                             1 + (uint32_t)random_below(15));
        config.dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3));
        config.memory_bytes = (UINT64_C(64) << 20) + random_below(1u << 26);
        bp_lm_head *head = NULL;
        assert_ok(bp_lm_head_create(device, &config, &head));
        const bp_lm_head_info *info = bp_lm_head_get_info(head);
        const bp_lm_head_sizes s = sizes_of(&config, 1, true);
        assert_memory_equal(info->sizes, &s, sizeof s);
        assert_int_equal(info->piece_tokens, s.piece_tokens);
        assert_true(info->workspace_bytes <= config.memory_bytes);
        bp_lm_head_destroy(&head);
    }
}

TEST(estimates_refuse)
{
    bp_lm_head_sizes sizes = {.size = sizeof sizes};
    bp_lm_head_config config = config_of(8, 8, 8, ANY_TWO_CALLS);
    assert_fails(bp_lm_head_estimate(NULL, 1, 0, &sizes), BAD, "");
    assert_fails(bp_lm_head_estimate(&config, 1, 0, NULL), BAD, "");
    assert_fails(bp_lm_head_estimate(&config, 0, 0, &sizes), BAD, "ranks");
    config.passes = 0;
    assert_fails(bp_lm_head_estimate(&config, 1, 0, &sizes), BAD, "passes", "0x0");
    config.passes = 16;
    assert_fails(bp_lm_head_estimate(&config, 1, 0, &sizes), BAD, "passes", "0x10");
    config = config_of(UINT64_MAX, 8, 8, ANY_TWO_CALLS);
    assert_fails(bp_lm_head_estimate(&config, 1, 0, &sizes), BP_ERR_OVERFLOW, "partial sums");
    config = config_of(INT32_MAX, 8, 8, ANY_TWO_CALLS);
    config.chunk = INT32_MAX;
    assert_fails(bp_lm_head_estimate(&config, 1, 0, &sizes), BAD, "2147483647");
    config = config_of(2 * (INT32_MAX / 2 - 63), INT32_MAX / 2, INT32_MAX / 2, ANY_TWO_CALLS);
    config.chunk = INT32_MAX / 2 - 63;
    config.dtype = BP_DTYPE_FP32;
    assert_fails(bp_lm_head_estimate(&config, 512, 0, &sizes), BP_ERR_OVERFLOW, "64 bits");
}

TESTS(open_host, close_host)
