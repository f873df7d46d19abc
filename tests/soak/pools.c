/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of random plans: iterations of their schedules in which every byte is checked, bound requests, traces, snapshots, exports, offload. */
#include "soak.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IDS 64 /* of one event of a schedule */
#define EXPORTS 4

/* A copy of a request's bytes, looked at in stream order. */
typedef struct look {
    struct look *next;
    uint8_t *copy;
    uint64_t bytes;
    uint8_t value;
} look;

static atomic_int wrong;

static void look_now(void *argument)
{
    const look *l = argument;
    for (uint64_t i = 0; i < l->bytes; i++)
        if (l->copy[i] != l->value) {
            atomic_fetch_add(&wrong, 1);
            return;
        }
}

/* ---- benches -------------------------------------------------------------------------------------------------------- */

bp_device *random_device(soak *s, device_kind kind)
{
    bp_device *device = NULL;
    if (kind == HOST) {
        bp_host_config config;
        must_ok(bp_host_config_init(&config, sizeof config));
        config.max_delay_us = chance(&s->dice, 3) ? 20 : 0;
        config.delay_seed = s->dice.state;
        must_ok(bp_device_create_host(&config, &device));
    } else if (kind == NONE) {
        must_ok(bp_device_create_null(&device));
    } else {
        bp_cuda_config config;
        must_ok(bp_cuda_config_init(&config, sizeof config));
        config.driver = s->driver;
        must_ok(bp_device_create_cuda(&config, &device));
    }
    return device;
}

static void promise_streams(bench *b)
{
    const bp_pool_info *info = bp_pool_get_info(b->pool);
    for (uint32_t id = 0; id < info->request_count; id++)
        if (info->requests[id].role == BP_ROLE_PARAM)
            must_ok(bp_pool_set_stream(b->pool, &id, 1, b->streams[BP_LANE_GATHER]));
}

static void open_pinned(bench *b)
{
    bp_pinned_config config;
    void *piece = NULL;
    must_ok(bp_pinned_config_init(&config, sizeof config));
    config.slab_bytes = 8u << 20;
    config.touch_threads = 1;
    config.allocator = chance(b->dice, 2) ? BP_PINNED_AUTO : BP_PINNED_PLAIN;
    must_ok(bp_pinned_create(b->device, &config, &b->pinned));
    must_ok(bp_pinned_allocate(b->pinned, 64, 0, &piece)); /* the slab is pinned now, and not within a capture */
    must_ok(bp_pinned_free(b->pinned, piece));
}

bench open_bench(soak *s, device_kind kind, bool guards)
{
    static const char *const names[LANES] = {"gather", "compute", "reduce", "outer"};
    bench b = {.dice = &s->dice, .has_memory = kind != NONE};
    b.c = random_scenario(b.dice);
    b.plan = random_plan(b.dice, &b.c);
    b.device = random_device(s, kind);
    for (size_t i = 0; i < LANES; i++)
        must_ok(bp_stream_create(b.device, names[i], &b.streams[i]));
    open_pinned(&b);
    bp_pool_config config;
    must_ok(bp_pool_config_init(&config, sizeof config));
    config.guard = guards && kind == HOST && chance(b.dice, 6) ? BP_GUARD_ON : BP_GUARD_OFF;
    config.persistent_bytes = 16384;
    config.overflow_bytes = chance(b.dice, 2) ? 32768 : 0;
    config.capture_check = chance(b.dice, 2) ? BP_CAPTURE_CHECK_ALWAYS : BP_CAPTURE_CHECK_ENVIRONMENT;
    must_ok(bp_pool_create(b.device, b.plan, &config, &b.pool));
    b.tags = calloc(bp_plan_get_info(b.plan)->request_count + 1, 1);
    must(b.tags != NULL);
    if (chance(b.dice, 2))
        promise_streams(&b);
    return b;
}

