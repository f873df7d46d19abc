/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs under a profile, for check_snapshot.py: write_random FOLDER FIRST_SEED SEEDS. Rings that wrap, requests of every placement and name,
 * slabs that lose their memory while state is held, files from within recordings, at their ends and after them. */
#include <bucketpool/profile.h>

#include "allocators/pool.h"
#include "support/pools.h"

#define MOST 64u
#define EXTRA 4u

typedef struct run {
    kit k;
    bp_profile *profile;
    uint64_t random;
    uint32_t ids[MOST], count;
    unsigned references[MOST];
    bool is_held_for_ever[MOST], used[MOST];
    bool away[16]; /* by slab */
    char folder[512];
    unsigned files;
} run;

static uint32_t below(run *r, uint32_t limit)
{
    r->random ^= r->random << 13, r->random ^= r->random >> 7, r->random ^= r->random << 17;
    return (uint32_t)(r->random % limit);
}

static bp_stream *any_stream(run *r)
{
    return r->k.streams[below(r, KIT_STREAMS)];
}

/* ---- requests ------------------------------------------------------------------------------------------------------- */

static void bind_extra(run *r)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
        bp_role role;
        bp_placement placement;
    } extra[EXTRA] = {{"", 300, BP_ROLE_PARAM, BP_PLACE_PERSISTENT},
                      {"shard \"of\" \\ \t\x01 \xc3\xa9 \xff\xc0\x80 \xed\xa0\x80 \xf0\x9f\x98\x80", 4096,
                       BP_ROLE_STATE, BP_PLACE_PERSISTENT},
                      {"dynamic \xe2\x82", 1000, BP_ROLE_GRAD, BP_PLACE_DYNAMIC},
                      {"", 0, BP_ROLE_GRAD, BP_PLACE_PERSISTENT}};
    for (uint32_t i = 0; i < EXTRA; i++) {
        bp_bind bind = bind_of(extra[i].unit, 7 + i, extra[i].role, BP_DTYPE_BF16, extra[i].bytes);
        bind.placement = extra[i].placement;
        assert_int_equal(bp_pool_bind(r->k.pool, &bind, &r->ids[r->count]), BP_OK);
        r->is_held_for_ever[r->count++] = i == 1;
    }
}

static uint32_t slab_of(const run *r, uint32_t i)
{
    const bp_entry *b = &r->k.pool->entries[r->ids[i]];
    const uint8_t *address = b->address;
    for (uint32_t s = 0; b->kind != BP_KIND_DYNAMIC && s < r->k.pool->slabs.count; s++) {
        const bp_slab *slab = &r->k.pool->slabs.slabs[s];
        if (address >= slab->address && address < slab->address + slab->bytes)
            return s;
    }
    return UINT32_MAX;
}

static bool any_slab_is_offloaded(const run *r)
{
    for (size_t s = 0; s < r->k.pool->slabs.count; s++)
        if (r->away[s])
            return true;
    return false;
}

static void acquire(run *r)
{
    uint32_t i = below(r, r->count);
    int acquired = 0;
    void *address;
    if (any_slab_is_offloaded(r) && !r->references[i]) /* pools with offload refuse this; here nobody does */
        return;
    if (bp_pool_try_acquire(r->k.pool, &r->ids[i], 1, any_stream(r), &address, &acquired) == BP_OK && acquired)
        r->references[i]++;
}

static void release(run *r)
{
    uint32_t i = below(r, r->count);
    for (uint32_t n = 0; n < r->count && r->references[i] == 0;
         n++) /* the next one that is live: memory changes hands often */
        i = (i + 1) % r->count;
    if (r->references[i] == 0 || (r->references[i] == 1 && r->is_held_for_ever[i]))
        return;
    if (r->references[i] == 1 && !r->used[i] && below(r, 4) == 0) {
        if (bp_pool_cancel(r->k.pool, &r->ids[i], 1) == BP_OK)
            r->references[i] = 0;
        return;
    }
    if (bp_pool_release(r->k.pool, &r->ids[i], 1, any_stream(r)) == BP_OK)
        r->references[i]--;
}

static void use(run *r)
{
    uint32_t i = below(r, r->count);
    if (r->references[i] > 0)
        (void)bp_pool_use(r->k.pool, &r->ids[i], 1, any_stream(r));
}

