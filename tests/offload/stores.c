/* SPDX-License-Identifier: Apache-2.0 */
/* Pools with several release groups. */
#include <bucketpool/device_ops.h>

#include "devices/device.h"
#include "stores.h"

#define COMPARED_BYTES UINT64_C(4096)
#define ALL_ROLES (PARAM | GRAD | STATE | MAIN_GRAD | OPTIMIZER)

/* ---- opening ------------------------------------------------------------------------------------------------------- */

bp_offload_config offload_config(uint64_t chunk_bytes, bp_backing backing)
{
    bp_offload_config config;
    assert_ok(bp_offload_config_init(&config, sizeof config));
    config.chunk_bytes = chunk_bytes;
    config.backing = backing;
    return config;
}

static bp_plan *plan_store(const scenario *w, const store_options *options)
{
    bp_plan_config config =
        plan_config(options->policy != 0 ? options->policy : BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    bp_plan *plan = NULL;
    config.joint = options->joint;
    if (options->joint)
        config.policy = BP_POLICY_SCHEDULED;
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &plan));
    for (size_t i = 0; i < bp_plan_get_info(plan)->slab_count; i++)
        if (options->groups[i] != NULL)
            assert_ok(bp_plan_set_group(plan, i, options->groups[i]));
    return plan;
}

static void bind_persistent(store *s, uint64_t bytes)
{
    s->persistent = UINT32_MAX;
    if (bytes == 0)
        return;
    bp_bind bind = bind_of("", 7, BP_ROLE_PARAM, BP_DTYPE_BF16, bytes / ALIGNMENT * ALIGNMENT);
    assert_ok(bp_pool_bind(s->k.pool, &bind, &s->persistent));
}

static void note_slabs(store *s)
{
    s->slab_count = bp_pool_get_info(s->k.pool)->slab_count;
    assert_true(s->slab_count <= MAX_SLABS);
    for (size_t i = 0; i < s->slab_count; i++) {
        s->slabs[i] = bp_pool_get_info(s->k.pool)->slabs[i];
        s->bytes[i] = calloc(1, s->slabs[i].bytes);
        s->known[i] = calloc(1, s->slabs[i].bytes);
        assert_true(s->bytes[i] != NULL && s->known[i] != NULL);
    }
}

static void hold_state(store *s)
{
    for (size_t i = 0; i < s->k.requests; i++) {
        if (is_state(request_at(s, s->k.ids[i])))
            take(&s->k, s->k.ids[i], s->k.streams[0]);
    }
    if (s->persistent != UINT32_MAX)
        take(&s->k, s->persistent, s->k.streams[0]);
}

store open_store(bp_device *device, const store_options *options, const bp_offload_config *config)
{
    static const store_options USUAL = {0};
    const store_options *o = options != NULL ? options : &USUAL;
    store s = {.k = begin_kit(device, NULL, TRAINING, BP_POLICY_MAX, 0)};
    scenario_options training = TRAINING;
    training.roles = o->roles != 0 ? o->roles : ALL_ROLES;
    s.k.w = make_scenario(model_of(o->units != NULL ? o->units : STORE_UNITS), training);
    s.k.plan = plan_store(&s.k.w, o);
    bp_pool_config pool = pool_config();
    pool.guard = BP_GUARD_OFF;
    pool.persistent_bytes = o->persistent_bytes;
    pool.overflow_bytes = o->overflow_bytes;
    open_pool(&s.k, &pool);
    bind_persistent(&s, o->persistent_bytes);
    note_slabs(&s);
    if (o->bare)
        return s;
    hold_state(&s);
    for (size_t i = 0; i < s.slab_count; i++)
        write_slab(&s, i, s.k.streams[0]);
    assert_ok(bp_stream_synchronize(s.k.streams[0]));
    assert_ok(bp_offload_create(s.k.pool, config, &s.offload));
    return s;
}

void drop_store(store *s)
{
    bp_offload_destroy(&s->offload);
    assert_null(s->offload);
    bp_pool_destroy(&s->k.pool);
    for (size_t i = 0; i < s->slab_count; i++) {
        free(s->bytes[i]);
        free(s->known[i]);
    }
}

void close_store(store *s)
{
    drop_store(s);
    end_kit(&s->k);
}

uint64_t granularity_of(const bp_device *device)
{
    void *self;
    bp_device_traits traits = {.size = sizeof traits};
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_ok(ops->traits(self, &traits));
    return traits.granularity;
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* No byte is zero: discarded memory may be. */
static uint64_t word_of(uint32_t number, uint64_t at)
{
    uint64_t x = ((uint64_t)number + 1) * 0x9e3779b97f4a7c15u + at * 0x94d049bb133111ebu;
    return (x ^ x >> 29 ^ x >> 47) | 0x0101010101010101u;
}

static void write_bytes(store *s, size_t slab, uint64_t offset, uint64_t bytes, bp_stream *stream)
{
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t word = word_of(s->writes, i), left = bytes - i;
        memcpy(copy + i, &word, left < sizeof word ? left : sizeof word);
    }
    s->writes++;
    memcpy(s->bytes[slab] + offset, copy, bytes);
    memset(s->known[slab] + offset, 1, bytes);
    assert_ok(bp_stream_copy(stream, (uint8_t *)s->slabs[slab].address + offset, copy, bytes));
    assert_ok(bp_stream_call(stream, free, copy));
}

