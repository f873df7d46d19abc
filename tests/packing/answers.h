/* What bp_pack answers, held to all that its contract says of any answer. */
#ifndef BP_TEST_PACKING_ANSWERS_H
#define BP_TEST_PACKING_ANSWERS_H

#include "instances.h"

typedef struct answer {
    bp_pack_result result;
    uint64_t *offsets; /* one per item */
} answer;

/* The default configuration. */
bp_pack_config new_config(void);

/* Packs, and checks: the outcome against the capacity, bound <= proven <= bytes, `optimal` when and only when proven = bytes,
 * the placement by the naive check and by the library's, that nothing else was written. */
answer solve(const instance *in, bp_pack_config config);
answer solve_plainly(const instance *in);
/* The bytes, which must be proven to be the least. */
uint64_t solved_optimum(const instance *in);
/* That it is proven that nothing takes less than `bytes`. */
void assert_optimum(const instance *in, uint64_t bytes);
void end_answer(answer *a);
/* bp_pack fails with this status, says why, and writes nothing. */
void assert_refused(const instance *in, bp_pack_config config, bp_status expected);

/* The same for bp_packing_bound: a clique, of that sum, in increasing order. */
uint64_t bound_of(const instance *in);

#endif
