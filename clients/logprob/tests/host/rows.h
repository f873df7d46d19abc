/* Rows of logits for kernel tests, and their fp64 results, computed independently of the kernels. */
#ifndef BP_TESTS_KERNELS_HOST_ROWS_H
#define BP_TESTS_KERNELS_HOST_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "host/kernels.h"

/* ---- elements ------------------------------------------------------------------------------------------------------ */

size_t element_bytes(int dtype); /* BP_ROW_FP32, ... */
double value_at(int dtype, const void *row, uint64_t column);
/* `value` must be representable. */
void set_value(int dtype, void *row, uint64_t column, double value);

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

typedef enum row_kind {
    ROW_NORMAL,    /* standard deviation 2 */
    ROW_WIDE,      /* range of 100: some terms underflow fp32 */
    ROW_LOW,       /* all -200 */
    ROW_OFFSET,    /* normal plus 10,000 */
    ROW_SPARSE,    /* one third -inf */
    ROW_ONE,       /* all -inf except one */
    ROW_NOTHING,   /* all -inf */
    ROW_NAN,       /* one is NaN, the others normal */
    ROW_NAN_ALONE, /* one NaN, the others -inf */
    ROW_INFINITE,  /* one is +inf */
    ROW_KINDS
} row_kind;

int row_is_regular(row_kind kind); /* has a distribution */
void fill_row(row_kind kind, int dtype, void *row, uint64_t columns, uint64_t seed);

uint64_t random_of(uint64_t *state);
double random_normal(uint64_t *state);

/* ---- fp64 results -------------------------------------------------------------------------------------------------- */

typedef struct exact_sums {
    double max, sum, weighted, weight; /* weight: sum of the weighted terms' magnitudes */
} exact_sums;

exact_sums sums_of(int dtype, const void *row, uint64_t columns, double scale);
/* Element `column`, and the tolerance of fp32. */
double gradient_of_row(const bp_row_gradient *row, double x, bool is_target, double *tolerance);

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* An allocation that ends at a page that traps. */
void *take_guarded(size_t bytes);
void give_guarded(void *memory, size_t bytes);

#endif
