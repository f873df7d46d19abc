/* SPDX-License-Identifier: Apache-2.0 */
/* Times of acquire and release, against general allocators and list bookkeeping, alone and net of the device's events.
 * Run: meson test -C build --benchmark --verbose
 *
 * Figures are nanoseconds per acquire and release (a pair). Pairs cycle through eight requests. "ratio" is to the first line of a table;
 * "beside" is the time net of the device, measured as the same number of records and waits alone. */
#include "baselines.h"
#include "measure.h"
#include "pools.h"
#include "teams.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB 1024u
#define MIB (1024u * 1024u)

/* ---- work ----------------------------------------------------------------------------------------------------------- */

/* The same ids in separate calls. */
static void run_singly(void *user, size_t pairs)
{
    const work k = *(const work *)user;
    void *addresses[8];
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *ids = k.ids + (i & (k.arrays - 1)) * k.each;
        for (size_t j = 0; j < k.each; j++)
            must(bp_pool_acquire(k.pool, ids + j, 1, k.acquiring, addresses + j));
        for (size_t j = 0; j < k.each; j++)
            must(bp_pool_release(k.pool, ids + j, 1, k.releasing));
    }
}

/* Counts only served requests. */
static void run_until_served(void *user, size_t pairs)
{
    const work k = *(const work *)user;
    for (size_t i = 0; i < pairs;) {
        void *address;
        int acquired;
        must(bp_pool_try_acquire(k.pool, k.ids, 1, k.acquiring, &address, &acquired));
        if (!acquired)
            continue;
        must(bp_pool_release(k.pool, k.ids, 1, k.releasing));
        i++;
    }
}

/* ---- device time alone ------------------------------------------------------------------------------------------------ */

#define DEVICE_EVENTS 8u

typedef struct share {
    bp_stream *streams[2];
    bp_event *events[2][DEVICE_EVENTS]; /* per stream */
    unsigned records, waits;
} share;

static share share_create(const pool_fixture *w, unsigned records, unsigned waits)
{
    share s = {.streams = {w->streams[2], w->streams[3]}, .records = records, .waits = waits};
    for (unsigned i = 0; i < 2 * DEVICE_EVENTS; i++)
        must(bp_event_create(w->device, &s.events[i / DEVICE_EVENTS][i % DEVICE_EVENTS]));
    return s;
}

static void share_destroy(share *s)
{
    for (unsigned i = 0; i < 2 * DEVICE_EVENTS; i++)
        bp_event_destroy(&s->events[i / DEVICE_EVENTS][i % DEVICE_EVENTS]);
}

/* The device calls of a pair: the first stream waits for the second's record of eight pairs ago; one or both record. */
static void run_share(void *user, size_t pairs)
{
    const share s = *(const share *)user;
    for (size_t i = 0; i < pairs; i++) {
        if (s.waits > 0)
            must(bp_stream_wait(s.streams[0], s.events[1][i % DEVICE_EVENTS]));
        if (s.records > 1)
            must(bp_event_record(s.events[0][i % DEVICE_EVENTS], s.streams[0]));
        must(bp_event_record(s.events[1][i % DEVICE_EVENTS], s.streams[1]));
    }
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

static uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(bench_random(state) % limit);
}

#define LISTED 1024u

typedef struct lists {
    list_pool *pool;
    uint32_t buckets[LISTED]; /* cycled through */
} lists;

static void run_lists(void *user, size_t pairs)
{
    const lists *l = user;
    static void *volatile address; /* stored, never dereferenced */
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t bucket = l->buckets[i % LISTED];
        address = list_pool_allocate(l->pool, bucket);
        list_pool_free(l->pool, bucket);
    }
    (void)address;
}

/* The first eight buckets, matching the pool's requests, or random ones. */
static void lists_init(lists *l, int fixed, uint32_t units, uint32_t buckets, uint64_t bytes, int random)
{
    uint64_t state = BENCH_SEED;
    l->pool = list_pool_create(fixed, units, buckets, 2, bytes);
    for (uint32_t i = 0; i < LISTED; i++)
        l->buckets[i] = random ? random_below(&state, units * buckets) : i % 8;
}

