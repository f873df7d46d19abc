/* The host kernels of this machine. */
#ifndef BP_TESTS_KERNELS_HOST_TABLES_H
#define BP_TESTS_KERNELS_HOST_TABLES_H

#include "rows.h"

#define DTYPES 3
#define COUNT(array) (sizeof(array) / sizeof *(array))

extern const char *const dtype_names[DTYPES];

/* Plain ones first, the best last. Returns how many there are. */
size_t tables(const bp_host_kernels *found[3]);

typedef void per_table(const bp_host_kernels *kernels, int dtype);

/* Calls `check` for each of them and each dtype. */
void each(per_table *check);

#endif
