/* SPDX-License-Identifier: Apache-2.0 */
/* Order of work on the host device: streams, events, points, full queues, many producers. Run it under the thread
 * sanitizer: streams pass plain, non-atomic data to each other here. */
#include "support/harness.h"

#include <bucketpool/device.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "devices/host.h"
#include "support/trace_device.h"

#define THREADS 4
#define insist_ok(call) check_on_thread((call), #call, __LINE__)

/* Aborts, because cmocka assertions work on the test's thread only. */
static void check_on_thread(bp_status status, const char *call, int line)
{
    if (status == BP_OK)
        return;
    print_error("%d: %s: %s: %s\n", line, call, bp_status_name(status), bp_error_detail());
    abort();
}

#define insist(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("%d: assertion failed: %s\n", __LINE__, #condition);                                           \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static bp_device *make_device(uint32_t queue_length, uint32_t max_delay_us)
{
    bp_device *device = NULL;
    bp_host_config config;
    insist_ok(bp_host_config_init(&config, sizeof config));
    config.queue_length = queue_length;
    config.max_delay_us = max_delay_us;
    config.delay_seed = 12345;
    insist_ok(bp_device_create_host(&config, &device));
    return device;
}

static bp_stream *make_stream(bp_device *device)
{
    bp_stream *stream = NULL;
    insist_ok(bp_stream_create(device, NULL, &stream));
    return stream;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

/* Work that blocks its stream until the gate opens. */
static void pass_gate(void *argument)
{
    atomic_bool *open = argument;
    while (!atomic_load(open))
        sched_yield();
}

static void set_flag(void *argument)
{
    atomic_store((atomic_bool *)argument, true);
}

/* True if work enqueued now starts within `ms`, while the gate is closed. */
static bool starts_within(bp_stream *stream, int ms)
{
    static atomic_bool started;
    atomic_store(&started, false);
    insist_ok(bp_stream_call(stream, set_flag, &started));
    for (int i = 0; i < ms && !atomic_load(&started); i++)
        sleep_ms(1);
    return atomic_load(&started);
}

/* Waiting can only be observed for a limited time: a missing wait is caught most times, a superfluous one always. A slow machine does
 * not cause failures. */
static bool is_blocked(bp_stream *stream)
{
    return !starts_within(stream, 30);
}

static bool is_running(bp_stream *stream)
{
    return starts_within(stream, 10000);
}

static uint64_t take_point(bp_stream *stream)
{
    uint64_t point;
    bool recorded;
    insist_ok(bp_stream_record_point(stream, &point, &recorded));
    assert_true(recorded);
    return point;
}

/* ---- one stream -------------------------------------------------------------------------------------------------- */

typedef struct sequence {
    uint64_t next;
    uint64_t wrong;
} sequence;

typedef struct step {
    sequence *sequence;
    uint64_t number;
} step;

static void take_step(void *argument)
{
    step *s = argument;
    s->sequence->wrong += s->sequence->next++ != s->number;
}

TEST(test_order_of_a_stream)
{
    static step steps[5000];
    for (uint32_t length = 1; length <= 16384; length *= 8) { /* the short ones are full most of the time */
        SCOPED(bp_device_destroy) bp_device *device = make_device(length, 0);
        SCOPED(bp_stream_destroy) bp_stream *stream = make_stream(device);
        sequence s = {0};
        for (uint64_t i = 0; i < 5000; i++) {
            steps[i] = (step){&s, i};
            insist_ok(bp_stream_call(stream, take_step, &steps[i]));
        }
        insist_ok(bp_stream_synchronize(stream));
        assert_int_equal(s.next, 5000);
        assert_int_equal(s.wrong, 0);
    }
}

TEST(test_bytes)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(0, 0);
    bp_stream *stream = make_stream(device);
    char a[1000], b[1000];
    insist_ok(bp_stream_fill(stream, a, 0x5a, sizeof a));
    insist_ok(bp_stream_fill(stream, a + 1, 0x11, 2));
    insist_ok(bp_stream_copy(stream, b, a, sizeof b));
    insist_ok(bp_stream_fill(stream, a, 0, sizeof a));
    void *memory;
    insist_ok(bp_device_allocate(device, 999, stream, &memory));
    insist_ok(bp_stream_copy(stream, memory, b, 999));
    insist_ok(bp_stream_copy(stream, a, memory, 999));
    insist_ok(bp_device_free(device, memory, 999, stream));
    bp_stream_destroy(&stream); /* waits for its work */
    assert_true(b[0] == 0x5a && b[1] == 0x11 && b[2] == 0x11 && b[3] == 0x5a && b[999] == 0x5a);
    assert_memory_equal(a, b, 999);
    assert_int_equal(a[999], 0);
}

