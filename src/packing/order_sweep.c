/* Order sweep: dynamic programming over the frontier, exact for conflict graphs of small width and any length. Items are inserted one by
 * one. A state keeps only the distances between frontier items (those with neighbours to come), and from them to the bottom and the top. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"
#include "packing/solve.h"

/* Predecessor of a state: its index in the previous step, and a bit mask of the items that the new one was put above. */
typedef struct bp_origin {
    uint32_t parent, below;
} bp_origin;

typedef struct bp_state {
    bp_origin origin;
    uint32_t next_of_hash;
    uint64_t rank; /* smaller is better; decides which states are kept */
} bp_state;

/* The states after a step. The matrix of a state of w items has w + 1 rows and columns: [0][1 + i] is the least distance from the bottom
 * to the begin of item i, [1 + i][0] the least from its begin to the top, [1 + i][1 + j] the least from the begin of item i to that of
 * item j; 0: no constraint. */
typedef struct bp_layer {
    uint64_t *cells; /* the matrices, consecutive */
    bp_state *states;
    size_t count;
    uint32_t side; /* rows of a matrix */
    size_t cell_capacity, state_capacity;
    uint32_t *table; /* by hash: a state, linked through next_of_hash */
    size_t table_size;
} bp_layer;

/* ---- layers ------------------------------------------------------------------------------------------------------ */

#define NONE UINT32_MAX
/* Comparisons for one new state: dominance checks must not cost more than they save. */
#define MOST_COMPARED 64

/* Empties the layer for matrices of `side` rows. */
static void layer_clear(bp_layer *layer, uint32_t side)
{
    layer->side = side;
    layer->count = 0;
    if (layer->table_size > 0)
        memset(layer->table, 0xff, layer->table_size * sizeof *layer->table);
}

static size_t matrix_cells(const bp_layer *layer)
{
    return (size_t)layer->side * layer->side;
}

static uint64_t *matrix_of(const bp_layer *layer, size_t state)
{
    return layer->cells + matrix_cells(layer) * state;
}

