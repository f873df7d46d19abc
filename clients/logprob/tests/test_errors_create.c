/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of clients that is refused: the error has the argument and its numbers, and nothing is created. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <string.h>

#include "support/scenarios.h"

static bp_logprob_config good_config(void)
{
    bp_logprob_config config;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = 8;
    config.vocab = 100;
    return config;
}

/* Refused with these words in the error; the output is unchanged. */
#define assert_no_client(on, config, status, ...)                                                                      \
    do {                                                                                                               \
        bp_logprob *no_client = (bp_logprob *)&no_client;                                                              \
        assert_fails(bp_logprob_create(on, config, &no_client), status, __VA_ARGS__);                                  \
        assert_ptr_equal(no_client, &no_client);                                                                       \
    } while (0)

TEST(defaults_match_the_header)
{
    bp_logprob_config config;
    memset(&config, 0xee, sizeof config);
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    assert_int_equal(config.size, sizeof config);
    assert_int_equal(config.vocab_start, 0);
    assert_null(config.comm);
    assert_int_equal(config.targets, BP_TARGETS_ERROR);
    assert_int_equal(config.kernels, BP_KERNELS_ALL);
    bp_logprob_batch call;
    assert_ok(bp_logprob_batch_init(&call, sizeof call));
    assert_true(call.tokens.target_dtype == BP_DTYPE_INT64 && call.tokens.mask.data == NULL &&
                call.tokens.temperature == 1);
    bp_logprob_gradients gradients;
    assert_ok(bp_logprob_gradients_init(&gradients, sizeof gradients));
    assert_true(gradients.logits_grad.dtype == BP_DTYPE_FP32 && gradients.in_place == 0);
}

/* Bytes after the struct of an older header stay unchanged. */
TEST(structs_of_other_sizes_are_refused_or_kept_within)
{
    bp_logprob_config config;
    memset(&config, 0xee, sizeof config);
    bp_logprob_config before = config;
    assert_fails(bp_logprob_config_init(&config, sizeof(size_t) / 2), BP_ERR_INVALID_ARGUMENT, "");
    assert_memory_equal(&config, &before, sizeof config);
    assert_fails(bp_logprob_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, "");
    config = good_config();
    config.size = 0;
    assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "");
}

TEST(a_client_needs_a_device_and_a_config)
{
    bp_logprob_config config = good_config();
    assert_no_client(NULL, &config, BP_ERR_INVALID_ARGUMENT, "");
    assert_no_client(device, NULL, BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_logprob_create(device, &config, NULL), BP_ERR_INVALID_ARGUMENT, "");
    bp_logprob_destroy(NULL);
    bp_logprob *none = NULL;
    bp_logprob_destroy(&none);
}

TEST(tokens_and_vocabulary_must_not_be_empty)
{
    bp_logprob_config config = good_config();
    config.vocab = 0;
    assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "vocab");
    config = good_config();
    config.max_tokens = 0;
    assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "token");
}

TEST(choices_must_be_known)
{
    bp_logprob_config config = good_config();
    config.targets = (bp_targets)77;
    assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "77");
    config.targets = (bp_targets)0;
    assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "target");
}

TEST(sizes_must_fit)
{
    bp_logprob_config config = good_config();
    config.max_tokens = UINT64_MAX;
    assert_no_client(device, &config, BP_ERR_OVERFLOW, "18446744073709551615");
    config.max_tokens = UINT64_C(1) << 61;
    assert_no_client(device, &config, BP_ERR_OVERFLOW, "2305843009213693952");
    config = good_config();
    config.vocab = UINT64_MAX;
    config.vocab_start = 2;
    assert_no_client(device, &config, BP_ERR_OVERFLOW, "");
    config = good_config();
    config.vocab_start = (uint64_t)INT64_MAX - 50; /* ids beyond int64 */
    assert_no_client(device, &config, BP_ERR_OVERFLOW, "");
    uint64_t bytes = 77;
    assert_fails(bp_logprob_saved_bytes(UINT64_MAX / 8, 1, &bytes), BP_ERR_OVERFLOW, "");
    assert_int_equal(bytes, 77);
    assert_fails(bp_logprob_saved_bytes(UINT64_MAX, 0, &bytes), BP_ERR_OVERFLOW, "");
    assert_fails(bp_logprob_saved_bytes(1, 0, NULL), BP_ERR_INVALID_ARGUMENT, "");
    assert_int_equal(bytes, 77);
}