static void *open_later(void *gate)
{
    sleep_ms(20);
    atomic_store((atomic_bool *)gate, true);
    return NULL;
}

TEST(test_full_queue)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(4, 0);
    SCOPED(bp_stream_destroy) bp_stream *stream = make_stream(device);
    SCOPED(bp_event_destroy) bp_event *event = NULL;
    pthread_t thread;
    static atomic_bool open, flags[20];
    atomic_store(&open, false);
    insist_ok(bp_event_create(device, &event));
    insist_ok(bp_stream_call(stream, pass_gate, &open));
    for (int i = 0; i < 3; i++)
        insist_ok(bp_stream_call(stream, set_flag, &flags[i]));
    insist_ok(bp_event_record(event, stream)); /* needs no queue entry */
    assert_int_equal(pthread_create(&thread, NULL, open_later, &open), 0);
    for (int i = 3; i < 20; i++)
        insist_ok(bp_stream_call(stream, set_flag, &flags[i]));
    assert_true(atomic_load(&open)); /* enqueueing has waited for a free entry */
    insist_ok(bp_event_synchronize(event));
    assert_true(atomic_load(&flags[2]));
    insist_ok(bp_stream_synchronize(stream));
    for (int i = 0; i < 20; i++)
        assert_true(atomic_load(&flags[i]));
    pthread_join(thread, NULL);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

TEST(test_events_order_streams)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(0, 0);
    SCOPED(bp_stream_destroy) bp_stream *a = make_stream(device), *b = make_stream(device), *c = make_stream(device);
    bp_event *event, *never;
    static atomic_bool open;
    atomic_store(&open, false);
    insist_ok(bp_event_create(device, &event));
    insist_ok(bp_event_create(device, &never));
    insist_ok(bp_stream_wait(b, never));
    insist_ok(bp_event_synchronize(never));
    assert_true(is_running(b));
    insist_ok(bp_event_record(event, a)); /* before the work, so it does not include it */
    insist_ok(bp_stream_call(a, pass_gate, &open));
    insist_ok(bp_stream_wait(b, event));
    insist_ok(bp_event_synchronize(event));
    assert_true(is_running(b));
    insist_ok(bp_event_record(event, a));
    insist_ok(bp_stream_wait(b, event));
    insist_ok(bp_event_record(event, c)); /* the wait refers to the first record */
    insist_ok(bp_stream_wait(c, event));
    assert_true(is_running(c));
    assert_true(is_blocked(b));
    bp_event_destroy(&event);
    bp_event_destroy(&never);
    assert_true(is_blocked(b));
    atomic_store(&open, true);
    insist_ok(bp_device_synchronize(device));
}

/* A value passes through all streams, ordered by an event from each to the next. */
TEST(test_chain_with_delays)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(8, 50);
    bp_stream *streams[5];
    SCOPED(bp_event_destroy) bp_event *event = NULL;
    static step steps[2000];
    sequence s = {0};
    insist_ok(bp_event_create(device, &event));
    for (int i = 0; i < 5; i++)
        streams[i] = make_stream(device);
    for (uint64_t i = 0; i < 2000; i++) {
        bp_stream *stream = streams[i * i % 5];
        steps[i] = (step){&s, i};
        insist_ok(bp_stream_wait(stream, event));
        insist_ok(bp_stream_call(stream, take_step, &steps[i]));
        insist_ok(bp_event_record(event, stream));
    }
    insist_ok(bp_event_synchronize(event));
    assert_int_equal(s.next, 2000);
    assert_int_equal(s.wrong, 0);
    for (int i = 0; i < 5; i++)
        bp_stream_destroy(&streams[i]);
}

