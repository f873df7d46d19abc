/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of context-parallel calls: rearrangements and seeds are recorded into a graph. Calls that wait or communicate are refused, on
 * all ranks, and leave the client and the graph unchanged. */
#include "support/harness.h"

#include <bucketpool/loss.h>

#include <string.h>

#include "base.h"
#include "devices/device.h"
#include "support/driver.h"
#include "support/pools.h"

enum { SEQUENCES = 130, TOKENS = 4 * SEQUENCES, LOCAL = TOKENS / 2, BYTES = 4 * TOKENS };

typedef struct bench {
    bp_device *device;
    bp_stream *stream;
    bp_cp_split *halves, *whole; /* for two ranks, for one */
    float *from, *to;            /* in device memory, [TOKENS] each */
    uint8_t *mask;
} bench;

static bp_cp_split *new_split(uint32_t ranks)
{
    bp_cp_split_config config;
    bp_cp_split *split;
    int64_t cu[SEQUENCES + 1];
    for (int i = 0; i <= SEQUENCES; i++)
        cu[i] = 4 * i;
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = cu;
    config.sequences = SEQUENCES;
    config.ranks = ranks;
    assert_ok(bp_cp_split_create(&config, &split));
    return split;
}

static void *allocate(const bench *b, uint64_t bytes, uint8_t value)
{
    void *memory;
    assert_ok(bp_device_allocate(b->device, bytes, b->stream, &memory));
    assert_ok(bp_stream_fill(b->stream, memory, value, bytes));
    assert_ok(bp_stream_synchronize(b->stream));
    return memory;
}

static bench new_bench(void)
{
    bench b = {.device = new_cuda(), .halves = new_split(2), .whole = new_split(1)};
    assert_ok(bp_stream_create(b.device, "caller", &b.stream));
    b.from = allocate(&b, BYTES, 0);
    b.to = allocate(&b, BYTES, 0x7f);
    b.mask = allocate(&b, TOKENS, 1);
    return b;
}

static void free_bench(bench *b)
{
    assert_ok(bp_device_free(b->device, b->from, BYTES, b->stream));
    assert_ok(bp_device_free(b->device, b->to, BYTES, b->stream));
    assert_ok(bp_device_free(b->device, b->mask, TOKENS, b->stream));
    assert_ok(bp_stream_synchronize(b->stream));
    bp_cp_split_destroy(&b->halves);
    bp_cp_split_destroy(&b->whole);
    bp_stream_destroy(&b->stream);
    bp_device_destroy(&b->device);
}

