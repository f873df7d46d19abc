/* Branch and bound: exact search for a placement within a capacity, for arbitrary conflicts. */
#include "packing/branch_and_bound.h"

#include <stdlib.h>

#include "core/fail.h"
#include "packing/placing.h"

/* How the next section is chosen. BP_PICK_ITEM: not at all; the preferred item begins there or does not. */
typedef enum bp_pick { BP_PICK_FEWEST, BP_PICK_TIGHTEST, BP_PICK_ITEM, BP_PICK_COUNT } bp_pick;

typedef struct bp_search {
    bp_placing placing;
    uint32_t *rank;       /* by item: in the order of preference */
    uint32_t *candidates; /* by section that the latest count saw: items that may begin now */
    uint32_t *arena;      /* lists of items, last in first out */
    size_t arena_used, arena_capacity;
    bp_pick pick;
} bp_search;

/* Items of a part, in the arena; those that were placed since are passed over. */
typedef struct bp_part {
    size_t first, count;
} bp_part;

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

/* Puts an item into the arena. False, and the search is stopped: no memory. */
static bool search_remember(bp_search *s, uint32_t item)
{
    bp_status status = bp_grow_array((void **)&s->arena, &s->arena_capacity, s->arena_used, sizeof *s->arena);
    if (status != BP_OK)
        bp_placing_stop(&s->placing, status);
    else
        s->arena[s->arena_used++] = item;
    return status == BP_OK;
}

typedef struct heights {
    uint64_t lowest;     /* at which an item may begin; UINT64_MAX: all are placed */
    uint64_t lowest_end; /* that an item could have if it were placed now */
} heights;

static heights find_heights(bp_search *s, bp_part of)
{
    heights h = {UINT64_MAX, UINT64_MAX};
    s->placing.work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placing.placed[item])
            continue;
        h.lowest = s->placing.lowest[item] < h.lowest ? s->placing.lowest[item] : h.lowest;
        uint64_t end = s->placing.supported[item] + s->placing.p->sizes[item];
        if (end < h.lowest_end && !bp_is_fixed(&s->placing, item))
            h.lowest_end = end;
    }
    return h;
}

/* Raises what may begin at `height` but has no support there. False: that leaves no room. */
static bool raise_unsupported(bp_search *s, bp_part of, uint64_t height, bool *raised)
{
    *raised = false;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placing.placed[item] || s->placing.lowest[item] != height || s->placing.supported[item] == height ||
            bp_is_fixed(&s->placing, item))
            continue;
        *raised = true;
        s->placing.stamps++;
        if (!bp_raise(&s->placing, item, bp_next_support(&s->placing, item)) ||
            !bp_check_sections_of(&s->placing, item, height))
            return false;
    }
    return true;
}

static bool is_candidate(const bp_search *s, uint32_t item, uint64_t height)
{
    return !s->placing.placed[item] && s->placing.lowest[item] == height;
}

/* Counts, for every section with candidates, how many. */
static void count_candidates(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    s->placing.stamps++;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        s->placing.work.spent += p->memberships.first[item + 1] - p->memberships.first[item];
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m];
            s->candidates[section] = s->placing.stamp[section] == s->placing.stamps ? s->candidates[section] + 1 : 1;
            s->placing.stamp[section] = s->placing.stamps;
        }
    }
}

static uint32_t pick_section(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    uint32_t best = 0, fewest = UINT32_MAX;
    uint64_t tightest = UINT64_MAX;
    count_candidates(s, of, height);
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m], count = s->candidates[section];
            uint64_t slack = s->placing.capacity - s->placing.floor_of[section] - s->placing.rest[section];
            bool better = s->pick == BP_PICK_TIGHTEST ? slack < tightest || (slack == tightest && count < fewest)
                                                      : count < fewest || (count == fewest && slack < tightest);
            if (better) {
                best = section;
                fewest = count;
                tightest = slack;
            }
        }
    }
    return best;
}

/* One that begins here and nowhere else; BP_NO_ITEM: there is none. */
static uint32_t fixed_candidate(const bp_search *s, bp_part of, uint64_t height)
{
    for (size_t i = 0; s->placing.fixed != NULL && i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (bp_is_fixed(&s->placing, item) && is_candidate(s, item, height))
            return item;
    }
    return BP_NO_ITEM;
}

