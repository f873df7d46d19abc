/* Every allocation of host memory fails once in turn: BP_ERR_NO_HOST_MEMORY, nothing has changed, and a second try succeeds. Linked with
 * -Wl,--wrap of the functions that allocate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../support/driver.h"
#include "faults.h"

/* ---- allocations of the test's thread ------------------------------------------------------------------------------ */

static _Thread_local unsigned until_failure;
static _Thread_local bool has_failed, maps_only;
static unsigned failures;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

static bool fails(bool is_map)
{
    if (maps_only != is_map || until_failure == 0 || --until_failure > 0)
        return false;
    errno = ENOMEM;
    return has_failed = true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails(false) ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails(false) ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails(false) ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(false) ? NULL : __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    return fails(false) ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails(false) ? NULL : __real_strdup(text);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return fails(true) ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, file, offset);
}

static void begin_failing(unsigned nth, bool maps)
{
    has_failed = false;
    maps_only = maps;
    until_failure = nth;
}

static void end_failing(void)
{
    until_failure = 0;
    maps_only = false;
    failures += has_failed;
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
        end_failing();
        failed = has_failed;
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

static void test_stages(void **state)
{
    (void)state;
    const trip trips[] = {{"shards", true, BP_RESTORE_LEAVE}, {"shards", false, BP_RESTORE_ZERO}};
    for (int backing = BP_BACKING_AUTO; backing <= BP_BACKING_STAGED; backing++) {
        for (size_t i = 0; i < 2; i++) {
            bp_offload_config config = offload_config(16384, (bp_backing)backing);
            store s = open_store(new_device(), &SHARDS, &config);
            for (stage which = BEGIN_OFFLOAD; which <= FINISH_RESTORE; which++) {
                bp_offload_trim(s.offload);
                fail_each(&s, &trips[i], which, false);
                bp_offload_trim(s.offload);
                fail_each(&s, &trips[i], which, true);
            }
            close_store(&s);
        }
    }
    assert_true(failures > 5); /* that the wraps are linked at all */
}

static void test_creation_and_leases(void **state)
{
    (void)state;
    store s = open_store(new_device(), &(store_options){.bare = true}, NULL);
    bp_device_usage before = usage_of(s.k.device);
    for (unsigned nth = 1; s.offload == NULL; nth++) {
        begin_failing(nth, false);
        bp_status status = bp_offload_create(s.k.pool, NULL, &s.offload);
        end_failing();
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
        end_failing();
        assert_int_equal(group_of(s.offload, "grad").leases, lease != NULL);
        assert_int_equal(status, lease != NULL ? BP_OK : BP_ERR_NO_HOST_MEMORY);
    }
    bp_lease_return(&lease);
    close_store(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_creation_and_leases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
