/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"
#include "devices/device.h"

#include <pthread.h>
#include <unistd.h>

#define MAX_RANGES 4096

void assert_status(bp_status status, bp_status expected, const char *word, const char *call, const char *file, int line)
{
    if (status == expected && (status == BP_OK || strstr(bp_error_detail(), word) != NULL))
        return;
    print_error("%s is %s (%s), expected %s with \"%s\"\n", call, bp_status_name(status),
                status != BP_OK ? bp_error_detail() : "", bp_status_name(expected), word);
    _fail(file, line);
}

/* ---- the device --------------------------------------------------------------------------------------------------- */

typedef struct range {
    uintptr_t from, to;
} range;

static struct {
    pthread_mutex_t lock;
    range ranges[MAX_RANGES];
    size_t count;
    bool misused;
    bp_device *host, *pinning;
    bp_device_ops ops;
    device_operation operation;
    unsigned nth;
    bool keep, failed;
} tracker = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void misuse(const char *what, const void *address, uint64_t bytes)
{
    fprintf(stderr, "%s: %p, %llu bytes\n", what, address, (unsigned long long)bytes);
    tracker.misused = true;
}

static bp_status pin(void *self, void *address, uint64_t bytes)
{
    const uintptr_t from = (uintptr_t)address, to = from + bytes, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&tracker.lock);
    if (from % page != 0 || bytes % page != 0 || bytes == 0)
        misuse("pinned, but not whole pages", address, bytes);
    for (size_t i = 0; i < tracker.count; i++)
        if (from < tracker.ranges[i].to && tracker.ranges[i].from < to)
            misuse("pinned twice", address, bytes);
    if (tracker.count < MAX_RANGES)
        tracker.ranges[tracker.count++] = (range){from, to};
    pthread_mutex_unlock(&tracker.lock);
    return BP_OK;
}

static bp_status unpin(void *self, void *address, uint64_t bytes)
{
    const uintptr_t from = (uintptr_t)address, to = from + bytes;
    size_t i = 0;
    pthread_mutex_lock(&tracker.lock);
    while (i < tracker.count && (tracker.ranges[i].from != from || tracker.ranges[i].to != to))
        i++;
    if (i == tracker.count)
        misuse("unpinned, but never pinned as one", address, bytes);
    else
        tracker.ranges[i] = tracker.ranges[--tracker.count];
    pthread_mutex_unlock(&tracker.lock);
    return BP_OK;
}

static void keep_host(void *self)
{
}

static bp_status maybe_fail(void *user, const device_call *call)
{
    pthread_mutex_lock(&tracker.lock);
    const bool fails = call->operation == tracker.operation &&
                       ((tracker.failed && tracker.keep) || (tracker.nth > 0 && --tracker.nth == 0));
    tracker.failed = tracker.failed || fails;
    pthread_mutex_unlock(&tracker.lock);
    return fails ? bp_error_record(BP_ERR_DEVICE, "injected") : BP_OK;
}

bp_device *new_device(void)
{
    bp_device *device;
    void *self;
    assert_int_equal(tracker.count, 0);
    assert_ok(bp_device_create_host(NULL, &tracker.host));
    tracker.ops = *bp_device_table(tracker.host, &self);
    tracker.ops.pin = pin;
    tracker.ops.unpin = unpin;
    tracker.ops.destroy = keep_host;
    assert_ok(bp_device_create(&tracker.ops, self, &tracker.pinning));
    assert_ok(trace_device_create(tracker.pinning, maybe_fail, NULL, &device));
    fail_device(OP_PIN, 0, false);
    return device;
}

void end_device(bp_device **device)
{
    bp_device_destroy(device);
    bp_device_destroy(&tracker.pinning);
    bp_device_destroy(&tracker.host);
    assert_int_equal(tracker.count, 0);
    assert_false(tracker.misused);
}

void fail_device(device_operation operation, unsigned nth, bool keep)
{
    tracker.operation = operation;
    tracker.nth = nth;
    tracker.keep = keep;
    tracker.failed = false;
}

bool has_failed(void)
{
    return tracker.failed;
}

bool is_pinned(const void *address, uint64_t bytes)
{
    bool inside = false;
    pthread_mutex_lock(&tracker.lock);
    for (size_t i = 0; i < tracker.count; i++)
        inside = inside ||
                 ((uintptr_t)address >= tracker.ranges[i].from && (uintptr_t)address + bytes <= tracker.ranges[i].to);
    pthread_mutex_unlock(&tracker.lock);
    return inside;
}

