/* Sentences about requests and buffers, for errors, dumps and messages. Cold. */
#ifndef BP_ALLOCATORS_REPORT_H
#define BP_ALLOCATORS_REPORT_H

#include "allocators/pool.h"

#define BP_REQUEST_BYTES 160
#define BP_EXPLANATION_BYTES 480

/* "param of layers.7, bucket experts". Returns `text`. */
const char *bp_explain_request(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES]);

/* "acquire 324 (stream compute, step 5)": since when a live request is held. Returns `text`. */
const char *bp_explain_since(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES]);

/* That a request got another buffer than before. */
void bp_explain_deviation(const bp_pool *pool, uint32_t id, uint32_t before, uint32_t now,
                          char text[BP_EXPLANATION_BYTES]);

/* The error of a request whose memory `holder` has (BP_NONE: nobody that could be named). */
bp_status bp_fail_held(const bp_pool *pool, uint32_t id, uint32_t holder);

/* The errors of an id that is not bound, and of one that is twice in a call. */
bp_status bp_fail_unknown(const bp_pool *pool, uint32_t id);
bp_status bp_fail_twice(const bp_pool *pool, uint32_t id);
/* All ids of a call are bound. */
bp_status bp_check_ids(const bp_pool *pool, const uint32_t *ids, size_t count);

/* Another call is at work on a request, or too many streams hold it. */
bp_status bp_fail_race(const bp_pool *pool, uint32_t id);
/* A call is at work on ids[index]: this one, where the id is among those before it, or another. */
bp_status bp_fail_busy(const bp_pool *pool, const uint32_t *ids, size_t index);
bp_status bp_fail_streams(const bp_pool *pool, uint32_t id);
/* The memory that a request has in a slab is offloaded. */
bp_status bp_fail_away(const bp_pool *pool, uint32_t id, uint32_t slab);

/* The error of a request for which something is out of order: "<pool>: <request> <what>; acquire <n>, step <s>". */
bp_status bp_fail_order(const bp_pool *pool, uint32_t id, const char *what);

#endif
