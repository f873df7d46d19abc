#include "support.h"
#include "devices/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RANGES 4096

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
    range ranges[MOST_RANGES];
    size_t count;
    bool misused;
    bp_device *host, *pinning;
    bp_device_ops ops;
    device_operation operation;
    unsigned nth;
    bool keep, failed;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void misuse(const char *what, const void *address, uint64_t bytes)
{
    fprintf(stderr, "%s: %p, %llu bytes\n", what, address, (unsigned long long)bytes);
    world.misused = true;
}

static bp_status pin(void *self, void *address, uint64_t bytes)
{
    (void)self;
    const uintptr_t from = (uintptr_t)address, to = from + bytes, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&world.lock);
    if (from % page != 0 || bytes % page != 0 || bytes == 0)
        misuse("pinned, but not whole pages", address, bytes);
    for (size_t i = 0; i < world.count; i++)
        if (from < world.ranges[i].to && world.ranges[i].from < to)
            misuse("pinned twice", address, bytes);
    if (world.count < MOST_RANGES)
        world.ranges[world.count++] = (range){from, to};
    pthread_mutex_unlock(&world.lock);
    return BP_OK;
}

static bp_status unpin(void *self, void *address, uint64_t bytes)
{
    (void)self;
    const uintptr_t from = (uintptr_t)address, to = from + bytes;
    size_t i = 0;
    pthread_mutex_lock(&world.lock);
    while (i < world.count && (world.ranges[i].from != from || world.ranges[i].to != to))
        i++;
    if (i == world.count)
        misuse("unpinned, but never pinned as one", address, bytes);
    else
        world.ranges[i] = world.ranges[--world.count];
    pthread_mutex_unlock(&world.lock);
    return BP_OK;
}

static void keep_host(void *self)
{
    (void)self;
}

static bp_status maybe_fail(void *user, const device_call *call)
{
    (void)user;
    pthread_mutex_lock(&world.lock);
    const bool fails =
        call->operation == world.operation && ((world.failed && world.keep) || (world.nth > 0 && --world.nth == 0));
    world.failed = world.failed || fails;
    pthread_mutex_unlock(&world.lock);
    return fails ? bp_error_record(BP_ERR_DEVICE, "injected") : BP_OK;
}

bp_device *new_device(void)
{
    bp_device *device;
    void *self;
    assert_int_equal(world.count, 0);
    assert_ok(bp_device_create_host(NULL, &world.host));
    world.ops = *bp_device_table(world.host, &self);
    world.ops.pin = pin;
    world.ops.unpin = unpin;
    world.ops.destroy = keep_host;
    assert_ok(bp_device_create(&world.ops, self, &world.pinning));
    assert_ok(trace_device_create(world.pinning, maybe_fail, NULL, &device));
    fail_device(OP_PIN, 0, false);
    return device;
}

void end_device(bp_device **device)
{
    bp_device_destroy(device);
    bp_device_destroy(&world.pinning);
    bp_device_destroy(&world.host);
    assert_int_equal(world.count, 0);
    assert_false(world.misused);
}

void fail_device(device_operation operation, unsigned nth, bool keep)
{
    world.operation = operation;
    world.nth = nth;
    world.keep = keep;
    world.failed = false;
}

bool has_failed(void)
{
    return world.failed;
}

bool is_pinned(const void *address, uint64_t bytes)
{
    bool inside = false;
    pthread_mutex_lock(&world.lock);
    for (size_t i = 0; i < world.count; i++)
        inside =
            inside || ((uintptr_t)address >= world.ranges[i].from && (uintptr_t)address + bytes <= world.ranges[i].to);
    pthread_mutex_unlock(&world.lock);
    return inside;
}

uint64_t pinned_bytes(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < world.count; i++)
        bytes += world.ranges[i].to - world.ranges[i].from;
    return bytes;
}

size_t pinned_ranges(void)
{
    return world.count;
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

#define MOST_PIECES 300

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
static uint64_t random_bytes(uint64_t *state, uint64_t most)
{
    uint64_t magnitude = 1;
    for (uint64_t turns = next_random(state) % 32; turns > 0 && magnitude < most; turns--)
        magnitude *= 2;
    const uint64_t bytes = 1 + next_random(state) % magnitude;
    return bytes < most ? bytes : most;
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

static bool add(bp_pinned *pinned, piece *pieces, size_t count, uint64_t *state, uint64_t most_bytes)
{
    const uint64_t alignment = next_random(state) % 4 == 0 ? (uint64_t)1 << next_random(state) % 22 : 0;
    piece p = {.bytes = random_bytes(state, most_bytes), .mark = (uint8_t)next_random(state)};
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

void walk(bp_pinned *pinned, uint64_t seed, unsigned steps, uint64_t most_bytes, unsigned *refused)
{
    piece pieces[MOST_PIECES];
    size_t count = 0;
    uint64_t state = seed * 77 + 1;
    for (unsigned step = 0; step < steps; step++) {
        /* in turns more come and more go, so that it fills and empties */
        const bool grows = next_random(&state) % 8 < (step / 100 % 2 == 0 ? 6 : 2);
        if (grows && count < MOST_PIECES) {
            if (add(pinned, pieces, count, &state, most_bytes))
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
