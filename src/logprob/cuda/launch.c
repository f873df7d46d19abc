/* Launches of the kernels of the library's image. */
#include "logprob/cuda/launch.h"

#include <stdio.h>

#include "core/fail.h"
#include "logprob/cuda/shapes.h"

/* ---- launches ---------------------------------------------------------------------------------------------------- */

#define MOST_BLOCKS INT32_MAX /* in a grid's first dimension */

bp_status bp_cuda_find(bp_cuda_module *module, const char *name, const bp_cuda_kernel **kernel)
{
    bp_cuda_kernel *found;
    BP_TRY(bp_cuda_module_kernel(module, name, &found));
    *kernel = found;
    return BP_OK;
}

bp_status bp_cuda_launch_work(const bp_cuda_kernel *kernel, uint64_t blocks, uint64_t parts, uint32_t threads,
                              const void *work, bp_stream *stream)
{
    void *arguments[] = {(void *)work};
    bp_cuda_grid grid = {.blocks = {blocks < MOST_BLOCKS ? (uint32_t)blocks : MOST_BLOCKS, (uint32_t)parts, 1},
                         .threads = {threads, 1, 1}};
    return blocks == 0 ? BP_OK : bp_cuda_launch(kernel, &grid, arguments, stream);
}

/* ---- packed sequences and losses --------------------------------------------------------------------------------- */

#define NAME_BYTES 32

bp_status bp_sequence_kernels_find(bp_cuda_module *module, bp_sequence_kernels *kernels)
{
    for (unsigned i = 0; i < BP_WORD_SIZES; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "bp_rearrange_%u", 1u << i);
        BP_TRY(bp_cuda_find(module, name, &kernels->rearrange[i]));
    }
    BP_TRY(bp_cuda_find(module, "bp_sums", &kernels->sums));
    return bp_cuda_find(module, "bp_seed", &kernels->seed);
}

bp_status bp_sequence_rearrange(const bp_sequence_kernels *kernels, const bp_rearrange_work *work, bp_stream *stream)
{
    unsigned size = 0;
    while (size + 1 < BP_WORD_SIZES && 1u << size < work->word_bytes)
        size++;
    uint64_t words = work->token_bytes / work->word_bytes;
    uint64_t places = words == 0 ? 0 : bp_group_places(&work->group, (bp_cp_order)work->to_order);
    uint64_t blocks = bp_cuda_blocks_for(places, BP_CUDA_THREADS / bp_lanes_of_token(words));
    return bp_cuda_launch_work(kernels->rearrange[size], blocks, 1, BP_CUDA_THREADS, work, stream);
}

bp_status bp_sequence_sums(const bp_sequence_kernels *kernels, const bp_sums_work *work, bp_stream *stream)
{
    return bp_cuda_launch_work(kernels->sums, work->group.count, 1, BP_SUMS_THREADS, work, stream);
}

bp_status bp_sequence_seed(const bp_sequence_kernels *kernels, const bp_seed_work *work, bp_stream *stream)
{
    uint64_t blocks = bp_cuda_blocks_for(bp_group_places(&work->group, BP_CP_LOCAL), BP_CUDA_THREADS);
    return bp_cuda_launch_work(kernels->seed, blocks, 1, BP_CUDA_THREADS, work, stream);
}
