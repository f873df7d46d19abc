#include "packing/lists.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

/* Entries of sections and of neighbour lists: beyond, memory and not the search is what an instance takes. */
#define MOST_ENTRIES (UINT32_C(1) << 26)

void bp_lists_finish(bp_lists *lists)
{
    free(lists->first);
    free(lists->entries);
    *lists = (bp_lists){0};
}

bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse)
{
    void *memory;
    bp_lists made = {.count = entry_limit};
    BP_TRY(bp_new_array((size_t)entry_limit + 2, sizeof *made.first, &memory));
    made.first = memory;
    uint32_t total = lists->first[lists->count];
    bp_status status = bp_new_array(total, sizeof *made.entries, &memory);
    if (status != BP_OK) {
        free(made.first);
        return status;
    }
    made.entries = memory;
    for (uint32_t i = 0; i < total; i++)
        made.first[lists->entries[i] + 2]++;
    for (uint32_t i = 2; i < entry_limit + 2; i++)
        made.first[i] += made.first[i - 1];
    for (uint32_t l = 0; l < lists->count; l++) {
        for (uint32_t i = lists->first[l]; i < lists->first[l + 1]; i++)
            made.entries[made.first[lists->entries[i] + 1]++] = l;
    }
    *inverse = made;
    return BP_OK;
}

bool bp_lists_equal(const bp_lists *lists, uint32_t one, uint32_t other)
{
    uint32_t count = lists->first[one + 1] - lists->first[one];
    return lists->first[other + 1] - lists->first[other] == count &&
           memcmp(lists->entries + lists->first[one], lists->entries + lists->first[other],
                  count * sizeof *lists->entries) == 0;
}

uint64_t bp_hash_list(const uint32_t *entries, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ entries[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

int bp_compare_numbers(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static bp_status end_list(bp_list_writer *w)
{
    BP_TRY(bp_grow_array((void **)&w->lists.first, &w->first_capacity, w->lists.count, sizeof *w->lists.first));
    w->lists.first[w->lists.count] = (uint32_t)w->entry_count;
    return BP_OK;
}

bp_status bp_list_begin(bp_list_writer *w)
{
    BP_TRY(end_list(w));
    w->lists.count++;
    return end_list(w);
}

bp_status bp_list_add(bp_list_writer *w, uint32_t entry)
{
    if (w->entry_count >= MOST_ENTRIES)
        return bp_fail(BP_ERR_UNSUPPORTED, "the instance has more conflicts than can be searched: over %u",
                       MOST_ENTRIES);
    BP_TRY(bp_grow_array((void **)&w->lists.entries, &w->entry_capacity, w->entry_count, sizeof *w->lists.entries));
    w->lists.entries[w->entry_count++] = entry;
    w->lists.first[w->lists.count] = (uint32_t)w->entry_count;
    return BP_OK;
}

bp_status bp_list_writer_take(bp_list_writer *w, bp_lists *lists)
{
    BP_TRY(end_list(w)); /* also when there is none */
    if (w->lists.entries == NULL)
        BP_TRY(bp_grow_array((void **)&w->lists.entries, &w->entry_capacity, 0, sizeof *w->lists.entries));
    *lists = w->lists;
    *w = (bp_list_writer){0};
    return BP_OK;
}

void bp_list_writer_finish(bp_list_writer *w)
{
    bp_lists_finish(&w->lists);
    *w = (bp_list_writer){0};
}
