/* SPDX-License-Identifier: Apache-2.0 */
/* Branch and bound: exact search for a placement within a capacity, for arbitrary conflicts. Items are placed from the bottom up; lower
 * bounds of the other items are propagated, and undone through a trail on backtracking. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"
#include "planner/packing/solve.h"

/* Rule that picks the next section to branch on. BP_PICK_ITEM branches on one item instead: the preferred one begins here or does not. */
typedef enum bp_pick { BP_PICK_FEWEST, BP_PICK_TIGHTEST, BP_PICK_ITEM, BP_PICK_COUNT } bp_pick;

/* An entry of the trail: *where was `old`; NULL: item `old` was placed. */
typedef struct change {
    uint64_t *where, old;
} change;

typedef struct preference {
    uint64_t keys[3];
    uint32_t item;
} preference;

typedef struct searcher {
    const bp_problem *p;
    uint64_t capacity;
    const uint64_t *fixed; /* by item: the only offset it can have, BP_NOT_FIXED; NULL: none is fixed */
    uint64_t *offsets;
    bool *placed;
    uint64_t *supported;       /* by item: the highest end of a placed neighbour */
    uint64_t *lowest;          /* by item: lower bound of its offset; at least `supported`, unless fixed */
    uint64_t *floor_of, *rest; /* by section: lowest offset and total size of its unplaced items */
    uint32_t *stamp;           /* by section: the latest pass that saw it */
    uint32_t stamps;
    uint32_t *raised; /* items that a placement raised, and their `lowest` before it */
    uint64_t *before;
    change *trail;
    size_t trail_count, trail_capacity;
    bp_work work;
    bool stopped; /* out of work or memory */
    bp_status status;
    uint32_t *rank;       /* by item: position in the order of preference */
    uint32_t *candidates; /* by section, valid for the latest stamp: items that may begin now */
    uint32_t *arena;      /* stack of item lists */
    size_t arena_used, arena_capacity;
    /* the next attempt */
    preference *list;
    uint64_t random, share;
    uint32_t round, preferred;
    bp_pick pick;
    bool ranked;
} searcher;

/* A list of items in the arena; entries that have been placed since are skipped. */
typedef struct bp_part {
    size_t first, count;
} bp_part;

/* ---- placement and propagation ----------------------------------------------------------------------------------------- */

static bool is_fixed(const searcher *s, uint32_t item)
{
    return s->fixed != NULL && s->fixed[item] != BP_NOT_FIXED;
}

static void search_stop(searcher *s, bp_status status)
{
    s->stopped = true;
    if (s->status == BP_OK)
        s->status = status;
}

static void note_change(searcher *s, uint64_t *where, uint64_t old)
{
    bp_status status = bp_grow_array((void **)&s->trail, &s->trail_capacity, s->trail_count, sizeof *s->trail);
    if (status != BP_OK)
        search_stop(s, status); /* out of memory: the search ends, so nothing needs to be undone */
    else
        s->trail[s->trail_count++] = (change){where, old};
}

static void set_value(searcher *s, uint64_t *where, uint64_t value)
{
    note_change(s, where, *where);
    *where = value;
}

/* Undoes all changes after the first `mark` entries of the trail. */
static void undo_to(searcher *s, size_t mark)
{
    while (s->trail_count > mark) {
        const change *c = &s->trail[--s->trail_count];
        if (c->where == NULL)
            s->placed[c->old] = false;
        else
            *c->where = c->old;
    }
}

static bool check_section(searcher *s, uint32_t section)
{
    const bp_problem *p = s->p;
    uint32_t first = p->sections.first[section], end = p->sections.first[section + 1];
    uint64_t low = UINT64_MAX;
    s->work.spent += end - first;
    for (uint32_t e = first; e < end; e++) {
        uint32_t item = p->sections.entries[e];
        if (!s->placed[item] && s->lowest[item] < low)
            low = s->lowest[item];
    }
    if (low == UINT64_MAX)
        return true;
    if (low > s->floor_of[section])
        set_value(s, &s->floor_of[section], low);
    return s->floor_of[section] <= s->capacity && s->rest[section] <= s->capacity - s->floor_of[section];
}

