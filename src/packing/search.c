/* Depth-first search over canonical placements: those of the least sum of offsets. In such a placement every item rests on the floor
 * or on an item it conflicts with, and none could be moved whole into a gap below it. Items are placed in the order of their offsets
 * (the idea of canonical solutions: MiniMalloc, ASPLOS 2023), so that when one is placed at a height everything below is decided.
 *
 * At the lowest height at which anything may still begin, one section is chosen: the tightest, or the one with the fewest
 * candidates. Either one of its items begins there, or none does, and then all its candidates begin at the next height at which
 * something could support them. These cases exclude each other. A section in which what is left no longer fits above its floor ends a
 * branch; the parts that no item left joins in time are solved one by one.
 *
 * Which items are tried first decides how long it takes, by orders of magnitude, and no order is good for all instances: the search
 * begins again and again, with other orders and then with orders shaken at random, with growing shares of the work. */
#include "packing/search.h"

#include <stdlib.h>

#include "core/fail.h"

/* One thing to undo: a value that was `old`, or, without a place, the placing of item `old`. */
typedef struct change {
    uint64_t *where, old;
} change;

/* How the next section is chosen. PICK_ITEM: not at all; the preferred item begins there or does not. */
typedef enum pick { PICK_FEWEST, PICK_TIGHTEST, PICK_ITEM, PICK_COUNT } pick;

typedef struct search {
    const bp_problem *p;
    uint64_t capacity;
    uint64_t *offsets;
    bool *placed;
    uint64_t *supported;       /* by item: the highest end of a placed neighbour */
    uint64_t *lowest;          /* by item: it does not begin lower; at least `supported` */
    uint64_t *floor_of, *rest; /* by section: where what is left may begin, and its sizes' sum */
    uint32_t *rank;            /* by item: in the order of preference */
    uint32_t *stamp;           /* by section: the latest pass that saw it */
    uint32_t stamps;
    uint32_t *candidates; /* by section that the latest count saw: items that may begin now */
    uint32_t *raised;     /* items that a placing raised, and their `lowest` before */
    uint64_t *before;
    change *trail;
    size_t trail_count, trail_capacity;
    uint32_t *arena; /* lists of items, last in first out */
    size_t arena_used, arena_capacity;
    pick pick;
    bp_work work;
    bool stopped; /* the work ended, or memory */
    bp_status status;
} search;

/* ---- memory of the path --------------------------------------------------------------------------------------------- */

static void stop(search *s, bp_status status)
{
    s->stopped = true;
    if (s->status == BP_OK)
        s->status = status;
}

static void note(search *s, uint64_t *where, uint64_t old)
{
    bp_status status = bp_grow_array((void **)&s->trail, &s->trail_capacity, s->trail_count, sizeof *s->trail);
    if (status != BP_OK)
        stop(s, status); /* the search ends; what is not undone does not matter */
    else
        s->trail[s->trail_count++] = (change){where, old};
}

static void set(search *s, uint64_t *where, uint64_t value)
{
    note(s, where, *where);
    *where = value;
}

static void undo(search *s, size_t mark)
{
    while (s->trail_count > mark) {
        const change *c = &s->trail[--s->trail_count];
        if (c->where == NULL)
            s->placed[c->old] = false;
        else
            *c->where = c->old;
    }
}

static bool remember(search *s, uint32_t item)
{
    bp_status status = bp_grow_array((void **)&s->arena, &s->arena_capacity, s->arena_used, sizeof *s->arena);
    if (status != BP_OK)
        stop(s, status);
    else
        s->arena[s->arena_used++] = item;
    return status == BP_OK;
}

/* ---- consequences --------------------------------------------------------------------------------------------------- */

static bool check_section(search *s, uint32_t section)
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
        set(s, &s->floor_of[section], low);
    return s->floor_of[section] <= s->capacity && s->rest[section] <= s->capacity - s->floor_of[section];
}

/* The sections whose floor the item held at `before`, each once a stamp. */
static bool check_sections_of(search *s, uint32_t item, uint64_t before)
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