void write_slab(store *s, size_t slab, bp_stream *stream)
{
    write_bytes(s, slab, 0, s->slabs[slab].bytes, stream);
}

static size_t slab_with(const store *s, const void *address)
{
    for (size_t i = 0; i < s->slab_count; i++)
        if ((uintptr_t)address - (uintptr_t)s->slabs[i].address < s->slabs[i].bytes)
            return i;
    fail_msg("%p is in no slab", address);
    return 0;
}

void write_request(store *s, uint32_t id, bp_stream *stream)
{
    void *address = NULL;
    uint64_t bytes;
    assert_ok(bp_pool_address(s->k.pool, id, &address, &bytes));
    size_t slab = slab_with(s, address);
    write_bytes(s, slab, (uintptr_t)address - (uintptr_t)s->slabs[slab].address, bytes, stream);
}

void work_on(store *s, uint32_t id, bp_stream *first, bp_stream *last)
{
    take(&s->k, id, first);
    write_request(s, id, first);
    if (last != first)
        order(s->k.device, first, last);
    drop(&s->k, id, last);
}

static bool has_memory(const store *s, size_t slab)
{
    return s->offload == NULL || group_of(s->offload, s->slabs[slab].group).residency == BP_RESIDENT;
}

/* The slab after the present work of all streams. */
static uint8_t *read_slab(store *s, size_t slab)
{
    uint8_t *found = malloc(s->slabs[slab].bytes);
    assert_non_null(found);
    for (int i = 0; i < KIT_STREAMS - 1; i++)
        order(s->k.device, s->k.streams[i], s->k.streams[KIT_STREAMS - 1]);
    assert_ok(bp_stream_copy(s->k.streams[KIT_STREAMS - 1], found, s->slabs[slab].address, s->slabs[slab].bytes));
    assert_ok(bp_stream_synchronize(s->k.streams[KIT_STREAMS - 1]));
    return found;
}

static void assert_block(const store *s, size_t slab, const uint8_t *found, uint64_t first, uint64_t bytes)
{
    for (uint64_t i = first; i < first + bytes; i++)
        if (s->known[slab][i] && found[i] != s->bytes[slab][i])
            fail_msg("slab %zu (%s), byte %llu of %llu (%llu planned): %u, not %u", slab, s->slabs[slab].group,
                     (unsigned long long)i, (unsigned long long)s->slabs[slab].bytes,
                     (unsigned long long)s->slabs[slab].planned_bytes, found[i], s->bytes[slab][i]);
}

/* Compares bytes only in blocks that differ: slabs are megabytes if the granularity is. */
static void assert_slab_bytes(store *s, size_t slab)
{
    uint8_t *found = read_slab(s, slab);
    for (uint64_t i = 0, block; i < s->slabs[slab].bytes; i += block) {
        block = s->slabs[slab].bytes - i < COMPARED_BYTES ? s->slabs[slab].bytes - i : COMPARED_BYTES;
        if (memcmp(found + i, s->bytes[slab] + i, block) != 0)
            assert_block(s, slab, found, i, block);
    }
    free(found);
}

void assert_bytes(store *s)
{
    for (size_t i = 0; i < s->slab_count; i++)
        if (has_memory(s, i))
            assert_slab_bytes(s, i);
}

void assert_group_bytes(store *s, const char *group)
{
    assert_residency(s, group, BP_RESIDENT);
    for (size_t i = 0; i < s->slab_count; i++)
        if (is_in_group(s, i, group))
            assert_slab_bytes(s, i);
}

bool group_is_zero(store *s, const char *group)
{
    bool zero = true;
    for (size_t i = 0; i < s->slab_count; i++) {
        if (!is_in_group(s, i, group))
            continue;
        uint8_t *found = read_slab(s, i);
        for (uint64_t b = 0; b < s->slabs[i].bytes; b++)
            zero = zero && found[b] == 0;
        free(found);
    }
    return zero;
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

const bp_plan_request *request_at(const store *s, uint32_t id)
{
    assert_true(id < bp_pool_get_info(s->k.pool)->request_count);
    return &bp_pool_get_info(s->k.pool)->requests[id];
}

bool is_state(const bp_plan_request *request)
{
    return (BP_ROLE_BIT(request->role) & BP_ROLES_STATE) != 0;
}

uint32_t of_role(const store *s, bp_role role)
{
    for (size_t i = 0; i < s->k.requests; i++)
        if (request_at(s, s->k.ids[i])->role == (uint32_t)role)
            return s->k.ids[i];
    fail_msg("no request of role %d", (int)role);
    return 0;
}

const char *group_of_request(const store *s, uint32_t id)
{
    void *address = NULL;
    uint64_t bytes;
    if (bp_pool_address(s->k.pool, id, &address, &bytes) != BP_OK)
        fail_msg("request %u: %s", id, bp_error_detail());
    return s->slabs[slab_with(s, address)].group;
}
