/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads on one pool: concurrent calls on different requests are not a race, on the same request they are reported. Run under
 * ThreadSanitizer as well. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocators/pool.h"
#include "overlaps.h"

#define THREADS 4
#define PER_THREAD 3 /* requests */
#define CELL 256u    /* every buffer is of whole cells */

/* Holder of each cell of the slab: 0, or a thread's number. */
typedef struct cells {
    char *base;
    atomic_int owner[256];
    atomic_ullong live, max; /* bytes between an acquire's return and the release's call, and their maximum */
} cells;

typedef struct worker {
    kit *k;
    cells *cells;
    bp_stream *stream;
    uint32_t ids[PER_THREAD];
    uint64_t bytes[PER_THREAD];
    int number;
    unsigned rounds;
    uint64_t random;
    bool memory;
    check *checks;
    size_t checks_used;
    unsigned wrong, got, refused;
} worker;

static uint32_t worker_random(worker *w, uint32_t limit)
{
    w->random = w->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % limit;
}

/* Changes every cell of the buffers from `from` to `to`. */
static void change_owner(worker *w, void **addresses, const uint64_t *bytes, size_t count, int from, int to)
{
    for (size_t i = 0; i < count; i++) {
        size_t first = (size_t)((char *)addresses[i] - w->cells->base) / CELL;
        for (size_t cell = first; cell < first + (bytes[i] + CELL - 1) / CELL; cell++)
            w->wrong += cell >= 256 || atomic_exchange(&w->cells->owner[cell], to) != from;
    }
}

/* Counts bytes that are certainly live. */
static void count_live(cells *all, const uint64_t *bytes, size_t count, bool acquired)
{
    unsigned long long sum = 0, max = atomic_load(&all->max);
    for (size_t i = 0; i < count; i++)
        sum += aligned(bytes[i]);
    unsigned long long live = acquired ? atomic_fetch_add(&all->live, sum) + sum : atomic_fetch_sub(&all->live, sum);
    while (acquired && live > max && !atomic_compare_exchange_weak(&all->max, &max, live)) {
    }
}

static void write_and_check(worker *w, void **addresses, const uint64_t *bytes, size_t count)
{
    for (size_t i = 0; i < count && w->memory; i++) {
        check *c = &w->checks[w->checks_used++];
        *c = (check){.address = addresses[i], .bytes = bytes[i], .value = (uint8_t)(1 + worker_random(w, 255))};
        w->wrong += bp_stream_fill(w->stream, addresses[i], c->value, bytes[i]) != BP_OK;
        check_on(w->stream, c);
    }
}

static void *work(void *argument)
{
    worker *w = argument;
    kit *k = w->k;
    for (unsigned round = 0; round < w->rounds || (w->got == 0 && round < 1000 * w->rounds); round++) {
        void *addresses[PER_THREAD];
        size_t first = worker_random(w, PER_THREAD), count = 1 + worker_random(w, PER_THREAD - (uint32_t)first);
        const uint32_t *ids = w->ids + first;
        int got = 0, can;
        if (worker_random(w, 4) == 0) {
            bp_status status = bp_pool_acquire(k->pool, ids, count, w->stream, addresses);
            got = status == BP_OK;
            w->refused += status == BP_ERR_SCHEDULE;
            w->wrong += status != BP_OK && status != BP_ERR_SCHEDULE;
        } else
            w->wrong += bp_pool_try_acquire(k->pool, ids, count, w->stream, addresses, &got) != BP_OK;
        w->wrong += bp_pool_can_acquire(k->pool, ids, 1, NULL, 0, &can) != BP_OK;
        w->wrong += got && can != 1;
        if (!got) {
            sched_yield();
            continue;
        }
        w->got++;
        count_live(w->cells, w->bytes + first, count, true);
        change_owner(w, addresses, w->bytes + first, count, 0, w->number);
        write_and_check(w, addresses, w->bytes + first, count);
        bool used = worker_random(w, 2) == 0, twice = worker_random(w, 4) == 0;
        if (used)
            w->wrong += bp_pool_use(k->pool, ids, count, w->stream) != BP_OK;
        if (twice) {
            void *again = NULL;
            w->wrong += bp_pool_acquire(k->pool, ids, 1, w->stream, &again) != BP_OK || again != addresses[0];
            w->wrong += bp_pool_release(k->pool, ids, 1, w->stream) != BP_OK;
        }
        if (worker_random(w, 8) == 0)
            sched_yield();
        change_owner(w, addresses, w->bytes + first, count, w->number,
                     0); /* before the release: after it others may be there */
        count_live(w->cells, w->bytes + first, count, false);
        if (!used && !twice && worker_random(w, 4) == 0)
            w->wrong += bp_pool_cancel(k->pool, ids, count) != BP_OK;
        else
            w->wrong += bp_pool_release(k->pool, ids, count, w->stream) != BP_OK;
    }
    return NULL;
}

