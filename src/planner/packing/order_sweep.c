/* SPDX-License-Identifier: Apache-2.0 */
/* Order sweep: dynamic programming over the frontier, exact for conflict graphs of small width and any length. Items are inserted one by
 * one. A state keeps only the distances between frontier items (those with neighbours to come), and from them to the bottom and the top.
 *
 * A new item is put below or above each of its neighbours in the frontier, in every consistent way; dominated states are dropped. The sweep
 * decides orders, not offsets, so its cost does not depend on sizes: a placement is an acyclic orientation of the conflict graph, its
 * height the longest path. With prefetch depth d the frontier is the requests of d units, for any number of units.
 *
 * The states after an item are its layer. The first layers are the largest, as few orders are excluded there: w items that all conflict
 * have w! orders. A layer is expanded in parts, best states first, each part down to its end before the next one, so that the memory is
 * bounded and the sweep is complete all the same (beam stack search: Zhou and Hansen 2005), unless it is so long that the rest of its first
 * layers must be dropped. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "planner/packing/solve.h"

/* Predecessor of a state: its index in the layer before, and a bit mask of the rows that the new item was put above. */
typedef struct bp_origin {
    uint32_t parent, below;
} bp_origin;

typedef struct bp_state {
    bp_origin origin;
    uint64_t rank; /* smaller is better; decides which states are expanded first */
    uint32_t hash, next_of_hash;
} bp_state;

/* The matrix of a state of w items has w + 1 rows and columns, in units: [0][1 + i] is the least distance from the bottom
 * to the begin of item i, [1 + i][0] the least from its begin to the top, [1 + i][1 + j] the least from the begin of item i to that of
 * item j; 0: no constraint. */
typedef struct bp_layer {
    uint32_t *cells; /* the matrices, consecutive */
    bp_state *states;
    bp_keyed *order; /* the states by rank; NULL, as are the cells: closed, no more states are expanded */
    size_t count, expanded;
    uint32_t side; /* rows of a matrix */
    size_t cell_capacity, state_capacity;
} bp_layer;

typedef struct step {
    uint32_t frontier[BP_SWEEP_WIDTH]; /* before the insertion: item i is row 1 + i of the states */
    uint32_t width;
    uint32_t item;
    uint32_t forced_below; /* bit mask of rows that are put below (symmetry breaking) */
} step;

typedef struct sweep {
    const bp_problem *p;
    const bp_order *order;
    uint64_t unit; /* divides all sizes: distances fit 32 bits */
    uint32_t capacity, min_rejected;
    step *steps;
    bp_layer *layers; /* layers[k]: states before step k */
    size_t cells;     /* room of all matrices */
    uint32_t oldest;  /* all layers before it are closed */
    bool truncated;   /* states were dropped for lack of memory: nothing is proven */
    uint32_t *table;  /* by hash: a state of the layer that is made, linked through next_of_hash */
    size_t table_size, table_used;
    bool dives;
    uint64_t dive_end; /* work at which dives should end */
    bp_work *work;
} sweep;

/* ---- layers ------------------------------------------------------------------------------------------------------ */

#define NONE UINT32_MAX
/* Comparisons for one new state: dominance checks must not cost more than they save. */
#define MAX_COMPARED 64
/* States of other hashes in its slot; a slot has one on average. The hash has no key, so that the plan is always the same. */
#define MAX_PASSED 256
#define MIN_TABLE 64

static size_t matrix_cells(const bp_layer *layer)
{
    return (size_t)layer->side * layer->side;
}

static uint32_t *matrix_of(const bp_layer *layer, size_t state)
{
    return layer->cells + matrix_cells(layer) * state;
}

/* Hash of the relative order of the items: only states of equal order are compared for dominance. */
static uint32_t hash_order(const uint32_t *matrix, uint32_t side)
{
    uint64_t hash = side;
    for (uint32_t i = 1; i < side; i++) {
        uint64_t row = 0;
        for (uint32_t j = 1; j < side; j++)
            row = row << 1 | (matrix[i * side + j] != 0);
        hash = (hash ^ row) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash >> 32);
}

