/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head against a plain fp64 computation that stores all logits. */
#include "support/harness.h"

#include "../support/hosts.h"
#include "heads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/pools.h"

static void check_way(const head_options *options, head_way way)
{
    head_options o = *options;
    o.way = way;
    seed(61);
    head_batch h = new_head_batch(&o);
    bp_lm_head *head = new_head(device, &h);
    check_head(head, &h);
    bp_lm_head_destroy(&head);
    assert_null(head);
    free_head_batch(&h);
}

static void check_head_options(const head_options *options)
{
    for (int way = 0; way < HEAD_WAYS; way++)
        check_way(options, (head_way)way);
}

TEST(chunks_dtypes_and_entropies)
{
    static const int64_t chunks[] = {0, 1, 3, 5, 16, 17, 1000};
    int turn = 0; /* 28 of each dtype */
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++)
        for (size_t c = 0; c < 7; c++)
            for (int variant = 0; variant < 4; variant++)
                check_way(&(head_options){.batch = 2,
                                          .sequence = 17,
                                          .hidden = 24,
                                          .columns = 131,
                                          .dtype = (bp_dtype)dtype,
                                          .grad_dtype = variant == 3 ? (bp_dtype)dtype : BP_DTYPE_FP32,
                                          .chunk = chunks[c],
                                          .with_entropy = (variant & 1) != 0,
                                          .without_logprob = variant == 3,
                                          .masked = variant >= 2,
                                          .accumulate = variant == 1,
                                          .temperature = variant == 2 ? 0.6 : 1,
                                          .outside_in_16 = 2,
                                          .ignored_in_16 = variant == 3 ? 5 : 0,
                                          .vocab_start = variant == 1 ? 700 : 0},
                          (head_way)(turn++ % HEAD_WAYS));
}

