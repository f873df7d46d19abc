/* Fault injection: every device call and every allocation fails once in turn. Each gives an error, nothing leaks, and the next call works.
 * Calls of an existing head do not allocate. Linked with shortage.c. */
#include "support/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/faults.h"
#include "head_runs.h"
#include "support/exchange.h"
#include "support/pools.h"
#include "support/shortage.h"

static const head_case small = {.batch = 2,
                                .sequence = 7,
                                .hidden = 5,
                                .vocab = 11,
                                .dtype = BP_DTYPE_BF16,
                                .grad_dtype = BP_DTYPE_BF16,
                                .chunk = 3,
                                .temperature = 2,
                                .has_entropy = true,
                                .has_mask = true,
                                .accumulate = true,
                                .seed = 8};

/* ---- allocations --------------------------------------------------------------------------------------------------- */

TEST(test_calls_allocate_nothing)
{
    head_values v = values_of(&small);
    head_tensors t = tensors_of(&v, 0, small.vocab);
    bp_lm_head_config config = head_config_of(&small);
    bp_lm_head *head = new_head(&config);
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "caller", &stream));
    shortage.counts = true;
    shortage.allocations = 0;
    for (int i = 0; i < 20; i++)
        run(head, &t, i % 2 == 0 ? stream : NULL);
    shortage.counts = false;
    assert_int_equal(shortage.allocations, 0);
    bp_stream_destroy(&stream);
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

TEST(test_creation_without_memory)
{
    bp_lm_head_config config = head_config_of(&small);
    unsigned met = 0;
    for (unsigned nth = 1;; nth++) {
        bp_lm_head *head = NULL;
        shortage.fails = nth;
        bp_status status = bp_lm_head_create(device, &config, &head);
        const bool was_met = shortage.fails == 0;
        shortage.fails = 0;
        if (!was_met) {
            assert_ok(status);
            bp_lm_head_destroy(&head);
            break;
        }
        met++;
        if (status == BP_OK) { /* the refused allocation was optional */
            bp_lm_head_destroy(&head);
            continue;
        }
        assert_int_equal(status, BP_ERR_NO_HOST_MEMORY);
        assert_null(head);
        assert_int_equal(usage_of(device).committed_bytes, 0);
    }
    assert_true(met > 20);
}

/* One of two ranks, whose nth allocation fails; 0: none. */
typedef struct poor_rank {
    exchange_seat seat;
    bp_comm *comm;
    unsigned nth;
    bool met;
    bp_status status;
} poor_rank;

static void *create_poor(void *argument)
{
    poor_rank *r = argument;
    bp_lm_head *head = NULL;
    bp_lm_head_config config = head_config_of(&small);
    config.vocab_start = r->seat.rank * small.vocab;
    config.comm = r->comm;
    shortage.fails = r->nth;
    r->status = bp_lm_head_create(device, &config, &head);
    r->met = r->nth > 0 && shortage.fails == 0;
    shortage.fails = 0;
    bp_lm_head_destroy(&head);
    return NULL;
}

