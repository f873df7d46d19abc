/* An order of the items in which few of them wait for neighbours at a time: what the order sweep goes along. */
#ifndef BP_PACKING_ORDER_H
#define BP_PACKING_ORDER_H

#include "packing/problem.h"

typedef struct bp_order {
    uint32_t *items;
    uint32_t *place; /* by item: its position */
    uint32_t *last;  /* by item: the position of its last neighbour, at least its own */
    uint32_t width;  /* the most items that wait for neighbours at a time */
} bp_order;

/* The better of two orders: as the items are first live, which is that of the units; and breadth first from neighbour to neighbour
 * (Cuthill and McKee 1969), which needs no time. */
bp_status bp_order_init(const bp_problem *problem, bp_order *order);
void bp_order_finish(bp_order *order);

#endif