uint64_t pinned_bytes(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < tracker.count; i++)
        bytes += tracker.ranges[i].to - tracker.ranges[i].from;
    return bytes;
}

size_t pinned_ranges(void)
{
    return tracker.count;
}

/* ---- pinned memory ------------------------------------------------------------------------------------------------- */

bp_pinned *new_pinned(bp_device *device, const bp_pinned_config *config)
{
    bp_pinned *pinned = NULL;
    assert_ok(bp_pinned_create(device, config, &pinned));
    return pinned;
}

bp_pinned_config small_config(bp_pinned_allocator allocator, uint64_t slab_bytes)
{
    bp_pinned_config config;
    assert_ok(bp_pinned_config_init(&config, sizeof config));
    config.allocator = allocator;
    config.slab_bytes = slab_bytes;
    return config;
}

bp_pinned_statistics statistics_of(const bp_pinned *pinned)
{
    bp_pinned_statistics s = {.size = sizeof s};
    assert_ok(bp_pinned_statistics_get(pinned, &s));
    return s;
}

/* ---- the walk ------------------------------------------------------------------------------------------------------ */

#define MAX_PIECES 300

typedef struct piece {
    uint8_t *address;
    uint64_t bytes;
    uint8_t mark;
} piece;

uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t mixed = *state ^ (*state >> 33);
    return (mixed * 0xff51afd7ed558ccdu) >> 16;
}

/* Sizes of all magnitudes. */
static uint64_t random_bytes(uint64_t *state, uint64_t max)
{
    uint64_t magnitude = 1;
    for (uint64_t turns = next_random(state) % 32; turns > 0 && magnitude < max; turns--)
        magnitude *= 2;
    const uint64_t bytes = 1 + next_random(state) % magnitude;
    return bytes < max ? bytes : max;
}

/* Both ends, and something of every page. */
static void mark(const piece *p)
{
    for (uint64_t at = 0; at < p->bytes; at += 509)
        p->address[at] = p->mark;
    p->address[p->bytes - 1] = p->mark;
}

static void check_mark(const piece *p)
{
    for (uint64_t at = 0; at < p->bytes; at += 509)
        assert_int_equal(p->address[at], p->mark);
    assert_int_equal(p->address[p->bytes - 1], p->mark);
}

static void check_place(const piece *pieces, size_t count, const piece *added, uint64_t alignment)
{
    assert_int_equal((uintptr_t)added->address % alignment, 0);
    assert_true(is_pinned(added->address, added->bytes));
    for (size_t i = 0; i < count; i++)
        assert_true(added->address + added->bytes <= pieces[i].address ||
                    pieces[i].address + pieces[i].bytes <= added->address);
}

static bool add(bp_pinned *pinned, piece *pieces, size_t count, uint64_t *state, uint64_t max_bytes)
{
    const uint64_t alignment = next_random(state) % 4 == 0 ? (uint64_t)1 << next_random(state) % 22 : 0;
    piece p = {.bytes = random_bytes(state, max_bytes), .mark = (uint8_t)next_random(state)};
    void *const untouched = &p;
    void *address = untouched;
    bp_status status = bp_pinned_allocate(pinned, p.bytes, alignment, &address);
    if (status == BP_ERR_NO_HOST_MEMORY) {
        assert_ptr_equal(address, untouched);
        return false;
    }
    assert_ok(status);
    p.address = address;
    check_place(pieces, count, &p, alignment > 0 ? alignment : 64);
    mark(&p);
    pieces[count] = p;
    return true;
}

static void drop(bp_pinned *pinned, piece *pieces, size_t *count, size_t which)
{
    check_mark(&pieces[which]);
    assert_ok(bp_pinned_free(pinned, pieces[which].address));
    pieces[which] = pieces[--*count];
}

void walk(bp_pinned *pinned, uint64_t seed, unsigned steps, uint64_t max_bytes, unsigned *refused)
{
    piece pieces[MAX_PIECES];
    size_t count = 0;
    uint64_t state = seed * 77 + 1;
    for (unsigned step = 0; step < steps; step++) {
        /* in turns more come and more go, so that it fills and empties */
        const bool grows = next_random(&state) % 8 < (step / 100 % 2 == 0 ? 6 : 2);
        if (grows && count < MAX_PIECES) {
            if (add(pinned, pieces, count, &state, max_bytes))
                count++;
            else if (refused != NULL)
                ++*refused;
        } else if (count > 0) {
            drop(pinned, pieces, &count, next_random(&state) % count);
        }
    }
    while (count > 0)
        drop(pinned, pieces, &count, next_random(&state) % count);
}
