/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of cuda devices, and copies of rows for products. Kernels are found by name in the embedded image and launched through the
 * driver, with one structure by value. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/kernels.h>

#include <stdio.h>
#include <stdlib.h>

#include "cuda/cuda.h"

#define MIN_MAJOR 8                    /* compute capability with bf16 and NaN-preserving maxima */
#define THREADS 128u                   /* per block, as the kernels are compiled, unless work.h says otherwise */
#define MAX_BLOCKS INT32_MAX           /* of a grid's first dimension */
#define MAX_ROW_BLOCKS UINT64_C(65535) /* of copies; kernels loop over further rows */
#define ENOUGH_BLOCKS 2048u            /* enough to fill a GPU without splitting rows */
#define PART_COLUMNS 8192u             /* minimum columns per block when rows are split */
#define MAX_FUSED_TILES 256u           /* of a row: the tiles that bp_forward sums in one round */
#define SUMS_BYTES sizeof(bp_partial)  /* of a tile, in the shared memory of fused kernels */
#define WARP 32u
#define SMALL_WAVES 3u /* of a forward pass; with more of them, one wave more costs little */
#define NAME_BYTES 64
#define WORD_SIZES 5 /* 1, 2, 4, 8 and 16 bytes */

static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

/* Forms of kernels, as in rows.cuh. */
enum { FORM_PLAIN, FORM_ENTROPY, FORM_GENERAL, FORM_COUNT };

/* [index in `dtypes`] of the logits, then of the gradient, [form]. NULL: no such kernel. */
typedef struct cuda_engine {
    bp_engine base;
    bp_cuda_module *module;
    const bp_cuda_kernel *forward[DTYPES][FORM_COUNT];
    const bp_cuda_kernel *gradient[DTYPES][DTYPES][FORM_COUNT];
    const bp_cuda_kernel *fused[2][DTYPES][DTYPES][FORM_COUNT]; /* [1]: rows are realigned */
    const bp_cuda_kernel *divergence[DTYPES], *divergence_gradient[DTYPES][DTYPES], *divergence_finish;
    const bp_cuda_kernel *finish;
    const bp_cuda_kernel *columns[DTYPES], *range[DTYPES];
    const bp_cuda_kernel *rearrange[WORD_SIZES];
    const bp_cuda_kernel *sums, *merge_sums, *seed;
    uint32_t shared_bytes; /* limit of a fused kernel's block */
    uint32_t multiprocessors;
} cuda_engine;

static size_t dtype_place(int32_t dtype)
{
    size_t place = 0;
    while (place + 1 < DTYPES && dtypes[place] != (bp_dtype)dtype)
        place++;
    return place;
}