static void write_from(const bench *b, float first)
{
    float values[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        values[i] = first + (float)i;
    assert_ok(bp_stream_copy(b->stream, b->from, values, sizeof values));
    assert_ok(bp_stream_synchronize(b->stream));
}

static void read_to(const bench *b, float *values)
{
    assert_ok(bp_stream_copy(b->stream, values, b->to, BYTES));
    assert_ok(bp_stream_synchronize(b->stream));
}

static bp_loss *new_loss(const bench *b)
{
    bp_loss_config config;
    bp_loss *loss;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = SEQUENCES;
    config.epsilon = 0;
    assert_ok(bp_loss_create(b->device, &config, &loss));
    return loss;
}

/* ---- calls that may be captured ------------------------------------------------------------------------------------ */

/* Each launch reads the current contents. */
TEST(rearrangements_are_captured)
{
    bench b = new_bench();
    bp_cp_config config;
    bp_cp *cp;
    bp_cp_rearrangement r;
    bp_graph *graph;
    assert_ok(bp_cp_config_init(&config, sizeof config));
    assert_ok(bp_cp_create(b.device, &config, &cp));
    assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from = (bp_cp_tensor){.data = b.from, .tokens = TOKENS, .token_bytes = 4};
    r.to = (bp_cp_tensor){.data = b.to, .tokens = LOCAL, .token_bytes = 4};
    assert_ok(bp_graph_begin(b.stream));
    assert_ok(bp_cp_rearrange(cp, b.halves, &r, b.stream));
    assert_ok(bp_graph_end(b.stream, &graph));
    bp_cp_split_destroy(&b.halves); /* the graph has its own copy */
    for (int times = 1; times <= 3; times++) {
        float values[TOKENS];
        write_from(&b, (float)(1000 * times));
        assert_ok(bp_graph_launch(graph, b.stream));
        read_to(&b, values);
        for (int i = 0; i < LOCAL; i++) { /* the first and last of each four tokens */
            const int token = 4 * (i / 2) + 3 * (i % 2);
            assert_true(values[i] == (float)(1000 * times + token));
        }
    }
    bp_graph_destroy(&graph);
    bp_cp_destroy(&cp);
    free_bench(&b);
}

static bp_status seed_to(const bench *b, bp_loss *loss)
{
    const bp_token_values mask = {.data = b->mask, .stride = 1}, seed = {.data = b->to, .stride = 1};
    return bp_loss_seed(loss, b->whole, TOKENS, &mask, -1, &seed, b->stream);
}

/* A captured seed keeps the number of tokens known at its capture. */
TEST(seeds_are_captured)
{
    bench b = new_bench();
    bp_loss *loss = new_loss(&b);
    bp_graph *graph;
    float values[TOKENS];
    assert_ok(bp_loss_count_set(loss, 8));
    assert_ok(bp_graph_begin(b.stream));
    assert_ok(seed_to(&b, loss));
    assert_ok(bp_graph_end(b.stream, &graph));
    assert_ok(bp_loss_count_set(loss, 2));
    assert_ok(bp_graph_launch(graph, b.stream));
    read_to(&b, values);
    for (int i = 0; i < TOKENS; i++)
        assert_true(values[i] == -1.0f / 8);
    assert_ok(seed_to(&b, loss));
    read_to(&b, values);
    for (int i = 0; i < TOKENS; i++)
        assert_true(values[i] == -1.0f / 2);
    bp_graph_destroy(&graph);
    bp_loss_destroy(&loss);
    free_bench(&b);
}

/* ---- calls that may not -------------------------------------------------------------------------------------------- */

static bp_status add_to(const bench *b, bp_loss *loss)
{
    bp_loss_values values;
    assert_ok(bp_loss_values_init(&values, sizeof values));
    values.tokens = TOKENS;
    values.mask = (bp_token_values){.data = b->mask, .stride = 1};
    values.logprob = (bp_token_values){.data = b->from, .stride = 1};
    return bp_loss_add(loss, b->whole, &values, b->stream);
}

static void check_whole_step(const bench *b, bp_loss *loss)
{
    bp_loss_statistics s = {.size = sizeof s};
    assert_ok(bp_loss_begin(loss));
    assert_ok(add_to(b, loss));
    assert_ok(bp_loss_reduce(loss, BP_OK, b->stream));
    assert_ok(bp_loss_statistics_get(loss, &s));
    assert_int_equal(s.valid, TOKENS);
}

TEST(sums_are_not_captured)
{
    bench b = new_bench();
    bp_loss *loss = new_loss(&b);
    bp_graph *graph;
    for (int reduces = 0; reduces < 2; reduces++) {
        for (int before = 0; before < 2; before++) { /* without and with earlier sums, for which a capture would wait */
            assert_ok(bp_loss_begin(loss));
            if (before)
                assert_ok(add_to(&b, loss));
            assert_ok(bp_graph_begin(b.stream));
            const bp_status status = reduces ? bp_loss_reduce(loss, BP_OK, b.stream) : add_to(&b, loss);
            assert_fails(status, BP_ERR_CAPTURE, "caller");
            assert_ok(bp_graph_end(b.stream, &graph));
            bp_graph_destroy(&graph);
            check_whole_step(&b, loss);
        }
    }
    bp_loss_destroy(&loss);
    free_bench(&b);
}

/* A second rank that repeats the first rank's words. */
typedef struct echo {
    int64_t told; /* last status that the first rank sent */
} echo;

static bp_status exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    memcpy(all, mine, bytes);
    memcpy((char *)all + bytes, mine, bytes);
    if (bytes == sizeof(bp_rank_words))
        ((echo *)user)->told = ((const bp_rank_words *)mine)->status;
    return BP_OK;
}

static bp_status all_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    (void)user;
    assert_ok(bp_stream_copy(stream, all, mine, bytes));
    return bp_stream_copy(stream, (char *)all + bytes, mine, bytes);
}

TEST(gathers_are_not_captured)
{
    bench b = new_bench();
    echo e = {0};
    const bp_comm_callbacks callbacks = {
        .size = sizeof callbacks, .ranks = 2, .exchange = exchange, .all_gather = all_gather};
    bp_comm *comm;
    bp_cp_config config;
    bp_cp *cp;
    bp_graph *graph;
    const bp_cp_tensor local = {.data = b.from, .tokens = LOCAL, .token_bytes = 4};
    const bp_cp_tensor whole = {.data = b.to, .tokens = TOKENS, .token_bytes = 4};
    assert_ok(bp_comm_create_callback(&callbacks, &e, "echo", &comm));
    assert_ok(bp_cp_config_init(&config, sizeof config));
    config.comm = comm;
    config.max_gathered_bytes = BYTES;
    assert_ok(bp_cp_create(b.device, &config, &cp));
    assert_ok(bp_graph_begin(b.stream));
    assert_fails(bp_cp_gather(cp, b.halves, &local, BP_CP_PACKED, &whole, b.stream), BP_ERR_CAPTURE, "caller");
    assert_int_equal(e.told, BP_ERR_CAPTURE);
    assert_ok(bp_graph_end(b.stream, &graph));
    bp_graph_destroy(&graph);
    assert_ok(bp_cp_gather(cp, b.halves, &local, BP_CP_PACKED, &whole, b.stream));
    assert_ok(bp_stream_synchronize(b.stream));
    bp_cp_destroy(&cp);
    bp_comm_destroy(&comm);
    free_bench(&b);
}

TESTS(NULL, NULL)