/* Request i belongs to thread i mod 4. Live bytes never exceed `max_bytes`. */
static void contend(kit *k, const uint64_t *bytes, uint64_t max_bytes, unsigned rounds, bool memory)
{
    cells *all = calloc(1, sizeof *all);
    worker workers[THREADS];
    pthread_t threads[THREADS];
    const bp_pool_slab slab = bp_pool_get_info(k->pool)->slabs[0];
    all->base = slab.address;
    assert_ok(bp_pool_trace_start(k->pool, 1024, 1));
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.k = k, .cells = all, .stream = k->streams[t], .number = t + 1, .rounds = rounds};
        workers[t].random = (uint64_t)t * 977 + 3;
        workers[t].memory = memory;
        workers[t].checks = calloc((size_t)rounds * PER_THREAD, sizeof(check));
        for (uint32_t i = 0; i < PER_THREAD; i++) {
            workers[t].ids[i] = (uint32_t)t + THREADS * i;
            workers[t].bytes[i] = bytes[workers[t].ids[i]];
        }
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    uint64_t seen = 0;
    for (int i = 0; i < 50; i++) { /* observing thread */
        bp_pool_statistics s = statistics_of(k->pool);
        assert_true(s.acquires >= seen);
        seen = s.acquires;
        char text[1000];
        size_t needed;
        assert_ok(bp_pool_dump(k->pool, text, sizeof text, &needed));
        bp_pool_set_step(k->pool, (uint64_t)i);
    }
    unsigned wrong = 0;
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(threads[t], NULL), 0);
        wrong += workers[t].wrong;
        assert_true(workers[t].got > 0);
    }
    assert_ok(bp_device_synchronize(k->device));
    for (int t = 0; t < THREADS; t++) {
        for (size_t i = 0; i < workers[t].checks_used; i++)
            wrong += (unsigned)workers[t].checks[i].wrong;
        free(workers[t].checks);
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(live_count(k->pool), 0);
    bp_pool_statistics s = statistics_of(k->pool);
    assert_int_equal(s.acquires, s.releases + s.cancelled);
    assert_int_equal(s.live_bytes, 0);
    assert_in_range(s.peak_live_bytes, atomic_load(&all->max), max_bytes);
    for (size_t i = 0; i < bp_pool_trace_count(k->pool); i++) {
        bp_pool_event event = {.size = sizeof event};
        assert_ok(bp_pool_trace_get(k->pool, i, &event));
        assert_in_range(event.kind, BP_EVENT_ACQUIRE, BP_EVENT_CANCEL);
        assert_in_range(event.id, 0, THREADS * PER_THREAD - 1);
        assert_true(event.time_ns > 0);
    }
    for (uint32_t i = 0; i < THREADS * PER_THREAD; i++) { /* every buffer can be acquired again */
        take(k, i, k->streams[0]);
        drop(k, i, k->streams[0]);
    }
    free(all);
    end_kit(k);
}

