/* SPDX-License-Identifier: Apache-2.0 */
/* Loss and ranges of logits on a GPU: sums, seeds and extremes equal those of plain loops and of the host's kernels. */
#include "support/harness.h"

#include <bucketpool/loss.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device_batches.h"
#include "packed.h"
#include "support/driver.h"
#include "support/pools.h"

static bp_device *gpu, *host;
static bp_stream *stream;

static int open_devices(void **state)
{
    (void)state;
    gpu = new_cuda();
    if (bp_device_create_host(NULL, &host) != BP_OK)
        return 1;
    return bp_stream_create(gpu, "cp", &stream) == BP_OK ? 0 : 1;
}

static int close_devices(void **state)
{
    (void)state;
    bp_stream_destroy(&stream);
    bp_device_destroy(&host);
    bp_device_destroy(&gpu);
    return 0;
}

/* ---- the loss ------------------------------------------------------------------------------------------------------ */

/* A step of one rank: the tokens of a micro-batch, on a device. */
typedef struct step {
    uint64_t cu[MAX_SEQUENCES + 1];
    uint32_t sequences;
    uint64_t tokens;
    bp_cp_split *split;
    uint8_t *mask;
    float *values[4], *seed; /* log-probabilities, entropies, least and largest logits */
} step;

static step *new_step(void)
{
    step *s = new_memory(sizeof *s);
    s->sequences = make_lengths(s->cu);
    s->split = new_split(s->cu, s->sequences, 1, 0);
    s->tokens = info_of(s->split).local_tokens;
    s->mask = new_memory(s->tokens);
    s->seed = new_memory(s->tokens * sizeof(float));
    for (unsigned p = 0; p < 4; p++)
        s->values[p] = new_memory(s->tokens * sizeof(float));
    for (uint64_t i = 0; i < s->tokens; i++) {
        s->mask[i] = random_below(3) != 0;
        for (unsigned p = 0; p < 4; p++)
            s->values[p][i] = s->mask[i] != 0 ? (float)random_fraction() * 6 : (float)NAN;
    }
    return s;
}

static void free_step(step *s)
{
    bp_cp_split_destroy(&s->split);
    for (unsigned p = 0; p < 4; p++)
        free(s->values[p]);
    free(s->seed);
    free(s->mask);
    free(s);
}

static bp_loss *new_loss(bp_device *device, const step *s)
{
    bp_loss_config config;
    bp_loss *loss = NULL;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = info_of(s->split).sequences;
    assert_ok(bp_loss_create(device, &config, &loss));
    return loss;
}

/* Views of a step's values for a call. */
static bp_loss_values values_at(const step *s, uint8_t *mask, float *const planes[4])
{
    bp_loss_values v;
    assert_ok(bp_loss_values_init(&v, sizeof v));
    v.tokens = s->tokens;
    v.mask = (bp_token_values){mask, 0, 1};
    v.logprob = (bp_token_values){planes[0], 0, 1};
    v.entropy = (bp_token_values){planes[1], 0, 1};
    v.logit_min = (bp_token_values){planes[2], 0, 1};
    v.logit_max = (bp_token_values){planes[3], 0, 1};
    return v;
}

static bp_loss_statistics run_step(bp_loss *loss, const step *s, const bp_loss_values *values, float *seeds,
                                   bp_stream *on)
{
    const bp_token_values to = {seeds, 0, 1};
    bp_loss_statistics made = {.size = sizeof made};
    assert_ok(bp_loss_begin(loss));
    assert_ok(bp_loss_add(loss, s->split, values, on));
    assert_ok(bp_loss_reduce(loss, BP_OK, on));
    assert_ok(bp_loss_seed(loss, s->split, s->tokens, &values->mask, -1, &to, on));
    assert_ok(bp_loss_statistics_get(loss, &made));
    return made;
}