static bp_status find_kernel(bp_cuda_module *module, const char *name, const bp_cuda_kernel **kernel)
{
    bp_cuda_kernel *found;
    BP_TRY(bp_cuda_module_kernel(module, name, &found));
    *kernel = found;
    return BP_OK;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

/* Launches up to a grid's limit of `blocks`; kernels loop over the rest. `parts`: the grid's second dimension. Launches nothing for 0
 * blocks. */
static bp_status launch_kernel(const bp_cuda_kernel *kernel, uint64_t blocks, uint64_t parts, uint32_t threads,
                               const void *work, bp_stream *stream)
{
    void *arguments[] = {(void *)work};
    bp_cuda_grid grid = {.blocks = {blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS, (uint32_t)parts, 1},
                         .threads = {threads, 1, 1}};
    return blocks == 0 ? BP_OK : bp_cuda_launch(kernel, &grid, arguments, stream);
}

/* Blocks that give each of `count` items a thread. */
static uint64_t blocks_for(uint64_t count, uint64_t of_a_block)
{
    return count / of_a_block + (count % of_a_block != 0);
}

static uint64_t cuda_rows_of(const bp_tokens_work *tokens)
{
    return tokens->batch * tokens->sequence;
}

static bool is_changed(const bp_logits_work *logits)
{
    return logits->rounding != BP_DTYPE_FP32 || logits->cap != 0;
}

static int form_of_forward(const bp_forward_work *work)
{
    if (work->level == BP_SUMS_TOTAL || is_changed(&work->logits))
        return FORM_GENERAL;
    return work->level == BP_SUMS_WEIGHTED ? FORM_ENTROPY : FORM_PLAIN;
}

static int form_of_gradient(const bp_gradient_work *work)
{
    if (work->logsumexp.data != NULL || work->mean_logprob.data != NULL || is_changed(&work->logits))
        return FORM_GENERAL;
    return work->entropy.data != NULL ? FORM_ENTROPY : FORM_PLAIN;
}

/* Threads of a block, which takes a row. Warps of 16-bit logits fill a multiprocessor with 6 blocks of 4 or 8 blocks of 3: the latter may take
 * all rows of a small call in one wave, where the former leave a few for a second one. A wave takes as long as the tiles of one warp. */
static uint32_t threads_of_forward(const cuda_engine *engine, const bp_forward_work *work)
{
    const uint64_t tiles = blocks_for(work->logits.columns, BP_TILE_COLUMNS), rows = cuda_rows_of(&work->tokens);
    const uint64_t max = SMALL_WAVES * 8 * (uint64_t)engine->multiprocessors;
    if (work->logits.dtype == BP_DTYPE_FP32 || work->tokens.targets > 3 * WARP || rows > max)
        return THREADS;
    const uint64_t with_4 = blocks_for(rows, 6 * (uint64_t)engine->multiprocessors) * blocks_for(tiles, 4);
    const uint64_t with_3 = blocks_for(rows, 8 * (uint64_t)engine->multiprocessors) * blocks_for(tiles, 3);
    return with_3 < with_4 ? 3 * WARP : THREADS;
}

static bp_status launch_forward(bp_engine *base, const bp_forward_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel = engine->forward[dtype_place(work->logits.dtype)][form_of_forward(work)];
    return launch_kernel(kernel, cuda_rows_of(&work->tokens), 1, threads_of_forward(engine, work), work, stream);
}

static bp_status launch_finish(bp_engine *base, const bp_finish_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const uint64_t rows = cuda_rows_of(&work->tokens);
    return launch_kernel(engine->finish, blocks_for(rows, THREADS), 1, THREADS, work, stream);
}

static bp_status fail_dtypes(int32_t logits, int32_t gradient)
{
    return bp_fail(BP_ERR_UNSUPPORTED, "cuda has no kernel from logits of %s to a gradient of %s",
                   bp_dtype_name((bp_dtype)logits), bp_dtype_name((bp_dtype)gradient));
}

/* Few rows are split between blocks. */
static uint64_t parts_of(uint64_t rows, uint64_t columns)
{
    const uint64_t max = columns / PART_COLUMNS;
    return rows != 0 && rows < ENOUGH_BLOCKS && max >= 2 ? bp_min_u64((ENOUGH_BLOCKS + rows - 1) / rows, max) : 1;
}

/* A gradient that is narrower than the logits may be in place: then one block must read a row before it writes. */
static bp_status launch_gradient(bp_engine *base, const bp_gradient_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel =
        engine->gradient[dtype_place(work->logits.dtype)][dtype_place(work->out_dtype)][form_of_gradient(work)];
    const uint64_t rows = cuda_rows_of(&work->tokens);
    if (kernel == NULL)
        return fail_dtypes(work->logits.dtype, work->out_dtype);
    const bool narrows =
        work->narrows_in_place != 0 || (work->logits.dtype == BP_DTYPE_FP32 && work->out_dtype != BP_DTYPE_FP32);
    return launch_kernel(kernel, rows, narrows ? 1 : parts_of(rows, work->logits.columns), THREADS, work, stream);
}

/* ---- both passes ----------------------------------------------------------------------------------------------------- */

static uint64_t element_bytes(int32_t dtype)
{
    return bp_dtype_bits((bp_dtype)dtype) / 8;
}

static bool is_aligned(const void *data, int64_t batch_stride, int64_t stride, int32_t dtype)
{
    const uint64_t bytes = element_bytes(dtype);
    return (((uintptr_t)data | (uint64_t)batch_stride * bytes | (uint64_t)stride * bytes) & 15) == 0;
}

/* True where each row of the gradient begins as many elements from a vector as that of the logits. */
static bool are_alike(const bp_logits_work *logits, const bp_gradient_work *gradient)
{
    const uint64_t in = element_bytes(logits->dtype), out = element_bytes(gradient->out_dtype);
    const uint64_t columns = 16 / (in > out ? in : out); /* of a vector */
    return (((uintptr_t)logits->data / in - (uintptr_t)gradient->out / out) % columns |
            (uint64_t)(logits->batch_stride - gradient->out_batch_stride) % columns |
            (uint64_t)(logits->stride - gradient->out_stride) % columns) == 0;
}

/* Shared memory of a block: the sums of all tiles, and places for tiles, equally many for each warp. 0: too little for one tile a warp, or,
 * where a warp has several, for two. */
static uint32_t shared_of_fused(const cuda_engine *engine, uint32_t tiles, uint32_t tile_bytes, uint32_t threads)
{
    const uint32_t warps = threads / WARP, each = (tiles + warps - 1) / warps, sums = tiles * (uint32_t)SUMS_BYTES;
    const uint32_t left = engine->shared_bytes > sums ? engine->shared_bytes - sums : 0;
    const uint32_t places = (uint32_t)bp_min_u64(each, left / (warps * tile_bytes));
    return places == each || places >= 2 ? sums + places * warps * tile_bytes : 0;
}

/* Short rows take small blocks, so that several are on a multiprocessor: some read while others write. Where only one fits anyhow, it has all
 * the threads that registers allow. */
static bool grid_of_fused(const cuda_engine *engine, const bp_logits_work *logits, bool realigned, bp_cuda_grid *grid)
{
    static const uint32_t sizes[] = {128, 256, 512};
    const uint64_t tiles = blocks_for(logits->columns, BP_TILE_COLUMNS);
    const uint32_t tile_bytes = BP_TILE_COLUMNS * (uint32_t)element_bytes(logits->dtype) + (realigned ? 16 : 0);
    if (tiles > MAX_FUSED_TILES)
        return false;
    grid->shared_bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint32_t bytes = shared_of_fused(engine, (uint32_t)tiles, tile_bytes, sizes[i]);
        if (bytes == 0)
            continue;
        grid->threads[0] = sizes[i];
        grid->shared_bytes = bytes;
        if (tiles <= sizes[i] / WARP || (sizes[i] >= 256 && bytes <= engine->shared_bytes / 2))
            break;
    }
    return grid->shared_bytes != 0;
}