/* Twelve units of one size on `copies` buffers. */
static void share_buffers(bp_device *device, bp_strict strict, uint32_t copies, unsigned rounds, bool memory)
{
    kit k = begin_kit(device, "300 300 300 300 300 300 300 300 300 300 300 300", PARAM_ONLY, BP_POLICY_MAX, copies);
    bp_pool_config config = pool_config();
    config.strict = strict;
    open_pool(&k, &config);
    uint64_t bytes[12];
    for (size_t i = 0; i < 12; i++)
        bytes[i] = 600;
    contend(&k, bytes, copies * aligned(600), rounds, memory);
}

TEST(contention)
{
    share_buffers(new_null(), BP_STRICT_OFF, 4, 10000, false);
    share_buffers(new_null(), BP_STRICT_OFF, 3, 5000, false);
    share_buffers(new_null(), BP_STRICT_ERROR, 2, 5000, false);
    share_buffers(new_null(), BP_STRICT_WARN, 4, 5000, false);
    share_buffers(new_device(), BP_STRICT_OFF, 4, 1500, true);
    share_buffers(new_device(), BP_STRICT_ERROR, 3, 1500, true);
}

/* Partially overlapping buffers: two conflicting requests are never both held. */
TEST(contention_for_overlaps)
{
    seed(21);
    for (int round = 0; round < 6; round++) {
        place places[MAX_PLACES];
        uint64_t bytes[MAX_PLACES];
        while (random_places(places) < THREADS * PER_THREAD)
            ;
        for (size_t i = 0; i < THREADS * PER_THREAD; i++)
            bytes[i] = places[i].bytes;
        bool memory = round % 3 == 2;
        kit k = open_places(memory ? new_slow_device(5, 1) : new_null(), places, THREADS * PER_THREAD, NULL);
        contend(&k, bytes, bp_plan_get_info(k.plan)->bytes, memory ? 300 : 5000, memory);
    }
}

/* ---- counts of all threads ----------------------------------------------------------------------------------------- */

#define MANY 12 /* threads: more than there are lanes */

static void run_threads(void *(*function)(void *), void *users, size_t user_bytes, int count)
{
    pthread_t threads[MANY];
    for (int t = 0; t < count; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, function, (char *)users + (size_t)t * user_bytes), 0);
    for (int t = 0; t < count; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
}

/* A pool of twelve requests without common bytes. */
static kit open_apart(void)
{
    place places[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        places[i] = (place){i * aligned(600), 600};
    return open_places(new_null(), places, MANY, NULL);
}

typedef struct holder {
    kit *k;
    pthread_barrier_t *barrier;
    uint32_t number, count;
    unsigned wrong;
} holder;

/* All threads hold a request at once; each then releases its neighbour's. */
static void *hold(void *argument)
{
    holder *h = argument;
    const uint32_t own = h->number, other = (h->number + 1) % h->count;
    for (int round = 0; round < 200; round++) {
        h->wrong += bp_pool_acquire(h->k->pool, &own, 1, h->k->streams[own % 4], NULL) != BP_OK;
        pthread_barrier_wait(h->barrier);
        h->wrong += bp_pool_release(h->k->pool, &other, 1, h->k->streams[own % 4]) != BP_OK;
        pthread_barrier_wait(h->barrier);
    }
    return NULL;
}

/* The high-water mark is exact: released bytes serve other threads' acquires before it rises. */
TEST(peak)
{
    _Static_assert(MANY > BP_LANES, "some threads share a lane");
    KIT k = open_apart();
    static const uint32_t counts[] = {1, 3, 2, 9, MANY, 5};
    uint64_t max = 0, acquires = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        holder holders[MANY];
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, counts[i]);
        for (uint32_t t = 0; t < counts[i]; t++)
            holders[t] = (holder){&k, &barrier, t, counts[i], 0};
        run_threads(hold, holders, sizeof *holders, (int)counts[i]);
        pthread_barrier_destroy(&barrier);
        for (uint32_t t = 0; t < counts[i]; t++)
            assert_int_equal(holders[t].wrong, 0);
        max = counts[i] > max ? counts[i] : max;
        acquires += 200 * counts[i];
        bp_pool_statistics s = statistics_of(k.pool);
        uint64_t hash, counted;
        assert_int_equal(s.peak_live_bytes, max * aligned(600));
        assert_int_equal(s.live_bytes, 0);
        assert_int_equal(s.acquires, acquires);
        assert_ok(bp_pool_sequence(k.pool, &hash, &counted));
        assert_int_equal(counted, acquires);
    }
}

