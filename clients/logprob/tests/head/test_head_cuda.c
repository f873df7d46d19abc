/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head on cuda: on the emulated driver with emulated kernels and an emulated cuBLAS, or on a GPU. Results against fp64, capture
 * and replay, and a device that is destroyed before the head. */
#include "support/harness.h"

#include <bucketpool/capture.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_tensors.h"
#include "support/driver.h"
#include "support/pools.h"

static bp_lm_head *new_head(bp_device *device, const head_case *c, bp_targets targets)
{
    bp_lm_head_config config = head_config_of(c);
    config.targets = targets;
    bp_lm_head *head = NULL;
    bp_status status = bp_lm_head_create(device, &config, &head);
    if (status == BP_ERR_UNSUPPORTED && has_real_driver()) { /* a build without kernels, or a machine without cuBLAS */
        printf("%s\n", bp_error_detail());
        fflush(stdout);
        _Exit(77);
    }
    assert_ok(status);
    return head;
}

static void call(bp_lm_head *head, device_tensors *w, bp_stream *stream)
{
    assert_ok(call_head(head, &w->there, stream));
}

/* Compares a head's results with fp64, `calls` times: after the first one without a stream. Returns the head's sizes. */
static bp_lm_head_sizes check_case(bp_device *device, const head_case *c, bp_targets targets, int calls)
{
    device_tensors w;
    begin_device_tensors(&w, device, c, 0, c->vocab);
    bp_lm_head *head = new_head(device, c, targets);
    const bp_lm_head_sizes sizes = *bp_lm_head_get_info(head)->sizes;
    assert_int_equal(sizes.piece_tokens, bp_lm_head_get_info(head)->piece_tokens);
    for (int i = 0; i < calls; i++) {
        reset_device_tensors(&w);
        call(head, &w, i == 0 ? w.stream : NULL);
        assert_true(matches_reference(&w));
    }
    bp_lm_head_destroy(&head);
    end_device_tensors(&w);
    return sizes;
}

TEST(test_random)
{
    bp_device *device = new_cuda();
    for (uint64_t seed = 0; seed < 24; seed++) {
        head_case c = random_case(seed);
        c.masks_finite = true;
        (void)check_case(device, &c, BP_TARGETS_MASK, 2);
    }
    bp_device_destroy(&device);
}

/* Parts of the vocabulary in backward, and pieces of tokens with them: memory for the least of both. */
TEST(test_parts)
{
    bp_device *device = new_cuda();
    for (uint64_t i = 0; i < 6; i++) {
        head_case c = {.batch = i % 2 == 0 ? 1 : 3,
                       .sequence = i % 2 == 0 ? 1100 : 430,
                       .hidden = 3,
                       .vocab = 4500,
                       .dtype = i < 3 ? BP_DTYPE_BF16 : BP_DTYPE_FP32,
                       .grad_dtype = i % 3 == 0 ? BP_DTYPE_FP32
                                     : i < 3    ? BP_DTYPE_BF16
                                                : BP_DTYPE_FP32,
                       .temperature = 1,
                       .has_mask = i % 3 != 1,
                       .masks_finite = true,
                       .ignores = true,
                       .seed = i,
                       .way = (head_way)(i % HEAD_WAYS),
                       .memory_bytes = 1};
        const bp_lm_head_sizes sizes = check_case(device, &c, BP_TARGETS_ERROR, 1);
        assert_true(c.way == ONE_CALL || sizes.backward_columns == 1536);
        assert_true(sizes.piece_tokens < c.batch * c.sequence);
    }
    bp_device_destroy(&device);
}

/* A piece in one workspace: its halves are tokens of a sequence or whole sequences. */
TEST(test_halves)
{
    bp_device *device = new_cuda();
    for (uint64_t i = 0; i < 6; i++) {
        head_case c = {.batch = i % 2 == 0 ? 1 : 3,
                       .sequence = i % 2 == 0 ? 1101 : 430,
                       .hidden = 3,
                       .vocab = 60,
                       .dtype = i < 3 ? BP_DTYPE_BF16 : BP_DTYPE_FP32,
                       .grad_dtype = BP_DTYPE_FP32,
                       .temperature = 1,
                       .has_mask = i % 3 != 1,
                       .has_entropy = i % 3 != 2,
                       .by_token = i > 3,
                       .masks_finite = true,
                       .ignores = true,
                       .narrow_weight_grad = true,
                       .seed = i,
                       .way = (head_way)(i % HEAD_WAYS)};
        const bp_lm_head_sizes sizes = check_case(device, &c, BP_TARGETS_ERROR, 1);
        assert_int_equal(sizes.piece_tokens, c.batch * c.sequence);
    }
    bp_device_destroy(&device);
}

