/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a step plan, in one allocation. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/step_plan.h>

#include <stdlib.h>
#include <string.h>

struct bp_step_plan {
    bp_step_plan_info info;
};

/* ---- validation ---------------------------------------------------------------------------------------------------- */

static bp_status check_item(const bp_step_plan_info *info, size_t number, size_t order)
{
    const bp_step_plan_item *item = &info->kinds[number].items[order];
    if (item->stream >= info->stream_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: item %zu of kind %zu is of stream %u; there are %zu", order,
                       number, item->stream, info->stream_count);
    if (item->place != BP_STEP_NO_PLACE && item->place >= info->place_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: item %zu of kind %zu has place %u; there are %zu", order,
                       number, item->place, info->place_count);
    if (item->offset == BP_STEP_OUTSIDE)
        return BP_OK;
    if (item->bytes == 0 || item->offset % BP_STEP_ALIGNMENT != 0 || item->offset > info->bytes ||
        item->bytes > info->bytes - item->offset)
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "step plan: item %zu of kind %zu has %llu bytes at %llu; offsets are multiples of %u in a slab of "
            "%llu bytes",
            order, number, (unsigned long long)item->bytes, (unsigned long long)item->offset, BP_STEP_ALIGNMENT,
            (unsigned long long)info->bytes);
    return BP_OK;
}

static bp_status check_kind(const bp_step_plan_info *info, size_t number)
{
    const bp_step_plan_kind *kind = &info->kinds[number];
    for (size_t i = 0; i < kind->mark_count; i++) {
        if (kind->marks[i] > kind->item_count || (i > 0 && kind->marks[i] <= kind->marks[i - 1]))
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "step plan: mark %zu of kind %zu is before item %u of %zu; marks ascend", i, number,
                           kind->marks[i], kind->item_count);
    }
    for (size_t i = 0; i < kind->item_count; i++)
        BP_TRY(check_item(info, number, i));
    return BP_OK;
}

static bp_status check(const bp_step_plan_info *info)
{
    size_t items = 0;
    if (info->kind_count == 0 || info->kind_count > BP_STEP_PLAN_KINDS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: %zu kinds of steps; 1 to %u are possible", info->kind_count,
                       BP_STEP_PLAN_KINDS);
    if (info->stream_count > BP_STEP_PLAN_STREAMS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: %zu streams; at most %u are possible", info->stream_count,
                       BP_STEP_PLAN_STREAMS);
    if (info->bytes % BP_STEP_ALIGNMENT != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: a slab of %llu bytes; it is a multiple of %u",
                       (unsigned long long)info->bytes, BP_STEP_ALIGNMENT);
    for (size_t i = 0; i < info->waits_count; i++) {
        if (info->waits[i].waiting >= info->stream_count || info->waits[i].before >= info->stream_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: pair %zu of waits has streams %u and %u; there are %zu",
                           i, info->waits[i].waiting, info->waits[i].before, info->stream_count);
    }
    for (size_t i = 0; i < info->kind_count; i++) {
        if (info->kinds[i].item_count > ((size_t)1 << 30) - items)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: more than 2^30 items");
        items += info->kinds[i].item_count;
        BP_TRY(check_kind(info, i));
    }
    return BP_OK;
}

/* ---- copying ------------------------------------------------------------------------------------------------------- */

/* Copies `count` elements, and moves *elements to the copy. An empty array is NULL. */
static bp_status own(const void *elements, size_t count, size_t bytes, void *copy)
{
    void *made = NULL;
    if (count > 0) {
        made = malloc(count * bytes);
        if (made == NULL)
            return bp_fail_memory(count * bytes);
        memcpy(made, elements, count * bytes);
    }
    memcpy(copy, &made, sizeof made);
    return BP_OK;
}

static bp_status own_kind(const bp_step_plan_kind *kind, bp_step_plan_kind *copy)
{
    *copy = *kind;
    copy->items = NULL;
    copy->marks = NULL;
    copy->method = NULL;
    BP_TRY(own(kind->items, kind->item_count, sizeof *kind->items, &copy->items));
    BP_TRY(own(kind->marks, kind->mark_count, sizeof *kind->marks, &copy->marks));
    const char *method = kind->method != NULL ? kind->method : "";
    return own(method, strlen(method) + 1, 1, &copy->method);
}

static bp_status own_all(const bp_step_plan_info *info, bp_step_plan_info *copy)
{
    *copy = *info;
    copy->kinds = NULL;
    copy->streams = NULL;
    copy->waits = NULL;
    copy->places = NULL;
    BP_TRY(own(info->streams, info->stream_count, sizeof *info->streams, &copy->streams));
    BP_TRY(own(info->waits, info->waits_count, sizeof *info->waits, &copy->waits));
    bp_step_plan_kind *kinds = calloc(info->kind_count, sizeof *kinds);
    const char **places = calloc(info->place_count + 1, sizeof *places);
    copy->kinds = kinds;
    copy->places = places;
    if (kinds == NULL || places == NULL)
        return bp_fail_memory(info->place_count * sizeof *places);
    for (size_t i = 0; i < info->kind_count; i++)
        BP_TRY(own_kind(&info->kinds[i], &kinds[i]));
    for (size_t i = 0; i < info->place_count; i++)
        BP_TRY(own(info->places[i], strlen(info->places[i]) + 1, 1, &places[i]));
    return BP_OK;
}

bp_status bp_step_plan_from_info(const bp_step_plan_info *info, bp_step_plan **plan)
{
    if (info == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: the contents or the plan is NULL");
    BP_TRY(check(info));
    bp_step_plan *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    bp_status status = own_all(info, &made->info);
    if (status == BP_OK)
        *plan = made;
    else
        bp_step_plan_destroy(&made);
    return status;
}

void bp_step_plan_destroy(bp_step_plan **plan)
{
    if (plan == NULL || *plan == NULL)
        return;
    const bp_step_plan_info *info = &(*plan)->info;
    for (size_t i = 0; info->kinds != NULL && i < info->kind_count; i++) {
        free((void *)info->kinds[i].items);
        free((void *)info->kinds[i].marks);
        free((void *)info->kinds[i].method);
    }
    for (size_t i = 0; info->places != NULL && i < info->place_count; i++)
        free((void *)info->places[i]);
    free((void *)info->kinds);
    free((void *)info->places);
    free((void *)info->waits);
    free((void *)info->streams);
    free(*plan);
    *plan = NULL;
}

const bp_step_plan_info *bp_step_plan_get_info(const bp_step_plan *plan)
{
    return plan != NULL ? &plan->info : NULL;
}
