/* A device for the tests of a program, and calls that are asserted. */
#ifndef BP_TESTS_KERNELS_HEAD_HEAD_RUNS_H
#define BP_TESTS_KERNELS_HEAD_HEAD_RUNS_H

#include "head_cases.h"

extern bp_device *device;

/* Of a group of tests: a host device; nothing of it may be left at the end. */
int begin(void **state);
int end(void **state);

bp_lm_head *new_head(const bp_lm_head_config *config);
/* Forward and backward on `stream`, waited for. */
void run(bp_lm_head *head, head_tensors *t, bp_stream *stream);

#endif
