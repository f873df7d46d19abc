/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that all processes derive from indices: lengths, masks and values. */
#ifndef BP_TEST_MPI_SEQUENCES_H
#define BP_TEST_MPI_SEQUENCES_H

#include <bucketpool/cp.h>

#include "support/pools.h"

#define SEQUENCES 12
#define LONGEST 33
#define MAX_TOKENS (SEQUENCES * (LONGEST + 8))

extern bp_comm *everybody;
extern uint32_t rank, ranks;

/* Initializes MPI and opens a host device; prints errors. */
bool open_everything(void);
/* Returns main's exit status. After a failed test it aborts all processes, because others may be waiting. */
int close_everything(int failed);

/* Below 2^32. */
uint64_t number(uint64_t what, uint64_t sequence, uint64_t offset);
/* One sequence is empty. */
uint64_t length_of(uint64_t sequence);

typedef struct sequences {
    uint64_t first, step, count, tokens;
    int64_t cu[SEQUENCES + 1];
} sequences;

/* The sequences of a DP rank. */
sequences sequences_of(uint64_t dp, uint64_t dp_rank);

bp_cp_split_config split_config(const sequences *s, uint32_t cp, uint32_t cp_rank);
bp_cp_split *new_split(const sequences *s, uint32_t cp, uint32_t cp_rank);
bp_cp_split_info info_of(const bp_cp_split *split);
bp_cp *new_client(bp_comm *comm, uint64_t gathered_bytes);
/* From packed order, without a shift of labels. */
void rearrange(bp_cp *cp, const bp_cp_split *split, bp_cp_order to_order, bp_cp_tensor from, bp_cp_tensor to);

#endif
