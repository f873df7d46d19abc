/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA graph captures of a pool. Release points recorded inside a capture are events of the graph, those outside are not: fences are
 * cleared when a capture begins and when it ends. */
#ifndef BP_ALLOCATORS_CAPTURE_H
#define BP_ALLOCATORS_CAPTURE_H

#include <bucketpool/capture.h>

#include "allocators/pool.h"

/* State of a request that was live when the capture began. */
typedef struct bp_captured_request {
    uint32_t id;
    uint32_t first; /* segment */
    uint8_t streams, used;
    atomic_bool touched; /* used by the capture */
    uint64_t word;
    bp_live_stream live[BP_LIVE_STREAMS];
} bp_captured_request;

struct bp_capture {
    bp_pool *pool; /* NULL: the pool was destroyed */
    char name[48];
    bool ended;
    atomic_bool is_void;       /* a slab with its collectives was offloaded: launches are refused */
    atomic_bool armed;         /* between before_launch and launched, while the segments are claimed */
    bp_captured_request *held; /* by id */
    uint32_t held_count;
    _Atomic uint64_t *touched; /* a bit for each segment */
    uint32_t *segments;        /* touched segments without those of held requests; set when the capture ends */
    uint32_t segment_count;
    uint32_t *used; /* held requests that were touched; set when the capture ends */
    uint32_t used_count;
    bp_capture_collectives collectives;
    bp_pool_statistics before; /* the pool's statistics when the capture began */
    bp_capture_slab
        *slabs; /* touched slabs, set when the capture ends; those with collectives have windows in the graph */
    bp_capture_info info;
    struct bp_capture *next; /* list of the pool's captures */
};

/* Holder of segments between before_launch and launched; not a request id. */
#define BP_HELD_BY_LAUNCH (BP_NONE - 1)
/* Holder of offloaded segments; not a request id. */
#define BP_HELD_BY_OFFLOAD (BP_NONE - 2)

/* Checks that the stream takes part in the pool's capture, or in no capture if the pool is not being captured. Called if the pool's watch
 * is not 0. */
bp_status bp_capture_check_stream(const bp_pool *pool, bp_stream *stream, const char *function);

/* Error of a call that is only allowed outside of the pool's captures. */
bp_status bp_capture_refuse(const bp_pool *pool, const char *function);
/* Error of a call that is only allowed while no pool of the device is being captured. */
bp_status bp_capture_refuse_any(const bp_pool *pool, const char *function);

/* True between before_launch and launched of a graph that touches a slab marked in `chosen`. */
bool bp_capture_is_launching(const bp_pool *pool, const bool *chosen);

/* Called when the pool is destroyed: its captures can only be destroyed from now on. */
void bp_capture_pool_gone(bp_pool *pool);

#endif
