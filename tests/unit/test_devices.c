/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: memory, limits, arguments, usage, the null device, the trace device. test_devices_streams.c has the streams. */
#include "support/harness.h"

#include <bucketpool/device.h>
#include <bucketpool/device_ops.h>

#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devices/device.h"
#include "support/trace_device.h"

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))
#define IN_PAGES(count) in_decimal((count)*PAGE).text

/* A number as messages have it. */
typedef struct decimal {
    char text[24];
} decimal;

static decimal in_decimal(uint64_t number)
{
    decimal made;
    snprintf(made.text, sizeof made.text, "%llu", (unsigned long long)number);
    return made;
}

static bp_device *make_host(const bp_host_config *config)
{
    bp_device *device = NULL;
    assert_ok(bp_device_create_host(config, &device));
    return device;
}

static bp_host_config small_config(void)
{
    bp_host_config config;
    assert_ok(bp_host_config_init(&config, sizeof config));
    config.memory_bytes = 16 * PAGE;
    config.granularity = PAGE;
    return config;
}

static size_t open_files(void)
{
    size_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Lets the kernel read: EFAULT instead of a segmentation fault. */
static bool readable(const void *address)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool can = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return can;
}

static bp_device_usage usage_of(const bp_device *device)
{
    bp_device_usage usage = {.size = sizeof usage};
    assert_ok(bp_device_usage_get(device, &usage));
    return usage;
}

/* ---- host memory ------------------------------------------------------------------------------------------------- */

TEST(test_mapping_keeps_bytes)
{
    bp_host_config config = small_config();
    SCOPED(bp_device_destroy) bp_device *device = make_host(&config);
    void *self, *space;
    const bp_device_ops *ops = bp_device_table(device, &self);
    uint64_t a, b;
    assert_ok(ops->reserve(self, 4 * PAGE, PAGE, &space));
    assert_ok(ops->commit(self, 2 * PAGE, &a));
    assert_ok(ops->commit(self, PAGE, &b));
    char *bytes = space;
    assert_false(readable(bytes));
    assert_ok(ops->map(self, bytes, 2 * PAGE, a));
    assert_true(readable(bytes) && readable(bytes + 2 * PAGE - 1) && !readable(bytes + 2 * PAGE));
    for (size_t i = 0; i < 2 * PAGE; i++)
        assert_int_equal(bytes[i], 0);
    memset(bytes, 'a', 2 * PAGE);
    assert_ok(ops->unmap(self, bytes, 2 * PAGE));
    assert_false(readable(bytes));
    assert_ok(ops->map(self, bytes, PAGE, b));
    assert_int_equal(bytes[0], 0);
    bytes[0] = 'b';
    assert_ok(ops->map(self, bytes + 2 * PAGE, 2 * PAGE, a)); /* elsewhere */
    assert_int_equal(bytes[2 * PAGE], 'a');
    assert_int_equal(bytes[4 * PAGE - 1], 'a');
    assert_ok(ops->unmap(self, bytes, PAGE));
    assert_ok(ops->map(self, bytes, PAGE, b));
    assert_int_equal(bytes[0], 'b');
    assert_ok(ops->unmap(self, bytes, PAGE));
    assert_ok(ops->unmap(self, bytes + 2 * PAGE, 2 * PAGE));
    assert_ok(ops->decommit(self, a));
    assert_ok(ops->decommit(self, b));
    assert_fails(ops->map(self, bytes, PAGE, b), BP_ERR_INVALID_ARGUMENT, "handle 2");
    assert_ok(ops->unreserve(self, space, 4 * PAGE));
}

