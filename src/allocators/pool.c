/* Pools: made from a plan, and given back. */
#include "allocators/pool.h"

#include <stdlib.h>
#include <string.h>

#include "allocators/annotations.h"
#include "allocators/capture.h"
#include "allocators/dynamic.h"
#include "allocators/guarded.h"
#include "allocators/known.h"
#include "allocators/layout.h"
#include "allocators/lend.h"
#include "allocators/recorder.h"
#include "allocators/residency.h"
#include "core/arith.h"
#include "core/fail.h"

bp_status bp_pool_config_init(bp_pool_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_pool_config){
        .size = sizeof *config, .selection = BP_SELECT_ASSIGNED, .strict = BP_STRICT_ERROR, .extra_requests = 4096};
    return BP_OK;
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status check_config(const bp_pool_config *c)
{
    if (c->size < sizeof *c)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: the configuration was not initialised");
    if ((unsigned)c->allocator > BP_ALLOCATOR_SCHEDULED || (unsigned)c->guard > BP_GUARD_ON ||
        c->selection < BP_SELECT_ASSIGNED || c->selection > BP_SELECT_ANY || c->strict < BP_STRICT_OFF ||
        c->strict > BP_STRICT_ERROR || (unsigned)c->capture_check > BP_CAPTURE_CHECK_ALWAYS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pool_create: allocator %d, selection %d, strict %d, guard %d or capture check %d is unknown",
                       (int)c->allocator, (int)c->selection, (int)c->strict, (int)c->guard, (int)c->capture_check);
    return BP_OK;
}

static bp_status check_fingerprint(const bp_plan *plan, const char *expected)
{
    char found[BP_FINGERPRINT_CHARS];
    if (expected == NULL)
        return BP_OK;
    BP_TRY(bp_plan_fingerprint(plan, found));
    if (strcmp(found, expected) != 0)
        return bp_fail(BP_ERR_MISMATCH,
                       "the plan has fingerprint %s, expected %.64s: it is another model's, or of other options", found,
                       expected);
    return BP_OK;
}

static bp_status choose_allocator(bp_pool *pool, const bp_plan *plan, bp_allocator wanted, bp_policy policy)
{
    static const bp_allocator_ops *const all[] = {[BP_ALLOCATOR_DYNAMIC] = &bp_dynamic_ops,
                                                  [BP_ALLOCATOR_FIXED_POOL] = &bp_fixed_pool_ops,
                                                  [BP_ALLOCATOR_MAX_POOL] = &bp_max_pool_ops,
                                                  [BP_ALLOCATOR_SCHEDULED] = &bp_scheduled_ops};
    static const bp_allocator of_policy[] = {[BP_POLICY_DYNAMIC] = BP_ALLOCATOR_DYNAMIC,
                                             [BP_POLICY_FIXED] = BP_ALLOCATOR_FIXED_POOL,
                                             [BP_POLICY_MAX] = BP_ALLOCATOR_MAX_POOL,
                                             [BP_POLICY_SCHEDULED] = BP_ALLOCATOR_SCHEDULED};
    if (wanted == BP_ALLOCATOR_PLAN) {
        if (policy < BP_POLICY_DYNAMIC || policy > BP_POLICY_SCHEDULED)
            return bp_fail(BP_ERR_UNSUPPORTED, "no allocator serves plans of policy %d", (int)policy);
        wanted = of_policy[policy];
    }
    pool->ops = all[wanted];
    if (wanted != BP_ALLOCATOR_DYNAMIC && bp_plan_assignment_count(plan) == 0 && policy == BP_POLICY_DYNAMIC)
        return bp_fail(BP_ERR_UNSUPPORTED, "the %s allocator needs a plan with addresses; this one is dynamic",
                       pool->ops->name);
    return BP_OK;
}

/* The buffers for unplanned passes: as many of the largest request's size as fit, at least one. */
static uint64_t choose_overflow(bp_pool *pool, uint64_t overflow_bytes)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < pool->planned_count; i++)
        largest = pool->known[i].bytes > largest ? pool->known[i].bytes : largest;
    if (overflow_bytes == 0 || largest == 0)
        return 0;
    uint64_t step = pool->alignment > 256 ? pool->alignment : 256;
    if (!bp_round_up_u64(largest, step, &largest) || largest > overflow_bytes)
        largest = overflow_bytes;
    uint64_t count = overflow_bytes / largest;
    pool->overflow_count = count < 65536 ? (uint32_t)count : 65536;
    return largest;
}

