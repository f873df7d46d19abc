/* The layout of a pool: from the plan's slabs, classes and requests to segments with addresses. */
#include "allocators/layout.h"

#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"

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
    return bp_fail(BP_ERR_UNSUPPORTED, "the plan has more than %u buffers", BP_MOST_SEGMENTS);
}

static bp_status layout_add_span(spans *list, uint32_t slab, uint64_t offset, uint64_t bytes, uint32_t class_index)
{
    if (list->count >= BP_MOST_SEGMENTS)
        return fail_many();
    BP_TRY(bp_grow_array((void **)&list->items, &list->capacity, list->count, sizeof *list->items));
    list->items[list->count++] = (span){offset, bytes, slab, class_index};
    return BP_OK;
}

/* By place; of equal places those of classes first. */
static int by_place(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->slab != y->slab)
        return x->slab < y->slab ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->class_index > y->class_index) - (x->class_index < y->class_index);
}

/* Where a request's memory ends: aligned, unless the slab ends before. */
static uint64_t end_of(const bp_plan_info *plan, const bp_plan_request *r)
{
    uint64_t end = r->offset + r->bytes, last = plan->slabs[r->slab].bytes;
    return bp_round_up_u64(end, plan->alignment, &end) && end < last ? end : last;
}

static bp_status layout_fail_request(const bp_plan_info *plan, size_t index, const char *what)
{
    const bp_plan_request *r = &plan->requests[index];
    return bp_fail(BP_ERR_MISMATCH, "the plan contradicts itself: %s of %s, bucket %u, %s",
                   bp_role_name((bp_role)r->role), r->unit, r->ordinal, what);
}

/* Sorted spans become segments. */
static bp_status keep_spans(bp_pool *pool, const spans *list)
{
    void *memory;
    BP_TRY(bp_new_array(list->count, sizeof *pool->places, &memory));
    pool->places = memory;
    pool->planned_segments = (uint32_t)list->count;
    for (size_t i = 0; i < list->count; i++) {
        const span *s = &list->items[i];
        pool->places[i] =
            (bp_segment_place){.offset = s->offset, .room = s->bytes, .slab = s->slab, .class_index = s->class_index};
    }
    return BP_OK;
}

/* The first segment at or after a place. */
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

/* ---- buffers -------------------------------------------------------------------------------------------------------- */

static bp_status layout_add_classes(bp_pool *pool, const bp_plan_info *plan, spans *list)
{
    pool->class_count = (uint32_t)plan->class_count;
    for (uint32_t i = 0; i < pool->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        if (c->copies > BP_MOST_SEGMENTS - list->count) /* before memory is taken for them */
            return fail_many();
        for (uint32_t copy = 0; copy < c->copies; copy++)
            BP_TRY(layout_add_span(list, c->slab, c->offset + copy * c->stride, c->bytes, i));
    }
    return BP_OK;
}

static bp_status layout_add_requests(const bp_plan_info *plan, spans *list)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement == BP_PLACE_PLANNED)
            BP_TRY(layout_add_span(list, r->slab, r->offset, end_of(plan, r) - r->offset, BP_NONE));
    }
    return BP_OK;
}

/* One span of those that begin at one place: the class's, or the longest. Then none may reach into the next. */
static bp_status merge_equal(spans *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const span *s = &list->items[i];
        span *before = kept > 0 ? &list->items[kept - 1] : NULL;
        if (before != NULL && before->slab == s->slab && before->offset == s->offset) {
            if (before->class_index != BP_NONE && s->class_index != BP_NONE)
                return bp_fail(BP_ERR_MISMATCH, "the plan contradicts itself: classes %u and %u begin at one place",
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

/* Every request's buffer. */
static bp_status find_buffers(bp_pool *pool, const bp_plan_info *plan)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement != BP_PLACE_PLANNED)
            continue;
        uint32_t segment = find_segment(pool, r->slab, r->offset);
        const bp_segment_place *place = &pool->places[segment];
        if (r->bytes > place->room)
            return layout_fail_request(plan, i, "is larger than its buffer");
        if (place->class_index != BP_NONE && plan->classes[place->class_index].dtype != r->dtype)
            return layout_fail_request(plan, i, "is of another dtype than its class");
        pool->entries[i].home = (bp_range){segment, 1};
        pool->entries[i].class_index = place->class_index;
    }
    return BP_OK;
}

