/* What profilers and compute-sanitizer are told of a pool (nvtx/nvtx.h): slabs are heaps, live requests are regions and ranges. */
#ifndef BP_ALLOCATORS_ANNOTATIONS_H
#define BP_ALLOCATORS_ANNOTATIONS_H

#include "allocators/pool.h"
#include "nvtx/nvtx.h"

/* A request; belongs to the call that has claimed the request's word. */
typedef struct bp_annotation {
    bp_nvtx_name name;
    uint64_t range;   /* of the hold it has; 0: none */
    const void *open; /* address of its region; NULL: none */
} bp_annotation;

struct bp_annotations {
    bp_annotation *requests;
    void **heaps;       /* by slab */
    bp_nvtx_name graph; /* of memory that a launch has */
    _Atomic uint64_t step, capture;
};

/* Decides whether the pool is annotated. Errors: BP_ERR_UNSUPPORTED (asked for, and the library was built without),
 * BP_ERR_INVALID_ARGUMENT. */
bp_status bp_annotations_choose(bp_annotate wanted, bool *chosen);

/* Once all slabs are there: makes room for what can be bound, and announces the slabs. */
bp_status bp_annotations_start(bp_pool *pool);
/* Ends what is open; slabs are forgotten as they are given back. */
void bp_annotations_finish(bp_pool *pool);
void bp_annotations_destroy(bp_pool *pool);

/* A request was bound. */
void bp_annotations_bind(bp_pool *pool, uint32_t id);
/* On the path of acquires and releases it is bp_annotations_observer that is called: nothing of ours is allocated or locked. */
void bp_annotations_step(bp_pool *pool, uint64_t step);
/* `name` NULL: it is over. */
void bp_annotations_capture(bp_pool *pool, const char *name);
/* The launch of a graph has begun, or is over, which touches these segments. */
void bp_annotations_launch(bp_pool *pool, const uint32_t *segments, uint32_t count);
void bp_annotations_launched(bp_pool *pool, const uint32_t *segments, uint32_t count);

#endif