/* ---- many producers ---------------------------------------------------------------------------------------------- */

typedef struct producer {
    bp_device *device;
    bp_stream **streams;
    unsigned seed;
} producer;

#define CHAIN 3000

static unsigned next_random(unsigned *seed)
{
    return (*seed = *seed * 1664525u + 1013904223u) >> 8;
}

static void *produce_chain(void *argument)
{
    producer *p = argument;
    sequence s = {0};
    step *steps = malloc(CHAIN * sizeof *steps);
    bp_event *event;
    insist_ok(bp_event_create(p->device, &event));
    for (uint64_t i = 0; i < CHAIN; i++) {
        bp_stream *stream = p->streams[next_random(&p->seed) % THREADS];
        steps[i] = (step){&s, i};
        insist_ok(bp_stream_wait(stream, event));
        insist_ok(bp_stream_call(stream, take_step, &steps[i]));
        insist_ok(bp_event_record(event, stream));
        if (i % 500 == 499)
            insist_ok(bp_event_synchronize(event));
    }
    insist_ok(bp_event_synchronize(event));
    insist(s.next == CHAIN && s.wrong == 0);
    bp_event_destroy(&event);
    free(steps);
    return NULL;
}

static void run_producers(bp_device *device, bp_stream **streams, void *(*function)(void *))
{
    pthread_t threads[THREADS];
    producer producers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        producers[i] = (producer){device, streams, i};
        assert_int_equal(pthread_create(&threads[i], NULL, function, &producers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* Chains of several threads share streams with short queues: a cycle of waits would deadlock. */
TEST(test_producers_at_once)
{
    for (uint32_t length = 1; length <= 64; length *= 8) {
        SCOPED(bp_device_destroy) bp_device *device = make_device(length, 0);
        bp_stream *streams[THREADS];
        for (int i = 0; i < THREADS; i++)
            streams[i] = make_stream(device);
        run_producers(device, streams, produce_chain);
        for (int i = 0; i < THREADS; i++)
            bp_stream_destroy(&streams[i]);
    }
}

/* ---- one event and one timeline of many threads ------------------------------------------------------------------ */

#define MARKS 4096

/* done: work completed per recorder; said: the count that the recorder published after recording. */
static _Atomic uint64_t done[THREADS], said[THREADS];
static bp_event *shared_event;
static _Atomic uint64_t points[THREADS][MARKS]; /* count << 32 | point */

static void count_up(void *argument)
{
    atomic_fetch_add((_Atomic uint64_t *)argument, 1);
}

typedef struct expectation {
    uint64_t counts[THREADS];
} expectation;

static void check_expectation(void *argument)
{
    expectation *e = argument;
    for (int i = 0; i < THREADS; i++)
        insist(atomic_load(&done[i]) >= e->counts[i]);
    free(e);
}

/* Even threads record the shared event on stream 0, odd ones wait for it. */
static void *share_event(void *argument)
{
    producer *p = argument;
    unsigned me = p->seed;
    for (uint64_t i = 1; i <= MARKS; i++) {
        if (me % 2 == 0) {
            insist_ok(bp_stream_call(p->streams[0], count_up, &done[me]));
            insist_ok(bp_event_record(shared_event, p->streams[0]));
            atomic_store(&said[me], i);
            continue;
        }
        expectation *e = malloc(sizeof *e);
        for (int k = 0; k < THREADS; k++)
            e->counts[k] = atomic_load(&said[k]);
        insist_ok(bp_stream_wait(p->streams[me], shared_event));
        insist_ok(bp_stream_call(p->streams[me], check_expectation, e));
    }
    return NULL;
}

static void reset_counts(void)
{
    for (int i = 0; i < THREADS; i++) {
        atomic_store(&done[i], 0);
        atomic_store(&said[i], 0);
    }
}

TEST(test_event_recorded_and_waited_for_at_once)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(32, 0);
    bp_stream *streams[THREADS];
    for (int i = 0; i < THREADS; i++)
        streams[i] = make_stream(device);
    insist_ok(bp_event_create(device, &shared_event));
    reset_counts();
    run_producers(device, streams, share_event);
    for (int i = 0; i < THREADS; i++)
        bp_stream_destroy(&streams[i]);
    bp_event_destroy(&shared_event);
}

/* The same with the timeline of stream 0: waits for old points and new ones while the ring wraps. */
static void *share_timeline(void *argument)
{
    producer *p = argument;
    unsigned me = p->seed;
    for (uint64_t i = 1; i <= MARKS; i++) {
        if (me % 2 == 0) {
            insist_ok(bp_stream_call(p->streams[0], count_up, &done[me]));
            atomic_store(&points[me][i - 1], i << 32 | take_point(p->streams[0]));
            atomic_store(&said[me], i);
            continue;
        }
        unsigned of = next_random(&p->seed) % (THREADS / 2) * 2;
        uint64_t known = atomic_load(&said[of]);
        if (known == 0)
            continue;
        uint64_t back =
            next_random(&p->seed) % 4 == 0 ? next_random(&p->seed) % known : next_random(&p->seed) % 200 % known;
        uint64_t point = atomic_load(&points[of][known - 1 - back]);
        expectation *e = calloc(1, sizeof *e);
        e->counts[of] = point >> 32;
        insist_ok(bp_stream_wait_point(p->streams[me], p->streams[0], (uint32_t)point));
        insist_ok(bp_stream_call(p->streams[me], check_expectation, e));
    }
    return NULL;
}

TEST(test_timeline_at_once)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(32, 20);
    bp_stream *streams[THREADS];
    for (int i = 0; i < THREADS; i++)
        streams[i] = make_stream(device);
    reset_counts();
    run_producers(device, streams, share_timeline);
    for (int i = 0; i < THREADS; i++)
        bp_stream_destroy(&streams[i]);
}

/* Marks of a stream are monotonic under concurrent recording. */
static bp_host_event *marked_event;

static void *record_and_look(void *argument)
{
    producer *p = argument;
    bp_host_stream *stream = p->streams[0]->raw;
    uint64_t last = 0;
    for (int i = 0; i < 50000; i++) {
        if (i % 4 == 0)
            insist_ok(bp_stream_call(p->streams[0], count_up, &done[0]));
        uint64_t enqueued = atomic_load(&stream->enqueued);
        insist_ok(p->device->ops->event_record(p->device->self, marked_event, stream));
        uint64_t mark = atomic_load(&marked_event->mark);
        insist(mark >= enqueued && mark >= last);
        last = mark;
    }
    return NULL;
}

TEST(test_marks_never_go_back)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(0, 0);
    SCOPED(bp_stream_destroy) bp_stream *stream = make_stream(device);
    void *event;
    insist_ok(device->ops->event_create(device->self, &event));
    marked_event = event;
    run_producers(device, &stream, record_and_look);
    insist_ok(device->ops->event_destroy(device->self, event));
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

TEST(test_points_mark_positions)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(0, 0);
    SCOPED(bp_stream_destroy) bp_stream *a = make_stream(device), *b = make_stream(device);
    static atomic_bool open;
    atomic_store(&open, false);
    uint64_t before = take_point(a);
    insist_ok(bp_stream_call(a, pass_gate, &open));
    uint64_t after = take_point(a);
    assert_int_equal(after, before + 1);
    insist_ok(bp_stream_wait_point(b, a, before));
    insist_ok(bp_stream_wait_point(a, a, after)); /* stream order: no wait */
    assert_true(is_running(b));
    insist_ok(bp_stream_wait_point(b, a, after));
    assert_true(is_blocked(b));
    atomic_store(&open, true);
    insist_ok(bp_stream_synchronize(b));
}

