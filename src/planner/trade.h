/* Waits in exchange for bytes: what both ways of trading share. */
#ifndef BP_PLANNER_TRADE_H
#define BP_PLANNER_TRADE_H

#include "planner/schedule.h"

/* Roles whose memory counts together: one slab. Spans of roles that do not count have BP_NO_SLAB. */
#define BP_NO_SLAB UINT8_MAX

typedef struct bp_trade {
    const bp_buckets *buckets;
    bp_schedule *schedule; /* a copy, to be changed */
    uint32_t stalls;       /* that may still be chosen */
    uint64_t work;         /* that may still be done, in elements looked at: the search is bounded, not timed */
    uint32_t slab_count;
    uint8_t *slab_of_span;
    uint64_t *bytes_of_span; /* of its requests, rounded up */
} bp_trade;

/* What a trade took. */
typedef struct bp_trade_cost {
    uint32_t stalls;
    uint64_t work;
} bp_trade_cost;

/* As bp_schedule_create_traded. */
bp_status bp_trade_schedule(const bp_buckets *buckets, const bp_schedule *schedule, const bp_trade_config *config,
                            bp_schedule **traded, bp_trade_cost *cost);

static inline void bp_trade_spend(bp_trade *trade, uint64_t work)
{
    trade->work -= work < trade->work ? work : trade->work;
}

/* Gives up overlap in steps of the schedule: shortens its uses and notes the waits. */
bp_status bp_trade_steps(bp_trade *trade);

/* Gives up windows of a recorded schedule. */
bp_status bp_trade_windows(bp_trade *trade);

/* Lists what waits because of the steps, which are sorted: the uses were `original` before. trade_waits.c */
bp_status bp_trade_note_waits(bp_trade *trade, const bp_use *original, const uint32_t *steps, size_t step_count);

#endif