/* Hash of the relative order of the items: only states of equal order are compared for dominance. */
static uint64_t hash_order(const uint64_t *matrix, uint32_t side)
{
    uint64_t hash = side;
    for (uint32_t i = 1; i < side; i++) {
        uint64_t row = 0;
        for (uint32_t j = 1; j < side; j++)
            row = row << 1 | (matrix[i * side + j] != 0);
        hash = (hash ^ row) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static void link_state(bp_layer *layer, uint32_t state)
{
    size_t at = hash_order(matrix_of(layer, state), layer->side) & (layer->table_size - 1);
    layer->states[state].next_of_hash = layer->table[at];
    layer->table[at] = state;
}

/* Makes room for the matrix of one more state; layer_add then keeps or discards it. */
static bp_status layer_room(bp_layer *layer, uint64_t **matrix)
{
    size_t last_cell = matrix_cells(layer) * (layer->count + 1) - 1;
    BP_TRY(bp_grow_array((void **)&layer->states, &layer->state_capacity, layer->count, sizeof *layer->states));
    BP_TRY(bp_grow_array((void **)&layer->cells, &layer->cell_capacity, last_cell, sizeof *layer->cells));
    if (2 * (layer->count + 1) > layer->table_size) {
        size_t size = layer->table_size == 0 ? 64 : 4 * layer->table_size;
        uint32_t *table;
        BP_TRY(bp_new_array(size, sizeof *table, (void **)&table));
        free(layer->table);
        layer->table = table;
        layer->table_size = size;
        memset(table, 0xff, size * sizeof *table);
        for (uint32_t i = 0; i < layer->count; i++)
            link_state(layer, i);
    }
    *matrix = matrix_of(layer, layer->count);
    return BP_OK;
}

/* True if every distance of `a` is at most that of `b`: `a` dominates, any completion of `b` is one of `a`. */
static bool is_nowhere_tighter(const uint64_t *a, const uint64_t *b, size_t cells)
{
    for (size_t i = 0; i < cells; i++) {
        if (a[i] > b[i])
            return false;
    }
    return true;
}

/* Adds the pending state unless a state of the same order dominates it; it replaces a state that it dominates. */
static void layer_add(bp_layer *layer, uint64_t rank, bp_origin origin, bp_work *work)
{
    size_t cells = matrix_cells(layer);
    uint64_t *mine = matrix_of(layer, layer->count);
    size_t at = hash_order(mine, layer->side) & (layer->table_size - 1);
    uint32_t compared = 0;
    work->spent += cells;
    for (uint32_t i = layer->table[at]; i != NONE && compared < MOST_COMPARED;
         i = layer->states[i].next_of_hash, compared++) {
        uint64_t *other = matrix_of(layer, i);
        work->spent += cells / 4 + 1;
        if (is_nowhere_tighter(other, mine, cells))
            return;
        if (is_nowhere_tighter(mine, other, cells)) {
            /* in the old state's hash chain: equal hashes, perhaps another order */
            memcpy(other, mine, cells * sizeof *mine);
            layer->states[i].origin = origin;
            layer->states[i].rank = rank;
            return;
        }
    }
    layer->states[layer->count].origin = origin;
    layer->states[layer->count].rank = rank;
    link_state(layer, (uint32_t)layer->count++);
}

/* Keeps the `most` states of best rank; of equal ranks the earliest. */
static bp_status layer_truncate(bp_layer *layer, size_t most)
{
    if (layer->count <= most)
        return BP_OK;
    bp_keyed *list;
    BP_TRY(bp_new_array(layer->count, sizeof *list, (void **)&list));
    for (uint32_t i = 0; i < layer->count; i++)
        list[i] = (bp_keyed){layer->states[i].rank, i};
    qsort(list, layer->count, sizeof *list, bp_compare_keyed);
    for (size_t i = 0; i < most; i++)
        list[i].key = 0;
    qsort(list, most, sizeof *list, bp_compare_keyed); /* moving down in place needs increasing order */
    for (uint32_t i = 0; i < most; i++) {
        memmove(matrix_of(layer, i), matrix_of(layer, list[i].number), matrix_cells(layer) * sizeof *layer->cells);
        layer->states[i] = layer->states[list[i].number];
    }
    layer->count = most;
    memset(layer->table, 0xff, layer->table_size * sizeof *layer->table);
    for (uint32_t i = 0; i < most; i++)
        link_state(layer, i);
    free(list);
    return BP_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A state is a matrix of the least distances that are enforced. A new item is put below or above each of its neighbours in the frontier,
 * in every consistent way; dominated states are dropped. If no state was dropped for lack of room, a sweep that ends without states
 * proves that no placement exists, and the least rejected height is a lower bound.
 *
 *
 * The sweep decides orders, not offsets, so its cost does not depend on sizes: a placement is an acyclic orientation of the conflict
 * graph, its height the longest path. With prefetch depth d the frontier is the requests of d units, for any number of units. */

#define CROWD 4 /* multiple of the kept states that is collected before truncation */

typedef struct step {
    uint32_t frontier[BP_SWEEP_WIDTH]; /* before the insertion: item i is row 1 + i of the states */
    uint32_t width;
    uint32_t item;
    uint32_t identical; /* an earlier item of equal size and neighbours, put below (symmetry breaking); NONE */
    bp_origin *origins; /* of the states after the step */
} step;

typedef struct sweep {
    const bp_problem *p;
    const bp_order *order;
    uint64_t capacity, least_rejected;
    size_t most_states;
    step *steps;
    bp_layer now, next;
    bp_work *work;
    bool truncated, oriented;
} sweep;

static void prepare_steps(sweep *s)
{
    uint32_t frontier[BP_SWEEP_WIDTH + 1], width = 0;
    for (uint32_t at = 0; at < s->p->count; at++) {
        step *now = &s->steps[at];
        now->item = s->order->items[at];
        now->width = width;
        memcpy(now->frontier, frontier, width * sizeof *frontier);
        now->identical = NONE;
        for (uint32_t i = width; i-- > 0 && now->identical == NONE;) {
            uint32_t other = frontier[i];
            if (s->p->sizes[other] == s->p->sizes[now->item] && bp_lists_equal(&s->p->memberships, other, now->item))
                now->identical = other;
        }
        s->oriented = s->oriented || now->identical != NONE;
        uint32_t kept = 0;
        frontier[width] = now->item;
        for (uint32_t i = 0; i <= width; i++) {
            if (s->order->last[frontier[i]] > at)
                frontier[kept++] = frontier[i];
        }
        width = kept;
    }
}

/* ---- insertion of an item ------------------------------------------------------------------------------------------- */

typedef struct insertion {
    const uint64_t *before; /* the state that is extended */
    uint32_t side, state;
    uint32_t neighbours[BP_SWEEP_WIDTH]; /* rows of the item's neighbours, lowest first */
    uint32_t neighbour_count;
    uint32_t forced_below; /* bit mask of neighbours that must lie below */
    uint64_t size;
    uint64_t sizes[BP_SWEEP_WIDTH + 1]; /* by row */
    uint32_t kept[BP_SWEEP_WIDTH + 1];  /* rows that stay in the frontier; `side` is the new item */
    uint32_t kept_count;
    uint64_t to[BP_SWEEP_WIDTH + 1], from[BP_SWEEP_WIDTH + 1]; /* least distances to and from the new item, by row */
} insertion;

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Distances through the neighbours below and above. False: a cycle, an item would lie below and above the new one. */
static bool find_distances(insertion *e, uint32_t below)
{
    const uint64_t *d = e->before;
    uint32_t side = e->side;
    memset(e->to, 0, sizeof e->to);
    memset(e->from, 0, sizeof e->from);
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
    for (uint32_t x = 1; x < side; x++) {
        if (e->to[x] != 0 && e->from[x] != 0)
            return false;
    }
    return true;
}

/* The least distance from row x to row y with the new item in place. */
static uint64_t distance(const insertion *e, uint32_t x, uint32_t y)
{
    if (x == e->side)
        return e->from[y];
    if (y == e->side)
        return e->to[x];
    uint64_t old = e->before[x * e->side + y];
    bool through = (x == 0 || e->to[x] != 0) && (y == 0 || e->from[y] != 0) && x != y;
    return through ? larger(old, e->to[x] + e->from[y]) : old;
}

/* Adds the state with the new item above the rows of `below`, and below its other neighbours. */
static bp_status insert_above(sweep *s, insertion *e, uint32_t below)
{
    s->work->spent += (uint64_t)e->side * (e->neighbour_count + 1);
    if (!find_distances(e, below))
        return BP_OK;
    uint64_t height = e->to[0] + e->from[0];
    if (height > s->capacity) {
        s->least_rejected = height < s->least_rejected ? height : s->least_rejected;
        return BP_OK;
    }
    uint64_t *made, rank = 0;
    BP_TRY(layer_room(&s->next, &made));
    uint32_t side = e->kept_count + 1;
    for (uint32_t i = 0; i < side; i++) {
        uint32_t x = i == 0 ? 0 : e->kept[i - 1];
        for (uint32_t j = 0; j < side; j++) {
            uint32_t y = j == 0 ? 0 : e->kept[j - 1];
            made[i * side + j] = i == j ? 0 : distance(e, x, y);
        }
    }
    for (uint32_t i = 1; i < side; i++)
        rank += made[i] + made[i * side];
    layer_add(&s->next, rank, (bp_origin){e->state, below}, s->work);
    if (s->next.count < CROWD * s->most_states)
        return BP_OK;
    s->truncated = true;
    return layer_truncate(&s->next, s->most_states);
}

/* Enumerates the ways to put the new item below or above its neighbours; those from `decided` on are open. */
static bp_status insert_everywhere(sweep *s, insertion *e, uint32_t decided, uint32_t below)
{
    if (decided == e->neighbour_count)
        return insert_above(s, e, below);
    uint32_t a = e->neighbours[decided], bit = UINT32_C(1) << (a - 1);
    bool must_be_above = false; /* a neighbour that was put above lies below row `a` */
    for (uint32_t k = 0; k < decided && !must_be_above; k++) {
        uint32_t b = e->neighbours[k];
        must_be_above = !(below >> (b - 1) & 1) && e->before[b * e->side + a] != 0;
    }
    if (!must_be_above)
        BP_TRY(insert_everywhere(s, e, decided + 1, below | bit));
    if (!(e->forced_below & bit))
        BP_TRY(insert_everywhere(s, e, decided + 1, below));
    return BP_OK;
}

/* ---- the sweep ------------------------------------------------------------------------------------------------------ */

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

static bp_status take_step(sweep *s, uint32_t at)
{
    step *now = &s->steps[at];
    insertion e = {.side = now->width + 1, .size = s->p->sizes[now->item]};
    for (uint32_t row = 1; row <= now->width; row++) {
        e.sizes[row] = s->p->sizes[now->frontier[row - 1]];
        if (s->order->last[now->frontier[row - 1]] > at)
            e.kept[e.kept_count++] = row;
        if (now->frontier[row - 1] == now->identical)
            e.forced_below |= UINT32_C(1) << (row - 1);
    }
    if (s->order->last[now->item] > at)
        e.kept[e.kept_count++] = e.side;
    collect_neighbours(s, now, &e);
    /* Symmetry breaking: a placement turned upside down is one, too, so the first conflict is oriented arbitrarily. Identical items are
     * ordered by number already, which a flip would contradict. */
    if (!s->oriented && e.neighbour_count > 0) {
        e.forced_below |= UINT32_C(1) << (e.neighbours[0] - 1);
        s->oriented = true;
    }
    layer_clear(&s->next, e.kept_count + 1);
    for (uint32_t i = 0; i < s->now.count && !bp_work_is_over(s->work); i++) {
        e.before = s->now.cells + (size_t)e.side * e.side * i;
        e.state = i;
        /* sorted by distance from the bottom in this state, a topological order */
        for (uint32_t k = 1; k < e.neighbour_count; k++) {
            uint32_t row = e.neighbours[k], place = k;
            for (; place > 0 && e.before[e.neighbours[place - 1]] > e.before[row]; place--)
                e.neighbours[place] = e.neighbours[place - 1];
            e.neighbours[place] = row;
        }
        BP_TRY(insert_everywhere(s, &e, 0, 0));
    }
    s->truncated = s->truncated || s->next.count > s->most_states;
    BP_TRY(layer_truncate(&s->next, s->most_states));
    BP_TRY(bp_new_array(s->next.count, sizeof *now->origins, (void **)&now->origins));
    for (size_t i = 0; i < s->next.count; i++)
        now->origins[i] = s->next.states[i].origin;
    bp_layer before = s->now;
    s->now = s->next;
    s->next = before;
    return BP_OK;
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
        bp_origin origin = now->origins[state];
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
            offsets[high] = larger(offsets[high], offsets[low] + p->sizes[low]);
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

/* Limits of a sweep's memory. */
#define MOST_CELLS ((size_t)1 << 21)   /* of the states of one step */
#define MOST_ORIGINS ((size_t)1 << 24) /* of the states of all steps */

bp_status bp_sweep(const bp_problem *problem, const bp_order *order, uint64_t capacity, bp_work *work,
                   uint64_t *offsets, bp_verdict *verdict)
{
    *verdict = (bp_verdict){0};
    if (order->width > BP_SWEEP_WIDTH)
        return BP_OK;
    sweep s = {.p = problem, .order = order, .capacity = capacity, .least_rejected = UINT64_MAX, .work = work};
    size_t side = order->width + (size_t)2, by_cells = MOST_CELLS / (side * side);
    size_t by_steps = MOST_ORIGINS / (problem->count + 1), most = by_cells < by_steps ? by_cells : by_steps;
    s.most_states = most > 16 ? most : 16;
    BP_TRY(bp_new_array(problem->count, sizeof *s.steps, (void **)&s.steps));
    prepare_steps(&s);
    uint64_t *first;
    layer_clear(&s.now, 1);
    bp_status status = layer_room(&s.now, &first);
    if (status == BP_OK) {
        *first = 0;
        layer_add(&s.now, 0, (bp_origin){0, 0}, work);
    }
    for (uint32_t at = 0; status == BP_OK && at < problem->count && s.now.count > 0 && !bp_work_is_over(work); at++)
        status = take_step(&s, at);
    if (status == BP_OK && !bp_work_is_over(work)) {
        verdict->found = s.now.count > 0;
        verdict->impossible = !verdict->found && !s.truncated;
        verdict->proven = verdict->impossible ? s.least_rejected : 0;
        if (verdict->found)
            status = sweep_lay_out(&s, offsets);
    }
    for (uint32_t at = 0; at < problem->count; at++)
        free(s.steps[at].origins);
    free(s.steps);
    for (int i = 0; i < 2; i++) {
        const bp_layer *layer = i == 0 ? &s.now : &s.next;
        free(layer->cells);
        free(layer->states);
        free(layer->table);
    }
    return status;
}
