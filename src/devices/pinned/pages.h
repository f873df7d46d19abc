/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in whole pages: mapped, touched and pinned, and the reverse. */
#ifndef BP_PINNED_PAGES_H
#define BP_PINNED_PAGES_H

#include <bucketpool/device.h>

#include <stdbool.h>
#include <stdint.h>

#define BP_HUGE_PAGE_BYTES (UINT64_C(2) << 20)

typedef struct bp_pages {
    uint8_t *address;
    uint64_t bytes;
    /* With inaccessible pages on both sides, which keep the kernel from merging it with neighbouring mappings. */
    uint8_t *mapping;
    uint64_t mapping_bytes;
} bp_pages;

/* Source of pages, with its statistics. */
typedef struct bp_page_source {
    bp_device *device;
    uint32_t threads; /* that touch new memory */
    int32_t node;     /* -1: any */
    bool huge;
    uint64_t huge_bytes, touch_ns, pin_ns; /* so far */
} bp_page_source;

uint64_t bp_page_bytes(void);

/* Allocates whole pages, pinned and zeroed, at a multiple of `alignment` (a power of two). All or nothing. Errors: BP_ERR_NO_HOST_MEMORY,
 * errors of the device. */
bp_status bp_pages_get(bp_page_source *source, uint64_t bytes, uint64_t alignment, bp_pages *pages);
/* Errors: those of the device; then the pages stay as they are. */
bp_status bp_pages_give_back(const bp_page_source *source, const bp_pages *pages);

/* ---- first touch of fresh pages ----------------------------------------------------------------------------------------- */

#define BP_MAX_TOUCH_THREADS 64u

/* Touches pages of `page` bytes each with at most `threads` (at least 1) threads; fewer if threads cannot be started or there is little
 * to do. */
void bp_touch(uint8_t *address, uint64_t bytes, uint64_t page, uint32_t threads);

/* The number of processors available to this process, at most 8: more do not map memory faster. */
uint32_t bp_touch_default_threads(void);

/* ---- NUMA nodes -------------------------------------------------------------------------------------------------- */

/* The NUMA node next to a cuda device; -1: another device, or unknown. */
int32_t bp_numa_node_of(const bp_device *device);

/* Path of the sysfs file with a PCI device's node. */
#define BP_NUMA_PATH_BYTES 96u
void bp_numa_path(unsigned domain, unsigned bus, unsigned slot, char path[BP_NUMA_PATH_BYTES]);

/* Reads such a file ("numa_node" of a PCI device); -1: unknown. */
int32_t bp_numa_read_node(const char *path);

/* True if memory can be placed on the node. */
bool bp_numa_is_usable(int32_t node);

/* Bytes of a mapping that are in huge pages; 0 if the system does not say. */
uint64_t bp_huge_bytes(const uint8_t *address, uint64_t bytes);

#endif