typedef struct baselines {
    baseline_malloc libc, jemalloc;
    lists max, fixed;
} baselines;

static void add_baselines(baselines *r, uint32_t units, uint32_t buckets, uint64_t bytes)
{
    if (baseline_jemalloc(&r->jemalloc, bytes))
        bench_add("jemalloc: malloc, free", baseline_malloc_loop, &r->jemalloc, 0);
    if (baseline_libc(&r->libc, bytes))
        bench_add("libc: malloc, free", baseline_malloc_loop, &r->libc, 0);
    lists_init(&r->max, 0, units, buckets, bytes, 0);
    lists_init(&r->fixed, 1, units, buckets, bytes, 0);
    bench_add("lists of Megatron's max pool", run_lists, &r->max, 0);
    bench_add("lists of Megatron's fixed pool", run_lists, &r->fixed, 0);
}

static void remove_baselines(baselines *r)
{
    list_pool_destroy(r->max.pool);
    list_pool_destroy(r->fixed.pool);
}

static void one_request(const char *group, uint64_t bytes)
{
    if (!bench_begin(group))
        return;
    pool_fixture null =
        pool_fixture_create(&(pool_fixture_options){.units = 50, .buckets = 4, .bytes = bytes, .promised = 1});
    pool_fixture host = pool_fixture_create(
        &(pool_fixture_options){.host = 1, .units = 50, .buckets = 1, .bytes = bytes, .promised = 1});
    work on_null = work_on(&null, 0), on_host = work_on(&host, 0);
    baselines r;
    expect(&null, &on_null, 0, 0);
    expect(&host, &on_host, 0, 0);
    bench_add("null device, promised stream, no event", run_pairs, &on_null, 0);
    bench_add("host device, promised stream, no event", run_pairs, &on_host, 0);
    add_baselines(&r, 50, 4, bytes);
    bench_end();
    remove_baselines(&r);
    pool_fixture_destroy(&null);
    pool_fixture_destroy(&host);
}

/* Combinations of event calls in a pair. Each has separate buffers, so that release events of one work are not waited for by another. */
enum { WAY_NONE, WAY_RECORD, WAY_RECORD_WAIT, WAY_RECORDS_WAIT, WAYS };

static const struct {
    const char *name, *device; /* device: the same events alone */
    int promised, two_streams;
    unsigned records, waits;
} ways[WAYS] = {
    {"promised, one stream: no event", NULL, 1, 0, 0, 0},
    {"any stream, one stream: a record", "device alone: a record", 0, 0, 1, 0},
    {"promised, two streams: a record, a wait", "device alone: a record, a wait", 1, 1, 1, 1},
    {"any stream, two streams: two records, a wait", "device alone: two records, a wait", 0, 1, 2, 1},
};

typedef struct events {
    pool_fixture fixtures[2]; /* without a promised stream, with one */
    work works[WAYS];
    share shares[WAYS];
} events;

static void events_create(events *e, int host)
{
    for (int promised = 0; promised <= 1; promised++)
        e->fixtures[promised] = pool_fixture_create(
            &(pool_fixture_options){.host = host, .units = 50, .buckets = 4, .bytes = 4 * KIB, .promised = promised});
    for (int i = 0; i < WAYS; i++) {
        const pool_fixture *w = &e->fixtures[ways[i].promised];
        e->works[i] = work_on(w, ways[i].two_streams);
        e->works[i].ids += 8 * ways[i].two_streams;
        e->shares[i] = share_create(&e->fixtures[0], ways[i].records, ways[i].waits);
    }
}

static void events_destroy(events *e)
{
    for (int i = 0; i < WAYS; i++)
        share_destroy(&e->shares[i]);
    for (int promised = 0; promised <= 1; promised++)
        pool_fixture_destroy(&e->fixtures[promised]);
}

static void with_events(const char *group, int host)
{
    if (!bench_begin(group))
        return;
    events e;
    baselines r;
    size_t entries[WAYS];
    events_create(&e, host);
    for (int i = 0; i < WAYS; i++) {
        expect(&e.fixtures[ways[i].promised], &e.works[i], ways[i].records, ways[i].waits);
        entries[i] = bench_add(ways[i].name, run_pairs, &e.works[i], 0);
    }
    for (int i = WAY_RECORD; i < WAYS; i++)
        bench_less(entries[i], bench_add(ways[i].device, run_share, &e.shares[i], 0));
    add_baselines(&r, 50, 4, 4 * KIB);
    bench_end();
    remove_baselines(&r);
    events_destroy(&e);
}

