/* SPDX-License-Identifier: Apache-2.0 */
/* Selection of kernels and grids: any choice gives right results, but a wrong one is slow. */
#include <bucketpool/kernels.h>

#include "support/harness.h"

#include <stdio.h>
#include <string.h>

#include "cuda/cuda.h"
#include "support/pools.h"

#define MAX_KERNELS 128

static char names[MAX_KERNELS][48];
static unsigned found, launches;
static const char *launched;
#define MAX_LAUNCHES 4
static const char *all_launched[MAX_LAUNCHES];
static bp_cuda_grid grid;

const uint64_t bp_cuda_image[] = {0};

const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device);
uint32_t __wrap_bp_cuda_multiprocessors(const bp_device *device);
bp_status __wrap_bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
bp_status __wrap_bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);
bp_status __wrap_bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes);
bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *on, void **arguments,
                                bp_stream *stream);

const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device)
{
    static const bp_cuda_info info = {.compute_major = 9};
    (void)device;
    return &info;
}

uint32_t __wrap_bp_cuda_multiprocessors(const bp_device *device)
{
    (void)device;
    return 132;
}

bp_status __wrap_bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module)
{
    (void)device, (void)image;
    *module = NULL;
    return BP_OK;
}

bp_status __wrap_bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel)
{
    (void)module;
    assert_true(found < MAX_KERNELS);
    snprintf(names[found], sizeof names[found], "%s", name);
    *kernel = (bp_cuda_kernel *)names[found++];
    return BP_OK;
}

/* An H100: 227 KiB, less the kernel's own. */
bp_status __wrap_bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes)
{
    (void)kernel;
    *bytes = (227u << 10) - 32;
    return BP_OK;
}

bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *on, void **arguments,
                                bp_stream *stream)
{
    (void)arguments, (void)stream;
    if (launches < MAX_LAUNCHES)
        all_launched[launches] = (const char *)kernel;
    launches++;
    launched = (const char *)kernel;
    grid = *on;
    return BP_OK;
}

static bp_engine *engine;

static int make_engine(void **state)
{
    (void)state;
    return bp_engine_create_cuda(NULL, &engine) == BP_OK ? 0 : 1;
}

static int end_engine(void **state)
{
    (void)state;
    engine->ops->destroy(engine);
    return 0;
}

static bp_sequence_group one_of(uint64_t tokens)
{
    return (bp_sequence_group){
        .packed = {0, tokens}, .padded = {0, tokens}, .padded_tokens = tokens, .count = 1, .data = 1, .ranks = 1};
}

static void check_launch(const char *name, uint32_t blocks, uint32_t threads)
{
    assert_string_equal(launched, name);
    assert_true(grid.blocks[0] == blocks && grid.blocks[1] == 1 && grid.blocks[2] == 1);
    assert_true(grid.threads[0] == threads && grid.threads[1] == 1 && grid.threads[2] == 1);
}

TEST(launch_shapes_of_rearrangements)
{
    static const struct {
        uint64_t token_bytes;
        uint32_t word_bytes, blocks; /* blocks of 128 threads for 1000 tokens */
        const char *name;
    } cases[] = {{1, 1, 8, "bp_rearrange_1"},       {3, 1, 32, "bp_rearrange_1"},      {6, 2, 32, "bp_rearrange_2"},
                 {4, 4, 8, "bp_rearrange_4"},       {8, 8, 8, "bp_rearrange_8"},       {64, 16, 32, "bp_rearrange_16"},
                 {512, 16, 250, "bp_rearrange_16"}, {8192, 16, 250, "bp_rearrange_16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bp_rearrange_work work = {.group = one_of(1000),
                                  .token_bytes = cases[i].token_bytes,
                                  .word_bytes = cases[i].word_bytes,
                                  .from_stride = (int64_t)cases[i].token_bytes,
                                  .to_stride = 2 * (int64_t)cases[i].token_bytes};
        assert_ok(engine->ops->rearrange(engine, &work, NULL));
        check_launch(cases[i].name, cases[i].blocks, 128);
        if (cases[i].token_bytes != cases[i].word_bytes)
            continue;
        /* dense: 8192 bytes a block, the first vector of which may begin 15 bytes before the tokens */
        work.group = one_of(16384 / cases[i].word_bytes - 16 / cases[i].word_bytes + 1);
        work.to_stride = work.from_stride;
        assert_ok(engine->ops->rearrange(engine, &work, NULL));
        check_launch(cases[i].name, 2, 128);
    }
}

