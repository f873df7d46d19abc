/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of fp16 and bf16, which MPI lacks: each step is computed in fp32 and rounded to nearest even. */
#ifndef BP_MPI_HALVES_H
#define BP_MPI_HALVES_H

#include <bucketpool/comm.h>
#include <bucketpool/core/halves.h>

static inline float bp_halves_combine(bp_reduction reduction, float a, float b)
{
    if (reduction == BP_REDUCE_SUM)
        return a + b;
    return (reduction == BP_REDUCE_MAX) == (a > b) ? a : b;
}

/* into[i] = reduction(from[i], into[i]); dtype is BP_DTYPE_FP16 or BP_DTYPE_BF16. The maximum or minimum of a NaN is
 * unspecified. */
static inline void bp_halves_reduce(bp_dtype dtype, bp_reduction reduction, const uint16_t *from, uint16_t *into,
                                    int count)
{
    for (int i = 0; i < count; i++)
        into[i] =
            dtype == BP_DTYPE_FP16
                ? bp_fp16_of_fp32(bp_halves_combine(reduction, bp_fp32_of_fp16(from[i]), bp_fp32_of_fp16(into[i])))
                : bp_bf16_of_fp32(bp_halves_combine(reduction, bp_fp32_of_bf16(from[i]), bp_fp32_of_bf16(into[i])));
}

#endif
