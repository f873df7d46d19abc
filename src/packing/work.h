/* Work: what bounds a search instead of time, so that it ends at the same place on every machine. About a nanosecond a piece. */
#ifndef BP_PACKING_WORK_H
#define BP_PACKING_WORK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bp_work {
    uint64_t spent, limit;
} bp_work;

static inline bool bp_work_is_over(const bp_work *work)
{
    return work->spent > work->limit;
}

static inline uint64_t bp_work_left(const bp_work *work)
{
    return work->spent < work->limit ? work->limit - work->spent : 0;
}

/* The same work with an earlier end. */
static inline bp_work bp_work_part(const bp_work *work, uint64_t share)
{
    uint64_t left = bp_work_left(work);
    return (bp_work){work->spent, work->spent + (share < left ? share : left)};
}

#endif