static const head_case some = {.batch = 2,
                               .sequence = 9,
                               .hidden = 16,
                               .vocab = 50,
                               .dtype = BP_DTYPE_BF16,
                               .grad_dtype = BP_DTYPE_BF16,
                               .chunk = 4,
                               .temperature = 1,
                               .has_entropy = true,
                               .seed = 2};

TEST(test_info)
{
    bp_device *device = new_cuda();
    bp_lm_head *head = new_head(device, &some, BP_TARGETS_MASK);
    const bp_lm_head_info info = *bp_lm_head_get_info(head);
    assert_string_equal(info.products, "cublas");
    assert_string_equal(info.kernels, "cuda");
    assert_int_equal(info.workspace_bytes, info.planned_bytes);
    assert_int_equal(info.workspace_bytes, usage_of(device).committed_bytes);
    assert_int_equal(info.sizes->chunk_bytes, 4 * 64 * 4);
    bp_lm_head_destroy(&head);
    bp_device_destroy(&device);
}

static void launch(bp_capture *capture, bp_graph *graph, bp_stream *stream)
{
    assert_ok(bp_capture_before_launch(capture, stream));
    assert_ok(bp_graph_launch(graph, stream));
    assert_ok(bp_capture_launched(capture, stream));
}

/* Both passes in one graph, alternating with eager ones: equal bits. */
static void replay(bp_device *device, bp_targets targets, head_way way)
{
    device_tensors w;
    head_case c = some;
    c.way = way;
    begin_device_tensors(&w, device, &c, 0, c.vocab);
    bp_lm_head *head = new_head(device, &c, targets);
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    reset_device_tensors(&w);
    call(head, &w, w.stream);
    copy_device_tensors(&w, true);
    const uint64_t bits = bits_of(&w.here);
    assert_true(targets == BP_TARGETS_ERROR || matches_reference(&w)); /* a bad target makes its token NaN */
    if (targets == BP_TARGETS_ERROR)
        assert_fails(bp_lm_head_check(head), BP_ERR_INVALID_ARGUMENT, "-100");
    assert_ok(bp_capture_begin(bp_lm_head_get_info(head)->pool, NULL, &capture));
    assert_ok(bp_graph_begin(w.stream));
    call(head, &w, w.stream);
    assert_ok(bp_graph_end(w.stream, &graph));
    assert_ok(bp_capture_end(capture));
    assert_ok(bp_lm_head_check(head)); /* not launched yet */
    for (int i = 0; i < 6; i++) {
        reset_device_tensors(&w);
        if (i % 3 == 2)
            call(head, &w, w.stream);
        else
            launch(capture, graph, w.stream);
        if (targets == BP_TARGETS_ERROR)
            assert_fails(bp_lm_head_check(head), BP_ERR_INVALID_ARGUMENT, "-100");
        copy_device_tensors(&w, true);
        assert_true(bits_of(&w.here) == bits);
    }
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    bp_lm_head_destroy(&head);
    end_device_tensors(&w);
}

TEST(test_captured)
{
    bp_device *device = new_cuda();
    for (int way = 0; way < HEAD_WAYS; way++) {
        replay(device, BP_TARGETS_MASK, (head_way)way);
        replay(device, BP_TARGETS_ERROR, (head_way)way);
    }
    bp_device_destroy(&device);
}

/* A check waits for the backward pass as well, so its outputs are complete for any stream. */
TEST(test_check_waits)
{
    bp_device *device = new_cuda();
    device_tensors w;
    head_case ignoring = some; /* the targets that would be bad */
    ignoring.ignores = ignoring.masks_finite = true;
    begin_device_tensors(&w, device, &ignoring, 0, some.vocab);
    bp_lm_head *head = new_head(device, &ignoring, BP_TARGETS_ERROR);
    bp_stream *caller = w.stream, *other = NULL;
    assert_ok(bp_stream_create(device, "other", &other));
    for (int i = 0; i < 3; i++) {
        reset_device_tensors(&w);
        call(head, &w, caller);
        assert_ok(bp_lm_head_check(head));
        w.stream = other;
        assert_true(matches_reference(&w));
        w.stream = caller;
        assert_ok(bp_stream_synchronize(caller));
    }
    bp_stream_destroy(&other);
    bp_lm_head_destroy(&head);
    end_device_tensors(&w);
    bp_device_destroy(&device);
}

TEST(test_device_goes_first)
{
    bp_device *device = new_cuda();
    bp_lm_head *head = new_head(device, &some, BP_TARGETS_MASK);
    bp_device_destroy(&device);
    bp_lm_head_destroy(&head);
    assert_null(head);
}

TESTS(NULL, NULL)