void close_bench(bench *b)
{
    bp_pool_destroy(&b->pool);
    check_bench(b);
    bp_pinned_destroy(&b->pinned);
    for (size_t i = 0; i < LANES; i++)
        bp_stream_destroy(&b->streams[i]);
    bp_device_usage usage = {.size = sizeof usage};
    must_ok(bp_device_usage_get(b->device, &usage));
    must(usage.committed_bytes == 0 && usage.allocated_bytes == 0 && usage.streams == 0 && usage.events == 0);
    bp_device_destroy(&b->device);
    bp_plan_destroy(&b->plan);
    free_scenario(&b->c);
    free(b->tags);
}

/* ---- iterations ------------------------------------------------------------------------------------------------------ */

static void read_request(bench *b, uint32_t id, bp_stream *stream)
{
    void *address, *copy = NULL;
    uint64_t bytes;
    if (!b->has_memory)
        return;
    must_ok(bp_pool_address(b->pool, id, &address, &bytes));
    bp_status status = bp_pinned_allocate(b->pinned, bytes, 0, &copy);
    if (status == BP_ERR_NO_HOST_MEMORY) /* of earlier reads */
        return;
    must_ok(status);
    look *l = malloc(sizeof *l);
    must(l != NULL);
    *l = (look){.next = b->looks, .copy = copy, .bytes = bytes, .value = b->tags[id]};
    b->looks = l;
    must_ok(bp_stream_copy(stream, copy, address, bytes));
    must_ok(bp_stream_call(stream, look_now, l));
}

void check_bench(bench *b)
{
    must_ok(bp_device_synchronize(b->device));
    must(atomic_load(&wrong) == 0);
    for (look *l = b->looks, *next; l != NULL; l = next) {
        next = l->next;
        must_ok(bp_pinned_free(b->pinned, l->copy));
        free(l);
    }
    b->looks = NULL;
}

/* Work of all streams from now on sees what the stream has now. */
static void publish(bench *b, bp_stream *stream)
{
    bp_event *event = NULL;
    must_ok(bp_event_create(b->device, &event));
    must_ok(bp_event_record(event, stream));
    for (size_t i = 0; i < LANES; i++)
        if (b->streams[i] != stream)
            must_ok(bp_stream_wait(b->streams[i], event));
    bp_event_destroy(&event);
}

static void fill(bench *b, const uint32_t *ids, size_t count, void *const *addresses, bp_stream *stream)
{
    for (size_t i = 0; i < count; i++) {
        void *address;
        uint64_t bytes;
        must_ok(bp_pool_address(b->pool, ids[i], &address, &bytes));
        must(address == addresses[i]);
        b->tags[ids[i]] = ++b->tag;
        if (b->has_memory)
            must_ok(bp_stream_fill(stream, address, b->tag, bytes));
    }
    publish(b, stream);
}

static void acquire_ids(bench *b, const uint32_t *ids, size_t count, bp_stream *stream)
{
    void *addresses[MAX_IDS];
    int acquired = 1;
    if (chance(b->dice, 3))
        must_ok(bp_pool_try_acquire(b->pool, ids, count, stream, addresses, &acquired));
    else
        must_ok(bp_pool_acquire(b->pool, ids, count, stream, addresses));
    must(acquired == 1);
    fill(b, ids, count, addresses, stream);
    if (chance(b->dice, 4)) { /* a second reference */
        must_ok(bp_pool_acquire(b->pool, ids, 1, stream, NULL));
        must_ok(bp_pool_release(b->pool, ids, 1, stream));
    }
    if (chance(b->dice, 4)) {
        bp_stream *other = b->streams[below(b->dice, LANES)];
        must_ok(bp_pool_use(b->pool, ids, count, other));
        read_request(b, ids[0], other);
    }
}

static bool is_held(const bench *b, uint32_t id)
{
    for (size_t i = 0; i < b->state_count; i++)
        if (b->state[i] == id)
            return true;
    return false;
}

