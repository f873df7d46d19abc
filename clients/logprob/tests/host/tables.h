/* The host kernels of this machine. */
#ifndef BP_TESTS_KERNELS_HOST_TABLES_H
#define BP_TESTS_KERNELS_HOST_TABLES_H

#include "rows.h"

#define DTYPES 3
#define COUNT(array) (sizeof(array) / sizeof *(array))

extern const char *const dtype_names[DTYPES];

/* Plain kernels first, the fastest last. Returns their number. */
size_t tables(const bp_host_kernels *found[3]);

typedef void per_table(const bp_host_kernels *kernels, int dtype);

/* Calls `check` for each table and dtype. */
void each(per_table *check);

#endif
