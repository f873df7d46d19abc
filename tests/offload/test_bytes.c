/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs of a training loop with offload: groups are offloaded and restored in any order and concurrently while others are used,
 * and every byte is compared. */
#include "allocators/pool.h"
#include "stores.h"
#include "support/driver.h"

#define STEPS 40
#define USUAL_GRANULARITY UINT64_C(65536)

/* The expected state of a group. */
typedef struct expected {
    char name[32];
    bp_residency residency;
    bool kept;
    bp_restore fill;
    uint64_t bytes, offloads, restores;
} expected;

typedef struct program {
    store s;
    expected groups[MAX_GROUPS];
    size_t count;
    const char *group_of[64]; /* by request of the kit */
    void *address_of[64];
    bool joint;
} program;

static void note_groups(program *p)
{
    p->count = group_count(p->s.offload);
    assert_in_range(p->count, 1, MAX_GROUPS);
    for (size_t i = 0; i < p->count; i++) {
        expected *e = &p->groups[i];
        bp_offload_group group = group_at(p->s.offload, i);
        *e = (expected){.residency = BP_RESIDENT, .bytes = bytes_of_group(&p->s, group.name)};
        assert_true(strlen(group.name) < sizeof e->name);
        memcpy(e->name, group.name, strlen(group.name) + 1);
    }
    assert_true(p->s.k.requests <= 64);
    for (size_t i = 0; i < p->s.k.requests; i++) {
        p->group_of[i] = group_of_request(&p->s, p->s.k.ids[i]);
        p->address_of[i] = address_of(&p->s.k, p->s.k.ids[i]);
    }
}

static expected *group_named(program *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->groups[i].name, name) == 0)
            return &p->groups[i];
    fail_msg("no group %s", name);
    return NULL;
}

static void assert_as_expected(const program *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const expected *e = &p->groups[i];
        bp_offload_group now = group_at(p->s.offload, i);
        assert_string_equal(now.name, e->name);
        assert_int_equal(now.residency, e->residency);
        assert_int_equal(now.bytes, e->bytes);
        assert_int_equal(now.resident_bytes, e->residency == BP_OFFLOADED ? 0 : e->bytes);
        if (e->residency == BP_OFFLOADED)
            assert_int_equal(now.kept_bytes, e->kept ? e->bytes : 0);
        if (e->residency == BP_RESIDENT)
            assert_int_equal(now.kept_bytes, 0);
        assert_true(now.host_bytes >= now.kept_bytes);
        assert_int_equal(now.unreturned_bytes, 0);
        assert_int_equal(now.offloads, e->offloads);
        assert_int_equal(now.restores, e->restores);
    }
    for (size_t i = 0; i < p->s.slab_count; i++) {
        const bp_pool_slab slab = bp_pool_get_info(p->s.k.pool)->slabs[i];
        assert_ptr_equal(slab.address, p->s.slabs[i].address);
        assert_int_equal(p->s.k.pool->slabs.slabs[i].mapped,
                         group_of(p->s.offload, slab.group).residency != BP_OFFLOADED);
    }
}

/* The group's next call in the order of the four. */
static void advance(program *p, expected *e)
{
    store *s = &p->s;
    switch (e->residency) {
    case BP_RESIDENT:
        e->kept = strcmp(e->name, "joint") != 0 && random_below(3) > 0;
        if (e->kept)
            begin_keep(s, e->name);
        else
            begin_discard(s, e->name);
        e->residency = BP_OFFLOADING;
        break;
    case BP_OFFLOADING:
        finish_offload(s, e->name);
        e->residency = BP_OFFLOADED;
        e->offloads++;
        break;
    case BP_OFFLOADED:
        e->fill = random_below(2) == 0 ? BP_RESTORE_ZERO : BP_RESTORE_LEAVE;
        begin_restore(s, e->name, e->fill);
        e->residency = BP_RESTORING;
        break;
    default:
        finish_restore(s, e->name, e->fill);
        e->residency = BP_RESIDENT;
        e->restores++;
        break;
    }
}

/* Every call but the group's next one is refused; with a lease, leaving is, too. */
static void call_wrongly(program *p, const expected *e)
{
    const store *s = &p->s;
    bp_lease *lease = NULL;
    const bool resident = e->residency == BP_RESIDENT;
    assert_int_equal(bp_lease_take(s->offload, e->name, "reader", &lease), resident ? BP_OK : BP_ERR_SCHEDULE);
    assert_int_equal(group_of(s->offload, e->name).leases, resident);
    assert_int_equal(bp_offload_begin(s->offload, e->name, BP_OFFLOAD_DISCARD), BP_ERR_SCHEDULE);
    if (e->residency != BP_OFFLOADING)
        assert_int_equal(bp_offload_finish(s->offload, e->name), BP_ERR_SCHEDULE);
    if (e->residency != BP_OFFLOADED)
        assert_int_equal(bp_restore_begin(s->offload, e->name, BP_RESTORE_ZERO), BP_ERR_SCHEDULE);
    if (e->residency != BP_RESTORING)
        assert_int_equal(bp_restore_finish(s->offload, e->name), BP_ERR_SCHEDULE);
    bp_lease_return(&lease);
}

