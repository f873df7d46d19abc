#include "packing/problem.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

#define NONE UINT32_MAX
/* Entries of sections and of neighbour lists: beyond, memory and not the search is what an instance takes. */
#define MOST_ENTRIES (UINT32_C(1) << 28)

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

/* ---- lists that grow ----------------------------------------------------------------------------------------------- */

typedef struct growing {
    uint32_t *first, *entries;
    size_t count, first_capacity, entry_count, entry_capacity;
} growing;

static bp_status begin_list(growing *g)
{
    BP_TRY(bp_grow_array((void **)&g->first, &g->first_capacity, g->count + 1, sizeof *g->first));
    g->first[g->count++] = (uint32_t)g->entry_count;
    g->first[g->count] = (uint32_t)g->entry_count;
    return BP_OK;
}

static bp_status add_entry(growing *g, uint32_t entry)
{
    if (g->entry_count >= MOST_ENTRIES)
        return bp_fail(BP_ERR_UNSUPPORTED, "the instance has more conflicts than can be searched: over %u",
                       MOST_ENTRIES);
    BP_TRY(bp_grow_array((void **)&g->entries, &g->entry_capacity, g->entry_count, sizeof *g->entries));
    g->entries[g->entry_count++] = entry;
    g->first[g->count] = (uint32_t)g->entry_count;
    return BP_OK;
}

static void finish_growing(growing *g)
{
    free(g->first);
    free(g->entries);
}

/* Hands the lists over; `g` is empty afterwards. */
static bp_status take_lists(growing *g, bp_lists *lists)
{
    if (g->count == 0) {
        BP_TRY(bp_grow_array((void **)&g->first, &g->first_capacity, 1, sizeof *g->first));
        g->first[0] = 0;
    }
    if (g->entries == NULL)
        BP_TRY(bp_grow_array((void **)&g->entries, &g->entry_capacity, 1, sizeof *g->entries));
    *lists = (bp_lists){g->first, g->entries, (uint32_t)g->count};
    *g = (growing){0};
    return BP_OK;
}

/* ---- sections ------------------------------------------------------------------------------------------------------ */

typedef struct moment {
    uint64_t time;
    uint32_t item, begins;
} moment;