TEST(test_protection)
{
    bp_device *device = make_host(NULL);
    void *self, *space;
    const bp_device_ops *ops = bp_device_table(device, &self);
    uint64_t page = device->traits.page_bytes, handle;
    assert_int_equal(device->traits.granularity, page);
    assert_int_equal(device->traits.host_accessible, 1);
    assert_int_equal(device->traits.no_memory, 0);
    assert_ok(ops->reserve(self, 2 * page, page, &space));
    assert_ok(ops->commit(self, 2 * page, &handle));
    assert_ok(ops->map(self, space, 2 * page, handle));
    char *bytes = space;
    bytes[0] = 'a';
    assert_ok(ops->protect(self, bytes, page, BP_ACCESS_NONE));
    assert_false(readable(bytes));
    assert_true(readable(bytes + page));
    assert_ok(ops->protect(self, bytes, page, BP_ACCESS_READ_WRITE));
    assert_int_equal(bytes[0], 'a');
    assert_fails(ops->protect(self, bytes + 1, page, BP_ACCESS_NONE), BP_ERR_INVALID_ARGUMENT, "protect");
    assert_fails(ops->protect(self, bytes, page, (bp_access)7), BP_ERR_INVALID_ARGUMENT, "access 7");
    bp_device_destroy(&device); /* frees the remaining memory */
}

TEST(test_reservations)
{
    bp_host_config config = small_config();
    config.granularity = 65536;
    SCOPED(bp_device_destroy) bp_device *device = make_host(&config);
    void *self, *space, *large = NULL;
    const bp_device_ops *ops = bp_device_table(device, &self);
    for (uint64_t alignment = 65536; alignment <= UINT64_C(1) << 32; alignment *= 4) {
        assert_ok(ops->reserve(self, 3 * 65536, alignment, &space));
        assert_int_equal((uintptr_t)space % alignment, 0);
        assert_false(readable(space));
        assert_ok(ops->unreserve(self, space, 3 * 65536));
    }
    assert_ok(ops->reserve(self, UINT64_C(1) << 38, 65536, &space));
    assert_fails(ops->reserve(self, 0, 65536, &large), BP_ERR_INVALID_ARGUMENT, "0 bytes", "65536");
    assert_fails(ops->reserve(self, 65537, 65536, &large), BP_ERR_INVALID_ARGUMENT, "65537 bytes");
    assert_fails(ops->reserve(self, 65536, 0, &large), BP_ERR_INVALID_ARGUMENT, "alignment 0");
    assert_fails(ops->reserve(self, 65536, 4096, &large), BP_ERR_INVALID_ARGUMENT, "alignment 4096");
    assert_fails(ops->reserve(self, 65536, 3 * 65536, &large), BP_ERR_INVALID_ARGUMENT, "196608");
    assert_fails(ops->reserve(self, UINT64_C(1) << 60, 65536, &large), BP_ERR_NO_DEVICE_MEMORY, "address space");
    assert_fails(ops->reserve(self, UINT64_MAX - 65535, 65536, &large), BP_ERR_NO_DEVICE_MEMORY, "address space");
    assert_null(large);
    assert_fails(ops->unreserve(self, space, 65536), BP_ERR_INVALID_ARGUMENT, "unreserve");
    assert_fails(ops->unmap(self, &config, 65536), BP_ERR_INVALID_ARGUMENT, "not reserved");
    assert_fails(ops->unmap(self, space, UINT64_MAX - 65535), BP_ERR_INVALID_ARGUMENT, "not reserved");
    assert_fails(ops->unmap(self, (char *)space + 1, 65536), BP_ERR_INVALID_ARGUMENT, "multiples of 65536");
}

static void wait_until_open(void *open)
{
    while (!atomic_load((atomic_int *)open))
        sched_yield();
}