/* More columns than a kernel tile, and hidden sizes that are not a multiple of a vector. */
TEST(shapes_may_be_odd)
{
    static const uint64_t shapes[][4] = {{1, 1, 1, 1},     {1, 1, 3, 2},    {3, 1, 1, 9},
                                         {1, 7, 33, 4100}, {4, 3, 129, 61}, {2, 40, 5, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++)
            check_head_options(&(head_options){.batch = shapes[i][0],
                                               .sequence = shapes[i][1],
                                               .hidden = shapes[i][2],
                                               .columns = shapes[i][3],
                                               .dtype = (bp_dtype)dtype,
                                               .chunk = 3,
                                               .with_entropy = true});
}

/* Tiles of the vocabulary, of 2048 columns because of the tokens in a chunk or because of the hidden size. */
TEST(vocabularies_are_tiled)
{
    for (int i = 0; i < 6; i++) {
        const bool many = i % 2 == 0;
        const bp_dtype dtype = (bp_dtype)(BP_DTYPE_FP32 + i % 3);
        check_way(&(head_options){.batch = 2,
                                  .sequence = many ? 1030 : 2,
                                  .hidden = many ? 8 : 2100,
                                  .columns = many ? 2060 : 4100,
                                  .dtype = dtype,
                                  .grad_dtype = i % 4 < 2 ? dtype : BP_DTYPE_FP32,
                                  .chunk = many ? 0 : 4,
                                  .masked = i % 3 != 0,
                                  .with_entropy = i % 5 < 3,
                                  .accumulate = i % 4 == 0,
                                  .weight_at = {.row_gap = i > 2 ? 3 : 0},
                                  .temperature = 0.8},
                  (head_way)(i / 2));
    }
}

TEST(random_heads_are_true)
{
    for (uint64_t round = 0; round < 60; round++) {
        seed(500 + round);
        head_options o = {.batch = 1 + random_below(3),
                          .sequence = 1 + random_below(20),
                          .hidden = 1 + random_below(70),
                          .columns = 1 + random_below(400),
                          .dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3)),
                          .hidden_at = random_layout(),
                          .hidden_grad_at = random_layout(),
                          .weight_at = {.shift = random_below(9), .row_gap = random_below(2) * random_below(30)},
                          .weight_grad_at = {.shift = random_below(9), .row_gap = random_below(2) * random_below(30)},
                          .target = random_layout(),
                          .outputs = random_layout(),
                          .upstream = random_layout(),
                          .mask = random_layout(),
                          .masked = random_below(3) == 0,
                          .with_entropy = random_below(2) == 0,
                          .accumulate = random_below(3) == 0,
                          .temperature = random_below(2) == 0 ? 0 : 0.5 + random_below(3),
                          .chunk = random_below(9),
                          .threads = random_below(3),
                          .outside_in_16 = random_below(4),
                          .ignored_in_16 = random_below(3) * 3,
                          .ignores_first = random_below(2) == 0};
        o.grad_dtype = random_below(2) == 0 ? o.dtype : BP_DTYPE_FP32;
        if (round % 2 != 0) {
            o.targets = 1 + random_below(6);
            o.biased = random_below(3) != 0;
            o.with_logsumexp = random_below(2) == 0;
            o.with_mean = random_below(2) == 0;
            o.heated = random_below(2) == 0;
            o.soft_cap = random_below(2) == 0 ? 2 + random_below(20) : 0;
        }
        o.excludes = o.biased && !o.with_mean && o.soft_cap == 0 && random_below(2) == 0;
        o.way = (head_way)random_below(HEAD_WAYS);
        if (o.chunk == 0 && !o.accumulate)
            o.narrow_weight_grad = random_below(2) == 0;
        if (round % 8 == 7) { /* products of one term, exact in fp32: rounded alike */
            o.hidden = 1;
            o.dtype = BP_DTYPE_BF16;
            o.grad_dtype = o.grad_dtype == BP_DTYPE_FP32 ? BP_DTYPE_FP32 : BP_DTYPE_BF16;
            o.biased = false;
            o.rounding = random_below(2) == 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP16;
        }
        head_batch h = new_head_batch(&o);
        bp_lm_head *head = new_head(device, &h);
        check_head(head, &h);
        check_head(head, &h); /* again, over leftovers in the workspaces */
        bp_lm_head_destroy(&head);
        free_head_batch(&h);
    }
}

TEST(strides_of_0_are_rows_without_gaps)
{
    head_options o = {.batch = 2, .sequence = 9, .hidden = 12, .columns = 50, .chunk = 4, .with_entropy = true};
    head_batch h = new_head_batch(&o);
    bp_lm_head *head = new_head(device, &h);
    shard all = whole_shard(&h.tokens);
    bp_lm_head_batch call = head_call_of(&h, all);
    bp_logprob_outputs outputs = outputs_of(&h.tokens);
    bp_lm_head_gradients gradients = head_gradients_of(&h, all);
    call.hidden.batch_stride = call.hidden.stride = call.weight_stride = 0;
    gradients.hidden_grad.batch_stride = gradients.hidden_grad.stride = gradients.weight_grad_stride = 0;
    assert_ok(bp_lm_head_forward(head, &call, &outputs, NULL));
    assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
    assert_true(head_outputs_are_true(&h) && hidden_grad_is_true(&h, all) && weight_grad_is_true(&h, all));
    bp_lm_head_destroy(&head);
    free_head_batch(&h);
}