typedef struct passer {
    kit *k;
    pthread_barrier_t *barrier;
    int number;
    bool in_turns, reversed;
    unsigned wrong;
} passer;

/* Passes six requests of the thread, at once with the other thread or after it. */
static void *pass_requests(void *argument)
{
    passer *p = argument;
    pthread_barrier_wait(p->barrier);
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < 600 && turn == (p->in_turns ? p->number : 0); i++) {
            const uint32_t id = (uint32_t)p->number * 6 + (p->reversed ? 5 - i % 6 : i % 6);
            p->wrong += bp_pool_acquire(p->k->pool, &id, 1, p->k->streams[p->number], NULL) != BP_OK;
            p->wrong += bp_pool_release(p->k->pool, &id, 1, p->k->streams[p->number]) != BP_OK;
        }
        pthread_barrier_wait(p->barrier);
    }
    return NULL;
}

/* The hash has the order of each thread's acquires, not how the threads interleave. */
TEST(sequence_of_threads)
{
    uint64_t hashes[3];
    for (int way = 0; way < 3; way++) {
        KIT k = open_apart();
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, 2);
        passer passers[2];
        for (int t = 0; t < 2; t++)
            passers[t] = (passer){&k, &barrier, t, way == 1, way == 2 && t == 1, 0};
        run_threads(pass_requests, passers, sizeof *passers, 2);
        pthread_barrier_destroy(&barrier);
        uint64_t acquires;
        assert_int_equal(passers[0].wrong + passers[1].wrong, 0);
        assert_ok(bp_pool_sequence(k.pool, &hashes[way], &acquires));
        assert_int_equal(acquires, 1200);
    }
    assert_true(hashes[0] == hashes[1]);
    assert_true(hashes[0] != hashes[2]);
}

/* ---- one request --------------------------------------------------------------------------------------------------- */

typedef struct sharer {
    kit *k;
    uint32_t id;
    bp_stream *stream;
    uint64_t acquired, released;
    unsigned wrong;
} sharer;

static void *share(void *argument)
{
    sharer *s = argument;
    for (int i = 0; i < 20000; i++) {
        bp_status status = bp_pool_acquire(s->k->pool, &s->id, 1, s->stream, NULL);
        s->acquired += status == BP_OK;
        s->wrong += status != BP_OK && status != BP_ERR_SCHEDULE;
        if (status != BP_OK)
            continue;
        do
            status = bp_pool_release(s->k->pool, &s->id, 1, s->stream);
        while (status == BP_ERR_SCHEDULE);
        s->released += status == BP_OK;
        s->wrong += status != BP_OK;
    }
    return NULL;
}

/* Two concurrent calls on one request are a mistake and may be refused; the bookkeeping stays correct. */
TEST(one_request)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        if (!ALLOCATORS[a].pooled)
            continue;
        KIT k = open_kit(&ALLOCATORS[a], light_device());
        sharer sharers[2] = {{.k = &k, .id = param(&k, 0), .stream = k.streams[0]},
                             {.k = &k, .id = param(&k, 0), .stream = k.streams[1]}};
        pthread_t threads[2];
        for (int t = 0; t < 2; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, share, &sharers[t]), 0);
        for (int t = 0; t < 2; t++)
            assert_int_equal(pthread_join(threads[t], NULL), 0);
        assert_int_equal(sharers[0].wrong + sharers[1].wrong, 0);
        assert_int_equal(live_count(k.pool), 0);
        bp_pool_statistics s = statistics_of(k.pool);
        assert_int_equal(s.acquires, sharers[0].acquired + sharers[1].acquired);
        assert_int_equal(s.releases, sharers[0].released + sharers[1].released);
        assert_int_equal(s.acquires, s.releases);
        walk(&k, 1, NULL, false);
    }
}

