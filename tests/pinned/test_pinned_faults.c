/* SPDX-License-Identifier: Apache-2.0 */
/* Each operation that pinned memory needs fails in turn: the call reports it, nothing has changed or leaks, and a second try succeeds.
 * Linked with -Wl,--wrap of the functions below. */
#include "support.h"

#include "support/emulation.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

static unsigned until_failure; /* 0: none is asked for; 1: the next one fails */
static bool keeps_failing, failed, threads_fail;
static unsigned threads_started;

static bool fails(void)
{
    if (!(failed && keeps_failing) && (until_failure == 0 || --until_failure > 0))
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

#define WRAP(type, name, parameters, arguments, failure)                                                               \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        return fails() ? (failure) : __real_##name arguments;                                                          \
    }

WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)
WRAP(void *, realloc, (void *memory, size_t bytes), (memory, bytes), NULL)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o), MAP_FAILED)
WRAP(void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o),
     MAP_FAILED)

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p)
{
    if (threads_fail && threads_started >= 1)
        return EAGAIN;
    threads_started++;
    return __real_pthread_create(t, a, f, p);
}

static void inject(unsigned nth, bool keep)
{
    until_failure = nth;
    keeps_failing = keep;
    failed = false;
}

static bool stop_injecting(void)
{
    const bool was = failed;
    inject(0, false);
    return was;
}

static size_t mapped_pages(void)
{
    size_t pages = 0;
#if defined(__SANITIZE_THREAD__) && defined(__clang__) /* whose shadow memory grows with use */
    return 0;
#endif
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages;
}

/* Times differ in any case. */
static bp_pinned_statistics stable(const bp_pinned *pinned)
{
    bp_pinned_statistics s = statistics_of(pinned);
    s.touch_ns = s.pin_ns = s.huge_bytes = 0;
    return s;
}

typedef struct state_before {
    bp_pinned_statistics statistics;
    uint64_t bytes;
    size_t ranges;
} state_before;

static state_before look(const bp_pinned *pinned)
{
    return (state_before){stable(pinned), pinned_bytes(), pinned_ranges()};
}

static void assert_unchanged(const bp_pinned *pinned, const state_before *before)
{
    const state_before now = look(pinned);
    assert_memory_equal(&now.statistics, &before->statistics, offsetof(bp_pinned_statistics, numa_node));
    assert_int_equal(now.bytes, before->bytes);
    assert_int_equal(now.ranges, before->ranges);
}

TEST(create)
{
    DEVICE *device = new_device();
    for (unsigned keep = 0; keep < 2; keep++) {
        unsigned nth = 1;
        for (bool met = true; met; nth++) {
            bp_pinned *pinned = NULL;
            bp_pinned_config config = small_config(BP_PINNED_PLAIN, 0);
            inject(nth, keep == 1);
            bp_status status = bp_pinned_create(device, &config, &pinned);
            met = stop_injecting();
            if (met)
                assert_fails(status, BP_ERR_NO_HOST_MEMORY, "bytes could not be allocated");
            assert_int_equal(pinned != NULL, status == BP_OK);
            bp_pinned_destroy(&pinned);
        }
        assert_true(nth > 2);
    }
}

/* If no arena can be made, pinned memory works without, unless jemalloc was required. Without jemalloc fewer operations can fail. */
TEST(create_arena)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_pinned(device, NULL);
    const bool has_jemalloc = strcmp(statistics_of(pinned).allocator, "plain") != 0;
    bp_pinned_destroy(&pinned);
    const size_t mapped = mapped_pages();
    unsigned without = 0, refused = 0;
    for (int asked = 0; asked < 2; asked++) {
        bp_pinned_config config = small_config(asked ? BP_PINNED_JEMALLOC : BP_PINNED_AUTO, MIB);
        bool met = true;
        for (unsigned nth = 1; met; nth++) {
            inject(nth, false);
            bp_status status = bp_pinned_create(device, &config, &pinned);
            met = stop_injecting();
            refused += status == BP_ERR_UNSUPPORTED && met;
            if (status != BP_OK)
                continue;
            if (met) {
                assert_false(asked);
                assert_string_equal(statistics_of(pinned).allocator, "plain");
                assert_non_null(strstr(statistics_of(pinned).because, "cannot make an arena"));
                without++;
            }
            walk(pinned, nth, 200, MIB, NULL);
            bp_pinned_destroy(&pinned);
        }
    }
    assert_int_equal(without, has_jemalloc ? 2 : 0);
    assert_int_equal(refused, has_jemalloc ? 2 : 0);
    assert_in_range(mapped_pages(), 0, mapped + 2048);
}

