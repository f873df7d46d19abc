/* The host device: memory of the process, and streams that are threads. */
#ifndef BP_DEVICES_HOST_H
#define BP_DEVICES_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "devices/device.h"

/* ---- streams ----------------------------------------------------------------------------------------------------- */

typedef struct bp_host_stream bp_host_stream;

typedef enum bp_host_work_kind {
    BP_HOST_CALL,
    BP_HOST_FILL,
    BP_HOST_COPY,
    BP_HOST_FREE,
    BP_HOST_WAIT,
    BP_HOST_STOP
} bp_host_work_kind;

typedef struct bp_host_work {
    bp_host_work_kind kind;
    uint8_t value;
    union {
        bp_host_function *function;
        void *to; /* fill, copy; free: the allocation */
        bp_host_stream *stream;
    };
    union {
        void *argument;
        const void *from;
    };
    uint64_t count; /* bytes; wait: how much of the stream's work must be done */
} bp_host_work;

/* A place in a queue. Work number n (from 0) is in place n modulo the queue's length. */
typedef struct bp_host_place {
    _Atomic uint64_t ready; /* n + 1 once the work is there */
    bp_host_work work;
} bp_host_place;

/* A queue of any number of producers and the thread that serves it. Positions only grow, also when a later stream
 * gets the struct of a destroyed one: a mark of an event is the struct's number and a position, and holds for ever. */
struct bp_host_stream {
    _Atomic uint64_t enqueued; /* places taken by producers, in the order in which the work will run */
    char producers_apart[64 - sizeof(uint64_t)];
    _Atomic uint64_t completed; /* work done */
    _Atomic uint64_t wanted;    /* the least `completed` that somebody sleeps for, UINT64_MAX: nobody does */
    atomic_uint changes;        /* futex of those who sleep for `completed` */
    atomic_uint asleep;         /* futex of the thread: 1 while it sleeps, or is about to, for want of work */
    char thread_apart[64 - 2 * sizeof(uint64_t) - 2 * sizeof(unsigned)];
    bp_host_place *places;
    uint64_t mask;  /* the queue's length - 1 */
    uint32_t index; /* in the device's table */
    uint32_t max_delay_us;
    uint64_t random;
    pthread_t thread;
    bool running;         /* there is a thread */
    bp_host_stream *next; /* of those without a thread; under the device's lock */
};

bp_status bp_host_stream_new(uint32_t index, uint32_t queue_length, uint32_t max_delay_us, bp_host_stream **stream);
void bp_host_stream_free(bp_host_stream *stream);
bp_status bp_host_stream_start(bp_host_stream *stream, uint64_t seed);
/* Waits for its work and for the thread's end. */
void bp_host_stream_stop(bp_host_stream *stream);

/* Hot. Waits when the queue is full. */
void bp_host_stream_enqueue(bp_host_stream *stream, const bp_host_work *work);
/* Blocks until that much of the stream's work is done. */
void bp_host_stream_await(bp_host_stream *stream, uint64_t count);

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* An event marks a position of a stream: the stream's index above MARK_BITS, the position below; 0 before the first
 * record. */
#define BP_HOST_MARK_BITS 52
#define BP_HOST_STREAMS (1u << (64 - BP_HOST_MARK_BITS))

typedef struct bp_host_event {
    _Atomic uint64_t mark;
    struct bp_host_event *next; /* of unused ones */
} bp_host_event;

#define BP_HOST_BLOCK_EVENTS 256

/* Events are made in blocks, and blocks live as long as the device. */
typedef struct bp_host_event_block {
    struct bp_host_event_block *next;
    bp_host_event events[BP_HOST_BLOCK_EVENTS];
} bp_host_event_block;

/* ---- the device -------------------------------------------------------------------------------------------------- */

typedef struct bp_host_memory {
    void *pages; /* a mapping that keeps the memory; NULL: unused */
    uint64_t bytes;
} bp_host_memory;

/* In front of memory allocated in stream order. */
typedef struct bp_host_allocation {
    struct bp_host_allocation *next, *previous;
    struct bp_host *host;
    uint64_t bytes;
} bp_host_allocation;

typedef struct bp_host {
    bp_address_space space; /* first */
    bp_device_traits traits;
    bp_host_config config;       /* without zeros that stand for defaults, but for delays */
    _Atomic uint64_t used_bytes; /* at most config.memory_bytes */
    _Atomic(bp_host_stream *) streams[BP_HOST_STREAMS];
    atomic_uint stream_count;
    pthread_mutex_t lock; /* of all that follows; never taken by calls that enqueue */
    bp_host_stream *idle_streams;
    uint64_t stream_number; /* of streams ever started */
    bp_host_memory *memories;
    size_t memory_count, memory_capacity;
    bp_host_allocation allocations; /* head of a ring */
    bp_host_event_block *event_blocks;
    bp_host_event *unused_events;
} bp_host;

/* A free whose turn has come in its stream. */
void bp_host_take_back(bp_host_allocation *allocation);

bp_status bp_host_event_create(void *self, void **event);
bp_status bp_host_event_destroy(void *self, void *event);
bp_status bp_host_event_record(void *self, void *event, void *stream);
bp_status bp_host_stream_wait(void *self, void *stream, void *event);
bp_status bp_host_event_synchronize(void *self, void *event);
void bp_host_events_finish(bp_host *host);

#endif