/* Strides that BLAS does not support: 0 and negative. */
TEST(strides_may_be_negative_or_0)
{
    enum { BATCH = 2, SEQUENCE = 6, HIDDEN = 4 };
    head_options o = {.batch = BATCH, .sequence = SEQUENCE, .hidden = HIDDEN, .columns = 9, .chunk = 4};
    head_batch h = new_head_batch(&o);
    bp_lm_head *head = new_head(device, &h);
    const shard all = whole_shard(&h.tokens);
    bp_lm_head_batch call = head_call_of(&h, all);
    const bp_logprob_outputs outputs = outputs_of(&h.tokens);
    bp_lm_head_gradients gradients = head_gradients_of(&h, all);
    float backwards[BATCH * SEQUENCE][HIDDEN];
    run_head(head, &h);
    gradients.hidden_grad.data = backwards[BATCH * SEQUENCE - 1];
    gradients.hidden_grad.stride = -HIDDEN;
    gradients.hidden_grad.batch_stride = -HIDDEN * SEQUENCE;
    assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
    for (uint64_t i = 0; i < BATCH * SEQUENCE; i++)
        assert_memory_equal(backwards[BATCH * SEQUENCE - 1 - i], row_at(&h.hidden_grad, i / SEQUENCE, i % SEQUENCE),
                            sizeof *backwards);
    call.hidden.stride = 0;
    call.hidden.batch_stride = HIDDEN; /* one row per sequence */
    call.tokens.target.stride = 0;
    assert_ok(bp_lm_head_forward(head, &call, &outputs, NULL));
    for (uint64_t i = 0; i < BATCH * SEQUENCE; i++)
        assert_true(value_of(&h.tokens.logprob, i / SEQUENCE, i % SEQUENCE, 0) ==
                    value_of(&h.tokens.logprob, i / SEQUENCE, 0, 0));
    bp_lm_head_destroy(&head);
    free_head_batch(&h);
}

/* Padding may be NaN: "the row is not read". */
TEST(masked_states_do_not_matter)
{
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++)
        check_head_options(&(head_options){.batch = 2,
                                           .sequence = 17,
                                           .hidden = 24,
                                           .columns = 131,
                                           .dtype = (bp_dtype)dtype,
                                           .chunk = 5,
                                           .with_entropy = true,
                                           .masked = true,
                                           .masked_is_nan = true});
}

TEST(all_tokens_may_be_masked)
{
    for (int variant = 0; variant < 4; variant++) {
        head_options o = {.batch = 3,
                          .sequence = 7,
                          .hidden = 12,
                          .columns = 50,
                          .dtype = (variant & 1) != 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP32,
                          .chunk = 4,
                          .with_entropy = true,
                          .masked = true,
                          .accumulate = (variant & 2) != 0};
        head_batch h = new_head_batch(&o);
        memset(h.tokens.mask.memory, 0, h.tokens.mask.bytes);
        memset(h.hidden.memory, 0xff, h.hidden.bytes);
        bp_lm_head *head = new_head(device, &h);
        check_head(head, &h);
        bp_lm_head_destroy(&head);
        free_head_batch(&h);
    }
}

/* hidden_grad alone, weight_grad alone, no upstream gradients. */
TEST(outputs_may_be_left_out)
{
    head_options o = {.batch = 2, .sequence = 9, .hidden = 12, .columns = 50, .chunk = 4, .with_entropy = true};
    head_batch h = new_head_batch(&o);
    bp_lm_head *head = new_head(device, &h);
    shard all = whole_shard(&h.tokens);
    bp_lm_head_batch call = head_call_of(&h, all);
    bp_logprob_outputs outputs = outputs_of(&h.tokens);
    assert_ok(bp_lm_head_forward(head, &call, &outputs, NULL));
    bp_lm_head_gradients gradients = head_gradients_of(&h, all);
    gradients.weight_grad = NULL;
    assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
    assert_true(hidden_grad_is_true(&h, all));
    for (size_t i = 0; i < h.weight_grad.bytes; i++)
        assert_int_equal(h.weight_grad.memory[i], POISON);
    poison_view(&h.hidden_grad, POISON);
    gradients = head_gradients_of(&h, all);
    gradients.hidden_grad = (bp_token_rows){.data = NULL};
    assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
    assert_true(weight_grad_is_true(&h, all));
    for (size_t i = 0; i < h.hidden_grad.bytes; i++)
        assert_int_equal(h.hidden_grad.memory[i], POISON);
    gradients = head_gradients_of(&h, all);
    gradients.logprob_grad.data = gradients.entropy_grad.data = NULL;
    h.o.without_logprob = true;
    h.o.with_entropy = false;
    assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
    assert_true(hidden_grad_is_true(&h, all) && weight_grad_is_true(&h, all));
    bp_lm_head_destroy(&head);
    free_head_batch(&h);
}