/* Checks the sections whose lowest offset was the item's `before`, once per stamp. False: one exceeds the capacity. */
static bool check_sections_of(searcher *s, uint32_t item, uint64_t before)
{
    const bp_problem *p = s->p;
    s->work.spent += p->memberships.first[item + 1] - p->memberships.first[item];
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        uint32_t section = p->memberships.entries[m];
        if (s->stamp[section] == s->stamps || s->floor_of[section] < before)
            continue;
        s->stamp[section] = s->stamps;
        if (!check_section(s, section))
            return false;
    }
    return true;
}

/* Raises the lower bound of the item's offset. False: the item or a section exceeds the capacity. */
static bool raise_item(searcher *s, uint32_t item, uint64_t lowest)
{
    if (lowest > s->capacity - s->p->sizes[item])
        return false;
    if (lowest > s->lowest[item]) {
        if (is_fixed(s, item))
            return false;
        set_value(s, &s->lowest[item], lowest);
    }
    return true;
}

/* False: infeasible; the caller undoes the changes (undo_to). */
static bool place_item(searcher *s, uint32_t item, uint64_t at)
{
    const bp_problem *p = s->p;
    uint64_t top = at + p->sizes[item];
    s->placed[item] = true;
    s->offsets[item] = at;
    note_change(s, NULL, item);
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        uint32_t section = p->memberships.entries[m];
        set_value(s, &s->rest[section], s->rest[section] - p->sizes[item]);
        set_value(s, &s->floor_of[section], top);
    }
    uint32_t raised = 0;
    s->work.spent += p->neighbours.first[item + 1] - p->neighbours.first[item];
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (s->placed[other])
            continue;
        if (s->supported[other] < top)
            set_value(s, &s->supported[other], top);
        if (s->lowest[other] < top) {
            s->before[raised] = s->lowest[other];
            s->raised[raised++] = other;
            if (!raise_item(s, other, top))
                return false;
        }
    }
    s->stamps++;
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        s->stamp[p->memberships.entries[m]] = s->stamps;
        if (!check_section(s, p->memberships.entries[m]))
            return false;
    }
    for (uint32_t i = 0; i < raised; i++) {
        if (!check_sections_of(s, s->raised[i], s->before[i]))
            return false;
    }
    return true;
}

/* The lowest possible end of an unplaced neighbour: an item that does not rest on a placed neighbour begins there or higher. */
static uint64_t next_support(searcher *s, uint32_t item)
{
    const bp_problem *p = s->p;
    uint64_t low = UINT64_MAX;
    s->work.spent += p->neighbours.first[item + 1] - p->neighbours.first[item];
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (!s->placed[other] && s->lowest[other] + p->sizes[other] < low)
            low = s->lowest[other] + p->sizes[other];
    }
    return low;
}

/* Resets the search and gives it new work. False: the fixed items do not fit. */
static bool search_begin(searcher *s, bp_work work)
{
    const bp_problem *p = s->p;
    bool fits = true;
    s->trail_count = 0;
    s->stopped = false;
    s->work = work;
    for (uint32_t i = 0; i < p->count; i++) {
        s->placed[i] = false;
        s->supported[i] = 0;
        s->lowest[i] = is_fixed(s, i) ? s->fixed[i] : 0;
        fits = fits && p->sizes[i] <= s->capacity && s->lowest[i] <= s->capacity - p->sizes[i];
    }
    for (uint32_t c = 0; c < p->sections.count; c++) {
        s->floor_of[c] = s->rest[c] = 0;
        for (uint32_t e = p->sections.first[c]; e < p->sections.first[c + 1]; e++)
            s->rest[c] += p->sizes[p->sections.entries[e]];
        fits = fits && s->rest[c] <= s->capacity;
    }
    return fits;
}

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

/* False: out of memory, and the search is stopped. */
static bool push_item(searcher *s, uint32_t item)
{
    bp_status status = bp_grow_array((void **)&s->arena, &s->arena_capacity, s->arena_used, sizeof *s->arena);
    if (status != BP_OK)
        search_stop(s, status);
    else
        s->arena[s->arena_used++] = item;
    return status == BP_OK;
}