/* Busy streams: the second one is blocked during a window, so that every wait is enqueued. */
typedef struct busy {
    bench_loop *loop;
    void *user;
    bp_stream *waiting, *held;
    sem_t gate;
} busy;

static void wait_at_gate(void *argument)
{
    while (sem_wait(argument) != 0) {
    }
}

static double run_busy(void *user, size_t pairs)
{
    busy *b = user;
    must(bp_stream_call(b->held, wait_at_gate, &b->gate));
    b->loop(b->user, 16); /* the waiting stream's worker has reached its first wait */
    double begin = bench_now_ns();
    b->loop(b->user, pairs);
    double took = bench_now_ns() - begin;
    sem_post(&b->gate);
    must(bp_stream_synchronize(b->held));
    must(bp_stream_synchronize(b->waiting));
    return took;
}

static void busy_host(const char *group)
{
    if (!bench_begin(group))
        return;
    events e;
    busy pools[WAYS], devices[WAYS];
    events_create(&e, 1);
    bench_add(ways[WAY_NONE].name, run_pairs, &e.works[WAY_NONE], 0);
    for (int i = WAY_RECORD_WAIT; i < WAYS; i++) {
        const work *k = &e.works[i];
        const share *s = &e.shares[i];
        pools[i] = (busy){.loop = run_pairs, .user = &e.works[i], .waiting = k->acquiring, .held = k->releasing};
        devices[i] = (busy){.loop = run_share, .user = &e.shares[i], .waiting = s->streams[0], .held = s->streams[1]};
        sem_init(&pools[i].gate, 0, 0);
        sem_init(&devices[i].gate, 0, 0);
        size_t entry = bench_add_run(ways[i].name, run_busy, &pools[i], 4096);
        bench_less(entry, bench_add_run(ways[i].device, run_busy, &devices[i], 4096));
    }
    bench_end();
    events_destroy(&e);
}

/* ---- sizes of pools ------------------------------------------------------------------------------------------------- */

#define EVICTING_BYTES (96u * MIB)
#define COLD_PAIRS 64u

typedef struct spread {
    bp_pool *pool;
    bp_stream *stream;
    uint32_t *ids; /* all of them, shuffled further in each window */
    uint32_t count;
    uint64_t random;
    uint8_t *evicting; /* NULL: caches are not evicted */
} spread;

static spread spread_create(const pool_fixture *w, uint8_t *evicting)
{
    spread s = {w->pool, w->streams[0], malloc(w->count * sizeof *s.ids), w->count, BENCH_SEED, evicting};
    if (s.ids == NULL)
        must(BP_ERR_NO_HOST_MEMORY);
    memcpy(s.ids, w->ids, w->count * sizeof *s.ids);
    return s;
}

static void take_each(const spread *s, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *address;
        must(bp_pool_acquire(s->pool, &ids[i], 1, s->stream, &address));
        must(bp_pool_release(s->pool, &ids[i], 1, s->stream));
    }
}

/* Before timing, either touches all requests, or evicts all caches. */
static double run_spread(void *user, size_t pairs)
{
    spread *s = user;
    for (size_t i = 0; i < pairs; i++) {
        uint32_t other = (uint32_t)i + random_below(&s->random, s->count - (uint32_t)i), id = s->ids[other];
        s->ids[other] = s->ids[i];
        s->ids[i] = id;
    }
    if (s->evicting != NULL)
        memset(s->evicting, (int)(s->random & 0xff), EVICTING_BYTES);
    else
        take_each(s, s->ids, s->count);
    double begin = bench_now_ns();
    take_each(s, s->ids, pairs);
    return bench_now_ns() - begin;
}

