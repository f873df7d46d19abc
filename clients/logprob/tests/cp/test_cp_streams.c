/* Stream order of rearrangements; without a stream they are synchronous. */
#include "support/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../support/hosts.h"
#include "../support/rearrangements.h"
#include "support/pools.h"

static void enqueue(bp_cp *cp, const sample *s, bp_stream *stream)
{
    bp_cp_rearrangement r = rearrangement_of(&SAMPLE_MOVE, &s->from, &s->to);
    assert_ok(bp_cp_rearrange(cp, s->h.split, &r, stream));
    memset(&r, 0xee, sizeof r);
}

/* The split may be destroyed before the work runs. */
TEST(work_waits_for_its_turn)
{
    sample s = new_sample(1);
    bp_cp *cp = new_cp(device, 2);
    bp_stream *stream = NULL;
    gate g = {0};
    assert_ok(bp_stream_create(device, "held", &stream));
    block(stream, &g);
    enqueue(cp, &s, stream);
    bp_cp_split_destroy(&s.h.split);
    pause_us(5000);
    assert_true(tokens_are_poison(&s.to));
    unblock(&g);
    assert_ok(bp_stream_synchronize(stream));
    assert_true(sample_is_done(&s));
    bp_cp_destroy(&cp);
    bp_stream_destroy(&stream);
    free_sample(&s);
}

TEST(without_a_stream_calls_wait)
{
    bp_device *slow = new_slow_host(1000, 5);
    bp_cp *cp = new_cp(slow, 2);
    for (uint64_t round = 0; round < 10; round++) {
        sample s = new_sample(round);
        enqueue(cp, &s, NULL);
        assert_true(sample_is_done(&s));
        free_sample(&s);
    }
    bp_cp_destroy(&cp);
    bp_device_destroy(&slow);
}

/* A copy writes the source before, and one reads the target after. */
TEST(copies_before_and_after_are_in_order)
{
    for (uint64_t round = 0; round < 8; round++) {
        bp_device *slow = new_slow_host(400, round);
        bp_cp *cp = new_cp(slow, 1);
        bp_stream *stream = NULL;
        sample s = new_sample(round), source = new_sample(round);
        uint8_t *later = malloc(s.to.bytes);
        assert_non_null(later);
        assert_ok(bp_stream_create(slow, "s", &stream));
        memset(s.from.memory, 0x11, s.from.bytes);
        assert_ok(bp_stream_copy(stream, s.from.memory, source.from.memory, s.from.bytes));
        enqueue(cp, &s, stream);
        assert_ok(bp_stream_copy(stream, later, s.to.memory, s.to.bytes));
        assert_ok(bp_stream_fill(stream, s.to.memory, 0x22, s.to.bytes));
        assert_ok(bp_stream_synchronize(stream));
        assert_int_equal(s.to.memory[0], 0x22);
        memcpy(s.to.memory, later, s.to.bytes);
        assert_true(sample_is_done(&s));
        free(later);
        free_sample(&s);
        free_sample(&source);
        bp_cp_destroy(&cp);
        bp_stream_destroy(&stream);
        bp_device_destroy(&slow);
    }
}

/* More calls than the ring holds, alternating between two splits; destruction waits for the last. */
TEST(many_calls_wait_for_room)
{
    enum { CALLS = 300 };
    sample *all = calloc(CALLS, sizeof *all);
    assert_non_null(all);
    bp_cp *cp = new_cp(device, 1);
    bp_stream *stream = NULL;
    gate g = {0};
    pthread_t opener;
    assert_ok(bp_stream_create(device, "s", &stream));
    block(stream, &g);
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    for (uint64_t i = 0; i < CALLS; i++) {
        all[i] = new_sample(i);
        enqueue(cp, &all[i], stream);
        bp_cp_split_destroy(&all[i].h.split);
    }
    bp_cp_destroy(&cp);
    assert_null(cp);
    for (uint64_t i = 0; i < CALLS; i++) {
        assert_true(sample_is_done(&all[i]));
        free_sample(&all[i]);
    }
    pthread_join(opener, NULL);
    bp_stream_destroy(&stream);
    free(all);
}

TEST(clients_leave_nothing_behind)
{
    bp_device *own = new_host();
    bp_cp *cp = new_cp(own, 2);
    sample s = new_sample(3);
    enqueue(cp, &s, NULL);
    assert_null(bp_cp_pool(cp));
    bp_cp_destroy(&cp);
    bp_cp_destroy(&cp);
    bp_cp_destroy(NULL);
    const bp_device_usage usage = usage_of(own);
    assert_true(usage.streams == 0 && usage.events == 0 && usage.committed_bytes == 0 && usage.allocated_bytes == 0);
    bp_device_destroy(&own);
    free_sample(&s);
}

TESTS(open_host, close_host)
