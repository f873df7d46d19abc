/* SPDX-License-Identifier: Apache-2.0 */
/* bp_problem: lists, the conflict graph of the sections, problems derived from others, orders of items. */
#include "planner/packing/problem.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/index.h"
#include "core/memory.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Limit of the entries of a list: keeps their numbers within 32 bits. Within BP_PROBLEM_CONFLICTS no list of a problem reaches it. */
#define MAX_ENTRIES (UINT32_C(1) << 26)

void bp_lists_finish(bp_lists *lists)
{
    free(lists->first);
    free(lists->entries);
    *lists = (bp_lists){0};
}

bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse)
{
    bp_lists made = {.count = entry_limit};
    uint32_t total = lists->first[lists->count];
    BP_TRY(bp_new_array((size_t)entry_limit + 2, sizeof *made.first, (void **)&made.first));
    bp_status status = bp_new_array(total, sizeof *made.entries, (void **)&made.entries);
    if (status != BP_OK) {
        free(made.first);
        return status;
    }
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

int bp_compare_numbers(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

int bp_compare_keyed(const void *left, const void *right)
{
    const bp_keyed *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
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
    if (w->entry_count >= MAX_ENTRIES)
        return bp_fail(BP_ERR_UNSUPPORTED, "the instance has more conflicts than can be searched: over %u",
                       MAX_ENTRIES);
    BP_TRY(bp_grow_array((void **)&w->lists.entries, &w->entry_capacity, w->entry_count, sizeof *w->lists.entries));
    w->lists.entries[w->entry_count++] = entry;
    w->lists.first[w->lists.count] = (uint32_t)w->entry_count;
    return BP_OK;
}

bp_status bp_list_writer_take(bp_list_writer *w, bp_lists *lists)
{
    BP_TRY(end_list(w)); /* first[] has one more entry than there are lists */
    if (w->lists.entries == NULL)
        BP_TRY(bp_grow_array((void **)&w->lists.entries, &w->entry_capacity, 0, sizeof *w->lists.entries));
    *lists = w->lists;
    *w = (bp_list_writer){0};
    return BP_OK;
}

/* ---- neighbours ------------------------------------------------------------------------------------------------------- */

/* Lists an item's neighbours entry by entry. seen_by[other]: the latest item, from 1, whose list has it. */
static bp_status list_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t item,
                                 uint32_t *seen_by, bp_list_writer *w)
{
    uint32_t first = (uint32_t)w->entry_count;
    seen_by[item] = item + 1;
    for (uint32_t m = memberships->first[item]; m < memberships->first[item + 1]; m++) {
        uint32_t s = memberships->entries[m];
        for (uint32_t e = sections->first[s]; e < sections->first[s + 1]; e++) {
            uint32_t other = sections->entries[e];
            if (seen_by[other] == item + 1)
                continue;
            seen_by[other] = item + 1;
            BP_TRY(bp_list_add(w, other));
        }
    }
    if (w->entry_count > first)
        qsort(w->lists.entries + first, w->entry_count - first, sizeof *w->lists.entries, bp_compare_numbers);
    return BP_OK;
}

/* Lists an item's neighbours with bitmaps, a word at a time. maps: a row of `words` for each section, and a scratch row. */
static bp_status join_neighbours(const bp_lists *memberships, uint32_t item, uint64_t *maps, size_t words,
                                 uint64_t *joined, bp_list_writer *w)
{
    memset(joined, 0, words * sizeof *joined);
    for (uint32_t m = memberships->first[item]; m < memberships->first[item + 1]; m++) {
        const uint64_t *map = maps + words * memberships->entries[m];
        for (size_t i = 0; i < words; i++)
            joined[i] |= map[i];
    }
    joined[item / 64] &= ~(UINT64_C(1) << item % 64);
    for (size_t i = 0; i < words; i++) {
        for (uint64_t left = joined[i]; left != 0; left &= left - 1)
            BP_TRY(bp_list_add(w, (uint32_t)(64 * i) + (uint32_t)__builtin_ctzll(left)));
    }
    return BP_OK;
}

#define MAX_MAP_WORDS (UINT32_C(1) << 22) /* 32 MiB */

bp_status bp_find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                             bp_lists *neighbours)
{
    size_t words = count / 64 + 1, rows = sections->count + (size_t)1;
    bool maps_fit = rows <= MAX_MAP_WORDS / words;
    bp_list_writer w = {0};
    void *memory;
    BP_TRY(bp_new_array(maps_fit ? rows * words : count, maps_fit ? sizeof(uint64_t) : sizeof(uint32_t), &memory));
    uint64_t *maps = memory;
    for (uint32_t s = 0; maps_fit && s < sections->count; s++) {
        for (uint32_t e = sections->first[s]; e < sections->first[s + 1]; e++)
            maps[words * s + sections->entries[e] / 64] |= UINT64_C(1) << sections->entries[e] % 64;
    }
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < count; i++) {
        status = bp_list_begin(&w);
        if (status == BP_OK)
            status = maps_fit ? join_neighbours(memberships, i, maps, words, maps + words * sections->count, &w)
                              : list_neighbours(sections, memberships, i, memory, &w);
    }
    if (status == BP_OK)
        status = bp_list_writer_take(&w, neighbours);
    bp_lists_finish(&w.lists);
    free(memory);
    return status;
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

