/* Whose memory each request reuses. */
#ifndef BP_PLANNER_PREDECESSORS_H
#define BP_PLANNER_PREDECESSORS_H

#include "planner/plan.h"
#include "planner/schedule.h"

/* Fills the predecessor lists of a plan whose requests share memory slot by slot: slot_of_request numbers the (class, copy)
 * that a request uses, UINT32_MAX when it has none; assignment_of_request likewise. A request's predecessors are the requests
 * that used its slot just before one of its intervals, in this step or at the end of the one before; never itself. */
bp_status bp_find_predecessors(const bp_schedule *schedule, const uint32_t *slot_of_request, size_t slot_count,
                               const uint32_t *assignment_of_request, bp_plan *plan);

/* The same for a plan whose requests overlap in any way: a request's predecessors are the latest users of its bytes, range by range,
 * when one of its intervals begins. Requests whose slot is UINT32_MAX have no address. */
bp_status bp_find_range_predecessors(const bp_schedule *schedule, const uint32_t *slot_of_request,
                                     const uint32_t *assignment_of_request, bp_plan *plan);

#endif