/* Raises items that may begin at `height` without a support there. False: infeasible. */
static bool raise_unsupported(searcher *s, bp_part of, uint64_t height, bool *raised)
{
    *raised = false;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placed[item] || s->lowest[item] != height || s->supported[item] == height || is_fixed(s, item))
            continue;
        *raised = true;
        s->stamps++;
        if (!raise_item(s, item, next_support(s, item)) || !check_sections_of(s, item, height))
            return false;
    }
    return true;
}

static bool is_candidate(const searcher *s, uint32_t item, uint64_t height)
{
    return !s->placed[item] && s->lowest[item] == height;
}

static uint32_t pick_section(searcher *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->p;
    uint32_t best = 0, fewest = UINT32_MAX;
    uint64_t tightest = UINT64_MAX;

    /* candidates per section */
    s->stamps++;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        s->work.spent += p->memberships.first[item + 1] - p->memberships.first[item];
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m];
            s->candidates[section] = s->stamp[section] == s->stamps ? s->candidates[section] + 1 : 1;
            s->stamp[section] = s->stamps;
        }
    }

    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m], count = s->candidates[section];
            uint64_t slack = s->capacity - s->floor_of[section] - s->rest[section];
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

/* Pushes the candidates of one branching into the arena, preferred ones first. */
static bp_part branching_collect_candidates(searcher *s, bp_part of, uint64_t height)
{
    const bp_problem *p = s->p;
    bp_part candidates = {s->arena_used, 0};
    uint32_t only = BP_NO_ITEM; /* an item that can begin nowhere else, or the preferred one */
    bool looks = s->fixed != NULL || s->pick == BP_PICK_ITEM;
    for (size_t i = 0; looks && i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        bool fixed = is_fixed(s, item);
        if (fixed || (s->pick == BP_PICK_ITEM && (only == BP_NO_ITEM || s->rank[item] < s->rank[only])))
            only = item;
        if (fixed)
            break;
    }
    if (only != BP_NO_ITEM) {
        candidates.count = push_item(s, only);
        return candidates;
    }
    uint32_t section = pick_section(s, of, height);
    for (uint32_t e = p->sections.first[section]; e < p->sections.first[section + 1]; e++) {
        uint32_t item = p->sections.entries[e];
        if (!is_candidate(s, item, height) || !push_item(s, item))
            continue;
        uint32_t *list = s->arena + candidates.first;
        size_t at = candidates.count++;
        for (; at > 0 && s->rank[list[at - 1]] > s->rank[item]; at--)
            list[at] = list[at - 1];
        list[at] = item;
    }
    return candidates;
}

/* The branch in which no candidate begins at `height`. False: infeasible. */
static bool pass_over(searcher *s, bp_part candidates, uint64_t height)
{
    for (size_t i = 0; i < candidates.count; i++) {
        if (!raise_item(s, s->arena[candidates.first + i], height + 1))
            return false;
    }
    for (size_t i = 0; i < candidates.count; i++) {
        uint32_t item = s->arena[candidates.first + i];
        if (!raise_item(s, item, next_support(s, item)))
            return false;
    }
    s->stamps++;
    for (size_t i = 0; i < candidates.count; i++) {
        if (!check_sections_of(s, s->arena[candidates.first + i], height))
            return false;
    }
    return true;
}

static bool search_parts(searcher *s, bp_part of);

