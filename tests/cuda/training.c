/* SPDX-License-Identifier: Apache-2.0 */
/* Iterations of a training loop. */
#include <bucketpool/capture.h>

#include "support/driver.h"
#include "training.h"

#define POISON 0xee

static uint8_t *output_of(const training *t, size_t request, size_t interval)
{
    assert_true(interval < MAX_INTERVALS);
    return t->outputs[request * MAX_INTERVALS + interval];
}

static bp_request request_at(const training *t, size_t request)
{
    bp_request found = bp_buckets_get_info(t->k->w.buckets)->requests[request];
    return found;
}

static uint32_t unit_at(const training *t, size_t request)
{
    bp_bucket bucket = bp_buckets_get_info(t->k->w.buckets)->buckets[request_at(t, request).bucket];
    return (uint32_t)bucket.unit;
}

static size_t interval_count(const training *t, size_t request)
{
    size_t count;
    (void)intervals_of(t->k->w.schedule, request, &count);
    return count;
}

void training_begin(training *t, kit *k)
{
    *t = (training){.k = k, .gather = k->streams[0], .compute = k->streams[1], .reduce = k->streams[2]};
    t->inputs = calloc(k->requests, sizeof *t->inputs);
    t->outputs = calloc(k->requests * MAX_INTERVALS, sizeof *t->outputs);
    t->bytes = calloc(k->requests, sizeof *t->bytes);
    t->event_count = 4 + k->requests * MAX_INTERVALS;
    t->events = calloc(t->event_count, sizeof(bp_event *));
    assert_true(t->inputs != NULL && t->outputs != NULL && t->bytes != NULL && t->events != NULL);
    for (size_t i = 0; i < t->event_count; i++)
        assert_ok(bp_event_create(k->device, &t->events[i]));
    for (size_t r = 0; r < k->requests; r++) {
        t->bytes[r] = request_at(t, r).bytes;
        assert_true(t->bytes[r] <= PINNED_BYTES);
        t->inputs[r] = take_pinned();
        for (size_t i = 0; i < MAX_INTERVALS; i++)
            t->outputs[r * MAX_INTERVALS + i] = take_pinned();
    }
}

void training_end(training *t)
{
    for (size_t r = 0; r < t->k->requests; r++) {
        give_pinned(t->inputs[r]);
        for (size_t i = 0; i < MAX_INTERVALS; i++)
            give_pinned(output_of(t, r, i));
    }
    for (size_t i = 0; i < t->event_count; i++)
        bp_event_destroy(&t->events[i]);
    free(t->events);
    free(t->inputs);
    free(t->outputs);
    free(t->bytes);
}

/* ---- data ---------------------------------------------------------------------------------------------------------- */

static void synchronize(const training *t)
{
    for (int i = 0; i < KIT_STREAMS; i++)
        assert_ok(bp_stream_synchronize(t->k->streams[i]));
}

/* A different value for each iteration, request and place. */
static uint8_t byte_of(uint32_t iteration, size_t request, uint64_t at)
{
    uint64_t x =
        ((uint64_t)iteration + 1) * 0x9e3779b97f4a7c15u + request * 0xbf58476d1ce4e5b9u + at * 0x94d049bb133111ebu;
    return (uint8_t)((x ^ x >> 29 ^ x >> 47) % 251);
}

void training_set_iteration(training *t, uint32_t iteration)
{
    synchronize(t);
    for (size_t r = 0; r < t->k->requests; r++) {
        for (uint64_t i = 0; i < t->bytes[r]; i++)
            t->inputs[r][i] = byte_of(iteration, r, i);
        for (size_t i = 0; i < MAX_INTERVALS; i++)
            memset(output_of(t, r, i), POISON, t->bytes[r]);
    }
}

static void assert_output(const training *t, size_t request, size_t interval)
{
    assert_memory_equal(output_of(t, request, interval), t->inputs[request], t->bytes[request]);
}