/* A call that meets another call on its request says so, also if this thread's earlier call used the same request. */
TEST(busy_request)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        KIT k = open_kit(&ALLOCATORS[a], light_device());
        const uint32_t id = param(&k, 0), twice[] = {param(&k, 1), id, id};
        bp_word *word = k.pool->entries[id].word;
        for (int round = 0; round < 2; round++) {
            bool busy = round == 1;
            if (busy) /* the state between the first and second step of another thread's call */
                atomic_store(word, (uint64_t)id + 1 + BP_WORD_BUSY);
            bp_status status = bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL);
            assert_int_equal(status, busy ? BP_ERR_SCHEDULE : BP_OK);
            assert_true(!busy || strstr(bp_error_detail(), "by another call at the same time") != NULL);
            if (busy)
                atomic_store(word, (uint64_t)id + 1 + BP_WORD_REFERENCE + BP_WORD_BUSY);
            status = bp_pool_release(k.pool, &id, 1, k.streams[0]);
            assert_int_equal(status, busy ? BP_ERR_SCHEDULE : BP_OK);
            assert_true(!busy || strstr(bp_error_detail(), "by another call at the same time") != NULL);
        }
        atomic_store(word, 0);
        assert_int_equal(bp_pool_acquire(k.pool, twice, 3, k.streams[0], NULL), BP_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(bp_error_detail(), "twice in one call"));
        assert_ok(bp_pool_acquire(k.pool, twice, 2, k.streams[0], NULL));
        assert_int_equal(bp_pool_release(k.pool, twice, 3, k.streams[0]), BP_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(bp_error_detail(), "twice in one call"));
        assert_ok(bp_pool_release(k.pool, twice, 2, k.streams[0]));
    }
}

/* ---- binding beside the hot path ----------------------------------------------------------------------------------- */

static atomic_int binding_done;

static void *bind_many(void *argument)
{
    kit *k = argument;
    uintptr_t wrong = 0;
    for (uint32_t i = 0; i < 500; i++) {
        char unit[16];
        uint32_t id = UINT32_MAX;
        snprintf(unit, sizeof unit, "extra %u", i);
        bp_bind bind = {.size = sizeof bind, .unit = unit, .dtype = BP_DTYPE_BF16, .bytes = 2, .used_bytes = 2};
        bind.placement = i % 2 == 0 ? BP_PLACE_PERSISTENT : BP_PLACE_DYNAMIC;
        wrong += bp_pool_bind(k->pool, &bind, &id) != BP_OK || id != k->requests + i;
        wrong += bp_pool_acquire(k->pool, &id, 1, k->streams[3], NULL) != BP_OK;
        wrong += bp_pool_release(k->pool, &id, 1, k->streams[3]) != BP_OK;
    }
    atomic_store(&binding_done, 1);
    return (void *)wrong;
}

TEST(binding_beside)
{
    KIT k = begin_kit(new_null(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 250 * 256;
    open_pool(&k, &config);
    pthread_t thread;
    void *wrong = NULL;
    assert_int_equal(pthread_create(&thread, NULL, bind_many, &k), 0);
    unsigned walks = 0;
    for (; !atomic_load(&binding_done) || walks < 5; walks++)
        walk(&k, 1, NULL, false);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    assert_null(wrong);
    assert_int_equal(statistics_of(k.pool).requests, k.requests + 500);
}
