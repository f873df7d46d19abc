/* Covers every conflict of an instance with cliques. */
#include "packing/sections.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

#define NONE UINT32_MAX

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

typedef struct builder {
    const bp_packing *packing;
    bp_problem *problem;
    uint32_t *number_of; /* by item of the packing: its number in the problem, NONE: takes no space */
    moment *moments;
    size_t moment_count;
    uint32_t *live, *place_in_live, *times_live; /* by number */
    uint32_t live_count;
    bp_list_writer sections;
    uint32_t *table; /* open addressing: sections by hash, from 1, so that each is there once */
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

static bool same_list(const bp_lists *g, uint32_t list, const uint32_t *entries, uint32_t count)
{
    return g->first[list + 1] - g->first[list] == count &&
           memcmp(g->entries + g->first[list], entries, count * sizeof *entries) == 0;
}

static bp_status sections_enlarge_table(builder *b)
{
    size_t size = b->table_size == 0 ? 64 : 2 * b->table_size;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof *b->table, &memory));
    free(b->table);
    b->table = memory;
    b->table_size = size;
    for (uint32_t s = 0; s < b->sections.lists.count; s++) {
        const uint32_t *entries = b->sections.lists.entries + b->sections.lists.first[s];
        size_t at = bp_hash_list(entries, b->sections.lists.first[s + 1] - b->sections.lists.first[s]) & (size - 1);
        while (b->table[at] != 0)
            at = (at + 1) & (size - 1);
        b->table[at] = s + 1;
    }
    return BP_OK;
}

/* Adds a section unless it is there already. `entries` are sorted. */
static bp_status add_section(builder *b, const uint32_t *entries, uint32_t count)
{
    if (2 * (b->sections.lists.count + 1) > b->table_size)
        BP_TRY(sections_enlarge_table(b));
    size_t at = bp_hash_list(entries, count) & (b->table_size - 1);
    for (; b->table[at] != 0; at = (at + 1) & (b->table_size - 1)) {
        if (same_list(&b->sections.lists, b->table[at] - 1, entries, count))
            return BP_OK;
    }
    BP_TRY(bp_list_begin(&b->sections));
    b->table[at] = (uint32_t)b->sections.lists.count;
    for (uint32_t i = 0; i < count; i++)
        BP_TRY(bp_list_add(&b->sections, entries[i]));
    return BP_OK;
}

static bp_status add_live_section(builder *b, uint32_t *sorted)
{
    memcpy(sorted, b->live, b->live_count * sizeof *sorted);
    qsort(sorted, b->live_count, sizeof *sorted, bp_compare_numbers);
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

/* ---- neighbours ------------------------------------------------------------------------------------------------------- */

/* An item's neighbours, looked for entry by entry. seen_by[other]: the latest item, from 1, whose list has it. */
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

/* An item's neighbours, a word of items at a time. maps: a row of `words` for each section, and one to write into. */
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

#define MOST_MAP_WORDS (UINT32_C(1) << 22) /* 32 MiB */

static bp_status write_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                                  bp_list_writer *w)
{
    size_t words = count / 64 + 1;
    bool maps_fit = sections->count + (size_t)1 <= MOST_MAP_WORDS / words;
    void *memory;
    if (maps_fit)
        BP_TRY(bp_new_array((sections->count + (size_t)1) * words, sizeof(uint64_t), &memory));
    else
        BP_TRY(bp_new_array(count, sizeof(uint32_t), &memory));
    uint64_t *maps = memory;
    for (uint32_t s = 0; maps_fit && s < sections->count; s++) {
        for (uint32_t e = sections->first[s]; e < sections->first[s + 1]; e++)
            maps[words * s + sections->entries[e] / 64] |= UINT64_C(1) << sections->entries[e] % 64;
    }
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < count; i++) {
        status = bp_list_begin(w);
        if (status == BP_OK)
            status = maps_fit ? join_neighbours(memberships, i, maps, words, maps + words * sections->count, w)
                              : list_neighbours(sections, memberships, i, memory, w);
    }
    free(memory);
    return status;
}

bp_status bp_find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                             bp_lists *neighbours)
{
    bp_list_writer w = {0};
    bp_status status = write_neighbours(sections, memberships, count, &w);
    if (status == BP_OK)
        status = bp_list_writer_take(&w, neighbours);
    bp_list_writer_finish(&w);
    return status;
}

/* ---- added conflicts -------------------------------------------------------------------------------------------------- */

static bool are_neighbours(const bp_lists *neighbours, uint32_t one, uint32_t other)
{
    const uint32_t *first = neighbours->entries + neighbours->first[one];
    return bsearch(&other, first, neighbours->first[one + 1] - neighbours->first[one], sizeof *first,
                   bp_compare_numbers) != NULL;
}

static int sections_by_pair(const void *left, const void *right)
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
    qsort(set->pairs, set->count, sizeof *set->pairs, sections_by_pair);
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (i == 0 || sections_by_pair(&set->pairs[i], &set->pairs[kept - 1]) != 0)
            set->pairs[kept++] = set->pairs[i];
    }
    set->count = kept;
    return BP_OK;
}

static bool in_conflict(const bp_lists *neighbours, const pair_set *set, uint32_t one, uint32_t other)
{
    bp_pair wanted = {one, other};
    return are_neighbours(neighbours, one, other) ||
           bsearch(&wanted, set->pairs, set->count, sizeof *set->pairs, sections_by_pair) != NULL;
}

