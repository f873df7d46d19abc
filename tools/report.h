/* The JSON report, bucketpool.report/1: docs/formats.md describes every member. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include "analysis.h"

/* Prints the report of all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int report_print(const analysis *analyses, size_t count, const plan_options *options);

#endif
