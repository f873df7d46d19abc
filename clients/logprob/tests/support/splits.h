/* Split batches for kernel tests, with their token orders as plain lists: enumerated over ranks, sequences and chunks, independently of the
 * kernels' arithmetic. */
#ifndef BP_TESTS_KERNELS_SUPPORT_SPLITS_H
#define BP_TESTS_KERNELS_SUPPORT_SPLITS_H

#include <stdbool.h>

#include "cp/sequences.h"

#define MOST_SEQUENCES 16
#define MOST_TOKENS 4096 /* of a padded batch */
#define NO_PLACE (-1)

typedef struct split_batch {
    uint32_t count, data; /* sequences; those from `data` on are dummies */
    uint32_t ranks, rank;
    uint64_t packed[MOST_SEQUENCES + 1], padded[MOST_SEQUENCES + 1];
} split_batch;

/* Random lengths below `most`: some 0, some with extra padding; the last may be a dummy. */
split_batch random_split(uint32_t count, uint32_t ranks, uint32_t most);
/* Sequences from `first`. */
bp_sequence_group group_of(const split_batch *b, uint32_t first, uint32_t count);

/* A token, or padding of a sequence. */
typedef struct token {
    uint32_t sequence;
    uint64_t offset;
} token;

/* Lists all places of an order; returns their number. `tokens` has MAX_TOKENS entries. */
uint32_t list_order(const split_batch *b, bp_cp_order order, token *tokens);
bool is_padding(const split_batch *b, token t);

/* For each place of `to`, its token's place in `from`, or NO_PLACE. Returns the number of places. */
uint32_t list_sources(const split_batch *b, bp_cp_order from, bp_cp_order to, bp_cp_shift shift, int64_t *sources);

#endif
