/* Kernels of the library's image, found by name and launched with one structure by value. */
#ifndef BP_LOGPROB_CUDA_LAUNCH_H
#define BP_LOGPROB_CUDA_LAUNCH_H

#include "devices/clients.h"
#include "logprob/work.h"

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

/* ---- packed sequences and losses --------------------------------------------------------------------------------- */

/* Kernels of split batches and of the loss on a cuda device. */

#define BP_WORD_SIZES 5 /* 1, 2, 4, 8 and 16 bytes */

typedef struct bp_sequence_kernels {
    const bp_cuda_kernel *rearrange[BP_WORD_SIZES];
    const bp_cuda_kernel *sums, *seed;
} bp_sequence_kernels;

bp_status bp_sequence_kernels_find(bp_cuda_module *module, bp_sequence_kernels *kernels);

bp_status bp_sequence_rearrange(const bp_sequence_kernels *kernels, const bp_rearrange_work *work, bp_stream *stream);
bp_status bp_sequence_sums(const bp_sequence_kernels *kernels, const bp_sums_work *work, bp_stream *stream);
bp_status bp_sequence_seed(const bp_sequence_kernels *kernels, const bp_seed_work *work, bp_stream *stream);

#endif
