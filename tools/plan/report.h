/* The JSON report, bucketpool.report/1: docs/formats.md describes every member. */
#ifndef TOOLS_PLAN_REPORT_H
#define TOOLS_PLAN_REPORT_H

#include "files/json_writer.h"
#include "plan/analysis.h"

/* The member "options": every option that plans depend on, as chosen. */
void report_options(bp_json_writer *d, const analysis *a, const plan_options *options);

/* A list of the names of the roles in a BP_ROLE_BIT mask. */
void report_roles(bp_json_writer *d, const char *key, uint32_t mask);

/* Prints the report of all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int report_print(const analysis *analyses, size_t count, const plan_options *options);

#endif