/* As a slab is offloaded: nothing but what is held for ever is live in it. */
static void move_slab(run *r)
{
    uint32_t slab = below(r, (uint32_t)r->k.pool->slabs.count);
    for (uint32_t i = 0; i < r->count; i++)
        if (r->references[i] > 0 && !r->is_held_for_ever[i] && slab_of(r, i) == slab)
            return;
    const bp_slabs *slabs = &r->k.pool->slabs;
    bp_slab *s = &slabs->slabs[slab];
    for (size_t i = 0; i < slabs->observer_count; i++) {
        const bp_slab_observer *o = &slabs->observers[i];
        if (r->away[slab])
            assert_int_equal(o->callbacks.attach(o->user, slab, s->address, s->bytes), BP_OK);
        else
            o->callbacks.detach(o->user, slab, s->address, s->bytes);
    }
    r->away[slab] = !r->away[slab];
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static void must_be_ok(bp_status status)
{
    if (status != BP_OK)
        fail_msg("%s: %s", bp_status_name(status), bp_error_detail());
}

static void write_now(run *r)
{
    char path[600];
    unsigned number = r->files++;
    snprintf(path, sizeof path, "%s/now_%u.pickle", r->folder, number);
    must_be_ok(bp_profile_write(r->profile, BP_PROFILE_PICKLE, path));
    snprintf(path, sizeof path, "%s/now_%u.json", r->folder, number);
    must_be_ok(bp_profile_write(r->profile, BP_PROFILE_TRACE, path));
}

static void record(run *r, uint64_t step)
{
    if (below(r, 3) > 0) {
        must_be_ok(bp_profile_step(r->profile, step));
    } else if (bp_profile_get_info(r->profile)->recording) {
        must_be_ok(bp_profile_stop(r->profile));
    } else {
        char label[32];
        snprintf(label, sizeof label, "by-hand_%u", (unsigned)step);
        must_be_ok(bp_profile_start(r->profile, label));
    }
}

static void walk_at_random(run *r)
{
    uint64_t step = 0;
    for (int i = 0; i < 600; i++) {
        switch (below(r, 24)) {
        case 0: record(r, step++); break;
        case 1:
            if (below(r, 8) == 0)
                write_now(r);
            break;
        case 2: use(r); break;
        case 3: move_slab(r); break;
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
        case 9:
        case 10:
        case 11:
        case 12:
        case 13: acquire(r); break;
        default: release(r);
        }
    }
}

static void open_profile(run *r, uint64_t seed)
{
    static const uint64_t steps[] = {0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t rings[] = {1, 8, 32, 4096};
    bp_profile_config config;
    const bp_plan *plan = r->k.plan;
    must_be_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = r->folder;
    config.profile_steps = steps;
    config.profile_step_count = sizeof steps / sizeof *steps;
    config.max_entries = rings[seed % 4];
    config.rank = 3;
    config.ranks = 8;
    config.coordinates = "p0d1c0t1";
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = seed % 2 ? &plan : NULL;
    must_be_ok(bp_profile_create(&r->k.pool, 1, &config, &r->profile));
}

static const char *folder;
static uint64_t first_seed, seeds;

static void one_program(uint64_t seed)
{
    const allocator_row *row = &ALLOCATORS[seed % ALLOCATOR_COUNT];
    run r = {.random = 88172645463325252u ^ seed * 0x9e3779b97f4a7c15u};
    snprintf(r.folder, sizeof r.folder, "%s/%s_%u", folder, row->name, (unsigned)seed);
    for (char *c = r.folder + strlen(folder); *c != '\0'; c++)
        *c = *c == ' ' || *c == ',' ? '-' : *c;
    r.k = begin_kit(device_at((seed / 3) % 2)->create(), UNITS, TRAINING, row->policy, 0);
    bp_pool_config config = config_of(row);
    config.persistent_bytes = 16384;
    open_pool(&r.k, &config);
    for (; r.count < r.k.requests && r.count < MOST - EXTRA; r.count++)
        r.ids[r.count] = r.k.ids[r.count];
    bind_extra(&r);
    open_profile(&r, seed);
    char path[600];
    must_be_ok(bp_profile_start(r.profile, "made"));
    must_be_ok(bp_profile_stop(r.profile));
    snprintf(path, sizeof path, "%s/first.pickle", r.folder);
    must_be_ok(bp_profile_write(r.profile, BP_PROFILE_PICKLE, path));
    if (seed / ALLOCATOR_COUNT % 5 == 0) /* of every row */
        (void)bp_pool_seal(r.k.pool);
    walk_at_random(&r);
    for (uint32_t s = 0; s < r.k.pool->slabs.count; s++) { /* the pool goes with all its memory */
        bp_slab *slab = &r.k.pool->slabs.slabs[s];
        for (size_t i = 0; r.away[s] && i < r.k.pool->slabs.observer_count; i++)
            r.k.pool->slabs.observers[i].callbacks.attach(r.k.pool->slabs.observers[i].user, s, slab->address,
                                                          slab->bytes);
    }
    bp_profile_destroy(&r.profile);
    end_kit(&r.k);
}

TEST(programs)
{
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++)
        one_program(seed);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    folder = argv[1];
    first_seed = strtoull(argv[2], NULL, 10);
    seeds = strtoull(argv[3], NULL, 10);
    return run_suite();
}