/* After the ring wrapped, the oldest point left replaces the wanted one, not the youngest, which has its event now. */
TEST(test_points_gone_round)
{
    for (uint32_t more = 0; more < 3; more++) {
        SCOPED(bp_device_destroy) bp_device *device = make_device(0, 0);
        SCOPED(bp_stream_destroy) bp_stream *a = make_stream(device), *b = make_stream(device);
        static atomic_bool open;
        atomic_store(&open, false);
        uint64_t first = take_point(a);
        for (uint32_t i = 0; i < more; i++)
            take_point(a);
        uint64_t last_before = take_point(a);
        insist_ok(bp_stream_call(a, pass_gate, &open));
        uint64_t first_after = take_point(a);
        while (take_point(a) != last_before + BP_STREAM_POINTS - 1) {
        }
        insist_ok(bp_stream_wait_point(b, a, first)); /* overwritten; the last point before the gate is not */
        insist_ok(bp_stream_wait_point(b, a, last_before));
        assert_true(is_running(b));
        take_point(a);
        insist_ok(bp_stream_wait_point(b, a, last_before)); /* overwritten, too: a later point replaces it */
        assert_true(is_blocked(b));
        atomic_store(&open, true);
        insist_ok(bp_stream_wait_point(b, a, first_after));
        insist_ok(bp_device_synchronize(device));
    }
}

