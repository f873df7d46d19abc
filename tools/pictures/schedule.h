/* The picture of a schedule: what runs in each step, and how much is live. */
#ifndef TOOLS_PICTURES_SCHEDULE_H
#define TOOLS_PICTURES_SCHEDULE_H

#include "schedule/view.h"
#include "shared/outputs.h"

/* The model's name, a line below it; steps to the right; a row each for gathers, compute and reductions, and below, for each role, the live bytes, by kinds of buckets.
 * As picture_draw otherwise. */
const char *picture_draw_schedule(const schedule_view *view, const char *subtitle, const output *to);

#endif