void iterate(bench *b)
{
    const bp_schedule_info *schedule = bp_schedule_get_info(b->c.schedule);
    for (size_t e = 0; e < schedule->event_count; e++) {
        const bp_schedule_event *event = &schedule->events[e];
        bp_stream *stream = b->streams[event->lane];
        uint32_t ids[MAX_IDS];
        size_t count = 0;
        must(event->request_count <= MAX_IDS);
        for (uint32_t i = 0; i < event->request_count; i++)
            if (!is_held(b, event->first_request + i))
                ids[count++] = event->first_request + i;
        if (count == 0)
            continue;
        if (event->acquire) {
            acquire_ids(b, ids, count, stream);
            continue;
        }
        for (size_t i = 0; i < count; i++)
            read_request(b, ids[i], stream);
        must_ok(bp_pool_release(b->pool, ids, count, stream));
    }
}

void hold_state(bench *b)
{
    const bp_plan_info *plan = bp_plan_get_info(b->plan);
    bp_stream *stream = b->streams[BP_LANE_COMPUTE];
    for (uint32_t id = 0; id < plan->request_count; id++) {
        void *address;
        if ((BP_ROLES_STATE & BP_ROLE_BIT(plan->requests[id].role)) == 0 || b->state_count == MAX_STATE)
            continue;
        must_ok(bp_pool_acquire(b->pool, &id, 1, stream, &address));
        fill(b, &id, 1, &address, stream);
        b->state[b->state_count++] = id;
    }
}

void read_state(bench *b)
{
    for (size_t i = 0; i < b->state_count; i++)
        read_request(b, b->state[i], b->streams[BP_LANE_COMPUTE]);
}

/* ---- what else a pool does ------------------------------------------------------------------------------------------ */

static void bind_requests(soak *s, bench *b)
{
    for (uint32_t n = 0; n < 3; n++) {
        bp_bind bind;
        uint32_t id, ids[2];
        void *address;
        must_ok(bp_bind_init(&bind, sizeof bind));
        bind.unit = "bound";
        bind.ordinal = n;
        bind.role = BP_ROLE_PARAM;
        bind.dtype = BP_DTYPE_BF16;
        bind.bytes = 512;
        bind.used_bytes = 500;
        bind.placement = n == 0 ? BP_PLACE_PERSISTENT : BP_PLACE_DYNAMIC;
        must_ok(bp_pool_bind(b->pool, &bind, &id));
        must_ok(bp_pool_set_zero(b->pool, &id, 1, BP_ZERO_PADDING));
        must_ok(bp_pool_acquire(b->pool, &id, 1, b->streams[0], &address));
        ids[0] = ids[1] = id;
        must(bp_pool_acquire(b->pool, ids, 2, b->streams[0], NULL) == BP_ERR_INVALID_ARGUMENT);
        s->refusals++;
        if (n == 1)
            must_ok(bp_pool_cancel(b->pool, &id, 1));
        else
            must_ok(bp_pool_release(b->pool, &id, 1, b->streams[1]));
    }
}

/* A plan of what was recorded. */
static void replan(bench *b)
{
    bp_schedule *schedule = NULL;
    bp_plan *plan = NULL;
    bp_recorded_config config;
    must_ok(bp_recorded_config_init(&config, sizeof config));
    config.partial = 1;
    must_ok(bp_pool_trace_to_model(b->pool, 7, 7, b->c.model));
    must_ok(bp_schedule_create_recorded(b->c.model, b->c.buckets, &config, &schedule));
    must_ok(bp_plan_create(b->c.buckets, schedule, NULL, &plan));
    bp_plan_destroy(&plan);
    bp_schedule_destroy(&schedule);
}

static void trace(bench *b)
{
    char text[4096];
    size_t needed;
    uint64_t hash, acquires;
    must_ok(bp_pool_trace_start(b->pool, 4096, chance(b->dice, 2)));
    bp_pool_set_step(b->pool, 7);
    iterate(b);
    must_ok(bp_pool_dump(b->pool, text, sizeof text, &needed));
    must_ok(bp_pool_sequence(b->pool, &hash, &acquires));
    bp_pool_trace_stop(b->pool);
    if (bp_pool_trace_count(b->pool) < 4096 && bp_model_get_info(b->c.model)->event_count == 0)
        replan(b);
}