TEST(launch_shapes_of_the_loss)
{
    const bp_seed_work seeds = {.group = one_of(4096 - 3)};
    bp_sums_work sums = {.group = one_of(1000)};
    sums.group.count = 7;
    for (uint32_t s = 0; s < 7; s++)
        sums.first_piece[s + 1] = s + 1;
    launches = 0;
    assert_ok(engine->ops->seed(engine, &seeds, NULL));
    check_launch("bp_seed", 2, 128);
    assert_ok(engine->ops->sums(engine, &sums, NULL));
    check_launch("bp_sums", 7, 512);
    assert_int_equal(launches, 2);
    sums.first_piece[7] += BP_SUMS_PIECES - 1;
    assert_ok(engine->ops->sums(engine, &sums, NULL));
    assert_string_equal(all_launched[2], "bp_sums");
    check_launch("bp_merge_sums", 7, 512);
}

/* ---- kernels of log-probabilities ------------------------------------------------------------------------------------ */

static float anything;

static bp_forward_work forward_of(bp_dtype dtype, uint64_t rows, uint64_t columns)
{
    return (bp_forward_work){
        .tokens = {.batch = 1, .sequence = rows, .targets = 1, .scale = 1},
        .logits = {.stride = (int64_t)columns, .columns = columns, .dtype = dtype, .rounding = BP_DTYPE_FP32}};
}

TEST(forms_of_forward_kernels)
{
    bp_forward_work work = forward_of(BP_DTYPE_BF16, 500, 32000);
    launches = 0;
    assert_ok(engine->ops->forward(engine, &work, NULL));
    check_launch("bp_forward_bf16", 500, 128);
    assert_int_equal(launches, 1); /* one rank needs no other kernel */
    work.level = BP_SUMS_WEIGHTED;
    assert_ok(engine->ops->forward(engine, &work, NULL));
    check_launch("bp_forward_bf16_entropy", 500, 128);
    work.logits.cap = 30;
    assert_ok(engine->ops->forward(engine, &work, NULL));
    check_launch("bp_forward_bf16_general", 500, 128);
    work = forward_of(BP_DTYPE_FP32, 500, 32000);
    work.logits.rounding = BP_DTYPE_BF16;
    assert_ok(engine->ops->forward(engine, &work, NULL));
    check_launch("bp_forward_fp32_general", 500, 128);
    work = forward_of(BP_DTYPE_FP16, 500, 32000);
    work.level = BP_SUMS_TOTAL;
    uint64_t bad = UINT64_MAX;
    work.tokens.bad = &bad;
    launches = 0;
    assert_ok(engine->ops->forward(engine, &work, NULL));
    assert_string_equal(all_launched[0], "bp_forward_fp16_general");
    assert_int_equal(launches, 1); /* also with checked targets */
}

/* Rows in one wave instead of two: 132 x 6 and 132 x 8 blocks. */
TEST(threads_of_forward_kernels)
{
    static const struct {
        bp_dtype dtype;
        uint64_t rows, columns;
        uint32_t targets, threads;
    } cases[] = {{BP_DTYPE_BF16, 792, 32000, 1, 128},  {BP_DTYPE_BF16, 1024, 32000, 1, 96},
                 {BP_DTYPE_BF16, 1056, 32000, 96, 96}, {BP_DTYPE_BF16, 1056, 32000, 97, 128},
                 {BP_DTYPE_BF16, 1057, 32000, 1, 128}, {BP_DTYPE_FP16, 1024, 128000, 1, 96},
                 {BP_DTYPE_FP32, 1024, 32000, 1, 128}, {BP_DTYPE_BF16, 65536, 128000, 1, 128},
                 {BP_DTYPE_BF16, 1024, 2048, 1, 96}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bp_forward_work work = forward_of(cases[i].dtype, cases[i].rows, cases[i].columns);
        work.tokens.targets = cases[i].targets;
        assert_ok(engine->ops->forward(engine, &work, NULL));
        assert_int_equal(grid.threads[0], cases[i].threads);
    }
}

