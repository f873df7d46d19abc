/* Stream order of a head's call, on delayed streams: the stream writes the inputs just before it and moves the outputs away just after. */
#include "support/harness.h"

#include <stdlib.h>
#include <string.h>

#include "head_runs.h"
#include "support/pools.h"

/* A tensor that is in place only during the call's turn in the stream. */
typedef struct tensor {
    uint8_t *memory, *kept;
    uint64_t bytes;
} tensor;

static tensor keep(uint8_t *memory, uint64_t bytes)
{
    tensor kept = {memory, malloc(bytes), bytes};
    assert_non_null(kept.kept);
    memcpy(kept.kept, memory, bytes);
    return kept;
}

static void bring(const tensor *t, bp_stream *stream)
{
    assert_ok(bp_stream_copy(stream, t->memory, t->kept, t->bytes));
}

static void spoil(const tensor *t, bp_stream *stream)
{
    assert_ok(bp_stream_fill(stream, t->memory, 0xff, t->bytes));
}

/* Takes what is there away, and spoils it. */
static void take_offloaded(const tensor *t, bp_stream *stream)
{
    assert_ok(bp_stream_copy(stream, t->kept, t->memory, t->bytes));
    spoil(t, stream);
}

enum { INPUTS = 2, OUTPUTS = 4 };

static void run_between(bp_lm_head *head, head_tensors *t, bp_stream *stream)
{
    const head_case *c = &t->v->c;
    const uint64_t tokens = t->v->tokens;
    poison(t);
    tensor inputs[INPUTS] = {keep(t->hidden, tokens * c->hidden * sizeof(float)),
                             keep(t->weight, c->vocab * c->hidden * sizeof(float))};
    tensor outputs[OUTPUTS] = {keep(t->logprob, tokens * sizeof(float)), keep(t->saved, t->saved_bytes),
                               keep(t->hidden_grad, tokens * c->hidden * sizeof(float)),
                               keep(t->weight_grad, c->vocab * c->hidden * sizeof(float))};
    for (int call = 0; call < 2; call++) {
        for (int i = 0; i < INPUTS; i++)
            bring(&inputs[i], stream);
        for (int i = 0; i < OUTPUTS && call > 0; i++)
            bring(&outputs[i], stream);
        if (call == 0)
            assert_ok(bp_lm_head_forward(head, &t->batch, &t->outputs, stream));
        else
            assert_ok(bp_lm_head_backward(head, &t->batch, &t->gradients, stream));
        for (int i = 0; i < INPUTS; i++)
            spoil(&inputs[i], stream);
        for (int i = 0; i < OUTPUTS; i++)
            take_offloaded(&outputs[i], stream);
    }
    for (int i = 0; i < INPUTS; i++)
        bring(&inputs[i], stream);
    for (int i = 0; i < OUTPUTS; i++)
        bring(&outputs[i], stream);
    assert_ok(bp_stream_synchronize(stream));
    for (int i = 0; i < INPUTS; i++)
        free(inputs[i].kept);
    for (int i = 0; i < OUTPUTS; i++)
        free(outputs[i].kept);
}

static const head_case c = {.batch = 2,
                            .sequence = 9,
                            .hidden = 6,
                            .vocab = 40,
                            .dtype = BP_DTYPE_FP32,
                            .grad_dtype = BP_DTYPE_FP32,
                            .chunk = 2,
                            .temperature = 1,
                            .seed = 12};

TEST(test_order)
{
    head_values v = values_of(&c);
    head_tensors t = tensors_of(&v, 0, c.vocab);
    const bp_lm_head_config config = head_config_of(&c);
    for (uint64_t seed = 0; seed < 12; seed++) {
        bp_device *slow = new_slow_host(300, seed);
        bp_stream *streams[2] = {NULL};
        bp_lm_head *head = NULL;
        assert_ok(bp_stream_create(slow, "one", &streams[0]));
        assert_ok(bp_stream_create(slow, "other", &streams[1]));
        assert_ok(bp_lm_head_create(slow, &config, &head));
        for (int i = 0; i < 2; i++) {
            run_between(head, &t, streams[i]);
            assert_true(wrong_outputs(&t) <= 1);
            assert_true(wrong_gradients(&t) <= 1);
        }
        bp_lm_head_destroy(&head);
        bp_stream_destroy(&streams[0]);
        bp_stream_destroy(&streams[1]);
        bp_device_destroy(&slow);
    }
    free_tensors(&t);
    free_values(&v);
}

/* Concurrent calls on two streams, without host waits: of one head, whose workspaces they share, and of two. */
static void run_concurrently(uint64_t seed, int heads)
{
    bp_device *slow = new_slow_host(200, seed);
    bp_stream *streams[2] = {NULL};
    bp_lm_head *head[2] = {NULL};
    head_values v[2];
    head_tensors t[2];
    for (int i = 0; i < 2; i++) {
        head_case own = c;
        own.seed = 2 * seed + (uint64_t)i;
        own.has_mask = own.has_entropy = true;
        own.chunk = i == 0 ? 2 : 30;
        if (heads == 1)
            own.chunk = 4;
        v[i] = values_of(&own);
        t[i] = tensors_of(&v[i], 0, own.vocab);
        poison(&t[i]);
        const bp_lm_head_config config = head_config_of(&own);
        assert_ok(bp_stream_create(slow, "s", &streams[i]));
        if (i < heads)
            assert_ok(bp_lm_head_create(slow, &config, &head[i]));
    }
    for (int call = 0; call < 3; call++)
        for (int i = 0; i < 2; i++) {
            bp_lm_head *used = head[heads == 1 ? 0 : i];
            if (call < 2)
                assert_ok(bp_lm_head_forward(used, &t[i].batch, &t[i].outputs, streams[i]));
            else
                assert_ok(bp_lm_head_backward(used, &t[i].batch, &t[i].gradients, streams[i]));
        }
    for (int i = 0; i < 2; i++)
        assert_ok(bp_stream_synchronize(streams[i]));
    for (int i = 0; i < 2; i++) {
        assert_true(wrong_outputs(&t[i]) <= 1);
        assert_true(wrong_gradients(&t[i]) <= 1);
        bp_lm_head_destroy(&head[i]);
        bp_stream_destroy(&streams[i]);
        free_tensors(&t[i]);
        free_values(&v[i]);
    }
    bp_device_destroy(&slow);
}

TEST(test_two_streams)
{
    for (uint64_t seed = 1; seed < 9; seed++)
        for (int heads = 1; heads <= 2; heads++)
            run_concurrently(seed, heads);
}

TESTS(NULL, NULL)