static void profile(soak *s, bench *b)
{
    char folder[512];
    bp_profile_config config;
    bp_profile *made = NULL;
    snprintf(folder, sizeof folder, "%s", path_in(s, "snapshots"));
    must_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = folder;
    config.max_entries = 256;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = (const bp_plan *const[]){b->plan};
    must_ok(bp_profile_create(&b->pool, 1, &config, &made));
    for (uint64_t step = 0; step < 3; step++) {
        must_ok(bp_profile_step(made, step));
        iterate(b);
    }
    must_ok(bp_profile_write(made, BP_PROFILE_PICKLE, own_path(s, "pickle")));
    bp_profile_destroy(&made);
}

static size_t export_requests(bench *b, void **tensors)
{
    const bp_plan_info *plan = bp_plan_get_info(b->plan);
    size_t count = 0;
    for (size_t i = 0; i < EXPORTS; i++) {
        bp_export_config config;
        must_ok(bp_export_config_init(&config, sizeof config));
        config.id = below(b->dice, (uint32_t)plan->request_count);
        config.versioned = chance(b->dice, 2);
        bp_status status = bp_pool_export(b->pool, &config, &tensors[count]);
        bp_placement placement = plan->requests[config.id].placement;
        must(status == BP_OK || placement == BP_PLACE_DYNAMIC || placement == BP_PLACE_NONE || !b->has_memory);
        count += status == BP_OK;
    }
    return count;
}

static void *delete_tensors(void *argument)
{
    void **tensors = argument;
    for (size_t i = 0; i < EXPORTS; i++)
        bp_export_delete(&tensors[i]);
    return NULL;
}

void pool_round(soak *s, device_kind kind)
{
    void *tensors[EXPORTS] = {NULL};
    bench b = open_bench(s, kind, true);
    bp_comm *comm = NULL;
    bp_registration *registration = NULL;
    bp_registration_entry entry;
    bool registers = chance(b.dice, 2);
    if (registers) {
        must_ok(bp_registration_entry_init(&entry, sizeof entry));
        must_ok(bp_comm_create_self(&comm));
        entry.comm = comm;
        must_ok(bp_registration_create(b.pool, &entry, 1, &registration));
    }
    bind_requests(s, &b);
    iterate(&b);
    check_bench(&b);
    trace(&b);
    if (chance(b.dice, 3))
        profile(s, &b);
    must(bp_pool_acquire(b.pool, &(uint32_t){UINT32_MAX}, 1, b.streams[0], NULL) == BP_ERR_INVALID_ARGUMENT);
    s->refusals++;
    if (bp_plan_get_info(b.plan)->stable && chance(b.dice, 3)) {
        must_ok(bp_pool_seal(b.pool));
        iterate(&b);
    }
    check_bench(&b);
    size_t exported = export_requests(&b, tensors);
    if (chance(b.dice, 2))
        bp_registration_destroy(&registration); /* else the pool ends it */
    if (exported == 0) {
        close_bench(&b);
    } else { /* tensors keep the memory of a destroyed pool; the last one frees it, on any thread */
        pthread_t thread;
        bp_pool_destroy(&b.pool);
        must(pthread_create(&thread, NULL, delete_tensors, tensors) == 0);
        must(pthread_join(thread, NULL) == 0);
        close_bench(&b);
    }
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
}

/* ---- offload -------------------------------------------------------------------------------------------------------- */

#define MAX_GROUPS 16

/* Everything is released but state, whose bytes survive. */
static void leave_and_return(soak *s, bench *b, bp_offload *offload)
{
    bp_offload_group groups[MAX_GROUPS] = {{.size = sizeof groups[0]}};
    bool away[MAX_GROUPS] = {false};
    size_t count = 0;
    must_ok(bp_offload_groups(offload, groups, MAX_GROUPS, &count));
    must(count <= MAX_GROUPS);
    for (size_t i = 0; i < count; i++) {
        if (chance(b->dice, 3))
            continue;
        bp_status status = bp_offload_begin(offload, groups[i].name, BP_OFFLOAD_KEEP);
        if (status == BP_ERR_UNSUPPORTED) /* a joint slab */
            status = bp_offload_begin(offload, groups[i].name, BP_OFFLOAD_DISCARD);
        must_ok(status);
        away[i] = true;
    }
    must(bp_offload_begin(offload, "unknown", BP_OFFLOAD_KEEP) == BP_ERR_INVALID_ARGUMENT);
    s->refusals++;
    for (size_t i = 0; i < count; i++)
        if (away[i])
            must_ok(bp_offload_finish(offload, groups[i].name));
    for (size_t i = 0; i < count; i++)
        if (away[i])
            must_ok(bp_restore_begin(offload, groups[i].name, chance(b->dice, 2) ? BP_RESTORE_ZERO : BP_RESTORE_LEAVE));
    for (size_t i = 0; i < count; i++)
        if (away[i])
            must_ok(bp_restore_finish(offload, groups[i].name));
}

