/* SPDX-License-Identifier: Apache-2.0 */
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
        void *to; /* destination of fill and copy; the allocation of a free */
        bp_host_stream *stream;
    };
    union {
        void *argument;
        const void *from;
    };
    uint64_t count; /* bytes; wait: position of the other stream to reach */
} bp_host_work;

/* A slot of a queue. Work number n (from 0) is in slot n modulo the queue's length. */
typedef struct bp_host_place {
    _Atomic uint64_t ready; /* n + 1 once the work is written */
    bp_host_work work;
} bp_host_place;

/* A queue with any number of producers and one consumer thread. Positions never decrease, also when a later stream reuses the struct of a
 * destroyed one: an event's mark (struct index and position) is valid for ever. */
struct bp_host_stream {
    _Atomic uint64_t enqueued; /* slots claimed by producers, in execution order */
    char producers_apart[64 - sizeof(uint64_t)];
    _Atomic uint64_t completed; /* completed work */
    _Atomic uint64_t wanted;    /* the least `completed` that a sleeper waits for; UINT64_MAX: none */
    atomic_uint changes;        /* futex of the sleepers on `completed` */
    atomic_uint asleep;         /* futex of the thread: 1 while it sleeps, or is about to, on an empty queue */
    char thread_apart[64 - 2 * sizeof(uint64_t) - 2 * sizeof(unsigned)];
    bp_host_place *places;
    uint64_t mask;  /* queue length - 1 */
    uint32_t index; /* index in the device's table */
    uint32_t max_delay_us;
    uint64_t random;
    pthread_t thread;
    bool running;         /* the thread exists */
    bp_host_stream *next; /* list of streams without a thread; under the device's lock */
};

bp_status bp_host_stream_new(uint32_t index, uint32_t queue_length, uint32_t max_delay_us, bp_host_stream **stream);
void bp_host_stream_free(bp_host_stream *stream);
bp_status bp_host_stream_start(bp_host_stream *stream, uint64_t seed);
/* Waits for its work and joins the thread. */
void bp_host_stream_stop(bp_host_stream *stream);

/* Hot path. Blocks while the queue is full. */
void bp_host_stream_enqueue(bp_host_stream *stream, const bp_host_work *work);
/* Blocks until the stream has completed `count` pieces of work. */
void bp_host_stream_await(bp_host_stream *stream, uint64_t count);

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* An event marks a position of a stream: the stream's index above MARK_BITS, the position below; 0 before the first record. */
#define BP_HOST_MARK_BITS 52
#define BP_HOST_STREAMS (1u << (64 - BP_HOST_MARK_BITS))

typedef struct bp_host_event {
    _Atomic uint64_t mark;
    struct bp_host_event *next; /* list of unused events */
} bp_host_event;

#define BP_HOST_BLOCK_EVENTS 256

/* Events are allocated in blocks, which live as long as the device. */
typedef struct bp_host_event_block {
    struct bp_host_event_block *next;
    bp_host_event events[BP_HOST_BLOCK_EVENTS];
} bp_host_event_block;

/* ---- the device -------------------------------------------------------------------------------------------------- */

typedef struct bp_host_memory {
    void *pages; /* a mapping that keeps the memory; NULL: unused */
    uint64_t bytes;
    int file; /* of the memory, if `by_files`; else -1 */
} bp_host_memory;

/* Header of memory allocated in stream order. */
typedef struct bp_host_allocation {
    struct bp_host_allocation *next, *previous;
    struct bp_host *host;
    uint64_t bytes;
} bp_host_allocation;

typedef struct bp_host {
    bp_address_space space; /* must be the first field */
    bp_device_traits traits;
    bp_host_config config;       /* defaults replace zeros, except for delays */
    _Atomic uint64_t used_bytes; /* at most config.memory_bytes */
    _Atomic(bp_host_stream *) streams[BP_HOST_STREAMS];
    atomic_uint stream_count;
    bool by_files;        /* mappings are duplicated through a descriptor, as mremap cannot */
    pthread_mutex_t lock; /* protects the fields below; never taken by calls that enqueue */
    bp_host_stream *idle_streams;
    uint64_t stream_number; /* number of streams ever started */
    bp_host_memory *memories;
    size_t memory_count, memory_capacity;
    bp_host_allocation allocations; /* head of a circular list */
    bp_host_event_block *event_blocks;
    bp_host_event *unused_events;
} bp_host;

/* Runs a free that its stream has reached. */
void bp_host_take_back(bp_host_allocation *allocation);

bp_status bp_host_event_create(void *self, void **event);
bp_status bp_host_event_destroy(void *self, void *event);
bp_status bp_host_event_record(void *self, void *event, void *stream);
bp_status bp_host_stream_wait(void *self, void *stream, void *event);
bp_status bp_host_event_synchronize(void *self, void *event);
void bp_host_events_finish(bp_host *host);

#endif