void training_assert_outputs(training *t)
{
    synchronize(t);
    for (size_t r = 0; r < t->k->requests; r++) {
        for (size_t i = 0; i < interval_count(t, r); i++)
            assert_output(t, r, i);
    }
}

void training_assert_layer(training *t, uint32_t unit)
{
    synchronize(t);
    for (size_t r = 0; r < t->k->requests; r++) {
        if (unit_at(t, r) == unit)
            assert_output(t, r, 0);
    }
}

/* ---- work ---------------------------------------------------------------------------------------------------------- */

static void hand_over(training *t, bp_stream *from, bp_stream *to)
{
    assert_true(t->next_event < t->event_count);
    bp_event *event = t->events[t->next_event++];
    assert_ok(bp_event_record(event, from));
    assert_ok(bp_stream_wait(to, event));
}

void training_fork(training *t)
{
    t->next_event = 0;
    hand_over(t, t->compute, t->gather);
    hand_over(t, t->compute, t->reduce);
}

void training_join(training *t)
{
    t->next_event = t->event_count - 2;
    hand_over(t, t->gather, t->compute);
    hand_over(t, t->reduce, t->compute);
}

static bool is_gradient(const training *t, size_t request)
{
    return request_at(t, request).role == BP_ROLE_GRAD;
}

static bp_stream *producer(const training *t, size_t request)
{
    return is_gradient(t, request) ? t->compute : t->gather;
}

static bp_stream *consumer(const training *t, size_t request)
{
    return is_gradient(t, request) ? t->reduce : t->compute;
}

static void produce(training *t, size_t request)
{
    void *address = take(t->k, t->k->ids[request], producer(t, request));
    assert_ok(bp_stream_copy(producer(t, request), address, t->inputs[request], t->bytes[request]));
}

static void consume(training *t, size_t request, size_t interval)
{
    void *address;
    uint64_t bytes;
    assert_ok(bp_pool_address(t->k->pool, t->k->ids[request], &address, &bytes));
    hand_over(t, producer(t, request), consumer(t, request));
    assert_ok(bp_stream_copy(consumer(t, request), output_of(t, request, interval), address, t->bytes[request]));
    drop(t->k, t->k->ids[request], consumer(t, request));
}

/* The interval of the request that begins, or ends, at the step; MAX_INTERVALS: none does. */
static size_t edge_at(const training *t, size_t request, uint32_t step, bool begin)
{
    size_t count;
    const bp_interval *intervals = intervals_of(t->k->w.schedule, request, &count);
    for (size_t i = 0; i < count; i++) {
        if ((begin ? intervals[i].begin : intervals[i].end) == step)
            return i;
    }
    return MAX_INTERVALS;
}

void training_iterate(training *t)
{
    const uint32_t steps = (uint32_t)bp_schedule_get_info(t->k->w.schedule)->step_count;
    t->next_event = 2;
    for (uint32_t step = 0; step <= steps; step++) {
        for (size_t r = 0; r < t->k->requests; r++) {
            size_t interval = edge_at(t, r, step, false);
            if (interval < MAX_INTERVALS)
                consume(t, r, interval);
        }
        for (size_t r = 0; r < t->k->requests && step < steps; r++) {
            if (edge_at(t, r, step, true) < MAX_INTERVALS)
                produce(t, r);
        }
    }
}

void training_layer(training *t, uint32_t unit)
{
    t->next_event = 2;
    for (int gradients = 0; gradients < 2; gradients++) {
        for (size_t r = 0; r < t->k->requests; r++) {
            if (unit_at(t, r) == unit && is_gradient(t, r) == (gradients != 0))
                produce(t, r);
        }
        for (size_t r = 0; r < t->k->requests; r++) {
            if (unit_at(t, r) == unit && is_gradient(t, r) == (gradients != 0))
                consume(t, r, 0);
        }
    }
}