/* Delays or fails the first call of an operation, on this event unless NULL. */
typedef struct hold_up {
    device_operation operation;
    const void *event;
    bool refuse;
    atomic_bool arrived, go_on;
    atomic_int events_destroyed;
} hold_up;

static bp_status hold(void *user, const device_call *call)
{
    hold_up *h = user;
    if (call->operation == OP_EVENT_DESTROY)
        atomic_fetch_add(&h->events_destroyed, 1);
    if (call->operation != h->operation || (h->event != NULL && call->event != h->event) ||
        atomic_exchange(&h->arrived, true))
        return BP_OK;
    while (!h->refuse && !atomic_load(&h->go_on))
        sched_yield();
    return h->refuse ? BP_ERR_NO_DEVICE : BP_OK;
}

static void *take_held_point(void *argument)
{
    uint64_t point;
    bool recorded;
    (void)bp_stream_record_point(argument, &point, &recorded);
    return NULL;
}

/* A point is reserved, but its event still has the mark of the previous round: waits for older points must not use it. */
TEST(test_point_that_is_not_recorded)
{
    for (int refuse = 0; refuse < 2; refuse++) {
        hold_up h = {.operation = OP_EVENT_RECORD, .event = &h, .refuse = refuse != 0};
        bp_device *inner = make_device(0, 0), *device;
        insist_ok(trace_device_create(inner, hold, &h, &device));
        bp_device_destroy(&inner);
        SCOPED(bp_stream_destroy) bp_stream *a = make_stream(device), *b = make_stream(device);
        static atomic_bool open;
        atomic_store(&open, false);
        while (take_point(a) != BP_STREAM_POINTS - 2) {
        }
        insist_ok(bp_stream_call(a, pass_gate, &open));
        uint64_t wanted = take_point(a);
        h.event = a->points->events[0];
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_held_point, a), 0);
        while (!atomic_load(&h.arrived))
            sched_yield();
        while (take_point(a) != 2 * BP_STREAM_POINTS - 1) {
        }
        assert_int_equal(atomic_load(&a->recorded) - wanted, BP_STREAM_POINTS + 1);
        insist_ok(bp_stream_wait_point(b, a, wanted));
        assert_true(is_blocked(b));
        atomic_store(&h.go_on, true);
        pthread_join(thread, NULL);
        insist_ok(bp_stream_wait_point(b, a, wanted));
        atomic_store(&open, true);
        insist_ok(bp_device_synchronize(device));
        bp_device_destroy(&device);
    }
}