static uint32_t preferred_candidate(const bp_search *s, bp_part of, uint64_t height)
{
    uint32_t best = BP_NO_ITEM;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (is_candidate(s, item, height) && (best == BP_NO_ITEM || s->rank[item] < s->rank[best]))
            best = item;
    }
    return best;
}

/* Puts the candidates of one choice into the arena, preferred ones first. */
static bp_part branching_collect_candidates(bp_search *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->placing.p;
    bp_part candidates = {s->arena_used, 0};
    uint32_t only = fixed_candidate(s, of, height);
    if (only == BP_NO_ITEM && s->pick == BP_PICK_ITEM)
        only = preferred_candidate(s, of, height);
    if (only != BP_NO_ITEM) {
        candidates.count = search_remember(s, only);
        return candidates;
    }
    uint32_t section = pick_section(s, of, height);
    for (uint32_t e = p->sections.first[section]; e < p->sections.first[section + 1]; e++) {
        uint32_t item = p->sections.entries[e];
        if (!is_candidate(s, item, height) || !search_remember(s, item))
            continue;
        uint32_t *list = s->arena + candidates.first;
        size_t at = candidates.count++;
        for (; at > 0 && s->rank[list[at - 1]] > s->rank[item]; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
    return candidates;
}

/* None of the candidates begins at `height`. */
static bool pass_over(bp_search *s, bp_part candidates, uint64_t height)
{
    for (size_t i = 0; i < candidates.count; i++) {
        if (!bp_raise(&s->placing, s->arena[candidates.first + i], height + 1))
            return false;
    }
    for (size_t i = 0; i < candidates.count; i++) {
        uint32_t item = s->arena[candidates.first + i];
        if (!bp_raise(&s->placing, item, bp_next_support(&s->placing, item)))
            return false;
    }
    s->placing.stamps++;
    for (size_t i = 0; i < candidates.count; i++) {
        if (!bp_check_sections_of(&s->placing, s->arena[candidates.first + i], height))
            return false;
    }
    return true;
}

static bool search_parts(bp_search *s, bp_part of);

/* Places all items of the part. On failure everything is as before, unless the search has stopped. */
static bool solve(bp_search *s, bp_part of)
{
    size_t mark = s->placing.trail_count;
    for (bool fits = true; fits && !s->placing.stopped;) {
        if (bp_work_is_over(&s->placing.work)) {
            bp_placing_stop(&s->placing, BP_OK);
            break;
        }
        heights h = find_heights(s, of);
        if (h.lowest == UINT64_MAX)
            return true;
        if (h.lowest_end <= h.lowest)
            break; /* it would fit into the gap that was left below */
        bool raised;
        fits = raise_unsupported(s, of, h.lowest, &raised);
        if (!fits || raised)
            continue;
        bp_part candidates = branching_collect_candidates(s, of, h.lowest);
        for (size_t i = 0; i < candidates.count && !s->placing.stopped; i++) {
            size_t before = s->placing.trail_count;
            if (bp_place(&s->placing, s->arena[candidates.first + i], h.lowest) && search_parts(s, of))
                return true;
            bp_placing_undo(&s->placing, before);
        }
        fits = pass_over(s, candidates, h.lowest);
        s->arena_used = candidates.first;
    }
    bp_placing_undo(&s->placing, mark);
    return false;
}

/* Places the items of the part, which are in the order of their first sections: solves what is left of it in parts that do not meet in
 * time. False: it cannot be, or the search has stopped. */
static bool search_parts(bp_search *s, bp_part of)
{
    const bp_lists *m = &s->placing.p->memberships;
    size_t first = s->arena_used;
    s->placing.work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!s->placing.placed[item] && !search_remember(s, item))
            return false;
    }
    size_t end = s->arena_used;
    bool solved = true;
    for (size_t from = first; solved && from < end;) {
        uint32_t reach = 0;
        size_t to = from;
        do {
            uint32_t last = m->entries[m->first[s->arena[to] + 1] - 1];
            reach = last > reach ? last : reach;
            to++;
        } while (to < end && m->entries[m->first[s->arena[to]]] <= reach);
        solved = solve(s, (bp_part){from, to - from});
        from = to;
    }
    s->arena_used = first;
    return solved;
}

