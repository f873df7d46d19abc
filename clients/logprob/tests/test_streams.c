/* Stream order of calls: work runs in its turn, streams share workspaces, and destruction waits for enqueued work. */
#include "support/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/batches.h"
#include "support/children.h"
#include "support/faults.h"
#include "support/hosts.h"
#include "support/pools.h"

static const batch_options SMALL = {.batch = 2, .sequence = 9, .columns = 700, .with_entropy = true, .masked = true};
#define ALL (BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512)

static void enqueue_forward(bp_logprob *client, const batch *b, bp_stream *stream)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    assert_ok(bp_logprob_forward(client, &call, &outputs, stream));
    memset(&call, 0xee, sizeof call); /* the structs may be reused after the call */
    memset(&outputs, 0xee, sizeof outputs);
}

static void enqueue_backward(bp_logprob *client, const batch *b, bp_stream *stream)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    assert_ok(bp_logprob_backward(client, &call, &gradients, stream));
    memset(&call, 0xee, sizeof call);
    memset(&gradients, 0xee, sizeof gradients);
}

static void assert_true_results(const batch *b)
{
    assert_true(outputs_are_true(b) && gradient_is_true(b, whole_shard(b)));
}

static bool is_all_poison(const view *v)
{
    for (size_t i = 0; i < v->bytes; i++)
        if (v->memory[i] != v->poison)
            return false;
    return true;
}

TEST(work_waits_for_its_turn)
{
    batch b = new_batch(&SMALL);
    bp_logprob *client = new_client(device, &b, ALL, 2);
    bp_stream *stream = NULL;
    gate g = {0};
    assert_ok(bp_stream_create(device, "held", &stream));
    block(stream, &g);
    enqueue_forward(client, &b, stream);
    enqueue_backward(client, &b, stream);
    pause_us(5000);
    assert_true(is_all_poison(&b.logprob) && is_all_poison(&b.entropy) && is_all_poison(&b.grad));
    unblock(&g);
    assert_ok(bp_stream_synchronize(stream));
    assert_true_results(&b);
    bp_logprob_destroy(&client);
    bp_stream_destroy(&stream);
    free_batch(&b);
}

/* A copy writes the logits before, and one reads the gradient after; the host does not wait in between. */
TEST(copies_before_and_after_are_in_order)
{
    for (uint64_t round = 0; round < 10; round++) {
        bp_device *slow = new_slow_host(400, round);
        bp_stream *stream = NULL;
        batch b = new_batch(&SMALL);
        bp_logprob *client = new_client(slow, &b, ALL, 2);
        assert_ok(bp_stream_create(slow, "s", &stream));
        view later = new_view(b.grad.dtype, 2, 9, 700, (layout){0}, POISON);
        memset(b.logits.memory, 0x11, b.logits.bytes);
        assert_ok(bp_stream_copy(stream, b.logits.memory, b.original, b.logits.bytes));
        enqueue_forward(client, &b, stream);
        enqueue_backward(client, &b, stream);
        assert_ok(bp_stream_copy(stream, later.memory, b.grad.memory, b.grad.bytes));
        assert_ok(bp_stream_fill(stream, b.grad.memory, 0x22, b.grad.bytes));
        assert_ok(bp_stream_synchronize(stream));
        assert_int_equal(b.grad.memory[0], 0x22);
        memcpy(b.grad.memory, later.memory, later.bytes);
        assert_true_results(&b);
        free_view(&later);
        bp_logprob_destroy(&client);
        bp_stream_destroy(&stream);
        bp_device_destroy(&slow);
        free_batch(&b);
    }
}

#define STREAMS 3

/* Calls of one client on alternating streams share its workspaces without interference. */
TEST(streams_take_turns)
{
    for (uint64_t round = 0; round < 6; round++) {
        bp_device *slow = new_slow_host(300, 100 + round);
        bp_stream *streams[STREAMS];
        batch b[STREAMS], own = new_batch(&SMALL);
        for (uint32_t i = 0; i < STREAMS; i++) {
            assert_ok(bp_stream_create(slow, NULL, &streams[i]));
            b[i] = new_batch(&SMALL);
        }
        bp_logprob *client = new_client(slow, &b[0], ALL, 1 + round % 3);
        for (uint32_t call = 0; call < 4; call++) {
            for (uint32_t i = 0; i < STREAMS; i++)
                enqueue_forward(client, &b[i], streams[(i + call) % STREAMS]);
            for (uint32_t i = 0; i < STREAMS; i++)
                enqueue_backward(client, &b[i], streams[(i + call) % STREAMS]);
            check_both(client, &own); /* on the client's own stream */
            for (uint32_t i = 0; i < STREAMS; i++)
                assert_ok(bp_stream_synchronize(streams[i]));
            for (uint32_t i = 0; i < STREAMS; i++)
                assert_true_results(&b[i]);
            for (uint32_t i = 0; i < STREAMS; i++) {
                poison_outputs(&b[i], (uint8_t)(POISON - call));
                poison_gradient(&b[i], (uint8_t)(POISON - call));
            }
        }
        bp_logprob_destroy(&client);
        for (uint32_t i = 0; i < STREAMS; i++) {
            bp_stream_destroy(&streams[i]);
            free_batch(&b[i]);
        }
        free_batch(&own);
        bp_device_destroy(&slow);
    }
}