/* Places all items of the part. False: impossible, and all changes are undone, unless the search has stopped. */
static bool place_part(searcher *s, bp_part of)
{
    size_t mark = s->trail_count;
    for (bool fits = true; fits && !s->stopped;) {
        if (bp_work_is_over(&s->work)) {
            search_stop(s, BP_OK);
            break;
        }
        uint64_t lowest = UINT64_MAX, lowest_end = UINT64_MAX; /* of unplaced items; of an item placed now */
        s->work.spent += of.count;
        for (size_t i = 0; i < of.count; i++) {
            uint32_t item = s->arena[of.first + i];
            if (s->placed[item])
                continue;
            lowest = s->lowest[item] < lowest ? s->lowest[item] : lowest;
            uint64_t end = s->supported[item] + s->p->sizes[item];
            if (end < lowest_end && !is_fixed(s, item))
                lowest_end = end;
        }
        if (lowest == UINT64_MAX)
            return true;
        if (lowest_end <= lowest)
            break; /* not canonical: an unplaced item fits into the gap below */
        bool raised;
        fits = raise_unsupported(s, of, lowest, &raised);
        if (!fits || raised)
            continue;
        bp_part candidates = branching_collect_candidates(s, of, lowest);
        for (size_t i = 0; i < candidates.count && !s->stopped; i++) {
            size_t before = s->trail_count;
            if (place_item(s, s->arena[candidates.first + i], lowest) && search_parts(s, of))
                return true;
            undo_to(s, before);
        }
        fits = pass_over(s, candidates, lowest);
        s->arena_used = candidates.first;
    }
    undo_to(s, mark);
    return false;
}

/* Splits the unplaced items, which are sorted by first section, into parts that share no section, and places each. False: impossible, or
 * the search has stopped. */
static bool search_parts(searcher *s, bp_part of)
{
    const bp_lists *m = &s->p->memberships;
    size_t first = s->arena_used;
    s->work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!s->placed[item] && !push_item(s, item))
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
        solved = place_part(s, (bp_part){from, to - from});
        from = to;
    }
    s->arena_used = first;
    return solved;
}

/* ---- orders of preference --------------------------------------------------------------------------------------------- */

typedef enum measure { BY_WIDTH, BY_AREA, BY_TOTAL, BY_SIZE, MEASURE_COUNT } measure;

/* Sort keys, largest first: the item's section count, size times section count, largest section, size. */
static const measure preferences[][3] = {
    {BY_WIDTH, BY_AREA, BY_TOTAL}, {BY_TOTAL, BY_AREA, BY_WIDTH}, {BY_TOTAL, BY_WIDTH, BY_AREA},
    {BY_AREA, BY_WIDTH, BY_TOTAL}, {BY_SIZE, BY_WIDTH, BY_TOTAL}, {BY_TOTAL, BY_SIZE, BY_WIDTH},
    {BY_WIDTH, BY_TOTAL, BY_SIZE},
};
#define PREFERENCE_COUNT (sizeof preferences / sizeof *preferences)

static int by_preference(const void *left, const void *right)
{
    const preference *a = left, *b = right;
    for (int k = 0; k < 3; k++) {
        if (a->keys[k] != b->keys[k])
            return a->keys[k] > b->keys[k] ? -1 : 1;
    }
    return (a->item > b->item) - (a->item < b->item);
}

#define MEASURE_BITS 20 /* sizes and sums are scaled to this, so that products and perturbed values fit 64 bits */

static void rank_items(searcher *s, const measure *measures, uint32_t shaken)
{
    const bp_problem *p = s->p;
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
            uint64_t total = s->rest[p->memberships.entries[m]] >> shift;
            values[BY_TOTAL] = total > values[BY_TOTAL] ? total : values[BY_TOTAL];
        }
        list[i].item = i;
        for (int k = 0; k < 3; k++) {
            s->random ^= s->random >> 12; /* xorshift64*: Marsaglia 2003, Vigna 2016 */
            s->random ^= s->random << 25;
            s->random ^= s->random >> 27;
            uint64_t percent = 100 - shaken / 2 + s->random * UINT64_C(0x2545f4914f6cdd1d) % (shaken + 1);
            list[i].keys[k] = values[measures[k]] * percent / 100;
        }
    }
    qsort(list, p->count, sizeof *list, by_preference);
    for (uint32_t i = 0; i < p->count; i++)
        s->rank[list[i].item] = i;
}

/* ---- attempts --------------------------------------------------------------------------------------------------------- */

#define FIRST_SHARE (UINT64_C(1) << 19) /* work of the first attempts */
#define SHARE_OF_A_CONFLICT 64          /* added for each conflict: long descents need more */
#define ROUNDS_OF_A_SHARE 4             /* then the share doubles, so that an attempt is exhaustive in the end */

/* Largest random perturbation of a key, by round. */
static const uint32_t shaken_percent[] = {80, 10, 40, 20};

