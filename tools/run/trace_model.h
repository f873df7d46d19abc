/* What a pool recorded, as a model with an explicit schedule that `bucketpool plan` plans. */
#ifndef TOOLS_RUN_TRACE_MODEL_H
#define TOOLS_RUN_TRACE_MODEL_H

#include <bucketpool/bucketpool.h>

#include "run/program.h"

/* A model called `name` with the buckets of the run as they are (the options that made them need not be given again) and the recorded
 * events of the pool's steps first_step to last_step; what is held all the time is live around them. The caller owns the model.
 * Errors: those of bp_pool_trace_to_model and of building models. */
bp_status trace_model(const char *name, const bp_buckets *buckets, const bp_pool *pool, const program *p,
                      uint64_t first_step, uint64_t last_step, bp_model **model);

#endif
