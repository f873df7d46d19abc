/* A schedule as a JSON document, bucketpool.schedule/1: docs/formats.md describes every member. */
#ifndef TOOLS_SCHEDULE_REPORT_H
#define TOOLS_SCHEDULE_REPORT_H

#include "schedule_view.h"

/* Prints it to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int schedule_report_print(const schedule_view *v, const plan_options *options);

#endif
