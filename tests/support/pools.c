/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of allocators and devices, and small pools. */
#include <bucketpool/pool.h>

#include "brief.h"
#include "driver.h"
#include "pools.h"

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

const allocator_row ALLOCATORS[] = {
    {"dynamic", BP_POLICY_DYNAMIC, BP_STRICT_ERROR, false, false},
    {"fixed", BP_POLICY_FIXED, BP_STRICT_ERROR, true, true},
    {"max", BP_POLICY_MAX, BP_STRICT_ERROR, true, true},
    {"max, any copy", BP_POLICY_MAX, BP_STRICT_OFF, true, false},
    {"scheduled", BP_POLICY_SCHEDULED, BP_STRICT_ERROR, true, true},
};
const size_t ALLOCATOR_COUNT = sizeof ALLOCATORS / sizeof *ALLOCATORS;

static op_counts all_calls;

static bp_device *new_traced_host(void)
{
    return new_counted(new_host(), &all_calls);
}

static bp_device *new_traced_cuda(void)
{
    return new_counted(new_cuda(), &all_calls);
}

static const device_row ON_THE_HOST[] = {
    {"host", new_host, HOST_READS}, {"null", new_null, NO_MEMORY}, {"trace(host)", new_traced_host, HOST_READS}};
static const device_row ON_A_DRIVER[] = {{"cuda", new_cuda, BY_COPY}, {"trace(cuda)", new_traced_cuda, BY_COPY}};

size_t device_count(void)
{
    return has_driver() ? sizeof ON_A_DRIVER / sizeof *ON_A_DRIVER : sizeof ON_THE_HOST / sizeof *ON_THE_HOST;
}

const device_row *device_at(size_t row)
{
    return has_driver() ? &ON_A_DRIVER[row] : &ON_THE_HOST[row];
}

const device_row *light_device(void)
{
    return has_driver() ? &ON_A_DRIVER[0] : &ON_THE_HOST[1];
}

bp_device *new_slow_device(uint32_t max_delay_us, uint64_t delay_seed)
{
    return has_driver() ? new_cuda() : new_slow_host(max_delay_us, delay_seed);
}

bp_device *new_device(void)
{
    return new_slow_device(0, 0);
}

bp_device *new_slow_host(uint32_t max_delay_us, uint64_t delay_seed)
{
    bp_host_config config;
    assert_ok(bp_host_config_init(&config, sizeof config));
    config.max_delay_us = max_delay_us;
    config.delay_seed = delay_seed;
    bp_device *device = NULL;
    assert_ok(bp_device_create_host(&config, &device));
    return device;
}

bp_device *new_host(void)
{
    return new_slow_host(0, 0);
}

bp_device *new_null(void)
{
    bp_device *device = NULL;
    assert_ok(bp_device_create_null(&device));
    return device;
}

static bp_status count_call(void *user, const device_call *call)
{
    op_counts *counts = user;
    if (call->operation < OP_COUNT)
        atomic_fetch_add(&counts->calls[call->operation], 1);
    return BP_OK;
}

bp_device *new_counted(bp_device *inner, op_counts *counts)
{
    bp_device *device = NULL;
    assert_ok(trace_device_create(inner, count_call, counts, &device));
    bp_device_destroy(&inner);
    return device;
}

bool is_brief(void)
{
    return in_brief();
}

bp_device_usage usage_of(const bp_device *device)
{
    bp_device_usage usage = {.size = sizeof usage};
    assert_ok(bp_device_usage_get(device, &usage));
    return usage;
}

/* ---- fixtures ------------------------------------------------------------------------------------------------------- */

const scenario_options TRAINING = {.roles = PARAM | GRAD, .prefetch = 1, .grad_units = 2};

