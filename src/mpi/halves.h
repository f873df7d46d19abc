/* Reductions of fp16 and bf16, which MPI does not know: each step is computed in fp32 and rounded to nearest even. */
#ifndef BP_MPI_HALVES_H
#define BP_MPI_HALVES_H

#include <bucketpool/comm.h>

/* The value of each, and back. */
float bp_fp16_value(uint16_t bits);
uint16_t bp_fp16_bits(float value);
float bp_bf16_value(uint16_t bits);
uint16_t bp_bf16_bits(float value);

/* into[i] = reduction(from[i], into[i]); dtype is BP_DTYPE_FP16 or BP_DTYPE_BF16. Maxima and minima of NaN are not specified. */
void bp_halves_reduce(bp_dtype dtype, bp_reduction reduction, const uint16_t *from, uint16_t *into, int count);

#endif
