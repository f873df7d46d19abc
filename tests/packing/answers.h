/* SPDX-License-Identifier: Apache-2.0 */
/* Runs bp_pack and bp_packing_bound and asserts their whole contract on the results. */
#ifndef BP_TEST_PACKING_ANSWERS_H
#define BP_TEST_PACKING_ANSWERS_H

#include "instances.h"

typedef struct answer {
    bp_pack_result result;
    uint64_t *offsets; /* one per item */
} answer;

/* The default configuration. */
bp_pack_config new_config(void);

/* Packs and asserts: the status fits the capacity, bound <= proven <= bytes, optimal iff proven == bytes, the placement passes the naive
 * check and bp_packing_check, and nothing else was written. */
answer solve(const instance *in, bp_pack_config config);
answer solve_plainly(const instance *in);
/* Packs, asserts that the result is optimal, and returns its bytes. */
uint64_t solved_optimum(const instance *in);
/* Asserts that the result is optimal and takes `bytes`. */
void assert_optimum(const instance *in, uint64_t bytes);
void end_answer(answer *a);
/* Asserts that bp_pack fails with this status and a detail, and writes nothing. */
void assert_refused(const instance *in, bp_pack_config config, bp_status expected);

/* Runs bp_packing_bound and asserts that the witness is a clique of that size, in increasing order. */
uint64_t bound_of(const instance *in);

#endif
