#include "packing/search.h"

#include <stdlib.h>

#include "core/fail.h"
#include "packing/branching.h"

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
        found = bp_search_parts(&s->search, (bp_part){0, count});
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
            if (memberships->entries[memberships->first[item]] == c && !bp_search_remember(&s->search, item))
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