static bp_status make_arrays(bp_pool *pool, uint64_t persistent_bytes)
{
    void *memory;
    uint32_t persistent = persistent_bytes > 0 ? pool->known_capacity - pool->planned_count : 0;
    pool->next_persistent = pool->planned_segments;
    pool->overflow_first = pool->planned_segments + persistent;
    pool->segment_capacity = pool->overflow_first + pool->overflow_count;
    BP_TRY(bp_new_array(pool->segment_capacity, sizeof *pool->segments, &memory));
    pool->segments = memory;
    BP_TRY(bp_new_array(pool->segment_capacity, sizeof *pool->places, &memory));
    if (pool->planned_segments > 0)
        memcpy(memory, pool->places, pool->planned_segments * sizeof *pool->places);
    free(pool->places);
    pool->places = memory;
    BP_TRY(bp_new_array((size_t)1 + pool->segment_capacity + pool->known_capacity, sizeof *pool->fences, &memory));
    pool->fences = memory;
    BP_TRY(bp_new_array(pool->known_capacity, sizeof *pool->bounds, &memory));
    pool->bounds = memory;
    return BP_OK;
}

static bp_status add_slab(bp_pool *pool, uint64_t bytes, uint64_t planned, const char *group)
{
    bp_pool_slab *info = &pool->slab_infos[pool->slabs.count];
    *info = (bp_pool_slab){.size = sizeof *info, .planned_bytes = planned};
    BP_TRY(bp_strings_add(&pool->strings, group, &info->group));
    BP_TRY(bp_slabs_add(&pool->slabs, bytes > 0 ? bytes : 1, pool->alignment));
    info->address = pool->slabs.slabs[pool->slabs.count - 1].address;
    info->bytes = pool->slabs.slabs[pool->slabs.count - 1].bytes;
    return BP_OK;
}

static bp_status make_slabs(bp_pool *pool, const bp_plan *plan, const uint64_t *sizes, uint64_t persistent_bytes,
                            uint64_t overflow_each)
{
    for (size_t i = 0; i < bp_plan_slab_count(plan) && pool->ops != &bp_dynamic_ops; i++) {
        bp_plan_slab slab = {.size = sizeof slab};
        BP_TRY(bp_plan_slab_get(plan, i, &slab));
        BP_TRY(add_slab(pool, sizes[i], slab.bytes, slab.group));
    }
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        bp_segment_place *place = &pool->places[s];
        pool->segments[s].address = pool->slabs.slabs[place->slab].address + place->made_offset;
    }
    if (persistent_bytes > 0) {
        pool->persistent_slab = (uint32_t)pool->slabs.count;
        BP_TRY(add_slab(pool, persistent_bytes, 0, "persistent"));
        pool->persistent_bytes = pool->slabs.slabs[pool->persistent_slab].bytes;
    }
    if (pool->overflow_count == 0)
        return BP_OK;
    BP_TRY(add_slab(pool, pool->overflow_count * overflow_each, 0, "overflow"));
    for (uint32_t i = 0; i < pool->overflow_count; i++) {
        uint32_t s = pool->overflow_first + i;
        pool->segments[s].address = pool->slabs.slabs[pool->slabs.count - 1].address + i * overflow_each;
        pool->segments[s].bytes = overflow_each;
        pool->places[s] = (bp_segment_place){.offset = i * overflow_each,
                                             .made_offset = i * overflow_each,
                                             .room = overflow_each,
                                             .slab = (uint32_t)pool->slabs.count - 1,
                                             .class_index = BP_NONE};
    }
    return BP_OK;
}

