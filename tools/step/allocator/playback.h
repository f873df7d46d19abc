/* SPDX-License-Identifier: Apache-2.0 */
/* Plays allocation traces through the model of PyTorch's caching allocator. Host-side only; separate traces may be played by separate
 * threads. */
#ifndef BP_STEP_PLAYBACK_H
#define BP_STEP_PLAYBACK_H

#include "planner/steps/trace.h"
#include "step/allocator/caching_allocator.h"

/* Events that a trace should not have, or that nothing can be derived from. */
typedef struct bp_play_oddities {
    uint64_t frees_without_alloc; /* and the block was not live at the start either */
    uint64_t allocs_over_live;    /* at an address that is in use; bp_play assumes the missing free */
    uint64_t unclear_releases;    /* empty_cache, or forced by an allocation: the trace allows both */
    uint64_t unclear_failures; /* out of memory, but the default pool has a block: the request was of a private pool */
    uint64_t unknown_events;
    uint64_t contradictions; /* of the state at the start: blocks without a segment, over others */
} bp_play_oddities;

typedef enum bp_play_unclear {
    BP_PLAY_LIKE_OTHERS, /* empty_cache, if the trace shows that it was called at another time; else forced */
    BP_PLAY_EMPTY_CACHE,
    BP_PLAY_FORCED
} bp_play_unclear;

typedef struct bp_play_options {
    bp_caching_settings settings;
    bool live_at_start; /* allocates blocks that are live before the first event, in order of their addresses */
    bool empty_cache;   /* releases unused memory where the trace shows torch.cuda.empty_cache */
    bp_play_unclear unclear_releases;
    /* NULL, or an element for each event: the bytes after it. */
    uint64_t *reserved_bytes, *active_bytes, *requested_bytes;
    /* Visits all blocks after this event. `visit` NULL: no visit. */
    size_t visit_event;
    bp_caching_visitor *visit;
    void *visit_user;
} bp_play_options;

/* The recorded settings, blocks that are live at the start, and empty_cache. */
void bp_play_options_init(bp_play_options *options, const bp_trace *trace);

typedef struct bp_play_result {
    bp_caching_counters counters; /* after the last event, and peaks */
    size_t peak_event;            /* the first event after which the reserved bytes were largest */
    uint64_t live_at_start_bytes; /* rounded */
    uint64_t failed_bytes;        /* requests that found no memory */
    uint64_t empty_caches;        /* of the trace, that the play followed */
    bp_play_oddities oddities;
} bp_play_result;

/* Allocations and frees of the trace through a new allocator: how much memory would this allocator have reserved? Recorded addresses name
 * allocations, no more. A request that finds no memory (device_bytes, limit_bytes) is counted, and the play continues without it.
 * O(e log n) for e events and n blocks. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_play(const bp_trace *trace, const bp_play_options *options, bp_play_result *result);

typedef enum bp_departure_kind {
    BP_DEPARTURE_BLOCK, /* another block: addresses */
    BP_DEPARTURE_CACHED, /* a free block where the trace got memory of the device: its address, and the address of the segment */
    BP_DEPARTURE_SEGMENT, /* a segment or range of another size: bytes */
    BP_DEPARTURE_MAPPING, /* a range at another place: addresses */
    BP_DEPARTURE_RELEASE, /* another segment is released: addresses; 0: none */
    BP_DEPARTURE_FAILURE, /* no memory where the trace has some, or the other way: addresses of the block; 0: none */
    BP_DEPARTURE_TRACE /* the trace contradicts itself: a block over a live one, a segment event without an allocation */
} bp_departure_kind;

typedef struct bp_departure {
    size_t event; /* of the allocation or release */
    bp_departure_kind kind;
    uint64_t recorded, modelled;
} bp_departure;

typedef struct bp_check_result {
    size_t allocations, segment_events; /* that the model reproduced */
    size_t departures;                  /* at most `limit` */
    size_t stopped_at;                  /* the event where the limit was reached, or event_count */
    bp_departure first;                 /* if departures is not 0 */
    bool end_agrees;                    /* segments and blocks of the snapshot */
    bp_caching_counters counters;
    bp_play_oddities oddities;
} bp_check_result;

/* The trace from its recorded state at the start, derived from the state at its end. The model must choose each recorded address, ask for each
 * recorded segment and release each recorded one. After a departure the model continues from the recorded state. `limit` departures end the
 * check. Whether the device had memory, when frees were completed and when empty_cache was called is taken from the trace.
 *
 * Events do not name their pool. Allocations of a private pool whose segments were freed before the snapshot count as ones of the default pool,
 * and depart. Garbage collection is only known with limit_bytes, which snapshots lack.
 *
 * O(e log n), for each departure. `reserved_bytes` may be NULL, or has an element for each event. Errors: BP_ERR_INVALID_ARGUMENT,
 * BP_ERR_NO_HOST_MEMORY. */
bp_status bp_play_check(const bp_trace *trace, const bp_caching_settings *settings, size_t limit,
                        uint64_t *reserved_bytes, bp_check_result *result);

#endif