static bp_stream *any_stream(const program *p)
{
    return p->s.k.streams[random_below(KIT_STREAMS - 1)];
}

/* Work in resident memory; offloaded memory is refused. */
static void work_somewhere(program *p)
{
    store *s = &p->s;
    size_t which = random_below((uint32_t)s->k.requests);
    uint32_t id = s->k.ids[which];
    if (group_named(p, p->group_of[which])->residency != BP_RESIDENT) {
        int can = 1;
        assert_refused(&s->k, id, any_stream(p), p->group_of[which]);
        assert_false(try_take(&s->k, id, any_stream(p)));
        assert_ok(bp_pool_can_acquire(s->k.pool, &id, 1, NULL, 0, &can));
        assert_int_equal(can, 0);
        return;
    }
    assert_ptr_equal(address_of(&s->k, id), p->address_of[which]);
    if (is_state(request_at(s, id)))
        write_request(s, id, s->k.streams[0]);
    else
        work_on(s, id, any_stream(p), any_stream(p));
}

static void work_in_persistent(program *p)
{
    store *s = &p->s;
    if (s->persistent != UINT32_MAX && group_named(p, "persistent")->residency == BP_RESIDENT)
        write_request(s, s->persistent, s->k.streams[0]);
}

/* Ends each transition; then restores all groups. */
static void end_program(program *p)
{
    for (size_t i = 0; i < p->count; i++)
        while (p->groups[i].residency != BP_RESIDENT)
            advance(p, &p->groups[i]);
    assert_as_expected(p);
    assert_bytes(&p->s);
    for (size_t i = 0; i < p->s.k.requests; i++) {
        assert_int_equal(bp_pool_references(p->s.k.pool, p->s.k.ids[i]), is_state(request_at(&p->s, p->s.k.ids[i])));
        assert_ptr_equal(address_of(&p->s.k, p->s.k.ids[i]), p->address_of[i]);
    }
    close_store(&p->s);
}

static void run_program(bp_device *device, const store_options *options, const bp_offload_config *config)
{
    program p = {.joint = options->joint};
    p.s = open_store(device, options, config);
    note_groups(&p);
    for (int step = 0; step < STEPS; step++) {
        uint32_t what = random_below(10);
        if (what < 4)
            advance(&p, &p.groups[random_below((uint32_t)p.count)]);
        else if (what < 8)
            work_somewhere(&p);
        else if (what == 8)
            work_in_persistent(&p);
        else if (random_below(3) == 0)
            bp_offload_trim(p.s.offload);
        else if (random_below(2) == 0)
            call_wrongly(&p, &p.groups[random_below((uint32_t)p.count)]);
        else
            assert_bytes(&p.s);
        assert_as_expected(&p);
    }
    end_program(&p);
}

static store_options random_options(void)
{
    store_options o = {.persistent_bytes = random_below(2) * 20000, .overflow_bytes = random_below(2) * 10000};
    o.policy = random_below(2) == 0 ? BP_POLICY_MAX : BP_POLICY_SCHEDULED;
    o.joint = random_below(4) == 0;
    if (!o.joint && random_below(3) == 0) { /* several slabs of one group; names of the caller's */
        o.groups[2] = "shards";
        o.groups[4] = "shards";
        o.groups[3] = random_below(2) == 0 ? "shards" : "reduced";
    }
    return o;
}

/* Slabs have at least one granule: larger chunks for the granules of a GPU, whose copies take longer. */
static uint64_t chunk_of(const bp_device *device, uint64_t chunk_bytes)
{
    const uint64_t granularity = granularity_of(device);
    return granularity > USUAL_GRANULARITY ? chunk_bytes * (granularity / USUAL_GRANULARITY) : chunk_bytes;
}

static void run_programs(unsigned count, uint64_t first_seed, uint64_t chunk_bytes, bp_backing backing,
                         uint32_t delay_us)
{
    if (has_driver() && count > 12)
        count = 12 + count / 8;
    if (is_brief())
        count = 2 + count / 8;
    for (unsigned i = 0; i < count; i++) {
        seed(first_seed + i);
        store_options options = random_options();
        bp_device *device = new_slow_device(delay_us, first_seed + i);
        bp_offload_config config = offload_config(chunk_of(device, chunk_bytes), backing);
        run_program(device, &options, &config);
    }
}

TEST(pinned)
{
    run_programs(80, 1000, 0, BP_BACKING_PINNED, 0);
}

TEST(pinned_pages)
{
    run_programs(80, 2000, 1, BP_BACKING_PINNED, 0);
}

TEST(staged)
{
    run_programs(40, 3000, 0, BP_BACKING_STAGED, 0);
}

/* Two chunks alternate, many times. */
TEST(staged_pages)
{
    run_programs(80, 4000, 4096, BP_BACKING_STAGED, 0);
}

TEST(odd_chunks)
{
    run_programs(40, 5000, 3 * 4096 + 1, BP_BACKING_AUTO, 0);
}

/* Delayed streams, so that copies without the required waits read stale bytes. */
TEST(late_streams)
{
    run_programs(25, 6000, 4096, BP_BACKING_STAGED, 150);
    run_programs(25, 7000, 8192, BP_BACKING_PINNED, 150);
}