/* Computes everything that follows from items and sections. */
static bp_status problem_complete(bp_problem *p)
{
    BP_TRY(bp_lists_invert(&p->sections, p->count, &p->memberships));
    BP_TRY(bp_find_neighbours(&p->sections, &p->memberships, p->count, &p->neighbours));
    for (uint32_t s = 0; s < p->sections.count; s++) {
        uint64_t sum = 0;
        for (uint32_t e = p->sections.first[s]; e < p->sections.first[s + 1]; e++)
            sum += p->sizes[p->sections.entries[e]]; /* cannot wrap: the sum of all sizes fits */
        if (sum > p->bound) {
            p->bound = sum;
            p->bound_section = s;
        }
    }
    return BP_OK;
}

bp_status bp_problem_init(const bp_timeline *timeline, bp_problem *problem)
{
    *problem = (bp_problem){0};
    bp_status status = bp_sections_find(timeline, problem);
    if (status == BP_OK)
        status = problem_complete(problem);
    if (status != BP_OK)
        bp_problem_finish(problem);
    return status;
}

void bp_problem_finish(bp_problem *problem)
{
    free(problem->sizes);
    bp_lists_finish(&problem->sections);
    bp_lists_finish(&problem->memberships);
    bp_lists_finish(&problem->neighbours);
    *problem = (bp_problem){0};
}

/* ---- derived problems ------------------------------------------------------------------------------------------------ */

static bp_status new_items(uint32_t max, bp_problem *problem)
{
    *problem = (bp_problem){0};
    return bp_new_array(max, sizeof *problem->sizes, (void **)&problem->sizes);
}

/* Appends a section of `whole` with its items renumbered; items with BP_NO_ITEM are left out, equal numbers become one entry. */
static bp_status renumber_section(const bp_problem *whole, uint32_t section, const uint32_t *number_of,
                                  uint32_t *seen_by, bp_list_writer *w)
{
    bool begun = false;
    for (uint32_t e = whole->sections.first[section]; e < whole->sections.first[section + 1]; e++) {
        uint32_t number = number_of[whole->sections.entries[e]];
        if (number == BP_NO_ITEM || seen_by[number] == section + 1)
            continue;
        seen_by[number] = section + 1;
        if (!begun)
            BP_TRY(bp_list_begin(w));
        begun = true;
        BP_TRY(bp_list_add(w, number));
    }
    return BP_OK;
}

/* Completes `made`, whose items are set, in the order of `whole`. `sections`: those that contain any of the items, in order; NULL: the
 * first `section_count`. */
static bp_status complete_from(const bp_problem *whole, const uint32_t *sections, uint32_t section_count,
                               const uint32_t *number_of, bp_problem *made)
{
    bp_list_writer w = {0};
    uint32_t *seen_by;
    BP_TRY(bp_new_array(made->count, sizeof *seen_by, (void **)&seen_by));
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < section_count; i++)
        status = renumber_section(whole, sections != NULL ? sections[i] : i, number_of, seen_by, &w);
    if (status == BP_OK)
        status = bp_list_writer_take(&w, &made->sections);
    if (status == BP_OK)
        status = problem_complete(made);
    bp_lists_finish(&w.lists);
    free(seen_by);
    return status;
}

bp_status bp_problem_subset(const bp_problem *problem, const uint32_t *items, uint32_t count, uint32_t *number_of,
                            bp_problem *subset)
{
    const bp_lists *memberships = &problem->memberships;
    uint32_t *sections, section_count = 0;
    size_t max = 0, used = 0;
    for (uint32_t i = 0; i < count; i++)
        max += memberships->first[items[i] + 1] - memberships->first[items[i]];
    BP_TRY(bp_new_array(max, sizeof *sections, (void **)&sections));
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t m = memberships->first[items[i]]; m < memberships->first[items[i] + 1]; m++)
            sections[used++] = memberships->entries[m];
    }
    if (used > 0)
        qsort(sections, used, sizeof *sections, bp_compare_numbers);
    for (size_t i = 0; i < used; i++) {
        if (i == 0 || sections[i] != sections[section_count - 1])
            sections[section_count++] = sections[i];
    }
    bp_status status = new_items(count, subset);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < count; i++) {
            number_of[items[i]] = i;
            subset->sizes[i] = problem->sizes[items[i]];
        }
        subset->count = count;
        status = complete_from(problem, sections, section_count, number_of, subset);
        for (uint32_t i = 0; i < count; i++)
            number_of[items[i]] = BP_NO_ITEM;
    }
    if (status != BP_OK)
        bp_problem_finish(subset);
    free(sections);
    return status;
}

