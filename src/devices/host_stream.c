/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of the host device: a bounded multi-producer queue, and a thread that runs its work.
 *
 * A slot is claimed by one fetch-and-add, so that the order of claims is the order of execution; the slot's `ready` (after Vyukov's
 * bounded queue) says when the work is written. A sleeper announces itself, then checks again; a waker changes the state, then checks for
 * sleepers. All four accesses are sequentially consistent, so that one of the two sees the other. */
#include "devices/host.h"

#include <bucketpool/core/fail.h>

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/process.h"

#define SPINS 64 /* checks before sleeping */

/* Words that sleepers look at are published by exchanges: emulations of arm64 (qemu 7.2 on x86-64) let a load overtake a sequentially consistent
 * store, and a wakeup is lost. On x86-64 both are the same instruction. */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* about as long as x86's pause; yield takes no time on most processors */
#endif
}

/* Sleeps while the word has this value; may return early. */
static void futex_wait(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void bp_host_stream_await(bp_host_stream *stream, uint64_t count)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&stream->completed, memory_order_acquire) >= count)
            return;
        relax();
    }
    for (;;) {
        unsigned changes = atomic_load(&stream->changes);
        uint64_t wanted = atomic_load(&stream->wanted);
        while (count < wanted && !atomic_compare_exchange_weak(&stream->wanted, &wanted, count)) {
        }
        if (atomic_load(&stream->completed) >= count)
            return;
        futex_wait(&stream->changes, changes);
    }
}

void bp_host_stream_enqueue(bp_host_stream *stream, const bp_host_work *work)
{
    uint64_t number = atomic_fetch_add(&stream->enqueued, 1);
    if (number - atomic_load_explicit(&stream->completed, memory_order_acquire) > stream->mask)
        bp_host_stream_await(stream, number - stream->mask);
    bp_host_place *place = &stream->places[number & stream->mask];
    place->work = *work;
    (void)atomic_exchange(&place->ready, number + 1);
    if (atomic_load(&stream->asleep) != 0 && atomic_exchange(&stream->asleep, 0) != 0)
        futex_wake(&stream->asleep, 1);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void await_work(bp_host_stream *stream, bp_host_place *place, uint64_t ready)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&place->ready, memory_order_acquire) == ready)
            return;
        relax();
    }
    for (;;) {
        (void)atomic_exchange(&stream->asleep, 1);
        if (atomic_load(&place->ready) == ready)
            break;
        futex_wait(&stream->asleep, 1);
    }
    atomic_store(&stream->asleep, 0);
}

static void *serve(void *argument)
{
    bp_host_stream *stream = argument;
    bool stopped = false;
    for (uint64_t number = atomic_load(&stream->completed); !stopped; number++) {
        bp_host_place *place = &stream->places[number & stream->mask];
        const bp_host_work *work = &place->work;
        await_work(stream, place, number + 1);
        if (stream->max_delay_us > 0) { /* pauses before one piece of work in four: splitmix64, by Sebastiano Vigna */
            uint64_t random = stream->random += 0x9e3779b97f4a7c15u;
            random = (random ^ (random >> 30)) * 0xbf58476d1ce4e5b9u;
            random = (random ^ (random >> 27)) * 0x94d049bb133111ebu;
            random ^= random >> 31;
            uint64_t pause_us = (random >> 2) % ((uint64_t)stream->max_delay_us + 1);
            struct timespec pause = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000 * 1000)};
            if (random % 4 == 0)
                nanosleep(&pause, NULL);
        }

        switch (work->kind) {
        case BP_HOST_CALL: work->function(work->argument); break;
        case BP_HOST_FILL: memset(work->to, work->value, work->count); break;
        case BP_HOST_COPY: memmove(work->to, work->from, work->count); break;
        case BP_HOST_FREE: bp_host_take_back(work->to); break;
        case BP_HOST_WAIT: bp_host_stream_await(work->stream, work->count); break;
        case BP_HOST_STOP: stopped = true; break;
        }
        (void)atomic_exchange(&stream->completed, number + 1);
        if (atomic_load(&stream->wanted) > number + 1)
            continue;
        /* Sleepers with a larger target register again: `changes` differs from the value that they read first. */
        atomic_store(&stream->wanted, UINT64_MAX);
        atomic_fetch_add(&stream->changes, 1);
        futex_wake(&stream->changes, INT_MAX);
    }
    return NULL;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