static bool raise(search *s, uint32_t item, uint64_t lowest)
{
    if (lowest > s->capacity - s->p->sizes[item])
        return false;
    if (lowest > s->lowest[item])
        set(s, &s->lowest[item], lowest);
    return true;
}

static bool place(search *s, uint32_t item, uint64_t at)
{
    const bp_problem *p = s->p;
    uint64_t top = at + p->sizes[item];
    s->placed[item] = true;
    s->offsets[item] = at;
    note(s, NULL, item);
    for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
        uint32_t section = p->memberships.entries[m];
        set(s, &s->rest[section], s->rest[section] - p->sizes[item]);
        set(s, &s->floor_of[section], top);
    }
    uint32_t raised = 0;
    s->work.spent += p->neighbours.first[item + 1] - p->neighbours.first[item];
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (s->placed[other])
            continue;
        if (s->supported[other] < top)
            set(s, &s->supported[other], top);
        if (s->lowest[other] < top) {
            s->before[raised] = s->lowest[other];
            s->raised[raised++] = other;
            if (!raise(s, other, top))
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

/* The lowest end that a neighbour can have that is not placed yet: what does not rest on the placed ones rests on that or higher. */
static uint64_t next_support(search *s, uint32_t item)
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

/* ---- branching ------------------------------------------------------------------------------------------------------ */

/* Items of a part, in the arena; those that were placed since are passed over. */
typedef struct part {
    size_t first, count;
} part;

typedef struct heights {
    uint64_t lowest;     /* at which an item may begin; UINT64_MAX: all are placed */
    uint64_t lowest_end; /* that an item could have if it were placed now */
} heights;

static heights find_heights(search *s, part of)
{
    heights h = {UINT64_MAX, UINT64_MAX};
    s->work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placed[item])
            continue;
        uint64_t end = s->supported[item] + s->p->sizes[item];
        h.lowest = s->lowest[item] < h.lowest ? s->lowest[item] : h.lowest;
        h.lowest_end = end < h.lowest_end ? end : h.lowest_end;
    }
    return h;
}

/* Raises what may begin at `height` but has no support there. False: that leaves no room. */
static bool raise_unsupported(search *s, part of, uint64_t height, bool *raised)
{
    *raised = false;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (s->placed[item] || s->lowest[item] != height || s->supported[item] == height)
            continue;
        *raised = true;
        s->stamps++;
        if (!raise(s, item, next_support(s, item)) || !check_sections_of(s, item, height))
            return false;
    }
    return true;
}

static bool is_candidate(const search *s, uint32_t item, uint64_t height)
{
    return !s->placed[item] && s->lowest[item] == height;
}

/* Counts, for every section with candidates, how many. */
static void count_candidates(search *s, part of, uint64_t height)
{
    const bp_problem *p = s->p;
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
}

