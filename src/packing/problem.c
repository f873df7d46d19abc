/* A packing instance as the solvers see it. */
#include "packing/problem.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"
#include "packing/sections.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

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

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static void problem_find_bound(bp_problem *p)
{
    for (uint32_t s = 0; s < p->sections.count; s++) {
        uint64_t sum = 0;
        for (uint32_t e = p->sections.first[s]; e < p->sections.first[s + 1]; e++)
            sum += p->sizes[p->sections.entries[e]]; /* fits: the sum of all does */
        if (sum > p->bound) {
            p->bound = sum;
            p->bound_section = s;
        }
    }
}

/* What follows from items and sections. */
static bp_status problem_complete(bp_problem *p)
{
    BP_TRY(bp_lists_invert(&p->sections, p->count, &p->memberships));
    BP_TRY(bp_find_neighbours(&p->sections, &p->memberships, p->count, &p->neighbours));
    problem_find_bound(p);
    return BP_OK;
}

bp_status bp_problem_init(const bp_packing *packing, bp_problem *problem)
{
    *problem = (bp_problem){0};
    bp_status status = bp_sections_find(packing, problem);
    if (status == BP_OK)
        status = problem_complete(problem);
    if (status != BP_OK)
        bp_problem_finish(problem);
    return status;
}

void bp_problem_finish(bp_problem *problem)
{
    free(problem->sizes);
    free(problem->origin);
    bp_lists_finish(&problem->sections);
    bp_lists_finish(&problem->memberships);
    bp_lists_finish(&problem->neighbours);
    *problem = (bp_problem){0};
}

uint64_t bp_problem_height(const bp_problem *problem, const uint64_t *offsets)
{
    uint64_t height = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        uint64_t end = offsets[i] + problem->sizes[i];
        height = end > height ? end : height;
    }
    return height;
}

/* ---- problems made from others --------------------------------------------------------------------------------------- */

static bp_status new_items(uint32_t most, bp_problem *problem)
{
    void *memory;
    *problem = (bp_problem){0};
    BP_TRY(bp_new_array(most, sizeof *problem->sizes, &memory));
    problem->sizes = memory;
    BP_TRY(bp_new_array(most, sizeof *problem->origin, &memory));
    problem->origin = memory;
    return BP_OK;
}

/* A section of `whole` with its items renumbered; BP_NO_ITEM: left out. Several may become one. */
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

/* Fills in all but the items of `made`, which come in the order of what they were in `whole`. `sections`: those that have any of them,
 * in order; NULL: the first `section_count`. */
static bp_status complete_from(const bp_problem *whole, const uint32_t *sections, uint32_t section_count,
                               const uint32_t *number_of, bp_problem *made)
{
    bp_list_writer w = {0};
    void *seen_by;
    BP_TRY(bp_new_array(made->count, sizeof(uint32_t), &seen_by));
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < section_count; i++)
        status = renumber_section(whole, sections != NULL ? sections[i] : i, number_of, seen_by, &w);
    if (status == BP_OK)
        status = bp_list_writer_take(&w, &made->sections);
    if (status == BP_OK)
        status = problem_complete(made);
    bp_list_writer_finish(&w);
    free(seen_by);
    return status;
}

/* The sections that have any of the items, each once, in order. */
static bp_status collect_sections(const bp_problem *p, const uint32_t *items, uint32_t count, uint32_t **sections,
                                  uint32_t *section_count)
{
    size_t memberships = 0, used = 0;
    void *memory;
    for (uint32_t i = 0; i < count; i++)
        memberships += p->memberships.first[items[i] + 1] - p->memberships.first[items[i]];
    BP_TRY(bp_new_array(memberships, sizeof **sections, &memory));
    *sections = memory;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t m = p->memberships.first[items[i]]; m < p->memberships.first[items[i] + 1]; m++)
            (*sections)[used++] = p->memberships.entries[m];
    }
    if (used > 0)
        qsort(*sections, used, sizeof **sections, bp_compare_numbers);
    *section_count = 0;
    for (size_t i = 0; i < used; i++) {
        if (i == 0 || (*sections)[i] != (*sections)[*section_count - 1])
            (*sections)[(*section_count)++] = (*sections)[i];
    }
    return BP_OK;
}

bp_status bp_problem_subset(const bp_problem *problem, const uint32_t *items, uint32_t count, uint32_t *number_of,
                            bp_problem *subset)
{
    uint32_t *sections = NULL, section_count;
    bp_status status = new_items(count, subset);
    if (status == BP_OK)
        status = collect_sections(problem, items, count, &sections, &section_count);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < count; i++) {
            number_of[items[i]] = i;
            subset->sizes[i] = problem->sizes[items[i]];
            subset->origin[i] = items[i];
        }
        subset->count = count;
        status = complete_from(problem, sections, section_count, number_of, subset);
        for (uint32_t i = 0; i < count; i++)
            number_of[items[i]] = BP_NO_ITEM;
    }
    free(sections);
    if (status != BP_OK)
        bp_problem_finish(subset);
    return status;
}

static bp_status find_blocks(const bp_problem *p, uint32_t *block_of, uint64_t *inner, bp_problem *blocks)
{
    size_t size = 64;
    while (size < 2 * (size_t)p->count)
        size *= 2;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof(uint32_t), &memory));
    uint32_t *table = memory; /* open addressing: the first items of blocks by their memberships, from 1 */
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t first = p->memberships.first[i], count = p->memberships.first[i + 1] - first;
        size_t at = bp_hash_list(p->memberships.entries + first, count) & (size - 1);
        while (table[at] != 0 && !bp_lists_equal(&p->memberships, table[at] - 1, i))
            at = (at + 1) & (size - 1);
        if (table[at] == 0) {
            table[at] = i + 1;
            blocks->origin[blocks->count] = i;
            block_of[i] = blocks->count++;
        } else {
            block_of[i] = block_of[table[at] - 1];
        }
        inner[i] = blocks->sizes[block_of[i]];
        blocks->sizes[block_of[i]] += p->sizes[i];
    }
    free(table);
    return BP_OK;
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

