/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a rectangle into boxes. An item is a box, or two boxes of equal bytes with a gap in time. */
#include "support/harness.h"

#include "planted.h"

#include <stdlib.h>

#define MAX_BOXES 512

typedef struct box {
    uint64_t begin, end, low, high; /* steps, bytes */
    uint32_t item;
    bool whole; /* it is its item's only box, so it may be cut */
} box;

typedef struct cutting {
    box boxes[MAX_BOXES];
    uint32_t count, items;
} cutting;

/* Adds a box and its item. */
static void add_box(cutting *c, uint64_t begin, uint64_t end, uint64_t low, uint64_t high)
{
    assert_true(c->count < MAX_BOXES && begin < end && low < high);
    c->boxes[c->count++] = (box){begin, end, low, high, c->items++, true};
}

/* Two different random numbers strictly between the ends, in order. */
static void two_between(uint64_t low, uint64_t high, uint64_t *first, uint64_t *second)
{
    *first = random_between(low + 1, high - 2);
    *second = random_between(*first + 1, high - 1);
}

static bool cut_bytes(cutting *c, box *b)
{
    if (b->high - b->low < 2)
        return false;
    uint64_t at = random_between(b->low + 1, b->high - 1);
    add_box(c, b->begin, b->end, at, b->high);
    b->high = at;
    return true;
}

static bool cut_steps(cutting *c, box *b)
{
    if (b->end - b->begin < 2)
        return false;
    uint64_t at = random_between(b->begin + 1, b->end - 1);
    add_box(c, at, b->end, b->low, b->high);
    b->end = at;
    return true;
}

static bool cut_wheel(cutting *c, box *b)
{
    if (b->high - b->low < 3 || b->end - b->begin < 3)
        return false;
    uint64_t left, right, bottom, top;
    two_between(b->begin, b->end, &left, &right);
    two_between(b->low, b->high, &bottom, &top);
    add_box(c, right, b->end, b->low, top);
    add_box(c, left, b->end, top, b->high);
    add_box(c, b->begin, left, bottom, b->high);
    add_box(c, left, right, bottom, top);
    b->end = right;
    b->high = bottom;
    return true;
}

static bool cut_gap(cutting *c, box *b)
{
    if (b->end - b->begin < 3)
        return false;
    uint64_t left, right;
    two_between(b->begin, b->end, &left, &right);
    add_box(c, left, right, b->low, b->high);
    assert_true(c->count < MAX_BOXES);
    c->boxes[c->count++] = (box){right, b->end, b->low, b->high, b->item, false};
    b->end = left;
    b->whole = false;
    return true;
}

static void cut(cutting *c, planted_options options)
{
    add_box(c, 0, options.steps, 0, options.bytes);
    for (uint32_t tries = 0; c->items < options.items && tries < 100 * options.items; tries++) {
        box *b = &c->boxes[random_below(c->count)];
        box *other = &c->boxes[random_below(c->count)];
        /* picks the larger of two, so that sizes stay similar */
        if ((b->end - b->begin) * (b->high - b->low) < (other->end - other->begin) * (other->high - other->low))
            b = other;
        if (!b->whole)
            continue;
        if (options.wheels && c->items + 4 <= options.items && one_in(3))
            cut_wheel(c, b);
        else if (options.gaps && one_in(3))
            cut_gap(c, b);
        else if (one_in(2))
            cut_bytes(c, b);
        else
            cut_steps(c, b);
    }
}

static bool share_bytes(const planted *p, uint32_t a, uint32_t b)
{
    return p->offsets[a] < p->offsets[b] + p->in.sizes[b] && p->offsets[b] < p->offsets[a] + p->in.sizes[a];
}

planted plant(planted_options options)
{
    static cutting c;
    c.count = c.items = 0;
    cut(&c, options);
    uint32_t numbers[MAX_BOXES], order[MAX_BOXES];
    for (uint32_t i = 0; i < MAX_BOXES; i++)
        numbers[i] = order[i] = i;
    shuffle(numbers, c.items);
    shuffle(order, c.count);
    planted p = {.bytes = options.bytes, .offsets = calloc(c.items, sizeof *p.offsets)};
    assert_non_null(p.offsets);
    for (uint32_t i = 0; i < c.items; i++)
        add_item(&p.in, 0);
    for (uint32_t i = 0; i < c.count; i++) {
        const box *b = &c.boxes[order[i]];
        add_interval(&p.in, numbers[b->item], b->begin, b->end);
        p.in.sizes[numbers[b->item]] = b->high - b->low;
        p.offsets[numbers[b->item]] = b->low;
    }
    for (uint64_t tries = options.pairs ? random_below(c.items) : 0; tries > 0; tries--) {
        uint32_t a = (uint32_t)random_below(c.items), b = (uint32_t)random_below(c.items);
        if (!share_bytes(&p, a, b))
            add_pair(&p.in, a, b);
    }
    return p;
}

void end_planted(planted *p)
{
    end_instance(&p->in);
    free(p->offsets);
    p->offsets = NULL;
}