static bp_status launch_fused(bp_engine *base, const bp_fused_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_forward_work *forward = &work->forward;
    const bp_gradient_work *gradient = &work->gradient;
    const bp_logits_work *logits = &forward->logits;
    const int one = form_of_forward(forward), other = form_of_gradient(gradient);
    const bool realigned =
        !is_aligned(logits->data, logits->batch_stride, logits->stride, logits->dtype) ||
        !is_aligned(gradient->out, gradient->out_batch_stride, gradient->out_stride, gradient->out_dtype);
    const bp_cuda_kernel *kernel =
        engine
            ->fused[realigned][dtype_place(logits->dtype)][dtype_place(gradient->out_dtype)][one > other ? one : other];
    const uint64_t rows = cuda_rows_of(&forward->tokens);
    bp_cuda_grid grid = {.blocks = {rows < MAX_BLOCKS ? (uint32_t)rows : MAX_BLOCKS, 1, 1}, .threads = {0, 1, 1}};
    if (kernel == NULL || !are_alike(logits, gradient) || !grid_of_fused(engine, logits, realigned, &grid)) {
        BP_TRY(launch_forward(base, forward, stream));
        return launch_gradient(base, gradient, stream);
    }
    void *arguments[] = {(void *)work};
    return rows == 0 ? BP_OK : bp_cuda_launch(kernel, &grid, arguments, stream);
}

