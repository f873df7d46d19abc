/** @file
 * Pinned host memory: pages that stay where they are, which a device copies to and from at full speed.
 *
 * Pinning is slow (a driver takes seconds for tens of GiB), so memory is pinned once and handed out again and again:
 *
 *   planned  pieces of at least config.planned_bytes, which are known in advance and large: each is memory of its own, to the page. No size
 *            class rounds it up, and giving it back gives it back to the system.
 *   small    everything below: from one slab of config.slab_bytes that is pinned when first needed, served by jemalloc where the
 *            process has it, else by a plain allocator of whole pages. A slab that is full is BP_ERR_NO_HOST_MEMORY: it never grows.
 *            What jemalloc keeps of its own (about 2 MiB) is ordinary memory beside the slab.
 *
 * Memory comes in huge pages where the system has them, is first touched by several threads at once, and on the device's NUMA node where
 * the system says which that is: sysfs and mbind, which need no library (hwloc reads the same file).
 *
 * jemalloc is the program's own where it is linked with one or preloads it; else the system's is loaded. Debian's cannot be loaded into a
 * process that was not started with it (it wants more static thread-local storage than is left): bp_pinned_statistics.because says so, and what to do.
 *
 * Thread safety: any thread. Capture: allocating may pin, which drivers refuse while capturing; freeing a planned piece unpins.
 *
 * Sources: jemalloc's extent hooks; for huge pages, parallel first touch and registering afterwards instead of cuMemHostAlloc:
 * ai-dynamo/dynamo 13710. */
#ifndef BUCKETPOOL_PINNED_H
#define BUCKETPOOL_PINNED_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_pinned bp_pinned;

/** Who serves small pieces. BP_PINNED_AUTO: jemalloc, where that can be had, else plain. BP_PINNED_JEMALLOC: it or an error. */
typedef enum bp_pinned_allocator {
    BP_PINNED_AUTO = 0,
    BP_PINNED_JEMALLOC = 1,
    BP_PINNED_PLAIN = 2
} bp_pinned_allocator;

typedef struct bp_pinned_config {
    size_t size;
    bp_pinned_allocator allocator;
    uint64_t slab_bytes;    /**< for small pieces. 0: 64 MiB */
    uint64_t planned_bytes; /**< the least size of planned pieces. 0: 1 MiB */
    uint64_t most_bytes;    /**< of pinned memory altogether. 0: as the system allows */
    uint32_t touch_threads; /**< that touch new memory first, at most 64. 0: as many as processors, at most 8 */
    int32_t numa_node;      /**< preferred for new memory. -1: the device's, where known; else the threads' */
    int32_t no_huge_pages;  /**< 1: ordinary pages */
} bp_pinned_config;

/** Automatic, 64 MiB, 1 MiB, no limit of its own, threads and node as found. */
BP_API bp_status bp_pinned_config_init(bp_pinned_config *config, size_t size);

/** Allocates and pins nothing yet. Keeps its device. `config` NULL: the defaults. The caller owns it: bp_pinned_destroy.
 * Errors: BP_ERR_INVALID_ARGUMENT (names the field; a NUMA node that this process cannot use), BP_ERR_UNSUPPORTED (jemalloc was asked for
 * and cannot be had: why, and what to do), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pinned_create(bp_device *device, const bp_pinned_config *config, bp_pinned **pinned);
/** Gives up the caller's reference; others (offloads) keep theirs. Memory that is still allocated ends with the last one; what the device does not
 * unpin then stays mapped, as it may still write there. Accepts NULL and pointers to NULL; sets *pinned to NULL. */
BP_API void bp_pinned_destroy(bp_pinned **pinned);

/** `bytes` (not 0) at a multiple of `alignment`, a power of two up to 2 MiB (0: 64). What it holds is not specified. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY (the slab is full, most_bytes reached, the system has none: with the numbers),
 * BP_ERR_CAPTURE and what else the device reports. */
BP_API bp_status bp_pinned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address);
/** No copy may use it any more. Errors: BP_ERR_INVALID_ARGUMENT (nothing is allocated there: also freed twice), what the device reports
 * (then a planned piece is still allocated; it can be freed again, and is when `pinned` ends). NULL is fine. */
BP_API bp_status bp_pinned_free(bp_pinned *pinned, void *address);

typedef struct bp_pinned_statistics {
    size_t size;
    uint64_t pinned_bytes; /**< now: the slab and planned pieces */
    uint64_t peak_pinned_bytes;
    uint64_t planned_pieces, planned_bytes; /**< allocated now */
    uint64_t small_pieces, small_bytes;     /**< allocated now, as asked for */
    uint64_t slab_bytes;                    /**< 0: not needed yet */
    uint64_t slab_used_bytes;               /**< of it, with what size classes take: from mallctl with jemalloc */
    uint64_t huge_bytes; /**< of all memory so far, in huge pages when it was touched; 0: the system does not say */
    uint64_t touch_ns, pin_ns; /**< that first touches and pinning have taken so far */
    int32_t numa_node;         /**< -1: none chosen */
    /** Strings live as long as the pinned memory. */
    const char *allocator; /**< "jemalloc 5.3.0 (the program's)", "jemalloc 5.3.0 (libjemalloc.so.2)", "plain" */
    const char *because;   /**< why it is plain, and what would change that; "" where nothing else was asked for */
} bp_pinned_statistics;

/** Any thread, beside all other calls. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_pinned_statistics_get(const bp_pinned *pinned, bp_pinned_statistics *statistics);

#ifdef __cplusplus
}
#endif
#endif
