/* SPDX-License-Identifier: Apache-2.0 */
/* Solves one component: simple orders, structural shortcuts, exact methods and improvement, in rounds of growing work. */
#include "planner/packing/solve.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

typedef struct solving {
    const bp_timeline *timeline;
    bp_item_index index;
    bp_skyline *skyline;
    bp_problem graph; /* the conflict graph; empty for large instances */
    uint64_t target, ceiling;
    bp_work *work;
    bp_solution *best;
    uint64_t unit;     /* divides all sizes, and so all heights */
    uint64_t *offsets; /* result of a method */
    uint64_t *start;   /* of windows: the best of first fit and the graph; they improve skylines less */
    uint64_t start_height;
    /* blocks and the items' positions in them; empty if no two items can be merged */
    bp_problem blocks;
    uint32_t *block_of;
    uint64_t *inner;
    bp_order order, block_order;
    uint64_t block_low; /* lower bound of the blocks' height */
    uint64_t round;     /* work of the current round */
    uint32_t series;    /* seed of searches: the number of the round */
    uint32_t passes;    /* passes of windows so far */
    uint64_t probe;     /* work of the current probe of a decision method, whatever the limit is */
} solving;

static bool is_done(const solving *s)
{
    const bp_solution *best = s->best;
    return (best->placed && (best->height <= s->target || best->height <= best->proven)) || best->proven > s->ceiling;
}

static bool goes_on(const solving *s)
{
    return !is_done(s) && !bp_work_is_over(s->work);
}

/* Keeps s->offsets if they are the lowest so far. Returns their height. */
static uint64_t take_simple(solving *s, const char *method)
{
    uint64_t height = bp_timeline_height(s->timeline, s->offsets);
    if (s->best->placed && height >= s->best->height)
        return height;
    memcpy(s->best->offsets, s->offsets, s->timeline->count * sizeof *s->offsets);
    s->best->placed = true;
    s->best->height = height;
    s->best->method = method;
    uint64_t total = height > s->best->others ? height : s->best->others;
    __atomic_store_n(&s->work->progress->bytes, total, __ATOMIC_RELAXED);
    return height;
}

/* The same, and they may be the start of windows. */
static void take_answer(solving *s, const char *method)
{
    uint64_t height = take_simple(s, method);
    if (height < s->start_height) {
        s->start_height = height;
        memcpy(s->start, s->offsets, s->timeline->count * sizeof *s->start);
    }
}

/* Turns offsets of blocks into offsets of items, in place. */
static void spread_blocks(solving *s)
{
    for (uint32_t i = s->graph.count; i-- > 0;) /* block_of[i] is at most i: not overwritten yet */
        s->offsets[i] = s->offsets[s->block_of[i]] + s->inner[i];
}

static void prove(solving *s, uint64_t proven)
{
    uint64_t rounded;
    proven = bp_round_up_u64(proven, s->unit, &rounded) ? rounded : proven;
    s->best->proven = proven > s->best->proven ? proven : s->best->proven;
    if (s->best->proven > s->work->progress->proven)
        __atomic_store_n(&s->work->progress->proven, s->best->proven, __ATOMIC_RELAXED);
}

/* ---- bisection of the height with a decision method -------------------------------------------------------------------- */

/* Decides if a placement within `capacity` exists; writes s->offsets if it finds one. */
typedef bp_status decide_function(solving *s, uint64_t capacity, bp_work *work, bp_verdict *answer);

#define AT_THE_BOUND 8 /* probes at the proven bound, which is often optimal, before the bisection */
#define MIN_PROBE 32   /* a probe gets at least this fraction of a share */

/* Bisects between the proven bound and the best height with a share of the work; each probe gets half of the rest. After an undecided
 * probe no lower capacity is tried. `known_low`, unless NULL: lower bound of what this method can reach. */