/* ---- restarts ---------------------------------------------------------------------------------------------------- */

/* ---- orders of preference --------------------------------------------------------------------------------------------- */

typedef enum measure { BY_WIDTH, BY_AREA, BY_TOTAL, BY_SIZE, MEASURE_COUNT } measure;

/* Larger first: the sections an item is in, its size times that, the largest section it is in, its size. */
static const measure preferences[][3] = {
    {BY_WIDTH, BY_AREA, BY_TOTAL}, {BY_TOTAL, BY_AREA, BY_WIDTH}, {BY_TOTAL, BY_WIDTH, BY_AREA},
    {BY_AREA, BY_WIDTH, BY_TOTAL}, {BY_SIZE, BY_WIDTH, BY_TOTAL}, {BY_TOTAL, BY_SIZE, BY_WIDTH},
    {BY_WIDTH, BY_TOTAL, BY_SIZE},
};
#define PREFERENCE_COUNT (sizeof preferences / sizeof *preferences)

typedef struct preference {
    uint64_t keys[3];
    uint32_t item;
} preference;

struct bp_searcher {
    bp_search search;
    preference *list;
    uint64_t random;
    /* the next attempt */
    uint32_t round, preferred;
    bp_pick how;
    bool ranked;
    uint64_t share;
};

static int by_preference(const void *left, const void *right)
{
    const preference *a = left, *b = right;
    for (int k = 0; k < 3; k++) {
        if (a->keys[k] != b->keys[k])
            return a->keys[k] > b->keys[k] ? -1 : 1;
    }
    return (a->item > b->item) - (a->item < b->item);
}

#define MEASURE_BITS 20 /* of sizes and sums, so that products and shaken values fit 64 bits */

/* xorshift64*. Source: Marsaglia 2003, Vigna 2016. */
static uint64_t search_next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static void rank_items(bp_searcher *s, const measure *measures, uint32_t shaken)
{
    const bp_placing *placing = &s->search.placing;
    const bp_problem *p = placing->p;
    preference *list = s->list;
    int shift = 0;
    while (p->bound >> shift >> MEASURE_BITS != 0)
        shift++;
    for (uint32_t i = 0; i < p->count; i++) {
        uint64_t values[MEASURE_COUNT] = {0};
        values[BY_WIDTH] = p->memberships.first[i + 1] - p->memberships.first[i];
        values[BY_SIZE] = p->sizes[i] >> shift;
        values[BY_AREA] = values[BY_SIZE] * values[BY_WIDTH];
        for (uint32_t m = p->memberships.first[i]; m < p->memberships.first[i + 1]; m++) {
            uint64_t total = placing->rest[p->memberships.entries[m]] >> shift;
            values[BY_TOTAL] = total > values[BY_TOTAL] ? total : values[BY_TOTAL];
        }
        list[i].item = i;
        for (int k = 0; k < 3; k++) {
            uint64_t percent = 100 - shaken / 2 + search_next_random(&s->random) % (shaken + 1);
            list[i].keys[k] = values[measures[k]] * percent / 100;
        }
    }
    qsort(list, p->count, sizeof *list, by_preference);
    for (uint32_t i = 0; i < p->count; i++)
        s->search.rank[list[i].item] = i;
}

/* ---- attempts --------------------------------------------------------------------------------------------------------- */

#define FIRST_SHARE (UINT64_C(1) << 19) /* work of the first attempts, */
#define SHARE_OF_A_CONFLICT 64          /* more where one way down takes more */
#define ROUNDS_OF_A_SHARE 4             /* then it doubles: in the end one attempt gets through everything */

/* How far at most the values of two items are shaken apart, round by round. */
static const uint32_t shaken_percent[] = {80, 10, 40, 20};