bp_status bp_host_stream_new(uint32_t index, uint32_t queue_length, uint32_t max_delay_us, bp_host_stream **stream)
{
    void *memory, *places;
    BP_TRY(bp_new_array(queue_length, sizeof(bp_host_place), &places));
    bp_status status = bp_new_array(1, sizeof(bp_host_stream), &memory);
    if (status != BP_OK) {
        free(places);
        return status;
    }
    bp_host_stream *created = memory;
    created->places = places;
    created->mask = queue_length - 1;
    created->index = index;
    created->max_delay_us = max_delay_us;
    atomic_init(&created->wanted, UINT64_MAX);
    *stream = created;
    return BP_OK;
}

void bp_host_stream_free(bp_host_stream *stream)
{
    free(stream->places);
    free(stream);
}

bp_status bp_host_stream_start(bp_host_stream *stream, uint64_t seed)
{
    stream->random = seed;
    int reason = bp_thread_start(&stream->thread, serve, stream);
    if (reason != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "host: the thread of a stream could not be started: %s",
                       strerror(reason));
    stream->running = true;
    return BP_OK;
}

void bp_host_stream_stop(bp_host_stream *stream)
{
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_STOP});
    pthread_join(stream->thread, NULL);
    stream->running = false;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bp_status add_block(bp_host *host)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_host_event_block), &memory));
    bp_host_event_block *block = memory;
    block->next = host->event_blocks;
    host->event_blocks = block;
    for (size_t i = BP_HOST_BLOCK_EVENTS; i-- > 0;) {
        block->events[i].next = host->unused_events;
        host->unused_events = &block->events[i];
    }
    return BP_OK;
}

bp_status bp_host_event_create(void *self, void **event)
{
    bp_host *host = self;
    pthread_mutex_lock(&host->lock);
    bp_status status = host->unused_events != NULL ? BP_OK : add_block(host);
    bp_host_event *created = host->unused_events;
    if (status == BP_OK)
        host->unused_events = created->next;
    pthread_mutex_unlock(&host->lock);
    if (status == BP_OK) {
        atomic_store(&created->mark, 0);
        *event = created;
    }
    return status;
}

bp_status bp_host_event_destroy(void *self, void *event)
{
    bp_host *host = self;
    bp_host_event *destroyed = event;
    pthread_mutex_lock(&host->lock);
    destroyed->next = host->unused_events;
    host->unused_events = destroyed;
    pthread_mutex_unlock(&host->lock);
    return BP_OK;
}

void bp_host_events_finish(bp_host *host)
{
    while (host->event_blocks != NULL) {
        bp_host_event_block *block = host->event_blocks;
        host->event_blocks = block->next;
        free(block);
    }
}

/* Reads the mark, then the stream; the exchange fails if another record came between. Marks of one stream therefore never decrease. */
bp_status bp_host_event_record(void *self, void *event, void *stream)
{
    (void)self;
    bp_host_event *e = event;
    bp_host_stream *s = stream;
    uint64_t old = atomic_load(&e->mark), mark;
    do {
        mark = (uint64_t)s->index << BP_HOST_MARK_BITS | atomic_load(&s->enqueued);
    } while (old != mark && !atomic_compare_exchange_weak(&e->mark, &old, mark));
    return BP_OK;
}

/* The stream and the position that an event marks. */
static bp_host_stream *marked(bp_host *host, const bp_host_event *event, uint64_t *count)
{
    uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
    *count = mark & ((UINT64_C(1) << BP_HOST_MARK_BITS) - 1);
    return atomic_load_explicit(&host->streams[mark >> BP_HOST_MARK_BITS], memory_order_acquire);
}

bp_status bp_host_stream_wait(void *self, void *stream, void *event)
{
    uint64_t count;
    bp_host_stream *other = marked(self, event, &count);
    if (count == 0 || other == stream || atomic_load_explicit(&other->completed, memory_order_acquire) >= count)
        return BP_OK;
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_WAIT, .stream = other, .count = count});
    return BP_OK;
}

bp_status bp_host_event_synchronize(void *self, void *event)
{
    uint64_t count;
    bp_host_stream *other = marked(self, event, &count);
    if (count > 0)
        bp_host_stream_await(other, count);
    return BP_OK;
}
