/* What the injection library has seen. Found with dlsym in the library that NVTX_INJECTION64_PATH names. */
#ifndef BP_TEST_FAKE_NVTX_H
#define BP_TEST_FAKE_NVTX_H

#include <stddef.h>

typedef struct fake_nvtx_counts {
    size_t heaps, regions, ranges, pushes; /* ever begun */
    size_t open_heaps, open_regions, open_ranges, depth;
    size_t wrong;     /* calls that break a rule */
    char first[256];  /* of them */
    char text[128];   /* of the range that began last */
    char region[128]; /* name of the region that was named last */
    char domain[32];
} fake_nvtx_counts;

typedef void fake_nvtx_look(fake_nvtx_counts *counts);
/* Whether a range with this text has begun. */
typedef int fake_nvtx_saw(const char *text);
/* The open region that has the byte: its size, 0: none. */
typedef size_t fake_nvtx_region(const void *address);

fake_nvtx_look fake_nvtx_counts_get;
fake_nvtx_saw fake_nvtx_saw_range;
fake_nvtx_region fake_nvtx_region_bytes;

#endif
