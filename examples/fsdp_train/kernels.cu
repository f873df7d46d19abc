/* SPDX-License-Identifier: Apache-2.0 */
/* The operations as CUDA kernels: a thread for each item. -fmad=false: the same bits as on the host. */
#include "all.h"

#define KERNEL(name)                                                                                                   \
    extern "C" __global__ void fsdp_train_##name(const work w)                                                         \
    {                                                                                                                  \
        uint64_t threads = (uint64_t)gridDim.x * blockDim.x;                                                           \
        for (uint64_t item = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; item < w.items; item += threads)         \
            name(&w, item);                                                                                            \
    }
OPERATIONS(KERNEL)