/* ---- divergences and sums -------------------------------------------------------------------------------------------- */

static bp_status launch_divergence(bp_engine *base, const bp_divergence_work *work, bp_stream *stream)
{
    const bp_cuda_kernel *kernel = ((const cuda_engine *)base)->divergence[dtype_place(work->logits.dtype)];
    return launch_kernel(kernel, cuda_rows_of(&work->tokens), 1, THREADS, work, stream);
}

static bp_status launch_divergence_finish(bp_engine *base, const bp_divergence_finish_work *work, bp_stream *stream)
{
    const uint64_t blocks = blocks_for(cuda_rows_of(&work->tokens), THREADS);
    return launch_kernel(((const cuda_engine *)base)->divergence_finish, blocks, 1, THREADS, work, stream);
}

static bp_status launch_divergence_gradient(bp_engine *base, const bp_divergence_gradient_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const bp_cuda_kernel *kernel =
        engine->divergence_gradient[dtype_place(work->logits.dtype)][dtype_place(work->out_dtype)];
    const uint64_t rows = cuda_rows_of(&work->tokens);
    if (kernel == NULL)
        return fail_dtypes(work->logits.dtype, work->out_dtype);
    return launch_kernel(kernel, rows, parts_of(rows, work->logits.columns), THREADS, work, stream);
}

static bp_status launch_columns(bp_engine *base, const bp_columns_work *work, bp_stream *stream)
{
    const bp_cuda_kernel *kernel = ((const cuda_engine *)base)->columns[dtype_place(work->dtype)];
    return launch_kernel(kernel, blocks_for(work->columns, THREADS), 1, THREADS, work, stream);
}

static bp_status launch_range(bp_engine *base, const bp_range_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    return launch_kernel(engine->range[dtype_place(work->logits.dtype)], cuda_rows_of(&work->tokens), 1, THREADS, work,
                         stream);
}

/* Blocks for vectors of `each` tokens, the first of which may begin before the first token. */
static uint64_t blocks_of_vectors(uint64_t tokens, uint64_t each)
{
    return tokens == 0 ? 0 : blocks_for(tokens + each - 1, THREADS * BP_VECTORS_AT_ONCE * each);
}

static bp_status launch_rearrange(bp_engine *base, const bp_rearrange_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    unsigned size = 0;
    while (size + 1 < WORD_SIZES && 1u << size < work->word_bytes)
        size++;
    const uint64_t words = work->token_bytes / work->word_bytes;
    const uint64_t places = words == 0 ? 0 : bp_group_places(&work->group, (bp_cp_order)work->to_order);
    uint64_t blocks = blocks_for(places, THREADS / bp_lanes_of_token(words));
    if (bp_is_dense(work))
        blocks = blocks_of_vectors(places, 16 / work->word_bytes);
    return launch_kernel(engine->rearrange[size], blocks, 1, THREADS, work, stream);
}

static bp_status launch_sums(bp_engine *base, const bp_sums_work *work, bp_stream *stream)
{
    const cuda_engine *engine = (const cuda_engine *)base;
    const uint32_t pieces = work->first_piece[work->group.count];
    BP_TRY(launch_kernel(engine->sums, pieces, 1, BP_SUMS_THREADS, work, stream));
    if (pieces == work->group.count) /* one of each sequence */
        return BP_OK;
    return launch_kernel(engine->merge_sums, work->group.count, 1, BP_SUMS_THREADS, work, stream);
}

static bp_status launch_seed(bp_engine *base, const bp_seed_work *work, bp_stream *stream)
{
    const uint64_t blocks = blocks_of_vectors(bp_group_places(&work->group, BP_CP_LOCAL), 4);
    return launch_kernel(((const cuda_engine *)base)->seed, blocks, 1, THREADS, work, stream);
}