/* Results of no tokens: sums of gradients are zero, unless they are added to. */
TEST(no_tokens_have_no_gradients)
{
    for (unsigned variant = 0; variant < 4; variant++) {
        const bool accumulate = (variant & 1) != 0;
        head_options o = {.batch = 1, .sequence = 3, .hidden = 12, .columns = 50, .biased = true};
        o.accumulate = accumulate;
        o.weight_grad_at.row_gap = variant & 2;
        head_batch h = new_head_batch(&o);
        bp_lm_head *head = new_head(device, &h);
        bp_lm_head_batch call = head_call_of(&h, whole_shard(&h.tokens));
        bp_lm_head_gradients gradients = head_gradients_of(&h, whole_shard(&h.tokens));
        call.hidden.sequence = gradients.hidden_grad.sequence = 0;
        assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
        for (uint64_t v = 0; v < 50; v++) {
            assert_true(value_of(&h.bias_grad, 0, 0, (uint32_t)v) ==
                        (accumulate ? value_of(&h.bias, 0, 0, (uint32_t)v) : 0));
            assert_true(*(float *)row_at(&h.weight_grad, 0, v) == (accumulate ? h.before[v * 12] : 0));
        }
        assert_true(gaps_are_whole(&h.weight_grad, "weight_grad"));
        bp_lm_head_destroy(&head);
        free_head_batch(&h);
    }
}

TEST(runs_have_the_same_bits)
{
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
        head_options o = {
            .batch = 2, .sequence = 33, .hidden = 64, .columns = 700, .chunk = 7, .with_entropy = true, .threads = 2};
        o.dtype = (bp_dtype)dtype;
        seed(8);
        head_batch a = new_head_batch(&o);
        seed(8);
        head_batch b = new_head_batch(&o);
        bp_lm_head *head = new_head(device, &a);
        run_head(head, &a);
        for (int run = 0; run < 5; run++) {
            if (run == 3) {
                bp_lm_head_destroy(&head);
                head = new_head(device, &b);
            }
            poison_head(&b);
            run_head(head, &b);
            assert_true(same_rows(&a.tokens.logprob, &b.tokens.logprob, "log-probabilities"));
            assert_true(same_rows(&a.tokens.entropy, &b.tokens.entropy, "entropies"));
            assert_true(same_rows(&a.hidden_grad, &b.hidden_grad, "hidden_grad"));
            assert_true(same_rows(&a.weight_grad, &b.weight_grad, "weight_grad"));
        }
        bp_lm_head_destroy(&head);
        free_head_batch(&a);
        free_head_batch(&b);
    }
}

/* The three ways differ in their products and pieces alone: results are equal within rounding, and outputs in their bits where pieces are. */
TEST(ways_agree)
{
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
        head_batch h[HEAD_WAYS];
        for (int way = 0; way < HEAD_WAYS; way++) {
            head_options o = {.batch = 2,
                              .sequence = 33,
                              .hidden = 20,
                              .columns = 200,
                              .dtype = (bp_dtype)dtype,
                              .chunk = 7,
                              .with_entropy = true,
                              .biased = true,
                              .masked = true,
                              .with_logsumexp = true,
                              .with_mean = true};
            o.way = (head_way)way;
            seed(8);
            h[way] = new_head_batch(&o);
            bp_lm_head *head = new_head(device, &h[way]);
            check_head(head, &h[way]);
            bp_lm_head_destroy(&head);
            assert_true(same_rows(&h[0].tokens.logprob, &h[way].tokens.logprob, "log-probabilities"));
            assert_true(same_rows(&h[0].tokens.entropy, &h[way].tokens.entropy, "entropies"));
            assert_true(same_rows(&h[0].hidden_grad, &h[way].hidden_grad, "hidden_grad"));
            assert_true(same_rows(&h[0].weight_grad, &h[way].weight_grad, "weight_grad"));
            assert_true(same_rows(&h[0].bias_grad, &h[way].bias_grad, "bias_grad"));
        }
        for (int way = 0; way < HEAD_WAYS; way++)
            free_head_batch(&h[way]);
    }
}

