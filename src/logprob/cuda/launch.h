/* Kernels of the library's image, found by name and launched with one structure by value. */
#ifndef BP_LOGPROB_CUDA_LAUNCH_H
#define BP_LOGPROB_CUDA_LAUNCH_H

#include "devices/clients.h"

#define BP_CUDA_THREADS 128u /* of a block: what kernels are compiled for, but where a header says otherwise */

bp_status bp_cuda_find(bp_cuda_module *module, const char *name, const bp_cuda_kernel **kernel);

/* As many of `blocks` as a grid has room for: kernels loop over the rest. `parts`: its second dimension. Nothing without blocks. */
bp_status bp_cuda_launch_work(const bp_cuda_kernel *kernel, uint64_t blocks, uint64_t parts, uint32_t threads,
                              const void *work, bp_stream *stream);

/* How many blocks give each of `count` things a thread. */
static inline uint64_t bp_cuda_blocks_for(uint64_t count, uint64_t of_a_block)
{
    return count / of_a_block + (count % of_a_block != 0);
}

#endif
