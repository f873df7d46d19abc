/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities on a GPU: compared with fp64 and the host's kernels; reproducible bits, sizes beyond 32 bits, graphs. */
#include "support/harness.h"

#include <bucketpool/capture.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_batches.h"
#include "support/driver.h"
#include "support/pools.h"

static bp_device *gpu;
static bp_stream *stream;

static int open_gpu(void **state)
{
    (void)state;
    gpu = new_cuda();
    return bp_stream_create(gpu, "logprob", &stream) == BP_OK ? 0 : 1;
}

static int close_gpu(void **state)
{
    (void)state;
    bp_stream_destroy(&stream);
    bp_device_destroy(&gpu);
    return 0;
}

static void run_whole(bp_logprob *client, const device_batch *t)
{
    forward_part(client, t, 0, t->host->o.sequence);
    backward_part(client, t, 0, t->host->o.sequence);
}

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static batch_options random_options(void)
{
    static const double temperatures[] = {0, 0.25, 2.5};
    static const uint32_t max[] = {20, 600, 2100, 9000};
    batch_options o = {.dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3)),
                       .target_dtype = random_below(2) == 0 ? BP_DTYPE_INT64 : BP_DTYPE_INT32};
    o.columns = 1 + random_below(max[random_below(4)]);
    o.batch = 1 + random_below(3);
    o.sequence = 1 + random_below(rounds(90, 6));
    o.grad_dtype = random_below(2) == 0 ? BP_DTYPE_FP32 : o.dtype;
    o.logits = random_layout();
    o.grad = random_layout();
    o.outputs = random_layout();
    o.target = random_layout();
    o.mask = random_layout();
    o.upstream = random_layout();
    o.masked = random_below(3) == 0;
    o.in_place = random_below(3) == 0;
    o.with_entropy = random_below(2) == 0;
    o.without_logprob = random_below(6) == 0;
    o.temperature = temperatures[random_below(3)];
    o.spread = random_below(4) == 0 ? 40 : 0;
    o.offset = random_below(4) == 0 ? 1e4 * random_fraction() : 0;
    o.vocab_start = random_below(2) == 0 ? 0 : (int64_t)random_below(1u << 20);
    o.outside_in_16 = random_below(5);
    o.ignored_in_16 = random_below(3) * 3;
    o.ignores_first = random_below(3) == 0;
    return o;
}

static void check_on_gpu(const batch_options *options)
{
    batch b = new_batch(options);
    device_batch t = new_device_batch(&b, stream);
    bp_logprob *client = new_client(gpu, &b, BP_KERNELS_PLAIN, 0);
    forward_part(client, &t, 0, b.o.sequence);
    copy_to_host(&t);
    assert_true(outputs_are_true(&b));
    assert_true(inputs_are_whole(&b));
    backward_part(client, &t, 0, b.o.sequence);
    copy_to_host(&t);
    assert_true(gradient_is_true(&b, whole_shard(&b)));
    assert_true(b.o.in_place || inputs_are_whole(&b));
    bp_logprob_destroy(&client);
    free_device_batch(&t);
    free_batch(&b);
}

TEST(random_batches)
{
    for (unsigned round = 0; round < rounds(150, 12); round++) {
        seed(4000 + round);
        batch_options options = random_options();
        check_on_gpu(&options);
    }
}

TEST(test_long_rows)
{
    static const uint64_t widths[] = {32000, 50257, 131072, 700001};
    for (size_t i = 0; i < rounds(4, 2); i++)
        for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
            seed(5);
            batch_options options = {.batch = 1,
                                     .sequence = rounds(5, 2),
                                     .columns = widths[i],
                                     .dtype = (bp_dtype)dtype,
                                     .with_entropy = true};
            check_on_gpu(&options);
        }
}

static void assert_near(const view *a, const view *b, double slack)
{
    for (uint64_t i = 0; i < a->batch; i++)
        for (uint64_t s = 0; s < a->sequence; s++)
            for (uint64_t v = 0; v < a->columns; v++) {
                double x = element_at(row_at(a, i, s), BP_DTYPE_FP32, (int64_t)v);
                double y = element_at(row_at(b, i, s), BP_DTYPE_FP32, (int64_t)v);
                assert_true(is_within(x, y, slack * (1 + fabs(y))));
            }
}

TEST(test_host_and_gpu)
{
    batch_options options = {.batch = 2, .sequence = 5, .columns = 4321, .dtype = BP_DTYPE_BF16, .with_entropy = true};
    bp_device *host = NULL;
    assert_ok(bp_device_create_host(NULL, &host));
    seed(21);
    batch on_host = new_batch(&options);
    seed(21);
    batch on_gpu = new_batch(&options);
    device_batch t = new_device_batch(&on_gpu, stream);
    bp_logprob *clients[] = {new_client(host, &on_host, UINT32_MAX, 0), new_client(gpu, &on_gpu, UINT32_MAX, 0)};
    run_forward(clients[0], &on_host);
    run_backward(clients[0], &on_host);
    run_whole(clients[1], &t);
    copy_to_host(&t);
    assert_near(&on_gpu.logprob, &on_host.logprob, 4e-6);
    assert_near(&on_gpu.entropy, &on_host.entropy, 4e-6);
    assert_near(&on_gpu.grad, &on_host.grad, 4e-6);
    bp_logprob_destroy(&clients[0]);
    bp_logprob_destroy(&clients[1]);
    free_device_batch(&t);
    free_batch(&on_gpu);
    free_batch(&on_host);
    bp_device_destroy(&host);
}

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