static bp_status find_blocks(const bp_problem *p, uint32_t *block_of, uint64_t *inner, bp_problem *blocks)
{
    bp_index index = {0}; /* by memberships: the first item of each block */
    bp_status status = BP_OK;
    for (uint32_t i = 0; i < p->count && status == BP_OK; i++) {
        uint32_t first = p->memberships.first[i], count = p->memberships.first[i + 1] - first, known = 0;
        bp_index_search search = bp_index_start(bp_hash(p->memberships.entries + first, count * sizeof(uint32_t)));
        bool found = false;
        while (!found && bp_index_next(&index, &search, &known))
            found = bp_lists_equal(&p->memberships, known, i);
        block_of[i] = found ? block_of[known] : blocks->count++;
        if (!found)
            status = bp_index_add(&index, search.hash, i);
        inner[i] = blocks->sizes[block_of[i]];
        blocks->sizes[block_of[i]] += p->sizes[i];
    }
    bp_index_finish(&index);
    return status;
}

bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner)
{
    bp_status status = new_items(problem->count, blocks);
    if (status == BP_OK)
        status = find_blocks(problem, block_of, inner, blocks);
    if (status == BP_OK)
        status = complete_from(problem, NULL, problem->sections.count, block_of, blocks);
    if (status != BP_OK)
        bp_problem_finish(blocks);
    return status;
}

/* ---- orders ---------------------------------------------------------------------------------------------------------- */

/* Computes place, last and width of an order whose items are set. `leaving`: scratch for all items. */
static void measure(const bp_problem *p, bp_order *order, uint32_t *leaving)
{
    for (uint32_t at = 0; at < p->count; at++) {
        order->place[order->items[at]] = at;
        leaving[at] = 0;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        order->last[i] = order->place[i];
        for (uint32_t n = p->neighbours.first[i]; n < p->neighbours.first[i + 1]; n++) {
            uint32_t at = order->place[p->neighbours.entries[n]];
            order->last[i] = at > order->last[i] ? at : order->last[i];
        }
        leaving[order->last[i]]++;
    }
    uint32_t waiting = 0;
    order->width = 0;
    for (uint32_t at = 0; at < p->count; at++) {
        waiting = waiting + 1 - leaving[at];
        order->width = waiting > order->width ? waiting : order->width;
    }
}

static uint32_t degree(const bp_problem *p, uint32_t item)
{
    return p->neighbours.first[item + 1] - p->neighbours.first[item];
}

/* Appends the neighbours that are not listed yet, those of low degree first. */
static void append_neighbours(const bp_problem *p, uint32_t item, uint32_t *items, uint32_t *used, bool *there)
{
    uint32_t from = *used;
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (there[other])
            continue;
        there[other] = true;
        uint32_t at = (*used)++;
        for (; at > from && degree(p, items[at - 1]) > degree(p, other); at--)
            items[at] = items[at - 1];
        items[at] = other;
    }
}

static void order_breadth_first(const bp_problem *p, bool *there, uint32_t *items)
{
    uint32_t used = 0, next = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (there[i])
            continue;
        there[i] = true;
        items[used++] = i;
        for (; next < used; next++)
            append_neighbours(p, items[next], items, &used, there);
    }
}

static bp_status new_order(uint32_t count, bp_order *order)
{
    *order = (bp_order){0};
    BP_TRY(bp_new_array(3 * (size_t)count, sizeof *order->items, (void **)&order->items));
    order->place = order->items + count;
    order->last = order->place + count;
    return BP_OK;
}

bp_status bp_order_init(const bp_problem *problem, bp_order *order)
{
    bp_order other = {0};
    uint32_t *leaving = NULL;
    bool *there = NULL;
    bp_status status = new_order(problem->count, order);
    if (status == BP_OK)
        status = new_order(problem->count, &other);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *leaving, (void **)&leaving);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *there, (void **)&there);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < problem->count; i++)
            order->items[i] = i;
        order_breadth_first(problem, there, other.items);
        measure(problem, order, leaving);
        measure(problem, &other, leaving);
        if (other.width < order->width) {
            bp_order better = other;
            other = *order;
            *order = better;
        }
    }
    free(leaving);
    free(there);
    bp_order_finish(&other);
    if (status != BP_OK)
        bp_order_finish(order);
    return status;
}

void bp_order_finish(bp_order *order)
{
    free(order->items);
    *order = (bp_order){0};
}
