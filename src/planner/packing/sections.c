/* SPDX-License-Identifier: Apache-2.0 */
/* Covers every conflict of an instance with cliques. */
#include "planner/packing/problem.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/index.h"
#include "core/memory.h"

typedef struct builder {
    const bp_timeline *timeline;
    bp_list_writer sections;
    bp_index known; /* the sections, against duplicates */
} builder;

/* Adds a section unless an equal one exists. `entries` are sorted. */
static bp_status add_section(builder *b, const uint32_t *entries, uint32_t count)
{
    const bp_lists *lists = &b->sections.lists;
    bp_index_search search = bp_index_start(bp_hash(entries, count * sizeof *entries));
    for (uint32_t s = 0; bp_index_next(&b->known, &search, &s);) {
        if (lists->first == NULL)
            break; /* without lists nothing is known */
        uint32_t other = lists->first[s], end = lists->first[s + 1];
        if (end - other == count && lists->entries != NULL &&
            memcmp(lists->entries + other, entries, count * sizeof *entries) == 0)
            return BP_OK;
    }
    BP_TRY(bp_index_add(&b->known, search.hash, lists->count));
    BP_TRY(bp_list_begin(&b->sections));
    for (uint32_t i = 0; i < count; i++)
        BP_TRY(bp_list_add(&b->sections, entries[i]));
    return BP_OK;
}

