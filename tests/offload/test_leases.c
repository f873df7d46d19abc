/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: a group with a lease is not offloaded, whichever lease is returned first; offloads wait for the reader's work. */
#include <pthread.h>

#include "stores.h"
#include "support/driver.h"

static bp_lease *lease_of(const store *s, const char *group, const char *reader)
{
    bp_lease *lease = NULL;
    assert_ok(bp_lease_take(s->offload, group, reader, &lease));
    assert_non_null(lease);
    return lease;
}

TEST(blocks)
{
    STORE s = open_store(new_device(), NULL, NULL);
    char reader[32] = "checkpoint of step 12";
    bp_lease *lease = lease_of(&s, "optimizer", reader);
    snprintf(reader, sizeof reader, "somebody else"); /* the name was copied */
    assert_int_equal(group_of(s.offload, "optimizer").leases, 1);
    store_state before = state_of(&s);
    assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "optimizer",
                 "checkpoint of step 12");
    assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_DISCARD), BP_ERR_SCHEDULE,
                 "checkpoint of step 12");
    assert_same_state(&s, &before);
    keep(&s, "main_grad"); /* leases are of one group */
    bp_lease *second = lease_of(&s, "optimizer", "evaluation");
    assert_int_equal(group_of(s.offload, "optimizer").leases, 2);
    bp_lease_return(&lease);
    assert_null(lease);
    assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "evaluation");
    bp_lease_return(&second);
    assert_int_equal(group_of(s.offload, "optimizer").leases, 0);
    keep(&s, "optimizer");
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

TEST(refused_while_offloaded)
{
    STORE s = open_store(new_device(), NULL, NULL);
    bp_lease *lease = NULL;
    begin_keep(&s, "grad");
    assert_fails(bp_lease_take(s.offload, "grad", "checkpoint", &lease), BP_ERR_SCHEDULE, "grad", "offloading");
    finish_offload(&s, "grad");
    assert_fails(bp_lease_take(s.offload, "grad", "checkpoint", &lease), BP_ERR_SCHEDULE, "grad", "offloaded");
    begin_restore(&s, "grad", BP_RESTORE_LEAVE);
    assert_fails(bp_lease_take(s.offload, "grad", "checkpoint", &lease), BP_ERR_SCHEDULE, "grad", "restoring");
    assert_null(lease);
    finish_restore(&s, "grad", BP_RESTORE_LEAVE);
    lease = lease_of(&s, "grad", "checkpoint");
    bp_lease_return(&lease);
}

/* A reader with delayed copies, on a separate thread and stream. */
typedef struct reader {
    store *s;
    bp_stream *stream;
    bp_lease *lease;
    uint8_t *copy;
    gate gate;
} reader;

static void *read_and_return(void *argument)
{
    reader *r = argument;
    size_t slab = slab_of_group(r->s, "optimizer");
    block(r->stream, &r->gate);
    assert_ok(bp_stream_copy(r->stream, r->copy, r->s->slabs[slab].address, r->s->slabs[slab].bytes));
    bp_lease_return(&r->lease);
    return NULL;
}

/* Returned before its copies ran: they still read the right bytes, discarded or not. */
TEST(readers_are_waited_for)
{
    for (int kept = 0; kept < 2; kept++) {
        STORE s = open_store(new_device(), NULL, NULL);
        size_t slab = slab_of_group(&s, "optimizer");
        reader r = {.s = &s, .stream = s.k.streams[2], .lease = lease_of(&s, "optimizer", "checkpoint")};
        pthread_t thread, opener;
        r.copy = calloc(1, s.slabs[slab].bytes);
        assert_non_null(r.copy);
        assert_int_equal(pthread_create(&thread, NULL, read_and_return, &r), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (kept)
            begin_keep(&s, "optimizer");
        else
            begin_discard(&s, "optimizer");
        assert_int_equal(pthread_create(&opener, NULL, unblock_later, &r.gate), 0);
        finish_offload(&s, "optimizer"); /* waits */
        assert_int_equal(pthread_join(opener, NULL), 0);
        assert_ok(bp_stream_synchronize(r.stream));
        assert_memory_equal(r.copy, s.bytes[slab], s.slabs[slab].bytes);
        free(r.copy);
        bring_back(&s, "optimizer", BP_RESTORE_ZERO);
        assert_bytes(&s);
    }
}

/* Begin itself does not wait for streams. */
TEST(begin_does_not_wait)
{
    STORE s = open_store(new_device(), NULL, NULL);
    gate g = {0};
    flag before = 0, after = 0;
    block(s.k.streams[1], &g);
    raise_on(s.k.streams[1], &before);
    begin_keep(&s, "optimizer");
    begin_discard(&s, "main_grad");
    assert_int_equal(atomic_load(&before), 0);
    assert_residency(&s, "optimizer", BP_OFFLOADING);
    bp_stream *late = s.k.streams[2];
    work_on(&s, of_role(&s, BP_ROLE_PARAM), late, late); /* later work is not delayed by the copies */
    raise_on(late, &after);
    assert_true(is_raised_soon(&after));
    assert_int_equal(group_of(s.offload, "optimizer").copied_bytes, 0); /* they are ordered after s1 */
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    finish_offload(&s, "optimizer");
    assert_int_equal(atomic_load(&before), 1);
    finish_offload(&s, "main_grad");
    assert_int_equal(pthread_join(opener, NULL), 0);
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    bring_back(&s, "main_grad", BP_RESTORE_ZERO);
    assert_bytes(&s);
}
