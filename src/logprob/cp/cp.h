/* The client that moves tensors, from within. */
#ifndef BP_LOGPROB_CP_CP_H
#define BP_LOGPROB_CP_CP_H

#include <bucketpool/cp.h>

#include <stdbool.h>

#include "logprob/cp/split.h"
#include "logprob/engine.h"
#include "logprob/workspace.h"

/* Workspaces of gathers: everybody's tokens, and this rank's without gaps. */
enum { BP_CP_WORK_GATHERED = 0, BP_CP_WORK_SLICE = 1, BP_CP_WORKSPACES = 2 };

struct bp_cp {
    bp_device *device; /* kept by the stream */
    bp_engine *engine;
    bp_stream *own; /* for calls without a stream */
    bp_comm *comm;  /* NULL: one rank */
    bp_workspace workspace;
    uint64_t max_gathered_bytes;
    bool trusting;
};

/* A tensor as the split has it in `order`, with its stride filled in. `written`: tokens must not overlap each other. */
bp_status bp_check_cp_tensor(const char *call, const char *name, const bp_cp_split *split, bp_cp_order order,
                             const bp_cp_tensor *tensor, bool written, bp_cp_tensor *checked);

/* Errors: two checked tensors that share memory, gaps between their tokens included. */
bp_status bp_check_cp_apart(const char *call, const bp_cp_tensor *from, const bp_cp_tensor *to);

/* Enqueues the kernels of a rearrangement whose tensors are checked. */
bp_status bp_cp_enqueue(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *checked, bp_stream *stream);

#endif
