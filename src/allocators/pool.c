/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: layout of segments from a plan, creation, sealing, destruction. */
#include "allocators/pool.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "allocators/capture.h"
#include "allocators/observers.h"
#include "allocators/recorder.h"
#include "allocators/report.h"

#define MAX_SEGMENTS (1u << 20)

/* ---- layout: from the plan's slabs, classes and requests to segments ------------------------------------------------ */

/* A range that becomes a segment. */
typedef struct span {
    uint64_t offset, bytes;
    uint32_t slab, class_index;
} span;

typedef struct spans {
    span *items;
    size_t count, capacity;
} spans;

static bp_status fail_many(void)
{
    return bp_fail(BP_ERR_UNSUPPORTED, "the plan has more than %u buffers, the largest number that a pool serves",
                   MAX_SEGMENTS);
}

static bp_status add_span(spans *list, uint32_t slab, uint64_t offset, uint64_t bytes, uint32_t class_index)
{
    if (list->count >= MAX_SEGMENTS)
        return fail_many();
    BP_TRY(bp_grow_array((void **)&list->items, &list->capacity, list->count, sizeof *list->items));
    list->items[list->count++] = (span){offset, bytes, slab, class_index};
    return BP_OK;
}

/* Order by offset; at equal offsets classes come first. */
static int by_place(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->slab != y->slab)
        return x->slab < y->slab ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->class_index > y->class_index) - (x->class_index < y->class_index);
}

/* End of a request's memory: aligned, but not beyond the slab. */
static uint64_t end_of(const bp_plan_info *plan, const bp_plan_request *r)
{
    uint64_t end = r->offset + r->bytes, last = plan->slabs[r->slab].bytes;
    return bp_round_up_u64(end, plan->alignment, &end) && end < last ? end : last;
}

/* The first segment at or after an offset. */
static uint32_t find_segment(const bp_pool *pool, uint32_t slab, uint64_t offset)
{
    uint32_t low = 0, high = pool->planned_segments;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const bp_segment_place *place = &pool->places[middle];
        if (place->slab < slab || (place->slab == slab && place->offset < offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Lists the copies of classes and the memory of requests. If slabs are cut, also the ends of requests, as empty spans. */
static bp_status list_spans(bp_pool *pool, const bp_plan_info *plan, bool cut, spans *list)
{
    pool->class_count = cut ? 0 : (uint32_t)plan->class_count;
    for (uint32_t i = 0; i < pool->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        if (c->copies > MAX_SEGMENTS - list->count) /* checked before they are allocated */
            return fail_many();
        for (uint32_t copy = 0; copy < c->copies; copy++)
            BP_TRY(add_span(list, c->slab, c->offset + copy * c->stride, c->bytes, i));
    }
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement != BP_PLACE_PLANNED)
            continue;
        BP_TRY(add_span(list, r->slab, r->offset, cut ? 0 : end_of(plan, r) - r->offset, BP_NONE));
        if (cut)
            BP_TRY(add_span(list, r->slab, end_of(plan, r), 0, BP_NONE));
    }
    return BP_OK;
}

/* Merges spans with the same offset into one: the class's, or the longest. Afterwards none may reach into the next. */
static bp_status merge_equal(spans *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const span *s = &list->items[i];
        span *before = kept > 0 ? &list->items[kept - 1] : NULL;
        if (before != NULL && before->slab == s->slab && before->offset == s->offset) {
            if (before->class_index != BP_NONE && s->class_index != BP_NONE)
                return bp_fail(
                    BP_ERR_MISMATCH,
                    "the plan contradicts itself: classes %u and %u begin at the same offset; make the plan anew",
                    before->class_index, s->class_index);
            if (before->class_index == BP_NONE && s->bytes > before->bytes)
                before->bytes = s->bytes;
            continue;
        }
        if (before != NULL && before->slab == s->slab && before->bytes > s->offset - before->offset)
            return bp_fail(
                BP_ERR_MISMATCH,
                "buffers of slab %u at %llu (%llu bytes) and %llu overlap partly: only the scheduled allocator "
                "serves such a plan",
                s->slab, (unsigned long long)before->offset, (unsigned long long)before->bytes,
                (unsigned long long)s->offset);
        list->items[kept++] = *s;
    }
    list->count = kept;
    return BP_OK;
}

