/* Captures from within. While a pool is being captured its release points are events of the capture; before and after they are not, so
 * that fences are emptied at both ends. */
#ifndef BP_ALLOCATORS_CAPTURE_H
#define BP_ALLOCATORS_CAPTURE_H

#include <bucketpool/capture.h>

#include "allocators/pool.h"

/* A request that was live when the capture began, as it was. */
typedef struct bp_captured_request {
    uint32_t id;
    uint32_t first; /* segment */
    uint8_t streams, used;
    atomic_bool touched; /* by the capture */
    uint64_t word;
    bp_live_stream live[BP_LIVE_STREAMS];
} bp_captured_request;

struct bp_capture {
    bp_pool *pool; /* NULL: it was destroyed */
    char name[48];
    bool ended;
    atomic_bool is_void;       /* what it has collectives in was offloaded: it must not be launched any more */
    atomic_bool armed;         /* between before_launch and launched: the segments are claimed */
    bp_captured_request *held; /* by id */
    uint32_t held_count;
    _Atomic uint64_t *touched; /* a bit for each segment */
    uint32_t *segments;        /* touched and not of a held request, once it has ended */
    uint32_t segment_count;
    uint32_t *used; /* held requests that were touched, once it has ended */
    uint32_t used_count;
    bp_capture_collectives collectives;
    bp_pool_statistics before; /* of the pool when it began */
    bp_capture_slab *slabs;    /* touched, once it has ended; those with collectives have windows in the graph */
    bp_capture_info info;
    struct bp_capture *next; /* of the pool's */
};

/* Who holds segments between before_launch and launched; no request's id. */
#define BP_HELD_BY_LAUNCH (BP_NONE - 1)
/* And of slabs that are offloaded. */
#define BP_HELD_BY_OFFLOAD (BP_NONE - 2)

/* Whether the stream may be used as it is by a pool that is, or is not, being captured. Called where the pool's watch is not 0. */
bp_status bp_capture_check_stream(const bp_pool *pool, bp_stream *stream, const char *function);

/* A call that only is possible outside of captures. */
bp_status bp_capture_refuse(const bp_pool *pool, const char *function);
/* One that only is possible while no pool of the device is being captured. */
bp_status bp_capture_refuse_any(const bp_pool *pool, const char *function);

/* Whether a launch has begun and is not over, of a graph that touches one of the slabs marked in `chosen`. */
bool bp_capture_is_launching(const bp_pool *pool, const bool *chosen);

/* The pool goes: its captures can only be destroyed any more. */
void bp_capture_pool_gone(bp_pool *pool);

#endif
