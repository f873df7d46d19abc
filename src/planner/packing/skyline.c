/* SPDX-License-Identifier: Apache-2.0 */
/* Best fit on a skyline, repeated with varied priorities.
 *
 * The skyline is the height already used at each step, in segments of equal height. The lowest segment gets the item of the highest priority
 * whose live range fits into it, or, if none fits, rises to its lower neighbour (Burke, Kendall and Whitwell 2004 for strip packing;
 * Sekiyama et al. 2018 for memory). A pass takes O(n log n), apart from boxes of candidates that cross the ends of a segment; memory is
 * linear. Which priority is best depends on the instance: passes try products of powers of life and size, then vary the best one at
 * random. */
#include "planner/packing/solve.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define BITMAP_LEVELS 6 /* 64^6 steps */

/* Priority of an item: life^life x size^size, raised where it is live at high load, with noise; exponents and weights in 64ths. */
typedef struct priority {
    int32_t life, size, load, noise;
} priority;

/* The live ranges of a subtree whose items are not placed: the smallest rank, UINT32_MAX for none, and the box of their steps. */
typedef struct contest {
    uint32_t best;
    uint32_t min_begin, max_begin, min_end, max_end;
} contest;

struct bp_skyline {
    const bp_timeline *t;
    const bp_item_index *x;
    uint32_t *leaf_of;                    /* by live range: its leaf of the tree */
    uint32_t *log_life, *log_size, *load; /* by item, 16 bits of fraction */

    /* a pass */
    bp_keyed *order;   /* by rank: items of falling priority */
    uint32_t *rank;    /* by item */
    contest *contests; /* tree over the live ranges, near ones beside each other; node k has children 2k and 2k + 1 */
    uint32_t leaves;   /* of the tree, a power of two */
    uint64_t *heights; /* by first step of a segment */
    uint64_t *starts[BITMAP_LEVELS]; /* first steps of segments: a hierarchical bitmap */
    uint32_t *lowest; /* tournament tree over steps: the first step of the lowest segment below a node; NO_SEGMENT */
    uint32_t step_leaves;
    uint64_t *offsets;   /* by item; NOT_PLACED */
    bp_keyed *opponents; /* placed items in added conflict with one, by offset */

    uint32_t passes;
    priority best;
    uint64_t random;
};

#define NO_SEGMENT UINT32_MAX
#define NOT_PLACED UINT64_MAX

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static void set_start(bp_skyline *s, uint32_t step)
{
    for (int l = 0; l < BITMAP_LEVELS; l++, step /= 64)
        s->starts[l][step / 64] |= UINT64_C(1) << step % 64;
}

static void clear_start(bp_skyline *s, uint32_t step)
{
    for (int l = 0; l < BITMAP_LEVELS; l++, step /= 64) {
        s->starts[l][step / 64] &= ~(UINT64_C(1) << step % 64);
        if (s->starts[l][step / 64] != 0)
            return;
    }
}