/* Everything that needs memory. */
static bp_status build(bp_pool *pool, const bp_plan *plan, const bp_pool_config *config)
{
    BP_TRY(bp_copy_string(config->name != NULL ? config->name : bp_plan_model(plan), &pool->name));
    BP_TRY(bp_known_init(pool, plan, config->extra_requests));
    BP_TRY(pool->ops->lay_out(pool, plan));
    uint64_t overflow_each = choose_overflow(pool, config->overflow_bytes);
    size_t slabs = bp_plan_slab_count(plan);
    void *memory;
    BP_TRY(make_arrays(pool, config->persistent_bytes));
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        atomic_init(&pool->segments[s].lane, BP_LANE_UNBOUND);
        if (s < pool->planned_segments)
            pool->segments[s].bytes = pool->places[s].room;
    }
    BP_TRY(bp_new_array(slabs + 2, sizeof *pool->slab_infos, &memory));
    pool->slab_infos = memory;
    BP_TRY(bp_new_array(slabs + 2, sizeof *pool->residency.closed, &memory));
    pool->residency.closed = memory;
    BP_TRY(bp_new_array(slabs, sizeof(uint64_t), &memory));
    uint64_t *sizes = memory;
    bp_status status = bp_lay_out_slabs(pool, plan, sizes);
    if (status == BP_OK)
        status = make_slabs(pool, plan, sizes, config->persistent_bytes, overflow_each);
    free(sizes);
    BP_TRY(status);
    return pool->guarded ? bp_guarded_start(pool) : BP_OK;
}

static bp_status build_annotated(bp_pool *pool, const bp_plan *plan, const bp_pool_config *config)
{
    bool annotated;
    BP_TRY(bp_annotations_choose(config->annotate, &annotated));
    if (!annotated)
        return build(pool, plan, config);
    bp_nvtx_push("create", config->name != NULL ? config->name : bp_plan_model(plan));
    bp_status status = build(pool, plan, config);
    if (status == BP_OK)
        status = bp_annotations_start(pool);
    bp_nvtx_pop();
    return status;
}

static bp_status choose_guard(bp_pool *pool, bp_guard guard)
{
    const char *variable = secure_getenv("BUCKETPOOL_GUARD");
    bool possible = bp_guard_is_possible(pool->device);
    if (guard == BP_GUARD_ON && !possible)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "guard mode needs memory that the host can reach and protect; device %s has none",
                       bp_device_name(pool->device));
    pool->guarded = guard == BP_GUARD_ON ||
                    (guard == BP_GUARD_ENVIRONMENT && possible && variable != NULL && strcmp(variable, "1") == 0);
    pool->page_bytes = pool->device->traits.page_bytes;
    return BP_OK;
}

static void choose_capture_check(bp_pool *pool, bp_capture_check check)
{
    const char *variable = secure_getenv("BUCKETPOOL_CHECK_CAPTURE");
    if (check == BP_CAPTURE_CHECK_ENVIRONMENT)
        check = variable != NULL && strcmp(variable, "1") == 0 ? BP_CAPTURE_CHECK_ALWAYS : BP_CAPTURE_CHECK_INSIDE;
    pool->capture_check = check;
    atomic_init(&pool->watch, check == BP_CAPTURE_CHECK_ALWAYS ? BP_WATCH_ASK : 0);
}

static bp_status check_plan(const bp_plan *plan, const bp_pool_config *config, bp_plan_summary *summary)
{
    BP_TRY(check_config(config));
    *summary = (bp_plan_summary){.size = sizeof *summary};
    BP_TRY(bp_plan_summary_get(plan, summary));
    if (!summary->feasible)
        return bp_fail(BP_ERR_INFEASIBLE, "the plan is infeasible: %s", summary->infeasible_because);
    BP_TRY(bp_plan_validate(plan));
    return check_fingerprint(plan, config->fingerprint);
}

