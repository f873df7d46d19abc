/* Which steps of a long schedule are worth a row. */
#ifndef TOOLS_SCHEDULE_ROWS_H
#define TOOLS_SCHEDULE_ROWS_H

#include "schedule_view.h"

/* Marks them in `shown`, a flag a step: all of a short schedule; of a long one the beginning, the end, the peaks and the first turns
 * from one direction to the other, each with its neighbours. */
void schedule_rows_choose(const schedule_view *v, bool *shown);

#endif
