/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the present driver: launched, captured and launched again. */
#include <bucketpool/device_ops.h>

#include "support/add_words.h"
#include "support/driver.h"
#include "support/pools.h"

#define WORDS (PINNED_BYTES / (uint32_t)sizeof(uint32_t))
#define LAUNCHES 5u

static void launch(const bp_cuda_kernel *kernel, void *words, uint32_t number, bp_stream *stream)
{
    add_words_work work = {(uintptr_t)words, WORDS, number};
    void *arguments[] = {&work};
    const bp_cuda_grid grid = {{WORDS / 256 + 1, 1, 1}, {256, 1, 1}, 0};
    assert_ok(bp_cuda_launch(kernel, &grid, arguments, stream));
}

static void assert_words(bp_stream *stream, const void *words, uint32_t number)
{
    uint32_t *pinned = take_pinned();
    assert_ok(bp_stream_copy(stream, pinned, words, PINNED_BYTES));
    assert_ok(bp_stream_synchronize(stream));
    for (uint32_t i = 0; i < WORDS; i++)
        assert_int_equal(pinned[i], number);
    give_pinned(pinned);
}

TEST(launches)
{
    bp_device *device = new_cuda();
    bp_cuda_module *module = NULL;
    bp_cuda_kernel *kernel = NULL;
    bp_stream *stream;
    bp_graph *graph;
    void *self, *words;
    uint64_t handle;
    bp_status status = bp_cuda_module_create(device, add_words_ptx, &module);
    if (status == BP_ERR_UNSUPPORTED && has_real_driver()) {
        printf("%s\n", bp_error_detail());
        fflush(stdout);
        _Exit(77);
    }
    assert_ok(status);
    assert_ok(bp_cuda_module_kernel(module, ADD_WORDS, &kernel));
    bp_device_traits traits = {.size = sizeof traits};
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_ok(ops->traits(self, &traits));
    const uint64_t bytes = (PINNED_BYTES + traits.granularity - 1) / traits.granularity * traits.granularity;
    assert_ok(ops->reserve(self, bytes, traits.granularity, &words));
    assert_ok(ops->commit(self, bytes, &handle));
    assert_ok(ops->map(self, words, bytes, handle));
    assert_ok(bp_stream_create(device, "launches", &stream));
    assert_ok(bp_stream_fill(stream, words, 0, PINNED_BYTES));
    assert_ok(bp_graph_begin(stream)); /* the kernel's first launch of all */
    launch(kernel, words, 10, stream);
    launch(kernel, words, 100, stream);
    assert_ok(bp_graph_end(stream, &graph));
    assert_words(stream, words, 0);
    launch(kernel, words, 1, stream);
    assert_words(stream, words, 1);
    for (uint32_t i = 0; i < LAUNCHES; i++)
        assert_ok(bp_graph_launch(graph, stream));
    assert_words(stream, words, 1 + LAUNCHES * 110);
    bp_graph_destroy(&graph);
    bp_stream_destroy(&stream);
    bp_cuda_module_destroy(&module);
    assert_ok(ops->unmap(self, words, bytes));
    assert_ok(ops->decommit(self, handle));
    assert_ok(ops->unreserve(self, words, bytes));
    bp_device_destroy(&device);
}