TEST(test_limits)
{
    bp_host_config config = small_config();
    bp_device *device = make_host(&config);
    size_t files = open_files();
    uint64_t a, b = 77;
    bp_stream *stream;
    void *memory;
    assert_ok(bp_stream_create(device, NULL, &stream));
    assert_ok(bp_device_commit(device, 10 * PAGE, &a));
    assert_fails(bp_device_commit(device, 7 * PAGE, &b), BP_ERR_NO_DEVICE_MEMORY, IN_PAGES(7), IN_PAGES(6),
                 IN_PAGES(16));
    assert_fails(bp_device_commit(device, 7, &b), BP_ERR_INVALID_ARGUMENT, "commit", IN_PAGES(1));
    assert_fails(bp_device_commit(device, 0, &b), BP_ERR_INVALID_ARGUMENT, "0 bytes");
    assert_int_equal(b, 77);
    assert_ok(bp_device_allocate(device, 6 * PAGE - 1, stream, &memory));
    assert_int_equal((uintptr_t)memory % 256, 0);
    assert_fails(bp_device_allocate(device, 2, stream, &memory), BP_ERR_NO_DEVICE_MEMORY, "of 2 bytes", "1 of ",
                 IN_PAGES(16));
    assert_fails(bp_device_allocate(device, UINT64_MAX, stream, &memory), BP_ERR_NO_DEVICE_MEMORY, "allocate");
    bp_device_usage usage = usage_of(device);
    assert_int_equal(usage.committed_bytes, 10 * PAGE);
    assert_int_equal(usage.allocated_bytes, 6 * PAGE - 1);
    memset(memory, 1, 6 * PAGE - 1);
    assert_fails(bp_device_free(device, memory, 5, stream), BP_ERR_INVALID_ARGUMENT, "5 bytes");
    assert_fails(bp_device_free(device, NULL, 5, stream), BP_ERR_INVALID_ARGUMENT, "5 bytes");
    atomic_int open = 0;
    assert_ok(bp_stream_call(stream, wait_until_open, &open));
    assert_ok(bp_device_free(device, memory, 6 * PAGE - 1, stream));
    assert_fails(bp_device_allocate(device, 6 * PAGE, stream, &memory), BP_ERR_NO_DEVICE_MEMORY, IN_PAGES(6), "1 of ",
                 IN_PAGES(16));
    atomic_store(&open, 1);
    assert_ok(bp_stream_synchronize(stream)); /* the stream has executed the free */
    assert_ok(bp_device_allocate(device, 6 * PAGE, stream, &memory));
    assert_ok(bp_device_decommit(device, 10 * PAGE, a));
    assert_fails(bp_device_decommit(device, 10 * PAGE, a), BP_ERR_INVALID_ARGUMENT, "handle");
    usage = usage_of(device);
    assert_int_equal(usage.committed_bytes, 0);
    assert_int_equal(usage.peak_committed_bytes, 10 * PAGE);
    assert_int_equal(usage.allocated_bytes, 6 * PAGE);
    assert_int_equal(usage.peak_allocated_bytes, 6 * PAGE);
    assert_int_equal(open_files(), files);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device); /* frees leaked memory, too */
}