/* Lists the segments of each class, copy by copy. */
static bp_status list_copies(bp_pool *pool)
{
    void *memory;
    BP_TRY(bp_new_array(pool->class_count, sizeof *pool->classes, &memory));
    pool->classes = memory;
    BP_TRY(bp_new_array(pool->planned_segments, sizeof *pool->copies, &memory));
    pool->copies = memory;
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

static bp_status lay_out_buffers(bp_pool *pool, const bp_plan_info *plan)
{
    spans list = {0};
    bp_status status = layout_add_classes(pool, plan, &list);
    if (status == BP_OK)
        status = layout_add_requests(plan, &list);
    if (status == BP_OK && list.count > 0) {
        qsort(list.items, list.count, sizeof *list.items, by_place);
        status = merge_equal(&list);
    }
    if (status == BP_OK)
        status = keep_spans(pool, &list);
    free(list.items);
    BP_TRY(status);
    BP_TRY(list_copies(pool));
    return find_buffers(pool, plan);
}

/* ---- cuts ----------------------------------------------------------------------------------------------------------- */

/* Ends of requests, as empty spans; sorted and without repetition they become the ranges between them. */
static bp_status add_ends(const bp_plan_info *plan, spans *list)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement != BP_PLACE_PLANNED)
            continue;
        BP_TRY(layout_add_span(list, r->slab, r->offset, 0, BP_NONE));
        BP_TRY(layout_add_span(list, r->slab, end_of(plan, r), 0, BP_NONE));
    }
    return BP_OK;
}

static void cut_at_ends(spans *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        const span *s = &list->items[i], *next = s + 1;
        if (i + 1 == list->count || next->slab != s->slab)
            continue; /* the last end of a slab begins nothing */
        if (next->offset != s->offset)
            list->items[kept++] = (span){s->offset, next->offset - s->offset, s->slab, BP_NONE};
    }
    list->count = kept;
}

static void find_ranges(bp_pool *pool, const bp_plan_info *plan)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement != BP_PLACE_PLANNED)
            continue;
        uint32_t first = find_segment(pool, r->slab, r->offset), last = find_segment(pool, r->slab, end_of(plan, r));
        pool->entries[i].home = (bp_range){first, last - first};
        for (uint32_t s = first + 1; s < last; s++)
            pool->places[s].joined = true;
    }
}

static bp_status lay_out_cuts(bp_pool *pool, const bp_plan_info *plan)
{
    spans list = {0};
    bp_status status = add_ends(plan, &list);
    if (status == BP_OK && list.count > 0) {
        qsort(list.items, list.count, sizeof *list.items, by_place);
        cut_at_ends(&list);
    }
    if (status == BP_OK)
        status = keep_spans(pool, &list);
    free(list.items);
    BP_TRY(status);
    find_ranges(pool, plan);
    return BP_OK;
}

bp_status bp_lay_out(bp_pool *pool, const bp_plan_info *plan)
{
    for (size_t i = 0; i < plan->request_count; i++)
        pool->entries[i].class_index = BP_NONE;
    return plan->policy == BP_POLICY_SCHEDULED ? lay_out_cuts(pool, plan) : lay_out_buffers(pool, plan);
}

/* ---- slabs ---------------------------------------------------------------------------------------------------------- */

static bp_status fail_guarded(void)
{
    return bp_fail(BP_ERR_OVERFLOW, "the slabs with guard pages do not fit 64 bits");
}

/* Segments that are joined keep their distances; the others begin on a page, after a page that belongs to nobody. */
static bp_status set_apart(bp_pool *pool, size_t slab_count, uint64_t *sizes)
{
    const uint64_t page = pool->page_bytes, step = pool->info.alignment > page ? pool->info.alignment : page;
    for (uint32_t s = 0; s < pool->planned_segments; s++) {
        bp_segment_place *place = &pool->places[s];
        uint64_t *end = &sizes[place->slab]; /* of what is laid out so far */
        if (!place->joined && (!bp_add_u64(*end, page, end) || !bp_round_up_u64(*end, step, end)))
            return fail_guarded();
        place->made_offset = *end;
        if (!bp_add_u64(*end, place->room, end))
            return fail_guarded();
        bool last = s + 1 == pool->planned_segments || !pool->places[s + 1].joined;
        if (last && !bp_round_up_u64(*end, page, end))
            return fail_guarded();
        if (last)
            place->room = *end - place->made_offset;
    }
    for (size_t i = 0; i < slab_count; i++)
        if (!bp_add_u64(sizes[i], page, &sizes[i]))
            return fail_guarded();
    return BP_OK;
}

bp_status bp_lay_out_slabs(bp_pool *pool, const bp_plan_info *plan, uint64_t *sizes)
{
    for (size_t i = 0; i < plan->slab_count; i++)
        sizes[i] = pool->guarded ? 0 : plan->slabs[i].bytes;
    if (pool->guarded)
        return set_apart(pool, plan->slab_count, sizes);
    for (uint32_t s = 0; s < pool->planned_segments; s++)
        pool->places[s].made_offset = pool->places[s].offset;
    return BP_OK;
}