static bp_status narrow(solving *s, decide_function *decide, const char *method, const uint64_t *known_low,
                        uint64_t share)
{
    bp_work all = bp_work_part(s->work, share);
    uint64_t low = s->best->proven > s->target ? s->best->proven : s->target, left = share;
    low = known_low != NULL && *known_low > low ? *known_low : low;
    for (uint32_t probe = 0; !is_done(s) && !bp_work_is_over(&all) && low < s->best->height; probe++) {
        uint64_t capacity = probe < AT_THE_BOUND ? low : low + (s->best->height - 1 - low) / 2;
        bool is_only = capacity == s->target; /* nothing else helps: lower is not needed, higher is not accepted */
        bool decides = probe > 0 && probe < AT_THE_BOUND;
        s->probe = is_only || decides ? left : left / 2;
        bp_work part = bp_work_part(&all, s->probe);
        bp_verdict answer = {0};
        capacity -= capacity % s->unit;
        BP_TRY(decide(s, capacity, &part, &answer));
        left -= part.spent - all.spent < left ? part.spent - all.spent : left;
        s->work->spent = all.spent = part.spent;
        prove(s, answer.proven);
        if (answer.found) {
            take_answer(s, method);
        } else {
            probe = answer.proven > capacity ? probe : AT_THE_BOUND;
            low = answer.proven > capacity ? answer.proven : capacity + s->unit;
        }
        if (left < share / MIN_PROBE)
            break;
    }
    return BP_OK;
}

static bp_status decide_by_blocks(solving *s, uint64_t capacity, bp_work *work, bp_verdict *answer)
{
    BP_TRY(bp_sweep(&s->blocks, &s->block_order, capacity, s->probe, work, s->offsets, answer));
    s->block_low = answer->proven > s->block_low ? answer->proven : s->block_low;
    answer->proven = 0; /* impossible for blocks does not mean impossible for items */
    if (answer->found)
        spread_blocks(s);
    return BP_OK;
}

static bp_status decide_by_items(solving *s, uint64_t capacity, bp_work *work, bp_verdict *answer)
{
    uint64_t dive = capacity > s->best->proven ? s->probe : 0; /* at the bound a proof is as likely as a placement */
    return bp_sweep(&s->graph, &s->order, capacity, dive, work, s->offsets, answer);
}

/* Looks for placements just below the best height until there is none. */
static bp_status exclude_by_items(solving *s, uint64_t share)
{
    bp_work all = bp_work_part(s->work, share);
    while (!is_done(s) && !bp_work_is_over(&all)) {
        uint64_t capacity = s->best->proven < s->target ? s->target : s->best->height - s->unit;
        bp_verdict answer;
        BP_TRY(bp_sweep(&s->graph, &s->order, capacity, 0, &all, s->offsets, &answer));
        s->work->spent = all.spent;
        prove(s, answer.proven);
        if (!answer.found)
            break;
        take_answer(s, "order sweep");
    }
    return BP_OK;
}

static bp_status decide_by_search(solving *s, uint64_t capacity, bp_work *work, bp_verdict *answer)
{
    return bp_search(&s->graph, capacity, NULL, s->series, work, s->offsets, answer);
}

#define SHARES_OF_A_ROUND 32 /* work of one window: this fraction of a round */

/* Passes start from the best placement and from an empty one in turns, as the best may be a local optimum. Window sizes vary, as none is
 * good for all instances. */
static bp_status decide_by_windows(solving *s, uint64_t capacity, bp_work *work, bp_verdict *answer)
{
    static const uint32_t quarters[] = {
        4, 2, 8, 1, 6, 3, 12}; /* of the order's width; an odd count, so that each size gets both starts */
    while (!answer->found && !answer->impossible && !bp_work_is_over(work)) {
        uint32_t pass = s->passes++, width = s->order.width * quarters[pass % (sizeof quarters / sizeof *quarters)] / 4;
        bp_windows_config config = {capacity, 2 + width, s->round / SHARES_OF_A_ROUND, pass};
        for (uint32_t i = 0; i < s->graph.count; i++)
            s->offsets[i] = pass % 2 == 0 ? s->start[i] : BP_NOT_FIXED;
        BP_TRY(bp_windows(&s->graph, &s->order, &config, work, s->offsets, answer));
    }
    return BP_OK;
}

