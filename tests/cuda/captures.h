/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and captures for tests of their misuse. */
#ifndef BP_TEST_CAPTURES_H
#define BP_TEST_CAPTURES_H

#include <bucketpool/capture.h>

#include "allocators/pool.h"
#include "support/pools.h"

/* A pool of UNITS, with buffers for two units, persistent and overflow memory. */
kit open_max(void);

/* Asserts that the capture begins. */
bp_capture *begin(const kit *k);
bp_capture *begin_owned(const kit *k, uint32_t owned);
bp_graph *end_graph(bp_stream *stream);

/* A capture of the pool, and of what the stream is given meanwhile. */
typedef struct captured {
    bp_stream *stream;
    bp_capture *capture;
    bp_graph *graph;
} captured;

/* Asserts that both begin; `owned` NULL: no request. */
captured capture_on(const kit *k, bp_stream *stream, const uint32_t *owned);
void end_captured(captured *c);
void forget(captured *c);
#define CAPTURED __attribute__((cleanup(forget))) captured

/* Launches the graph, between before_launch and launched. */
void launch(bp_capture *capture, bp_graph *graph, bp_stream *stream);

/* Asserts that the pool is not captured, has no live request, and serves. */
void assert_serves(kit *k);

/* Callbacks that count the attached slabs in the int that `user` points to. */
extern const bp_slab_callbacks COUNTING;

/* NULL: the graph does not touch the slab. */
const bp_capture_slab *touched_slab(const bp_capture *capture, uint32_t slab);

#endif