/* Ends before beginnings, so that intervals that touch do not meet. */
static int by_time(const void *left, const void *right)
{
    const moment *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins < b->begins ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

static int by_number(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

typedef struct builder {
    const bp_packing *packing;
    bp_problem *problem;
    uint32_t *number_of; /* by item of the packing: its number here, NONE: takes no space */
    moment *moments;
    size_t moment_count;
    uint32_t *live, *place_in_live, *times_live; /* by number */
    uint32_t live_count;
    growing sections;
    uint32_t *table; /* open addressing: sections by hash + 1, so that each is there once */
    size_t table_size;
} builder;

static bp_status number_item(builder *b, uint32_t item)
{
    if (b->packing->sizes[item] == 0 || b->number_of[item] != NONE)
        return BP_OK;
    bp_problem *p = b->problem;
    b->number_of[item] = p->count;
    p->sizes[p->count] = b->packing->sizes[item];
    p->origin[p->count++] = item;
    return BP_OK;
}

/* Numbers items as they are first live, then those that have conflicts only. */
static bp_status number_items(builder *b)
{
    const bp_packing *packing = b->packing;
    void *memory;
    BP_TRY(bp_new_array(packing->count, sizeof *b->problem->sizes, &memory));
    b->problem->sizes = memory;
    BP_TRY(bp_new_array(packing->count, sizeof *b->problem->origin, &memory));
    b->problem->origin = memory;
    BP_TRY(bp_new_array(packing->count, sizeof *b->number_of, &memory));
    b->number_of = memory;
    memset(b->number_of, 0xff, packing->count * sizeof *b->number_of);
    BP_TRY(bp_new_array(2 * packing->life_count, sizeof *b->moments, &memory));
    b->moments = memory;
    for (size_t i = 0; i < packing->life_count; i++) {
        if (packing->sizes[packing->lives[i].item] == 0)
            continue;
        b->moments[b->moment_count++] = (moment){packing->lives[i].begin, packing->lives[i].item, 1};
        b->moments[b->moment_count++] = (moment){packing->lives[i].end, packing->lives[i].item, 0};
    }
    qsort(b->moments, b->moment_count, sizeof *b->moments, by_time);
    for (size_t i = 0; i < b->moment_count; i++) {
        if (b->moments[i].begins)
            BP_TRY(number_item(b, b->moments[i].item));
    }
    for (size_t i = 0; i < packing->pair_count; i++) {
        if (packing->sizes[packing->pairs[i].item] == 0 || packing->sizes[packing->pairs[i].other] == 0)
            continue;
        BP_TRY(number_item(b, packing->pairs[i].item));
        BP_TRY(number_item(b, packing->pairs[i].other));
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->problem->count; i++) {
        if (!bp_add_u64(sum, b->problem->sizes[i], &sum))
            return bp_fail(BP_ERR_OVERFLOW, "the sizes of all items together do not fit 64 bits");
    }
    return BP_OK;
}

static uint64_t hash_list(const uint32_t *entries, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ entries[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static bool same_list(const growing *g, uint32_t list, const uint32_t *entries, uint32_t count)
{
    return g->first[list + 1] - g->first[list] == count &&
           memcmp(g->entries + g->first[list], entries, count * sizeof *entries) == 0;
}

static bp_status enlarge_table(builder *b)
{
    size_t size = b->table_size == 0 ? 64 : 2 * b->table_size;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof *b->table, &memory));
    free(b->table);
    b->table = memory;
    b->table_size = size;
    for (uint32_t s = 0; s < b->sections.count; s++) {
        const uint32_t *entries = b->sections.entries + b->sections.first[s];
        size_t at = hash_list(entries, b->sections.first[s + 1] - b->sections.first[s]) & (size - 1);
        while (b->table[at] != 0)
            at = (at + 1) & (size - 1);
        b->table[at] = s + 1;
    }
    return BP_OK;
}

/* Adds a section unless it is there already. `entries` are sorted. */
static bp_status add_section(builder *b, const uint32_t *entries, uint32_t count)
{
    if (2 * (b->sections.count + 1) > b->table_size)
        BP_TRY(enlarge_table(b));
    size_t at = hash_list(entries, count) & (b->table_size - 1);
    for (; b->table[at] != 0; at = (at + 1) & (b->table_size - 1)) {
        if (same_list(&b->sections, b->table[at] - 1, entries, count))
            return BP_OK;
    }
    BP_TRY(begin_list(&b->sections));
    b->table[at] = (uint32_t)b->sections.count;
    for (uint32_t i = 0; i < count; i++)
        BP_TRY(add_entry(&b->sections, entries[i]));
    return BP_OK;
}

static bp_status add_live_section(builder *b, uint32_t *sorted)
{
    memcpy(sorted, b->live, b->live_count * sizeof *sorted);
    qsort(sorted, b->live_count, sizeof *sorted, by_number);
    return add_section(b, sorted, b->live_count);
}

/* What is live between a beginning and the next end: sets that are contained in no other of their neighbourhood in time. */
static bp_status sweep_time(builder *b, uint32_t *sorted)
{
    bool grew = false;
    for (size_t i = 0; i < b->moment_count; i++) {
        uint32_t n = b->number_of[b->moments[i].item];
        if (b->moments[i].begins) {
            if (b->times_live[n]++ > 0)
                continue;
            b->place_in_live[n] = b->live_count;
            b->live[b->live_count++] = n;
            grew = true;
        } else {
            if (--b->times_live[n] > 0)
                continue;
            if (grew)
                BP_TRY(add_live_section(b, sorted));
            grew = false;
            uint32_t last = b->live[--b->live_count];
            b->live[b->place_in_live[n]] = last;
            b->place_in_live[last] = b->place_in_live[n];
        }
    }
    return BP_OK;
}

/* ---- neighbours ---------------------------------------------------------------------------------------------------- */

/* Every item's neighbours, from the sections. */
static bp_status find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count, bp_lists *neighbours)
{
    growing g = {0};
    void *memory;
    BP_TRY(bp_new_array(count, sizeof(uint32_t), &memory));
    uint32_t *seen_by = memory; /* the latest item, from 1, whose list has this one */
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < count; i++) {
        status = begin_list(&g);
        seen_by[i] = i + 1;
        for (uint32_t m = memberships->first[i]; m < memberships->first[i + 1]; m++) {
            uint32_t s = memberships->entries[m];
            for (uint32_t e = sections->first[s]; status == BP_OK && e < sections->first[s + 1]; e++) {
                uint32_t other = sections->entries[e];
                if (seen_by[other] == i + 1)
                    continue;
                seen_by[other] = i + 1;
                status = add_entry(&g, other);
            }
        }
        if (status == BP_OK)
            qsort(g.entries + g.first[i], g.first[i + 1] - g.first[i], sizeof *g.entries, by_number);
    }
    free(seen_by);
    if (status == BP_OK)
        status = take_lists(&g, neighbours);
    finish_growing(&g);
    return status;
}

