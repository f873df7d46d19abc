/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head on ranks that share a vocabulary, on the device under test: host, or cuda where hidden_grad cannot be rounded after its
 * sum. Gradient layouts differ between ranks, but their collectives must match. */
#include "support/harness.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device_tensors.h"
#include "support/driver.h"
#include "support/exchange.h"
#include "support/pools.h"

#define RANKS 2

typedef struct rank {
    exchange_seat seat; /* first member: callbacks get both */
    bp_device *device;
    bp_comm *comm;
    device_tensors w;
    bool partial;
    bp_status status;
    char detail[200];
} rank;

/* ---- collectives through host memory ---------------------------------------------------------------------------------- */

static bp_status gather_on_host(rank *r, const void *mine, uint64_t bytes, bp_stream *stream, uint8_t **all)
{
    uint8_t *parts = malloc(bytes * (RANKS + 1) + 1);
    assert_non_null(parts);
    bp_status status = bp_stream_copy(stream, parts + bytes * RANKS, mine, bytes);
    if (status == BP_OK)
        status = bp_stream_synchronize(stream);
    if (status == BP_OK)
        status = exchange_callbacks(&r->seat).exchange(&r->seat, parts + bytes * RANKS, bytes, parts);
    *all = parts;
    return status;
}

static bp_status put(uint8_t *parts, void *to, uint64_t bytes, bp_stream *stream, bp_status status)
{
    if (status == BP_OK)
        status = bp_stream_copy(stream, to, parts, bytes);
    if (status == BP_OK)
        status = bp_stream_synchronize(stream);
    free(parts);
    return status;
}

static bp_status all_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    uint8_t *parts;
    bp_status status = gather_on_host(user, mine, bytes, stream, &parts);
    return put(parts, all, bytes * RANKS, stream, status);
}

/* bf16 is truncated, which the tolerance allows. */
static void add(bp_dtype dtype, uint8_t *to, const uint8_t *from, uint64_t count)
{
    const uint64_t bytes = bp_dtype_bits(dtype) / 8;
    for (uint64_t i = 0; i < count; i++) {
        float a = 0, b = 0;
        memcpy((uint8_t *)&a + 4 - bytes, to + i * bytes, bytes);
        memcpy((uint8_t *)&b + 4 - bytes, from + i * bytes, bytes);
        a += b;
        memcpy(to + i * bytes, (uint8_t *)&a + 4 - bytes, bytes);
    }
}

static bp_status all_reduce(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream)
{
    uint8_t *parts;
    const uint64_t bytes = count * (bp_dtype_bits(dtype) / 8);
    if (reduction != BP_REDUCE_SUM || (dtype != BP_DTYPE_FP32 && dtype != BP_DTYPE_BF16))
        return bp_error_record(BP_ERR_UNSUPPORTED, "only sums of fp32 and bf16");
    bp_status status = gather_on_host(user, from, bytes, stream, &parts);
    for (int i = 1; status == BP_OK && i < RANKS; i++)
        add(dtype, parts, parts + (uint64_t)i * bytes, count);
    return put(parts, to, bytes, stream, status);
}

/* ---- ranks ----------------------------------------------------------------------------------------------------------- */

static bp_status run_head(rank *r)
{
    bp_lm_head *head = NULL;
    bp_lm_head_config config = head_config_of(&r->w.v.c);
    config.vocab_start = r->w.there.first;
    config.vocab = r->w.there.columns;
    config.comm = r->comm;
    config.partial_hidden_grad = r->partial;
    bp_status status = bp_lm_head_create(r->device, &config, &head);
    for (int i = 0; status == BP_OK && i < 2; i++) {
        if (!(i > 0 && r->w.v.c.accumulate))
            status = call_head(head, &r->w.there, r->w.stream);
    }
    if (status == BP_OK)
        status = bp_stream_synchronize(r->w.stream);
    bp_lm_head_destroy(&head);
    return status;
}

static void *run_rank(void *argument)
{
    rank *r = argument;
    r->status = run_head(r);
    strncpy(r->detail, bp_error_detail(), sizeof r->detail - 1);
    return NULL;
}