static void assert_same_bits(const batch *a, const batch *b)
{
    assert_true(same_rows(&a->logprob, &b->logprob, "log-probabilities"));
    assert_true(same_rows(&a->entropy, &b->entropy, "entropies"));
    assert_true(same_rows(&a->grad, &b->grad, "the gradient"));
}

static void run_in_chunks(bp_logprob *client, const device_batch *t, uint64_t chunk)
{
    for (uint64_t first = 0; first < t->host->o.sequence; first += chunk) {
        uint64_t left = t->host->o.sequence - first, count = left < chunk ? left : chunk;
        forward_part(client, t, first, count);
        backward_part(client, t, first, count);
    }
}

/* The same rows in one call, in pieces and elsewhere in memory. */
TEST(test_chunks_and_alignment)
{
    static const uint64_t chunks[] = {1, 3, 7, 16, 1000};
    for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
        batch_options options = {.batch = 1,
                                 .sequence = rounds(700, 20),
                                 .columns = rounds(5003, 2211),
                                 .dtype = (bp_dtype)dtype,
                                 .with_entropy = true};
        seed(31);
        batch b = new_batch(&options);
        device_batch t = new_device_batch(&b, stream);
        bp_logprob *client = new_client(gpu, &b, BP_KERNELS_PLAIN, 0);
        run_whole(client, &t);
        copy_to_host(&t);
        for (uint32_t i = 0; i < 5; i++) {
            options.logits = (layout){.shift = 1 + 3 * i, .row_gap = i};
            options.grad = (layout){.shift = 5 * i, .row_gap = 2 * i};
            seed(31);
            batch again = new_batch(&options);
            device_batch moved = new_device_batch(&again, stream);
            run_in_chunks(client, &moved, chunks[i]);
            copy_to_host(&moved);
            assert_same_bits(&again, &b);
            free_device_batch(&moved);
            free_batch(&again);
        }
        bp_logprob_destroy(&client);
        free_device_batch(&t);
        free_batch(&b);
    }
}

/* ---- graphs -------------------------------------------------------------------------------------------------------- */

static void launch(bp_capture *capture, bp_graph *graph)
{
    assert_ok(bp_capture_before_launch(capture, stream));
    assert_ok(bp_graph_launch(graph, stream));
    assert_ok(bp_capture_launched(capture, stream));
}

TEST(test_launched_graphs)
{
    batch_options options = {.batch = 2, .sequence = 9, .columns = 3001, .with_entropy = true, .masked = true};
    seed(41);
    batch eager = new_batch(&options);
    seed(41);
    batch b = new_batch(&options);
    device_batch eager_batch = new_device_batch(&eager, stream), t = new_device_batch(&b, stream);
    bp_logprob *client = NULL;
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    bp_logprob_config config;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = token_count(&b);
    config.vocab = options.columns;
    assert_ok(bp_logprob_create(gpu, &config, &client));
    assert_ok(bp_capture_begin(bp_logprob_get_info(client)->pool, NULL, &capture));
    assert_ok(bp_graph_begin(stream));
    run_whole(client, &t);
    assert_ok(bp_graph_end(stream, &graph));
    assert_ok(bp_capture_end(capture));
    run_whole(client, &eager_batch);
    copy_to_host(&eager_batch);
    for (int i = 0; i < 3; i++) {
        poison_outputs(&b, POISON);
        poison_gradient(&b, POISON);
        copy_to_gpu(&t);
        launch(capture, graph);
        copy_to_host(&t);
        assert_same_bits(&b, &eager);
    }
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    bp_logprob_destroy(&client);
    free_device_batch(&t);
    free_device_batch(&eager_batch);
    free_batch(&b);
    free_batch(&eager);
}

/* ---- targets ------------------------------------------------------------------------------------------------------- */

