/* Kernels of split batches and of the loss on a cuda device. */
#ifndef BP_LOGPROB_CUDA_SEQUENCES_H
#define BP_LOGPROB_CUDA_SEQUENCES_H

#include "logprob/cp/work.h"
#include "logprob/cuda/launch.h"
#include "logprob/loss/work.h"

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
