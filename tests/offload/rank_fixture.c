/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads. */
#include "rank_fixture.h"
#include "support/trace_device.h"

static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"},
                                     .persistent_bytes = 4096};

/* ---- devices ------------------------------------------------------------------------------------------------------- */

static bool is_registered(const watch *w, const void *address)
{
    for (uint32_t c = 0; c < w->s->comms; c++) {
        const rank *end = &w->s->ends[c][w->rank];
        for (size_t i = 0; i < end->logged && !end->aborted; i++)
            if (end->log[i].live && end->log[i].address == address)
                return true;
    }
    return false;
}

static bp_status look_on(void *user, const device_call *call)
{
    watch *w = user;
    if (call->operation == OP_MAP || call->operation == OP_UNMAP)
        w->wrong += is_registered(w, call->address);
    return fault_of(&w->faults, call);
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

void open_rank(scene *s, uint32_t i, const store_options *options)
{
    bp_device *inner = new_host(), *device = NULL;
    bp_offload_config config = offload_config(16384, i % 2 == 0 ? BP_BACKING_PINNED : BP_BACKING_STAGED);
    s->watches[i] = (watch){.s = s, .rank = i, .faults = {.only = OP_COUNT}};
    assert_ok(trace_device_create(inner, look_on, &s->watches[i], &device));
    bp_device_destroy(&inner);
    bp_pinned_config pinned; /* unused memory returns to the system at once: a later touch traps */
    assert_ok(bp_pinned_config_init(&pinned, sizeof pinned));
    pinned.planned_bytes = 4096;
    assert_ok(bp_pinned_create(device, &pinned, &config.pinned));
    s->stores[i] = open_store(device, options != NULL ? options : &SHARDS, &config);
    bp_pinned_destroy(&config.pinned);
}

static void open_end(scene *s, uint32_t comm, uint32_t i, uint32_t place, uint32_t number)
{
    s->ends[comm][i] = (rank){.at = &s->barriers[comm][place],
                              .joint = &s->joints[comm][place],
                              .number = number,
                              .best = BP_REGISTER_SYMMETRIC,
                              .version = 7};
    assert_ok(bp_comm_create(&RANK_OPS, &s->ends[comm][i], comm == 0 ? "dp" : "outer", &s->handles[comm][i]));
}

static void add_entry(scene *s, uint32_t i, uint32_t comm, const char *group)
{
    bp_registration_entry *entry = &s->entries[i][s->count[i]++];
    assert_ok(bp_registration_entry_init(entry, sizeof *entry));
    entry->comm = s->handles[comm][i];
    entry->group = group;
}

static scene *new_scene(uint32_t ranks, uint32_t comms)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->ranks = ranks;
    s->comms = comms;
    return s;
}

scene *new_line(uint32_t ranks, const store_options *options)
{
    scene *s = new_scene(ranks, 1);
    barrier_init(&s->barriers[0][0], ranks);
    barrier_init(&s->joints[0][0], ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        open_rank(s, i, options);
        open_end(s, 0, i, 0, i);
        add_entry(s, i, 0, NULL);
        add_entry(s, i, 0, "persistent");
    }
    return s;
}

scene *new_grid(const char *outer, const store_options *options)
{
    scene *s = new_scene(4, 2);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t comm = 0; comm < 2; comm++) {
            barrier_init(&s->barriers[comm][i], 2);
            barrier_init(&s->joints[comm][i], 2);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        open_rank(s, i, options);
        open_end(s, 0, i, i / 2, i % 2);
        open_end(s, 1, i, i % 2, i / 2);
        add_entry(s, i, 0, NULL);
        add_entry(s, i, 1, outer);
    }
    return s;
}

void close_scene(scene *s)
{
    for (uint32_t i = 0; i < s->ranks; i++) {
        assert_int_equal(s->watches[i].wrong, 0);
        for (uint32_t c = 0; c < s->comms; c++)
            bp_comm_destroy(&s->handles[c][i]);
        close_store(&s->stores[i]);
    }
    for (uint32_t i = 0; i < s->ranks; i++)
        for (uint32_t c = 0; c < s->comms; c++) {
            assert_true(s->ends[c][i].destroyed);
            assert_int_equal(s->ends[c][i].wrong, 0);
            assert_false(s->ends[c][i].at->uneven);
        }
    free(s);
}

/* ---- registration -------------------------------------------------------------------------------------------------- */

static void note(scene *s, uint32_t i, bp_status status)
{
    s->status[i] = status;
    snprintf(s->detail[i], sizeof s->detail[i], "%s", status == BP_OK ? "" : bp_error_detail());
}

void register_rank(void *user, uint32_t i)
{
    scene *s = user;
    note(s, i, bp_registration_create(s->stores[i].k.pool, s->entries[i], s->count[i], &s->made[i]));
}

void deregister_rank(void *user, uint32_t i)
{
    scene *s = user;
    bp_registration_destroy(&s->made[i]);
}

void register_all(scene *s)
{
    run_ranks(s->ranks, register_rank, s);
    assert_all_ok(s);
}

void deregister_all(scene *s)
{
    run_ranks(s->ranks, deregister_rank, s);
    assert_int_equal(live_in(s), 0);
}

size_t live_in(const scene *s)
{
    size_t live = 0;
    for (uint32_t i = 0; i < s->ranks; i++)
        for (uint32_t c = 0; c < s->comms; c++)
            live += live_windows(&s->ends[c][i]);
    return live;
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void call_work(void *user, uint32_t i)
{
    scene *s = user;
    note(s, i, make_stage(&s->stores[i], &s->trip, s->which));
}

void call_all(scene *s, const trip *t, stage which)
{
    s->trip = *t;
    s->which = which;
    run_ranks(s->ranks, call_work, s);
}

void assert_all_ok(const scene *s)
{
    for (uint32_t i = 0; i < s->ranks; i++)
        if (s->status[i] != BP_OK)
            fail_msg("stage %d, rank %u: %s", (int)s->which, i, s->detail[i]);
}

void assert_common(const scene *s, bp_status status, const char *word, const char *more)
{
    for (uint32_t i = 0; i < s->ranks; i++) {
        if (s->status[i] != status)
            fail_msg("stage %d, rank %u: %d \"%s\", expected %d; rank 0: \"%s\"", (int)s->which, i, (int)s->status[i],
                     s->detail[i], (int)status, s->detail[0]);
        if (strstr(s->detail[i], word) == NULL || strstr(s->detail[i], more) == NULL)
            fail_msg("stage %d, rank %u: \"%s\" should say \"%s\" and \"%s\"", (int)s->which, i, s->detail[i], word,
                     more);
    }
}

void assert_all(const scene *s, const char *group, bp_residency residency)
{
    for (uint32_t i = 0; i < s->ranks; i++)
        assert_residency(&s->stores[i], group, residency);
}

void advance_all(scene *s, const trip *t, stage which)
{
    for (int steps = 0; steps < STAGES; steps++) {
        bp_residency now = group_of(s->stores[0].offload, t->group).residency;
        assert_all(s, t->group, now);
        if (now == residency_before(which))
            return;
        stage next = BEGIN_OFFLOAD;
        while (residency_before(next) != now)
            next++;
        call_all(s, t, next);
        assert_all_ok(s);
    }
    assert_all(s, t->group, residency_before(which));
}

void assert_bytes_everywhere(scene *s)
{
    for (uint32_t i = 0; i < s->ranks; i++)
        assert_bytes(&s->stores[i]);
}