/* ---- layers ---------------------------------------------------------------------------------------------------------- */

enum { UNKNOWN, BOTTOM, TOP };

/* Two-colouring of the conflict graph. False: it has an odd cycle. */
static bool colour(const bp_problem *p, uint8_t *colours, uint32_t *reached)
{
    uint32_t count = 0, next = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (colours[i] != UNKNOWN)
            continue;
        colours[i] = BOTTOM;
        reached[count++] = i;
        for (; next < count; next++) {
            uint32_t item = reached[next];
            for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
                uint32_t other = p->neighbours.entries[n];
                if (colours[other] == colours[item])
                    return false;
                if (colours[other] == UNKNOWN)
                    reached[count++] = other;
                colours[other] = colours[item] == BOTTOM ? TOP : BOTTOM;
            }
        }
    }
    return true;
}

/* A bipartite conflict graph: one colour starts at the bottom, the other ends at the bound, which is optimal. With prefetch depth 1 only
 * consecutive units conflict, so even units lie at the bottom and odd ones at the top. */
static bp_status try_parity(solving *s)
{
    const bp_problem *p = &s->blocks;
    uint8_t *colours;
    uint32_t *reached = NULL;
    BP_TRY(bp_new_array(p->count, sizeof *colours, (void **)&colours));
    bp_status status = bp_new_array(p->count, sizeof *reached, (void **)&reached);
    if (status == BP_OK && colour(p, colours, reached)) {
        for (uint32_t i = 0; i < p->count; i++)
            s->offsets[i] = colours[i] == BOTTOM ? 0 : p->bound - p->sizes[i];
        spread_blocks(s);
        take_answer(s, "parity");
    }
    free(colours);
    free(reached);
    return status;
}

static bp_status try_first_fit(solving *s, uint64_t share)
{
    uint64_t height, target = s->best->proven > s->target ? s->best->proven : s->target;
    BP_TRY(bp_first_fit(s->timeline, &s->index, target, share, s->work, s->offsets, &height));
    if (height != UINT64_MAX)
        take_answer(s, "first fit");
    return BP_OK;
}

static int by_size(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Raises the proven bound with the items of size at least `least`: a sweep of few items may be exhaustive where one of all is not. */
static bp_status prove_with_large(solving *s, uint64_t min, uint32_t *items, uint32_t *number_of, uint64_t share)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->graph.count; i++) {
        if (s->graph.sizes[i] >= min)
            items[count++] = i;
    }
    bp_problem large;
    bp_order order = {0};
    BP_TRY(bp_problem_subset(&s->graph, items, count, number_of, &large));
    bp_status status = bp_order_init(&large, &order);
    bp_work part = bp_work_part(s->work, share);
    bool impossible = order.width <= BP_SWEEP_WIDTH;
    while (status == BP_OK && impossible && !is_done(s)) {
        bp_verdict result;
        status = bp_sweep(&large, &order, s->best->proven, 0, &part, s->offsets, &result);
        impossible = status == BP_OK && result.impossible;
        if (impossible)
            prove(s, result.proven);
    }
    s->work->spent = part.spent;
    bp_order_finish(&order);
    bp_problem_finish(&large);
    return status;
}

#define MAX_THRESHOLDS 12

