/* Kernels for AVX-512 F, BW, VL and DQ. */
#include "logprob/host/vector_avx512.h"
#include "logprob/host/vector_kernels.h"

const bp_host_kernels bp_kernels_avx512 = KERNELS("avx512", BP_KERNELS_AVX512);
