/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of calls: every requested element, and nothing else. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/scenarios.h"

/* Two poisons give equal results, so everything is written. */
static void check_all_is_written(const batch_options *options, uint32_t kernels)
{
    seed(5);
    batch a = new_batch(options);
    seed(5);
    batch b = new_batch(options);
    bp_logprob *client = new_client(device, &a, kernels, 0);
    poison_outputs(&b, 0x5a);
    poison_gradient(&b, 0x5a);
    run_forward(client, &a);
    run_forward(client, &b);
    if (!options->masked)
        assert_memory_equal(a.saved + 64, b.saved + 64, a.saved_bytes);
    run_backward(client, &a);
    run_backward(client, &b);
    assert_true(outputs_are_true(&a) && outputs_are_true(&b));
    assert_true(gradient_is_true(&a, whole_shard(&a)) && gaps_are_whole(&b.grad, "the other gradient"));
    assert_true(options->without_logprob || same_rows(&a.logprob, &b.logprob, "log-probabilities"));
    assert_true(!options->with_entropy || same_rows(&a.entropy, &b.entropy, "entropies"));
    assert_true(same_rows(&a.grad, &b.grad, "gradients"));
    bp_logprob_destroy(&client);
    free_batch(&a);
    free_batch(&b);
}

TEST(everything_is_written_over_poison)
{
    static const uint64_t sequences[] = {1, 17};
    FOR_KERNELS(kernels)
    {
        for (size_t i = 0; i < 2; i++) {
            for (uint32_t bits = 0; bits < 16; bits++) {
                batch_options options = {.batch = 2,
                                         .sequence = sequences[i],
                                         .columns = 203,
                                         .dtype = (bits & 1) != 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP32,
                                         .masked = (bits & 2) != 0,
                                         .with_entropy = (bits & 4) != 0,
                                         .logits = {.row_gap = 3, .batch_gap = 11, .shift = 1},
                                         .outputs = {.row_gap = 2, .batch_gap = 5, .shift = 1},
                                         .grad = {.row_gap = 21, .batch_gap = 7, .shift = 3}};
                options.in_place = (bits & 8) != 0;
                check_all_is_written(&options, kernels->bit);
            }
        }
    }
}

/* Gradients large enough for streaming stores, at any alignment. */
TEST(large_rows_leave_their_gaps)
{
    batch_options options = {.batch = 1,
                             .sequence = 7,
                             .columns = 620003,
                             .with_entropy = true,
                             .logits = {.shift = 1, .row_gap = 5},
                             .grad = {.shift = 3, .row_gap = 9}};
    FOR_KERNELS(kernels)
    {
        check_all_is_written(&options, kernels->bit);
    }
}

TEST(unrequested_outputs_are_not_written)
{
    FOR_KERNELS(kernels)
    {
        batch_options options = {
            .batch = 2, .sequence = 3, .columns = 40, .without_logprob = true, .with_entropy = true};
        check_all_is_written(&options, kernels->bit);
        options = (batch_options){.batch = 2, .sequence = 3, .columns = 40};
        check_all_is_written(&options, kernels->bit);
    }
}

/* Inference only, without saved statistics; and saved statistics without outputs. */
TEST(outputs_are_each_optional)
{
    batch_options options = {.batch = 2, .sequence = 5, .columns = 300, .with_entropy = true};
    batch b = new_batch(&options);
    bp_logprob *client = new_client(device, &b, BP_KERNELS_ALL, 0);
    bp_logprob_batch call = call_of(&b, whole_shard(&b));
    bp_logprob_outputs outputs = outputs_of(&b);
    outputs.saved = NULL;
    outputs.saved_bytes = 0;
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_true(outputs_are_true(&b));
    outputs = outputs_of(&b);
    outputs.logprob.data = outputs.entropy.data = NULL;
    poison_outputs(&b, 0x11);
    outputs.saved_bytes = 8 * token_count(&b);
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    b.o.without_logprob = true;
    b.o.with_entropy = false;
    assert_true(outputs_are_true(&b));
    b.o.without_logprob = false;
    bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
    gradients.entropy_grad.data = NULL;
    gradients.saved_bytes = 8 * token_count(&b);
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    assert_true(gradient_is_true(&b, whole_shard(&b)));
    /* no upstream gradients: zeros */
    gradients.logprob_grad.data = NULL;
    poison_gradient(&b, POISON);
    b.o.without_logprob = true;
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    assert_true(gradient_is_true(&b, whole_shard(&b)));
    bp_logprob_destroy(&client);
    free_batch(&b);
}

