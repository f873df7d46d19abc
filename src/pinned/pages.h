/* Memory by the page: mapped, touched and pinned, or all of it undone. */
#ifndef BP_PINNED_PAGES_H
#define BP_PINNED_PAGES_H

#include <bucketpool/device.h>

#include <stdbool.h>

#define BP_HUGE_PAGE_BYTES (UINT64_C(2) << 20)

typedef struct bp_pages {
    uint8_t *address;
    uint64_t bytes;
    uint8_t *
        mapping; /* with what cannot be touched on either side: it keeps the kernel from merging us with our neighbours */
    uint64_t mapping_bytes;
} bp_pages;

/* Where pages come from, and what making them has taken. */
typedef struct bp_page_source {
    bp_device *device;
    uint32_t threads; /* that touch new memory */
    int32_t node;     /* -1: any */
    bool huge;
    uint64_t huge_bytes, touch_ns, pin_ns; /* so far */
} bp_page_source;

uint64_t bp_page_bytes(void);

/* Whole pages, pinned and full of zeros, at a multiple of `alignment` (a power of two). All or nothing. Errors: BP_ERR_NO_HOST_MEMORY, what
 * the device reports. */
bp_status bp_pages_get(bp_page_source *source, uint64_t bytes, uint64_t alignment, bp_pages *pages);
/* Errors: what the device reports; then they are as they were. */
bp_status bp_pages_give_back(const bp_page_source *source, const bp_pages *pages);

#endif