/* More memory than the device has is reported, not allocated. */
TEST(insufficient_memory_is_reported)
{
    bp_host_config small;
    bp_device *little = NULL;
    assert_ok(bp_host_config_init(&small, sizeof small));
    small.memory_bytes = 1024;
    assert_ok(bp_device_create_host(&small, &little));
    bp_logprob_config config = good_config();
    config.targets = BP_TARGETS_ERROR; /* the record of one is a workspace */
    assert_no_client(little, &config, BP_ERR_NO_DEVICE_MEMORY, "");
    bp_device_usage usage = {.size = sizeof usage};
    assert_ok(bp_device_usage_get(little, &usage));
    assert_true(usage.committed_bytes == 0 && usage.streams == 0);
    bp_device_destroy(&little);
}

TEST(devices_without_kernels_are_refused)
{
    bp_device *nothing = NULL;
    bp_logprob_config config = good_config();
    assert_ok(bp_device_create_null(&nothing));
    assert_no_client(nothing, &config, BP_ERR_UNSUPPORTED, "null");
    bp_device_destroy(&nothing);
}

TEST(saved_bytes_are_8_or_12_a_token)
{
    uint64_t bytes = 0;
    assert_ok(bp_logprob_saved_bytes(1000, 0, &bytes));
    assert_int_equal(bytes, 8000);
    assert_ok(bp_logprob_saved_bytes(1000, 1, &bytes));
    assert_int_equal(bytes, 12000);
    assert_ok(bp_logprob_saved_bytes(0, 1, &bytes));
    assert_int_equal(bytes, 0);
}

/* One rank needs no workspaces, except for a record of invalid targets; then the plan matches the allocation. */
TEST(workspaces_match_their_plan)
{
    for (int checked = 0; checked < 2; checked++) {
        bp_logprob_config config = good_config();
        bp_logprob *client = NULL;
        bp_pool_statistics statistics = {.size = sizeof statistics};
        config.max_tokens = 1000001;
        config.targets = checked ? BP_TARGETS_ERROR : BP_TARGETS_MASK;
        config.threads = 3;
        config.kernels = BP_KERNELS_PLAIN;
        assert_ok(bp_logprob_create(device, &config, &client));
        const bp_logprob_info info = *bp_logprob_get_info(client);
        assert_int_equal(info.workspace_bytes, info.planned_bytes);
        assert_in_range(info.workspace_bytes, checked ? 8 : 0, checked ? 65536 : 0);
        assert_true(info.vocab == 100 && info.threads >= 1 && info.threads <= 3);
        assert_string_equal(info.kernels, "plain");
        assert_int_equal(info.pool != NULL, checked);
        if (checked) {
            assert_ok(bp_pool_statistics_get(info.pool, &statistics));
            assert_int_equal(statistics.slab_bytes, info.workspace_bytes);
        }
        bp_logprob_destroy(&client);
        assert_null(client);
    }
}

TEST(targets_of_a_token_are_1_to_128)
{
    static const uint32_t bad[] = {0, 129, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        bp_logprob_config config = good_config();
        config.max_targets = bad[i];
        assert_no_client(device, &config, BP_ERR_INVALID_ARGUMENT, "max_targets");
    }
}

/* A mask of kernels that this machine lacks falls back to plain ones; unknown bits are ignored. */
TEST(plain_kernels_are_always_there)
{
    bp_logprob_config config = good_config();
    bp_logprob *client = NULL;
    bp_logprob_info info;
    config.kernels = 0;
    assert_ok(bp_logprob_create(device, &config, &client));
    info = *bp_logprob_get_info(client);
    assert_string_equal(info.kernels, "plain");
    bp_logprob_destroy(&client);
}

TEST(the_device_outlives_its_callers_reference)
{
    bp_device *mine = NULL;
    assert_ok(bp_device_create_host(NULL, &mine));
    batch_options options = {.batch = 1, .sequence = 4, .columns = 30, .with_entropy = true};
    batch b = new_batch(&options);
    bp_logprob *client = new_client(mine, &b, BP_KERNELS_PLAIN, 1);
    bp_device_destroy(&mine);
    check_both(client, &b);
    bp_logprob_destroy(&client);
    free_batch(&b);
}

TESTS(open_host, close_host)