/* Makes the ranges between consecutive ends of requests. */
static void cut_at_ends(spans *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const span *s = &list->items[i], *next = s + 1;
        if (i + 1 == list->count || next->slab != s->slab)
            continue; /* the last end of a slab */
        if (next->offset != s->offset)
            list->items[kept++] = (span){s->offset, next->offset - s->offset, s->slab, BP_NONE};
    }
    list->count = kept;
}

/* Lists the segments of each class, copy by copy. */
static bp_status list_copies(bp_pool *pool)
{
    BP_TRY(bp_new_array(pool->class_count, sizeof *pool->classes, (void **)&pool->classes));
    BP_TRY(bp_new_array(pool->planned_segments, sizeof *pool->copies, (void **)&pool->copies));
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        if (pool->places[s].class_index != BP_NONE)
            pool->classes[pool->places[s].class_index].count++;
    }
    uint32_t at = 0;
    for (uint32_t c = 0; c < pool->class_count; c++) {
        pool->classes[c].first = at;
        at += pool->classes[c].count;
        pool->classes[c].count = 0;
    }
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        if (pool->places[s].class_index == BP_NONE)
            continue;
        bp_range *c = &pool->classes[pool->places[s].class_index];
        pool->copies[c->first + c->count++] = s;
    }
    return BP_OK;
}

/* Fills places, homes, classes and copies. Policies fixed and max: each buffer is a segment (a copy of a class, or the memory of a
 * request without a class). Policy scheduled: slabs are cut at each begin and end of a request. Policy dynamic: no segments. Errors:
 * BP_ERR_MISMATCH if buffers overlap, or if a request exceeds its buffer or has another dtype than its class. */
static bp_status lay_out(bp_pool *pool, const bp_plan_info *plan)
{
    const bool cut = plan->policy == BP_POLICY_SCHEDULED;
    spans list = {0};
    void *memory;
    bp_status status = list_spans(pool, plan, cut, &list);
    if (status == BP_OK && list.count > 0) {
        qsort(list.items, list.count, sizeof *list.items, by_place);
        if (cut)
            cut_at_ends(&list);
        else
            status = merge_equal(&list);
    }
    if (status == BP_OK)
        status = bp_new_array(list.count, sizeof *pool->places, &memory);
    if (status == BP_OK) {
        pool->places = memory;
        pool->planned_segments = (uint32_t)list.count;
        for (size_t i = 0; i < list.count; i++) {
            const span *s = &list.items[i];
            pool->places[i] = (bp_segment_place){
                .offset = s->offset, .room = s->bytes, .slab = s->slab, .class_index = s->class_index};
        }
    }
    free(list.items);
    BP_TRY(status);
    if (!cut)
        BP_TRY(list_copies(pool));

    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        pool->entries[i].class_index = BP_NONE;
        if (r->placement != BP_PLACE_PLANNED)
            continue;
        const uint32_t first = find_segment(pool, r->slab, r->offset);
        if (cut) {
            const uint32_t end = find_segment(pool, r->slab, end_of(plan, r));
            pool->entries[i].home = (bp_range){first, end - first};
            for (uint32_t s = first + 1; s < end; s++)
                pool->places[s].joined = true;
            continue;
        }
        const bp_segment_place *place = &pool->places[first];
        const bool fits = r->bytes <= place->room;
        if (!fits || (place->class_index != BP_NONE && plan->classes[place->class_index].dtype != r->dtype))
            return bp_fail(BP_ERR_MISMATCH, "the plan contradicts itself: %s of %s, bucket %u, %s",
                           bp_role_name((bp_role)r->role), r->unit, r->ordinal,
                           fits ? "is of another dtype than its class" : "is larger than its buffer");
        pool->entries[i].home = (bp_range){first, 1};
        pool->entries[i].class_index = place->class_index;
    }
    return BP_OK;
}

