/* SPDX-License-Identifier: Apache-2.0 */
/* Gates that block streams, and probes of their work. */
#include <bucketpool/device.h>

#include <time.h>

#include "support/driver.h"
#include "support/pools.h"

void pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static bool becomes_true(atomic_int *value, int milliseconds)
{
    for (int i = 0; i < milliseconds * 10; i++) {
        if (atomic_load(value))
            return true;
        pause_us(100);
    }
    return atomic_load(value);
}

static void wait_at_gate(void *argument)
{
    becomes_true(&((gate *)argument)->open, 15000);
}

void block(bp_stream *stream, gate *g)
{
    if (has_driver()) {
        bool closed = g->word != NULL && __atomic_load_n(g->word, __ATOMIC_SEQ_CST) == 0;
        uint32_t *word = closed ? g->word : NULL;
        if (hold_stream(stream, &word)) {
            g->word = word;
            return;
        }
    }
    assert_ok(bp_stream_call(stream, wait_at_gate, g));
}

void unblock(gate *g)
{
    atomic_store(&g->open, 1);
    if (g->word != NULL)
        __atomic_store_n(g->word, 1, __ATOMIC_SEQ_CST);
}

void *unblock_later(void *closed)
{
    pause_us(20000);
    unblock(closed);
    return NULL;
}

static void raise_flag(void *argument)
{
    atomic_store((flag *)argument, 1);
}

void raise_on(bp_stream *stream, flag *f)
{
    assert_ok(bp_stream_call(stream, raise_flag, f));
}

bool is_raised_soon(flag *f)
{
    return becomes_true(f, 5000);
}

bool stays_down(flag *f)
{
    return !becomes_true(f, 4);
}

static void look(void *argument)
{
    check *c = argument;
    const uint8_t *bytes = c->copy != NULL ? c->copy : c->address;
    for (uint64_t i = 0; i < c->bytes; i++) {
        if (bytes[i] != c->value) {
            atomic_fetch_add(&c->wrong, 1);
            break;
        }
    }
    if (c->copy != NULL)
        give_pinned(c->copy);
}

static bool is_of_a_driver(const bp_stream *stream)
{
    uint64_t native;
    return has_driver() && bp_stream_native(stream, &native) == BP_OK;
}

void check_on(bp_stream *stream, check *c)
{
    c->copy = NULL;
    if (is_of_a_driver(stream)) {
        assert_true(c->bytes <= PINNED_BYTES);
        c->copy = take_pinned();
        assert_ok(bp_stream_copy(stream, c->copy, c->address, c->bytes));
    }
    assert_ok(bp_stream_call(stream, look, c));
}

void order(bp_device *device, bp_stream *first, bp_stream *then)
{
    bp_event *event = NULL;
    assert_ok(bp_event_create(device, &event));
    assert_ok(bp_event_record(event, first));
    assert_ok(bp_stream_wait(then, event));
    bp_event_destroy(&event);
}
