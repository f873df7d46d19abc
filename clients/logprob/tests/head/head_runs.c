#include "support/harness.h"

#include "head_runs.h"
#include "support/pools.h"

bp_device *device;

int begin(void **state)
{
    (void)state;
    return bp_device_create_host(NULL, &device) != BP_OK;
}

int end(void **state)
{
    (void)state;
    const bp_device_usage usage = usage_of(device);
    assert_int_equal(usage.committed_bytes, 0);
    assert_int_equal(usage.streams, 0);
    assert_int_equal(usage.events, 0);
    bp_device_destroy(&device);
    return 0;
}

bp_lm_head *new_head(const bp_lm_head_config *config)
{
    bp_lm_head *head = NULL;
    assert_ok(bp_lm_head_create(device, config, &head));
    return head;
}

void run(bp_lm_head *head, head_tensors *t, bp_stream *stream)
{
    poison(t);
    assert_ok(bp_lm_head_forward(head, &t->batch, &t->outputs, stream));
    assert_ok(bp_lm_head_backward(head, &t->batch, &t->gradients, stream));
    if (stream != NULL)
        assert_ok(bp_stream_synchronize(stream));
}
