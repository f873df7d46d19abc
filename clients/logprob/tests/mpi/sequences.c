/* SPDX-License-Identifier: Apache-2.0 */
#include "sequences.h"

#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include "../support/hosts.h"

bp_comm *everybody;
uint32_t rank, ranks;

bool open_everything(void)
{
    void *none = NULL;
    if (bp_comm_create_mpi(NULL, 0, &everybody) != BP_OK || open_host(&none) != 0) {
        printf("no MPI or no host device: %s\n", bp_error_detail());
        return false;
    }
    rank = bp_comm_get_info(everybody)->rank;
    ranks = bp_comm_get_info(everybody)->ranks;
    return true;
}

int close_everything(int failed)
{
    if (failed != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    bp_device_destroy(&device);
    bp_comm_destroy(&everybody);
    return failed != 0;
}

uint64_t number(uint64_t what, uint64_t sequence, uint64_t offset)
{
    uint64_t x = (what * 1000 + sequence) * 1000 + offset + 1;
    for (int i = 0; i < 3; i++)
        x = (x ^ x >> 27) * 0x9e3779b97f4a7c15u;
    return x >> 32;
}

uint64_t length_of(uint64_t sequence)
{
    return sequence == 4 ? 0 : 1 + number(1, sequence, 0) % LONGEST;
}

sequences sequences_of(uint64_t dp, uint64_t dp_rank)
{
    sequences s = {.first = dp_rank, .step = dp};
    for (uint64_t i = dp_rank; i < SEQUENCES; i += dp)
        s.cu[++s.count] = (int64_t)(s.tokens += length_of(i));
    return s;
}

bp_cp_split_config split_config(const sequences *s, uint32_t cp, uint32_t cp_rank)
{
    bp_cp_split_config config;
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = s->cu;
    config.sequences = s->count;
    config.ranks = cp;
    config.rank = cp_rank;
    return config;
}

bp_cp_split *new_split(const sequences *s, uint32_t cp, uint32_t cp_rank)
{
    const bp_cp_split_config config = split_config(s, cp, cp_rank);
    bp_cp_split *split = NULL;
    assert_ok(bp_cp_split_create(&config, &split));
    return split;
}

bp_cp_split_info info_of(const bp_cp_split *split)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(split);
    return info;
}

bp_cp *new_client(bp_comm *comm, uint64_t gathered_bytes)
{
    bp_cp_config config;
    bp_cp *cp = NULL;
    assert_ok(bp_cp_config_init(&config, sizeof config));
    config.comm = comm;
    config.max_gathered_bytes = gathered_bytes;
    assert_ok(bp_cp_create(device, &config, &cp));
    return cp;
}

void rearrange(bp_cp *cp, const bp_cp_split *split, bp_cp_order to_order, bp_cp_tensor from, bp_cp_tensor to)
{
    bp_cp_rearrangement r;
    assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from = from;
    r.to = to;
    r.to_order = to_order;
    assert_ok(bp_cp_rearrange(cp, split, &r, NULL));
}
