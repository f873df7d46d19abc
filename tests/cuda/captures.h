/* Pools to capture, and captures, of the tests that use them wrongly. */
#ifndef BP_TEST_CAPTURES_H
#define BP_TEST_CAPTURES_H

#include <bucketpool/capture.h>

#include "../contract/support.h"
#include "allocators/pool.h"

/* Of UNITS, with buffers of two units, persistent and overflow memory. */
kit open_max(void);

/* Asserted to begin. */
bp_capture *begin(const kit *k);
bp_capture *begin_owned(const kit *k, uint32_t owned);
bp_graph *end_graph(bp_stream *stream);

/* Enqueues the graph, with what comes before and after. */
void launch(bp_capture *capture, bp_graph *graph, bp_stream *stream);

/* The pool is not captured, nothing is live, and it serves as ever. */
void assert_serves(kit *k);

/* Count the slabs that are attached, in the int that `user` points to. */
extern const bp_slab_callbacks COUNTING;

/* NULL: the graph does not touch the slab. */
const bp_capture_slab *touched_slab(const bp_capture *capture, uint32_t slab);

#endif