/* Lays segments out anew for guard mode, and computes the slab sizes. Joined segments keep their distances; the others start on a page
 * after a guard page. */
static bp_status set_apart(bp_pool *pool, size_t slab_count, uint64_t *sizes)
{
    const uint64_t page = pool->guard.page_bytes, step = pool->info.alignment > page ? pool->info.alignment : page;
    static const char too_large[] = "the slabs with guard pages do not fit 64 bits";
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        bp_segment_place *place = &pool->places[s];
        uint64_t *end = &sizes[place->slab]; /* end of the present layout */
        if (!place->joined && (!bp_add_u64(*end, page, end) || !bp_round_up_u64(*end, step, end)))
            return bp_fail(BP_ERR_OVERFLOW, "%s", too_large);
        place->made_offset = *end;
        if (!bp_add_u64(*end, place->room, end))
            return bp_fail(BP_ERR_OVERFLOW, "%s", too_large);
        bool last = s + 1 == pool->planned_segments || !pool->places[s + 1].joined;
        if (last && !bp_round_up_u64(*end, page, end))
            return bp_fail(BP_ERR_OVERFLOW, "%s", too_large);
        if (last)
            place->room = *end - place->made_offset;
    }
    for (size_t i = 0; i < slab_count; i++)
        if (!bp_add_u64(sizes[i], page, &sizes[i]))
            return bp_fail(BP_ERR_OVERFLOW, "%s", too_large);
    return BP_OK;
}

static const bp_pool_config defaults = {.size = sizeof defaults, .strict = BP_STRICT_ERROR, .extra_requests = 4096};

