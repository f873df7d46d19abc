/* The workspaces of a client: requests of a plan, served by a pool. */
#ifndef BP_LOGPROB_WORKSPACE_H
#define BP_LOGPROB_WORKSPACE_H

#include <bucketpool/pool.h>

#define BP_WORKSPACES 8

/* When a workspace is in use: stages of the client's work, as bits. Two workspaces of one stage never share memory. */
typedef struct bp_workspace_need {
    const char *name; /* "partials"; static */
    uint64_t bytes;   /* 0: none; its address is NULL */
    uint32_t stages;
} bp_workspace_need;

typedef struct bp_workspace {
    bp_pool *pool;
    uint32_t ids[BP_WORKSPACES]; /* in the order of the needs */
    uint32_t held;               /* bits: taken and not given back */
    uint64_t bytes, planned_bytes;
} bp_workspace;

/* Plans and makes them, each from a page of its own, as devices make slabs of whole pages: so the plan says what is made. `name`: of the
 * pool, in messages. */
bp_status bp_workspace_init(bp_device *device, const char *name, const bp_workspace_need *needs, size_t count,
                            bp_workspace *workspace);
/* Waits for the device's streams. */
void bp_workspace_finish(bp_workspace *workspace);

/* Acquire and release of one workspace, by its place among the needs. */
bp_status bp_workspace_take(bp_workspace *workspace, uint32_t which, bp_stream *stream, void **address);
bp_status bp_workspace_give(bp_workspace *workspace, uint32_t which, bp_stream *stream);
/* Gives back what a call that failed left behind: those of `which` (bits) that are held. */
bp_status bp_workspace_drop(bp_workspace *workspace, uint32_t which, bp_stream *stream);

#endif
