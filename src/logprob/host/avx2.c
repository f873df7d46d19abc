/* Kernels for AVX2, FMA and F16C. */
#include "logprob/host/vector_avx2.h"
#include "logprob/host/vector_kernels.h"

const bp_host_kernels bp_kernels_avx2 = KERNELS("avx2", BP_KERNELS_AVX2);