/* False: rank 1 has fewer than n allocations. Neither rank waits for one that has failed. */
static bool both_fail(unsigned nth)
{
    exchange_room room;
    poor_rank ranks[2];
    pthread_t threads[2];
    exchange_begin(&room, 2);
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = (poor_rank){.seat = {.room = &room, .rank = i}, .nth = i * nth};
        bp_comm_callbacks callbacks = exchange_callbacks(&ranks[i].seat);
        assert_ok(bp_comm_create_callback(&callbacks, &ranks[i].seat, "threads", &ranks[i].comm));
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, create_poor, &ranks[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        bp_comm_destroy(&ranks[i].comm);
    const bool gave_up = room.given_up;
    exchange_end(&room);
    assert_false(gave_up);
    assert_int_equal(ranks[0].status, ranks[1].status);
    return ranks[1].met;
}

TEST(test_ranks_without_memory)
{
    unsigned nth = 1;
    while (both_fail(nth))
        nth++;
    assert_true(nth > 12);
    assert_int_equal(usage_of(device).committed_bytes, 0);
}

/* ---- the device ---------------------------------------------------------------------------------------------------- */

static bp_device *new_faulty(faults *f)
{
    bp_device *inner = new_host(), *faulty = NULL;
    *f = (faults){0};
    assert_ok(trace_device_create(inner, fail_at, f, &faulty));
    bp_device_destroy(&inner);
    return faulty;
}

TEST(test_creation_on_a_failing_device)
{
    faults f;
    bp_device *faulty = new_faulty(&f);
    bp_lm_head_config config = head_config_of(&small);
    config.targets = BP_TARGETS_ERROR;
    unsigned met = 0;
    for (unsigned nth = 1;; nth++, met++) {
        bp_lm_head *head = NULL;
        f = (faults){.until = nth};
        bp_status status = bp_lm_head_create(faulty, &config, &head);
        const faults was = f;
        f = (faults){0};
        if (status == BP_OK)
            bp_lm_head_destroy(&head);
        if (!was.met)
            break;
        if (!undoes(was.where) && was.where != OP_STREAM_SYNCHRONIZE && was.where != OP_SYNCHRONIZE)
            assert_int_equal(status, BP_ERR_IO);
        assert_int_equal(usage_of(faulty).committed_bytes, 0);
        assert_int_equal(usage_of(faulty).streams, 0);
        assert_int_equal(usage_of(faulty).events, 0);
    }
    assert_true(met > 10);
    bp_device_destroy(&faulty);
}

/* A call with `stream` whose nth device call fails; the following runs match those without a fault. */
static bool fail_once(bp_device *faulty, bp_lm_head *head, head_tensors *t, bp_stream *stream, faults *f, unsigned nth,
                      bool backward, uint64_t bits)
{
    poison(t);
    if (backward)
        assert_ok(bp_lm_head_forward(head, &t->batch, &t->outputs, stream));
    *f = (faults){.until = nth};
    bp_status status = backward ? bp_lm_head_backward(head, &t->batch, &t->gradients, stream)
                                : bp_lm_head_forward(head, &t->batch, &t->outputs, stream);
    const faults was = *f;
    *f = (faults){0};
    assert_ok(bp_device_synchronize(faulty)); /* waiting may have been the call that failed */
    if (was.met && status == BP_OK)
        fail_msg("call %u of the device, %s, failed without an error", nth, device_operation_name(was.where));
    size_t live;
    assert_ok(bp_pool_live(bp_lm_head_get_info(head)->pool, NULL, 0, &live));
    assert_int_equal(live, 0);
    run(head, t, stream);
    assert_true(bits_of(t) == bits);
    return was.met;
}

TEST(test_calls_on_a_failing_device)
{
    faults f;
    bp_device *faulty = new_faulty(&f);
    bp_stream *stream = NULL;
    bp_lm_head *head = NULL;
    head_values v = values_of(&small);
    head_tensors t = tensors_of(&v, 0, small.vocab);
    bp_lm_head_config config = head_config_of(&small);
    assert_ok(bp_stream_create(faulty, "caller", &stream));
    assert_ok(bp_lm_head_create(faulty, &config, &head));
    run(head, &t, NULL);
    assert_true(wrong_outputs(&t) <= 1 && wrong_gradients(&t) <= 1);
    const uint64_t bits = bits_of(&t);
    for (int kind = 0; kind < 4; kind++) {
        unsigned nth = 1;
        while (fail_once(faulty, head, &t, kind % 2 == 0 ? stream : NULL, &f, nth, kind >= 2, bits))
            nth++;
        assert_true(nth > 12);
    }
    bp_lm_head_destroy(&head);
    bp_stream_destroy(&stream);
    assert_int_equal(usage_of(faulty).committed_bytes, 0);
    bp_device_destroy(&faulty);
    free_tensors(&t);
    free_values(&v);
}

TESTS(begin, end)