static bool are_neighbours(const bp_lists *neighbours, uint32_t one, uint32_t other)
{
    const uint32_t *first = neighbours->entries + neighbours->first[one];
    return bsearch(&other, first, neighbours->first[one + 1] - neighbours->first[one], sizeof *first, by_number) != NULL;
}

static int by_pair(const void *left, const void *right)
{
    const bp_pair *a = left, *b = right;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->other > b->other) - (a->other < b->other);
}

typedef struct pair_set {
    bp_pair *pairs; /* both ways round, sorted, each once */
    size_t count;
} pair_set;

/* The added conflicts that no section has yet. */
static bp_status collect_pairs(const builder *b, const bp_lists *neighbours, pair_set *set)
{
    void *memory;
    BP_TRY(bp_new_array(2 * b->packing->pair_count, sizeof *set->pairs, &memory));
    set->pairs = memory;
    for (size_t i = 0; i < b->packing->pair_count; i++) {
        uint32_t one = b->number_of[b->packing->pairs[i].item], other = b->number_of[b->packing->pairs[i].other];
        if (one == NONE || other == NONE || are_neighbours(neighbours, one, other))
            continue;
        set->pairs[set->count++] = (bp_pair){one, other};
        set->pairs[set->count++] = (bp_pair){other, one};
    }
    qsort(set->pairs, set->count, sizeof *set->pairs, by_pair);
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (i == 0 || by_pair(&set->pairs[i], &set->pairs[kept - 1]) != 0)
            set->pairs[kept++] = set->pairs[i];
    }
    set->count = kept;
    return BP_OK;
}

static bool in_conflict(const bp_lists *neighbours, const pair_set *set, uint32_t one, uint32_t other)
{
    bp_pair wanted = {one, other};
    return are_neighbours(neighbours, one, other) ||
           bsearch(&wanted, set->pairs, set->count, sizeof *set->pairs, by_pair) != NULL;
}

/* For an item with added conflicts, and each section with one of the other parties: the part of the section that conflicts with the
 * item, and the item, are a clique. Sections made so are looked at for the items that follow. */
static bp_status add_pair_sections(builder *b, const bp_lists *neighbours, const pair_set *set, uint32_t *sorted)
{
    for (size_t i = 0; i < set->count; i++) {
        uint32_t item = set->pairs[i].item, other = set->pairs[i].other;
        bool covered = false;
        size_t sections = b->sections.count;
        for (uint32_t s = 0; s < sections; s++) {
            uint32_t kept = 0;
            bool has_other = false;
            for (uint32_t e = b->sections.first[s]; e < b->sections.first[s + 1]; e++) {
                uint32_t at = b->sections.entries[e];
                has_other = has_other || at == other;
                if (at != item && in_conflict(neighbours, set, item, at))
                    sorted[kept++] = at;
            }
            if (!has_other)
                continue;
            covered = true;
            sorted[kept++] = item;
            qsort(sorted, kept, sizeof *sorted, by_number);
            BP_TRY(add_section(b, sorted, kept));
        }
        if (!covered && item < other) {
            sorted[0] = item;
            sorted[1] = other;
            BP_TRY(add_section(b, sorted, 2));
        }
    }
    return BP_OK;
}

static bp_status add_conflicts(builder *b, uint32_t *sorted)
{
    /* the sections so far, as lists, to ask for neighbours while sections are added */
    bp_lists sections = {b->sections.first, b->sections.entries, (uint32_t)b->sections.count};
    bp_lists memberships = {0}, neighbours = {0};
    pair_set set = {0};
    uint32_t nothing = 0;
    if (sections.first == NULL)
        sections = (bp_lists){&nothing, NULL, 0};
    bp_status status = bp_lists_invert(&sections, b->problem->count, &memberships);
    if (status == BP_OK)
        status = find_neighbours(&sections, &memberships, b->problem->count, &neighbours);
    if (status == BP_OK)
        status = collect_pairs(b, &neighbours, &set);
    if (status == BP_OK)
        status = add_pair_sections(b, &neighbours, &set, sorted);
    free(set.pairs);
    bp_lists_finish(&memberships);
    bp_lists_finish(&neighbours);
    return status;
}

