/* The client of logprob.h from within. */
#ifndef BP_LOGPROB_LOGPROB_H
#define BP_LOGPROB_LOGPROB_H

#include <bucketpool/logprob.h>

#include "logprob/base.h"

struct bp_logprob {
    bp_base base;
    bp_logprob_info info;
};

/* What forward and backward share: the batch as checked values and work. `tokens` 0: nothing to do, nothing else is set. */
typedef struct bp_batch_work {
    uint64_t token_count;
    bp_token_rows logits; /* with strides */
    bp_tokens_work tokens;
    bp_logits_work work;
} bp_batch_work;

#endif
