/* SPDX-License-Identifier: Apache-2.0 */
/* Splits and gathers of packed sequences between the processes of the job. */
#include "sequences.h"

/* ---- splits --------------------------------------------------------------------------------------------------------- */

TEST(splits_are_compared)
{
    sequences s = sequences_of(1, 0);
    bp_cp_split *split = NULL;
    bp_cp_split_config config = split_config(&s, ranks, rank);
    config.comm = everybody;
    assert_ok(bp_cp_split_create(&config, &split));
    uint64_t mine = info_of(split).fingerprint, all[64];
    assert_ok(bp_comm_exchange(everybody, &mine, sizeof mine, all));
    for (uint32_t i = 0; i < ranks; i++)
        assert_true(all[i] == mine);
    bp_cp_split_destroy(&split);

    if (ranks == 1)
        return;
    const uint32_t odd = ranks - 1;
    char who[32];
    snprintf(who, sizeof who, "rank %u", odd);
    if (rank == odd)
        s.cu[SEQUENCES]++;
    assert_fails(bp_cp_split_create(&config, &split), BP_ERR_MISMATCH, who);
    if (rank == odd)
        s.cu[3] = -1;
    assert_fails(bp_cp_split_create(&config, &split), BP_ERR_INVALID_ARGUMENT,
                 rank == odd ? "decrease at sequence 2" : who);
    s = sequences_of(1, 0);
    config.ranks = ranks + 1;
    assert_fails(bp_cp_split_create(&config, &split), BP_ERR_MISMATCH, "rank");
    config.ranks = ranks;
    config.rank = rank == odd ? 0 : rank;
    assert_fails(bp_cp_split_create(&config, &split), BP_ERR_MISMATCH, who);
    assert_null(split);
}

/* ---- gathers -------------------------------------------------------------------------------------------------------- */

TEST(gathers_bring_back_what_was_split)
{
    static uint8_t packed[MAX_TOKENS * 12], local[MAX_TOKENS * 12], expected[MAX_TOKENS * 12], whole[MAX_TOKENS * 12];
    const sequences s = sequences_of(1, 0);
    bp_cp *cp = new_client(everybody, sizeof whole);
    bp_cp_split *split = new_split(&s, ranks, rank);
    const bp_cp_split_info info = info_of(split);
    for (size_t i = 0; i < sizeof packed; i++)
        packed[i] = (uint8_t)number(3, 0, i);
    for (uint64_t bytes = 1; bytes <= 12; bytes += bytes == 4 ? 3 : bytes == 7 ? 5 : bytes) {
        const bp_cp_tensor from = {.data = packed, .tokens = s.tokens, .token_bytes = bytes};
        const bp_cp_tensor mine = {.data = local, .tokens = info.local_tokens, .token_bytes = bytes};
        const bp_cp_tensor padded = {.data = expected, .tokens = info.padded_tokens, .token_bytes = bytes};
        bp_cp_tensor to = {.data = whole, .tokens = s.tokens, .token_bytes = bytes};
        rearrange(cp, split, BP_CP_LOCAL, from, mine);
        rearrange(cp, split, BP_CP_PADDED, from, padded);
        memset(whole, 0xee, sizeof whole);
        assert_ok(bp_cp_gather(cp, split, &mine, BP_CP_PACKED, &to, NULL));
        assert_memory_equal(whole, packed, s.tokens * bytes);
        assert_int_equal(whole[s.tokens * bytes], 0xee);
        to.tokens = info.padded_tokens;
        assert_ok(bp_cp_gather(cp, split, &mine, BP_CP_PADDED, &to, NULL));
        assert_memory_equal(whole, expected, info.padded_tokens * bytes);
    }
    bp_cp_split_destroy(&split);
    bp_cp_destroy(&cp);
}

/* The gradient of a token on a process: small integers, whose sums are exact in bf16. */
static float upstream(uint32_t of_rank, uint64_t token)
{
    return (float)(number(4, of_rank, token) % 16);
}

static void store(void *memory, bp_dtype dtype, uint64_t index, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == BP_DTYPE_FP32)
        ((float *)memory)[index] = value;
    else
        ((uint16_t *)memory)[index] = (uint16_t)(bits >> 16);
}

static float load(const void *memory, bp_dtype dtype, uint64_t index)
{
    if (dtype == BP_DTYPE_FP32)
        return ((const float *)memory)[index];
    const uint32_t bits = (uint32_t)((const uint16_t *)memory)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

TEST(gradients_of_gathers_are_summed)
{
    static float whole[MAX_TOKENS], local[MAX_TOKENS];
    static int64_t map[MAX_TOKENS];
    const sequences s = sequences_of(1, 0);
    bp_cp *cp = new_client(everybody, sizeof whole);
    bp_cp_split *split = new_split(&s, ranks, rank);
    const bp_cp_split_info info = info_of(split);
    for (int variant = 0; variant < 4; variant++) {
        const bp_dtype dtype = variant % 2 == 0 ? BP_DTYPE_FP32 : BP_DTYPE_BF16;
        const bp_cp_order order = variant < 2 ? BP_CP_PACKED : BP_CP_PADDED;
        const uint64_t tokens = order == BP_CP_PACKED ? s.tokens : info.padded_tokens,
                       bytes = dtype == BP_DTYPE_FP32 ? 4 : 2;
        const bp_cp_tensor from = {.data = whole, .tokens = tokens, .token_bytes = bytes};
        const bp_cp_tensor to = {.data = local, .tokens = info.local_tokens, .token_bytes = bytes};
        for (uint64_t i = 0; i < tokens; i++)
            store(whole, dtype, i, upstream(rank, i));
        memset(local, 0xee, sizeof local);
        assert_ok(bp_cp_gather_backward(cp, split, &from, order, dtype, &to, NULL));
        assert_ok(bp_cp_split_map(split, order, BP_CP_LOCAL, BP_CP_KEEP, info.local_tokens, map));
        for (uint64_t i = 0; i < info.local_tokens; i++) {
            float sum = 0;
            for (uint32_t of = 0; of < ranks && map[i] >= 0; of++)
                sum += upstream(of, (uint64_t)map[i]);
            assert_true(load(local, dtype, i) == sum);
        }
    }
    bp_cp_split_destroy(&split);
    bp_cp_destroy(&cp);
}

TEST(gathers_fail_together)
{
    static float whole[MAX_TOKENS], local[MAX_TOKENS];
    if (ranks == 1)
        return;
    const sequences s = sequences_of(1, 0);
    bp_cp *cp = new_client(everybody, sizeof whole);
    bp_cp_split *split = new_split(&s, ranks, rank);
    bp_cp_tensor from = {.data = local, .tokens = info_of(split).local_tokens, .token_bytes = 4};
    bp_cp_tensor to = {.data = whole, .tokens = s.tokens, .token_bytes = 4};
    from.tokens += rank == 1;
    assert_fails(bp_cp_gather(cp, split, &from, BP_CP_PACKED, &to, NULL), BP_ERR_INVALID_ARGUMENT,
                 rank == 1 ? "in local order" : "rank 1");
    from.tokens -= rank == 1;
    assert_ok(bp_cp_gather(cp, split, &from, BP_CP_PACKED, &to, NULL));
    from.token_bytes = to.token_bytes = rank == 1 ? 2 : 4;
    assert_fails(bp_cp_gather(cp, split, &from, BP_CP_PACKED, &to, NULL), BP_ERR_MISMATCH, "rank 1");
    bp_cp_split_destroy(&split);
    bp_cp_destroy(&cp);
}

int main(void)
{
    return open_everything() ? close_everything(run_suite()) : 1;
}