bp_model *model_of(const char *units)
{
    bp_model *model = new_model();
    int32_t unit = BP_OUTSIDE;
    for (uint32_t count = 0; *units != '\0'; units += *units != '\0') {
        if (unit == BP_OUTSIDE)
            unit = add_numbered_unit(model, count++);
        if (*units == '-')
            units++;
        else {
            bp_given_bucket bucket = {.size = sizeof bucket, .unit = unit, .dtype = BP_DTYPE_BF16};
            char *end;
            bucket.numel = strtoull(units, &end, 10);
            if (*end == '/')
                bucket.padded_numel = strtoull(end + 1, &end, 10);
            for (; *end == 'f' || *end == 'q'; end++) {
                bucket.frozen |= *end == 'f';
                bucket.dtype = *end == 'q' ? BP_DTYPE_FP8_E4M3 : bucket.dtype;
            }
            assert_ok(bp_model_add_bucket(model, &bucket));
            units = end;
        }
        if (*units != ',')
            unit = BP_OUTSIDE;
    }
    return model;
}

kit begin_kit(bp_device *device, const char *units, scenario_options options, bp_policy policy, uint32_t copies)
{
    kit k = {.device = device};
    if (units != NULL) {
        k.w = make_scenario(model_of(units), options);
        k.plan = make_plan(&k.w, policy, copies, BP_FALLBACK_PERSISTENT);
    }
    for (int i = 0; i < KIT_STREAMS; i++) {
        const char name[] = {'s', (char)('0' + i), '\0'};
        assert_ok(bp_stream_create(device, name, &k.streams[i]));
    }
    return k;
}

void end_kit(kit *k)
{
    bp_pool_destroy(&k->pool);
    assert_null(k->pool);
    for (int i = 0; i < KIT_STREAMS; i++)
        bp_stream_destroy(&k->streams[i]);
    bp_device_usage usage = usage_of(k->device);
    assert_int_equal(usage.committed_bytes, 0);
    assert_int_equal(usage.allocated_bytes, 0);
    assert_int_equal(usage.streams, 0);
    assert_int_equal(usage.events, 0);
    bp_device_destroy(&k->device);
    bp_plan_destroy(&k->plan);
    free_scenario(&k->w);
    free(k->ids);
    k->ids = NULL;
}

bp_pool_config pool_config(void)
{
    bp_pool_config config;
    assert_ok(bp_pool_config_init(&config, sizeof config));
    return config;
}

bp_pool_config config_of(const allocator_row *row)
{
    bp_pool_config config = pool_config();
    config.strict = row->strict;
    return config;
}

void open_pool(kit *k, const bp_pool_config *config)
{
    assert_ok(bp_pool_create(k->device, k->plan, config, &k->pool));
    number_requests(k);
}

kit start_kit(bp_device *device, const char *units, scenario_options options, bp_policy policy, uint32_t copies)
{
    kit k = begin_kit(device, units, options, policy, copies);
    open_pool(&k, NULL);
    return k;
}

void number_requests(kit *k)
{
    k->requests = bp_plan_get_info(k->plan)->request_count;
    assert_int_equal(bp_pool_get_info(k->pool)->request_count, k->requests);
    free(k->ids);
    k->ids = calloc(k->requests + 1, sizeof *k->ids);
    assert_non_null(k->ids);
    for (uint32_t i = 0; i < k->requests; i++)
        k->ids[i] = i;
}

void promise_stream(const kit *k, bp_role role, bp_stream *stream)
{
    const bp_plan_request *requests = bp_pool_get_info(k->pool)->requests;
    for (uint32_t id = 0; id < k->requests; id++) {
        if (requests[id].role == role)
            assert_ok(bp_pool_set_stream(k->pool, &id, 1, stream));
    }
}

kit open_kit(const allocator_row *row, const device_row *device)
{
    kit k = begin_kit(device->create(), UNITS, TRAINING, row->policy, 0);
    bp_pool_config config = config_of(row);
    config.persistent_bytes = 4096;
    open_pool(&k, &config);
    return k;
}

uint32_t id_of(const kit *k, uint32_t unit, bp_role role, uint32_t ordinal)
{
    const bp_pool_info *info = bp_pool_get_info(k->pool);
    char name[16];
    snprintf(name, sizeof name, "u%u", unit);
    for (uint32_t id = 0; id < info->request_count; id++) {
        const bp_plan_request *r = &info->requests[id];
        if (strcmp(r->unit, name) == 0 && r->ordinal == ordinal && r->role == role)
            return id;
    }
    fail_msg("no request %s/%u, role %d", name, ordinal, (int)role);
    return 0;
}