static void pool_size(const char *group, uint32_t requests)
{
    if (!bench_begin(group))
        return;
    pool_fixture w = pool_fixture_create(
        &(pool_fixture_options){.units = requests / 2, .buckets = 2, .bytes = 4 * KIB, .promised = 1});
    work k = work_on(&w, 0);
    uint8_t *evicting = malloc(EVICTING_BYTES);
    if (evicting == NULL)
        must(BP_ERR_NO_HOST_MEMORY);
    spread random = spread_create(&w, NULL), cold = spread_create(&w, evicting);
    baselines r;
    lists max, fixed;
    lists_init(&max, 0, requests / 2, 2, 4 * KIB, 1);
    lists_init(&fixed, 1, requests / 2, 2, 4 * KIB, 1);
    expect(&w, &k, 0, 0);
    bench_add("the same 8 requests", run_pairs, &k, 0);
    bench_add_run("random requests", run_spread, &random, requests < 1000 ? requests : 1000);
    bench_add_run("random requests, caches evicted", run_spread, &cold, requests < COLD_PAIRS ? requests : COLD_PAIRS);
    add_baselines(&r, requests / 2, 2, 4 * KIB);
    bench_add("lists of Megatron's max pool, random requests", run_lists, &max, 0);
    bench_add("lists of Megatron's fixed pool, random requests", run_lists, &fixed, 0);
    bench_end();
    remove_baselines(&r);
    list_pool_destroy(max.pool);
    list_pool_destroy(fixed.pool);
    free(random.ids);
    free(cold.ids);
    free(evicting);
    pool_fixture_destroy(&w);
}

/* Requests of n segments: cost in partly overlapping plans. */
static void overlapping(const char *group)
{
    enum { DEEP = 128 };
    static const uint32_t segments[] = {1, 2, 4, 8, 32, DEEP};
    enum { FIGURES = sizeof segments / sizeof *segments };
    if (!bench_begin(group))
        return;
    pool_fixture w = pool_fixture_create_overlapping(1000, DEEP);
    work k[FIGURES];
    uint32_t ids[FIGURES][4];
    for (int i = 0; i < FIGURES; i++) {
        const uint32_t nth = segments[i] - 1;
        const uint32_t taken[4] = {2 * nth, 2 * nth + 1, 2 * (nth + DEEP), 2 * (nth + DEEP) + 1};
        char name[40];
        for (int j = 0; j < 4; j++)
            ids[i][j] = w.ids[taken[j]];
        k[i] = (work){w.pool, ids[i], 4, 1, w.streams[0], w.streams[0]};
        expect(&w, &k[i], 0, 0);
        snprintf(name, sizeof name, "requests of %u segment%s", segments[i], segments[i] > 1 ? "s" : "");
        bench_add(name, run_pairs, &k[i], 0);
    }
    bench_end();
    pool_fixture_destroy(&w);
}

/* ---- arrays --------------------------------------------------------------------------------------------------------- */

