/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of the injection library, found with dlsym in the library that NVTX_INJECTION64_PATH names. */
#ifndef BP_TEST_FAKE_NVTX_H
#define BP_TEST_FAKE_NVTX_H

#include <stddef.h>

typedef struct fake_nvtx_counts {
    size_t heaps, regions, ranges, pushes; /* totals since the start */
    size_t open_heaps, open_regions, open_ranges, depth;
    size_t wrong;     /* calls that broke a rule */
    char first[256];  /* description of the first one */
    char text[128];   /* of the last range that began */
    char region[128]; /* name of the last region that was named */
    char domain[32];
} fake_nvtx_counts;

typedef void fake_nvtx_look(fake_nvtx_counts *counts);
/* 1 if a range with this text has begun. */
typedef int fake_nvtx_saw(const char *text);
/* The size of the open region that contains the byte; 0: none. */
typedef size_t fake_nvtx_region(const void *address);

fake_nvtx_look fake_nvtx_counts_get;
fake_nvtx_saw fake_nvtx_saw_range;
fake_nvtx_region fake_nvtx_region_bytes;

#endif
