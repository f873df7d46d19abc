/* SPDX-License-Identifier: Apache-2.0 */
/* Fails each allocation and each system call of the devices in turn. The call must return the error, write no output, leak nothing (address
 * sanitizer), and succeed when repeated.
 *
 * Linked with -Wl,--wrap=... of the functions below against the static library. */
#include "support/harness.h"

#include <bucketpool/device.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "devices/device.h"
#include "support/trace_device.h"

static size_t until_failure; /* 0: no failure; 1: the next call fails */
static bool has_failed;
static bp_status expected; /* status of the call with the injected failure */
static size_t failures;    /* injected so far */

static bool fails(bp_status status)
{
    if (until_failure == 0 || --until_failure > 0)
        return false;
    has_failed = true;
    expected = status;
    failures++;
    errno = ENOMEM;
    return true;
}

/* Declares the real function and defines its wrapper. */
#define WRAP(type, name, parameters, arguments, status, failure)                                                       \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        return fails(status) ? (failure) : __real_##name arguments;                                                    \
    }

/* Expected statuses: device memory, and host memory for bookkeeping. */
#define DEVICE BP_ERR_NO_DEVICE_MEMORY
#define HOST BP_ERR_NO_HOST_MEMORY
static bp_status of_madvise = DEVICE; /* HOST: of a mapping of existing memory, by files */
#define OF_MMAP (flags & MAP_FIXED ? HOST : DEVICE)

WRAP(void *, malloc, (size_t bytes), (bytes), HOST, NULL)
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), HOST, NULL)
WRAP(void *, realloc, (void *memory, size_t bytes), (memory, bytes), HOST, NULL)
WRAP(int, posix_memalign, (void **memory, size_t step, size_t bytes), (memory, step, bytes), DEVICE, ENOMEM)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *p), (t, a, f, p), HOST,
     EAGAIN)
WRAP(int, madvise, (void *at, size_t bytes, int advice), (at, bytes, advice), of_madvise, -1)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o), OF_MMAP,
     MAP_FAILED)
WRAP(void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o), OF_MMAP,
     MAP_FAILED)
WRAP(int, munmap, (void *address, size_t bytes), (address, bytes), HOST, -1)
/* variadic; the library passes one optional argument */
void *__real_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...);
void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, void *address);
void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, void *address)
{
    /* Without MREMAP_FIXED the library asks for its abilities. */
    return (flags & MREMAP_FIXED) != 0 && fails(HOST) ? MAP_FAILED
                                                      : __real_mremap(old, old_bytes, bytes, flags, address);
}
WRAP(int, mprotect, (void *address, size_t bytes, int prot), (address, bytes, prot), HOST, -1)

/* Repeats the call, each time with a later failure, until none is reached. */
#define RETRY(call)                                                                                                    \
    do {                                                                                                               \
        size_t nth = 0;                                                                                                \
        do {                                                                                                           \
            has_failed = false;                                                                                        \
            until_failure = ++nth;                                                                                     \
            bp_status status = (call);                                                                                 \
            until_failure = 0;                                                                                         \
            if (status != (has_failed ? expected : BP_OK)) {                                                           \
                print_error("%s: %s: %s\n", #call, bp_status_name(status), bp_error_detail());                         \
                _fail(__FILE__, __LINE__);                                                                             \
            }                                                                                                          \
        } while (has_failed);                                                                                          \
        assert_true(nth > 1);                                                                                          \
    } while (0)

/* The same for a call that creates `out`, which must not change on failure. */
#define RETRY_OUT(out, call)                                                                                           \
    do {                                                                                                               \
        (out) = NULL;                                                                                                  \
        RETRY(((void)assert_null(out), (call)));                                                                       \
        assert_non_null(out);                                                                                          \
    } while (0)

TEST(test_host)
{
    bp_device *device;
    bp_stream *stream, *second;
    bp_event *event;
    void *self, *space, *memory;
    uint64_t handle;
    RETRY_OUT(device, bp_device_create_host(NULL, &device));
    uint64_t page = device->traits.granularity;
    RETRY_OUT(stream, bp_stream_create(device, NULL, &stream));
    RETRY_OUT(second, bp_stream_create(device, NULL, &second));
    RETRY_OUT(event, bp_event_create(device, &event));
    const bp_device_ops *ops = bp_device_table(device, &self);
    RETRY_OUT(space, ops->reserve(self, 4 * page, 16 * page, &space));
    RETRY(bp_device_commit(device, 2 * page, &handle));
    of_madvise = HOST;
    RETRY(ops->map(self, space, 2 * page, handle));
    of_madvise = DEVICE;
    memset(space, 7, 2 * page);
    RETRY(ops->protect(self, space, page, BP_ACCESS_NONE));
    RETRY(ops->protect(self, space, page, BP_ACCESS_READ_WRITE));
    RETRY(ops->unmap(self, space, 2 * page));
    RETRY_OUT(memory, bp_device_allocate(device, 1000, stream, &memory));
    /* failed calls hold no memory */
    bp_device_usage usage = {.size = sizeof usage};
    assert_int_equal(bp_device_usage_get(device, &usage), BP_OK);
    assert_int_equal(usage.committed_bytes, 2 * page);
    assert_int_equal(usage.allocated_bytes, 1000);
    assert_int_equal(usage.streams, 2);
    assert_int_equal(usage.events, 2 * BP_STREAM_POINTS + 1);
    /* enqueueing and waiting do not allocate */
    until_failure = 1;
    uint64_t point;
    bool recorded;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(bp_stream_fill(stream, memory, 3, 1000), BP_OK);
        assert_int_equal(bp_event_record(event, stream), BP_OK);
        assert_int_equal(bp_stream_wait(second, event), BP_OK);
        assert_int_equal(bp_stream_record_point(stream, &point, &recorded), BP_OK);
        assert_int_equal(bp_stream_wait_point(second, stream, point), BP_OK);
    }
    assert_int_equal(bp_device_free(device, memory, 1000, stream), BP_OK);
    assert_int_equal(bp_stream_synchronize(second), BP_OK);
    assert_int_equal(bp_device_synchronize(device), BP_OK);
    bp_event_destroy(&event);
    bp_stream_destroy(&stream);
    bp_stream_destroy(&second);
    assert_int_equal(until_failure, 1);
    RETRY(bp_device_decommit(device, 2 * page, handle));
    RETRY(ops->unreserve(self, space, 4 * page));
    bp_device_destroy(&device);
}

static bp_status allow(void *user, const device_call *call)
{
    (void)user;
    (void)call;
    return BP_OK;
}

TEST(test_null_and_trace)
{
    bp_device *null, *device;
    bp_stream *stream;
    bp_event *event;
    void *self, *space;
    RETRY_OUT(null, bp_device_create_null(&null));
    RETRY_OUT(device, trace_device_create(null, allow, NULL, &device));
    bp_device_destroy(&null);
    RETRY_OUT(stream, bp_stream_create(device, NULL, &stream));
    RETRY_OUT(event, bp_event_create(device, &event));
    const bp_device_ops *ops = bp_device_table(device, &self);
    RETRY_OUT(space, ops->reserve(self, 1 << 20, 1 << 20, &space));
    RETRY(ops->unreserve(self, space, 1 << 20));
    bp_event_destroy(&event);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
    assert_true(failures > 25);
}

TESTS(NULL, NULL)
