/* SPDX-License-Identifier: Apache-2.0 */
#include "support/harness.h"

#include "packed.h"

#include <stdlib.h>

#include "device_batches.h"
#include "support/pools.h"

void *new_memory(uint64_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    return memory;
}

void *new_random_bytes(uint64_t bytes)
{
    uint8_t *memory = new_memory(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)random_below(256);
    return memory;
}

void *on_gpu(bp_stream *stream, const void *there, uint64_t bytes)
{
    void *memory = take_gpu_memory(bytes + 1);
    assert_non_null(memory);
    if (there != NULL)
        assert_ok(bp_stream_copy(stream, memory, there, bytes));
    return memory;
}

void to_host(bp_stream *stream, void *to, const void *from, uint64_t bytes)
{
    assert_ok(bp_stream_copy(stream, to, from, bytes));
    assert_ok(bp_stream_synchronize(stream));
}

uint32_t make_lengths(uint64_t cu[MAX_SEQUENCES + 1])
{
    const uint32_t sequences = rounds(1, 100) + random_below(rounds(MAX_SEQUENCES - 1, 60));
    const uint32_t max = 1 + random_below(rounds(400, 24));
    cu[0] = 0;
    for (uint32_t i = 0; i < sequences; i++)
        cu[i + 1] = cu[i] + (random_below(4) == 0 ? 0 : random_below(max));
    return sequences;
}

bp_cp_split *new_split(const uint64_t *cu, uint32_t sequences, uint32_t ranks, uint32_t rank)
{
    bp_cp_split_config config;
    bp_cp_split *split = NULL;
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = cu;
    config.cu_dtype = BP_DTYPE_INT64;
    config.sequences = sequences;
    config.ranks = ranks;
    config.rank = rank;
    assert_ok(bp_cp_split_create(&config, &split));
    return split;
}

bp_cp_split_info info_of(const bp_cp_split *split)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(split);
    return info;
}

bp_cp *new_mover(bp_device *device)
{
    bp_cp_config config;
    bp_cp *cp = NULL;
    assert_ok(bp_cp_config_init(&config, sizeof config));
    assert_ok(bp_cp_create(device, &config, &cp));
    return cp;
}

/* ---- orders -------------------------------------------------------------------------------------------------------- */

static uint64_t places_of(const bp_cp_split_info *info, bp_cp_order order)
{
    if (order == BP_CP_PACKED)
        return info->packed_tokens;
    return order == BP_CP_LOCAL ? info->local_tokens : info->padded_tokens;
}

bp_cp_rearrangement rearrangement_of(const bp_cp_split *split, bp_cp_order from, bp_cp_order to, uint64_t bytes)
{
    const bp_cp_split_info info = info_of(split);
    bp_cp_rearrangement r;
    assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from_order = from;
    r.to_order = to;
    r.from = (bp_cp_tensor){.tokens = places_of(&info, from), .token_bytes = bytes};
    r.to = (bp_cp_tensor){.tokens = places_of(&info, to), .token_bytes = bytes};
    return r;
}

void rearrange(bp_cp *cp, const bp_cp_split *split, bp_cp_rearrangement r, void *from, void *to, bp_stream *stream)
{
    r.from.data = from;
    r.to.data = to;
    assert_ok(bp_cp_rearrange(cp, split, &r, stream));
}