uint32_t param(const kit *k, uint32_t unit)
{
    return id_of(k, unit, BP_ROLE_PARAM, 0);
}

bp_bind bind_of(const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype, uint64_t bytes)
{
    bp_bind bind;
    assert_ok(bp_bind_init(&bind, sizeof bind));
    bind.unit = unit;
    bind.ordinal = ordinal;
    bind.role = role;
    bind.dtype = dtype;
    bind.bytes = bytes;
    bind.used_bytes = bytes;
    return bind;
}

/* ---- references ---------------------------------------------------------------------------------------------------- */

void *take(const kit *k, uint32_t id, bp_stream *stream)
{
    void *address = NULL;
    assert_ok(bp_pool_acquire(k->pool, &id, 1, stream, &address));
    return address;
}

void drop(const kit *k, uint32_t id, bp_stream *stream)
{
    assert_ok(bp_pool_release(k->pool, &id, 1, stream));
}

bool try_take(const kit *k, uint32_t id, bp_stream *stream)
{
    int acquired = -1;
    void *address = NULL;
    assert_ok(bp_pool_try_acquire(k->pool, &id, 1, stream, &address, &acquired));
    assert_in_range(acquired, 0, 1);
    assert_true(acquired == 1 || address == NULL);
    return acquired == 1;
}

void check_refused(const kit *k, uint32_t id, bp_stream *stream, const char *const *words, const char *file, int line)
{
    snapshot before = snapshot_of(k->pool);
    uint64_t refused = statistics_of(k->pool).refused;
    void *address = &before;
    bp_status status = bp_pool_acquire(k->pool, &id, 1, stream, &address);
    check_failure(status, BP_ERR_SCHEDULE, words, file, line);
    assert_ptr_equal(address, &before);
    assert_unchanged(k->pool, &before);
    assert_int_equal(statistics_of(k->pool).refused, refused + 1);
}

bp_pool_statistics statistics_of(const bp_pool *pool)
{
    bp_pool_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_pool_statistics_get(pool, &statistics));
    return statistics;
}

size_t live_count(const bp_pool *pool)
{
    size_t count = SIZE_MAX;
    assert_ok(bp_pool_live(pool, NULL, 0, &count));
    return count;
}

void *address_of(const kit *k, uint32_t id)
{
    void *address = NULL;
    uint64_t bytes;
    assert_ok(bp_pool_address(k->pool, id, &address, &bytes));
    return address;
}

snapshot snapshot_of(const bp_pool *pool)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    for (size_t i = 0; i < SNAPSHOT_LIVE; i++)
        s.live[i].size = sizeof *s.live;
    assert_ok(bp_pool_live(pool, s.live, SNAPSHOT_LIVE, &s.live_count));
    assert_true(s.live_count <= SNAPSHOT_LIVE);
    bp_pool_statistics now = statistics_of(pool);
    const uint64_t numbers[] = {now.slab_bytes, now.requests,  now.acquires,   now.repeated,   now.releases,
                                now.cancelled,  now.overflows, now.deviations, now.live_bytes, now.live_requests};
    memcpy(s.numbers, numbers, sizeof numbers);
    assert_ok(bp_pool_sequence(pool, &s.numbers[10], &s.numbers[11]));
    return s;
}

void assert_unchanged(const bp_pool *pool, const snapshot *before)
{
    snapshot now = snapshot_of(pool);
    assert_memory_equal(now.numbers, before->numbers, sizeof now.numbers);
    assert_int_equal(now.live_count, before->live_count);
    for (size_t i = 0; i < now.live_count; i++) {
        assert_int_equal(now.live[i].id, before->live[i].id);
        assert_int_equal(now.live[i].references, before->live[i].references);
        assert_ptr_equal(now.live[i].address, before->live[i].address);
        assert_int_equal(now.live[i].acquire_number, before->live[i].acquire_number);
    }
}