static bp_fused_work fused_of(bp_dtype dtype, bp_dtype out, uint64_t rows, uint64_t columns)
{
    bp_fused_work work = {.forward = forward_of(dtype, rows, columns)};
    work.gradient = (bp_gradient_work){.tokens = work.forward.tokens,
                                       .logits = work.forward.logits,
                                       .out_stride = (int64_t)columns,
                                       .out_dtype = (int32_t)out};
    return work;
}

/* A few tiles take the smallest block; 256 threads as long as two blocks fit into a multiprocessor; else 512, if each warp has places for two
 * tiles, or one tile. */
TEST(launch_shapes_of_both_passes)
{
    static const struct {
        bp_dtype dtype;
        uint64_t columns;
        uint32_t threads, places; /* per warp */
    } cases[] = {{BP_DTYPE_BF16, 2048, 128, 1},   {BP_DTYPE_BF16, 8192, 128, 1},   {BP_DTYPE_BF16, 16000, 256, 1},
                 {BP_DTYPE_BF16, 32000, 256, 2},  {BP_DTYPE_BF16, 50264, 512, 2},  {BP_DTYPE_BF16, 128000, 512, 3},
                 {BP_DTYPE_BF16, 151936, 512, 3}, {BP_DTYPE_FP16, 524288, 512, 3}, {BP_DTYPE_FP32, 16000, 256, 1},
                 {BP_DTYPE_FP32, 32000, 512, 1},  {BP_DTYPE_FP32, 50256, 256, 3},  {BP_DTYPE_FP32, 128000, 256, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t tiles = (uint32_t)((cases[i].columns + 2047) / 2048),
                       element = cases[i].dtype == BP_DTYPE_FP32 ? 4 : 2;
        const bp_fused_work work = fused_of(cases[i].dtype, BP_DTYPE_FP32, 1000, cases[i].columns);
        char name[48];
        snprintf(name, sizeof name, "bp_fused_%s_fp32", bp_dtype_name(cases[i].dtype));
        assert_ok(engine->ops->fused(engine, &work, NULL));
        check_launch(name, 1000, cases[i].threads);
        assert_int_equal(grid.shared_bytes, 16 * tiles + cases[i].places * cases[i].threads / 32 * 2048 * element);
    }
}

/* Rows that the kernel cannot take are passed over twice. */
TEST(both_passes_may_be_separate)
{
    bp_fused_work works[5];
    works[0] = works[1] = works[2] = works[3] = fused_of(BP_DTYPE_BF16, BP_DTYPE_BF16, 1000, 32000);
    works[4] = fused_of(BP_DTYPE_BF16, BP_DTYPE_BF16, 1000, 524288 + 8);
    works[0].forward.logits.data = works[0].gradient.logits.data = (const char *)&anything + 2;
    works[1].forward.logits.stride = works[1].gradient.logits.stride = 32001;
    works[2].gradient.out_stride = 32004;
    works[3].gradient.out_batch_stride = 1;
    for (size_t i = 0; i < 5; i++) {
        works[i].gradient.entropy.data = &anything;
        launches = 0;
        assert_ok(engine->ops->fused(engine, &works[i], NULL));
        assert_int_equal(launches, 2);
        assert_string_equal(all_launched[0], "bp_forward_bf16");
        assert_string_equal(all_launched[1], "bp_gradient_bf16_bf16_entropy");
    }
    works[0] = fused_of(BP_DTYPE_FP32, BP_DTYPE_BF16, 1000, 32000);
    works[0].gradient.logsumexp.data = &anything;
    launches = 0;
    assert_ok(engine->ops->fused(engine, &works[0], NULL));
    assert_int_equal(launches, 2);
    assert_string_equal(all_launched[1], "bp_gradient_fp32_bf16_general");
    works[0] = fused_of(BP_DTYPE_BF16, BP_DTYPE_BF16, 1000, 32000);
    works[0].forward.level = BP_SUMS_WEIGHTED;
    launches = 0;
    assert_ok(engine->ops->fused(engine, &works[0], NULL));
    assert_string_equal(all_launched[0], "bp_fused_bf16_bf16_entropy");
    works[0].gradient.mean_logprob.data = &anything;
    assert_ok(engine->ops->fused(engine, &works[0], NULL));
    assert_string_equal(launched, "bp_fused_bf16_bf16_general");
    assert_int_equal(launches, 2);
}

/* Logits and gradient as many elements from a vector. Such tiles take 16 bytes more. */
TEST(unaligned_rows_take_one_kernel)
{
    static const uint64_t columns[] = {50257, 151937};
    static const uint32_t threads[] = {512, 512}, places[] = {2, 3};
    for (size_t i = 0; i < 2; i++) {
        bp_fused_work work = fused_of(BP_DTYPE_BF16, BP_DTYPE_FP32, 1000, columns[i]);
        const uint32_t tiles = (uint32_t)((columns[i] + 2047) / 2048);
        launches = 0;
        assert_ok(engine->ops->fused(engine, &work, NULL));
        check_launch("bp_fused_realigned_bf16_fp32", 1000, threads[i]);
        assert_int_equal(grid.shared_bytes, 16 * tiles + places[i] * threads[i] / 32 * (4096 + 16));
        work.gradient.out_dtype = BP_DTYPE_BF16;
        work.gradient.entropy.data = &anything;
        assert_ok(engine->ops->fused(engine, &work, NULL));
        check_launch("bp_fused_realigned_bf16_bf16_entropy", 1000, threads[i]);
        assert_int_equal(launches, 2);
        work.gradient.logsumexp.data = &anything;
        assert_ok(engine->ops->fused(engine, &work, NULL));
        assert_string_equal(launched, "bp_gradient_bf16_bf16_general");
    }
}

TEST(launch_shapes_of_divergences)
{
    const bp_fused_work shape = fused_of(BP_DTYPE_BF16, BP_DTYPE_FP32, 16, 128000);
    const bp_divergence_work sums = {
        .tokens = shape.forward.tokens, .logits = shape.forward.logits, .reference = shape.forward.logits};
    bp_divergence_gradient_work gradient = {.tokens = sums.tokens,
                                            .logits = sums.logits,
                                            .reference = sums.logits,
                                            .out_stride = 128000,
                                            .out_dtype = BP_DTYPE_FP32};
    const bp_columns_work columns = {.rows = 10, .columns = 1000, .dtype = BP_DTYPE_FP32};
    assert_ok(engine->ops->divergence(engine, &sums, NULL));
    check_launch("bp_divergence_bf16", 16, 128);
    assert_ok(engine->ops->divergence_gradient(engine, &gradient, NULL));
    assert_string_equal(launched, "bp_divergence_gradient_bf16_fp32");
    assert_true(grid.blocks[0] == 16 && grid.blocks[1] == 15); /* of 8192 columns at least */
    gradient.out_dtype = BP_DTYPE_FP16;
    assert_fails(engine->ops->divergence_gradient(engine, &gradient, NULL), BP_ERR_UNSUPPORTED, "bf16", "fp16");
    assert_ok(engine->ops->columns(engine, &columns, NULL));
    check_launch("bp_columns_fp32", 8, 128);
}

/* The driver refuses empty grids. */
TEST(empty_grids_are_not_launched)
{
    const bp_rearrange_work moved = {.group = one_of(0), .token_bytes = 4, .word_bytes = 4};
    const bp_rearrange_work empty = {.group = one_of(9), .token_bytes = 0, .word_bytes = 16};
    const bp_seed_work seeds = {.group = one_of(0)};
    const bp_fused_work both = fused_of(BP_DTYPE_BF16, BP_DTYPE_FP32, 0, 32000);
    launches = 0;
    assert_ok(engine->ops->forward(engine, &both.forward, NULL));
    assert_ok(engine->ops->gradient(engine, &both.gradient, NULL));
    assert_ok(engine->ops->fused(engine, &both, NULL));
    assert_ok(engine->ops->rearrange(engine, &moved, NULL));
    assert_ok(engine->ops->rearrange(engine, &empty, NULL));
    assert_ok(engine->ops->seed(engine, &seeds, NULL));
    assert_int_equal(launches, 0);
}

TESTS(make_engine, end_engine)
