/* How an analysis comes about, step by step: each is EXIT_GO_ON, or the exit code after a message, where it is not a status. */
#ifndef TOOLS_ANALYSIS_PARTS_H
#define TOOLS_ANALYSIS_PARTS_H

#include "analysis.h"

/* analysis_model.c: the file's model as one rank holds it, its rules, buckets and figures. The caller owns the model, also after an
 * error. */
int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model);
/* What one GPU holds beside the pool; false when it does not fit 64 bits. */
bool analysis_sum_state(const plan_options *options, analysis *a);
/* The library's detail, about this file. */
int analysis_fail(const char *path, bp_status status);

/* analysis_schedule.c: generated or recorded, merged with those of further files. */
int analysis_make_schedule(const char *path, const plan_options *options, const bp_model *model, analysis *a);

/* analysis_share.c: one analysis of all parts, whose models share a pool and run one after the other. */
int analysis_merge(const plan_options *options, const analysis *parts, size_t count, analysis *merged);

/* analysis_notes.c: what a saved plan remembers of how it was made. */
bp_status analysis_note(const plan_options *options, const analysis *a, bp_plan *plan);

#endif
