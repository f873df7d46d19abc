/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of kernels: images, launches, their arguments. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"
#include "support/add_words.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

#define WORDS (PART_BYTES / (unsigned)sizeof(uint32_t))
#define THREADS 128u
#define NO_BINARY_FOR_GPU 209
#define NO_CODE "the driver has no code of this kernel for the GPU"

static void *module, *kernel;

static int find_kernel(rules *r)
{
    int error = r->driver.cuModuleGetFunction(&kernel, module, ADD_WORDS);
    return error == 0 && r->driver.cuFuncLoad != NULL ? r->driver.cuFuncLoad(kernel) : error;
}

/* Begins a test with the module loaded; skips if this GPU, or the configured emulation, lacks the kernel. */
#define LOAD_OR_SKIP()                                                                                                 \
    do {                                                                                                               \
        int loaded = r->driver.cuModuleLoadData(&module, add_words_ptx);                                               \
        SKIP_UNLESS(loaded != NO_BINARY_FOR_GPU, NO_CODE);                                                             \
        EXPECT(loaded, 0);                                                                                             \
        OKAY(find_kernel(r));                                                                                          \
    } while (0)

static int launch_grid(rules *r, void *stream, unsigned blocks, unsigned threads, add_words_work *work)
{
    void *arguments[] = {work};
    return r->driver.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL);
}

/* Adds to the words of a part; the argument's memory is invalid when this returns. */
static int add_to_part(rules *r, void *stream, unsigned index, uint32_t number)
{
    add_words_work work = {part(r, index), WORDS, number};
    int error = launch_grid(r, stream, WORDS / THREADS, THREADS, &work);
    work = (add_words_work){0, 0, 0xdead};
    return error;
}

/* The first word of the part, and whether all are the same. */
static bool words_are(const rules *r, unsigned index, uint32_t number)
{
    const uint32_t *words = (const uint32_t *)(const void *)(r->host + (size_t)index * PART_BYTES);
    for (unsigned i = 0; i < WORDS; i++)
        if (words[i] != number)
            return false;
    return true;
}

void images_are_recognised(rules *r)
{
    static const char text[] = "kernels in an unknown language";
    REFUSED(r->driver.cuModuleLoadData(&module, text));
}

void newer_ptx_is_refused(rules *r)
{
    EXPECT(r->driver.cuModuleLoadData(&module, ".version 99.0\n.target sm_80\n.address_size 64\n"), 222);
}

static void load_without_context(rules *r)
{
    EXPECT(r->driver.cuModuleLoadData(&module, add_words_ptx), 201);
}

void modules_need_a_context(rules *r)
{
    in_thread(r, load_without_context);
}

void kernels_are_found_by_name(rules *r)
{
    void *other;
    LOAD_OR_SKIP();
    EXPECT(r->driver.cuModuleGetFunction(&other, module, "add_word"), 500);
    OKAY(r->driver.cuModuleUnload(module));
}

void kernels_run_in_order(rules *r)
{
    LOAD_OR_SKIP();
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(add_to_part(r, r->a, 0, 1));
    OKAY(copy_part(r, r->a, 1, 0));
    OKAY(add_to_part(r, r->a, 0, 1));
    open_gate(r);
    OKAY(read_part(r, r->a, 0));
    OKAY(read_part(r, r->a, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, 0x01010103));
    HOLDS(words_are(r, 1, 0x01010102));
    OKAY(r->driver.cuModuleUnload(module));
}

void kernels_run_on_the_legacy_stream(rules *r)
{
    LOAD_OR_SKIP();
    OKAY(fill_part(r, NULL, 0, 2));
    OKAY(add_to_part(r, NULL, 0, 5));
    OKAY(read_part(r, NULL, 0));
    OKAY(r->driver.cuStreamSynchronize(NULL));
    HOLDS(words_are(r, 0, 0x02020207));
    OKAY(r->driver.cuModuleUnload(module));
}

void arguments_are_copied_at_the_launch(rules *r)
{
    LOAD_OR_SKIP();
    add_words_work work = {part(r, 0), WORDS, 7};
    OKAY(fill_part(r, r->a, 1, 0));
    OKAY(hold_up(r, r->a));
    OKAY(launch_grid(r, r->a, WORDS / THREADS, THREADS, &work));
    work = (add_words_work){part(r, 1), WORDS / 2, 9};
    OKAY(launch_grid(r, r->a, WORDS / THREADS, THREADS, &work));
    work.number = 11;
    open_gate(r);
    OKAY(read_part(r, r->a, 0));
    OKAY(read_part(r, r->a, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, 7));
    const uint32_t *second = (const uint32_t *)(const void *)(r->host + PART_BYTES);
    HOLDS(second[WORDS / 2 - 1] == 9 && second[WORDS / 2] == 0);
    OKAY(r->driver.cuModuleUnload(module));
}