static void link_state(sweep *s, bp_layer *layer, uint32_t state)
{
    size_t at = layer->states[state].hash & (s->table_used - 1);
    layer->states[state].next_of_hash = s->table[at];
    s->table[at] = state;
}

/* Makes the table as large as `used`, with the states of the layer. */
static bp_status hash_states(sweep *s, bp_layer *layer, size_t used)
{
    if (used > s->table_size) {
        free(s->table);
        s->table = NULL;
        s->table_size = 0;
        BP_TRY(bp_new_array(used, sizeof *s->table, (void **)&s->table));
        s->table_size = used;
    }
    s->table_used = used;
    memset(s->table, 0xff, used * sizeof *s->table);
    for (uint32_t i = 0; i < layer->count; i++)
        link_state(s, layer, i);
    return BP_OK;
}

/* Makes room for the matrix of one more state; layer_add then keeps or discards it. */
static bp_status layer_room(sweep *s, bp_layer *layer, uint32_t **matrix)
{
    size_t last_cell = matrix_cells(layer) * (layer->count + 1) - 1;
    BP_TRY(bp_grow_array((void **)&layer->states, &layer->state_capacity, layer->count, sizeof *layer->states));
    s->cells -= layer->cell_capacity;
    bp_status status = bp_grow_array((void **)&layer->cells, &layer->cell_capacity, last_cell, sizeof *layer->cells);
    s->cells += layer->cell_capacity;
    BP_TRY(status);
    if (2 * (layer->count + 1) > s->table_used)
        BP_TRY(hash_states(s, layer, 4 * s->table_used));
    *matrix = matrix_of(layer, layer->count);
    return BP_OK;
}

/* True if every distance of `a` is at most that of `b`: `a` dominates, any completion of `b` is one of `a`. */
static bool is_nowhere_tighter(const uint32_t *a, const uint32_t *b, size_t cells)
{
    for (size_t i = 0; i < cells; i++) {
        if (a[i] > b[i])
            return false;
    }
    return true;
}

/* Adds the pending state unless a state of the same order dominates it; it replaces a state that it dominates. */
static void layer_add(sweep *s, bp_layer *layer, uint64_t rank, bp_origin origin)
{
    size_t cells = matrix_cells(layer);
    uint32_t *mine = matrix_of(layer, layer->count);
    uint32_t hash = hash_order(mine, layer->side), compared = 0, passed = 0;
    s->work->spent += 2 * cells;
    for (uint32_t i = s->table[hash & (s->table_used - 1)]; i != NONE && compared < MAX_COMPARED && passed < MAX_PASSED;
         i = layer->states[i].next_of_hash) {
        if (layer->states[i].hash != hash) {
            passed++;
            continue;
        }
        compared++;
        uint32_t *other = matrix_of(layer, i);
        s->work->spent += cells / 2 + 1;
        if (is_nowhere_tighter(other, mine, cells))
            return;
        if (is_nowhere_tighter(mine, other, cells)) {
            memcpy(other, mine, cells * sizeof *mine);
            layer->states[i].origin = origin;
            layer->states[i].rank = rank;
            return;
        }
    }
    layer->states[layer->count] = (bp_state){.origin = origin, .rank = rank, .hash = hash};
    link_state(s, layer, (uint32_t)layer->count++);
}

static bp_status layer_sort(bp_layer *layer)
{
    BP_TRY(bp_new_array(layer->count, sizeof *layer->order, (void **)&layer->order));
    for (uint32_t i = 0; i < layer->count; i++)
        layer->order[i] = (bp_keyed){layer->states[i].rank, i};
    qsort(layer->order, layer->count, sizeof *layer->order, bp_compare_keyed);
    return BP_OK;
}

/* Frees all but the origins of the states. */
static void layer_close(sweep *s, bp_layer *layer)
{
    s->cells -= layer->cell_capacity;
    free(layer->cells);
    free(layer->order);
    layer->cells = NULL;
    layer->order = NULL;
    layer->cell_capacity = 0;
    layer->expanded = layer->count;
}

static void layer_finish(sweep *s, bp_layer *layer)
{
    layer_close(s, layer);
    free(layer->states);
    *layer = (bp_layer){0};
}

/* ---- insertion of an item ------------------------------------------------------------------------------------------- */