/* Inaccessible pages directly before and after the row, and in place of a masked row. */
static void check_between_forbidden_pages(const kernels_row *kernels, bp_dtype dtype, uint64_t columns, bool at_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = 16 * page;
    uint8_t *memory = mmap(NULL, 5 * room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    size_t element = bp_dtype_bits(dtype) / 8, used = (columns * element + page - 1) / page * page;
    assert_true(used < room);
    for (size_t row = 0; row < 3; row += 2)
        assert_int_equal(mprotect(memory + row * room + page, used, PROT_READ | PROT_WRITE), 0);
    uint8_t *first = memory + page + (at_end ? used - columns * element : 0);
    batch_options options = {
        .batch = 1, .sequence = 3, .columns = columns, .dtype = dtype, .with_entropy = true, .masked = true};
    batch b = new_batch(&options);
    for (uint64_t s = 0; s < 3; s++)
        *(uint8_t *)row_at(&b.mask, 0, s) = s != 1;
    for (uint64_t s = 0; s < 3; s += 2)
        for (uint64_t v = 0; v < columns; v++)
            put_logit(&b, 0, s, v, random_fraction());
    for (uint64_t s = 0; s < 3; s += 2)
        memcpy(first + s * room, row_at(&b.logits, 0, s), columns * element);
    bp_logprob *client = new_client(device, &b, kernels->bit, 0);
    bp_logprob_batch call = call_of(&b, whole_shard(&b));
    bp_logprob_outputs outputs = outputs_of(&b);
    bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
    call.logits.data = first;
    call.logits.stride = (int64_t)(room / element);
    call.logits.batch_stride = 3 * call.logits.stride;
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    assert_true(outputs_are_true(&b) && gradient_is_true(&b, whole_shard(&b)));
    bp_logprob_destroy(&client);
    free_batch(&b);
    munmap(memory, 5 * room);
}

TEST(nothing_is_read_outside_of_rows)
{
    static const uint64_t widths[] = {1, 15, 33, 100, 2047, 2048, 3000, 8191};
    FOR_KERNELS(kernels)
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++)
        for (size_t i = 0; i < 8; i++)
            for (int at_end = 0; at_end < 2; at_end++)
                check_between_forbidden_pages(kernels, (bp_dtype)dtype, widths[i], at_end != 0);
}

/* Strides 0, 0 mean contiguous rows; in place, both spellings are equal, and strides of a single row do not matter. */
TEST(strides_of_0_are_rows_without_gaps)
{
    for (uint64_t rows = 1; rows < 4; rows++) {
        for (int which = 0; which < 4; which++) {
            batch_options options = {.batch = rows, .sequence = 4 - rows, .columns = 41, .with_entropy = true};
            options.in_place = which == 3;
            batch b = new_batch(&options);
            bp_logprob *client = new_client(device, &b, BP_KERNELS_PLAIN, 1);
            bp_logprob_batch call = call_of(&b, whole_shard(&b));
            bp_logprob_outputs outputs = outputs_of(&b);
            bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
            if (which != 1)
                call.logits.batch_stride = call.logits.stride = 0;
            if (which == 1 || which == 2)
                gradients.logits_grad.batch_stride = gradients.logits_grad.stride = 0;
            assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
            assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
            assert_true(outputs_are_true(&b) && gradient_is_true(&b, whole_shard(&b)));
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

TESTS(open_host, close_host)
