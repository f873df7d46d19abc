#include "logprob/cuda/launch.h"

#include "core/fail.h"

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