typedef struct insertion {
    const uint32_t *before; /* the state that is extended */
    bp_layer *made;         /* its layer gets the extended states */
    uint32_t side, state;
    uint32_t neighbours[BP_SWEEP_WIDTH]; /* rows of the item's neighbours, lowest first */
    uint32_t neighbour_count;
    uint32_t forced_below;             /* bit mask of neighbours that must lie below */
    uint32_t over[BP_SWEEP_WIDTH + 1]; /* by row: bit mask of the rows above it */
    uint32_t size;
    uint32_t sizes[BP_SWEEP_WIDTH + 1]; /* by row */
    uint32_t kept[BP_SWEEP_WIDTH + 1];  /* rows that stay in the frontier; `side` is the new item */
    uint32_t kept_count;
    uint32_t to[BP_SWEEP_WIDTH + 1], from[BP_SWEEP_WIDTH + 1]; /* least distances to and from the new item, by row */
} insertion;

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Distances through the neighbours below and above. */
static void find_distances(insertion *e, uint32_t below)
{
    const uint32_t *d = e->before;
    uint32_t side = e->side;
    memset(e->to, 0, side * sizeof *e->to);
    memset(e->from, 0, side * sizeof *e->from);
    e->from[0] = e->size;
    for (uint32_t k = 0; k < e->neighbour_count; k++) {
        uint32_t a = e->neighbours[k];
        if (below >> (a - 1) & 1) {
            e->to[0] = larger(e->to[0], d[a] + e->sizes[a]);
            e->to[a] = larger(e->to[a], e->sizes[a]);
            for (uint32_t x = 1; x < side; x++) {
                if (d[x * side + a] != 0)
                    e->to[x] = larger(e->to[x], d[x * side + a] + e->sizes[a]);
            }
        } else {
            e->from[a] = larger(e->from[a], e->size);
            for (uint32_t y = 0; y < side; y++) {
                if (d[a * side + y] != 0)
                    e->from[y] = larger(e->from[y], e->size + d[a * side + y]);
            }
        }
    }
}

/* The least distance from row x to row y with the new item in place. */
static uint32_t distance(const insertion *e, uint32_t x, uint32_t y)
{
    if (x == e->side)
        return e->from[y];
    if (y == e->side)
        return e->to[x];
    uint32_t old = e->before[x * e->side + y];
    bool through = (x == 0 || e->to[x] != 0) && (y == 0 || e->from[y] != 0) && x != y;
    return through ? larger(old, e->to[x] + e->from[y]) : old;
}

/* Adds the state with the new item above the rows of `below`, and below its other neighbours. */
static bp_status insert_above(sweep *s, insertion *e, uint32_t below)
{
    uint32_t *made;
    uint64_t rank = 0;
    BP_TRY(layer_room(s, e->made, &made));
    s->work->spent += 2 * (uint64_t)e->side * (e->neighbour_count + 1);
    find_distances(e, below);
    uint32_t side = e->made->side;
    for (uint32_t i = 0; i < side; i++) {
        uint32_t x = i == 0 ? 0 : e->kept[i - 1];
        for (uint32_t j = 0; j < side; j++) {
            uint32_t y = j == 0 ? 0 : e->kept[j - 1];
            made[i * side + j] = i == j ? 0 : distance(e, x, y);
        }
    }
    for (uint32_t i = 1; i < side; i++)
        rank += (uint64_t)made[i] + made[i * side];
    layer_add(s, e->made, rank, (bp_origin){e->state, below});
    return BP_OK;
}

/* The decisions about the first neighbours, lowest first. */
typedef struct decisions {
    uint32_t count;
    uint32_t below;     /* bit mask of rows below the new item */
    uint32_t above;     /* of rows that lie above a neighbour that was put above */
    uint32_t low, high; /* least distances from the bottom to the new item, and from its end to the top */
} decisions;

