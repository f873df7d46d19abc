/* SPDX-License-Identifier: Apache-2.0 */
/* Offload of registered memory by several processes. What happens where one fails is tested with threads (offload/test_ranks.c). */
#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include "../offload/faults.h"

static bp_comm *everybody;
static uint32_t rank, ranks;

static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"}};

static store open_registered(faults *f, bp_registration **registration)
{
    bp_offload_config config = offload_config(16384, BP_BACKING_AUTO);
    store s = open_store(new_faulty(new_slow_host(30, rank), f), &SHARDS, &config);
    bp_registration_entry entry;
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = everybody;
    assert_ok(bp_registration_create(s.k.pool, &entry, 1, registration));
    return s;
}

static void close_registered(store *s, bp_registration **registration)
{
    assert_bytes(s);
    bp_registration_destroy(registration);
    close_store(s);
    MPI_Barrier(MPI_COMM_WORLD);
}

static int start(void **state)
{
    assert_ok(bp_comm_create_mpi(NULL, 0, &everybody));
    rank = bp_comm_get_info(everybody)->rank;
    ranks = bp_comm_get_info(everybody)->ranks;
    return 0;
}

static int stop(void **state)
{
    bp_comm_destroy(&everybody);
    return 0;
}

TEST(rounds)
{
    faults f;
    bp_registration *registration = NULL;
    store s = open_registered(&f, &registration);
    for (int round = 0; round < 4; round++) {
        begin_keep(&s, "shards");
        begin_discard(&s, "grad");
        work_on(&s, of_role(&s, BP_ROLE_PARAM), s.k.streams[1], s.k.streams[2]);
        finish_offload(&s, "grad");
        finish_offload(&s, "shards");
        assert_bytes(&s);
        begin_restore(&s, "shards", BP_RESTORE_LEAVE);
        begin_restore(&s, "grad", BP_RESTORE_ZERO);
        finish_restore(&s, "grad", BP_RESTORE_ZERO);
        finish_restore(&s, "shards", BP_RESTORE_LEAVE);
        assert_bytes(&s);
    }
    close_registered(&s, &registration);
}

SUITE_WITHIN(start, stop)
