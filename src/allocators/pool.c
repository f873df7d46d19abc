/* Pools: made from a plan, sealed, given back. */
#include "allocators/pool.h"

#include <stdlib.h>
#include <string.h>

#include "allocators/capture.h"
#include "allocators/export.h"
#include "allocators/layout.h"
#include "allocators/observers.h"
#include "allocators/recorder.h"
#include "allocators/report.h"
#include "allocators/requests.h"
#include "allocators/residency.h"
#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"

static const bp_pool_config defaults = {.size = sizeof defaults, .strict = BP_STRICT_ERROR, .extra_requests = 4096};

bp_status bp_pool_config_init(bp_pool_config *config, size_t size)
{
    return bp_struct_init("bp_pool_config_init", config, size, &defaults, sizeof defaults);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status pool_check_config(const bp_pool_config *c)
{
    if ((unsigned)c->guard > BP_GUARD_ON || c->strict < BP_STRICT_OFF || c->strict > BP_STRICT_ERROR ||
        (unsigned)c->capture_check > BP_CAPTURE_CHECK_ALWAYS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: strict %d, guard %d or capture check %d is unknown",
                       (int)c->strict, (int)c->guard, (int)c->capture_check);
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

/* The buffers for unplanned passes: as many of the largest request's size as fit, at least one. */
static uint64_t choose_overflow(bp_pool *pool, uint64_t overflow_bytes)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < pool->planned_count; i++)
        largest = pool->requests[i].bytes > largest ? pool->requests[i].bytes : largest;
    if (overflow_bytes == 0 || largest == 0)
        return 0;
    uint64_t step = pool->info.alignment > 256 ? pool->info.alignment : 256;
    if (!bp_round_up_u64(largest, step, &largest) || largest > overflow_bytes)
        largest = overflow_bytes;
    uint64_t count = overflow_bytes / largest;
    pool->overflow_count = count < 65536 ? (uint32_t)count : 65536;
    return largest;
}

static bp_status pool_make_arrays(bp_pool *pool, uint64_t persistent_bytes)
{
    void *memory;
    uint32_t persistent = persistent_bytes > 0 ? pool->request_capacity - pool->planned_count : 0;
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
    BP_TRY(bp_new_array((size_t)1 + pool->segment_capacity + pool->request_capacity, sizeof *pool->fences, &memory));
    pool->fences = memory;
    return BP_OK;
}

static bp_status pool_add_slab(bp_pool *pool, uint64_t bytes, uint64_t planned, const char *group)
{
    bp_pool_slab *info = &pool->slab_infos[pool->slabs.count];
    *info = (bp_pool_slab){.planned_bytes = planned};
    BP_TRY(bp_strings_add(&pool->strings, group, &info->group));
    BP_TRY(bp_slabs_add(&pool->slabs, bytes > 0 ? bytes : 1, pool->info.alignment));
    info->address = pool->slabs.slabs[pool->slabs.count - 1].address;
    info->bytes = pool->slabs.slabs[pool->slabs.count - 1].bytes;
    return BP_OK;
}

static bp_status make_slabs(bp_pool *pool, const bp_plan_info *plan, const uint64_t *sizes, uint64_t persistent_bytes,
                            uint64_t overflow_each)
{
    for (size_t i = 0; i < plan->slab_count; i++)
        BP_TRY(pool_add_slab(pool, sizes[i], plan->slabs[i].bytes, plan->slabs[i].group));
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        bp_segment_place *place = &pool->places[s];
        pool->segments[s].address = pool->slabs.slabs[place->slab].address + place->made_offset;
    }
    if (persistent_bytes > 0) {
        pool->persistent_slab = (uint32_t)pool->slabs.count;
        BP_TRY(pool_add_slab(pool, persistent_bytes, 0, "persistent"));
        pool->persistent_bytes = pool->slabs.slabs[pool->persistent_slab].bytes;
    }
    if (pool->overflow_count == 0)
        return BP_OK;
    BP_TRY(pool_add_slab(pool, pool->overflow_count * overflow_each, 0, "overflow"));
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
static bp_status pool_build(bp_pool *pool, const bp_plan_info *plan, const bp_pool_config *config, bool annotated)
{
    BP_TRY(bp_strings_add(&pool->strings, config->name != NULL ? config->name : plan->model, &pool->info.name));
    BP_TRY(bp_requests_init(pool, plan, config->extra_requests));
    BP_TRY(bp_lay_out(pool, plan));
    uint64_t overflow_each = choose_overflow(pool, config->overflow_bytes);
    size_t slabs = plan->slab_count;
    void *memory;
    BP_TRY(pool_make_arrays(pool, config->persistent_bytes));
    for (uint32_t s = 0; s < pool->planned_segments; s++)
        pool->segments[s].bytes = pool->places[s].room;
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
    pool->info.slabs = pool->slab_infos;
    pool->info.slab_count = pool->slabs.count;
    if (pool->guarded)
        BP_TRY(bp_guarded_start(pool));
    if (annotated)
        BP_TRY(bp_annotations_start(pool));
    pool->info.annotated = annotated;
    return bp_requests_start(pool);
}

static bp_status build_annotated(bp_pool *pool, const bp_plan_info *plan, const bp_pool_config *config)
{
    bool annotated;
    BP_TRY(bp_annotations_choose(config->annotate, &annotated));
    if (annotated)
        bp_nvtx_push("create", config->name != NULL ? config->name : plan->model);
    bp_status status = pool_build(pool, plan, config, annotated);
    if (annotated)
        bp_nvtx_pop();
    return status;
}

