/* Offload of registered memory by several processes: all of them or none, whichever fails. */
#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include "../offload/faults.h"

static bp_comm *everybody;
static uint32_t rank, ranks;

static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"}};
static const trip KEPT = {"shards", true, BP_RESTORE_LEAVE};

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

/* Each rank in turn has live requests and cannot offload. */
TEST(busy)
{
    faults f;
    bp_registration *registration = NULL;
    store s = open_registered(&f, &registration);
    uint32_t id = of_role(&s, BP_ROLE_PARAM);
    for (uint32_t who = 0; who < ranks; who++) {
        char named[32];
        snprintf(named, sizeof named, "rank %u of", who);
        if (rank == who)
            take(&s.k, id, s.k.streams[0]);
        assert_fails(bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, named, "u0");
        assert_residency(&s, "param", BP_RESIDENT);
        if (rank == who)
            drop(&s.k, id, s.k.streams[0]);
        work_on(&s, id, s.k.streams[1], s.k.streams[2]);
    }
    keep(&s, "param");
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    close_registered(&s, &registration);
}

/* Each rank in turn runs out of memory, at each slab. */
TEST(short)
{
    faults f;
    bp_registration *registration = NULL;
    store s = open_registered(&f, &registration);
    for (uint32_t who = 0; who < ranks; who++) {
        for (unsigned nth = 1; nth <= 3; nth++) {
            char named[32];
            snprintf(named, sizeof named, "rank %u of", who);
            advance_to(&s, &KEPT, BEGIN_RESTORE);
            store_state before = state_of(&s);
            if (rank == who)
                inject(&f, nth, OP_COMMIT, false, BP_ERR_NO_DEVICE_MEMORY);
            assert_fails(bp_restore_begin(s.offload, "shards", BP_RESTORE_LEAVE), BP_ERR_NO_DEVICE_MEMORY, named,
                         "injected");
            no_faults(&f);
            assert_same_state(&s, &before);
            recover(&s, &KEPT);
        }
    }
    close_registered(&s, &registration);
}

SUITE_WITHIN(start, stop)
