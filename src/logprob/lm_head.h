/* The fused head from within. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>

#include "logprob/base.h"

/* Workspaces beyond those of every client. */
enum { BP_WORK_CHUNK = BP_WORK_OWN, BP_WORK_SCRATCH = BP_WORK_OWN + 2, BP_WORK_SUMS = BP_WORK_OWN + 3 };
#define BP_HEAD_WORKSPACES 4
#define BP_EXCHANGED_NUMEL 4096u /* of each rank at once */

/* Kernels run on the stream of the call, products on one of the head's own. A call forks it off and joins it at its end, so that the
 * caller's stream is all that a caller needs to know, and a captured one takes it along. */
struct bp_lm_head {
    bp_base base;
    bp_lm_head_info info;
    bp_products *products;
    bp_stream *multiplies;
    bp_event *moved;     /* from one of the two streams to the other: waited for at once */
    bp_event *graded[2]; /* the gradient of logits in a chunk workspace is there */
    bp_dtype dtype;
    uint64_t hidden;
    uint64_t chunk;       /* tokens of a piece at most */
    uint32_t chunk_count; /* workspaces */
    bool forward_only;
    bool sums;        /* hidden_grad over ranks */
    float *exchanged; /* of all ranks, where communicators have no collectives; NULL: not on this device */
};

#endif