static void arrays(const char *group, int host, int two_streams)
{
    if (!bench_begin(group))
        return;
    pool_fixture w = pool_fixture_create(
        &(pool_fixture_options){.host = host, .units = 50, .buckets = 4, .bytes = 4 * KIB, .promised = 1});
    share once = share_create(&w, 1, 1);
    work k = work_on(&w, two_streams);
    k.each = 4;
    k.arrays = 2;
    size_t singly = bench_add("a unit of 4 in four calls, per request", run_singly, &k, 0);
    size_t together = bench_add("a unit of 4 in one call, per request", run_pairs, &k, 0);
    bench_add("a unit of 4 in four calls, per unit", run_singly, &k, 0);
    size_t unit = bench_add("a unit of 4 in one call, per unit", run_pairs, &k, 0);
    bench_per(singly, 4);
    bench_per(together, 4);
    if (two_streams) {
        size_t device = bench_add("device alone: a record, a wait", run_share, &once, 0);
        bench_less(singly, device);
        bench_less(unit, device);
    }
    bench_end();
    share_destroy(&once);
    pool_fixture_destroy(&w);
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

/* A separate pool fixture per team, which no other thread has used. */
typedef struct crew {
    pool_fixture fixture;
    work works[TEAM_MAX];
    uint32_t ids[TEAM_MAX][8];
    team *team;
} crew;

static void crew_start(crew *c, unsigned threads, bench_loop *loop)
{
    void *const users[TEAM_MAX] = {&c->works[0], &c->works[1], &c->works[2], &c->works[3]};
    c->team = team_create(threads, loop, users);
}

static void crew_end(crew *c)
{
    team_destroy(c->team);
    pool_fixture_destroy(&c->fixture);
}

static void crew_apart(crew *c, unsigned threads, int interleaved)
{
    c->fixture = pool_fixture_create_apart(4 * 8, interleaved);
    for (uint32_t t = 0; t < TEAM_MAX; t++) {
        for (uint32_t i = 0; i < 8; i++)
            c->ids[t][i] = c->fixture.ids[interleaved ? 4 * i + t : 8 * t + i];
        bp_stream *stream = c->fixture.streams[t];
        c->works[t] = (work){c->fixture.pool, c->ids[t], 8, 1, stream, stream};
    }
    crew_start(c, threads, run_pairs);
}

static void crew_one_class(crew *c, unsigned threads, int own_streams)
{
    c->fixture = pool_fixture_create(&(pool_fixture_options){
        .units = TEAM_MAX, .buckets = 1, .bytes = 4 * KIB, .promised = !own_streams, .strict = BP_STRICT_OFF});
    for (uint32_t t = 0; t < TEAM_MAX; t++) {
        bp_stream *stream = c->fixture.streams[own_streams ? t : 0];
        c->works[t] = (work){c->fixture.pool, &c->fixture.ids[t], 1, 1, stream, stream};
    }
    crew_start(c, threads, run_until_served);
}

#define TEAM_TURNS 25
#define TEAM_PAIRS 60000 /* several milliseconds: longer than a scheduler time slice if threads outnumber processors */

static void measure_crews(const char *group, void (*create)(crew *, unsigned, int), int how)
{
    static const char *const names[] = {"1 thread", "2 threads", "4 threads"};
    if (!bench_begin(group))
        return;
    crew crews[3];
    bench_turns(TEAM_TURNS);
    for (unsigned i = 0; i < 3; i++) {
        create(&crews[i], 1u << i, how);
        bench_add_run(names[i], team_run, crews[i].team, TEAM_PAIRS);
    }
    bench_add_run("4 threads, processor time", team_run_processor, crews[2].team, TEAM_PAIRS);
    bench_end();
    for (int i = 0; i < 3; i++)
        crew_end(&crews[i]);
}

/* A thread other than the first that acquired from the pool. */
static void second_thread(const char *group)
{
    if (!bench_begin(group))
        return;
    crew first, second;
    bench_turns(TEAM_TURNS);
    crew_apart(&first, 1, 0);
    crew_apart(&second, 1, 0);
    run_pairs(&second.works[0], 8);
    bench_add_run("the first thread that acquired", team_run, first.team, TEAM_PAIRS);
    bench_add_run("another thread", team_run, second.team, TEAM_PAIRS);
    bench_end();
    crew_end(&first);
    crew_end(&second);
}

/* ---- modes ---------------------------------------------------------------------------------------------------------- */

/* Pool modes, all without events. */
typedef struct mode {
    const char *name;
    uint32_t buckets;
    bp_strict strict; /* 0: the default */
    int held;         /* the planned buffer, held to force another copy */
    int traced;       /* 2: with timestamps */
} mode;

static void measure_modes(const char *group, const mode modes[3])
{
    if (!bench_begin(group))
        return;
    pool_fixture w[3];
    work k[3];
    for (int i = 0; i < 3; i++) {
        w[i] = pool_fixture_create(&(pool_fixture_options){
            .units = 50, .buckets = modes[i].buckets, .bytes = 4 * KIB, .promised = 1, .strict = modes[i].strict});
        k[i] = work_on(&w[i], 0);
        expect(&w[i], &k[i], 0, 0);
        if (modes[i].held)
            must(bp_pool_acquire(w[i].pool, &w[i].ids[8], 1, w[i].streams[0], NULL));
        if (modes[i].traced)
            must(bp_pool_trace_start(w[i].pool, 4096, modes[i].traced == 2));
        bench_add(modes[i].name, run_pairs, &k[i], 0);
    }
    bench_end();
    for (int i = 0; i < 3; i++)
        pool_fixture_destroy(&w[i]);
}

static const mode tracing[] = {{"not traced", .buckets = 4},
                               {"traced", .buckets = 4, .traced = 1},
                               {"traced, with timestamps", .buckets = 4, .traced = 2}};
static const mode choices[] = {{"strict error", 1, BP_STRICT_ERROR, 0, 0},
                               {"strict off", 1, BP_STRICT_OFF, 0, 0},
                               {"strict off, another copy", 1, BP_STRICT_OFF, 1, 0}};

/* ---- profile recording ----------------------------------------------------------------------------------------------------- */

static uint64_t read_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_clock(void *user, size_t pairs)
{
    static volatile uint64_t seen;
    (void)user;
    for (size_t i = 0; i < 2 * pairs; i++)
        seen = read_clock();
    (void)seen;
}

/* Pairs with a clock read wherever recording reads the clock. */
static void run_pairs_and_clock(void *user, size_t pairs)
{
    static volatile uint64_t seen;
    const work *k = user;
    void *address;
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *id = k->ids + (i & 7);
        must(bp_pool_acquire(k->pool, id, 1, k->acquiring, &address));
        seen = read_clock();
        must(bp_pool_release(k->pool, id, 1, k->releasing));
        seen = read_clock();
    }
    (void)seen;
}

