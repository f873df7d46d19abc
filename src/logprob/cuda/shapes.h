/* What kernels of split batches and their launches agree on. C and C++. */
#ifndef BP_LOGPROB_CUDA_SHAPES_H
#define BP_LOGPROB_CUDA_SHAPES_H

#include "logprob/work.h"

#define BP_SUMS_THREADS 512u /* of a block: one makes all of a sequence */

/* How many lanes of a warp move a token of so many words: a power of two. */
BP_DEVICE uint32_t bp_lanes_of_token(uint64_t words)
{
    uint32_t lanes = 1;
    while (lanes < 32 && lanes < words)
        lanes *= 2;
    return lanes;
}

#endif
