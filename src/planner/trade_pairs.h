/* The windows of a recorded schedule as pairs of units that can be given up, and the sums that they add to. */
#ifndef BP_PLANNER_TRADE_PAIRS_H
#define BP_PLANNER_TRADE_PAIRS_H

#include "planner/trade.h"

#define BP_NO_PAIR UINT32_MAX

/* A window of requests that share a slab. */
typedef struct bp_trade_entry {
    uint64_t units; /* the pair: earlier and later unit, in their roles */
    bp_window window;
    uint32_t index; /* of the window in the schedule */
    uint32_t pair, kept;
} bp_trade_entry;

/* What the windows keep from an acquire: one request in one step, however many of them keep it. */
typedef struct bp_kept_request {
    uint64_t bytes;
    uint32_t step, request;
    uint32_t windows; /* that still do */
} bp_kept_request;

typedef struct bp_trade_place {
    uint32_t step, request, entry;
} bp_trade_place;

typedef struct bp_window_trade {
    bp_trade *trade;
    bp_schedule *s;
    uint32_t *span_of_request;
    uint64_t *sums[BP_ROLE_COUNT]; /* by slab: by step */
    uint64_t peak[BP_ROLE_COUNT], value;
    uint32_t peak_step[BP_ROLE_COUNT], peak_count[BP_ROLE_COUNT]; /* the first; how many */
    bp_trade_entry *entries;                                      /* by pair */
    bp_trade_place *places;                                       /* of entries, by step */
    bp_kept_request *kept;
    uint32_t entry_count, pair_count, kept_count;
    uint32_t *first_of_pair;     /* entries; one more at the end */
    bool *is_dropped, *is_tried; /* by pair */
    uint32_t *chosen;            /* pairs */
    uint32_t chosen_count;
} bp_window_trade;

bp_status bp_window_trade_init(bp_trade *trade, bp_window_trade *t); /* finish it in any case */
void bp_window_trade_finish(bp_window_trade *t);

uint8_t bp_trade_slab_of(const bp_window_trade *t, uint32_t request);

/* Adds what the pair's windows keep to the sums, or takes away what no other window keeps. */
void bp_trade_count_pair(bp_window_trade *t, uint32_t pair, bool drops);

#endif