static bp_status searcher_init(searcher *s)
{
    const bp_lists *sections = &s->p->sections, *memberships = &s->p->memberships;
    size_t items = s->p->count;
    BP_TRY(bp_new_array(items, sizeof *s->placed, (void **)&s->placed));
    BP_TRY(bp_new_array(items, sizeof *s->supported, (void **)&s->supported));
    BP_TRY(bp_new_array(items, sizeof *s->lowest, (void **)&s->lowest));
    BP_TRY(bp_new_array(sections->count, sizeof *s->floor_of, (void **)&s->floor_of));
    BP_TRY(bp_new_array(sections->count, sizeof *s->rest, (void **)&s->rest));
    BP_TRY(bp_new_array(sections->count, sizeof *s->stamp, (void **)&s->stamp));
    BP_TRY(bp_new_array(items, sizeof *s->raised, (void **)&s->raised));
    BP_TRY(bp_new_array(items, sizeof *s->before, (void **)&s->before));
    BP_TRY(bp_new_array(items, sizeof *s->list, (void **)&s->list));
    BP_TRY(bp_new_array(items, sizeof *s->rank, (void **)&s->rank));
    BP_TRY(bp_new_array(sections->count, sizeof *s->candidates, (void **)&s->candidates));
    /* by first section; added conflicts make this differ from the order of the numbers */
    for (uint32_t c = 0; c < sections->count; c++) {
        for (uint32_t e = sections->first[c]; e < sections->first[c + 1]; e++) {
            uint32_t item = sections->entries[e];
            if (memberships->entries[memberships->first[item]] == c && !push_item(s, item))
                return s->status;
        }
    }
    return BP_OK;
}

/* Restarts, each with a share of the work: every preference, unchanged and then perturbed, with every pick rule. */
static void run_attempts(searcher *s, bp_work *work, bp_verdict *verdict)
{
    while (!bp_work_is_over(work) && s->status == BP_OK) {
        if (!s->ranked) {
            search_begin(s, *work); /* some preferences use the sections' sums */
            rank_items(s, preferences[s->preferred], s->round == 0 ? 0 : shaken_percent[s->round % 4]);
            s->ranked = true;
        }
        bool whole = s->share <= bp_work_left(work); /* an attempt that is cut short is repeated */
        if (search_begin(s, bp_work_part(work, s->share))) {
            s->arena_used = s->p->count; /* all items, in order */
            verdict->found = search_parts(s, (bp_part){0, s->p->count});
        }
        work->spent = s->work.spent + s->p->count;
        verdict->impossible = !verdict->found && !s->stopped;
        if (verdict->found || verdict->impossible)
            return;
        if (!whole || ++s->pick < BP_PICK_COUNT)
            continue;
        s->pick = BP_PICK_FEWEST;
        s->ranked = false;
        if (++s->preferred < PREFERENCE_COUNT)
            continue;
        s->preferred = 0;
        s->share *= s->round % ROUNDS_OF_A_SHARE == ROUNDS_OF_A_SHARE - 1 ? 2 : 1;
        s->round++;
    }
}

bp_status bp_search(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint32_t series, bp_work *work,
                    uint64_t *offsets, bp_verdict *verdict)
{
    searcher s = {.p = problem, .capacity = capacity, .fixed = fixed, .offsets = offsets};
    uint64_t way_down = SHARE_OF_A_CONFLICT * (uint64_t)problem->neighbours.first[problem->count];
    s.share = way_down > FIRST_SHARE ? way_down : FIRST_SHARE;
    s.random = UINT64_C(0x9e3779b97f4a7c15) * (2 * (uint64_t)series + 1);
    s.round = series == 0 ? 0 : 1;
    *verdict = (bp_verdict){0};
    bp_status status = searcher_init(&s);
    if (status == BP_OK) {
        run_attempts(&s, work, verdict);
        verdict->proven = verdict->impossible ? capacity + 1 : 0;
        status = s.status;
    }
    void *const arrays[] = {s.placed, s.supported, s.lowest, s.floor_of, s.rest,       s.stamp, s.raised,
                            s.before, s.trail,     s.list,   s.rank,     s.candidates, s.arena};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    return status;
}