/* Thresholds from large to small: each distinct size, up to a limit. */
static bp_status try_proofs(solving *s, uint64_t share)
{
    uint32_t count = s->graph.count, *items = NULL, *number_of; /* of the subset; scratch by item of the whole */
    uint64_t *sizes;
    BP_TRY(bp_new_array(count, sizeof *sizes, (void **)&sizes));
    memcpy(sizes, s->graph.sizes, count * sizeof *sizes);
    qsort(sizes, count, sizeof *sizes, by_size);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (distinct == 0 || sizes[i] != sizes[distinct - 1])
            sizes[distinct++] = sizes[i];
    }
    uint32_t tried = distinct - 1 < MAX_THRESHOLDS ? distinct - 1 : MAX_THRESHOLDS;
    bp_status status = bp_new_array(2 * (size_t)count, sizeof *items, (void **)&items);
    if (status == BP_OK) {
        number_of = items + count;
        for (uint32_t i = 0; i < count; i++)
            number_of[i] = BP_NO_ITEM;
        for (uint32_t t = tried; status == BP_OK && t > 0 && goes_on(s); t--)
            status = prove_with_large(s, sizes[(uint64_t)t * (distinct - 1) / tried], items, number_of, share);
    }
    free(sizes);
    free(items);
    return status;
}

/* ---- without a conflict graph -------------------------------------------------------------------------------------- */

static bp_status try_online_fit(solving *s)
{
    uint64_t height;
    BP_TRY(bp_online_fit(s->timeline, s->best->height, s->work, s->offsets, &height));
    if (height != UINT64_MAX)
        take_simple(s, "online best fit");
    return BP_OK;
}

