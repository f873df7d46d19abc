/* What comes and goes in a step, in a cell of a table. */
#ifndef TOOLS_SCHEDULE_TEXT_H
#define TOOLS_SCHEDULE_TEXT_H

#include "schedule_view.h"

#define EVENTS_TEXT_CHARS 512

/* "layers.3 param, layers.4 grad": the acquires, or the releases, that stand at a step. Units without what all their names begin
 * with; "52 units state" where they are many. "" when there are none. */
const char *schedule_events_text(const schedule_view *v, uint32_t step, bool acquires, char text[EVENTS_TEXT_CHARS]);

/* "layers.3/dense (param)". */
const char *schedule_request_text(const schedule_view *v, uint32_t request, char text[EVENTS_TEXT_CHARS]);

#endif
