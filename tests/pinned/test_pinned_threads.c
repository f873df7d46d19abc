/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads at once, with private pieces and pieces that another thread frees. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define TURNS 150

typedef struct worker {
    bp_pinned *pinned;
    _Atomic(uint8_t *) *exchange; /* of all */
    unsigned number;
    unsigned failures;
} worker;

static uint64_t bytes_of(uint64_t random)
{
    return random % 10 == 0 ? MIB + random % MIB : 1 + random % (60 * KIB);
}

/* Exchanges the piece in the slot for a new one, and frees the old one. */
static void *work(void *argument)
{
    worker *w = argument;
    uint64_t state = w->number + 100;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        void *made = NULL;
        if (bp_pinned_allocate(w->pinned, bytes_of(next_random(&state)), 0, &made) == BP_OK)
            memset(made, (int)w->number, 64);
        uint8_t *found = atomic_exchange(&w->exchange[next_random(&state) % THREADS], made);
        bp_pinned_statistics s = {.size = sizeof s};
        if (found != NULL && memcmp(found, found + 1, 63) != 0) /* another thread has written into it */
            w->failures++;
        if (bp_pinned_free(w->pinned, found) != BP_OK || bp_pinned_statistics_get(w->pinned, &s) != BP_OK)
            w->failures++;
        if (bp_pinned_free(w->pinned, &state) != BP_ERR_INVALID_ARGUMENT)
            w->failures++;
    }
    return NULL;
}

static void run(bp_pinned_allocator allocator)
{
    DEVICE *device = new_device();
    const bp_pinned_config config = small_config(allocator, 4 * MIB);
    PINNED *pinned = new_pinned(device, &config);
    _Atomic(uint8_t *) exchange[THREADS] = {NULL};
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){pinned, exchange, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_ok(bp_pinned_free(pinned, atomic_load(&exchange[i])));
    const bp_pinned_statistics s = statistics_of(pinned);
    assert_int_equal(s.small_pieces + s.planned_pieces, 0);
    assert_int_equal(s.pinned_bytes, 4 * MIB);
}

TEST(threads_plain)
{
    run(BP_PINNED_PLAIN);
}

TEST(threads_automatic)
{
    run(BP_PINNED_AUTO);
}