/* The first entry of a sorted list that is not less than `number`. */
static uint32_t place_in_live(const uint32_t *sorted, uint32_t count, uint32_t number)
{
    uint32_t low = 0;
    for (uint32_t high = count; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        if (sorted[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds the live set of each step. `live`: scratch for all items; sorted. */
static bp_status add_steps(builder *b, const uint32_t *by_end, uint32_t *live)
{
    const bp_timeline *t = b->timeline;
    uint32_t live_count = 0, began = 0, ended = 0;
    for (uint32_t step = 0; step < t->steps; step++) {
        for (; began < t->life_count && t->lives[began].begin == step; began++) {
            uint32_t at = place_in_live(live, live_count, t->lives[began].item);
            memmove(live + at + 1, live + at, (live_count++ - at) * sizeof *live);
            live[at] = t->lives[began].item;
        }
        BP_TRY(add_section(b, live, live_count));
        for (; ended < t->life_count && t->lives[by_end[ended]].end == step + 1; ended++) {
            uint32_t at = place_in_live(live, live_count, t->lives[by_end[ended]].item);
            memmove(live + at, live + at + 1, (--live_count - at) * sizeof *live);
        }
    }
    return BP_OK;
}

/* ---- added conflicts -------------------------------------------------------------------------------------------------- */

static bool are_neighbours(const bp_lists *neighbours, uint32_t one, uint32_t other)
{
    const uint32_t *first = neighbours->entries + neighbours->first[one];
    return bsearch(&other, first, neighbours->first[one + 1] - neighbours->first[one], sizeof *first,
                   bp_compare_numbers) != NULL;
}

typedef struct pair_set {
    bp_pair *pairs; /* in both directions, sorted, without duplicates */
    size_t count;
} pair_set;

/* Collects the added conflicts that no section covers. */
static bp_status collect_pairs(const builder *b, const bp_lists *neighbours, pair_set *set)
{
    const bp_timeline *t = b->timeline;
    BP_TRY(bp_new_array(2 * t->pair_count, sizeof *set->pairs, (void **)&set->pairs));
    for (size_t i = 0; i < t->pair_count; i++) {
        uint32_t one = t->pairs[i].item, other = t->pairs[i].other;
        if (are_neighbours(neighbours, one, other))
            continue;
        set->pairs[set->count++] = (bp_pair){one, other};
        set->pairs[set->count++] = (bp_pair){other, one};
    }
    qsort(set->pairs, set->count, sizeof *set->pairs, bp_compare_pairs);
    return BP_OK;
}

#define MAX_LOOKS                                                                                                      \
    (UINT64_C(1) << 26) /* words and candidates seen while cliques are extended; after it pairs stay pairs */
#define MAX_ROW_WORDS (UINT32_C(1) << 22) /* 32 MiB; with longer rows pairs stay pairs */

/* Bit sets by item, `words` long. */
typedef struct extending {
    builder *b;
    const bp_lists *neighbours;
    pair_set set;
    size_t *first_pair; /* by item: its first pair in the set; one more entry */
    bool *covered;      /* by pair of the set */
    uint64_t *rows;     /* a row for each item: all that conflict with it */
    uint64_t *allowed;  /* all that conflict with every item of the clique */
    uint64_t *members;  /* of the clique */
    size_t words;
    bp_keyed *candidates; /* of the first item: the key is the complement of the size */
    uint32_t *clique;
    uint32_t count;
    uint64_t looks;
} extending;

static bool has_bit(const uint64_t *row, uint32_t item)
{
    return (row[item / 64] >> item % 64 & 1) != 0;
}

static void set_bit(uint64_t *row, uint32_t item)
{
    row[item / 64] |= UINT64_C(1) << item % 64;
}

static void join_clique(extending *x, uint32_t item)
{
    const uint64_t *row = x->rows + x->words * item;
    x->clique[x->count++] = item;
    set_bit(x->members, item);
    for (size_t i = 0; i < x->words; i++)
        x->allowed[i] &= row[i];
    x->looks += x->words;
}

/* Sorts the item's neighbours, largest first. */
static uint32_t collect_candidates(const extending *x, uint32_t item)
{
    const uint64_t *sizes = x->b->timeline->sizes;
    uint32_t count = 0;
    for (size_t i = x->first_pair[item]; i < x->first_pair[item + 1]; i++)
        x->candidates[count++] = (bp_keyed){~sizes[x->set.pairs[i].other], x->set.pairs[i].other};
    for (uint32_t n = x->neighbours->first[item]; n < x->neighbours->first[item + 1]; n++)
        x->candidates[count++] = (bp_keyed){~sizes[x->neighbours->entries[n]], x->neighbours->entries[n]};
    qsort(x->candidates, count, sizeof *x->candidates, bp_compare_keyed);
    return count;
}

static void mark_covered(extending *x)
{
    for (uint32_t i = 0; i < x->count; i++) {
        for (size_t k = x->first_pair[x->clique[i]]; k < x->first_pair[x->clique[i] + 1]; k++)
            x->covered[k] |= has_bit(x->members, x->set.pairs[k].other);
    }
}

/* Greedy clique cover: extends each uncovered pair by items that conflict with all of its members, largest first. */
static bp_status extend_pairs(extending *x)
{
    const pair_set *set = &x->set;
    for (uint32_t item = 0, candidates = 0; item < x->b->timeline->count; item++, candidates = 0) {
        for (size_t i = x->first_pair[item]; i < x->first_pair[item + 1]; i++) {
            if (x->covered[i])
                continue;
            if (x->rows == NULL || x->looks > MAX_LOOKS) {
                bp_pair pair = set->pairs[i];
                if (pair.item < pair.other)
                    BP_TRY(add_section(x->b, (uint32_t[]){pair.item, pair.other}, 2));
                continue;
            }
            if (candidates == 0)
                candidates = collect_candidates(x, item);
            x->count = 0;
            memset(x->members, 0, x->words * sizeof *x->members);
            memset(x->allowed, 0xff, x->words * sizeof *x->allowed);
            join_clique(x, item);
            join_clique(x, set->pairs[i].other);
            for (uint32_t c = 0; c < candidates; c++) {
                if (has_bit(x->allowed, x->candidates[c].number))
                    join_clique(x, x->candidates[c].number);
            }
            x->looks += candidates;
            qsort(x->clique, x->count, sizeof *x->clique, bp_compare_numbers);
            BP_TRY(add_section(x->b, x->clique, x->count));
            mark_covered(x);
        }
    }
    return BP_OK;
}

static bp_status fill_rows(extending *x)
{
    uint32_t count = x->b->timeline->count;
    x->words = count / 64 + 1;
    if (x->words > MAX_ROW_WORDS / ((size_t)count + 2))
        return BP_OK;
    BP_TRY(bp_new_array(x->words * ((size_t)count + 2), sizeof *x->rows, (void **)&x->rows));
    x->allowed = x->rows + x->words * count;
    x->members = x->allowed + x->words;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t n = x->neighbours->first[i]; n < x->neighbours->first[i + 1]; n++)
            set_bit(x->rows + x->words * i, x->neighbours->entries[n]);
    }
    for (size_t i = 0; i < x->set.count; i++)
        set_bit(x->rows + x->words * x->set.pairs[i].item, x->set.pairs[i].other);
    return BP_OK;
}

static bp_status add_conflicts(builder *b, uint32_t *sorted)
{
    /* neighbours by the sections so far; further sections are added meanwhile */
    bp_lists sections = b->sections.lists, memberships = {0}, neighbours = {0};
    extending x = {.b = b, .neighbours = &neighbours, .clique = sorted};
    uint32_t count = b->timeline->count, nothing = 0;
    if (sections.first == NULL)
        sections = (bp_lists){&nothing, &nothing, 0};
    bp_status status = bp_lists_invert(&sections, count, &memberships);
    if (status == BP_OK)
        status = bp_find_neighbours(&sections, &memberships, count, &neighbours);
    if (status == BP_OK)
        status = collect_pairs(b, &neighbours, &x.set);
    if (status == BP_OK)
        status = bp_new_array(x.set.count, sizeof *x.covered, (void **)&x.covered);
    if (status == BP_OK)
        status = bp_new_array((size_t)count + 1, sizeof *x.first_pair, (void **)&x.first_pair);
    if (status == BP_OK)
        status = bp_new_array(count, sizeof *x.candidates, (void **)&x.candidates);
    if (status == BP_OK)
        status = fill_rows(&x);
    if (status == BP_OK) {
        for (size_t i = 0; i < x.set.count; i++)
            x.first_pair[x.set.pairs[i].item + 1]++;
        for (uint32_t i = 0; i < count; i++)
            x.first_pair[i + 1] += x.first_pair[i];
        status = extend_pairs(&x);
    }
    free(x.covered);
    free(x.first_pair);
    free(x.candidates);
    free(x.rows);
    free(x.set.pairs);
    bp_lists_finish(&memberships);
    bp_lists_finish(&neighbours);
    return status;
}

static bp_status find_sections(builder *b, uint32_t *by_end, bp_lists *sections)
{
    const bp_timeline *t = b->timeline;
    uint32_t *scratch;
    BP_TRY(bp_new_array(t->count, sizeof *scratch, (void **)&scratch));
    bp_status status = add_steps(b, by_end, scratch);
    if (status == BP_OK && t->pair_count > 0)
        status = add_conflicts(b, scratch);
    if (status == BP_OK)
        status = bp_list_writer_take(&b->sections, sections);
    free(scratch);
    return status;
}

bp_status bp_sections_find(const bp_timeline *timeline, bp_problem *problem)
{
    builder b = {.timeline = timeline};
    uint32_t *by_end = NULL;
    BP_TRY(bp_new_array(timeline->count, sizeof *problem->sizes, (void **)&problem->sizes));
    memcpy(problem->sizes, timeline->sizes, timeline->count * sizeof *problem->sizes);
    problem->count = timeline->count;
    bp_status status = bp_timeline_ends(timeline, &by_end);
    if (status == BP_OK)
        status = find_sections(&b, by_end, &problem->sections);
    free(by_end);
    bp_index_finish(&b.known);
    bp_lists_finish(&b.sections.lists);
    return status;
}