/* Backward reads kept logits and leaves them as they are, for a second one. */
TEST(kept_logits_are_read)
{
    head_options o = {.batch = 2, .sequence = 9, .hidden = 12, .columns = 50, .dtype = BP_DTYPE_BF16, .chunk = 4};
    o.way = KEPT_LOGITS;
    head_batch h = new_head_batch(&o);
    bp_lm_head *head = new_head(device, &h);
    const shard all = whole_shard(&h.tokens);
    const bp_lm_head_batch call = head_call_of(&h, all);
    const bp_lm_head_gradients gradients = head_gradients_of(&h, all);
    const size_t bytes = 18 * (size_t)call.logits_stride * sizeof *call.logits;
    float *before = malloc(bytes);
    assert_non_null(before);
    check_head(head, &h);
    memcpy(before, h.kept, bytes);
    for (int i = 0; i < 2; i++) {
        poison_view(&h.hidden_grad, POISON);
        assert_ok(bp_lm_head_backward(head, &call, &gradients, NULL));
        assert_true(hidden_grad_is_true(&h, all));
        assert_memory_equal(before, h.kept, bytes);
    }
    for (uint64_t t = 0; t < 18; t++) {
        for (uint64_t v = 0; v < 50; v++)
            assert_true(fabs((double)before[t * (uint64_t)call.logits_stride + v] - h.tokens.x[t * 50 + v]) < 1e-4);
        assert_true(isnan(before[t * (uint64_t)call.logits_stride + 50])); /* the gap */
    }
    free(before);
    bp_lm_head_destroy(&head);
    free_head_batch(&h);
}

/* One chunk of fp32 logits and fixed parts; the plan matches the allocation for any number of tokens. */
TEST(memory_is_one_chunk)
{
    uint64_t workspace[2];
    for (int i = 0; i < 2; i++) {
        head_options o = {.batch = 1, .sequence = i == 0 ? 400 : 4000, .hidden = 8, .columns = 1000, .chunk = 64};
        bp_lm_head_config config;
        bp_lm_head *head = NULL;
        bp_lm_head_info info;
        bp_pool_statistics statistics = {.size = sizeof statistics};
        assert_ok(bp_lm_head_config_init(&config, sizeof config));
        config.max_tokens = o.sequence;
        config.hidden = o.hidden;
        config.vocab = o.columns;
        config.chunk = o.chunk;
        assert_ok(bp_lm_head_create(device, &config, &head));
        info = *bp_lm_head_get_info(head);
        assert_true(strstr(info.products, ".so") != NULL || strcmp(info.products, "avx512_bf16") == 0);
        assert_int_equal(info.vocab, 1000);
        assert_int_equal(info.sizes->chunk_bytes, 64 * 1008 * 4);
        assert_int_equal(info.piece_tokens, 64);
        assert_int_equal(info.workspace_bytes, info.planned_bytes);
        assert_in_range(info.workspace_bytes, info.sizes->chunk_bytes, info.sizes->bytes + 65536 * 8);
        assert_ok(bp_pool_statistics_get(bp_lm_head_get_info(head)->pool, &statistics));
        assert_int_equal(statistics.slab_bytes, info.workspace_bytes);
        workspace[i] = info.workspace_bytes;
        bp_lm_head_destroy(&head);
    }
    assert_in_range(workspace[1], workspace[0], workspace[0] + 3600 * 64);
}

int main(void)
{
    void *none = NULL;
    if (open_host(&none) != 0)
        return 1;
    bool has = has_products(device);
    close_host(&none);
    if (!has)
        return 77;
    return run_registered(NULL, NULL, open_host, close_host);
}
