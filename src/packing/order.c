/* An order of the items with few live neighbours at a time, for the order sweep. */
#include "packing/order.h"

#include <stdlib.h>

#include "core/fail.h"

/* Works out places, last neighbours and width of an order whose items are there. `leaving` has room for all. */
static void measure(const bp_problem *p, bp_order *order, uint32_t *leaving)
{
    for (uint32_t at = 0; at < p->count; at++) {
        order->place[order->items[at]] = at;
        leaving[at] = 0;
    }
    for (uint32_t i = 0; i < p->count; i++) {
        order->last[i] = order->place[i];
        for (uint32_t n = p->neighbours.first[i]; n < p->neighbours.first[i + 1]; n++) {
            uint32_t at = order->place[p->neighbours.entries[n]];
            order->last[i] = at > order->last[i] ? at : order->last[i];
        }
        leaving[order->last[i]]++;
    }
    uint32_t waiting = 0;
    order->width = 0;
    for (uint32_t at = 0; at < p->count; at++) {
        waiting = waiting + 1 - leaving[at];
        order->width = waiting > order->width ? waiting : order->width;
    }
}

static uint32_t degree(const bp_problem *p, uint32_t item)
{
    return p->neighbours.first[item + 1] - p->neighbours.first[item];
}

/* Appends the neighbours that are not there yet, those with few neighbours first. */
static void append_neighbours(const bp_problem *p, uint32_t item, uint32_t *items, uint32_t *used, bool *there)
{
    uint32_t from = *used;
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (there[other])
            continue;
        there[other] = true;
        uint32_t at = (*used)++;
        for (; at > from && degree(p, items[at - 1]) > degree(p, other); at--)
            items[at] = items[at - 1];
        items[at] = other;
    }
}

static bp_status order_breadth_first(const bp_problem *p, uint32_t *items)
{
    void *memory;
    BP_TRY(bp_new_array(p->count, sizeof(bool), &memory));
    bool *there = memory;
    uint32_t used = 0, next = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (there[i])
            continue;
        there[i] = true;
        items[used++] = i;
        for (; next < used; next++)
            append_neighbours(p, items[next], items, &used, there);
    }
    free(memory);
    return BP_OK;
}

static bp_status new_order(uint32_t count, bp_order *order)
{
    void *memory;
    *order = (bp_order){0};
    BP_TRY(bp_new_array(count, sizeof *order->items, &memory));
    order->items = memory;
    BP_TRY(bp_new_array(count, sizeof *order->place, &memory));
    order->place = memory;
    BP_TRY(bp_new_array(count, sizeof *order->last, &memory));
    order->last = memory;
    return BP_OK;
}

bp_status bp_order_init(const bp_problem *problem, bp_order *order)
{
    bp_order other = {0};
    void *leaving = NULL;
    bp_status status = new_order(problem->count, order);
    if (status == BP_OK)
        status = new_order(problem->count, &other);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof(uint32_t), &leaving);
    if (status == BP_OK)
        status = order_breadth_first(problem, other.items);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < problem->count; i++)
            order->items[i] = i;
        measure(problem, order, leaving);
        measure(problem, &other, leaving);
        if (other.width < order->width) {
            bp_order better = other;
            other = *order;
            *order = better;
        }
    }
    free(leaving);
    bp_order_finish(&other);
    if (status != BP_OK)
        bp_order_finish(order);
    return status;
}

void bp_order_finish(bp_order *order)
{
    free(order->items);
    free(order->place);
    free(order->last);
    *order = (bp_order){0};
}
