/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned memory of a cuda device: the driver reports its pages as pinned, copies use it, and captures refuse new pins. */
#include <bucketpool/device_ops.h>
#include <bucketpool/pinned.h>

#include "support/driver.h"
#include "support/suite/suite.h"

#define MIB ((uint64_t)1 << 20)
#define assert_ok(call) assert_int_equal((call), BP_OK)

static bp_pinned_statistics statistics_of(const bp_pinned *pinned)
{
    bp_pinned_statistics s = {.size = sizeof s};
    assert_ok(bp_pinned_statistics_get(pinned, &s));
    return s;
}

/* To the device and back through either kind of memory. */
TEST(copies)
{
    bp_device *device = new_cuda();
    bp_stream *stream = NULL;
    bp_pinned *pinned = NULL;
    const uint64_t sizes[] = {5 * MIB + 4096, 300 * 1024};
    void *self, *on_device;
    assert_ok(bp_stream_create(device, NULL, &stream));
    assert_ok(bp_pinned_create(device, NULL, &pinned));
    const bp_device_ops *ops = bp_device_table(device, &self);
    for (size_t i = 0; i < 2; i++) {
        uint8_t *from = NULL, *to = NULL;
        assert_ok(bp_pinned_allocate(pinned, sizes[i], 0, (void **)&from));
        assert_ok(bp_pinned_allocate(pinned, sizes[i], 0, (void **)&to));
        assert_ok(ops->reserve(self, 32 * MIB, 32 * MIB, &on_device));
        uint64_t handle;
        assert_ok(ops->commit(self, 32 * MIB, &handle));
        assert_ok(ops->map(self, on_device, 32 * MIB, handle));
        for (uint64_t at = 0; at < sizes[i]; at++)
            from[at] = (uint8_t)(at * 7 + at / 251);
        assert_ok(bp_stream_copy(stream, on_device, from, sizes[i]));
        assert_ok(bp_stream_copy(stream, to, on_device, sizes[i]));
        assert_ok(bp_stream_synchronize(stream));
        assert_memory_equal(from, to, sizes[i]);
        assert_ok(ops->unmap(self, on_device, 32 * MIB));
        assert_ok(ops->decommit(self, handle));
        assert_ok(ops->unreserve(self, on_device, 32 * MIB));
        assert_ok(bp_pinned_free(pinned, from));
        assert_ok(bp_pinned_free(pinned, to));
    }
    const bp_pinned_statistics s = statistics_of(pinned);
    print_message("node %d, touched in %llu us, pinned in %llu us\n", s.numa_node,
                  (unsigned long long)s.touch_ns / 1000, (unsigned long long)s.pin_ns / 1000);
    assert_int_equal(s.pinned_bytes, 64 * MIB);
    bp_pinned_destroy(&pinned);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
}

/* The driver refuses; existing memory still serves. */
TEST(capture)
{
    bp_device *device = new_cuda();
    bp_stream *stream = NULL;
    bp_pinned *pinned = NULL;
    bp_graph *graph = NULL;
    void *planned = NULL, *small = NULL, *more = NULL;
    assert_ok(bp_stream_create(device, NULL, &stream));
    assert_ok(bp_pinned_create(device, NULL, &pinned));
    assert_ok(bp_graph_begin(stream));
    bp_status status = bp_pinned_allocate(pinned, 2 * MIB, 0, &planned);
    if (status == BP_OK) { /* some drivers pin all the same */
        assert_ok(bp_pinned_free(pinned, planned));
    } else {
        assert_int_equal(status, BP_ERR_CAPTURE);
        assert_int_equal(bp_pinned_allocate(pinned, 100, 0, &small), BP_ERR_CAPTURE);
        assert_true(planned == NULL && small == NULL);
        assert_int_equal(statistics_of(pinned).pinned_bytes, 0);
    }
    (void)bp_graph_end(stream, &graph);
    bp_graph_destroy(&graph);
    assert_ok(bp_pinned_allocate(pinned, 100, 0, &small));
    assert_ok(bp_graph_begin(stream));
    assert_ok(bp_pinned_allocate(pinned, 100, 0, &more));
    assert_ok(bp_pinned_free(pinned, more));
    assert_ok(bp_graph_end(stream, &graph));
    bp_graph_destroy(&graph);
    assert_ok(bp_pinned_free(pinned, small));
    bp_pinned_destroy(&pinned);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
}

int main(void)
{
    if (!has_driver()) {
        puts("needs a driver: BP_TEST_DRIVER");
        return 77;
    }
    return run_suite();
}
