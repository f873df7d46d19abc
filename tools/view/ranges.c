/* SPDX-License-Identifier: Apache-2.0 */
/* A sorted array of ranges. */
#include "view/ranges.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WORK ((uint64_t)1 << 29)

/* Replaces `old` ranges from `at` on by as many as are given. */
static bp_status replace(view_ranges *r, size_t at, size_t old, const view_range *with, size_t count, uint64_t *work)
{
    if (r->count + count - old > r->capacity) {
        size_t capacity = 2 * (r->count + count) + 2;
        view_range *moved = realloc(r->all, capacity * sizeof *moved);
        if (moved == NULL)
            return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while segments are played");
        r->all = moved;
        r->capacity = capacity;
    }
    size_t after = r->count - at - old;
    if (old != count && after > 0)
        memmove(r->all + at + count, r->all + at + old, after * sizeof *r->all);
    *work += after + 1;
    if (count > 0)
        memcpy(r->all + at, with, count * sizeof *with);
    r->count = r->count + count - old;
    return *work <= MAX_WORK
               ? BP_OK
               : bp_error_record(BP_ERR_FORMAT, "its segments are mapped in too many parts; record fewer events");
}

/* The first range that ends behind the address. */
static size_t first_behind(const view_ranges *r, uint64_t address)
{
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->all[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

bp_status view_ranges_add(view_ranges *r, view_range added, uint64_t *work, view_range_visitor *visit, void *user)
{
    bp_status status = BP_OK;
    for (size_t at = first_behind(r, added.begin); status == BP_OK && added.begin < added.end; at++) {
        view_range part = added;
        if (at < r->count && r->all[at].begin < part.end)
            part.end = r->all[at].begin;
        if (part.begin < part.end) {
            status = replace(r, at, 0, &part, 1, work);
            if (status == BP_OK && visit != NULL)
                status = visit(user, &part);
            at++; /* to the range that stood there */
        }
        added.begin = at < r->count && r->all[at].begin < added.end ? r->all[at].end : added.end;
    }
    return status;
}

bp_status view_ranges_take(view_ranges *r, view_range taken, uint64_t *work, view_range_visitor *visit, void *user)
{
    bp_status status = BP_OK;
    for (size_t at = first_behind(r, taken.begin);
         status == BP_OK && at < r->count && r->all[at].begin < taken.end && taken.begin < taken.end;) {
        view_range old = r->all[at], part = old, rest[2];
        part.begin = old.begin < taken.begin ? taken.begin : old.begin;
        part.end = old.end > taken.end ? taken.end : old.end;
        size_t left = 0;
        if (old.begin < part.begin)
            rest[left++] = (view_range){old.begin, part.begin, old.since_ns};
        if (old.end > part.end)
            rest[left++] = (view_range){part.end, old.end, old.since_ns};
        status = replace(r, at, 1, rest, left, work);
        at += left;
        if (status == BP_OK && visit != NULL)
            status = visit(user, &part);
    }
    return status;
}

void view_ranges_finish(view_ranges *r)
{
    free(r->all);
    *r = (view_ranges){0};
}