TEST(test_host_config)
{
    bp_device *device = NULL;
    bp_host_config config;
    assert_fails(bp_host_config_init(&config, 4), BP_ERR_INVALID_ARGUMENT, "size of a struct is 4");
    assert_fails(bp_host_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, "bp_host_config_init");
    assert_fails(bp_device_create_host(NULL, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    config = small_config();
    config.granularity = 3 * PAGE;
    assert_fails(bp_device_create_host(&config, &device), BP_ERR_INVALID_ARGUMENT, "granularity", IN_PAGES(3));
    config.granularity = 512;
    assert_fails(bp_device_create_host(&config, &device), BP_ERR_INVALID_ARGUMENT, "granularity 512");
    config = small_config();
    config.queue_length = 100;
    assert_fails(bp_device_create_host(&config, &device), BP_ERR_INVALID_ARGUMENT, "length 100");
    config.size = 1;
    assert_fails(bp_device_create_host(&config, &device), BP_ERR_INVALID_ARGUMENT, "size of a struct is 1");
    assert_null(device);
    device = make_host(NULL);
    assert_string_equal(bp_device_name(device), "host");
    bp_device_destroy(&device);
    assert_null(device);
    bp_device_destroy(&device);
    bp_device_destroy(NULL);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static int destroyed;
static bp_device_traits answer;
static bp_status answer_status;

static void count_destroy(void *self)
{
    (void)self;
    destroyed++;
}

static bp_status answer_traits(void *self, bp_device_traits *traits)
{
    (void)self;
    *traits = answer;
    return answer_status;
}

TEST(test_tables_are_checked)
{
    bp_device *null, *device = NULL;
    assert_ok(bp_device_create_null(&null));
    void *self;
    bp_device_ops ops = *bp_device_table(null, &self);
    ops.destroy = count_destroy;
    ops.traits = answer_traits;
    answer = (bp_device_traits){.size = sizeof answer, .granularity = 4096};
    assert_fails(bp_device_create(NULL, self, &device), BP_ERR_INVALID_ARGUMENT, "is NULL");
    assert_fails(bp_device_create(&ops, self, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    ops.size = 8;
    assert_fails(bp_device_create(&ops, self, &device), BP_ERR_INVALID_ARGUMENT, "size of a struct is 8");
    ops.size = offsetof(bp_device_ops, event_synchronize); /* an older table, without a required function */
    assert_fails(bp_device_create(&ops, self, &device), BP_ERR_INVALID_ARGUMENT, "event_synchronize");
    ops.size = sizeof ops;
    struct {
        bp_device_ops known;
        void (*later)(void);
    } newer = {ops, (void (*)(void))count_destroy};
    newer.known.size = sizeof newer;
    assert_fails(bp_device_create(&newer.known, self, &device), BP_ERR_UNSUPPORTED, "update the library");
    const size_t first = offsetof(bp_device_ops, destroy), last = offsetof(bp_device_ops, event_synchronize);
    for (size_t at = first; at <= last; at += sizeof(void (*)(void))) {
        bp_device_ops lacking = ops;
        memset((char *)&lacking + at, 0, sizeof(void (*)(void)));
        bool optional = at == offsetof(bp_device_ops, stream_import) || at == offsetof(bp_device_ops, protect);
        if (!optional)
            assert_fails(bp_device_create(&lacking, self, &device), BP_ERR_INVALID_ARGUMENT, "null", "function");
    }
    answer.page_bytes = 4096;
    assert_fails(bp_device_create(&ops, self, &device), BP_ERR_INVALID_ARGUMENT, "protect");
    answer.page_bytes = 0;
    answer.granularity = 4097;
    assert_fails(bp_device_create(&ops, self, &device), BP_ERR_INVALID_ARGUMENT, "4097");
    assert_int_equal(destroyed, 0); /* no call has taken ownership yet */
    answer_status = bp_error_record(BP_ERR_NO_DEVICE, "no such thing");
    assert_fails(bp_device_create(&ops, self, &device), BP_ERR_NO_DEVICE, "no such thing");
    assert_int_equal(destroyed, 1);
    assert_null(device);
    answer_status = BP_OK;
    answer.granularity = 4096;
    assert_ok(bp_device_create(&ops, self, &device));
    bp_device_destroy(&device);
    assert_int_equal(destroyed, 2);
    bp_device_destroy(&null);
}

/* ---- lifetime----------------------------------------------------------------------------------------------------- */

TEST(test_arguments)
{
    bp_device *device = make_host(NULL), *other = make_host(NULL);
    bp_stream *stream, *copy, *foreign;
    bp_event *event;
    char byte;
    assert_ok(bp_stream_create(device, "compute", &stream));
    assert_ok(bp_stream_create(other, NULL, &foreign));
    assert_ok(bp_event_create(device, &event));
    assert_string_equal(bp_stream_name(stream), "compute");
    assert_string_equal(bp_stream_name(foreign), "stream.0");
    assert_fails(bp_stream_create(NULL, "x", &copy), BP_ERR_INVALID_ARGUMENT, "device");
    assert_fails(bp_stream_create(device, "x", NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_fails(bp_stream_import(device, 1, "x", &copy), BP_ERR_UNSUPPORTED, "host");
    assert_fails(bp_event_create(NULL, &event), BP_ERR_INVALID_ARGUMENT, "device");
    assert_fails(bp_stream_synchronize(NULL), BP_ERR_INVALID_ARGUMENT, "the stream is NULL");
    assert_fails(bp_stream_call(stream, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "function", "compute");
    assert_fails(bp_stream_fill(stream, NULL, 0, 8), BP_ERR_INVALID_ARGUMENT, "8 bytes", "compute");
    assert_fails(bp_stream_copy(stream, NULL, &byte, 8), BP_ERR_INVALID_ARGUMENT, "destination");
    assert_fails(bp_stream_copy(stream, &byte, NULL, 8), BP_ERR_INVALID_ARGUMENT, "source");
    assert_ok(bp_stream_fill(stream, NULL, 0, 0));
    assert_ok(bp_stream_copy(stream, NULL, NULL, 0));
    assert_fails(bp_event_record(NULL, stream), BP_ERR_INVALID_ARGUMENT, "the event is NULL");
    assert_fails(bp_event_record(event, foreign), BP_ERR_INVALID_ARGUMENT, "stream.0", "another device");
    assert_fails(bp_stream_wait(foreign, event), BP_ERR_INVALID_ARGUMENT, "stream.0", "another device");
    assert_fails(bp_stream_wait(stream, NULL), BP_ERR_INVALID_ARGUMENT, "the event is NULL");
    assert_fails(bp_event_synchronize(NULL), BP_ERR_INVALID_ARGUMENT, "the event is NULL");
    assert_fails(bp_device_synchronize(NULL), BP_ERR_INVALID_ARGUMENT, "the device is NULL");
    bp_device_usage usage = {0};
    assert_fails(bp_device_usage_get(device, &usage), BP_ERR_INVALID_ARGUMENT, "usage");
    usage = usage_of(device);
    assert_int_equal(usage.streams, 1);
    assert_int_equal(usage.events, 1 + BP_STREAM_POINTS);
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
    bp_device_destroy(&device); /* freed with its last stream or event */
    bp_stream_destroy(&stream);
    bp_event_destroy(&event);
    bp_event_destroy(&event);
    bp_event_destroy(NULL);
    bp_stream_destroy(NULL);
}

TEST(test_destroyed_streams)
{
    SCOPED(bp_device_destroy) bp_device *device = make_host(NULL);
    bp_stream *stream, *copy, *next;
    bp_event *event;
    assert_ok(bp_stream_create(device, "a name that is much too long for the space there is for names", &stream));
    assert_int_equal(strlen(bp_stream_name(stream)), sizeof stream->name - 1);
    bp_stream_destroy(&stream);
    assert_null(stream);
    assert_ok(bp_stream_create(device, "gather", &stream));
    assert_ok(bp_event_create(device, &event));
    copy = stream;
    bp_stream_destroy(&stream);
    assert_ok(bp_stream_create(device, "next", &next)); /* reuses the struct of the thread */
    assert_string_equal(bp_stream_name(copy), "gather");
    uint64_t point = 77;
    bool recorded = true;
    assert_fails(bp_stream_synchronize(copy), BP_ERR_INVALID_ARGUMENT, "gather", "destroyed");
    assert_fails(bp_event_record(event, copy), BP_ERR_INVALID_ARGUMENT, "gather", "destroyed");
    assert_fails(bp_stream_wait(copy, event), BP_ERR_INVALID_ARGUMENT, "gather", "destroyed");
    assert_ok(bp_stream_record_point(copy, &point, &recorded)); /* no work since the last point */
    assert_false(recorded);
    assert_int_equal(point, 77);
    assert_ok(bp_stream_quiesce(copy));
    assert_fails(bp_stream_wait_point(copy, next, 0), BP_ERR_INVALID_ARGUMENT, "gather", "destroyed");
    assert_ok(bp_stream_wait_point(next, copy, 0));
    bp_stream *again = copy;
    bp_stream_destroy(&again); /* NULL: no effect */
    assert_int_equal(usage_of(device).streams, 1);
    bp_event_destroy(&event);
    assert_int_equal(usage_of(device).events, BP_STREAM_POINTS);
    bp_stream_destroy(&next);
    assert_int_equal(usage_of(device).streams, 0);
    assert_int_equal(usage_of(device).events, 0);
}

/* ---- null -------------------------------------------------------------------------------------------------------- */

/* Sizes that wrap and exhaust the address space: live allocations never overlap. */
TEST(test_null_addresses)
{
    SCOPED(bp_device_destroy) bp_device *device = NULL;
    SCOPED(bp_stream_destroy) bp_stream *stream = NULL;
    uint64_t handle = 0, max = UINT64_C(1) << 62;
    char *first, *second;
    void *memory = NULL;
    assert_ok(bp_device_create_null(&device));
    assert_ok(bp_stream_create(device, NULL, &stream));
    assert_fails(bp_device_allocate(device, UINT64_MAX, stream, &memory), BP_ERR_NO_DEVICE_MEMORY, "null",
                 "18446744073709551615 bytes");
    assert_fails(bp_device_commit(device, UINT64_MAX - 4095, &handle), BP_ERR_NO_DEVICE_MEMORY, "null");
    assert_ok(bp_device_allocate(device, max, stream, (void **)&first));
    assert_ok(bp_device_allocate(device, max - 256, stream, (void **)&second));
    assert_true((uintptr_t)second - (uintptr_t)first >= max && (uintptr_t)second + (max - 256) > (uintptr_t)second);
    assert_fails(bp_device_allocate(device, 1, stream, &memory), BP_ERR_NO_DEVICE_MEMORY, "1 bytes, 0 of");
    assert_int_equal(usage_of(device).allocated_bytes, 2 * max - 256);
}

static void add_one(void *argument)
{
    ++*(int *)argument;
}

TEST(test_null_device)
{
    SCOPED(bp_device_destroy) bp_device *device = NULL;
    assert_fails(bp_device_create_null(NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_ok(bp_device_create_null(&device));
    assert_string_equal(bp_device_name(device), "null");
    assert_int_equal(device->traits.no_memory, 1);
    assert_int_equal(device->traits.host_accessible, 0);
    assert_int_equal(device->traits.page_bytes, 0);
    assert_int_equal(device->traits.granularity, 4096);
    void *self, *a, *b, *c;
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_null(ops->protect);
    uint64_t bytes = UINT64_C(1) << 38, handle, second;
    assert_ok(ops->reserve(self, bytes, 1 << 21, &a)); /* far more than the budget */
    assert_ok(ops->reserve(self, bytes, 1 << 21, &b));
    assert_true((uintptr_t)a % (1 << 21) == 0 && ((char *)a + bytes <= (char *)b || (char *)b + bytes <= (char *)a));
    assert_false(readable(a));
    assert_ok(bp_device_commit(device, bytes, &handle));
    assert_ok(bp_device_commit(device, bytes, &second));
    assert_true(handle != second);
    assert_int_equal(usage_of(device).committed_bytes, 2 * bytes);
    assert_ok(ops->map(self, a, bytes, handle));
    assert_false(readable(a));
    assert_ok(ops->unmap(self, a, bytes));
    assert_fails(ops->map(self, &bytes, 4096, handle), BP_ERR_INVALID_ARGUMENT, "not reserved");
    assert_fails(bp_device_commit(device, 5, &second), BP_ERR_INVALID_ARGUMENT, "5 bytes");
    assert_fails(ops->reserve(self, 4096, 12288, &c), BP_ERR_INVALID_ARGUMENT, "alignment");
    assert_ok(bp_device_decommit(device, bytes, handle));
    assert_ok(ops->unreserve(self, a, bytes));
    SCOPED(bp_stream_destroy) bp_stream *one = NULL, *two = NULL;
    SCOPED(bp_event_destroy) bp_event *event = NULL;
    assert_ok(bp_stream_create(device, NULL, &one));
    assert_ok(bp_stream_create(device, NULL, &two));
    assert_ptr_not_equal(one->raw, two->raw);
    assert_ok(bp_event_create(device, &event));
    assert_ok(bp_device_allocate(device, 0, one, &a));
    assert_ok(bp_device_allocate(device, 1000, one, &b));
    assert_ok(bp_device_allocate(device, 1000, two, &c));
    assert_true(a != b && (uintptr_t)c >= (uintptr_t)b + 1000 && (uintptr_t)c % 256 == 0);
    assert_false(readable(b));
    assert_ok(bp_device_free(device, b, 1000, two));
    int calls = 0;
    assert_ok(bp_stream_call(one, add_one, &calls));
    assert_int_equal(calls, 1); /* immediately */
    assert_ok(bp_stream_fill(one, c, 1, 1000));
    assert_ok(bp_stream_copy(one, b, c, 1000));
    assert_ok(bp_event_record(event, one));
    assert_ok(bp_stream_wait(two, event));
    assert_ok(bp_event_synchronize(event));
    for (uint64_t i = 0, point; i < 1000; i++) {
        bool recorded = false;
        assert_ok(bp_stream_record_point(one, &point, &recorded));
        assert_true(recorded);
        assert_int_equal(point, i);
        assert_ok(bp_stream_wait_point(two, one, point / 2));
    }
    assert_ok(bp_stream_synchronize(one));
    assert_ok(bp_device_synchronize(device));
}

/* ---- trace ------------------------------------------------------------------------------------------------------- */

typedef struct tracing {
    int refused;   /* operation that fails, -1: none */
    bool detailed; /* the failing operation records a detail */
    device_call last[OP_COUNT];
    int counts[OP_COUNT];
} tracing;

static bp_status trace(void *user, const device_call *call)
{
    tracing *t = user;
    t->last[call->operation] = *call;
    t->counts[call->operation]++;
    if ((int)call->operation != t->refused)
        return BP_OK;
    return t->detailed ? bp_error_record(BP_ERR_NO_DEVICE, "the cable is out") : BP_ERR_NO_DEVICE;
}

static bool refuses(const tracing *t, device_operation operation, bp_status status)
{
    bool refused = t->refused == (int)operation;
    assert_int_equal(status, refused ? BP_ERR_NO_DEVICE : BP_OK);
    if (refused)
        assert_non_null(strstr(bp_error_detail(), t->detailed ? "the cable" : device_operation_name(operation)));
    return refused;
}

static void use_memory(tracing *t, bp_device *device)
{
    void *self, *address;
    uint64_t handle;
    const bp_device_ops *ops = bp_device_table(device, &self);
    if (refuses(t, OP_RESERVE, ops->reserve(self, 2 * PAGE, PAGE, &address)))
        return;
    if (!refuses(t, OP_COMMIT, bp_device_commit(device, PAGE, &handle))) {
        if (!refuses(t, OP_MAP, ops->map(self, address, PAGE, handle))) {
            assert_ptr_equal(t->last[OP_MAP].address, address);
            assert_int_equal(t->last[OP_MAP].bytes, PAGE);
            assert_int_equal(t->last[OP_MAP].handle, handle);
            refuses(t, OP_PROTECT, ops->protect(self, address, PAGE, BP_ACCESS_READ_WRITE));
            assert_int_equal(t->last[OP_PROTECT].access, BP_ACCESS_READ_WRITE);
            refuses(t, OP_UNMAP, ops->unmap(self, address, PAGE));
        }
        bool left = refuses(t, OP_DECOMMIT, bp_device_decommit(device, PAGE, handle));
        assert_int_equal(usage_of(device).committed_bytes, left ? PAGE : 0);
    }
    refuses(t, OP_UNRESERVE, ops->unreserve(self, address, 2 * PAGE));
    assert_ptr_equal(t->last[OP_UNRESERVE].address, address);
}

static void use_stream(tracing *t, bp_device *device, bp_stream *stream, bp_event *event)
{
    int calls = 0;
    char bytes[8] = {0};
    void *memory;
    if (!refuses(t, OP_ALLOCATE, bp_device_allocate(device, 100, stream, &memory))) {
        bool left = refuses(t, OP_FREE, bp_device_free(device, memory, 100, stream));
        assert_int_equal(usage_of(device).allocated_bytes, left ? 100 : 0);
        assert_ptr_equal(t->last[OP_FREE].stream, stream->raw);
    }
    bool refused = refuses(t, OP_CALL, bp_stream_call(stream, add_one, &calls));
    refuses(t, OP_FILL, bp_stream_fill(stream, bytes, 3, 4));
    refuses(t, OP_COPY, bp_stream_copy(stream, bytes + 4, bytes, 4));
    refuses(t, OP_STREAM_SYNCHRONIZE, bp_stream_synchronize(stream));
    refuses(t, OP_SYNCHRONIZE, bp_device_synchronize(device));
    assert_int_equal(calls, refused ? 0 : 1);
    assert_int_equal(bytes[7], t->refused == OP_FILL || t->refused == OP_COPY ? 0 : 3);
    refuses(t, OP_EVENT_RECORD, bp_event_record(event, stream));
    assert_ptr_equal(t->last[OP_EVENT_RECORD].stream, stream->raw);
    assert_non_null(t->last[OP_EVENT_RECORD].event);
    refuses(t, OP_STREAM_WAIT, bp_stream_wait(stream, event));
    refuses(t, OP_EVENT_SYNCHRONIZE, bp_event_synchronize(event));
    uint64_t point;
    bool recorded;
    refuses(t, OP_EVENT_RECORD, bp_stream_record_point(stream, &point, &recorded));
}

/* Uses the whole interface while one operation fails; the address sanitizer finds leaks. */
static void use_all(tracing *t, bool of_host)
{
    bp_device *inner, *device;
    assert_ok(of_host ? bp_device_create_host(NULL, &inner) : bp_device_create_null(&inner));
    assert_ok(trace_device_create(inner, trace, t, &device));
    bp_device_destroy(&inner);
    assert_string_equal(bp_device_name(device), of_host ? "trace(host)" : "trace(null)");
    bp_error_record(BP_OK, "before");
    if (of_host)
        use_memory(t, device);
    bp_stream *stream, *other;
    bp_event *event;
    bp_status status = bp_stream_create(device, NULL, &stream);
    if (t->refused == OP_STREAM_CREATE || t->refused == OP_EVENT_CREATE) {
        refuses(t, (device_operation)t->refused, status);
        refuses(t, OP_EVENT_CREATE, t->refused == OP_EVENT_CREATE ? bp_event_create(device, &event) : BP_OK);
        assert_int_equal(usage_of(device).streams, 0);
        assert_int_equal(usage_of(device).events, 0);
    } else {
        assert_ok(status);
        assert_ok(bp_stream_create(device, NULL, &other));
        assert_ok(bp_event_create(device, &event));
        if (of_host)
            use_stream(t, device, stream, event);
        bp_stream *copy = other;
        bp_stream_destroy(&other);
        assert_ok(t->refused == OP_STREAM_WAIT ? BP_OK : bp_stream_wait_point(stream, copy, 0));
        bp_event_destroy(&event);
        bp_stream_destroy(&stream);
        assert_int_equal(usage_of(device).streams, 0);
    }
    bp_device_destroy(&device);
}

TEST(test_trace_refuses_each)
{
    size_t files = open_files();
    for (int refused = -1; refused < OP_COUNT; refused++) {
        for (int detailed = 0; detailed < 2; detailed++) {
            tracing t = {.refused = refused, .detailed = detailed != 0};
            use_all(&t, true);
            for (int i = 0; i < OP_COUNT && refused < 0; i++)
                assert_true(t.counts[i] > 0 || i == OP_STREAM_IMPORT || i >= OP_PIN); /* optional operations */
            t = (tracing){.refused = refused, .detailed = detailed != 0};
            use_all(&t, false);
        }
    }
    assert_int_equal(open_files(), files);
}

TEST(test_trace_leaves_the_detail_alone)
{
    tracing t = {.refused = OP_SYNCHRONIZE};
    bp_device *inner, *device, *outer;
    assert_ok(bp_device_create_null(&inner));
    assert_fails(trace_device_create(NULL, trace, &t, &device), BP_ERR_INVALID_ARGUMENT, "device");
    assert_fails(trace_device_create(inner, NULL, &t, &device), BP_ERR_INVALID_ARGUMENT, "function");
    assert_fails(trace_device_create(inner, trace, &t, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_ok(trace_device_create(inner, trace, &t, &device));
    assert_ok(trace_device_create(device, trace, &t, &outer));
    bp_device_destroy(&inner);
    bp_device_destroy(&device);
    assert_string_equal(bp_device_name(outer), "trace(trace(null))");
    SCOPED(bp_stream_destroy) bp_stream *stream = NULL;
    assert_ok(bp_stream_create(outer, NULL, &stream));
    bp_error_record(BP_OK, "before");
    assert_ok(bp_stream_synchronize(stream));
    assert_string_equal(bp_error_detail(), "before");
    assert_int_equal(t.counts[OP_STREAM_SYNCHRONIZE], 2);
    assert_fails(bp_device_synchronize(outer), BP_ERR_NO_DEVICE, "synchronize", "trace(trace(null))", "no device");
    bp_device_destroy(&outer);
}

TEST(test_operation_names)
{
    for (int i = 0; i < OP_COUNT; i++) {
        assert_string_not_equal(device_operation_name((device_operation)i), "invalid");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(device_operation_name((device_operation)i),
                                    device_operation_name((device_operation)k));
    }
    assert_string_equal(device_operation_name((device_operation)OP_COUNT), "invalid");
    assert_string_equal(device_operation_name(OP_STREAM_WAIT), "stream_wait");
}

TESTS(NULL, NULL)
