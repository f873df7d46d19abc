/* Rows of bf16 and fp16 as fp32, and back. */
#ifndef BP_LOGPROB_HOST_WIDEN_H
#define BP_LOGPROB_HOST_WIDEN_H

#include <bucketpool/dtype.h>

#include <stddef.h>

/* Exact. `dtype`: fp32, bf16 or fp16. */
void bp_widen(bp_dtype dtype, const void *from, size_t count, float *to);
/* Rounded to nearest, ties to even; NaN stays NaN. */
void bp_narrow(bp_dtype dtype, const float *from, size_t count, void *to);

#endif
