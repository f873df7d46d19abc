/* Rows of logits for tests of kernels, and what comes out of them, in fp64 and by other means than the kernels'. */
#ifndef BP_TESTS_KERNELS_HOST_ROWS_H
#define BP_TESTS_KERNELS_HOST_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "logprob/host/kernels.h"

/* ---- elements ------------------------------------------------------------------------------------------------------ */

size_t element_bytes(int dtype); /* BP_ROW_FP32, ... */
double value_at(int dtype, const void *row, uint64_t column);
/* `value` must be one that the dtype has. */
void set_value(int dtype, void *row, uint64_t column, double value);

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

typedef enum row_kind {
    ROW_NORMAL,    /* deviation 2 */
    ROW_WIDE,      /* up to 100 apart: some terms are less than fp32 has numbers for */
    ROW_LOW,       /* all -200 */
    ROW_OFFSET,    /* normal ones 10,000 up */
    ROW_SPARSE,    /* a third is -inf */
    ROW_ONE,       /* all -inf but one */
    ROW_NOTHING,   /* all -inf */
    ROW_NAN,       /* one is NaN, the others normal */
    ROW_NAN_ALONE, /* one is NaN, the others -inf */
    ROW_INFINITE,  /* one is +inf */
    ROW_KINDS
} row_kind;

int row_is_regular(row_kind kind); /* has a distribution */
void fill_row(row_kind kind, int dtype, void *row, uint64_t columns, uint64_t seed);

uint64_t random_of(uint64_t *state);
double random_normal(uint64_t *state);

/* ---- what comes out ------------------------------------------------------------------------------------------------ */

typedef struct exact_sums {
    double max, sum, weighted, weight; /* weight: the sum of the weighted ones' magnitudes */
} exact_sums;

exact_sums sums_of(int dtype, const void *row, uint64_t columns, double scale);
/* Element `column`, and how far off fp32 may be. */
double gradient_of_row(const bp_row_gradient *row, double x, uint64_t column, double *tolerance);

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* Memory that ends where a page begins that traps. */
void *take_guarded(size_t bytes);
void give_guarded(void *memory, size_t bytes);

#endif