/* NULL: synchronous. */
TEST(without_a_stream_calls_wait)
{
    bp_device *slow = new_slow_host(2000, 5);
    batch b = new_batch(&SMALL);
    bp_logprob *client = new_client(slow, &b, ALL, 2);
    for (int i = 0; i < 10; i++)
        check_both(client, &b);
    bp_logprob_destroy(&client);
    bp_device_destroy(&slow);
    free_batch(&b);
}

/* A stream that waits for an event sees the results. */
TEST(events_mark_the_work)
{
    bp_device *slow = new_slow_host(500, 9);
    bp_stream *first = NULL, *then = NULL;
    assert_ok(bp_stream_create(slow, "first", &first));
    assert_ok(bp_stream_create(slow, "then", &then));
    batch b = new_batch(&SMALL);
    bp_logprob *client = new_client(slow, &b, ALL, 2);
    for (int round = 0; round < 10; round++) {
        poison_outputs(&b, POISON);
        poison_gradient(&b, POISON);
        enqueue_forward(client, &b, first);
        order(slow, first, then);
        enqueue_backward(client, &b, then);
        assert_ok(bp_stream_synchronize(then));
        assert_true_results(&b);
    }
    bp_logprob_destroy(&client);
    bp_stream_destroy(&first);
    bp_stream_destroy(&then);
    bp_device_destroy(&slow);
    free_batch(&b);
}

/* More calls than the ring holds: they wait, and none is lost. */
TEST(many_calls_wait_for_room)
{
    enum { CALLS = 300 };
    batch_options options = {.batch = 1, .sequence = CALLS, .columns = 50};
    batch b = new_batch(&options);
    bp_logprob *client = new_client(device, &b, ALL, 1);
    bp_stream *stream = NULL;
    gate g = {0};
    pthread_t opener;
    assert_ok(bp_stream_create(device, "s", &stream));
    block(stream, &g);
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    for (uint64_t s = 0; s < CALLS; s++) {
        bp_logprob_batch call = call_of(&b, whole_shard(&b));
        bp_logprob_outputs outputs = outputs_of(&b);
        call.logits.data = row_at(&b.logits, 0, s);
        call.logits.sequence = 1;
        call.tokens.target.data = row_at(&b.target, 0, s);
        outputs.logprob.data = row_at(&b.logprob, 0, s);
        outputs.saved = NULL;
        assert_ok(bp_logprob_forward(client, &call, &outputs, stream));
    }
    pthread_join(opener, NULL);
    assert_ok(bp_stream_synchronize(stream));
    assert_true(outputs_are_true(&b));
    bp_logprob_destroy(&client);
    bp_stream_destroy(&stream);
    free_batch(&b);
}

TEST(destroying_waits_for_work_on_its_way)
{
    for (int round = 0; round < 5; round++) {
        batch b = new_batch(&SMALL);
        bp_logprob *client = new_client(device, &b, ALL, 2);
        bp_stream *stream = NULL;
        gate g = {0};
        pthread_t opener;
        assert_ok(bp_stream_create(device, "s", &stream));
        block(stream, &g);
        enqueue_forward(client, &b, stream);
        enqueue_backward(client, &b, stream);
        assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
        bp_logprob_destroy(&client);
        assert_null(client);
        assert_true_results(&b);
        pthread_join(opener, NULL);
        bp_stream_destroy(&stream);
        free_batch(&b);
    }
}

/* False: there were fewer than n device calls. After a failed call the caller may free its tensors: nothing is written later. */
static bool fails_when_done(bp_logprob *client, batch *b, faults *f, unsigned nth, bool backward)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    memset(b->logprob.memory, 0x11, b->logprob.bytes);
    memset(b->grad.memory, 0x11, b->grad.bytes);
    *f = (faults){.until = nth, .spares_waits = true};
    bp_status status = backward ? bp_logprob_backward(client, &call, &gradients, NULL)
                                : bp_logprob_forward(client, &call, &outputs, NULL);
    const bool met = f->met;
    *f = (faults){0};
    assert_int_equal(status, met ? BP_ERR_IO : BP_OK);
    assert_true(!met || strstr(bp_error_detail(), "injected") != NULL);
    view *written = backward ? &b->grad : &b->logprob;
    assert_quiet(written->memory, written->bytes);
    return met;
}