static uint32_t pick_section(search *s, part of, uint64_t height)
{
    const bp_problem *p = s->p;
    uint32_t best = 0, fewest = UINT32_MAX;
    uint64_t tightest = UINT64_MAX;
    count_candidates(s, of, height);
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!is_candidate(s, item, height))
            continue;
        for (uint32_t m = p->memberships.first[item]; m < p->memberships.first[item + 1]; m++) {
            uint32_t section = p->memberships.entries[m], count = s->candidates[section];
            uint64_t slack = s->capacity - s->floor_of[section] - s->rest[section];
            bool better = s->pick == PICK_TIGHTEST ? slack < tightest || (slack == tightest && count < fewest)
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

/* Puts the candidates of one choice into the arena, preferred ones first. */
static part collect_candidates(search *s, part of, uint64_t height)
{
    const bp_problem *p = s->p;
    part candidates = {s->arena_used, 0};
    if (s->pick == PICK_ITEM) {
        uint32_t best = UINT32_MAX;
        for (size_t i = 0; i < of.count; i++) {
            uint32_t item = s->arena[of.first + i];
            if (is_candidate(s, item, height) && (best == UINT32_MAX || s->rank[item] < s->rank[best]))
                best = item;
        }
        candidates.count = remember(s, best);
        return candidates;
    }
    uint32_t section = pick_section(s, of, height);
    for (uint32_t e = p->sections.first[section]; e < p->sections.first[section + 1]; e++) {
        uint32_t item = p->sections.entries[e];
        if (!is_candidate(s, item, height) || !remember(s, item))
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
static bool pass_over(search *s, part candidates, uint64_t height)
{
    for (size_t i = 0; i < candidates.count; i++) {
        if (!raise(s, s->arena[candidates.first + i], height + 1))
            return false;
    }
    for (size_t i = 0; i < candidates.count; i++) {
        uint32_t item = s->arena[candidates.first + i];
        if (!raise(s, item, next_support(s, item)))
            return false;
    }
    s->stamps++;
    for (size_t i = 0; i < candidates.count; i++) {
        if (!check_sections_of(s, s->arena[candidates.first + i], height))
            return false;
    }
    return true;
}

static bool solve_parts(search *s, part of);

/* Places all items of the part. On failure everything is as before, unless the search has stopped. */
static bool solve(search *s, part of)
{
    size_t mark = s->trail_count;
    for (bool fits = true; fits && !s->stopped;) {
        if (bp_work_is_over(&s->work)) {
            stop(s, BP_OK);
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
        part candidates = collect_candidates(s, of, h.lowest);
        for (size_t i = 0; i < candidates.count && !s->stopped; i++) {
            size_t before = s->trail_count;
            if (place(s, s->arena[candidates.first + i], h.lowest) && solve_parts(s, of))
                return true;
            undo(s, before);
        }
        fits = pass_over(s, candidates, h.lowest);
        s->arena_used = candidates.first;
    }
    undo(s, mark);
    return false;
}

/* Solves what is left in parts that do not meet in time. Items of a part are in the order of their first sections. */
static bool solve_parts(search *s, part of)
{
    const bp_lists *m = &s->p->memberships;
    size_t first = s->arena_used;
    s->work.spent += of.count;
    for (size_t i = 0; i < of.count; i++) {
        uint32_t item = s->arena[of.first + i];
        if (!s->placed[item] && !remember(s, item))
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
        solved = solve(s, (part){from, to - from});
        from = to;
    }
    s->arena_used = first;
    return solved;
}

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
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static void rank_items(search *s, const measure *measures, uint32_t shaken, uint64_t *random, preference *list)
{
    const bp_problem *p = s->p;
    int shift = 0;
    while (s->p->bound >> shift >> MEASURE_BITS != 0)
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
            uint64_t percent = 100 - shaken / 2 + next_random(random) % (shaken + 1);
            list[i].keys[k] = values[measures[k]] * percent / 100;
        }
    }
    qsort(list, p->count, sizeof *list, by_preference);
    for (uint32_t i = 0; i < p->count; i++)
        s->rank[list[i].item] = i;
}

/* ---- the search ----------------------------------------------------------------------------------------------------- */

static void begin(search *s)
{
    const bp_problem *p = s->p;
    for (uint32_t i = 0; i < p->count; i++) {
        s->placed[i] = false;
        s->supported[i] = s->lowest[i] = 0;
    }
    for (uint32_t c = 0; c < p->sections.count; c++) {
        s->floor_of[c] = s->rest[c] = 0;
        for (uint32_t e = p->sections.first[c]; e < p->sections.first[c + 1]; e++)
            s->rest[c] += p->sizes[p->sections.entries[e]];
    }
    s->trail_count = 0;
    s->arena_used = p->count; /* all items, in order */
    s->stopped = false;
}

#define FIRST_SHARE (UINT64_C(1) << 19) /* work of the first attempts, */
#define SHARE_OF_A_CONFLICT 64          /* more where one way down takes more */
#define ROUNDS_OF_A_SHARE 4             /* then it doubles: in the end one attempt gets through everything */

/* How far at most the values of two items are shaken apart, round by round. */
static const uint32_t shaken_percent[] = {80, 10, 40, 20};

/* One attempt: from the beginning, for a share of the work. */
static bp_answer attempt(search *s, pick how, uint64_t share, bp_work *work)
{
    begin(s);
    s->pick = how;
    s->work = bp_work_part(work, share);
    bool found = solve_parts(s, (part){0, s->p->count});
    work->spent = s->work.spent + s->p->count;
    return found ? BP_ANSWER_FOUND : s->stopped ? BP_ANSWER_NONE : BP_ANSWER_IMPOSSIBLE;
}

/* Rounds of attempts: every preference, as it is and then shaken, with every way to pick. */
static bp_answer attempt_all(search *s, uint32_t series, bp_work *work, preference *list)
{
    uint64_t way_down = SHARE_OF_A_CONFLICT * (uint64_t)s->p->neighbours.first[s->p->count];
    uint64_t share = way_down > FIRST_SHARE ? way_down : FIRST_SHARE,
             random = UINT64_C(0x9e3779b97f4a7c15) * (2 * (uint64_t)series + 1);
    for (uint32_t round = series == 0 ? 0 : 1;; round++) {
        for (size_t i = 0; i < PREFERENCE_COUNT; i++) {
            begin(s); /* some preferences go by the sections' sums */
            rank_items(s, preferences[i], round == 0 ? 0 : shaken_percent[round % 4], &random, list);
            for (pick how = PICK_FEWEST; how < PICK_COUNT; how++) {
                if (bp_work_is_over(work) || s->status != BP_OK)
                    return BP_ANSWER_NONE;
                bp_answer answer = attempt(s, how, share, work);
                if (answer != BP_ANSWER_NONE)
                    return answer;
            }
        }
        share *= round % ROUNDS_OF_A_SHARE == ROUNDS_OF_A_SHARE - 1 ? 2 : 1;
    }
}

static bp_status prepare(search *s, preference **list)
{
    size_t items = s->p->count, sections = s->p->sections.count;
    const struct {
        void *pointer;
        size_t count, size;
    } arrays[] = {{&s->placed, items, sizeof *s->placed},
                  {&s->supported, items, sizeof *s->supported},
                  {&s->lowest, items, sizeof *s->lowest},
                  {&s->floor_of, sections, sizeof *s->floor_of},
                  {&s->rest, sections, sizeof *s->rest},
                  {&s->rank, items, sizeof *s->rank},
                  {&s->stamp, sections, sizeof *s->stamp},
                  {&s->candidates, sections, sizeof *s->candidates},
                  {&s->raised, items, sizeof *s->raised},
                  {&s->before, items, sizeof *s->before},
                  {list, items, sizeof **list}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        BP_TRY(bp_new_array(arrays[i].count, arrays[i].size, arrays[i].pointer));
    for (uint32_t i = 0; i < s->p->count; i++) {
        if (!remember(s, i))
            return s->status;
    }
    return BP_OK;
}

bp_status bp_search(const bp_problem *problem, uint64_t capacity, uint32_t series, bp_work *work, uint64_t *offsets,
                    bp_answer *answer)
{
    *answer = BP_ANSWER_NONE;
    if (problem->bound > capacity) {
        *answer = BP_ANSWER_IMPOSSIBLE;
        return BP_OK;
    }
    if (problem->count > BP_SEARCH_ITEMS)
        return BP_OK;
    search s = {.p = problem, .capacity = capacity, .offsets = offsets};
    preference *list = NULL;
    bp_status status = prepare(&s, &list);
    if (status == BP_OK) {
        *answer = attempt_all(&s, series, work, list);
        status = s.status;
    }
    free(s.placed);
    free(s.supported);
    free(s.lowest);
    free(s.floor_of);
    free(s.rest);
    free(s.rank);
    free(s.stamp);
    free(s.candidates);
    free(s.raised);
    free(s.before);
    free(s.trail);
    free(s.arena);
    free(list);
    return status;
}