static void begin_rank(rank *r, exchange_room *room, uint32_t number, const head_case *c, bool collectives)
{
    head_case own = *c;
    own.by_token = (number & 1) != 0;
    own.gap = number;
    const uint64_t first = number == 0 ? 0 : c->vocab / 3, end = number == 0 ? c->vocab / 3 : c->vocab;
    *r = (rank){.seat = {.room = room, .rank = number}, .device = has_driver() ? new_cuda() : new_host()};
    bp_comm_callbacks callbacks = exchange_callbacks(&r->seat);
    if (collectives) {
        callbacks.all_gather = all_gather;
        callbacks.all_reduce = all_reduce;
    }
    assert_ok(bp_comm_create_callback(&callbacks, r, "threads", &r->comm));
    begin_device_tensors(&r->w, r->device, &own, first, end - first);
    reset_device_tensors(&r->w);
}

static void end_rank(rank *r)
{
    end_device_tensors(&r->w);
    bp_comm_destroy(&r->comm);
    bp_device_destroy(&r->device);
}

static void run_ranks(rank *ranks, const head_case *c, bool collectives, bool partial)
{
    exchange_room room;
    pthread_t threads[RANKS];
    exchange_begin(&room, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        begin_rank(&ranks[i], &room, i, c, collectives);
        ranks[i].partial = partial;
    }
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < RANKS; i++)
        if (ranks[i].status != BP_OK)
            fail_msg("rank %u: %s: %s", i, bp_status_name(ranks[i].status), ranks[i].detail);
    exchange_end(&room);
}

static head_case case_of(bp_dtype dtype, bp_dtype grad_dtype, uint64_t seed)
{
    return (head_case){.batch = 2,
                       .sequence = 7,
                       .hidden = 12,
                       .vocab = 45,
                       .dtype = dtype,
                       .grad_dtype = grad_dtype,
                       .chunk = 3,
                       .temperature = 0.5F,
                       .has_entropy = true,
                       .has_mask = true,
                       .accumulate = seed % 2 != 0,
                       .masks_finite = true,
                       .seed = seed};
}

TEST(test_sums)
{
    static const bp_dtype dtypes[][2] = {
        {BP_DTYPE_FP32, BP_DTYPE_FP32}, {BP_DTYPE_BF16, BP_DTYPE_FP32}, {BP_DTYPE_BF16, BP_DTYPE_BF16}};
    for (uint64_t i = 0; i < 6 * HEAD_WAYS; i++) {
        head_case c = case_of(dtypes[i % 6 / 2][0], dtypes[i % 6 / 2][1], i);
        c.way = (head_way)(i / 6);
        for (int collectives = has_driver() ? 1 : 0; collectives < 2; collectives++) {
            rank ranks[RANKS];
            run_ranks(ranks, &c, collectives != 0, false);
            for (uint32_t r = 0; r < RANKS; r++) {
                assert_true(matches_reference(&ranks[r].w));
                end_rank(&ranks[r]);
            }
        }
    }
}

/* Each half of a piece in one workspace is exchanged before its gradient. */
TEST(test_halves)
{
    for (int way = 0; way < HEAD_WAYS; way++) {
        head_case c = case_of(BP_DTYPE_BF16, BP_DTYPE_BF16, (uint64_t)way);
        c.sequence = 600;
        c.chunk = 0;
        c.way = (head_way)way;
        rank ranks[RANKS];
        run_ranks(ranks, &c, true, false);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_true(matches_reference(&ranks[r].w));
            end_rank(&ranks[r]);
        }
    }
}

/* With partial hidden_grad, the parts sum up to the whole. */
TEST(test_parts)
{
    const head_case c = case_of(BP_DTYPE_FP32, BP_DTYPE_FP32, 9);
    rank ranks[RANKS];
    run_ranks(ranks, &c, true, true);
    assert_false(matches_reference(&ranks[0].w));
    copy_device_tensors(&ranks[1].w, true);
    float *sums = (float *)(void *)ranks[0].w.here.hidden_grad;
    for (uint64_t token = 0; token < c.batch * c.sequence; token++)
        for (uint64_t k = 0; k < c.hidden; k++) { /* rank 1 has a [sequence, batch] layout and a gap of one element */
            const uint64_t there = token % c.sequence * c.batch + token / c.sequence;
            sums[token * c.hidden + k] +=
                ((const float *)(const void *)ranks[1].w.here.hidden_grad)[there * (c.hidden + 1) + k];
        }
    assert_true(wrong_outputs(&ranks[0].w.here) <= 1);
    assert_true(wrong_gradients(&ranks[0].w.here) <= 1);
    for (uint32_t r = 0; r < RANKS; r++)
        end_rank(&ranks[r]);
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

TESTS(NULL, NULL)
