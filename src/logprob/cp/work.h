/* The work of kernels that bring tensors from one order to another. */
#ifndef BP_LOGPROB_CP_WORK_H
#define BP_LOGPROB_CP_WORK_H

#include "logprob/cp/sequences.h"

#define BP_FILL_BYTES 16

/* Every place of the group in `to_order` gets its token, or the fill; bytes between tokens are not touched. */
typedef struct bp_rearrange_work {
    bp_sequence_group group;
    const void *from;
    void *to;
    int64_t from_stride, to_stride; /* bytes between tokens */
    uint64_t token_bytes;
    int32_t from_order, to_order, shift; /* a bp_cp_order, a bp_cp_shift */
    uint32_t word_bytes;                 /* 1, 2, 4, 8, 16: divides addresses, strides and token_bytes */
    uint8_t fill[BP_FILL_BYTES];         /* a token without source is this again and again */
} bp_rearrange_work;

#endif
