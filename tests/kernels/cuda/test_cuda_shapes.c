/* Kernel and grid selection for split batches: any choice gives right results, but a wrong one is slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "../../contract/support.h"
#include "devices/clients.h"
#include "logprob/cuda/cuda.h"

#define MOST_KERNELS 64

static char names[MOST_KERNELS][48];
static unsigned found, launches;
static const char *launched;
static bp_cuda_grid grid;

const uint64_t bp_cuda_image[] = {0};

const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device);
bp_status __wrap_bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
bp_status __wrap_bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);
bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *on, void **arguments,
                                bp_stream *stream);

const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device)
{
    static const bp_cuda_info info = {.compute_major = 9};
    (void)device;
    return &info;
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
    assert_true(found < MOST_KERNELS);
    snprintf(names[found], sizeof names[found], "%s", name);
    *kernel = (bp_cuda_kernel *)names[found++];
    return BP_OK;
}

bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *on, void **arguments,
                                bp_stream *stream)
{
    (void)arguments, (void)stream;
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

static void launch_shapes_of_rearrangements(void **state)
{
    (void)state;
    static const struct {
        uint64_t token_bytes;
        uint32_t word_bytes, blocks; /* blocks of 128 threads for 1000 tokens */
        const char *name;
    } cases[] = {{1, 1, 8, "bp_rearrange_1"},       {3, 1, 32, "bp_rearrange_1"},      {6, 2, 32, "bp_rearrange_2"},
                 {4, 4, 8, "bp_rearrange_4"},       {8, 8, 8, "bp_rearrange_8"},       {64, 16, 32, "bp_rearrange_16"},
                 {512, 16, 250, "bp_rearrange_16"}, {8192, 16, 250, "bp_rearrange_16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bp_rearrange_work work = {
            .group = one_of(1000), .token_bytes = cases[i].token_bytes, .word_bytes = cases[i].word_bytes};
        assert_ok(engine->ops->rearrange(engine, &work, NULL));
        check_launch(cases[i].name, cases[i].blocks, 128);
    }
}

static void launch_shapes_of_the_loss(void **state)
{
    (void)state;
    const bp_seed_work seeds = {.group = one_of(1000)};
    bp_sums_work sums = {.group = one_of(1000)};
    sums.group.count = 7;
    assert_ok(engine->ops->seed(engine, &seeds, NULL));
    check_launch("bp_seed", 8, 128);
    assert_ok(engine->ops->sums(engine, &sums, NULL));
    check_launch("bp_sums", 7, 512);
}

/* The driver refuses empty grids. */
static void empty_grids_are_not_launched(void **state)
{
    (void)state;
    const bp_rearrange_work moved = {.group = one_of(0), .token_bytes = 4, .word_bytes = 4};
    const bp_rearrange_work empty = {.group = one_of(9), .token_bytes = 0, .word_bytes = 16};
    const bp_seed_work seeds = {.group = one_of(0)};
    launches = 0;
    assert_ok(engine->ops->rearrange(engine, &moved, NULL));
    assert_ok(engine->ops->rearrange(engine, &empty, NULL));
    assert_ok(engine->ops->seed(engine, &seeds, NULL));
    assert_int_equal(launches, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(launch_shapes_of_rearrangements),
                                       cmocka_unit_test(launch_shapes_of_the_loss),
                                       cmocka_unit_test(empty_grids_are_not_launched)};
    return cmocka_run_group_tests(tests, make_engine, end_engine);
}
