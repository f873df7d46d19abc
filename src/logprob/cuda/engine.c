/* The engine of cuda devices: kernels of an image that is part of the library, launched through the driver. */
#include "logprob/engine.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/fail.h"
#include "logprob/cuda/image.h"
#include "logprob/cuda/launch.h"

#define LEAST_MAJOR 8       /* compute capability: bf16, and maxima that keep NaN */
#define ENOUGH_BLOCKS 2048u /* a GPU is busy: rows need not be divided among blocks */
#define PART_COLUMNS 8192u  /* of a row, at least, for each of several blocks */
#define NAME_BYTES 64

static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

/* By places in `dtypes`, and whether with entropy. */
typedef struct cuda_engine {
    bp_engine base;
    bp_cuda_module *module;
    const bp_cuda_kernel *partials[DTYPES][2];
    const bp_cuda_kernel *gradient[DTYPES][DTYPES][2]; /* NULL: between bf16 and fp16 */
    const bp_cuda_kernel *finish, *finish_bad;
    const bp_cuda_kernel *range[DTYPES];
    bp_sequence_kernels sequences;
} cuda_engine;

static size_t place_of(int32_t dtype)
{
    size_t place = 0;
    while (place + 1 < DTYPES && dtypes[place] != (bp_dtype)dtype)
        place++;
    return place;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

static uint64_t cuda_engine_rows_of(const bp_tokens_work *tokens)
{
    return tokens->batch * tokens->sequence;
}

static bp_status launch_partials(bp_engine *base, const bp_partials_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel = engine->partials[place_of(work->logits.dtype)][work->with_entropy != 0];
    return bp_cuda_launch_work(kernel, cuda_engine_rows_of(&work->tokens), 1, BP_CUDA_THREADS, work, stream);
}

static bp_status launch_finish(bp_engine *base, const bp_finish_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    uint64_t rows = cuda_engine_rows_of(&work->tokens);
    BP_TRY(bp_cuda_launch_work(engine->finish, bp_cuda_blocks_for(rows, BP_CUDA_THREADS), 1, BP_CUDA_THREADS, work,
                               stream));
    if (work->bad == NULL || rows == 0)
        return BP_OK;
    return bp_cuda_launch_work(engine->finish_bad, 1, 1, 1, work, stream);
}

/* Few rows are divided among blocks, but for those that are narrowed where they lie: of them one block must have read what it writes. */
static uint64_t parts_of(const bp_gradient_work *work, uint64_t rows)
{
    uint64_t most = work->logits.columns / PART_COLUMNS;
    if (rows == 0 || rows >= ENOUGH_BLOCKS || most < 2 || work->narrows_in_place != 0 ||
        (work->logits.dtype == BP_DTYPE_FP32 && work->out_dtype != BP_DTYPE_FP32))
        return 1;
    uint64_t wanted = (ENOUGH_BLOCKS + rows - 1) / rows;
    return wanted < most ? wanted : most;
}

static bp_status launch_gradient(bp_engine *base, const bp_gradient_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel =
        engine->gradient[place_of(work->logits.dtype)][place_of(work->out_dtype)][work->entropy_grad != NULL];
    uint64_t rows = cuda_engine_rows_of(&work->tokens);
    if (kernel == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "cuda has no kernel from logits of %s to a gradient of %s",
                       bp_dtype_name((bp_dtype)work->logits.dtype), bp_dtype_name((bp_dtype)work->out_dtype));
    return bp_cuda_launch_work(kernel, rows, parts_of(work, rows), BP_CUDA_THREADS, work, stream);
}

static bp_status launch_range(bp_engine *base, const bp_range_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel = engine->range[place_of(work->logits.dtype)];
    return bp_cuda_launch_work(kernel, cuda_engine_rows_of(&work->tokens), 1, BP_CUDA_THREADS, work, stream);
}

static bp_status launch_rearrange(bp_engine *base, const bp_rearrange_work *work, bp_stream *stream)
{
    return bp_sequence_rearrange(&((const cuda_engine *)base)->sequences, work, stream);
}

static bp_status launch_sums(bp_engine *base, const bp_sums_work *work, bp_stream *stream)
{
    return bp_sequence_sums(&((const cuda_engine *)base)->sequences, work, stream);
}

static bp_status launch_seed(bp_engine *base, const bp_seed_work *work, bp_stream *stream)
{
    return bp_sequence_seed(&((const cuda_engine *)base)->sequences, work, stream);
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

static void cuda_engine_destroy(bp_engine *base)
{
    cuda_engine *engine = (cuda_engine *)base;
    bp_cuda_module_destroy(&engine->module);
    free(engine);
}

static const bp_engine_ops ops = {cuda_engine_destroy, launch_partials,  launch_finish, launch_gradient,
                                  launch_range,        launch_rearrange, launch_sums,   launch_seed};

static bp_status find_partials(cuda_engine *engine, size_t in, int entropy)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "bp_partials_%s%s", bp_dtype_name(dtypes[in]), entropy ? "_entropy" : "");
    return bp_cuda_find(engine->module, name, &engine->partials[in][entropy]);
}

static bp_status find_gradient(cuda_engine *engine, size_t in, size_t out, int entropy)
{
    char name[NAME_BYTES];
    if (in != out && dtypes[in] != BP_DTYPE_FP32 && dtypes[out] != BP_DTYPE_FP32)
        return BP_OK;
    snprintf(name, sizeof name, "bp_gradient_%s_%s%s", bp_dtype_name(dtypes[in]), bp_dtype_name(dtypes[out]),
             entropy ? "_entropy" : "");
    return bp_cuda_find(engine->module, name, &engine->gradient[in][out][entropy]);
}

static bp_status find_range(cuda_engine *engine, size_t in)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "bp_range_%s", bp_dtype_name(dtypes[in]));
    return bp_cuda_find(engine->module, name, &engine->range[in]);
}

static bp_status cuda_engine_find_kernels(cuda_engine *engine)
{
    BP_TRY(bp_cuda_find(engine->module, "bp_finish", &engine->finish));
    BP_TRY(bp_cuda_find(engine->module, "bp_finish_bad", &engine->finish_bad));
    BP_TRY(bp_sequence_kernels_find(engine->module, &engine->sequences));
    for (size_t in = 0; in < DTYPES; in++) {
        BP_TRY(find_range(engine, in));
        for (int entropy = 0; entropy < 2; entropy++) {
            BP_TRY(find_partials(engine, in, entropy));
            for (size_t out = 0; out < DTYPES; out++)
                BP_TRY(find_gradient(engine, in, out, entropy));
        }
    }
    return BP_OK;
}

static bp_status check_device(const bp_device *device)
{
    const bp_cuda_info *info = bp_cuda_get_info(device);
    if (info->compute_major < LEAST_MAJOR)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s has compute capability %d.%d: log-probability kernels need %d.0 or later", info->name,
                       info->compute_major, info->compute_minor, LEAST_MAJOR);
    return BP_OK;
}

bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine)
{
    BP_TRY(check_device(device));
    cuda_engine *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    made->base = (bp_engine){.ops = &ops, .kernels = "cuda", .threads = 1};
    bp_status status = bp_cuda_module_create(device, bp_cuda_image, &made->module);
    if (status == BP_OK)
        status = cuda_engine_find_kernels(made);
    if (status != BP_OK) {
        cuda_engine_destroy(&made->base);
        return status;
    }
    *engine = &made->base;
    return BP_OK;
}
