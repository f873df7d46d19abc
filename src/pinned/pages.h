/* Memory by the page: mapped, touched and pinned, or all of it undone. */
#ifndef BP_PINNED_PAGES_H
#define BP_PINNED_PAGES_H

#include <bucketpool/device.h>

#include <stdbool.h>
#include <stdint.h>

#define BP_HUGE_PAGE_BYTES (UINT64_C(2) << 20)

typedef struct bp_pages {
    uint8_t *address;
    uint64_t bytes;
    /* With what cannot be touched on either side: it keeps the kernel from merging us with our neighbours. */
    uint8_t *mapping;
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

/* ---- the first touch of new memory, which is when the system finds it ------------------------------------------------------ */

#define BP_MOST_TOUCH_THREADS 64u

/* Of pages of `page` bytes each, by at most `threads` (at least 1) at once; with fewer where no more can be started or less is to do. */
void bp_touch(uint8_t *address, uint64_t bytes, uint64_t page, uint32_t threads);

/* The processors that this process may use, at most 8: more do not find memory any faster. */
uint32_t bp_touch_default_threads(void);

/* ---- NUMA nodes -------------------------------------------------------------------------------------------------- */

/* The node next to a cuda device; -1: another device, or the system does not know. */
int32_t bp_numa_node_of(const bp_device *device);

/* Where the system says it. */
#define BP_NUMA_PATH_BYTES 96u
void bp_numa_path(unsigned domain, unsigned bus, unsigned slot, char path[BP_NUMA_PATH_BYTES]);

/* What a file of the system's says ("numa_node" of a PCI device); -1: nothing. */
int32_t bp_numa_read_node(const char *path);

/* Whether that would work. */
bool bp_numa_is_usable(int32_t node);

/* How much of some memory, which is a mapping of its own, the system has put into huge pages. 0 where the system does not say. */
uint64_t bp_huge_bytes(const uint8_t *address, uint64_t bytes);

#endif
