/* Private declarations of the fused head. */
#ifndef BP_LOGPROB_LM_HEAD_H
#define BP_LOGPROB_LM_HEAD_H

#include <bucketpool/lm_head.h>

#include "logprob/base.h"

/* Workspaces after those of every client. */
enum { BP_WORK_CHUNK = BP_WORK_OWN, BP_WORK_SCRATCH = BP_WORK_OWN + 2, BP_WORK_SUMS = BP_WORK_OWN + 3 };
#define BP_HEAD_WORKSPACES 4
#define BP_EXCHANGED_NUMEL 4096u /* elements of each rank per exchange */

/* Kernels run on the call's stream, products on the head's own. A call forks the head's stream and joins it before it returns, so callers
 * see one stream, and a capture of it includes both. */
struct bp_lm_head {
    bp_base base;
    bp_lm_head_info info;
    bp_products *products;
    bp_stream *multiplies;
    bp_event *moved;     /* for orders between the two streams; waited for right after its record */
    bp_event *graded[2]; /* after the logit gradient in a chunk workspace */
    bp_dtype dtype;
    uint64_t hidden;
    uint64_t chunk;       /* maximum tokens of a piece */
    uint32_t chunk_count; /* number of chunk workspaces */
    bool forward_only;
    bool sums;        /* sums hidden_grad over ranks */
    float *exchanged; /* [ranks], where the communicator lacks collectives; NULL on this device */
};

#endif