/* ---- streams that end -------------------------------------------------------------------------------------------- */

TEST(test_waits_on_a_destroyed_stream)
{
    bp_device *device = make_device(0, 0);
    bp_stream *a = make_stream(device), *b = make_stream(device), *copy = a;
    bp_event *event;
    static atomic_bool open;
    atomic_store(&open, false);
    int value = 0;
    insist_ok(bp_event_create(device, &event));
    insist_ok(bp_stream_call(b, pass_gate, &open)); /* so that the wait runs after its stream is destroyed */
    insist_ok(bp_stream_fill(a, &value, 1, 1));
    insist_ok(bp_event_record(event, a));
    uint64_t point = take_point(a);
    insist_ok(bp_stream_wait(b, event));
    insist_ok(bp_stream_wait_point(b, a, point));
    bp_stream_destroy(&a);
    bp_stream *next = make_stream(device);
    insist_ok(bp_stream_call(next, pass_gate, &open));
    insist_ok(bp_stream_wait_point(b, copy, point));
    bp_stream *c = make_stream(device);
    insist_ok(bp_stream_wait(c, event)); /* does not wait for `next`, which may reuse the thread */
    insist_ok(bp_stream_wait_point(c, copy, point));
    assert_true(is_running(c));
    atomic_store(&open, true);
    insist_ok(bp_event_synchronize(event));
    insist_ok(bp_device_synchronize(device));
    assert_int_equal(value, 1);
    bp_event_destroy(&event);
    bp_stream_destroy(&next);
    bp_stream_destroy(&b);
    bp_stream_destroy(&c);
    bp_device_destroy(&device);
}

typedef struct handover {
    bp_stream *stream;
    uint64_t point;
    uint64_t value; /* written by the stream, read by another one */
} handover;

static _Atomic(handover *) handed;
#define HANDOVERS 200

static void write_value(void *argument)
{
    ((handover *)argument)->value = 42;
}

static void read_value(void *argument)
{
    insist(((handover *)argument)->value == 42);
}

static void *take_over(void *argument)
{
    producer *p = argument;
    handover *last = NULL, *h;
    do {
        while ((h = atomic_load(&handed)) == last)
            sched_yield();
        if (h != NULL) {
            insist_ok(bp_stream_wait_point(p->streams[0], h->stream, h->point));
            insist_ok(bp_stream_call(p->streams[0], read_value, h));
        }
        last = h;
    } while (h != NULL);
    return NULL;
}

/* A stream is destroyed while another thread waits for one of its points, as pools do internally. */
TEST(test_wait_while_destroyed)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(0, 100);
    SCOPED(bp_stream_destroy) bp_stream *b = make_stream(device);
    static handover handovers[HANDOVERS];
    producer p = {device, &b, 0};
    pthread_t thread;
    atomic_store(&handed, &handovers[0]);
    for (int i = 0; i < HANDOVERS; i++) {
        handover *h = &handovers[i];
        SCOPED(bp_stream_destroy) bp_stream *a = make_stream(device);
        *h = (handover){.stream = a};
        insist_ok(bp_stream_call(a, write_value, h));
        h->point = take_point(a);
        if (i == 0)
            assert_int_equal(pthread_create(&thread, NULL, take_over, &p), 0);
        atomic_store(&handed, h);
    }
    atomic_store(&handed, NULL);
    pthread_join(thread, NULL);
}

static void *wait_for_first_point(void *argument)
{
    bp_stream **streams = argument;
    insist_ok(bp_stream_wait_point(streams[0], streams[1], 0));
    return NULL;
}

static void *destroy_stream(void *argument)
{
    bp_stream *stream = argument;
    bp_stream_destroy(&stream);
    return NULL;
}

