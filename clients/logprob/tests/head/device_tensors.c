/* SPDX-License-Identifier: Apache-2.0 */
#include "support/harness.h"

#include "device_tensors.h"
#include "support/pools.h"

#define ALIGNMENT 256

static uint64_t lay_out(device_tensors *w)
{
    head_memory memories[HEAD_MEMORIES];
    uint64_t bytes = 0;
    memories_of(&w->there, memories);
    for (int i = 0; i < HEAD_MEMORIES; i++) {
        *memories[i].at = w->base == NULL ? NULL : w->base + bytes;
        bytes += (memories[i].bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    }
    return bytes;
}

void begin_device_tensors(device_tensors *w, bp_device *device, const head_case *c, uint64_t first, uint64_t columns)
{
    void *address;
    *w = (device_tensors){.v = values_of(c)};
    w->here = tensors_of(&w->v, first, columns);
    if (c->dtype != BP_DTYPE_FP32) /* gradients of logits are rounded */
        w->here.allowed = c->dtype == BP_DTYPE_BF16 ? 0.02 : 0.004;
    w->there = w->here;
    const bp_workspace_need need = {"tensors", lay_out(w), 1};
    assert_ok(bp_stream_create(device, "caller", &w->stream));
    assert_ok(bp_workspace_init(device, "tensors", &need, 1, &w->memory));
    assert_ok(bp_workspace_take(&w->memory, 0, w->stream, &address));
    w->base = address;
    (void)lay_out(w);
    describe(&w->there);
}

void copy_device_tensors(device_tensors *w, bool back)
{
    head_memory here[HEAD_MEMORIES], there[HEAD_MEMORIES];
    memories_of(&w->here, here);
    memories_of(&w->there, there);
    for (int i = 0; i < HEAD_MEMORIES; i++)
        assert_ok(bp_stream_copy(w->stream, back ? *here[i].at : *there[i].at, back ? *there[i].at : *here[i].at,
                                 here[i].bytes));
    assert_ok(bp_stream_synchronize(w->stream));
}

void end_device_tensors(device_tensors *w)
{
    w->there = (head_tensors){0};
    bp_workspace_finish(&w->memory);
    bp_stream_destroy(&w->stream);
    free_tensors(&w->here);
    free_values(&w->v);
}

void reset_device_tensors(device_tensors *w)
{
    poison(&w->here);
    copy_device_tensors(w, false);
}

bool matches_reference(device_tensors *w)
{
    copy_device_tensors(w, true);
    const double outputs = wrong_outputs(&w->here), gradients = wrong_gradients(&w->here);
    if (!(outputs <= 1 && gradients <= 1))
        print_error("seed %llu, %s, chunk %lld: wrong by %g and %g\n", (unsigned long long)w->v.c.seed,
                    bp_dtype_name(w->v.c.dtype), (long long)w->v.c.chunk, outputs, gradients);
    return outputs <= 1 && gradients <= 1;
}
