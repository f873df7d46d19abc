/* SPDX-License-Identifier: Apache-2.0 */
/* Rearrangements of batches between orders, checked byte by byte. */
#ifndef BP_TEST_KERNELS_SUPPORT_REARRANGEMENTS_H
#define BP_TEST_KERNELS_SUPPORT_REARRANGEMENTS_H

#include "reference_splits.h"
#include "tokens.h"

/* A batch, its split by the library, and its reference split. */
typedef struct split_batch {
    reference_split d;
    bp_cp_split *split;
} split_batch;

split_batch new_split_batch(const split_options *options);
void free_split_batch(split_batch *h);

bp_cp *new_cp(bp_device *device, uint32_t threads);

typedef struct move {
    bp_cp_order from, to;
    bp_cp_shift shift;
    uint64_t token_bytes;
    placing source, target;
    uint8_t fill[16];
    uint32_t fill_bytes;
} move;

/* Random gaps and shifts, and a fill that divides the token's bytes. */
move random_move(bp_cp_order from, bp_cp_order to, bp_cp_shift shift, uint64_t token_bytes);

bp_cp_rearrangement rearrangement_of(const move *m, const tokens *from, const tokens *to);
/* Allocates tensors, rearranges (waits for the stream) and compares; asserts. Impossible shifts must be refused. */
void check_move(bp_cp *cp, const split_batch *h, const move *m, bp_stream *stream);
/* Compares the target of a finished move. Prints errors. */
bool is_moved(const split_batch *h, const move *m, const tokens *from, const tokens *to);

/* One move without gaps; asserts. */
void just_move(bp_cp *cp, const split_batch *h, bp_cp_order from_order, const tokens *from, bp_cp_order to_order,
               tokens *to);

/* A small batch, split for rank 1 of 2, and one move of it: 180 tokens in packed order, 94 in local order. */
typedef struct sample {
    split_batch h;
    tokens from, to;
} sample;
extern const move SAMPLE_MOVE;

sample new_sample(uint64_t seed_of_bytes);
void free_sample(sample *s);
/* The move is complete. Prints errors. */
bool sample_is_done(const sample *s);

#endif
