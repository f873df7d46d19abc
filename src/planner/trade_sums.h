/* The live sums of a schedule whose uses are cut step by step. */
#ifndef BP_PLANNER_TRADE_SUMS_H
#define BP_PLANNER_TRADE_SUMS_H

#include "planner/trade.h"

#define BP_NO_STEP UINT32_MAX

/* The live sums of a slab. */
typedef struct bp_slab_sums {
    uint64_t *live;   /* by step */
    uint64_t *change; /* by step: what is added from there on; all 0 but within a function */
    uint64_t peak;
    uint32_t first_peak, last_peak; /* steps */
} bp_slab_sums;

/* The unneeded parts of uses that cover a step, which moves from the first to the last. An entry is twice the use's index, plus
 * one for the part after compute. */
typedef struct bp_sweep {
    uint32_t *starts; /* by step: where its entries begin in `entries`, one more at the end */
    uint32_t *entries;
    uint32_t *active;
    uint32_t active_count, next; /* entries before `next` have been active */
} bp_sweep;

typedef struct bp_step_trade {
    bp_trade *trade;
    bp_schedule *s;
    bp_slab_sums slabs[BP_ROLE_COUNT];
    uint64_t value; /* the sum of the peaks */
    bp_sweep sweep;
    uint32_t *span_of_use;
    uint32_t *seen_at; /* by span: the last candidate that changed it, plus one */
    bp_use *original, *saved;
    uint32_t *chosen; /* steps */
    size_t chosen_count, chosen_capacity;
} bp_step_trade;

bp_status bp_step_trade_init(bp_trade *trade, bp_step_trade *t); /* finish it in any case */
void bp_step_trade_finish(bp_step_trade *t);

/* The use without what it does not need in a step, and before or after that; BP_NO_STEP: as it is. */
bp_use bp_cut_use(bp_use use, uint32_t step);

/* Adds the span's bytes to the changes of its slab wherever it is live, cut at `step`. */
void bp_trade_add_live(bp_step_trade *t, uint32_t span, uint32_t step, uint64_t bytes);

/* Live sums, peaks and value of the uses as they are. */
void bp_trade_measure(bp_step_trade *t);

/* Gives back cuts of slabs whose peaks they do not lower; the chosen steps are sorted. trade_return.c */
bp_status bp_trade_return_cuts(bp_step_trade *t);

/* Steps are asked for in increasing order. */
void bp_trade_begin_sweep(bp_step_trade *t);
void bp_trade_sweep_to(bp_step_trade *t, uint32_t step);

#endif