/* A destroyed stream's events stay valid, because a thread may be about to wait for one; a later stream reuses them. */
TEST(test_destroy_while_waited_for)
{
    hold_up h = {.operation = OP_STREAM_WAIT};
    bp_device *inner = make_device(0, 0), *device;
    insist_ok(trace_device_create(inner, hold, &h, &device));
    bp_device_destroy(&inner);
    bp_stream *streams[2] = {make_stream(device), make_stream(device)};
    pthread_t waiter, destroyer;
    take_point(streams[1]);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_first_point, streams), 0);
    while (!atomic_load(&h.arrived))
        sched_yield();
    assert_int_equal(pthread_create(&destroyer, NULL, destroy_stream, streams[1]), 0);
    sleep_ms(20);
    assert_int_equal(atomic_load(&h.events_destroyed), 0);
    atomic_store(&h.go_on, true);
    pthread_join(waiter, NULL);
    pthread_join(destroyer, NULL);
    assert_int_equal(atomic_load(&h.events_destroyed), 0);
    void *first = streams[1]->points->events[0];
    bp_stream *next = make_stream(device);
    assert_ptr_equal(next->points->events[0], first);
    assert_int_equal(take_point(next), 0);
    bp_stream_destroy(&next);
    bp_stream_destroy(&streams[0]);
    bp_device_destroy(&device);
    assert_int_equal(atomic_load(&h.events_destroyed), 2 * BP_STREAM_POINTS);
}

/* A release records on a stream while another thread destroys it: the stream lives until the record returns. */
TEST(test_destroy_while_recorded)
{
    hold_up h = {.operation = OP_EVENT_RECORD};
    bp_device *inner = make_device(0, 0), *device;
    insist_ok(trace_device_create(inner, hold, &h, &device));
    bp_device_destroy(&inner);
    bp_stream *stream = make_stream(device);
    pthread_t recorder, destroyer;
    h.event = stream->points->events[0];
    assert_int_equal(pthread_create(&recorder, NULL, take_held_point, stream), 0);
    while (!atomic_load(&h.arrived))
        sched_yield();
    assert_int_equal(pthread_create(&destroyer, NULL, destroy_stream, stream), 0);
    sleep_ms(20);
    bp_device_usage usage = {.size = sizeof usage};
    insist_ok(bp_device_usage_get(device, &usage));
    assert_int_equal(usage.streams, 1);
    assert_false(bp_stream_is_over(stream));
    atomic_store(&h.go_on, true);
    pthread_join(recorder, NULL);
    pthread_join(destroyer, NULL);
    assert_true(bp_stream_is_over(stream));
    bp_device_destroy(&device);
}

static void *make_and_destroy(void *argument)
{
    producer *p = argument;
    for (int i = 0; i < 20; i++) {
        uint64_t value = 0;
        bp_stream *own = make_stream(p->device);
        bp_event *event;
        insist_ok(bp_event_create(p->device, &event));
        insist_ok(bp_stream_fill(own, &value, 1, sizeof value));
        insist_ok(bp_event_record(event, own));
        insist_ok(bp_stream_wait(p->streams[p->seed], event));
        if (i % 4 == 0)
            insist_ok(bp_device_synchronize(p->device));
        bp_event_destroy(&event);
        bp_stream_destroy(&own);
        insist(value == UINT64_C(0x0101010101010101));
    }
    return NULL;
}

TEST(test_streams_made_at_once)
{
    SCOPED(bp_device_destroy) bp_device *device = make_device(16, 10);
    bp_stream *streams[THREADS];
    for (int i = 0; i < THREADS; i++)
        streams[i] = make_stream(device);
    run_producers(device, streams, make_and_destroy);
    for (int i = 0; i < THREADS; i++)
        bp_stream_destroy(&streams[i]);
    bp_device_usage usage = {.size = sizeof usage};
    insist_ok(bp_device_usage_get(device, &usage));
    assert_int_equal(usage.streams, 0);
    assert_int_equal(usage.events, 0);
}

TESTS(NULL, NULL)