/* Enumerates the ways to put the new item below or above its neighbours. */
static bp_status insert_everywhere(sweep *s, insertion *e, decisions so_far)
{
    uint32_t height = so_far.low + e->size + so_far.high;
    s->work->spent++;
    if (height > s->capacity) {
        s->min_rejected = height < s->min_rejected ? height : s->min_rejected;
        return BP_OK;
    }
    if (so_far.count == e->neighbour_count)
        return insert_above(s, e, so_far.below);
    uint32_t a = e->neighbours[so_far.count++], bit = UINT32_C(1) << (a - 1);
    if (!(so_far.above & bit)) {
        decisions under = so_far;
        under.below |= bit;
        under.low = larger(so_far.low, e->before[a] + e->sizes[a]);
        BP_TRY(insert_everywhere(s, e, under));
    }
    if (e->forced_below & bit)
        return BP_OK;
    so_far.above |= e->over[a];
    so_far.high = larger(so_far.high, e->before[a * e->side]);
    return insert_everywhere(s, e, so_far);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void prepare_steps(sweep *s)
{
    uint32_t frontier[BP_SWEEP_WIDTH + 1], width = 0;
    for (uint32_t at = 0; at < s->p->count; at++) {
        step *now = &s->steps[at];
        now->item = s->order->items[at];
        now->width = width;
        memcpy(now->frontier, frontier, width * sizeof *frontier);
        for (uint32_t i = width; i-- > 0 && now->forced_below == 0;) {
            uint32_t other = frontier[i];
            if (s->p->sizes[other] == s->p->sizes[now->item] && bp_lists_equal(&s->p->memberships, other, now->item))
                now->forced_below = UINT32_C(1) << i;
        }
        uint32_t kept = 0;
        frontier[width] = now->item;
        for (uint32_t i = 0; i <= width; i++) {
            if (s->order->last[frontier[i]] > at)
                frontier[kept++] = frontier[i];
        }
        width = kept;
    }
}

static void collect_neighbours(const sweep *s, const step *now, insertion *e)
{
    const bp_lists *neighbours = &s->p->neighbours;
    e->neighbour_count = 0;
    for (uint32_t row = 1; row <= now->width; row++) {
        const uint32_t *first = neighbours->entries + neighbours->first[now->item];
        const uint32_t *end = neighbours->entries + neighbours->first[now->item + 1];
        while (first < end && *first != now->frontier[row - 1])
            first++;
        if (first < end)
            e->neighbours[e->neighbour_count++] = row;
    }
}

/* ---- from orders to offsets ------------------------------------------------------------------------------------------ */

typedef struct orientation {
    bp_pair *arcs; /* oriented conflicts: the second item lies above the first */
    size_t count, capacity;
    uint32_t *waits_for; /* by item: number of items below it without an offset */
    uint32_t *first;     /* by item: its first arc as the lower item, after sorting */
    uint32_t *ready;     /* queue of items whose offsets are final */
} orientation;

/* Follows the predecessors back from the final state. */
static bp_status orient(const sweep *s, orientation *o)
{
    insertion e;
    uint32_t state = 0;
    for (uint32_t at = s->p->count; at-- > 0;) {
        const step *now = &s->steps[at];
        bp_origin origin = s->layers[at + 1].states[state].origin;
        state = origin.parent;
        collect_neighbours(s, now, &e);
        for (uint32_t k = 0; k < e.neighbour_count; k++) {
            uint32_t row = e.neighbours[k], other = now->frontier[row - 1];
            bool below = origin.below >> (row - 1) & 1;
            BP_TRY(bp_grow_array((void **)&o->arcs, &o->capacity, o->count, sizeof *o->arcs));
            o->arcs[o->count++] = below ? (bp_pair){other, now->item} : (bp_pair){now->item, other};
        }
    }
    return BP_OK;
}

/* Longest path: each item as low as those below it allow. */
static void stack_up(const bp_problem *p, orientation *o, uint64_t *offsets)
{
    if (o->count > 0)
        qsort(o->arcs, o->count, sizeof *o->arcs, bp_compare_pairs);
    for (size_t i = 0; i < o->count; i++) {
        o->waits_for[o->arcs[i].other]++;
        o->first[o->arcs[i].item + 1]++;
    }
    uint32_t ready = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        o->first[i + 1] += o->first[i];
        offsets[i] = 0;
        if (o->waits_for[i] == 0)
            o->ready[ready++] = i;
    }
    for (uint32_t r = 0; r < ready; r++) {
        uint32_t low = o->ready[r];
        for (uint32_t i = o->first[low]; o->arcs != NULL && i < o->first[low + 1]; i++) {
            uint32_t high = o->arcs[i].other;
            uint64_t end = offsets[low] + p->sizes[low];
            offsets[high] = offsets[high] > end ? offsets[high] : end;
            if (--o->waits_for[high] == 0)
                o->ready[ready++] = high;
        }
    }
}