static bp_status choose_guard(bp_pool *pool, bp_guard guard)
{
    const char *variable = secure_getenv("BUCKETPOOL_GUARD");
    const bool possible = pool->device->traits.host_accessible && pool->device->traits.page_bytes > 0;
    if (guard == BP_GUARD_ON && !possible)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "guard mode needs memory that the host can reach and protect; device %s has none",
                       bp_device_name(pool->device));
    pool->guarded = guard == BP_GUARD_ON ||
                    (guard == BP_GUARD_ENVIRONMENT && possible && variable != NULL && strcmp(variable, "1") == 0);
    pool->page_bytes = pool->device->traits.page_bytes;
    pool->info.guarded = pool->guarded;
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

bp_status bp_pool_create(bp_device *device, const bp_plan *plan, const bp_pool_config *config, bp_pool **pool)
{
    if (device == NULL || plan == NULL || pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: needs a device, a plan and a place for the pool");
    BP_TRY(bp_device_check(device, "bp_pool_create"));
    bp_pool_config full = defaults;
    BP_TRY(bp_struct_read("bp_pool_create", config, true, &full, sizeof full));
    BP_TRY(pool_check_config(&full));
    const bp_plan_info *info = bp_plan_get_info(plan);
    if (!info->feasible)
        return bp_fail(BP_ERR_INFEASIBLE, "the plan is infeasible: %s", info->infeasible_because);
    BP_TRY(check_fingerprint(plan, full.fingerprint));
    size_t bytes = (sizeof **pool + 63) / 64 * 64;
    bp_pool *made = aligned_alloc(64, bytes);
    if (made == NULL)
        return bp_fail_memory(bytes);
    memset(made, 0, bytes);
    made->device = device;
    bp_device_retain(device);
    made->slabs.device = device;
    pthread_mutex_init(&made->binding, NULL); /* cannot fail for a plain mutex */
    made->strict = full.strict;
    made->on_message = full.on_message;
    made->user = full.user;
    made->info = (bp_pool_info){
        .policy = info->policy, .fingerprint = made->fingerprint, .device = device, .alignment = info->alignment};
    choose_capture_check(made, full.capture_check);
    bp_status status = bp_plan_fingerprint(plan, made->fingerprint);
    if (status == BP_OK)
        status = choose_guard(made, full.guard);
    if (status == BP_OK)
        status = build_annotated(made, info, &full);
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
    if (p->fences != NULL) { /* a pool that never served has nothing to wait for */
        wait_for_work(p->device);
        bp_dynamic_finish(p);
    }
    bp_residency_pool_gone(p);
    if (p->guarding)
        bp_guarded_finish(p);
    if (p->annotations != NULL)
        bp_annotations_finish(p);
    bp_slabs_detach_all(&p->slabs);
    bp_export_pool_gone(p);
    if (p->annotations != NULL)
        bp_annotations_destroy(p);
    bp_device_release(p->device);
    bp_recorder_destroy(&p->recording);
    bp_strings_finish(&p->strings);
    pthread_mutex_destroy(&p->binding);
    free(p->requests);
    free(p->places);
    free(p->copies);
    free(p->classes);
    free(p->segments);
    free(p->fences);
    free(p->entries);
    free(p->slab_infos);
    free(p->residency.closed);
    free(p);
}

const bp_pool_info *bp_pool_get_info(const bp_pool *pool)
{
    return pool != NULL ? &pool->info : NULL;
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

static bp_status check_callbacks(const bp_pool *pool, const bp_slab_callbacks *callbacks, const char *function)
{
    if (pool == NULL || callbacks == NULL || callbacks->attach == NULL || callbacks->detach == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a pool and both callbacks", function);
    return bp_device_check(pool->device, function);
}

bp_status bp_pool_attach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_attach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_attach"));
    if (bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: attach before that", pool->info.name);
    return bp_slabs_attach(&pool->slabs, callbacks, user);
}

bp_status bp_pool_detach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_detach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_detach"));
    return bp_slabs_detach(&pool->slabs, callbacks, user);
}

/* ---- stages of a run --------------------------------------------------------------------------------------------- */

/* Stages of a run: steps and sealing. */

bp_status bp_pool_seal(bp_pool *pool)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_seal: no pool");
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_entry *r = &pool->entries[id];
        char name[BP_REQUEST_BYTES];
        bool live = BP_WORD_ID(atomic_load_explicit(r->word, memory_order_acquire)) == id;
        if (live && (r->kind == BP_KIND_DYNAMIC ||
                     (r->kind == BP_KIND_CHOSEN && r->first >= pool->overflow_first && pool->overflow_count > 0)))
            return bp_fail(BP_ERR_SCHEDULE, "pool %s cannot be sealed: %s holds %s memory", pool->info.name,
                           bp_explain_request(pool, id, name), r->kind == BP_KIND_DYNAMIC ? "dynamic" : "overflow");
    }
    atomic_store_explicit(&pool->sealed, 1, memory_order_relaxed);
    return BP_OK;
}

int bp_pool_is_sealed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0;
}

void bp_pool_set_step(bp_pool *pool, uint64_t step)
{
    atomic_store_explicit(&pool->step, step, memory_order_relaxed);
    if (pool->annotations != NULL)
        bp_annotations_step(pool, step);
}