TEST(test_invalid_targets)
{
    batch_options options = {.batch = 2, .sequence = 30, .columns = 100, .strict = true};
    batch b = new_batch(&options);
    bp_logprob_config config;
    bp_logprob *client = NULL;
    put_whole(&b.target, 1, 7, INT64_MIN);
    put_whole(&b.target, 0, 11, 100);
    device_batch t = new_device_batch(&b, stream);
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = 60;
    config.vocab = 100;
    assert_ok(bp_logprob_create(gpu, &config, &client));
    forward_part(client, &t, 0, 30);
    assert_fails(bp_logprob_check(client), BP_ERR_INVALID_ARGUMENT, "11", "100");
    assert_ok(bp_logprob_check(client));
    copy_to_host(&t);
    assert_true(outputs_are_true(&b)); /* NaN for both tokens */
    bp_logprob_destroy(&client);
    free_device_batch(&t);
    free_batch(&b);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

#define FAR_TOKENS 16500u
#define FAR_COLUMNS 131072u

static void put(void *gpu_memory, uint64_t element, uint16_t value)
{
    assert_ok(bp_stream_copy(stream, (uint16_t *)gpu_memory + element, &value, sizeof value));
    assert_ok(bp_stream_synchronize(stream));
}

static double bf16_at(const void *gpu_memory, uint64_t element)
{
    uint16_t value;
    assert_ok(bp_stream_copy(stream, &value, (const uint16_t *)gpu_memory + element, sizeof value));
    assert_ok(bp_stream_synchronize(stream));
    return element_at(&value, BP_DTYPE_BF16, 0);
}

/* bf16 zeros except for a 2 at the target of every checked row: more than 2^31 elements, in place. */
TEST(test_more_than_2_to_the_31_elements)
{
    static const uint64_t live[] = {0, 8191, 8192, 16383, 16384, FAR_TOKENS - 1};
    void *logits = has_small_shapes() ? NULL : take_gpu_memory(2ull * FAR_TOKENS * FAR_COLUMNS);
    void *values = take_gpu_memory(24ull * FAR_TOKENS);
    if (logits == NULL) {
        print_message("2^31 elements: not enough memory or time\n");
        give_gpu_memory(values);
        return;
    }
    int64_t *target = values;
    float *logprob = (float *)values + 2 * (size_t)FAR_TOKENS, *grad = logprob + FAR_TOKENS, *saved = grad + FAR_TOKENS;
    int64_t *host_target = calloc(FAR_TOKENS, sizeof *host_target);
    float *host_values = calloc(FAR_TOKENS, sizeof *host_values);
    assert_true(host_target != NULL && host_values != NULL);
    assert_ok(bp_stream_fill(stream, logits, 0, 2ull * FAR_TOKENS * FAR_COLUMNS));
    for (uint64_t i = 0; i < FAR_TOKENS; i++) {
        host_target[i] = (int64_t)(FAR_COLUMNS - 1 - i);
        host_values[i] = 1;
    }
    for (size_t i = 0; i < 6; i++)
        put(logits, live[i] * FAR_COLUMNS + (uint64_t)host_target[live[i]], 0x4000);
    assert_ok(bp_stream_copy(stream, target, host_target, 8ull * FAR_TOKENS));
    assert_ok(bp_stream_copy(stream, grad, host_values, 4ull * FAR_TOKENS));
    batch sizes = {.o = {.batch = 1, .sequence = FAR_TOKENS, .columns = FAR_COLUMNS}};
    bp_logprob *client = new_client(gpu, &sizes, BP_KERNELS_PLAIN, 0);
    bp_logprob_batch call;
    bp_logprob_outputs outputs;
    bp_logprob_gradients gradients;
    assert_ok(bp_logprob_batch_init(&call, sizeof call));
    assert_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
    assert_ok(bp_logprob_gradients_init(&gradients, sizeof gradients));
    call.logits = (bp_token_rows){
        .data = logits, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = FAR_TOKENS, .columns = FAR_COLUMNS};
    call.tokens.target = (bp_token_values){target, 0, 1};
    outputs.logprob = (bp_token_values){logprob, 0, 1};
    outputs.saved = saved;
    outputs.saved_bytes = gradients.saved_bytes = 8ull * FAR_TOKENS;
    gradients.saved = saved;
    gradients.logprob_grad = (bp_token_values){grad, 0, 1};
    gradients.logits_grad = call.logits;
    gradients.in_place = 1;
    assert_ok(bp_logprob_forward(client, &call, &outputs, stream));
    assert_ok(bp_logprob_backward(client, &call, &gradients, stream));
    assert_ok(bp_stream_copy(stream, host_values, logprob, 4ull * FAR_TOKENS));
    assert_ok(bp_stream_synchronize(stream));
    double p_two = exp(2) / (exp(2) + FAR_COLUMNS - 1);
    for (size_t i = 0; i < 6; i++) {
        uint64_t row = live[i] * FAR_COLUMNS, t = (uint64_t)host_target[live[i]];
        assert_true(is_near(host_values[live[i]], log(p_two)));
        assert_true(fabs(bf16_at(logits, row + t) - (1 - p_two)) < 0.005);
        assert_true(fabs(bf16_at(logits, row + (t == 0 ? 1 : t - 1)) + p_two / exp(2)) < 1e-7);
    }
    assert_true(is_near(host_values[1], -log(FAR_COLUMNS)));
    bp_logprob_destroy(&client);
    free(host_target);
    free(host_values);
    give_gpu_memory(values);
    give_gpu_memory(logits);
}

/* More rows than the second dimension of a grid allows. */
TEST(test_many_rows)
{
    batch_options options = {.batch = 3, .sequence = rounds(30000, 40), .columns = 5, .with_entropy = true};
    seed(51);
    check_on_gpu(&options);
}

int main(int argc, char **argv)
{
    if (!has_driver()) {
        printf("BP_TEST_DRIVER is not the path of a driver\n");
        return 77;
    }
    take_arguments(argc, argv);
    return has_cuda_kernels() ? run_registered(NULL, NULL, open_gpu, close_gpu) : 77;
}
