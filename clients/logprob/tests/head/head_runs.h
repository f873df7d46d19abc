/* The device of a test program, and asserted calls of the head. */
#ifndef BP_TESTS_KERNELS_HEAD_HEAD_RUNS_H
#define BP_TESTS_KERNELS_HEAD_HEAD_RUNS_H

#include "head_cases.h"

extern bp_device *device;

/* Group setup and teardown of a host device; teardown checks for leaks. */
int begin(void **state);
int end(void **state);

bp_lm_head *new_head(const bp_lm_head_config *config);
/* Forward and backward on `stream`, then synchronizes. */
void run(bp_lm_head *head, head_tensors *t, bp_stream *stream);

#endif
