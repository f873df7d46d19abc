/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: rows that count upwards in strides. The first token and the stride of a row come from the seed, the
 * step and the row's number in the global batch, so that ranks together see what one process would. */
#ifndef FSDP_TRAIN_DATA_H
#define FSDP_TRAIN_DATA_H

#include "options.h"

/* A number for two others, the same everywhere. */
uint64_t data_random(uint64_t seed, uint64_t what, uint64_t number);

/* Rows of a rank: [first, end). */
typedef struct row_range {
    uint64_t first, end;
} row_range;

row_range data_rows(const options *o, uint32_t rank, uint32_t ranks);
/* The most that a rank has. */
uint64_t data_max_rows(const options *o, uint32_t ranks);

/* Tokens and what follows each, of a step's rows. */
void data_make(const options *o, uint64_t step, row_range rows, uint32_t *tokens, uint32_t *targets);

#endif