/* One attempt: from the beginning, for a share of the work. */
static bp_answer attempt(bp_searcher *s, bp_work *work)
{
    bp_placing *placing = &s->search.placing;
    uint32_t count = placing->p->count;
    bool found = false;
    if (bp_placing_begin(placing, bp_work_part(work, s->share))) {
        s->search.pick = s->how;
        s->search.arena_used = count; /* all items, in order */
        found = search_parts(&s->search, (bp_part){0, count});
    }
    work->spent = placing->work.spent + count;
    return found ? BP_ANSWER_FOUND : placing->stopped ? BP_ANSWER_NONE : BP_ANSWER_IMPOSSIBLE;
}

/* Every preference, as it is and then shaken, with every way to pick. */
static void go_on(bp_searcher *s)
{
    s->how++;
    if (s->how < BP_PICK_COUNT)
        return;
    s->how = BP_PICK_FEWEST;
    s->ranked = false;
    s->preferred++;
    if (s->preferred < PREFERENCE_COUNT)
        return;
    s->preferred = 0;
    s->share *= s->round % ROUNDS_OF_A_SHARE == ROUNDS_OF_A_SHARE - 1 ? 2 : 1;
    s->round++;
}

bp_status bp_searcher_run(bp_searcher *searcher, bp_work *work, bp_answer *answer)
{
    bp_searcher *s = searcher;
    *answer = BP_ANSWER_NONE;
    while (*answer == BP_ANSWER_NONE && !bp_work_is_over(work) && s->search.placing.status == BP_OK) {
        if (!s->ranked) {
            bp_placing_begin(&s->search.placing, *work); /* some preferences go by the sections' sums */
            rank_items(s, preferences[s->preferred], s->round == 0 ? 0 : shaken_percent[s->round % 4]);
            s->ranked = true;
        }
        bool whole = s->share <= bp_work_left(work); /* what is cut short is done again */
        *answer = attempt(s, work);
        if (*answer == BP_ANSWER_NONE && whole)
            go_on(s);
    }
    return s->search.placing.status;
}

/* All items in the order of their first sections. Where conflicts were added, that is not the order of their numbers. */
static bp_status remember_all(bp_searcher *s, const bp_problem *problem)
{
    const bp_lists *sections = &problem->sections, *memberships = &problem->memberships;
    for (uint32_t c = 0; c < sections->count; c++) {
        for (uint32_t e = sections->first[c]; e < sections->first[c + 1]; e++) {
            uint32_t item = sections->entries[e];
            if (memberships->entries[memberships->first[item]] == c && !search_remember(&s->search, item))
                return s->search.placing.status;
        }
    }
    return BP_OK;
}

static bp_status search_prepare(bp_searcher *s, const bp_problem *problem)
{
    void *memory;
    BP_TRY(bp_new_array(problem->count, sizeof *s->list, &memory));
    s->list = memory;
    BP_TRY(bp_new_array(problem->count, sizeof *s->search.rank, &memory));
    s->search.rank = memory;
    BP_TRY(bp_new_array(problem->sections.count, sizeof *s->search.candidates, &memory));
    s->search.candidates = memory;
    return remember_all(s, problem);
}

bp_status bp_searcher_create(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint32_t series,
                             uint64_t *offsets, bp_searcher **searcher)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **searcher, &memory));
    bp_searcher *made = memory;
    uint64_t way_down = SHARE_OF_A_CONFLICT * (uint64_t)problem->neighbours.first[problem->count];
    made->share = way_down > FIRST_SHARE ? way_down : FIRST_SHARE;
    made->random = UINT64_C(0x9e3779b97f4a7c15) * (2 * (uint64_t)series + 1);
    made->round = series == 0 ? 0 : 1;
    bp_status status = bp_placing_init(problem, capacity, fixed, offsets, &made->search.placing);
    if (status == BP_OK)
        status = search_prepare(made, problem);
    if (status != BP_OK)
        bp_searcher_destroy(&made);
    *searcher = made;
    return status;
}

void bp_searcher_destroy(bp_searcher **searcher)
{
    if (*searcher == NULL)
        return;
    bp_placing_finish(&(*searcher)->search.placing);
    free((*searcher)->search.rank);
    free((*searcher)->search.candidates);
    free((*searcher)->search.arena);
    free((*searcher)->list);
    free(*searcher);
    *searcher = NULL;
}