void arguments_are_captured(rules *r)
{
    void *executable = NULL;
    LOAD_OR_SKIP();
    OKAY(r->driver.cuStreamBeginCapture(r->a, 1));
    OKAY(add_to_part(r, r->a, 0, 3));
    OKAY(add_to_part(r, r->a, 0, 4));
    OKAY(end_as_executable(r, r->a, &executable));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, 0));
    OKAY(r->driver.cuGraphLaunch(executable, r->a));
    OKAY(r->driver.cuGraphLaunch(executable, r->a));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, 14));
    OKAY(r->driver.cuGraphExecDestroy(executable));
    OKAY(r->driver.cuModuleUnload(module));
}

void empty_grids_are_refused(rules *r)
{
    LOAD_OR_SKIP();
    add_words_work work = {part(r, 0), 1, 1};
    EXPECT(launch_grid(r, r->a, 0, THREADS, &work), 1);
    EXPECT(launch_grid(r, r->a, 1, 0, &work), 1);
    OKAY(launch_grid(r, r->a, 1, 1, &work));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(r->driver.cuModuleUnload(module));
}

void blocks_have_a_limit(rules *r)
{
    LOAD_OR_SKIP();
    add_words_work work = {part(r, 0), WORDS, 1};
    EXPECT(launch_grid(r, r->a, 1, 1025, &work), 1);
    OKAY(launch_grid(r, r->a, 1, 1024, &work));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(r->driver.cuModuleUnload(module));
}

static void launch_without_context(rules *r)
{
    OKAY_OR_WANTS_CONTEXT(add_to_part(r, r->a, 0, 1));
    EXPECT(add_to_part(r, NULL, 0, 1), 201);
}

static int launch_shared(rules *r, unsigned bytes)
{
    add_words_work work = {part(r, 0), WORDS, 1};
    void *arguments[] = {&work};
    return r->driver.cuLaunchKernel(kernel, 1, 1, 1, THREADS, 1, 1, bytes, r->a, arguments, NULL);
}

void shared_memory_is_allowed_by_kernel(rules *r)
{
    const unsigned max = 64u << 10;
    int device = 0, of_block = 0, used = 0;
    LOAD_OR_SKIP();
    OKAY(r->driver.cuDeviceGet(&device, 0));
    OKAY(r->driver.cuDeviceGetAttribute(&of_block, 97, device));
    OKAY(r->driver.cuFuncGetAttribute(&used, 1, kernel));
    SKIP_UNLESS(of_block - used >= (int)max, "the GPU has less than 64 KiB of shared memory for a block");
    EXPECT(launch_shared(r, max), 1);
    REFUSED(r->driver.cuFuncSetAttribute(kernel, 8, of_block - used + 1));
    OKAY(r->driver.cuFuncSetAttribute(kernel, 8, (int)max));
    OKAY(launch_shared(r, max));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(r->driver.cuModuleUnload(module));
}

void launches_need_a_context(rules *r)
{
    LOAD_OR_SKIP();
    in_thread(r, launch_without_context);
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(r->driver.cuModuleUnload(module));
}

void kernels_stay_on_their_device(rules *r)
{
    void *other, *popped, *stream;
    SKIP_UNLESS(r->devices > 1, "one device");
    LOAD_OR_SKIP();
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&other, 1));
    OKAY(r->driver.cuCtxPushCurrent(other));
    OKAY(r->driver.cuStreamCreate(&stream, 1));
    REFUSED(add_to_part(r, stream, 0, 1));
    OKAY(r->driver.cuCtxPopCurrent(&popped));
    REFUSED(add_to_part(r, stream, 0, 1));
    OKAY(r->driver.cuStreamDestroy(stream));
    OKAY(r->driver.cuDevicePrimaryCtxRelease(1));
    OKAY(r->driver.cuModuleUnload(module));
}

void launches_beside_another_context(rules *r)
{
    void *other, *popped;
    SKIP_UNLESS(r->devices > 1, "one device");
    LOAD_OR_SKIP();
    OKAY(fill_part(r, r->a, 0, 0));
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&other, 1));
    OKAY(r->driver.cuCtxPushCurrent(other));
    int answer = add_to_part(r, r->a, 0, 5);
    OKAY(r->driver.cuCtxPopCurrent(&popped));
    OKAY(r->driver.cuDevicePrimaryCtxRelease(1));
    HOLDS(answer == 0 || answer == 400);
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, answer == 0 ? 5 : 0));
    OKAY(r->driver.cuModuleUnload(module));
}

void found_kernels_are_captured(rules *r)
{
    void *executable = NULL;
    LOAD_OR_SKIP();
    OKAY(r->driver.cuStreamBeginCapture(r->a, 0));
    OKAY(add_to_part(r, r->a, 0, 6));
    OKAY(end_as_executable(r, r->a, &executable));
    OKAY(r->driver.cuGraphLaunch(executable, r->a));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(words_are(r, 0, 6));
    OKAY(r->driver.cuGraphExecDestroy(executable));
    OKAY(r->driver.cuModuleUnload(module));
}
