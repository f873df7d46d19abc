/* Batches split as cards are dealt out: each sequence is cut into 2 R chunks, which go to ranks 0 to R - 1 and then back, and nothing is
 * computed that can be counted. Nothing here is shared with the library. */
#ifndef BP_TEST_KERNELS_SUPPORT_REFERENCE_SPLITS_H
#define BP_TEST_KERNELS_SUPPORT_REFERENCE_SPLITS_H

#include <bucketpool/cp.h>

#include <stdbool.h>

#define ORDERS 4
#define SHIFTS 3

typedef struct deal_options {
    const uint64_t *lengths, *padded; /* padded NULL: to `multiple` */
    uint64_t sequences;
    uint32_t ranks, rank;
    uint64_t multiple, total_multiple; /* 0: as in bp_cp_split_config */
    bool last_is_dummy;
    bp_dtype cu_dtype; /* 0: int64 */
    bp_comm *comm;
} deal_options;

/* A token of a sequence, or its padding. */
typedef struct place {
    uint64_t sequence, offset;
} place;

typedef struct deal {
    uint32_t ranks, rank;
    uint64_t sequences;         /* with a dummy that was added */
    uint64_t *lengths, *padded; /* of those */
    place *places[ORDERS];      /* by bp_cp_order: who is where */
    uint64_t count[ORDERS];
} deal;

deal new_deal(const deal_options *options);
void free_deal(deal *d);

/* For each place in `to`, where it is in `from`; -1: nowhere. In memory of the caller. */
int64_t *dealt_map(const deal *d, bp_cp_order from, bp_cp_order to, bp_cp_shift shift);
/* From local tokens of several ranks nothing can be shifted. */
bool can_shift(const deal *d, bp_cp_order from, bp_cp_shift shift);

/* The library's split of the same batch. */
bp_status split_of(const deal_options *options, bp_cp_split **split);

/* `count` lengths up to `most`, many of them 0 or 1; in memory of the caller. */
uint64_t *random_lengths(uint64_t count, uint32_t most);

#endif