/* ---- parts ----------------------------------------------------------------------------------------------------------- */

typedef struct splitting {
    const bp_problem *whole;
    uint32_t *part_of, *number_in_part; /* by item */
    bp_lists items, sections;           /* of each part */
    bp_problem *parts;
    uint32_t count, made;
} splitting;

/* Breadth first over the neighbours of each item that has no part yet. */
static bp_status find_parts(splitting *s)
{
    const bp_lists *n = &s->whole->neighbours;
    void *memory;
    BP_TRY(bp_new_array(s->whole->count, sizeof(uint32_t), &memory));
    uint32_t *reached = memory, end = 0, next = 0;
    for (uint32_t i = 0; i < s->whole->count; i++)
        s->part_of[i] = BP_NO_ITEM;
    for (uint32_t i = 0; i < s->whole->count; i++) {
        if (s->part_of[i] != BP_NO_ITEM)
            continue;
        s->part_of[i] = s->count;
        reached[end++] = i;
        for (; next < end; next++) {
            for (uint32_t e = n->first[reached[next]]; e < n->first[reached[next] + 1]; e++) {
                uint32_t other = n->entries[e];
                if (s->part_of[other] != BP_NO_ITEM)
                    continue;
                s->part_of[other] = s->count;
                reached[end++] = other;
            }
        }
        s->count++;
    }
    free(reached);
    return BP_OK;
}

/* The lists of what has which part. */
static bp_status group_by_part(const uint32_t *parts, uint32_t count, uint32_t part_count, bp_lists *groups)
{
    bp_list_writer w = {0};
    bp_lists lists = {0};
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < count; i++) {
        status = bp_list_begin(&w);
        if (status == BP_OK)
            status = bp_list_add(&w, parts[i]);
    }
    if (status == BP_OK)
        status = bp_list_writer_take(&w, &lists);
    if (status == BP_OK)
        status = bp_lists_invert(&lists, part_count, groups);
    bp_lists_finish(&lists);
    bp_list_writer_finish(&w);
    return status;
}

static bp_status group(splitting *s)
{
    const bp_lists *sections = &s->whole->sections;
    void *memory;
    BP_TRY(group_by_part(s->part_of, s->whole->count, s->count, &s->items));
    BP_TRY(bp_new_array(sections->count, sizeof(uint32_t), &memory));
    uint32_t *part_of_section = memory;
    for (uint32_t i = 0; i < sections->count; i++) /* none is empty */
        part_of_section[i] = s->part_of[sections->entries[sections->first[i]]];
    bp_status status = group_by_part(part_of_section, sections->count, s->count, &s->sections);
    free(part_of_section);
    return status;
}

static bp_status make_part(splitting *s, uint32_t number)
{
    bp_problem *part = &s->parts[number];
    const bp_lists *sections = &s->whole->sections;
    uint32_t first = s->items.first[number], count = s->items.first[number + 1] - first;
    s->made++; /* it is zeros: what there is of it is freed with the others */
    BP_TRY(new_items(count, part));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t item = s->items.entries[first + i];
        part->sizes[i] = s->whole->sizes[item];
        part->origin[i] = item;
        s->number_in_part[item] = i;
    }
    part->count = count;
    bp_list_writer w = {0};
    bp_status status = BP_OK;
    for (uint32_t i = s->sections.first[number]; status == BP_OK && i < s->sections.first[number + 1]; i++) {
        uint32_t section = s->sections.entries[i];
        status = bp_list_begin(&w);
        for (uint32_t e = sections->first[section]; status == BP_OK && e < sections->first[section + 1]; e++)
            status = bp_list_add(&w, s->number_in_part[sections->entries[e]]);
    }
    if (status == BP_OK)
        status = bp_list_writer_take(&w, &part->sections);
    bp_list_writer_finish(&w);
    return status == BP_OK ? problem_complete(part) : status;
}

static bp_status problem_split(splitting *s)
{
    void *memory;
    BP_TRY(bp_new_array(s->whole->count, sizeof *s->part_of, &memory));
    s->part_of = memory;
    BP_TRY(bp_new_array(s->whole->count, sizeof *s->number_in_part, &memory));
    s->number_in_part = memory;
    BP_TRY(find_parts(s));
    BP_TRY(group(s));
    BP_TRY(bp_new_array(s->count, sizeof *s->parts, &memory));
    s->parts = memory;
    for (uint32_t i = 0; i < s->count; i++)
        BP_TRY(make_part(s, i));
    return BP_OK;
}

bp_status bp_problem_split(const bp_problem *problem, bp_problem **parts, uint32_t *count)
{
    splitting s = {.whole = problem};
    bp_status status = problem_split(&s);
    free(s.part_of);
    free(s.number_in_part);
    bp_lists_finish(&s.items);
    bp_lists_finish(&s.sections);
    if (status != BP_OK) {
        for (uint32_t i = 0; i < s.made; i++)
            bp_problem_finish(&s.parts[i]);
        free(s.parts);
        return status;
    }
    *parts = s.parts;
    *count = s.count;
    return BP_OK;
}