/* The first small piece makes the slab; planned ones have separate pages. */
TEST(allocate)
{
    for (unsigned keep = 0; keep < 2; keep++) {
        DEVICE *device = new_device();
        const bp_pinned_config config = small_config(BP_PINNED_PLAIN, 4 * MIB);
        const uint64_t sizes[] = {100, 3 * MIB, 200 * KIB, 20 * MIB};
        PINNED *pinned = new_pinned(device, &config);
        unsigned failures = 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            bool met = true;
            for (unsigned nth = 1; met; nth++) {
                const state_before before = look(pinned);
                const size_t mapped = mapped_pages();
                void *address = NULL;
                inject(nth, keep == 1);
                bp_status status = bp_pinned_allocate(pinned, sizes[i], 0, &address);
                met = stop_injecting();
                if (!met) {
                    assert_ok(status);
                    memset(address, 3, sizes[i]);
                    continue;
                }
                if (status == BP_OK) { /* the number of huge pages is up to the system */
                    assert_ok(bp_pinned_free(pinned, address));
                    continue;
                }
                failures++;
                assert_fails(status, BP_ERR_NO_HOST_MEMORY, "could not be");
                assert_null(address);
                assert_unchanged(pinned, &before);
                assert_in_range(mapped_pages(), 0, mapped + 64);
            }
        }
        assert_true(failures >= 6);
    }
}

TEST(device_fails)
{
    DEVICE *device = new_device();
    const bp_pinned_config config = small_config(BP_PINNED_AUTO, 4 * MIB);
    bp_pinned *pinned = new_pinned(device, &config);
    void *small = NULL, *planned = NULL;
    const state_before before = look(pinned);
    const size_t mapped = mapped_pages();
    for (unsigned turn = 0; turn < 20; turn++) {
        fail_device(OP_PIN, 1, false);
        assert_fails(bp_pinned_allocate(pinned, 100, 0, &small), BP_ERR_DEVICE, "injected");
        assert_true(has_failed());
        fail_device(OP_PIN, 1, false);
        assert_fails(bp_pinned_allocate(pinned, 8 * MIB, 0, &planned), BP_ERR_DEVICE, "injected");
        assert_true(small == NULL && planned == NULL);
        assert_unchanged(pinned, &before);
    }
    if (!is_emulated())
        assert_in_range(mapped_pages(), 0, mapped + 1024);
    assert_ok(bp_pinned_allocate(pinned, 100, 0, &small));
    assert_ok(bp_pinned_allocate(pinned, 8 * MIB, 0, &planned));
    memset(planned, 9, 8 * MIB);
    const state_before both = look(pinned);
    fail_device(OP_UNPIN, 1, false);
    assert_fails(bp_pinned_free(pinned, planned), BP_ERR_DEVICE, "injected");
    assert_unchanged(pinned, &both);
    assert_int_equal(((uint8_t *)planned)[8 * MIB - 1], 9); /* still there */
    assert_ok(bp_pinned_free(pinned, small));               /* asks the device for nothing */
    assert_ok(bp_pinned_free(pinned, planned));
    assert_ok(bp_pinned_allocate(pinned, 8 * MIB, 0, &planned));
    fail_device(OP_UNPIN, 1, false);
    assert_fails(bp_pinned_free(pinned, planned), BP_ERR_DEVICE, "injected");
    bp_pinned_destroy(&pinned); /* tries again */
}

/* Memory that the device fails to unpin stays mapped: the device may still write there. */
TEST(device_keeps)
{
    DEVICE *device = new_device();
    const bp_pinned_config config = small_config(BP_PINNED_PLAIN, MIB);
    bp_pinned *pinned = new_pinned(device, &config);
    void *small, *planned, *kept[2];
    assert_ok(bp_pinned_allocate(pinned, 100, 0, &small));
    assert_ok(bp_pinned_allocate(pinned, MIB, 0, &planned));
    kept[0] = (void *)((uintptr_t)small / 4096 * 4096);
    kept[1] = planned;
    fail_device(OP_UNPIN, 1, true);
    bp_pinned_destroy(&pinned);
    fail_device(OP_UNPIN, 0, false);
    memset(small, 1, 100);
    memset(planned, 2, MIB);
    assert_int_equal(pinned_ranges(), 2);
    for (size_t i = 0; i < 2; i++) { /* as the device's driver would at exit */
        assert_ok(bp_device_unpin(device, kept[i], MIB));
        assert_int_equal(munmap(kept[i], MIB), 0);
    }
}

/* Fewer threads touch it then. */
TEST(no_threads)
{
    DEVICE *device = new_device();
    bp_pinned_config config = small_config(BP_PINNED_PLAIN, 0);
    for (unsigned allowed = 0; allowed < 2; allowed++) {
        config.touch_threads = 4;
        bp_pinned *pinned = new_pinned(device, &config);
        void *piece;
        threads_started = 1 - allowed;
        threads_fail = true;
        assert_ok(bp_pinned_allocate(pinned, 33 * MIB, 0, &piece));
        threads_fail = false;
        assert_int_equal(threads_started, 1);
        for (uint64_t at = 0; at < 33 * MIB; at += 1000)
            assert_int_equal(((uint8_t *)piece)[at], 0);
        threads_started = 0;
        assert_ok(bp_pinned_allocate(pinned, 33 * MIB, 0, &piece));
        assert_int_equal(threads_started, 3); /* and the caller */
        bp_pinned_destroy(&pinned);
    }
}
