/* A schedule step by step: what comes, what goes, what is live, and where that is most. */
#ifndef TOOLS_SCHEDULE_VIEW_H
#define TOOLS_SCHEDULE_VIEW_H

#include "plan/analysis.h"

/* A schedule step by step: what comes, what goes, what is live, and where that is most. */

/* Bytes of one role, or of all that are shown. */
typedef struct live_bytes {
    uint32_t role; /* BP_ROLE_COUNT: of all */
    uint64_t *by_step;
    uint64_t peak_bytes;
    uint32_t peak_step; /* the first that reaches the peak */
} live_bytes;

typedef struct schedule_view {
    const analysis *analysed;
    uint32_t steps;
    uint64_t alignment;
    live_bytes roles[BP_ROLE_COUNT + 1]; /* those shown, then their sum where there are several */
    size_t role_count;                   /* with the sum */
    size_t common_chars;                 /* that all names of units begin with */
    bp_schedule_event *events;           /* of the roles shown */
    size_t event_count;
    size_t *first_event; /* by step, and two more: where its events begin; releases at the end have step `steps` */
} schedule_view;

/* A request with its bucket's names. */
typedef struct request_view {
    bp_request request;
    bp_bucket bucket;
    const char *unit;
} request_view;

/* `roles`: BP_ROLE_BIT mask of those shown. Sizes are rounded up to the alignment, as plans do. Returns EXIT_GO_ON, or the exit code
 * after a message. Call schedule_view_finish either way. */
int schedule_view_init(const analysis *a, uint32_t roles, uint64_t alignment, schedule_view *v);
void schedule_view_finish(schedule_view *v);

/* false: there is no such request. */
bool schedule_view_request(const schedule_view *v, uint32_t index, request_view *request);
/* Its bytes, rounded up. */
uint64_t schedule_view_bytes(const schedule_view *v, const request_view *request);
/* Whether the event is about some of the unit's buckets in that role, not all. */
bool schedule_view_is_part(const schedule_view *v, const bp_schedule_event *event);
/* "param", or "all" for the sum. */
const char *schedule_view_role_name(const live_bytes *live);
const char *schedule_view_phase_name(bp_phase phase);

/* A schedule as a table for people, on standard output. */

/* The steps of --steps; by default the interesting ones. */
typedef struct step_range {
    uint32_t first, last;
    bool given;
} step_range;

#endif