bp_status bp_pool_config_init(bp_pool_config *config, size_t size)
{
    return bp_struct_init("bp_pool_config_init", config, size, &defaults, sizeof defaults);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status make_arrays(bp_pool *pool, uint64_t persistent_bytes)
{
    void *memory;
    uint32_t persistent = persistent_bytes > 0 ? pool->request_capacity - pool->planned_count : 0;
    pool->persistent.next = pool->planned_segments;
    pool->overflow.first = pool->planned_segments + persistent;
    pool->segment_capacity = pool->overflow.first + pool->overflow.count;
    BP_TRY(bp_new_lines(pool->segment_capacity, sizeof *pool->segments, (void **)&pool->segments));
    BP_TRY(bp_new_array(pool->segment_capacity, sizeof *pool->places, &memory));
    if (pool->planned_segments > 0)
        memcpy(memory, pool->places, pool->planned_segments * sizeof *pool->places);
    free(pool->places);
    pool->places = memory;
    BP_TRY(bp_new_lines((size_t)1 + pool->segment_capacity + pool->request_capacity, sizeof *pool->fences,
                        (void **)&pool->fences));
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

/* Makes the plan's slabs with these sizes, and those of persistent and overflow memory. */
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
        pool->persistent.slab = (uint32_t)pool->slabs.count;
        BP_TRY(pool_add_slab(pool, persistent_bytes, 0, "persistent"));
        pool->persistent.bytes = pool->slabs.slabs[pool->persistent.slab].bytes;
    }
    if (pool->overflow.count == 0)
        return BP_OK;
    BP_TRY(pool_add_slab(pool, pool->overflow.count * overflow_each, 0, "overflow"));
    for (uint32_t i = 0; i < pool->overflow.count; i++) {
        uint32_t s = pool->overflow.first + i;
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

/* Allocates everything. */
static bp_status pool_build(bp_pool *pool, const bp_plan_info *plan, const bp_pool_config *config)
{
    BP_TRY(bp_strings_add(&pool->strings, config->name != NULL ? config->name : plan->model, &pool->info.name));
    BP_TRY(bp_requests_init(pool, plan, config->extra_requests));
    BP_TRY(lay_out(pool, plan));

    /* buffers for unplanned passes: as many of the largest request's size as fit, at least one */
    uint64_t each = 0;
    for (uint32_t i = 0; i < pool->planned_count; i++)
        each = pool->requests[i].bytes > each ? pool->requests[i].bytes : each;
    if (config->overflow_bytes > 0 && each > 0) {
        uint64_t step = pool->info.alignment > 256 ? pool->info.alignment : 256;
        if (!bp_round_up_u64(each, step, &each) || each > config->overflow_bytes)
            each = config->overflow_bytes;
        uint64_t count = config->overflow_bytes / each;
        pool->overflow.count = count < 65536 ? (uint32_t)count : 65536;
    }

    size_t slabs = plan->slab_count;
    void *memory;
    BP_TRY(make_arrays(pool, config->persistent_bytes));
    BP_TRY(bp_new_array(slabs + 2, sizeof *pool->slab_infos, (void **)&pool->slab_infos));
    BP_TRY(bp_new_array(slabs + 2, sizeof *pool->residents.closed, (void **)&pool->residents.closed));
    BP_TRY(bp_new_array(slabs, sizeof(uint64_t), &memory));
    uint64_t *sizes = memory;
    for (size_t i = 0; i < slabs; i++)
        sizes[i] = pool->guard.wanted ? 0 : plan->slabs[i].bytes;
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        pool->segments[s].bytes = pool->places[s].room;
        pool->places[s].made_offset = pool->places[s].offset;
    }
    bp_status status = pool->guard.wanted ? set_apart(pool, slabs, sizes) : BP_OK;
    if (status == BP_OK)
        status = make_slabs(pool, plan, sizes, config->persistent_bytes, each);
    free(sizes);
    BP_TRY(status);

    pool->info.slabs = pool->slab_infos;
    pool->info.slab_count = pool->slabs.count;
    if (pool->guard.wanted)
        BP_TRY(bp_guarded_start(pool));
    if (pool->info.annotated)
        BP_TRY(bp_annotations_start(pool));
    return bp_requests_start(pool);
}

/* Chooses the modes: those of the caller, else those of the environment. */
static bp_status choose_modes(bp_pool *pool, const bp_pool_config *config)
{
    const char *guard = secure_getenv("BUCKETPOOL_GUARD"), *check = secure_getenv("BUCKETPOOL_CHECK_CAPTURE");
    const bool possible = pool->device->traits.host_accessible && pool->device->traits.page_bytes > 0;
    bool annotated;
    if (config->guard == BP_GUARD_ON && !possible)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "guard mode is unsupported on device %s: the host cannot reach and protect its memory",
                       bp_device_name(pool->device));
    pool->guard.wanted = config->guard == BP_GUARD_ON || (config->guard == BP_GUARD_ENVIRONMENT && possible &&
                                                          guard != NULL && strcmp(guard, "1") == 0);
    pool->guard.page_bytes = pool->device->traits.page_bytes;
    pool->info.guarded = pool->guard.wanted;
    pool->capture.check = config->capture_check;
    if (pool->capture.check == BP_CAPTURE_CHECK_ENVIRONMENT)
        pool->capture.check =
            check != NULL && strcmp(check, "1") == 0 ? BP_CAPTURE_CHECK_ALWAYS : BP_CAPTURE_CHECK_INSIDE;
    atomic_init(&pool->watch, pool->capture.check == BP_CAPTURE_CHECK_ALWAYS ? BP_WATCH_ASK : 0);
    BP_TRY(bp_annotations_choose(config->annotate, &annotated));
    pool->info.annotated = annotated;
    return BP_OK;
}

