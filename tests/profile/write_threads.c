/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads, pools and devices under one profile, for test_snapshots.py: write_threads FOLDER. Threads compete
 * for any free copy and for dynamic memory, so addresses change. */
#include <bucketpool/profile.h>

#include <pthread.h>

#include "support/pools.h"

#define THREADS 4u
#define POOLS 3u
#define EACH 3u /* planned requests of a thread in a pool */
#define STEPS 6u
#define ROUNDS 400u

#define TWELVE "300 300 300 300 300 300 300 300 300 300 300 300"

typedef struct member {
    bp_pool *pool;
    bp_stream *const *streams;
    uint32_t ids[THREADS][EACH + 1]; /* the last one is dynamic */
} member;

typedef struct worker {
    const member *members;
    unsigned number, served, wrong;
    uint64_t random;
} worker;

static unsigned below(worker *w, unsigned limit)
{
    w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
    return (unsigned)(w->random % limit);
}

static void *work(void *user)
{
    worker *w = user;
    for (unsigned i = 0; i < ROUNDS; i++) {
        const member *m = &w->members[below(w, POOLS)];
        const uint32_t *ids = &m->ids[w->number][below(w, EACH)];
        bp_stream *stream = m->streams[w->number];
        int acquired = 0;
        w->wrong += bp_pool_try_acquire(m->pool, ids, 2, stream, NULL, &acquired) != BP_OK;
        if (!acquired)
            continue;
        w->served++;
        if (below(w, 3) == 0) {
            w->wrong += bp_pool_cancel(m->pool, ids, 2) != BP_OK;
            continue;
        }
        w->wrong += bp_pool_use(m->pool, ids, 1, m->streams[0]) != BP_OK;
        w->wrong += bp_pool_release(m->pool, ids, 2, stream) != BP_OK;
    }
    return NULL;
}

static void work_together(const member *members, uint64_t seed)
{
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (unsigned t = 0; t < THREADS; t++) {
        workers[t] = (worker){.members = members, .number = t, .random = seed * 977 + t * 31 + 1};
        assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    }
    for (unsigned t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(threads[t], NULL), 0);
        assert_int_equal(workers[t].wrong, 0);
        assert_true(workers[t].served > 0);
    }
}

static void bind_all(member *m, const kit *k, bp_pool *pool)
{
    *m = (member){.pool = pool, .streams = k->streams};
    for (unsigned t = 0; t < THREADS; t++) {
        char unit[16];
        for (unsigned i = 0; i < EACH; i++)
            m->ids[t][i] = k->ids[t + THREADS * i];
        snprintf(unit, sizeof unit, "thread %u", t);
        bp_bind bind = bind_of(unit, 0, BP_ROLE_GRAD, BP_DTYPE_BF16, 1024);
        bind.placement = BP_PLACE_DYNAMIC;
        assert_ok(bp_pool_bind(pool, &bind, &m->ids[t][EACH]));
    }
}

static const char *folder;

TEST(threads)
{
    static const uint64_t steps[] = {0, 1, 2, 3, 4, 5};
    static const uint64_t rings[] = {1000, 100000};
    for (int r = 0; r < 2; r++) {
        KIT a = begin_kit(device_at(0)->create(), TWELVE, PARAM_ONLY, BP_POLICY_MAX, 9);
        KIT b = begin_kit(new_null(), TWELVE, PARAM_ONLY, BP_POLICY_MAX, 9);
        bp_pool_config config = pool_config();
        bp_profile_config settings;
        member members[POOLS];
        bp_pool *second, *pools[POOLS];
        config.strict = BP_STRICT_OFF;
        open_pool(&a, &config);
        open_pool(&b, &config);
        assert_ok(bp_pool_create(a.device, a.plan, &config, &second));
        bind_all(&members[0], &a, a.pool);
        bind_all(&members[1], &b, b.pool);
        bind_all(&members[2], &a, second);
        for (unsigned i = 0; i < POOLS; i++)
            pools[i] = members[i].pool;
        assert_ok(bp_profile_config_init(&settings, sizeof settings));
        char directory[600];
        snprintf(directory, sizeof directory, "%s/ring_%u", folder, (unsigned)rings[r]);
        settings.directory = directory;
        settings.profile_steps = steps;
        settings.profile_step_count = STEPS;
        settings.max_entries = rings[r];
        settings.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
        bp_profile *profile = NULL;
        assert_ok(bp_profile_create(pools, POOLS, &settings, &profile));
        for (uint64_t step = 0; step < STEPS; step++) {
            assert_ok(bp_profile_step(profile, step));
            work_together(members, step + 1);
        }
        bp_profile_destroy(&profile);
        bp_pool_destroy(&second);
    }
}

/* Dynamic memory passes from one pool to another, whose ring has only the last events. (With a checked malloc the
 * memory differs, and there is nothing to see.) */
TEST(handed_over)
{
    KIT a = begin_kit(device_at(0)->create(), TWELVE, PARAM_ONLY, BP_POLICY_MAX, 9);
    bp_pool_config config = pool_config();
    bp_profile_config settings;
    bp_profile *profile = NULL;
    bp_pool *second;
    uint32_t ids[2];
    void *address;
    config.strict = BP_STRICT_OFF;
    open_pool(&a, &config);
    assert_ok(bp_pool_create(a.device, a.plan, &config, &second));
    bp_pool *const pools[] = {a.pool, second};
    for (int i = 0; i < 2; i++) {
        bp_bind bind = bind_of("dynamic", 0, BP_ROLE_GRAD, BP_DTYPE_BF16, 1024);
        bind.placement = BP_PLACE_DYNAMIC;
        assert_ok(bp_pool_bind(pools[i], &bind, &ids[i]));
    }
    assert_ok(bp_profile_config_init(&settings, sizeof settings));
    settings.directory = folder;
    settings.max_entries = 4;
    assert_ok(bp_profile_create(pools, 2, &settings, &profile));
    assert_ok(bp_profile_start(profile, "handed_over"));
    assert_ok(bp_pool_acquire(pools[0], &ids[0], 1, a.streams[0], &address));
    assert_ok(bp_pool_release(pools[0], &ids[0], 1, a.streams[0]));
    assert_ok(bp_device_synchronize(a.device));
    assert_ok(bp_pool_acquire(pools[1], &ids[1], 1, a.streams[0], &address));
    for (int i = 0; i < 8; i++)
        assert_ok(bp_pool_use(pools[1], &ids[1], 1, a.streams[1]));
    assert_ok(bp_profile_stop(profile));
    assert_ok(bp_pool_release(pools[1], &ids[1], 1, a.streams[0]));
    bp_profile_destroy(&profile);
    bp_pool_destroy(&second);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    folder = argv[1];
    return run_suite();
}
