/* SPDX-License-Identifier: Apache-2.0 */
/* No client allocates after its creation, on any thread, and device memory stays as creation made it. */
#include "support/harness.h"

#include "support/allocations.h"
#include "support/clients.h"
#include "support/hosts.h"
#include "support/pools.h"

TEST(counting_counts)
{
    count_allocations();
    bp_device *own = new_host();
    assert_true(counted_allocations() > 0);
    bp_device_destroy(&own);
}

/* Calls on both kinds of streams, and refused ones. */
static void serve(client *c, job *j, bp_stream *stream, bp_stream *foreign, int times)
{
    for (int i = 0; i < times; i++) {
        assert_ok(c->kind->call(c, j, stream, i % 2 == 0));
        assert_ok(bp_stream_synchronize(stream));
        assert_ok(c->kind->call(c, j, NULL, false));
        if (i % 4 == 3)
            assert_int_equal(c->kind->call(c, j, foreign, true), BP_ERR_INVALID_ARGUMENT);
    }
}

TEST(clients_do_not_allocate)
{
    FOR_CLIENTS_ON(device, kind)
    {
        bp_device *own = new_host();
        bp_stream *stream = NULL, *foreign = NULL;
        client c;
        job j;
        begin_job(&j, own, 0);
        assert_ok(bp_stream_create(own, "s", &stream));
        assert_ok(bp_stream_create(device, "foreign", &foreign));
        begin_client(&c, kind, own, NULL);
        assert_ok(kind->create(&c));
        serve(&c, &j, stream, foreign, 1); /* OpenMP and BLAS libraries start their threads with the first work */
        const bp_device_usage before = usage_of(own);
        count_allocations();
        serve(&c, &j, stream, foreign, 40);
        assert_int_equal(counted_allocations(), 0);
        const bp_device_usage after = usage_of(own);
        assert_true(after.committed_bytes == before.committed_bytes && after.streams == before.streams);
        assert_true(after.peak_committed_bytes == before.committed_bytes && after.events == before.events);
        assert_true(after.allocated_bytes == before.allocated_bytes);
        end_client(&c);
        assert_ok(end_job(&j));
        bp_stream_destroy(&stream);
        bp_stream_destroy(&foreign);
        const bp_device_usage end = usage_of(own);
        assert_true(end.committed_bytes == 0 && end.streams == 0 && end.events == 0);
        bp_device_destroy(&own);
    }
}

TESTS(open_host, close_host)
