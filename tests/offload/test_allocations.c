/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of host memory fails once in turn: BP_ERR_NO_HOST_MEMORY, nothing has changed, and a second try succeeds. Linked with
 * -Wl,--wrap of the allocation functions. */
#include <errno.h>
#include <sys/mman.h>

#include "faults.h"
#include "support/driver.h"
#include "support/shortage.h"

/* ---- allocations of the test's thread ------------------------------------------------------------------------------ */

static _Thread_local unsigned failing_map; /* as shortage.fails */
static unsigned failures;

void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (failing_map == 0 || --failing_map > 0)
        return __real_mmap(address, bytes, protection, flags, file, offset);
    errno = ENOMEM;
    return MAP_FAILED;
}

static void begin_failing(unsigned nth, bool maps)
{
    *(maps ? &failing_map : &shortage.fails) = nth;
}

/* True if the failing allocation was reached. */
static bool end_failing(bool maps)
{
    unsigned *left = maps ? &failing_map : &shortage.fails;
    const bool failed = *left == 0;
    *left = 0;
    failures += failed;
    return failed;
}

/* ---- tests --------------------------------------------------------------------------------------------------------- */

static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"}};

static void fail_each(store *s, const trip *t, stage which, bool maps)
{
    bool failed = true;
    for (unsigned nth = 1; failed; nth++) {
        advance_to(s, t, which);
        store_state before = state_of(s);
        begin_failing(nth, maps);
        bp_status status = make_stage(s, t, which);
        failed = end_failing(maps);
        if (status != BP_OK) {
            assert_true(failed);
            if (!maps)
                assert_int_equal(status, BP_ERR_NO_HOST_MEMORY);
            if (which != FINISH_OFFLOAD) /* which may find it resident again */
                assert_same_state(s, &before);
            if (which == BEGIN_OFFLOAD)
                assert_bytes(s);
        }
        recover(s, t);
    }
}

TEST(stages)
{
    const trip trips[] = {{"shards", true, BP_RESTORE_LEAVE}, {"shards", false, BP_RESTORE_ZERO}};
    for (int backing = BP_BACKING_AUTO; backing <= BP_BACKING_STAGED; backing++) {
        for (size_t i = 0; i < 2; i++) {
            bp_offload_config config = offload_config(16384, (bp_backing)backing);
            STORE s = open_store(new_device(), &SHARDS, &config);
            for (stage which = BEGIN_OFFLOAD; which <= FINISH_RESTORE; which++) {
                bp_offload_trim(s.offload);
                fail_each(&s, &trips[i], which, false);
                bp_offload_trim(s.offload);
                fail_each(&s, &trips[i], which, true);
            }
        }
    }
    assert_true(failures > 5); /* checks that the functions are wrapped at all */
}

TEST(creation_and_leases)
{
    STORE s = open_store(new_device(), &(store_options){.bare = true}, NULL);
    bp_device_usage before = usage_of(s.k.device);
    for (unsigned nth = 1; s.offload == NULL; nth++) {
        begin_failing(nth, false);
        bp_status status = bp_offload_create(s.k.pool, NULL, &s.offload);
        (void)end_failing(false);
        if (status == BP_OK)
            break;
        assert_int_equal(status, BP_ERR_NO_HOST_MEMORY);
        assert_null(s.offload);
        assert_int_equal(usage_of(s.k.device).streams, before.streams);
        assert_int_equal(usage_of(s.k.device).events, before.events);
    }
    bp_lease *lease = NULL;
    for (unsigned nth = 1; lease == NULL; nth++) {
        begin_failing(nth, false);
        bp_status status = bp_lease_take(s.offload, "grad", "a reader with a name", &lease);
        (void)end_failing(false);
        assert_int_equal(group_of(s.offload, "grad").leases, lease != NULL);
        assert_int_equal(status, lease != NULL ? BP_OK : BP_ERR_NO_HOST_MEMORY);
    }
    bp_lease_return(&lease);
}
