/* How an analysis comes about, step by step: each is EXIT_GO_ON, or the exit code after a message, where it is not a status. */
#ifndef TOOLS_PLAN_ANALYSIS_PARTS_H
#define TOOLS_PLAN_ANALYSIS_PARTS_H

#include "plan/analysis.h"

/* The file's model as one rank holds it, its rules, buckets and figures. The caller owns the model, also after an
 * error. */
int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model);
/* The library's detail, about this file. */
int analysis_fail(const char *path, bp_status status);

/* Generated or recorded, merged with those of further files. */
int analysis_make_schedule(const char *path, const plan_options *options, const bp_model *model, analysis *a);

#endif