/* Cost of recording an event beyond reading the clock, for a ring that fits the caches and one that does not. Figures are nanoseconds per
 * acquire or release: a pair is two events. "beside" is what recording adds to the same calls with the same clock reads. */
static void recording(const char *group, uint64_t entries)
{
    if (!bench_begin(group))
        return;
    pool_fixture w[3]; /* without a profile; with one, between recorded steps; recording */
    work k[3];
    bp_profile *profiles[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) {
        w[i] = pool_fixture_create(&(pool_fixture_options){.units = 50, .buckets = 4, .bytes = 4 * KIB, .promised = 1});
        k[i] = work_on(&w[i], 0);
        if (i == 0)
            continue;
        bp_profile_config config;
        must(bp_profile_config_init(&config, sizeof config));
        config.max_entries = i == 2 ? entries : 0;
        must(bp_profile_create(&w[i].pool, 1, &config, &profiles[i]));
        if (i == 2)
            must(bp_profile_step(profiles[i], 0));
    }
    size_t numbers[] = {bench_add("without a profile", run_pairs, &k[0], 0),
                        bench_add("between recorded steps", run_pairs, &k[1], 0),
                        bench_add("a read of the clock alone", run_clock, &k[0], 0),
                        bench_add("without a profile, and a read of the clock", run_pairs_and_clock, &k[0], 0),
                        bench_add("recorded", run_pairs, &k[2], 0)};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        bench_per(numbers[i], 2);
    bench_less(numbers[4], numbers[3]);
    bench_end();
    for (int i = 0; i < 3; i++) { /* destroys the pools before the profiles, so that nothing is written */
        pool_fixture_destroy(&w[i]);
        bp_profile_destroy(&profiles[i]);
    }
}

/* ---- main ----------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    bench_start(argc, argv, 101, "", NULL, 0, 0);
    one_request("one request, 4 KiB", 4 * KIB);
    one_request("one request, 1 MiB", MIB);
    one_request("one request, 64 MiB", 64 * MIB);
    with_events("events, null device", 0);
    with_events("events, host device, idle", 1);
    busy_host("events, host device, busy");
    pool_size("pool of 10 requests", 10);
    pool_size("pool of 1000 requests", 1000);
    pool_size("pool of 100000 requests", 100000);
    overlapping("scheduled, 1000 overlapping requests");
    arrays("arrays, no events", 0, 0);
    arrays("arrays, events, null device", 0, 1);
    arrays("arrays, events, host device", 1, 1);
    measure_crews("threads, own requests", crew_apart, 0);
    measure_crews("threads, own requests, interleaved", crew_apart, 1);
    measure_crews("threads, two copies, one stream", crew_one_class, 0);
    measure_crews("threads, two copies, own streams", crew_one_class, 1);
    second_thread("threads, first and other");
    measure_modes("tracing", tracing);
    measure_modes("choices", choices);
    recording("recording, ring of 1024", 1024);
    recording("recording, ring of 131072", 131072);
    return bench_finish_groups();
}