static bp_status sweep_lay_out(const sweep *s, uint64_t *offsets)
{
    orientation o = {0};
    BP_TRY(bp_new_array(3 * (size_t)s->p->count + 1, sizeof *o.waits_for, (void **)&o.waits_for));
    o.ready = o.waits_for + s->p->count;
    o.first = o.ready + s->p->count;
    bp_status status = orient(s, &o);
    if (status == BP_OK)
        stack_up(s->p, &o, offsets);
    free(o.arcs);
    free(o.waits_for);
    return status;
}

/* ---- the sweep ------------------------------------------------------------------------------------------------------ */

/* All about the insertion of an item but the state. */
static void prepare_insertion(const sweep *s, uint32_t at, insertion *e)
{
    const step *now = &s->steps[at];
    *e = (insertion){.made = &s->layers[at + 1], .side = now->width + 1, .forced_below = now->forced_below};
    e->size = (uint32_t)(s->p->sizes[now->item] / s->unit);
    for (uint32_t row = 1; row <= now->width; row++) {
        e->sizes[row] = (uint32_t)(s->p->sizes[now->frontier[row - 1]] / s->unit);
        if (s->order->last[now->frontier[row - 1]] > at)
            e->kept[e->kept_count++] = row;
    }
    if (s->order->last[now->item] > at)
        e->kept[e->kept_count++] = e->side;
    collect_neighbours(s, now, e);
}

/* Symmetry breaking: a placement turned upside down is one, too, so the first conflict is oriented arbitrarily. Identical items are
 * ordered by number already, which a flip would contradict. */
static void orient_first(sweep *s)
{
    for (uint32_t at = 0; at < s->p->count; at++) {
        if (s->steps[at].forced_below != 0)
            return;
    }
    for (uint32_t at = 0; at < s->p->count; at++) {
        insertion e;
        prepare_insertion(s, at, &e);
        if (e.neighbour_count > 0) {
            s->steps[at].forced_below = UINT32_C(1) << (e.neighbours[0] - 1);
            return;
        }
    }
}

static bp_status extend_state(sweep *s, const bp_layer *layer, uint32_t state, insertion *e)
{
    e->before = matrix_of(layer, state);
    e->state = state;
    for (uint32_t x = 1; x < e->side; x++) {
        e->over[x] = 0;
        for (uint32_t y = 1; y < e->side; y++)
            e->over[x] |= (uint32_t)(e->before[x * e->side + y] != 0) << (y - 1);
    }
    /* sorted by distance from the bottom in this state, a topological order */
    for (uint32_t k = 1; k < e->neighbour_count; k++) {
        uint32_t row = e->neighbours[k], place = k;
        for (; place > 0 && e->before[e->neighbours[place - 1]] > e->before[row]; place--)
            e->neighbours[place] = e->neighbours[place - 1];
        e->neighbours[place] = row;
    }
    return insert_everywhere(s, e, (decisions){0});
}

#define MAX_CELLS ((size_t)1 << 26)  /* of all matrices: 256 MiB */
#define PART_CELLS ((size_t)1 << 25) /* from which on parts are as small as possible */

/* Limits of the states of a layer: a part of the memory that is left, and in dives so much work that one way down takes half of what
 * they have left. It does not depend on the limit of the work, which only ends the sweep. */
typedef struct allowance {
    uint64_t cells, work;
} allowance;

static allowance find_allowance(const sweep *s, uint32_t at)
{
    uint64_t left = s->dive_end > s->work->spent ? s->dive_end - s->work->spent : 0;
    uint64_t each = at < s->p->count ? left / 2 / (s->p->count - at) : 0;
    return (allowance){.cells = s->cells < PART_CELLS ? (PART_CELLS - s->cells) / 4 : 0,
                       .work = s->dives ? each : UINT64_MAX};
}