/* At least one pass. */
static void try_skyline(solving *s, uint64_t share)
{
    bp_work part = bp_work_part(s->work, share);
    do {
        if (bp_skyline_pass(s->skyline, s->best->height, &part, s->offsets))
            take_simple(s, "skyline");
    } while (!is_done(s) && !bp_work_is_over(&part));
    s->work->spent = part.spent;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

#define SIMPLE_SHARE (UINT64_C(1) << 22) /* work of the skyline before there is a conflict graph */
#define PASS_COST 4                      /* work of first fit for a conflict */
#define FIRST_ROUND (UINT64_C(1) << 20)  /* work of the first round */
#define ROUND_GROWTH 4
#define MIN_PROOF (UINT64_C(1) << 28) /* work of the first round with exhaustive sweeps */
#define EASY_WIDTH 8                  /* up to which such a sweep usually ends within a round */
#define LARGE 512                     /* items from which searches of arrangements are weaker than varied priorities */

static bool has_gaps(const bp_timeline *t)
{
    return t->pair_count > 0 || t->life_count > t->count;
}

/* The methods that need the conflict graph, and shares of the skyline. Shares do not depend on the limit, so that a larger limit extends the
 * same search and never gives a worse result. */
static bp_status run_rounds(solving *s)
{
    const bp_problem *p = &s->graph;
    bool merged = s->blocks.count < p->count, is_large = p->count >= LARGE, gaps = has_gaps(s->timeline);
    bool is_swept = s->order.width <= BP_SWEEP_WIDTH;
    for (s->round = FIRST_ROUND; goes_on(s); s->round *= ROUND_GROWTH, s->series++) {
        try_skyline(s, s->round / (is_large && !gaps ? 2 : 16));
        if (goes_on(s))
            BP_TRY(try_first_fit(s, s->round / (is_large && gaps ? 2 : 16)));
        if (goes_on(s))
            BP_TRY(narrow(s, decide_by_windows, "search in windows", NULL, s->round / (is_swept ? 2 : 4)));
        if (goes_on(s) && merged && s->block_order.width <= BP_SWEEP_WIDTH)
            BP_TRY(narrow(s, decide_by_blocks, "order sweep of blocks", &s->block_low, s->round / 8));
        if (goes_on(s) && is_swept)
            BP_TRY(narrow(s, decide_by_items, "order sweep", NULL, s->round / 4));
        if (goes_on(s) && is_swept && s->round >= MIN_PROOF)
            BP_TRY(exclude_by_items(s, s->order.width <= EASY_WIDTH ? s->round : s->round / 8));
        if (goes_on(s) && p->count <= BP_SEARCH_ITEMS)
            BP_TRY(narrow(s, decide_by_search, "search", NULL, s->round / 2));
        if (goes_on(s) && s->order.width > 2)
            BP_TRY(try_proofs(s, s->round / 16));
    }
    return BP_OK;
}

/* Online best fit, and the skyline's first passes with a share of the work: at least one pass, whatever the limit is. */
static bp_status try_simple_orders(solving *s, uint64_t share)
{
    BP_TRY(bp_skyline_create(s->timeline, &s->index, &s->skyline));
    try_skyline(s, 0);
    if (goes_on(s))
        BP_TRY(try_online_fit(s));
    if (goes_on(s))
        try_skyline(s, share);
    return BP_OK;
}

static bp_status solve_with_graph(solving *s)
{
    BP_TRY(bp_problem_init(s->timeline, &s->graph));
    s->best->bound = s->graph.bound;
    prove(s, s->best->bound);
    BP_TRY(bp_new_array(s->graph.count, sizeof *s->block_of, (void **)&s->block_of));
    BP_TRY(bp_new_array(s->graph.count, sizeof *s->inner, (void **)&s->inner));
    BP_TRY(bp_problem_merge(&s->graph, &s->blocks, s->block_of, s->inner));
    BP_TRY(bp_order_init(&s->graph, &s->order));
    BP_TRY(bp_order_init(&s->blocks, &s->block_order));
    if (is_done(s) && s->best->placed)
        return BP_OK;
    BP_TRY(try_parity(s));
    if (is_done(s) && s->best->placed)
        return BP_OK;
    if (s->skyline == NULL)
        BP_TRY(try_simple_orders(s, 0));
    return run_rounds(s);
}

/* A skyline loses the memory below an item that is placed above its lowest live range; first fit does not, but its passes are slow. */
static bp_status solve_without_graph(solving *s)
{
    if (!has_gaps(s->timeline))
        return try_simple_orders(s, UINT64_MAX);
    BP_TRY(try_simple_orders(s, 0));
    for (s->round = PASS_COST * s->timeline->conflicts; goes_on(s); s->round *= ROUND_GROWTH) {
        BP_TRY(try_first_fit(s, s->round));
        if (goes_on(s))
            try_skyline(s, s->round / 16);
    }
    return BP_OK;
}

/* Instances without gaps are often solved before there is a conflict graph: their bound is the peak of the live bytes, and parity is for
 * gaps. */
static bp_status solve(solving *s)
{
    s->best->bound = s->timeline->bound;
    prove(s, s->best->bound);
    if (s->timeline->conflicts > BP_PROBLEM_CONFLICTS)
        return solve_without_graph(s);
    if (!has_gaps(s->timeline)) {
        BP_TRY(try_simple_orders(s, SIMPLE_SHARE));
        if (is_done(s) && s->best->placed)
            return BP_OK;
    }
    return solve_with_graph(s);
}

bp_status bp_solve(const bp_timeline *timeline, uint64_t target, uint64_t ceiling, bp_work *work, bp_solution *solution)
{
    solving s = {.timeline = timeline, .target = target, .ceiling = ceiling, .work = work, .best = solution};
    for (uint32_t i = 0; i < timeline->count; i++)
        s.unit = bp_gcd_u64(timeline->sizes[i], s.unit);
    bp_status status = bp_new_array(timeline->count, sizeof *s.offsets, (void **)&s.offsets);
    if (status == BP_OK)
        status = bp_new_array(timeline->count, sizeof *s.start, (void **)&s.start);
    if (status == BP_OK)
        status = bp_item_index_init(timeline, &s.index);
    if (status == BP_OK) {
        s.start_height = solution->height;
        memcpy(s.start, solution->offsets, timeline->count * sizeof *s.start);
        status = solve(&s);
    }
    free(s.offsets);
    free(s.block_of);
    free(s.inner);
    free(s.start);
    bp_skyline_destroy(&s.skyline);
    bp_item_index_finish(&s.index);
    bp_problem_finish(&s.blocks);
    bp_problem_finish(&s.graph);
    bp_order_finish(&s.order);
    bp_order_finish(&s.block_order);
    return status;
}
