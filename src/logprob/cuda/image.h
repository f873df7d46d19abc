/* The kernels as nvcc compiled them: a fatbin. */
#ifndef BP_LOGPROB_CUDA_IMAGE_H
#define BP_LOGPROB_CUDA_IMAGE_H

#include <stdint.h>

extern const uint64_t bp_cuda_image[];

#endif