static bool is_within(const bp_layer *made, const allowance *max)
{
    uint64_t cells = made->count * matrix_cells(made);
    return cells < max->cells && 8 * cells * made->side < max->work;
}

/* Long sweeps keep the rest of many layers: closes the oldest ones. */
static void limit_memory(sweep *s, uint32_t at)
{
    for (; s->cells > MAX_CELLS && s->oldest < at; s->oldest++) {
        bp_layer *layer = &s->layers[s->oldest];
        s->truncated = s->truncated || layer->expanded < layer->count;
        layer_close(s, layer);
    }
}

/* Makes the next layer from some states of the layer `at`, at least one. */
static bp_status expand(sweep *s, uint32_t at)
{
    bp_layer *layer = &s->layers[at], *made = &s->layers[at + 1];
    insertion e;
    prepare_insertion(s, at, &e);
    made->side = e.kept_count + 1;
    BP_TRY(hash_states(s, made, MIN_TABLE));
    allowance max = find_allowance(s, at);
    do
        BP_TRY(extend_state(s, layer, layer->order[layer->expanded++].number, &e));
    while (layer->expanded < layer->count && is_within(made, &max) && !bp_work_is_over(s->work));
    if (layer->expanded == layer->count)
        layer_close(s, layer);
    return layer_sort(made);
}

/* *found: there is a state after the last item. Otherwise all placements are excluded, unless the work is over. */
static bp_status run(sweep *s, bool *found)
{
    uint32_t at = 0;
    BP_TRY(hash_states(s, &s->layers[0], MIN_TABLE));
    s->layers[0].side = 1;
    uint32_t *first;
    BP_TRY(layer_room(s, &s->layers[0], &first));
    *first = 0;
    layer_add(s, &s->layers[0], 0, (bp_origin){0, 0});
    BP_TRY(layer_sort(&s->layers[0]));
    *found = false;
    while (!bp_work_is_over(s->work)) {
        bp_layer *layer = &s->layers[at];
        *found = at == s->p->count && layer->count > 0;
        if (*found || (at == 0 && layer->expanded == layer->count))
            return BP_OK;
        if (layer->expanded == layer->count) {
            layer_finish(s, layer);
            at--;
            s->oldest = s->oldest < at ? s->oldest : at;
        } else {
            BP_TRY(expand(s, at++));
            limit_memory(s, at);
        }
    }
    return BP_OK;
}

bp_status bp_sweep(const bp_problem *problem, const bp_order *order, uint64_t capacity, uint64_t dive, bp_work *work,
                   uint64_t *offsets, bp_verdict *verdict)
{
    *verdict = (bp_verdict){.impossible = problem->bound > capacity, .proven = problem->bound};
    sweep s = {.p = problem, .order = order, .min_rejected = UINT32_MAX, .work = work};
    s.dives = dive > 0;
    s.dive_end = work->spent + dive;
    for (uint32_t i = 0; i < problem->count; i++)
        s.unit = bp_gcd_u64(problem->sizes[i], s.unit);
    if (verdict->impossible || problem->count == 0)
        return BP_OK;
    verdict->proven = 0;
    if (order->width > BP_SWEEP_WIDTH || capacity / s.unit > UINT32_MAX / 2)
        return BP_OK;
    s.capacity = (uint32_t)(capacity / s.unit);
    BP_TRY(bp_new_array(problem->count, sizeof *s.steps, (void **)&s.steps));
    bp_status status = bp_new_array(problem->count + (size_t)1, sizeof *s.layers, (void **)&s.layers);
    if (status == BP_OK) {
        prepare_steps(&s);
        orient_first(&s);
        status = run(&s, &verdict->found);
    }
    if (status == BP_OK && verdict->found)
        status = sweep_lay_out(&s, offsets);
    verdict->impossible = status == BP_OK && !verdict->found && !s.truncated && !bp_work_is_over(work);
    verdict->proven = verdict->impossible ? s.min_rejected * s.unit : 0;
    for (uint32_t k = 0; s.layers != NULL && k <= problem->count; k++)
        layer_finish(&s, &s.layers[k]);
    free(s.table);
    free(s.layers);
    free(s.steps);
    return status;
}
