/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of context-parallel splits: each sequence is cut into 2 R chunks, which are distributed in order to ranks 0 to R - 1 and
 * then R - 1 to 0. It enumerates tokens instead of computing places, and is independent of the library. */
#ifndef BP_TEST_KERNELS_SUPPORT_REFERENCE_SPLITS_H
#define BP_TEST_KERNELS_SUPPORT_REFERENCE_SPLITS_H

#include <bucketpool/cp.h>

#include <stdbool.h>

#define ORDERS 4
#define SHIFTS 3

typedef struct split_options {
    const uint64_t *lengths, *padded; /* padded NULL: padded to `multiple` */
    uint64_t sequences;
    uint32_t ranks, rank;
    uint64_t multiple, total_multiple; /* 0: as in bp_cp_split_config */
    bool last_is_dummy;
    bp_dtype cu_dtype; /* 0: int64 */
    bp_comm *comm;
} split_options;

/* A token of a sequence, or its padding. */
typedef struct place {
    uint64_t sequence, offset;
} place;

typedef struct reference_split {
    uint32_t ranks, rank;
    uint64_t sequences;         /* including an appended dummy */
    uint64_t *lengths, *padded; /* per sequence */
    place *places[ORDERS];      /* by bp_cp_order: the token at each place */
    uint64_t count[ORDERS];
} reference_split;

reference_split new_reference_split(const split_options *options);
void free_reference_split(reference_split *d);

/* For each place in `to`, its place in `from`, or -1. The caller frees it. */
int64_t *reference_map(const reference_split *d, bp_cp_order from, bp_cp_order to, bp_cp_shift shift);
/* False for shifts of local tokens with several ranks. */
bool can_shift(const reference_split *d, bp_cp_order from, bp_cp_shift shift);

/* The library's split of the same batch. */
bp_status split_of(const split_options *options, bp_cp_split **split);

/* `count` lengths up to `most`, many of them 0 or 1. The caller frees them. */
uint64_t *random_lengths(uint64_t count, uint32_t max);

#endif