/* ---- creation and destruction ---------------------------------------------------------------------------------------- */

static void cuda_engine_destroy(bp_engine *base)
{
    cuda_engine *engine = (cuda_engine *)base;
    bp_cuda_module_destroy(&engine->module);
    free(engine);
}

static const bp_engine_ops ops = {.destroy = cuda_engine_destroy,
                                  .forward = launch_forward,
                                  .finish = launch_finish,
                                  .gradient = launch_gradient,
                                  .fused = launch_fused,
                                  .divergence = launch_divergence,
                                  .divergence_finish = launch_divergence_finish,
                                  .divergence_gradient = launch_divergence_gradient,
                                  .columns = launch_columns,
                                  .range = launch_range,
                                  .rearrange = launch_rearrange,
                                  .sums = launch_sums,
                                  .seed = launch_seed};

static const char *const forms[FORM_COUNT] = {"", "_entropy", "_general"}; /* ends of names */

/* From logits of `in` to a gradient of `out`. Narrower gradients than the logits are those of the fused head alone. */
static bp_status find_gradients(cuda_engine *engine, size_t in, size_t out)
{
    const char *logits = bp_dtype_name(dtypes[in]), *gradient = bp_dtype_name(dtypes[out]);
    const bool narrows = dtypes[out] != BP_DTYPE_FP32 && in != out;
    char name[NAME_BYTES];
    if (narrows && dtypes[in] != BP_DTYPE_FP32)
        return BP_OK;
    for (int form = 0; form < FORM_COUNT; form++) {
        snprintf(name, sizeof name, "bp_gradient_%s_%s%s", logits, gradient, forms[form]);
        BP_TRY(find_kernel(engine->module, name, &engine->gradient[in][out][form]));
        if (narrows)
            continue;
        for (int realigned = 0; realigned < (form == FORM_GENERAL ? 1 : 2); realigned++) {
            bp_cuda_kernel *fused;
            uint32_t bytes;
            snprintf(name, sizeof name, "bp_fused_%s%s_%s%s", realigned != 0 ? "realigned_" : "", logits, gradient,
                     forms[form]);
            BP_TRY(bp_cuda_module_kernel(engine->module, name, &fused));
            BP_TRY(bp_cuda_kernel_allow_shared(fused, &bytes));
            engine->fused[realigned][in][out][form] = fused;
            engine->shared_bytes = bytes < engine->shared_bytes ? bytes : engine->shared_bytes;
        }
    }
    if (narrows)
        return BP_OK;
    snprintf(name, sizeof name, "bp_divergence_gradient_%s_%s", logits, gradient);
    return find_kernel(engine->module, name, &engine->divergence_gradient[in][out]);
}

/* Kernel names contain the dtypes of logits and gradient. */
static bp_status cuda_engine_find_kernels_of(cuda_engine *engine, size_t in)
{
    const char *logits = bp_dtype_name(dtypes[in]);
    char name[NAME_BYTES];
    for (int form = 0; form < FORM_COUNT; form++) {
        snprintf(name, sizeof name, "bp_forward_%s%s", logits, forms[form]);
        BP_TRY(find_kernel(engine->module, name, &engine->forward[in][form]));
    }
    snprintf(name, sizeof name, "bp_divergence_%s", logits);
    BP_TRY(find_kernel(engine->module, name, &engine->divergence[in]));
    snprintf(name, sizeof name, "bp_columns_%s", logits);
    BP_TRY(find_kernel(engine->module, name, &engine->columns[in]));
    snprintf(name, sizeof name, "bp_range_%s", logits);
    BP_TRY(find_kernel(engine->module, name, &engine->range[in]));
    for (size_t out = 0; out < DTYPES; out++)
        BP_TRY(find_gradients(engine, in, out));
    return BP_OK;
}

