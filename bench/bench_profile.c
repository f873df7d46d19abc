/* What recording an event takes above a read of the clock, for a ring that stays in the cache and for one that does not. Run: meson test -C
 * build --benchmark --verbose profile
 *
 * A figure is nanoseconds per acquire or release: pairs go over eight requests in turn, and a pair is two events. "beside" is what recording adds
 * to the same calls with as many reads of the clock. */
#include "measure.h"
#include "pools.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct work {
    world w;
    bp_profile *profile;
} work;

static void run_pairs(void *user, size_t pairs)
{
    const work *k = user;
    void *address;
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *id = k->w.ids + (i & 7);
        must(bp_pool_acquire(k->w.pool, id, 1, k->w.streams[0], &address));
        must(bp_pool_release(k->w.pool, id, 1, k->w.streams[0]));
    }
}

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

/* Reads where recording reads. */
static void run_pairs_and_clock(void *user, size_t pairs)
{
    static volatile uint64_t seen;
    const work *k = user;
    void *address;
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *id = k->w.ids + (i & 7);
        must(bp_pool_acquire(k->w.pool, id, 1, k->w.streams[0], &address));
        seen = read_clock();
        must(bp_pool_release(k->w.pool, id, 1, k->w.streams[0]));
        seen = read_clock();
    }
    (void)seen;
}

/* entries 0: there is a profile, between steps. */
static work work_create(uint64_t entries, int with_profile)
{
    bp_profile_config config;
    work k = {.w = world_create(&(world_options){.units = 50, .buckets = 4, .bytes = 4096, .promised = 1})};
    if (!with_profile)
        return k;
    must(bp_profile_config_init(&config, sizeof config));
    config.max_entries = entries;
    must(bp_profile_create(&k.w.pool, 1, &config, &k.profile));
    if (entries > 0)
        must(bp_profile_step(k.profile, 0));
    return k;
}

/* Nothing is written: the pool goes first. */
static void work_destroy(work *k)
{
    world_destroy(&k->w);
    bp_profile_destroy(&k->profile);
}

static void recording(const char *group, uint64_t entries)
{
    if (!bench_begin(group))
        return;
    work plain = work_create(0, 0), between = work_create(0, 1), recorded = work_create(entries, 1);
    size_t numbers[] = {bench_add("without a profile", run_pairs, &plain, 0),
                        bench_add("between recorded steps", run_pairs, &between, 0),
                        bench_add("a read of the clock alone", run_clock, &plain, 0),
                        bench_add("without a profile, and a read of the clock", run_pairs_and_clock, &plain, 0),
                        bench_add("recorded", run_pairs, &recorded, 0)};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        bench_per(numbers[i], 2);
    bench_less(numbers[4], numbers[3]);
    bench_end();
    work_destroy(&plain);
    work_destroy(&between);
    work_destroy(&recorded);
}

int main(int argc, char **argv)
{
    int turns = argc > 2 && strcmp(argv[1], "--turns") == 0 ? atoi(argv[2]) : 101;
    bench_settings(turns, NULL);
    recording("recording, ring of 1024", 1024);
    recording("recording, ring of 131072", 131072);
    return 0;
}