static bool is_close(double a, double b)
{
    return fabs(a - b) <= 1e-12 * (1 + fabs(b)); /* orders of summation differ */
}

/* Computed by plain loops. */
static void check_statistics(const step *s, const bp_loss_statistics *made)
{
    double sums[2] = {0, 0}, perplexities = 0, min = INFINITY, largest = -INFINITY;
    uint64_t valid = 0, counted = 0;
    for (uint32_t i = 0; i < s->sequences; i++) {
        double sum = 0;
        uint64_t n = 0;
        for (uint64_t t = s->cu[i]; t < s->cu[i + 1]; t++) {
            if (s->mask[t] == 0)
                continue;
            n++;
            sum += (double)s->values[0][t];
            sums[1] += (double)s->values[1][t];
            min = fmin(min, (double)s->values[2][t]);
            largest = fmax(largest, (double)s->values[3][t]);
        }
        sums[0] += sum;
        valid += n;
        counted += n > 0;
        perplexities += n > 0 ? exp(-sum / (double)n) : 0;
    }
    assert_int_equal(made->valid, valid);
    assert_int_equal(made->tokens, s->cu[s->sequences]);
    assert_int_equal(made->perplexity_sequences, counted);
    assert_true(is_close(made->logprob_sum, sums[0]) && is_close(made->entropy_sum, sums[1]));
    assert_true(is_close(made->perplexity_sum, perplexities));
    assert_true(made->logit_min == min && made->logit_max == largest);
    assert_true(is_close(made->loss, valid > 0 ? -sums[0] / (1e-5 + (double)valid) : 0));
}

static void check_seeds(const step *s, uint64_t valid)
{
    const double expected = -1 / (1e-5 + (double)valid);
    for (uint64_t i = 0; i < s->tokens; i++)
        assert_true(s->mask[i] != 0 ? fabs((double)s->seed[i] - expected) <= 1e-6 * -expected : s->seed[i] == 0);
}

/* Repeated runs give the same bits. */
TEST(test_steps)
{
    for (unsigned round = 0; round < rounds(20, 3); round++) {
        seed(270 + round);
        step *s = new_step();
        const uint64_t bytes = s->tokens * sizeof(float);
        bp_loss *losses[] = {new_loss(gpu, s), new_loss(host, s)};
        uint8_t *mask = on_gpu(stream, s->mask, s->tokens);
        float *planes[4], *seeds = on_gpu(stream, s->seed, bytes), *of_host = new_memory(bytes);
        for (unsigned p = 0; p < 4; p++)
            planes[p] = on_gpu(stream, s->values[p], bytes);
        bp_loss_values there = values_at(s, mask, planes), here = values_at(s, s->mask, s->values);
        bp_loss_statistics first = run_step(losses[0], s, &there, seeds, stream);
        to_host(stream, s->seed, seeds, bytes);
        check_statistics(s, &first);
        check_seeds(s, first.valid);
        bp_loss_statistics again = run_step(losses[0], s, &there, seeds, stream);
        assert_memory_equal(&again, &first, sizeof again);
        bp_loss_statistics others = run_step(losses[1], s, &here, of_host, NULL);
        check_statistics(s, &others);
        assert_memory_equal(of_host, s->seed, bytes);
        free(of_host);
        give_gpu_memory(seeds);
        give_gpu_memory(mask);
        for (unsigned p = 0; p < 4; p++)
            give_gpu_memory(planes[p]);
        bp_loss_destroy(&losses[0]);
        bp_loss_destroy(&losses[1]);
        free_step(s);
    }
}

