/* The fused head against fp64 for random shapes, layouts, dtypes and pieces; equal bits of repeated runs. */
#include "support/harness.h"

#include <math.h>

#include "head_runs.h"
#include "support/pools.h"

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static void try_case(const head_case *c, bp_stream *stream)
{
    head_values v = values_of(c);
    head_tensors t = tensors_of(&v, 0, c->vocab);
    bp_lm_head_config config = head_config_of(c);
    bp_lm_head *head = new_head(&config);
    run(head, &t, stream);
    const double outputs = wrong_outputs(&t), gradients = wrong_gradients(&t);
    if (!(outputs <= 1 && gradients <= 1))
        fail_msg("[%llu, %llu, %llu] x %llu, dtypes %s and %s, chunk %lld, gap %llu, by token %d: errors %g and %g",
                 (unsigned long long)c->batch, (unsigned long long)c->sequence, (unsigned long long)c->hidden,
                 (unsigned long long)c->vocab, bp_dtype_name(c->dtype), bp_dtype_name(c->grad_dtype),
                 (long long)c->chunk, (unsigned long long)c->gap, c->by_token, outputs, gradients);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

TEST(test_random)
{
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "caller", &stream));
    for (uint64_t seed = 0; seed < 300; seed++) {
        const head_case c = random_case(seed);
        try_case(&c, seed % 2 == 0 ? stream : NULL);
    }
    bp_stream_destroy(&stream);
}

/* Tiles of the vocabulary, of 2048 columns because of the tokens in a chunk or because of the hidden size. */
TEST(test_tiles)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
    for (int i = 0; i < 12; i++) {
        const bool many = i % 2 == 0;
        const head_case c = {.batch = 2,
                             .sequence = many ? 1100 : 9,
                             .hidden = many ? 8 : 2100,
                             .vocab = many ? 2100 : 4500,
                             .dtype = dtypes[i % 3],
                             .grad_dtype = i % 4 < 2 ? dtypes[i % 3] : BP_DTYPE_FP32,
                             .chunk = many ? 0 : 4,
                             .has_mask = i % 3 != 0,
                             .has_entropy = i % 5 < 3,
                             .accumulate = i % 4 == 0,
                             .by_token = i > 8,
                             .gap = i > 5 ? 3 : 0,
                             .temperature = 0.8F,
                             .seed = (uint64_t)i};
        try_case(&c, NULL);
    }
}

/* The fp64 reference gradients against finite differences of the loss. */
TEST(test_finite_differences)
{
    const double step = 1e-5;
    for (uint64_t seed = 0; seed < 6; seed++) {
        const head_case c = {.batch = 1,
                             .sequence = 4,
                             .hidden = 3,
                             .vocab = 5,
                             .dtype = BP_DTYPE_FP32,
                             .grad_dtype = BP_DTYPE_FP32,
                             .temperature = 0.5F,
                             .has_entropy = seed % 2 != 0,
                             .has_mask = seed % 3 == 0,
                             .seed = seed};
        head_values v = values_of(&c);
        for (int of_weight = 0; of_weight < 2; of_weight++) {
            double *at = of_weight ? v.weight : v.hidden;
            const double *grad = of_weight ? v.weight_grad : v.hidden_grad;
            for (uint64_t i = 0; i < (of_weight ? c.vocab : v.tokens) * c.hidden; i++) {
                const double was = at[i];
                at[i] = was + step;
                const double above = loss_of(&v);
                at[i] = was - step;
                const double below = loss_of(&v);
                at[i] = was;
                assert_true(fabs((above - below) / (2 * step) - grad[i]) < 1e-7);
            }
        }
        free_values(&v);
    }
}

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

TEST(test_same_bits)
{
    for (uint64_t seed = 1000; seed < 1008; seed++) {
        head_case c = random_case(seed);
        c.sequence += 40;
        head_values v = values_of(&c);
        head_tensors t = tensors_of(&v, 0, c.vocab);
        bp_lm_head_config config = head_config_of(&c);
        uint64_t first = 0;
        for (int made = 0; made < 2; made++) {
            bp_lm_head *head = new_head(&config);
            for (int again = 0; again < 3; again++) {
                run(head, &t, NULL);
                first = made == 0 && again == 0 ? bits_of(&t) : first;
                assert_true(bits_of(&t) == first);
            }
            bp_lm_head_destroy(&head);
        }
        free_tensors(&t);
        free_values(&v);
    }
}

/* Each gradient alone has the same bits as both together, and kinds of calls do not disturb each other. */
TEST(test_one_gradient)
{
    const head_case c = {.batch = 2,
                         .sequence = 11,
                         .hidden = 7,
                         .vocab = 13,
                         .dtype = BP_DTYPE_FP16,
                         .grad_dtype = BP_DTYPE_FP32,
                         .chunk = 3,
                         .temperature = 1,
                         .seed = 5};
    head_values v = values_of(&c);
    head_tensors t = tensors_of(&v, 0, c.vocab);
    bp_lm_head_config config = head_config_of(&c);
    bp_lm_head *head = new_head(&config);
    run(head, &t, NULL);
    const uint64_t both = bits_of(&t);
    const bp_lm_head_gradients all = t.gradients;
    poison(&t);
    assert_ok(bp_lm_head_forward(head, &t.batch, &t.outputs, NULL));
    t.gradients.weight_grad = NULL;
    assert_ok(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL));
    assert_true(bits_of(&t) != both);
    t.gradients = all;
    t.gradients.hidden_grad.data = NULL;
    assert_ok(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL));
    assert_true(bits_of(&t) == both);
    t.gradients.weight_grad = NULL;
    assert_ok(bp_lm_head_backward(head, &t.batch, &t.gradients, NULL));
    assert_true(bits_of(&t) == both);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

TESTS(begin, end)
