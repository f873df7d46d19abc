/* The JSON report, bucketpool.report/1: docs/formats.md describes every member. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <jansson.h>

#include "analysis.h"

/* Every option that plans depend on, as chosen. NULL when memory runs out. */
json_t *report_options(const analysis *a, const plan_options *options);

/* A list of the names of the roles in a BP_ROLE_BIT mask. NULL likewise. */
json_t *report_roles(uint32_t mask);

/* Prints the report of all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int report_print(const analysis *analyses, size_t count, const plan_options *options);

#endif