void offload_round(soak *s, device_kind kind)
{
    bench b = open_bench(s, kind, false);
    bp_offload *offload = NULL;
    bp_offload_config config;
    bp_lease *lease = NULL;
    must_ok(bp_offload_config_init(&config, sizeof config));
    config.pinned = chance(b.dice, 2) ? b.pinned : NULL;
    config.backing = (bp_backing)below(b.dice, 3);
    config.chunk_bytes = 1u << 16;
    must_ok(bp_offload_create(b.pool, &config, &offload));
    if (bp_plan_get_info(b.plan)->policy != BP_POLICY_DYNAMIC)
        hold_state(&b);
    for (uint32_t n = 1 + below(b.dice, 3); n > 0; n--) {
        iterate(&b);
        read_state(&b);
        if (config.pinned != NULL)
            check_bench(&b); /* what was read fills the pinned memory */
        leave_and_return(s, &b, offload);
        if (bp_lease_take(offload, "state", "soak", &lease) == BP_OK)
            must(bp_offload_begin(offload, "state", BP_OFFLOAD_DISCARD) == BP_ERR_SCHEDULE);
        bp_lease_return(&lease);
        read_state(&b);
        check_bench(&b);
        if (chance(b.dice, 3))
            bp_offload_trim(offload);
    }
    if (chance(b.dice, 2))
        bp_pool_destroy(&b.pool);
    bp_offload_destroy(&offload);
    close_bench(&b);
}

/* ---- pools that last ------------------------------------------------------------------------------------------------- */

struct standing {
    bench benches[2]; /* with fixed addresses, and with dynamic memory */
    bp_offload *offload;
    bp_profile *profile;
    uint64_t step;
};

void begin_standing(soak *s)
{
    bp_profile_config config;
    struct standing *t = s->standing = calloc(1, sizeof *t);
    must(t != NULL);
    for (int i = 0; i < 2; i++) {
        t->benches[i] = open_bench(s, HOST, false);
        while (bp_plan_get_info(t->benches[i].plan)->stable != (i == 0)) {
            close_bench(&t->benches[i]);
            t->benches[i] = open_bench(s, HOST, false);
        }
    }
    must_ok(bp_offload_create(t->benches[0].pool, NULL, &t->offload));
    must_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = path_in(s, "standing");
    config.max_entries = 256;
    config.profile_steps = (const uint64_t[]){0};
    config.profile_step_count = 0;
    must_ok(bp_profile_create(&t->benches[1].pool, 1, &config, &t->profile));
}

void standing_round(soak *s)
{
    struct standing *t = s->standing;
    bool records = chance(&s->dice, 4);
    must_ok(bp_profile_step(t->profile, t->step++));
    if (records)
        must_ok(bp_profile_start(t->profile, "part"));
    for (int i = 0; i < 2; i++) {
        iterate(&t->benches[i]);
        iterate(&t->benches[i]);
        check_bench(&t->benches[i]);
    }
    if (records)
        must_ok(bp_profile_stop(t->profile));
    leave_and_return(s, &t->benches[0], t->offload);
    if (chance(&s->dice, 4))
        bp_offload_trim(t->offload);
}

void end_standing(soak *s)
{
    struct standing *t = s->standing;
    bp_profile_destroy(&t->profile);
    bp_offload_destroy(&t->offload);
    for (int i = 0; i < 2; i++)
        close_bench(&t->benches[i]);
    free(t);
    s->standing = NULL;
}