bp_status bp_pool_create(bp_device *device, const bp_plan *plan, const bp_pool_config *config, bp_pool **pool)
{
    bp_pool_config defaults;
    if (device == NULL || plan == NULL || pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: needs a device, a plan and a place for the pool");
    BP_TRY(bp_device_check(device, "bp_pool_create"));
    if (config == NULL) {
        BP_TRY(bp_pool_config_init(&defaults, sizeof defaults));
        config = &defaults;
    }
    bp_plan_summary summary;
    BP_TRY(check_plan(plan, config, &summary));
    size_t bytes = (sizeof **pool + 63) / 64 * 64;
    bp_pool *made = aligned_alloc(64, bytes);
    if (made == NULL)
        return bp_fail_memory(bytes);
    memset(made, 0, bytes);
    made->device = device;
    bp_device_retain(device);
    bp_slabs_init(device, &made->slabs);
    pthread_mutex_init(&made->binding, NULL); /* cannot fail for a plain mutex */
    made->strict = config->strict;
    made->selection = config->selection;
    made->alignment = summary.alignment;
    made->plan_is_stable = summary.stable != 0;
    made->on_message = config->on_message;
    made->user = config->user;
    choose_capture_check(made, config->capture_check);
    bp_status status = bp_plan_fingerprint(plan, made->fingerprint);
    if (status == BP_OK)
        status = choose_allocator(made, plan, config->allocator, summary.policy);
    if (status == BP_OK)
        status = choose_guard(made, config->guard);
    if (status == BP_OK)
        status = build_annotated(made, plan, config);
    if (status != BP_OK) {
        bp_pool_destroy(&made);
        return status;
    }
    *pool = made;
    return BP_OK;
}

/* Stream by stream: waiting for a device as a whole makes every capture on it invalid, whoever's it is. */
static void wait_for_work(bp_device *device)
{
    for (bp_stream *s = atomic_load_explicit(&device->streams, memory_order_acquire); s != NULL; s = s->next) {
        uint64_t capture = 0;
        if (bp_stream_is_over(s) ||
            (bp_stream_is_usable(s, device) && (bp_stream_capture_of(s, &capture) != BP_OK || capture != 0)))
            continue;
        (void)bp_stream_quiesce(s);
    }
}

void bp_pool_destroy(bp_pool **pool)
{
    if (pool == NULL || *pool == NULL)
        return;
    bp_pool *p = *pool;
    *pool = NULL;
    if (!bp_device_is_here(p->device))
        return;
    bp_capture_pool_gone(p);
    if (p->bounds != NULL) { /* a pool that never served has nothing to wait for */
        wait_for_work(p->device);
        bp_dynamic_finish(p);
    }
    bp_residency_pool_gone(p);
    if (p->guarding)
        bp_guarded_finish(p);
    if (p->annotations != NULL)
        bp_annotations_finish(p);
    bp_slabs_detach_all(&p->slabs);
    bp_lending_pool_gone(p);
    if (p->annotations != NULL)
        bp_annotations_destroy(p);
    bp_device_release(p->device);
    bp_recorder_destroy(&p->recording);
    bp_strings_finish(&p->strings);
    pthread_mutex_destroy(&p->binding);
    free(p->name);
    free(p->known);
    free(p->table);
    free(p->places);
    free(p->copies);
    free(p->classes);
    free(p->segments);
    free(p->fences);
    free(p->bounds);
    free(p->slab_infos);
    free(p->residency.closed);
    free(p);
}

const char *bp_pool_name(const bp_pool *pool)
{
    return pool->name;
}

const char *bp_pool_fingerprint(const bp_pool *pool)
{
    return pool->fingerprint;
}

bp_device *bp_pool_device(const bp_pool *pool)
{
    return pool->device;
}

const char *bp_pool_allocator_name(const bp_pool *pool)
{
    return pool->ops->name;
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

size_t bp_pool_slab_count(const bp_pool *pool)
{
    return pool->slabs.count;
}

bp_status bp_pool_slab_get(const bp_pool *pool, size_t index, bp_pool_slab *slab)
{
    if (pool == NULL || slab == NULL || index >= pool->slabs.count || slab->size < sizeof *slab)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_slab_get: slab %zu of %zu", index,
                       pool != NULL ? pool->slabs.count : 0);
    *slab = pool->slab_infos[index];
    slab->resident = pool->slabs.slabs[index].mapped;
    return BP_OK;
}

static bp_status check_callbacks(const bp_pool *pool, const bp_slab_callbacks *callbacks, const char *function)
{
    if (pool == NULL || callbacks == NULL || callbacks->size < sizeof *callbacks || callbacks->attach == NULL ||
        callbacks->detach == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a pool and both callbacks", function);
    return bp_device_check(pool->device, function);
}

bp_status bp_pool_attach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_attach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_attach"));
    if (bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: attach before that", pool->name);
    return bp_slabs_attach(&pool->slabs, callbacks, user);
}

bp_status bp_pool_detach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_detach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_detach"));
    return bp_slabs_detach(&pool->slabs, callbacks, user);
}
