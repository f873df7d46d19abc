/* SPDX-License-Identifier: Apache-2.0 */
/* A captured graph that computes in the memory of a store: it copies the state into parameters, and these into gradients. */
#ifndef BP_TEST_OFFLOAD_GRAPHS_H
#define BP_TEST_OFFLOAD_GRAPHS_H

#include <bucketpool/capture.h>

#include "stores.h"

typedef struct recorded {
    bp_capture *capture;
    bp_graph *graph;
} recorded;

/* Touches the first requests of state, param and grad, on s0. */
recorded record_graph(store *s, const char *name, bp_capture_collectives collectives);
void forget_graph(recorded *r);
/* Launches it on the stream, between before_launch and launched. */
void replay(const recorded *r, bp_stream *stream);
/* Writes new bytes to the state and launches; asserts that they arrive in the gradients. The model of the bytes is updated. */
void assert_replays(store *s, const recorded *r);

/* NULL: the graph does not touch the slab. */
const bp_capture_slab *touched_slab(const bp_capture *capture, uint32_t slab);
bool has_collectives(const bp_capture *capture, uint32_t slab);

/* The configuration for a capture of the store: live requests are owned. `owned` has room for all. */
bp_capture_config capture_config(const store *s, uint32_t *owned);

#endif