#define MOST_LOOKS (UINT64_C(1) << 26) /* for pairs that extend cliques; then pairs stay pairs */

typedef struct extending {
    const builder *b;
    const bp_lists *neighbours;
    const pair_set *set;
    bool *covered; /* by pair of the set */
    uint32_t *clique, *candidates;
    uint32_t count;
    uint64_t looks;
} extending;

static bool joins(extending *x, uint32_t item)
{
    for (uint32_t i = 0; i < x->count; i++) {
        x->looks++;
        if (!in_conflict(x->neighbours, x->set, item, x->clique[i]))
            return false;
    }
    return true;
}

/* Puts what the item conflicts with into `candidates`, the largest first. */
static uint32_t sections_collect_candidates(const extending *x, uint32_t item, const bp_pair *pairs, size_t pair_count)
{
    const uint64_t *sizes = x->b->problem->sizes;
    uint32_t count = 0, first = x->neighbours->first[item], end = x->neighbours->first[item + 1];
    for (size_t i = 0; i < pair_count; i++)
        x->candidates[count++] = pairs[i].other;
    for (uint32_t n = first; n < end; n++)
        x->candidates[count++] = x->neighbours->entries[n];
    for (uint32_t i = 1; i < count; i++) {
        uint32_t moved = x->candidates[i], at = i;
        for (; at > 0 && sizes[x->candidates[at - 1]] < sizes[moved]; at--)
            x->candidates[at] = x->candidates[at - 1];
        x->candidates[at] = moved;
    }
    return count;
}

static void mark_covered(extending *x)
{
    for (uint32_t i = 0; i < x->count; i++) {
        for (uint32_t k = 0; k < x->count; k++) {
            bp_pair wanted = {x->clique[i], x->clique[k]};
            bp_pair *found = bsearch(&wanted, x->set->pairs, x->set->count, sizeof wanted, sections_by_pair);
            if (found != NULL)
                x->covered[found - x->set->pairs] = true;
        }
    }
}

/* Every pair that no section has yet becomes a clique with what conflicts with all in it, the largest first. */
static bp_status extend_pairs(builder *b, extending *x)
{
    const pair_set *set = x->set;
    for (size_t first = 0, end; first < set->count; first = end) {
        uint32_t item = set->pairs[first].item, candidates = 0;
        for (end = first; end < set->count && set->pairs[end].item == item; end++)
            ;
        for (size_t i = first; i < end; i++) {
            if (x->covered[i])
                continue;
            if (candidates == 0 && x->looks < MOST_LOOKS)
                candidates = sections_collect_candidates(x, item, set->pairs + first, end - first);
            x->clique[0] = item;
            x->clique[1] = set->pairs[i].other;
            x->count = 2;
            for (uint32_t c = 0; c < candidates && x->looks < MOST_LOOKS; c++) {
                if (x->candidates[c] != x->clique[1] && joins(x, x->candidates[c]))
                    x->clique[x->count++] = x->candidates[c];
            }
            qsort(x->clique, x->count, sizeof *x->clique, bp_compare_numbers);
            BP_TRY(add_section(b, x->clique, x->count));
            mark_covered(x);
        }
    }
    return BP_OK;
}

static bp_status add_pair_sections(builder *b, const bp_lists *neighbours, const pair_set *set, uint32_t *sorted)
{
    extending x = {.b = b, .neighbours = neighbours, .set = set, .clique = sorted};
    void *covered, *candidates;
    BP_TRY(bp_new_array(set->count, sizeof *x.covered, &covered));
    bp_status status = bp_new_array(b->problem->count, sizeof *x.candidates, &candidates);
    if (status == BP_OK) {
        x.covered = covered;
        x.candidates = candidates;
        status = extend_pairs(b, &x);
        free(candidates);
    }
    free(covered);
    return status;
}

static bp_status add_conflicts(builder *b, uint32_t *sorted)
{
    /* the sections so far, as lists, to ask for neighbours while sections are added */
    bp_lists sections = {b->sections.lists.first, b->sections.lists.entries, (uint32_t)b->sections.lists.count};
    bp_lists memberships = {0}, neighbours = {0};
    pair_set set = {0};
    uint32_t nothing = 0;
    if (sections.first == NULL)
        sections = (bp_lists){&nothing, &nothing, 0};
    bp_status status = bp_lists_invert(&sections, b->problem->count, &memberships);
    if (status == BP_OK)
        status = bp_find_neighbours(&sections, &memberships, b->problem->count, &neighbours);
    if (status == BP_OK)
        status = collect_pairs(b, &neighbours, &set);
    if (status == BP_OK)
        status = add_pair_sections(b, &neighbours, &set, sorted);
    free(set.pairs);
    bp_lists_finish(&memberships);
    bp_lists_finish(&neighbours);
    return status;
}

static bp_status sections_find(builder *b)
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
    return bp_list_writer_take(&b->sections, &b->problem->sections);
}

bp_status bp_sections_find(const bp_packing *packing, bp_problem *problem)
{
    builder b = {.packing = packing, .problem = problem};
    bp_status status = sections_find(&b);
    free(b.number_of);
    free(b.moments);
    free(b.live);
    free(b.table);
    bp_list_writer_finish(&b.sections);
    return status;
}