static bp_status find_bound(bp_problem *p)
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
    return BP_OK;
}

static bp_status complete(bp_problem *p)
{
    BP_TRY(bp_lists_invert(&p->sections, p->count, &p->memberships));
    BP_TRY(find_neighbours(&p->sections, &p->memberships, p->count, &p->neighbours));
    return find_bound(p);
}

static bp_status build(builder *b)
{
    void *memory;
    BP_TRY(number_items(b));
    size_t count = b->problem->count;
    BP_TRY(bp_new_array(4 * count, sizeof *b->live, &memory));
    b->live = memory;
    b->place_in_live = b->live + count;
    b->times_live = b->live + 2 * count;
    uint32_t *sorted = b->live + 3 * count;
    BP_TRY(sweep_time(b, sorted));
    if (b->packing->pair_count > 0)
        BP_TRY(add_conflicts(b, sorted));
    BP_TRY(take_lists(&b->sections, &b->problem->sections));
    return complete(b->problem);
}

bp_status bp_problem_init(const bp_packing *packing, bp_problem *problem)
{
    *problem = (bp_problem){0};
    builder b = {.packing = packing, .problem = problem};
    bp_status status = build(&b);
    free(b.number_of);
    free(b.moments);
    free(b.live);
    free(b.table);
    finish_growing(&b.sections);
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

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

/* Items of the same sections, which come one after the other when sorted by them. */
static bool same_memberships(const bp_problem *p, uint32_t one, uint32_t other)
{
    uint32_t count = p->memberships.first[one + 1] - p->memberships.first[one];
    return p->memberships.first[other + 1] - p->memberships.first[other] == count &&
           memcmp(p->memberships.entries + p->memberships.first[one], p->memberships.entries + p->memberships.first[other],
                  count * sizeof(uint32_t)) == 0;
}

static bp_status find_blocks(const bp_problem *p, uint32_t *block_of, uint64_t *inner, bp_problem *blocks)
{
    size_t size = 64;
    while (size < 2 * (size_t)p->count)
        size *= 2;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof(uint32_t), &memory));
    uint32_t *table = memory; /* first items of blocks, from 1 */
    for (uint32_t i = 0; i < p->count; i++) {
        const uint32_t *mine = p->memberships.entries + p->memberships.first[i];
        size_t at = hash_list(mine, p->memberships.first[i + 1] - p->memberships.first[i]) & (size - 1);
        while (table[at] != 0 && !same_memberships(p, table[at] - 1, i))
            at = (at + 1) & (size - 1);
        if (table[at] == 0) {
            table[at] = i + 1;
            block_of[i] = blocks->count;
            blocks->origin[blocks->count++] = i;
        } else {
            block_of[i] = block_of[table[at] - 1];
        }
        inner[i] = blocks->sizes[block_of[i]];
        blocks->sizes[block_of[i]] += p->sizes[i];
    }
    free(table);
    return BP_OK;
}

static bp_status merge_sections(const bp_problem *p, const uint32_t *block_of, growing *g, uint32_t *seen_by)
{
    for (uint32_t s = 0; s < p->sections.count; s++) {
        BP_TRY(begin_list(g));
        for (uint32_t e = p->sections.first[s]; e < p->sections.first[s + 1]; e++) {
            uint32_t block = block_of[p->sections.entries[e]];
            if (seen_by[block] == s + 1)
                continue;
            seen_by[block] = s + 1;
            BP_TRY(add_entry(g, block)); /* blocks are numbered by their first items, so these are sorted too */
        }
    }
    return BP_OK;
}

bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner)
{
    *blocks = (bp_problem){0};
    growing g = {0};
    void *memory = NULL, *seen_by = NULL;
    bp_status status = bp_new_array(problem->count, sizeof *blocks->sizes, &memory);
    blocks->sizes = memory;
    memory = NULL;
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *blocks->origin, &memory);
    blocks->origin = memory;
    if (status == BP_OK)
        status = find_blocks(problem, block_of, inner, blocks);
    if (status == BP_OK)
        status = bp_new_array(blocks->count, sizeof(uint32_t), &seen_by);
    if (status == BP_OK)
        status = merge_sections(problem, block_of, &g, seen_by);
    if (status == BP_OK)
        status = take_lists(&g, &blocks->sections);
    if (status == BP_OK)
        status = complete(blocks);
    free(seen_by);
    finish_growing(&g);
    if (status != BP_OK)
        bp_problem_finish(blocks);
    return status;
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
