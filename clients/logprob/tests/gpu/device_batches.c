/* SPDX-License-Identifier: Apache-2.0 */
#include "support/harness.h"

#include "device_batches.h"

#include <stdio.h>
#include <string.h>

#include "support/driver.h"
#include "support/pools.h"

#define SAVED_MARGIN 64 /* number of batches */
#define VIEWS 8

bool is_emulated(void)
{
    return driver_symbol("fake_cuda_broken") != NULL;
}

static bool is_small;

void take_arguments(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            is_small = true;
        else
            cmocka_set_test_filter(argv[i]);
    }
}

bool has_small_shapes(void)
{
    return is_small || is_emulated();
}

unsigned rounds(unsigned on_gpu, unsigned small)
{
    return has_small_shapes() ? small : on_gpu;
}

bool has_cuda_kernels(void)
{
    bp_logprob_config config;
    bp_logprob *client = NULL;
    bp_device *device = new_cuda();
    bp_status status = bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = config.vocab = 1;
    if (status == BP_OK)
        status = bp_logprob_create(device, &config, &client);
    if (status == BP_ERR_UNSUPPORTED)
        printf("%s\n", bp_error_detail());
    bp_logprob_destroy(&client);
    bp_device_destroy(&device);
    return status != BP_ERR_UNSUPPORTED;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

void *take_gpu_memory(uint64_t bytes)
{
    uint64_t address = 0;
    void *before;
    assert_int_equal(driver()->cuCtxPushCurrent(driver_context()), 0);
    int error = driver()->cuMemAlloc(&address, bytes);
    assert_int_equal(driver()->cuCtxPopCurrent(&before), 0);
    return error == 0 ? (void *)(uintptr_t)address : NULL; /* NOLINT(performance-no-int-to-ptr): it is one of the GPU */
}

void give_gpu_memory(void *memory)
{
    void *before;
    assert_int_equal(driver()->cuCtxPushCurrent(driver_context()), 0);
    assert_int_equal(driver()->cuMemFree((uint64_t)(uintptr_t)memory), 0);
    assert_int_equal(driver()->cuCtxPopCurrent(&before), 0);
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

/* An in-place gradient has no separate view. */
static size_t views_of(batch *b, view *views[VIEWS])
{
    view *const all[VIEWS] = {&b->logits,  &b->target,       &b->mask,         &b->logprob,
                              &b->entropy, &b->logprob_grad, &b->entropy_grad, &b->grad};
    size_t count = b->o.in_place ? VIEWS - 1 : VIEWS;
    for (size_t i = 0; i < count; i++)
        views[i] = all[i];
    return count;
}

static uint64_t saved_span(const batch *b)
{
    return 2 * SAVED_MARGIN + b->saved_bytes;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

device_batch new_device_batch(batch *b, bp_stream *stream)
{
    device_batch t = {.host = b, .gpu = *b, .stream = stream};
    view *views[VIEWS];
    size_t count = views_of(&t.gpu, views);
    uint64_t bytes = rounded(saved_span(b));
    for (size_t i = 0; i < count; i++)
        bytes += rounded(views[i]->bytes);
    t.memory = take_gpu_memory(bytes);
    assert_non_null(t.memory);
    uint8_t *next = t.memory;
    for (size_t i = 0; i < count; i++) {
        ptrdiff_t first = views[i]->data - views[i]->memory;
        views[i]->memory = next;
        views[i]->data = next + first;
        next += rounded(views[i]->bytes);
    }
    t.gpu.saved = next;
    if (b->o.in_place)
        t.gpu.grad = t.gpu.logits;
    t.gpu.x = NULL;
    t.gpu.original = NULL;
    copy_to_gpu(&t);
    return t;
}

void free_device_batch(device_batch *t)
{
    assert_ok(bp_stream_synchronize(t->stream));
    give_gpu_memory(t->memory);
}

static void copy(const device_batch *t, bool to_gpu)
{
    batch *gpu = (batch *)&t->gpu;
    view *here[VIEWS], *there[VIEWS];
    size_t count = views_of(t->host, here);
    views_of(gpu, there);
    for (size_t i = 0; i < count; i++)
        assert_ok(bp_stream_copy(t->stream, to_gpu ? there[i]->memory : here[i]->memory,
                                 to_gpu ? here[i]->memory : there[i]->memory, here[i]->bytes));
    assert_ok(bp_stream_copy(t->stream, to_gpu ? gpu->saved : t->host->saved, to_gpu ? t->host->saved : gpu->saved,
                             saved_span(t->host)));
    assert_ok(bp_stream_synchronize(t->stream));
}

void copy_to_gpu(const device_batch *t)
{
    copy(t, true);
}

void copy_to_host(const device_batch *t)
{
    copy(t, false);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void cut_values(bp_token_values *values, uint32_t element, uint64_t first)
{
    if (values->data != NULL)
        values->data = (char *)values->data + (int64_t)first * values->stride * (int64_t)element;
}

static void cut_rows(bp_token_rows *rows, uint32_t element, uint64_t first, uint64_t count)
{
    if (rows->stride == 0 && rows->batch_stride == 0) {
        rows->stride = (int64_t)rows->columns;
        rows->batch_stride = (int64_t)(rows->columns * rows->sequence);
    }
    rows->data = (char *)rows->data + (int64_t)first * rows->stride * (int64_t)element;
    rows->sequence = count;
}

static bp_logprob_batch part_of(const batch *b, uint64_t first, uint64_t count)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    cut_rows(&call.logits, b->logits.element, first, count);
    cut_values(&call.tokens.target, b->target.element, first);
    cut_values(&call.tokens.mask, 1, first);
    return call;
}

void forward_part(bp_logprob *client, const device_batch *t, uint64_t first, uint64_t count)
{
    bp_logprob_batch call = part_of(&t->gpu, first, count);
    bp_logprob_outputs outputs = outputs_of(&t->gpu);
    cut_values(&outputs.logprob, 4, first);
    cut_values(&outputs.entropy, 4, first);
    assert_ok(bp_logprob_forward(client, &call, &outputs, t->stream));
}

void backward_part(bp_logprob *client, const device_batch *t, uint64_t first, uint64_t count)
{
    bp_logprob_batch call = part_of(&t->gpu, first, count);
    bp_logprob_gradients gradients = gradients_of(&t->gpu, whole_shard(&t->gpu));
    cut_values(&gradients.logprob_grad, 4, first);
    cut_values(&gradients.entropy_grad, 4, first);
    cut_rows(&gradients.logits_grad, t->gpu.grad.element, first, count);
    assert_ok(bp_logprob_backward(client, &call, &gradients, t->stream));
}
