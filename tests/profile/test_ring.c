/* SPDX-License-Identifier: Apache-2.0 */
/* A ring that wraps while a thread writes an event. The test reads the clock in the middle of the write
 * (-Wl,--wrap=clock_gettime), so the wrap needs no luck; signals interrupt any other place. */
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "allocators/observers.h"
#include "allocators/recorder.h"
#include "support/pools.h"

#define EIGHT "300 300 300 300 300 300 300 300"
#define RING 16u

static const kit *sleeper; /* its pool is used during the next reading of the clock */
static unsigned pairs_meanwhile;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    const kit *k = sleeper;
    int result = __real_clock_gettime(clock, time);
    sleeper = NULL;
    for (unsigned i = 0; k != NULL && i < pairs_meanwhile; i++) {
        take(k, param(k, 1), k->streams[1]);
        drop(k, param(k, 1), k->streams[1]);
    }
    return result;
}

static kit open_ring(size_t entries)
{
    kit k = start_kit(new_null(), EIGHT, TRAINING, BP_POLICY_MAX, 9);
    assert_ok(bp_pool_trace_start(k.pool, entries, 1));
    return k;
}

static bp_pool_event event_at(const kit *k, size_t index)
{
    bp_pool_event event = {.size = sizeof event};
    assert_ok(bp_pool_trace_get(k->pool, index, &event));
    return event;
}

/* A thread that is delayed after reading the clock gets a place after later events, with an earlier time. */
TEST(slept_through_a_lap)
{
    KIT k = open_ring(RING);
    sleeper = &k;
    pairs_meanwhile = RING;
    take(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(bp_pool_trace_count(k.pool), RING);
    for (size_t i = 0; i + 1 < RING; i++) {
        assert_int_equal(event_at(&k, i).id, param(&k, 1));
        assert_int_equal(event_at(&k, i).kind, i % 2 == 0 ? BP_EVENT_RELEASE : BP_EVENT_ACQUIRE);
        assert_true(event_at(&k, i).time_ns >= event_at(&k, RING - 1).time_ns);
    }
    assert_int_equal(event_at(&k, RING - 1).id, param(&k, 0));
    drop(&k, param(&k, 0), k.streams[0]);
}

/* ---- stopped between any two instructions ---------------------------------------------------------------------------- */

#define TINY 2u
#define SIGNALS 6000u
#define MAX_EVENTS 100000000u

static const kit *interrupted;
static volatile sig_atomic_t signals;

/* Wraps the ring. Recording is async-signal-safe: atomics and a read of the clock. */
static void lap(int signal)
{
    const kit *k = interrupted;
    signals++;
    for (unsigned i = 0; i <= TINY; i++)
        bp_recorder_observer.note(k->pool, BP_EVENT_USE, param(k, 1), k->streams[1]);
}

/* Every event is consistent: its fields belong together. */
static void assert_whole(const kit *k, const uint8_t *const *addresses)
{
    assert_true(bp_pool_trace_count(k->pool) <= TINY);
    for (size_t i = 0; i < bp_pool_trace_count(k->pool); i++) {
        bp_pool_event event = event_at(k, i);
        unsigned unit = event.id == param(k, 1);
        assert_int_equal(event.id, param(k, unit));
        assert_int_equal(event.stream, k->streams[unit]->number);
        assert_ptr_equal(event.address, addresses[unit]);
    }
}

TEST(interrupted_anywhere)
{
    KIT k = open_ring(TINY);
    const uint8_t *addresses[] = {take(&k, param(&k, 0), k.streams[0]), take(&k, param(&k, 1), k.streams[1])};
    const struct itimerval often = {{0, 30}, {0, 30}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = lap}, before;
    interrupted = &k;
    signals = 0;
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    for (unsigned i = 0; signals < (int)SIGNALS && i < MAX_EVENTS; i++) {
        int seen = signals;
        bp_recorder_observer.note(k.pool, BP_EVENT_USE, param(&k, 0), k.streams[0]);
        if (signals == seen)
            continue;
        assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
        assert_whole(&k, addresses);
        assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    }
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_true(signals > 0);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[1]);
    assert_int_equal(bp_pool_trace_count(k.pool), TINY); /* recording continues */
    assert_int_equal(event_at(&k, 0).kind, BP_EVENT_RELEASE);
}
