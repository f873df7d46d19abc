/* A client or head does not allocate after its creation, on the caller's and the streams' threads. */
#include "support/harness.h"

#include "head/heads.h"
#include "support/allocations.h"
#include "support/hosts.h"
#include "support/pools.h"

TEST(counting_counts)
{
    count_allocations();
    batch_options options = {.batch = 1, .sequence = 1, .columns = 9};
    batch b = new_batch(&options);
    assert_true(counted_allocations() > 0);
    free_batch(&b);
}

static void serve(bp_logprob *client, const batch *b, bp_stream *stream, int times)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    for (int i = 0; i < times; i++) {
        assert_ok(bp_logprob_forward(client, &call, &outputs, stream));
        assert_ok(bp_logprob_backward(client, &call, &gradients, stream));
        assert_ok(bp_stream_synchronize(stream)); /* the next call writes the same */
        assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
        assert_ok(bp_logprob_forward_backward(client, &call, &outputs, &gradients, stream));
        assert_ok(bp_stream_synchronize(stream));
        call.tokens.soft_cap = -1; /* including errors */
        assert_int_equal(bp_logprob_forward(client, &call, &outputs, stream), BP_ERR_INVALID_ARGUMENT);
        call.tokens.soft_cap = 0;
        assert_ok(bp_logprob_check(client));
    }
}

/* From the first call. */
TEST(clients_do_not_allocate)
{
    FOR_KERNELS(kernels)
    {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            batch_options options = {.batch = 2, .sequence = 40, .columns = 500, .with_entropy = true, .masked = true};
            batch b = new_batch(&options);
            bp_stream *stream = NULL;
            assert_ok(bp_stream_create(device, "s", &stream));
            bp_logprob *client = new_client(device, &b, kernels->bit, threads);
            count_allocations();
            serve(client, &b, stream, 100);
            unsigned long seen = counted_allocations();
            assert_int_equal(seen, 0);
            assert_true(outputs_are_true(&b));
            bp_logprob_destroy(&client);
            bp_stream_destroy(&stream);
            free_batch(&b);
        }
    }
}

TEST(device_memory_stays_as_it_was_made)
{
    bp_device *own = new_host();
    batch_options options = {.batch = 2, .sequence = 40, .columns = 500, .with_entropy = true};
    batch b = new_batch(&options);
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(own, "s", &stream));
    bp_logprob *client = new_client(own, &b, BP_KERNELS_PLAIN, 2);
    const bp_logprob_info info = *bp_logprob_get_info(client);
    bp_device_usage before = usage_of(own);
    assert_int_equal(before.committed_bytes, info.workspace_bytes);
    serve(client, &b, stream, 20);
    bp_device_usage after = usage_of(own);
    assert_int_equal(after.committed_bytes, before.committed_bytes);
    assert_int_equal(after.peak_committed_bytes, before.committed_bytes);
    assert_true(after.peak_allocated_bytes == 0 && after.streams == before.streams && after.events == before.events);
    bp_logprob_destroy(&client);
    bp_stream_destroy(&stream);
    after = usage_of(own);
    assert_true(after.committed_bytes == 0 && after.streams == 0 && after.events == 0);
    bp_device_destroy(&own);
    free_batch(&b);
}

static void serve_head(bp_lm_head *head, const head_batch *h, bp_stream *stream, int times)
{
    bp_lm_head_batch call = head_call_of(h, whole_shard(&h->tokens));
    bp_logprob_outputs outputs = outputs_of(&h->tokens);
    bp_lm_head_gradients gradients = head_gradients_of(h, whole_shard(&h->tokens));
    for (int i = 0; i < times; i++) {
        assert_ok(bp_lm_head_forward(head, &call, &outputs, stream));
        assert_ok(bp_lm_head_backward(head, &call, &gradients, stream));
        assert_ok(bp_stream_synchronize(stream)); /* the next call writes the same */
        assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
        assert_ok(bp_lm_head_check(head));
    }
}

TEST(heads_do_not_allocate)
{
    if (!has_products(device))
        skip();
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
        head_options o = {.batch = 1, .sequence = 50, .hidden = 16, .columns = 70, .chunk = 8, .with_entropy = true};
        o.dtype = (bp_dtype)dtype;
        o.grad_dtype = (bp_dtype)dtype;
        head_batch h = new_head_batch(&o);
        bp_stream *stream = NULL;
        assert_ok(bp_stream_create(device, "s", &stream));
        bp_lm_head *head = new_head(device, &h);
        serve_head(head, &h, stream, 1);
        count_allocations();
        serve_head(head, &h, stream, 20);
        unsigned long seen = counted_allocations();
        assert_int_equal(seen, 0);
        bp_lm_head_destroy(&head);
        bp_stream_destroy(&stream);
        free_head_batch(&h);
    }
}

TESTS(open_host, close_host)