bp_status bp_pool_create(bp_device *device, const bp_plan *plan, const bp_pool_config *config, bp_pool **pool)
{
    if (device == NULL || plan == NULL || pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: the device, the plan or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_pool_create"));
    bp_pool_config full = defaults;
    BP_TRY(bp_struct_read("bp_pool_create", config, true, &full, sizeof full));
    if ((unsigned)full.guard > BP_GUARD_ON || full.strict < BP_STRICT_OFF || full.strict > BP_STRICT_ERROR ||
        (unsigned)full.capture_check > BP_CAPTURE_CHECK_ALWAYS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_create: unknown strict %d, guard %d or capture check %d",
                       (int)full.strict, (int)full.guard, (int)full.capture_check);
    const bp_plan_info *info = bp_plan_get_info(plan);
    if (!info->feasible)
        return bp_fail(BP_ERR_INFEASIBLE, "the plan is infeasible: %s", info->infeasible_because);
    char fingerprint[BP_FINGERPRINT_CHARS];
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    if (full.fingerprint != NULL && strcmp(fingerprint, full.fingerprint) != 0)
        return bp_fail(BP_ERR_MISMATCH,
                       "the plan has fingerprint %s, expected %.64s; plan with this model and these options",
                       fingerprint, full.fingerprint);

    bp_pool *made;
    BP_TRY(bp_new_lines(1, sizeof *made, (void **)&made));
    made->device = device;
    bp_device_retain(device);
    made->slabs.device = device;
    pthread_mutex_init(&made->binding, NULL); /* cannot fail for a plain mutex */
    made->strict = full.strict;
    made->on_message = full.on_message;
    made->user = full.user;
    memcpy(made->fingerprint, fingerprint, sizeof fingerprint);
    made->info = (bp_pool_info){
        .policy = info->policy, .fingerprint = made->fingerprint, .device = device, .alignment = info->alignment};

    bp_status status = choose_modes(made, &full);
    if (status == BP_OK) {
        const bool annotated = made->info.annotated;
        if (annotated)
            bp_nvtx_push("create", full.name != NULL ? full.name : info->model);
        status = pool_build(made, info, &full);
        if (annotated)
            bp_nvtx_pop();
    }
    if (status != BP_OK) {
        bp_pool_destroy(&made);
        return status;
    }
    *pool = made;
    return BP_OK;
}

void bp_pool_destroy(bp_pool **pool)
{
    if (pool == NULL || *pool == NULL)
        return;
    bp_pool *p = *pool;
    *pool = NULL;
    if (!bp_device_is_here(p->device))
        return;
    BP_KEEP_ERROR;
    bp_capture_pool_gone(p);
    if (p->fences != NULL) { /* a pool that never served has no work to wait for */
        /* stream by stream: a device-wide wait would invalidate every capture on the device */
        bp_stream *stream = atomic_load_explicit(&p->device->streams, memory_order_acquire);
        for (; stream != NULL; stream = stream->next) {
            uint64_t capture = 0;
            if (bp_stream_is_over(stream) || (bp_stream_is_usable(stream, p->device) &&
                                              (bp_stream_capture_of(stream, &capture) != BP_OK || capture != 0)))
                continue;
            (void)bp_stream_quiesce(stream);
        }
        bp_dynamic_finish(p);
    }
    bp_residency_pool_gone(p);
    if (p->guard.begun)
        bp_guarded_finish(p);
    if (p->annotations != NULL)
        bp_annotations_finish(p);
    bp_slabs_detach_all(&p->slabs);
    bp_export_pool_gone(p);
    if (p->annotations != NULL)
        bp_annotations_destroy(p);
    bp_device_release(p->device);
    bp_recorder_destroy(&p->recording.last);
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
    free(p->residents.closed);
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the pool or a callback is NULL", function);
    return bp_device_check(pool->device, function);
}

bp_status bp_pool_attach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_attach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_attach"));
    if (bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed; attach before bp_pool_seal", pool->info.name);
    return bp_slabs_attach(&pool->slabs, callbacks, user);
}

bp_status bp_pool_detach(bp_pool *pool, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(check_callbacks(pool, callbacks, "bp_pool_detach"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_detach"));
    return bp_slabs_detach(&pool->slabs, callbacks, user);
}

/* ---- stages of a run --------------------------------------------------------------------------------------------- */

bp_status bp_pool_seal(bp_pool *pool)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_seal: the pool is NULL");
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_entry *r = &pool->entries[id];
        char name[BP_REQUEST_BYTES];
        bool live = BP_WORD_ID(atomic_load_explicit(r->word, memory_order_acquire)) == id;
        if (live && (r->kind == BP_KIND_DYNAMIC ||
                     (r->kind == BP_KIND_CHOSEN && r->first >= pool->overflow.first && pool->overflow.count > 0)))
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
