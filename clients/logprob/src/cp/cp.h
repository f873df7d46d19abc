/* SPDX-License-Identifier: Apache-2.0 */
/* Private declarations of splits of packed batches. */
#ifndef BP_LOGPROB_CP_CP_H
#define BP_LOGPROB_CP_CP_H

#include <bucketpool/cp.h>

#include "base.h"

struct bp_cp_split {
    bp_cp_split_info info;
    uint64_t *packed; /* [sequences + 1] start offsets and the end */
    uint64_t *padded;
};

uint64_t bp_split_group_count(const bp_cp_split *split);
void bp_split_group(const bp_cp_split *split, uint64_t index, bp_sequence_group *group);

/* Number of tokens in an order. */
uint64_t bp_split_tokens(const bp_cp_split *split, bp_cp_order order);

/* Error: an unknown order. */
bp_status bp_check_order(const char *call, bp_cp_order order);
/* Errors: an unknown shift; a shift from local order with several ranks. */
bp_status bp_check_shift(const char *call, const bp_cp_split *split, bp_cp_order from, bp_cp_shift shift);

#endif