static bp_status cuda_engine_find_kernels(cuda_engine *engine)
{
    BP_TRY(find_kernel(engine->module, "bp_finish", &engine->finish));
    BP_TRY(find_kernel(engine->module, "bp_divergence_finish", &engine->divergence_finish));
    engine->shared_bytes = UINT32_MAX;
    for (unsigned i = 0; i < WORD_SIZES; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "bp_rearrange_%u", 1u << i);
        BP_TRY(find_kernel(engine->module, name, &engine->rearrange[i]));
    }
    BP_TRY(find_kernel(engine->module, "bp_sums", &engine->sums));
    BP_TRY(find_kernel(engine->module, "bp_merge_sums", &engine->merge_sums));
    BP_TRY(find_kernel(engine->module, "bp_seed", &engine->seed));
    for (size_t in = 0; in < DTYPES; in++)
        BP_TRY(cuda_engine_find_kernels_of(engine, in));
    return BP_OK;
}

bp_status bp_engine_create_cuda(bp_device *device, bp_engine **engine)
{
    const bp_cuda_info *info = bp_cuda_get_info(device);
    if (info->compute_major < MIN_MAJOR)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s has compute capability %d.%d; log-probability kernels need %d.0 or later", info->name,
                       info->compute_major, info->compute_minor, MIN_MAJOR);
    cuda_engine *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    made->base = (bp_engine){.ops = &ops, .kernels = "cuda", .threads = 1};
    made->multiprocessors = bp_cuda_multiprocessors(device);
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

/* ---- copies of rows ---------------------------------------------------------------------------------------------- */

struct bp_cuda_rows {
    bp_cuda_module *module;
    const bp_cuda_kernel *same_32, *same_16, *to_bf16, *to_fp16;
};

bp_status bp_cuda_rows_create(bp_device *device, bp_cuda_rows **rows)
{
    bp_cuda_rows *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    bp_status status = bp_cuda_module_create(device, bp_cuda_image, &made->module);
    if (status == BP_OK)
        status = find_kernel(made->module, "bp_rows_32", &made->same_32);
    if (status == BP_OK)
        status = find_kernel(made->module, "bp_rows_16", &made->same_16);
    if (status == BP_OK)
        status = find_kernel(made->module, "bp_rows_fp32_bf16", &made->to_bf16);
    if (status == BP_OK)
        status = find_kernel(made->module, "bp_rows_fp32_fp16", &made->to_fp16);
    if (status != BP_OK) {
        bp_cuda_rows_destroy(&made);
        return status;
    }
    *rows = made;
    return BP_OK;
}

void bp_cuda_rows_destroy(bp_cuda_rows **rows)
{
    if (*rows == NULL)
        return;
    bp_cuda_module_destroy(&(*rows)->module);
    free(*rows);
    *rows = NULL;
}

bp_status bp_cuda_rows_copy(const bp_cuda_rows *rows, const bp_matrix *from, const bp_matrix *to, uint64_t count,
                            uint64_t columns, const bp_row_mask *mask, bp_stream *stream)
{
    bp_rows_work work = {.from = from->data,
                         .from_stride = from->stride,
                         .to = to->data,
                         .to_stride = to->stride,
                         .rows = count,
                         .columns = columns};
    if (mask != NULL) {
        work.mask = mask->tokens.mask;
        work.mask_batch_stride = mask->tokens.mask_batch_stride;
        work.mask_stride = mask->tokens.mask_stride;
        work.mask_count = mask->tokens.sequence;
        work.mask_first = mask->first;
    }
    const bp_cuda_kernel *kernel = from->dtype == BP_DTYPE_FP32 ? rows->same_32 : rows->same_16;
    if (from->dtype != to->dtype)
        kernel = to->dtype == BP_DTYPE_BF16 ? rows->to_bf16 : rows->to_fp16;
    return launch_kernel(kernel, bp_min_u64(count, MAX_ROW_BLOCKS), 1, THREADS, &work, stream);
}
