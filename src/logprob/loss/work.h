/* The work of kernels of the loss. */
#ifndef BP_LOGPROB_LOSS_WORK_H
#define BP_LOGPROB_LOSS_WORK_H

#include "logprob/cp/sequences.h"

/* What the local tokens of a sequence come to. Without valid tokens: zeros, +inf and -inf. */
typedef struct bp_loss_record {
    double logprob, entropy;
    uint64_t valid;
    float logit_min, logit_max; /* NaN where one is */
} bp_loss_record;

/* Local tokens to records, one for each sequence of the group, empty ones and dummies included. A token is valid where its mask is not 0
 * and it is data; values of others are not read. Planes are in local order of the whole batch, strides in elements. Sums are fp64, in an order
 * that depends on the sequence's local length only. */
typedef struct bp_sums_work {
    bp_sequence_group group;
    const uint8_t *mask;
    const float *logprob, *entropy, *logit_min, *logit_max; /* NULL: not there; 0, +inf, -inf */
    int64_t mask_stride, logprob_stride, entropy_stride, logit_min_stride, logit_max_stride;
    bp_loss_record *records; /* [group.count] */
} bp_sums_work;

/* Seeds of the group's local tokens: `value` where a token is valid, else 0. */
typedef struct bp_seed_work {
    bp_sequence_group group;
    const uint8_t *mask;
    float *seed;
    int64_t mask_stride, seed_stride;
    float value;
} bp_seed_work;

#endif