/* The nearest start after `step` or before it, or NO_SEGMENT. */
static uint32_t find_start(const bp_skyline *s, uint32_t step, bool after)
{
    for (int l = 0; l < BITMAP_LEVELS; l++, step /= 64) {
        const uint64_t lower = (UINT64_C(1) << step % 64) - 1;
        uint64_t word = s->starts[l][step / 64] & (after ? ~lower << 1 : lower);
        if (word == 0)
            continue;
        for (uint32_t found = step / 64;; word = s->starts[--l][found]) {
            found = found * 64 + (uint32_t)(after ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
            if (l == 0)
                return found;
        }
    }
    return NO_SEGMENT;
}

static uint32_t end_of_segment(const bp_skyline *s, uint32_t start)
{
    uint32_t next = find_start(s, start, true);
    return next != NO_SEGMENT ? next : s->t->steps;
}

/* Recomputes the lowest segments above the leaf of a step. */
static void update_lowest(bp_skyline *s, uint32_t step, bool is_start)
{
    uint32_t node = s->step_leaves + step;
    s->lowest[node] = is_start ? step : NO_SEGMENT;
    for (node /= 2; node > 0; node /= 2) {
        uint32_t left = s->lowest[2 * node], right = s->lowest[2 * node + 1];
        uint32_t lower =
            right == NO_SEGMENT || (left != NO_SEGMENT && s->heights[left] <= s->heights[right]) ? left : right;
        s->lowest[node] = lower;
    }
}

static void begin_segment(bp_skyline *s, uint32_t step, uint64_t height)
{
    s->heights[step] = height;
    set_start(s, step);
    update_lowest(s, step, true);
}

static void drop_segment(bp_skyline *s, uint32_t step)
{
    clear_start(s, step);
    update_lowest(s, step, false);
}

/* Makes `step` the start of a segment, unless it is the end of all. */
static void cut(bp_skyline *s, uint32_t step)
{
    if (step == s->t->steps || (s->starts[0][step / 64] >> step % 64 & 1) != 0)
        return;
    begin_segment(s, step, s->heights[find_start(s, step, false)]);
}

/* Raises the steps [begin, end) to one height, and joins the segment with neighbours of that height. */
static void raise_steps(bp_skyline *s, uint32_t begin, uint32_t end, uint64_t height)
{
    cut(s, begin);
    cut(s, end);
    for (uint32_t step = find_start(s, begin, true); step < end; step = find_start(s, begin, true))
        drop_segment(s, step);
    if (end < s->t->steps && s->heights[end] == height)
        drop_segment(s, end);
    uint32_t before = begin > 0 ? find_start(s, begin, false) : NO_SEGMENT;
    if (before != NO_SEGMENT && s->heights[before] == height)
        drop_segment(s, begin);
    else
        begin_segment(s, begin, height);
}

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static void join_contests(contest *contests, uint32_t node)
{
    const contest *left = &contests[2 * node], *right = &contests[2 * node + 1];
    contests[node] = (contest){left->best < right->best ? left->best : right->best,
                               left->min_begin < right->min_begin ? left->min_begin : right->min_begin,
                               left->max_begin > right->max_begin ? left->max_begin : right->max_begin,
                               left->min_end < right->min_end ? left->min_end : right->min_end,
                               left->max_end > right->max_end ? left->max_end : right->max_end};
}

static const contest no_contest = {UINT32_MAX, UINT32_MAX, 0, UINT32_MAX, 0};

/* Lowers *best to the smallest rank below `node` whose live range is within the steps. Returns the number of nodes visited. */
static uint64_t explore(const contest *contests, uint32_t node, uint32_t begin, uint32_t end, uint32_t *best)
{
    const contest *c = &contests[node];
    if (c->best >= *best || c->min_end > end || c->max_begin < begin)
        return 1;
    if (c->min_begin >= begin && c->max_end <= end) {
        *best = c->best;
        return 1;
    }
    uint32_t first = 2 * node + (contests[2 * node + 1].best < contests[2 * node].best);
    return 1 + explore(contests, first, begin, end, best) + explore(contests, first ^ 1, begin, end, best);
}

/* The rank of the best item with a live range within the steps, or UINT32_MAX. */
static uint32_t find_candidate(const bp_skyline *s, uint32_t begin, uint32_t end, bp_work *work)
{
    uint32_t best = UINT32_MAX;
    work->spent += 8 * explore(s->contests, 1, begin, end, &best);
    return best;
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

/* The lowest offset above the skyline, and beside the items in added conflict, that are placed. */
static uint64_t lowest_offset(bp_skyline *s, uint32_t item, bp_work *work)
{
    uint64_t offset = 0, size = s->t->sizes[item];
    for (uint32_t k = s->x->first_life[item]; k < s->x->first_life[item + 1]; k++) {
        const bp_life *life = &s->t->lives[s->x->lives[k]];
        uint32_t step = find_start(s, life->begin + 1, false);
        for (; step < life->end; step = find_start(s, step, true))
            offset = s->heights[step] > offset ? s->heights[step] : offset;
    }
    uint32_t first = s->x->first_pair[item], end = s->x->first_pair[item + 1], count = 0;
    for (uint32_t k = first; k < end; k++) {
        uint32_t other = s->x->pairs[k];
        if (s->offsets[other] != NOT_PLACED && s->offsets[other] + s->t->sizes[other] > offset)
            s->opponents[count++] = (bp_keyed){s->offsets[other], other};
    }
    if (count > 1)
        qsort(s->opponents, count, sizeof *s->opponents, bp_compare_keyed);
    for (uint32_t i = 0; i < count && s->opponents[i].key < offset + size; i++) {
        uint64_t top = s->opponents[i].key + s->t->sizes[s->opponents[i].number];
        offset = top > offset ? top : offset;
    }
    work->spent += 4 * (uint64_t)(end - first) + 16 * (uint64_t)count;
    return offset;
}

/* Places an item and takes its live ranges out of the tournament. Returns its end. */
static uint64_t place_on_skyline(bp_skyline *s, uint32_t item, uint64_t offset, bp_work *work)
{
    uint64_t end = offset + s->t->sizes[item];
    s->offsets[item] = offset;
    for (uint32_t k = s->x->first_life[item]; k < s->x->first_life[item + 1]; k++) {
        const bp_life *life = &s->t->lives[s->x->lives[k]];
        raise_steps(s, life->begin, life->end, end);
        uint32_t node = s->leaf_of[s->x->lives[k]];
        s->contests[node] = no_contest;
        for (node /= 2; node > 0; node /= 2)
            join_contests(s->contests, node);
        work->spent += 256;
    }
    return end;
}

/* The lowest segment rises to its lower neighbour. */
static void lift(bp_skyline *s, uint32_t start, uint32_t end)
{
    uint32_t before = start > 0 ? find_start(s, start, false) : NO_SEGMENT;
    uint64_t height = end < s->t->steps ? s->heights[end] : UINT64_MAX;
    if (before != NO_SEGMENT && s->heights[before] < height)
        height = s->heights[before];
    raise_steps(s, start, end, height);
}

static void begin_pass(bp_skyline *s)
{
    const bp_timeline *t = s->t;
    for (uint32_t i = 0; i < t->life_count; i++) {
        uint32_t begin = t->lives[i].begin, end = t->lives[i].end;
        s->contests[s->leaf_of[i]] = (contest){s->rank[t->lives[i].item], begin, begin, end, end};
    }
    for (uint32_t node = s->leaves - 1; node > 0; node--)
        join_contests(s->contests, node);
    for (uint32_t i = 0; i < t->count; i++)
        s->offsets[i] = NOT_PLACED;
    for (uint32_t i = 0; i < 2 * s->step_leaves; i++)
        s->lowest[i] = NO_SEGMENT;
    for (uint32_t step = 0; step != NO_SEGMENT; step = find_start(s, step, true))
        clear_start(s, step);
    begin_segment(s, 0, 0);
}

/* Places all items in the order of their ranks. False: one ends at or above `limit`, or the work is over; never with UINT64_MAX. */
static bool run_pass(bp_skyline *s, uint64_t limit, bp_work *work)
{
    const bp_timeline *t = s->t;
    uint32_t placed = 0;
    uint64_t highest = 0;
    begin_pass(s);
    work->spent += 16 * (uint64_t)t->life_count;
    for (uint32_t r = 0; r < t->count; r++) { /* those without a live range have only added conflicts */
        uint32_t item = s->order[r].number;
        if (s->x->first_life[item] == s->x->first_life[item + 1]) {
            uint64_t end = place_on_skyline(s, item, lowest_offset(s, item, work), work);
            highest = end > highest ? end : highest;
            placed++;
        }
    }
    while (placed < t->count && highest < limit) { /* only the last item can end at UINT64_MAX */
        uint32_t start = s->lowest[1], end = end_of_segment(s, start);
        uint32_t rank = find_candidate(s, start, end, work);
        if (rank != UINT32_MAX) {
            uint32_t item = s->order[rank].number;
            uint64_t top = place_on_skyline(s, item, lowest_offset(s, item, work), work);
            highest = top > highest ? top : highest;
            placed++;
        } else {
            lift(s, start, end);
            work->spent += 128;
        }
        if (limit != UINT64_MAX && bp_work_is_over(work))
            return false;
    }
    return highest < limit || limit == UINT64_MAX;
}

/* ---- priorities -------------------------------------------------------------------------------------------------- */

/* Binary logarithm with 16 bits of fraction, the same on all machines. */
static uint32_t log2_fixed(uint64_t value)
{
    uint32_t whole = 63 - (uint32_t)__builtin_clzll(value), result = whole << 16;
    uint64_t x = whole > 31 ? value >> (whole - 31) : value << (31 - whole); /* in [2^31, 2^32) */
    for (uint32_t bit = UINT32_C(1) << 15; bit > 0; bit /= 2) {
        x = x * x >> 31;
        if (x >> 32 != 0) {
            x /= 2;
            result |= bit;
        }
    }
    return result;
}

static uint64_t next_random(bp_skyline *s) /* splitmix64 */
{
    uint64_t z = s->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* A number in [least, most]. */
static int32_t random_between(bp_skyline *s, int32_t min, int32_t max)
{
    return min + (int32_t)(next_random(s) % (uint64_t)(max - min + 1));
}

/* The first passes: life, size, area and powers between; then the same with the load. */
static const priority first_priorities[] = {
    {64, 0, 0, 0},  {0, 64, 0, 0},  {64, 64, 0, 0}, {64, 32, 0, 0}, {32, 64, 0, 0},
    {64, 16, 0, 0}, {16, 64, 0, 0}, {64, -8, 0, 0}, {-8, 64, 0, 0},
};
#define FIRST_PRIORITIES (sizeof first_priorities / sizeof *first_priorities)
#define FULL_LOAD 3200

static priority choose_priority(bp_skyline *s)
{
    priority p;
    uint32_t pass = s->passes++;
    if (pass < 2 * FIRST_PRIORITIES) {
        p = first_priorities[pass % FIRST_PRIORITIES];
        p.load = pass < FIRST_PRIORITIES ? 0 : FULL_LOAD;
        return p;
    }
    p = pass % 2 == 0 ? s->best : (priority){random_between(s, 0, 76), random_between(s, 0, 76), 0, 0};
    if (pass % 2 == 0) {
        p.life += random_between(s, -10, 10);
        p.size += random_between(s, -10, 10);
    }
    p.noise = random_between(s, 0, 2) == 0 ? 0 : 64 >> random_between(s, 0, 9);
    p.load = random_between(s, 0, 1) == 0 ? 0 : random_between(s, 0, FULL_LOAD);
    return p;
}

/* Ranks the items by a priority; equal ones by number. */
static void rank_by_priority(bp_skyline *s, const priority *p, bp_work *work)
{
    uint32_t count = s->t->count;
    for (uint32_t i = 0; i < count; i++) {
        int64_t key =
            (int64_t)p->life * s->log_life[i] + (int64_t)p->size * s->log_size[i] + (int64_t)p->load * s->load[i];
        if (p->noise != 0)
            key += (int64_t)(next_random(s) >> 48) * p->noise;
        s->order[i] = (bp_keyed){(uint64_t)(INT64_MAX / 2 - key), i};
    }
    qsort(s->order, count, sizeof *s->order, bp_compare_keyed);
    for (uint32_t r = 0; r < count; r++)
        s->rank[s->order[r].number] = r;
    work->spent += 128 * (uint64_t)count;
}

bool bp_skyline_pass(bp_skyline *s, uint64_t limit, bp_work *work, uint64_t *offsets)
{
    priority p = choose_priority(s);
    rank_by_priority(s, &p, work);
    if (!run_pass(s, limit, work))
        return false;
    s->best = p;
    memcpy(offsets, s->offsets, s->t->count * sizeof *offsets);
    return true;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* The largest live bytes during each item's life, as a fraction of the bound. `tree`: scratch for 2 x steps. */
static void measure_load(bp_skyline *s, uint64_t *tree)
{
    const bp_timeline *t = s->t;
    for (uint32_t i = 0; i < t->life_count; i++) { /* changes, then their sums */
        tree[t->steps + t->lives[i].begin] += t->sizes[t->lives[i].item];
        if (t->lives[i].end < t->steps)
            tree[t->steps + t->lives[i].end] -= t->sizes[t->lives[i].item];
    }
    for (uint32_t step = 1; step < t->steps; step++)
        tree[t->steps + step] += tree[t->steps + step - 1];
    for (uint32_t node = t->steps > 0 ? t->steps - 1 : 0; node > 0; node--)
        tree[node] = tree[2 * node] > tree[2 * node + 1] ? tree[2 * node] : tree[2 * node + 1];
    unsigned shift = t->bound >> 40 != 0 ? 24 : 0; /* keeps the product within 64 bits */
    for (uint32_t i = 0; i < t->life_count; i++) {
        uint64_t max = 0;
        uint32_t left = t->steps + t->lives[i].begin, right = t->steps + t->lives[i].end;
        for (; left < right; left /= 2, right /= 2) {
            if (left % 2 != 0) {
                max = tree[left] > max ? tree[left] : max;
                left++;
            }
            if (right % 2 != 0) {
                right--;
                max = tree[right] > max ? tree[right] : max;
            }
        }
        uint32_t load = (uint32_t)((max >> shift << 16) / (t->bound >> shift));
        s->load[t->lives[i].item] = load > s->load[t->lives[i].item] ? load : s->load[t->lives[i].item];
    }
}

static bp_status describe_items(bp_skyline *s)
{
    const bp_timeline *t = s->t;
    uint64_t *tree;
    BP_TRY(bp_new_array(t->count, sizeof *s->log_life, (void **)&s->log_life));
    BP_TRY(bp_new_array(t->count, sizeof *s->log_size, (void **)&s->log_size));
    BP_TRY(bp_new_array(t->count, sizeof *s->load, (void **)&s->load));
    BP_TRY(bp_new_array(2 * (size_t)t->steps + 1, sizeof *tree, (void **)&tree));
    measure_load(s, tree);
    free(tree);
    for (uint32_t i = 0; i < t->count; i++) {
        uint64_t life = bp_item_life(t, s->x, i);
        s->log_life[i] = log2_fixed(life > 0 ? life : 1);
        s->log_size[i] = log2_fixed(t->sizes[i]);
    }
    return BP_OK;
}

/* The bits of a step at even places. */
static uint64_t spread_bits(uint32_t step)
{
    uint64_t x = step;
    x = (x | x << 16) & UINT64_C(0x0000ffff0000ffff);
    x = (x | x << 8) & UINT64_C(0x00ff00ff00ff00ff);
    x = (x | x << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    x = (x | x << 2) & UINT64_C(0x3333333333333333);
    return (x | x << 1) & UINT64_C(0x5555555555555555);
}

/* Leaves along a Z-order curve (Morton 1966) of begin and end, so that boxes are small. */
static bp_status order_leaves(bp_skyline *s)
{
    const bp_timeline *t = s->t;
    bp_keyed *order;
    BP_TRY(bp_new_array(t->life_count, sizeof *s->leaf_of, (void **)&s->leaf_of));
    BP_TRY(bp_new_array(t->life_count, sizeof *order, (void **)&order));
    for (uint32_t i = 0; i < t->life_count; i++)
        order[i] = (bp_keyed){spread_bits(t->lives[i].begin) << 1 | spread_bits(t->lives[i].end), i};
    if (t->life_count > 0)
        qsort(order, t->life_count, sizeof *order, bp_compare_keyed);
    for (uint32_t i = 0; i < t->life_count; i++)
        s->leaf_of[order[i].number] = s->leaves + i;
    free(order);
    return BP_OK;
}

static bp_status allocate_pass(bp_skyline *s)
{
    const bp_timeline *t = s->t;
    for (s->leaves = 1; s->leaves < t->life_count; s->leaves *= 2)
        ;
    for (s->step_leaves = 1; s->step_leaves < t->steps; s->step_leaves *= 2)
        ;
    BP_TRY(bp_new_array(t->count, sizeof *s->order, (void **)&s->order));
    BP_TRY(bp_new_array(t->count, sizeof *s->rank, (void **)&s->rank));
    BP_TRY(bp_new_array(t->count, sizeof *s->offsets, (void **)&s->offsets));
    BP_TRY(bp_new_array(t->count, sizeof *s->opponents, (void **)&s->opponents)); /* pairs are unique */
    BP_TRY(bp_new_array(2 * (size_t)s->leaves, sizeof *s->contests, (void **)&s->contests));
    for (uint32_t i = 0; i < 2 * s->leaves; i++)
        s->contests[i] = no_contest;
    BP_TRY(order_leaves(s));
    BP_TRY(bp_new_array((size_t)t->steps + 1, sizeof *s->heights, (void **)&s->heights));
    BP_TRY(bp_new_array(2 * (size_t)s->step_leaves, sizeof *s->lowest, (void **)&s->lowest));
    size_t words = t->steps + (size_t)1, total = 0, first[BITMAP_LEVELS];
    for (int l = 0; l < BITMAP_LEVELS; l++) {
        first[l] = total;
        words = words / 64 + 1;
        total += words;
    }
    BP_TRY(bp_new_array(total, sizeof *s->starts[0], (void **)&s->starts[0]));
    for (int l = 1; l < BITMAP_LEVELS; l++)
        s->starts[l] = s->starts[0] + first[l];
    return BP_OK;
}

bp_status bp_skyline_create(const bp_timeline *timeline, const bp_item_index *index, bp_skyline **skyline)
{
    bp_skyline *s;
    *skyline = NULL;
    BP_TRY(bp_new_array(1, sizeof *s, (void **)&s));
    s->t = timeline;
    s->x = index;
    bp_status status = describe_items(s);
    if (status == BP_OK)
        status = allocate_pass(s);
    if (status != BP_OK)
        bp_skyline_destroy(&s);
    *skyline = s;
    return status;
}

void bp_skyline_destroy(bp_skyline **skyline)
{
    bp_skyline *s = *skyline;
    *skyline = NULL;
    if (s == NULL)
        return;
    void *arrays[] = {s->leaf_of, s->log_life,  s->log_size, s->load,    s->order,     s->rank, s->contests,
                      s->heights, s->starts[0], s->lowest,   s->offsets, s->opponents, s};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}