/* Captured with a rearrangement of its results: launched later, on another mask. */
TEST(test_captured_seeds)
{
    seed(370);
    step *s = new_step();
    const uint64_t bytes = s->tokens * sizeof(float);
    bp_loss *loss = new_loss(gpu, s);
    bp_cp *cp = new_mover(gpu);
    uint8_t *mask = on_gpu(stream, s->mask, s->tokens);
    float *seeds = on_gpu(stream, s->seed, bytes), *moved = on_gpu(stream, s->seed, bytes);
    const bp_token_values masks = {mask, 0, 1}, to = {seeds, 0, 1};
    bp_graph *graph = NULL;
    assert_ok(bp_stream_synchronize(stream));
    assert_ok(bp_loss_begin(loss));
    assert_ok(bp_loss_count_set(loss, 1234));
    assert_ok(bp_graph_begin(stream));
    assert_ok(bp_loss_seed(loss, s->split, s->tokens, &masks, -1, &to, stream));
    rearrange(cp, s->split, rearrangement_of(s->split, BP_CP_LOCAL, BP_CP_PACKED, 4), seeds, moved, stream);
    assert_ok(bp_graph_end(stream, &graph));
    for (unsigned round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < s->tokens; i++)
            s->mask[i] = (uint8_t)random_below(2);
        assert_ok(bp_stream_copy(stream, mask, s->mask, s->tokens));
        assert_ok(bp_graph_launch(graph, stream));
        to_host(stream, s->seed, moved, bytes);
        check_seeds(s, 1234);
    }
    bp_graph_destroy(&graph);
    give_gpu_memory(moved);
    give_gpu_memory(seeds);
    give_gpu_memory(mask);
    bp_cp_destroy(&cp);
    bp_loss_destroy(&loss);
    free_step(s);
}

/* ---- ranges -------------------------------------------------------------------------------------------------------- */

static batch_options random_options(void)
{
    return (batch_options){.dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3)),
                           .batch = 1 + random_below(3),
                           .sequence = 1 + random_below(rounds(60, 6)),
                           .columns = 1 + random_below(rounds(70000, 9000)),
                           .logits = random_layout(),
                           .outputs = random_layout(),
                           .mask = random_layout(),
                           .masked = random_below(2) == 0,
                           .with_entropy = true};
}

/* `least` is in the place of log-probabilities, `largest` in that of entropies. */
static void check_ranges(const batch *b)
{
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++) {
            const double *x = b->x + (i * b->o.sequence + s) * b->o.columns;
            double min = x[0], largest = x[0];
            for (uint64_t v = 1; v < b->o.columns; v++) {
                min = fmin(min, x[v]);
                largest = fmax(largest, x[v]);
            }
            const bool masked = is_masked(b, i, s);
            assert_true(element_at(row_at(&b->logprob, i, s), BP_DTYPE_FP32, 0) == (masked ? 0 : min));
            assert_true(element_at(row_at(&b->entropy, i, s), BP_DTYPE_FP32, 0) == (masked ? 0 : largest));
        }
    assert_true(gaps_are_whole(&b->logprob, "least logits") && gaps_are_whole(&b->entropy, "largest logits"));
}

TEST(test_ranges)
{
    for (unsigned round = 0; round < rounds(60, 10); round++) {
        seed(470 + round);
        batch_options options = random_options();
        batch b = new_batch(&options);
        device_batch t = new_device_batch(&b, stream);
        bp_logprob *client = new_client(gpu, &b, UINT32_MAX, 0);
        const bp_logprob_batch call = call_of(&t.gpu, whole_shard(&b));
        const bp_token_values min = values_of(&t.gpu.logprob), largest = values_of(&t.gpu.entropy);
        assert_ok(bp_logprob_range(client, &call, &min, &largest, stream));
        copy_to_host(&t);
        check_ranges(&b);
        assert_true(inputs_are_whole(&b));
        bp_logprob_destroy(&client);
        free_device_batch(&t);
        free_batch(&b);
    }
}

int main(int argc, char **argv)
{
    if (!has_driver()) {
        printf("BP_TEST_DRIVER is not the path of a driver\n");
        return 77;
    }
    take_arguments(argc, argv);
    return has_cuda_kernels() ? run_registered(NULL, NULL, open_devices, close_devices) : 77;
}
