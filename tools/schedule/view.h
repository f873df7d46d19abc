/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_SCHEDULE_VIEW_H
#define TOOLS_SCHEDULE_VIEW_H

#include "plan/analysis.h"

/* Live bytes of one role, or of all roles shown. */
typedef struct live_bytes {
    uint32_t role; /* BP_ROLE_COUNT: all */
    uint64_t *by_step;
    uint64_t peak_bytes;
    uint32_t peak_step; /* first step at the peak */
} live_bytes;

typedef struct schedule_view {
    const analysis *analysed;
    uint32_t steps;
    uint64_t alignment;
    live_bytes roles[BP_ROLE_COUNT + 1]; /* roles shown, then their sum if there are several */
    size_t role_count;                   /* with the sum */
    size_t common_chars;                 /* common prefix of unit names */
    bp_schedule_event *events;           /* events of the roles shown */
    size_t event_count;
    size_t *first_event; /* first event of each step, two more than steps; releases at the end have step `steps` */
} schedule_view;

/* A request with its bucket's names. */
typedef struct request_view {
    bp_request request;
    bp_bucket bucket;
    const char *unit;
} request_view;

/* `roles`: BP_ROLE_BIT mask of the roles to show. Sizes are rounded up to the alignment, as in plans. Returns
 * EXIT_GO_ON, or the exit code after a message. Call schedule_view_finish either way. */
int schedule_view_init(const analysis *a, uint32_t roles, uint64_t alignment, schedule_view *v);
void schedule_view_finish(schedule_view *v);

/* false: unknown request. */
bool schedule_view_request(const schedule_view *v, uint32_t index, request_view *request);
/* Bytes of the request, rounded up to the alignment. */
uint64_t schedule_view_bytes(const schedule_view *v, const request_view *request);
/* true: the event has some, not all, of the unit's buckets of its role. */
bool schedule_view_is_part(const schedule_view *v, const bp_schedule_event *event);
/* "param", or "all" for the sum. */
const char *schedule_view_role_name(const live_bytes *live);
const char *schedule_view_phase_name(bp_phase phase);

/* ---- the table ---- */

/* The steps of --steps; not `given`: chosen by schedule_rows_choose. */
typedef struct step_range {
    uint32_t first, last;
    bool given;
} step_range;

#endif
