/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of requests and buffers, for errors, dumps and messages. Cold path. */
#ifndef BP_ALLOCATORS_REPORT_H
#define BP_ALLOCATORS_REPORT_H

#include "allocators/pool.h"

#define BP_REQUEST_BYTES 160
#define BP_EXPLANATION_BYTES 480

/* "param of layers.7, bucket experts". Returns `text`. */
const char *bp_explain_request(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES]);

/* The acquire that made the request live: "acquire 324 (stream compute, step 5)". Returns `text`. */
const char *bp_explain_since(const bp_pool *pool, uint32_t id, char text[BP_REQUEST_BYTES]);

/* Reports that a request got another copy than the plan's. */
void bp_explain_deviation(const bp_pool *pool, uint32_t id, uint32_t before, uint32_t now,
                          char text[BP_EXPLANATION_BYTES]);

/* Error of a request whose memory `holder` has (BP_NONE: unknown). */
bp_status bp_fail_held(const bp_pool *pool, uint32_t id, uint32_t holder);

/* Errors of an id that is not bound, and of an id that occurs twice in a call. */
bp_status bp_fail_unknown(const bp_pool *pool, uint32_t id);
bp_status bp_fail_twice(const bp_pool *pool, uint32_t id);
/* Checks that all ids of a call are bound. */
bp_status bp_check_ids(const bp_pool *pool, const uint32_t *ids, size_t count);

/* Error: another call works on the request, or too many streams hold it. */
bp_status bp_fail_race(const bp_pool *pool, uint32_t id);
/* Error: a call works on ids[index]; this call, if the id occurs before, else another one. */
bp_status bp_fail_busy(const bp_pool *pool, const uint32_t *ids, size_t index);
bp_status bp_fail_streams(const bp_pool *pool, uint32_t id);
/* Error: the request's memory in the slab is offloaded. */
bp_status bp_fail_offloaded(const bp_pool *pool, uint32_t id, uint32_t slab);

/* Error of a request that is used out of order: "<pool>: <request> <what>; acquire <n>, step <s>". */
bp_status bp_fail_order(const bp_pool *pool, uint32_t id, const char *what);

#endif
