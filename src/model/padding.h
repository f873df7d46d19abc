/* How large a bucket is once its parameters are laid out and padded for sharding. */
#ifndef BP_MODEL_PADDING_H
#define BP_MODEL_PADDING_H

#include <bucketpool/model.h>

#include "core/memory.h"

/* The elements that the parameters take in one bucket over `shards` ranks, under a rule that keeps them together (all but
 * BP_PADDING_MEGATRON_SPLIT). Errors: BP_ERR_OVERFLOW naming the first parameter. */
bp_status bp_padded_numel(bp_padding rule, const bp_parameter *const *parameters, size_t count, uint32_t shards,
                          uint64_t flat_alignment, uint64_t *padded);

/* Largest rows first; equal rows in the order of the array that all of the parameters lie in. */
void bp_sort_by_rows(const bp_parameter **parameters, size_t count);

/* How many of the parameters, sorted by rows, share the first bucket under BP_PADDING_MEGATRON_SPLIT. They are moved to the
 * front; both parts stay sorted. */
bp_status bp_split_by_rows(const bp_parameter **parameters, size_t count, size_t *together);

#endif