TEST(failed_calls_leave_no_running_work)
{
    faults f = {0};
    bp_device *slow = new_slow_host(2000, 5), *faulty = NULL;
    assert_ok(trace_device_create(slow, fail_at, &f, &faulty));
    bp_device_destroy(&slow);
    batch b = new_batch(&SMALL);
    for (int checked = 0; checked < 2; checked++) {
        bp_logprob_config config;
        bp_logprob *client = NULL;
        assert_ok(bp_logprob_config_init(&config, sizeof config));
        config.max_tokens = token_count(&b);
        config.vocab = SMALL.columns;
        config.targets = checked ? BP_TARGETS_ERROR : BP_TARGETS_MASK;
        assert_ok(bp_logprob_create(faulty, &config, &client));
        run_forward(client, &b);
        for (int backward = 0; backward < 2; backward++) {
            unsigned nth = 1;
            while (fails_when_done(client, &b, &f, nth, backward))
                nth++;
            assert_int_equal(nth, 1); /* everything runs on this thread */
        }
        bp_logprob_destroy(&client);
    }
    bp_device_destroy(&faulty);
    free_batch(&b);
}

/* A check waits for the client's work on all streams. */
TEST(a_check_waits)
{
    bp_device *slow = new_slow_host(3000, 3);
    bp_stream *streams[2];
    batch b[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(bp_stream_create(slow, NULL, &streams[i]));
        b[i] = new_batch(&SMALL);
    }
    bp_logprob *client = new_client(slow, &b[0], ALL, 2);
    for (int i = 0; i < 2; i++) {
        enqueue_forward(client, &b[i], streams[i]);
        enqueue_backward(client, &b[i], streams[i]);
    }
    assert_ok(bp_logprob_check(client));
    for (int i = 0; i < 2; i++)
        assert_true_results(&b[i]);
    bp_logprob_destroy(&client);
    for (int i = 0; i < 2; i++) {
        bp_stream_destroy(&streams[i]);
        free_batch(&b[i]);
    }
    bp_device_destroy(&slow);
}

/* Streams may be destroyed before a client that has used them. */
TEST(streams_may_go_first)
{
    bp_device *slow = new_slow_host(1000, 8);
    batch b = new_batch(&SMALL);
    bp_logprob *client = new_client(slow, &b, ALL, 2);
    for (int round = 0; round < 4; round++) {
        bp_stream *stream = NULL;
        assert_ok(bp_stream_create(slow, NULL, &stream));
        enqueue_forward(client, &b, stream);
        enqueue_backward(client, &b, stream);
        bp_stream_destroy(&stream);
        assert_true_results(&b);
    }
    assert_ok(bp_logprob_check(client));
    check_both(client, &b);
    bp_logprob_destroy(&client);
    bp_device_usage usage = usage_of(slow);
    assert_true(usage.streams == 0 && usage.committed_bytes == 0 && usage.allocated_bytes == 0);
    bp_device_destroy(&slow);
    free_batch(&b);
}

/* Two clients of one device, on separate threads. */
typedef struct user_of_a_client {
    bp_logprob *client;
    batch b;
    bool good;
} user_of_a_client;

static void *use_alone(void *argument)
{
    user_of_a_client *u = argument;
    bp_logprob_batch call = call_of(&u->b, whole_shard(&u->b));
    bp_logprob_outputs outputs = outputs_of(&u->b);
    bp_logprob_gradients gradients = gradients_of(&u->b, whole_shard(&u->b));
    u->good = true;
    for (int round = 0; round < 20 && u->good; round++)
        u->good = bp_logprob_forward(u->client, &call, &outputs, NULL) == BP_OK &&
                  bp_logprob_backward(u->client, &call, &gradients, NULL) == BP_OK && outputs_are_true(&u->b) &&
                  gradient_is_true(&u->b, whole_shard(&u->b));
    return NULL;
}

TEST(clients_are_independent)
{
    user_of_a_client users[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        users[i].b = new_batch(&SMALL);
        users[i].client = new_client(device, &users[i].b, ALL, 2);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_alone, &users[i]), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) {
        assert_true(users[i].good);
        bp_logprob_destroy(&users[i].client);
        free_batch(&users[i].b);
    }
}

typedef struct inherited {
    bp_logprob *client;
    const batch *b;
    bp_stream *stream;
} inherited;

static void use_and_destroy(void *argument)
{
    inherited *i = argument;
    bp_logprob_batch call = call_of(i->b, whole_shard(i->b));
    bp_logprob_outputs outputs = outputs_of(i->b);
    must_refuse(bp_logprob_forward(i->client, &call, &outputs, i->stream));
    must_refuse(bp_logprob_forward(i->client, &call, &outputs, NULL));
    must_refuse(bp_logprob_check(i->client));
    bp_logprob_destroy(&i->client);
    must(i->client == NULL);
}

/* A forked child does not wait for its parent's enqueued work. */
TEST(a_child_is_refused)
{
    batch b = new_batch(&SMALL);
    inherited i = {.client = new_client(device, &b, ALL, 1), .b = &b};
    gate g = {0};
    assert_ok(bp_stream_create(device, "held", &i.stream));
    block(i.stream, &g);
    enqueue_forward(i.client, &b, i.stream);
    assert_int_equal(status_of_child(use_and_destroy, &i), 0);
    unblock(&g);
    enqueue_backward(i.client, &b, i.stream);
    assert_ok(bp_stream_synchronize(i.stream));
    assert_true_results(&b);
    bp_logprob_destroy(&i.client);
    bp_stream_destroy(&i.stream);
    free_batch(&b);
}

TESTS(open_host, close_host)
