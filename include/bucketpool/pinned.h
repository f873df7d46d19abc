/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Pinned host memory: page-locked memory, which a device copies to and from at full speed.
 *
 * Pinning is slow (seconds for tens of GiB), so pinned memory is reused:
 * - Planned pieces: at least config.planned_bytes. Each is a separate mapping of whole pages, without rounding to a
 *   size class; freeing it returns it to the system.
 * - Small pieces: all others. They come from one slab of config.slab_bytes, pinned at the first allocation, and are
 *   managed by jemalloc if the process has it, else by a plain allocator of whole pages. The slab never grows: when
 *   it is full, allocations are BP_ERR_NO_HOST_MEMORY. Metadata of jemalloc (about 2 MiB) is ordinary memory outside
 *   the slab.
 *
 * New memory uses huge pages where available, is first touched by several threads, and is on the NUMA node of the
 * device where sysfs has it.
 *
 * jemalloc is that of the program, linked or preloaded; else the library of the system is loaded. Debian's library
 * cannot be loaded by dlopen, because it needs more static thread-local storage than is left:
 * bp_pinned_statistics.because says so and what to do.
 *
 * Thread safety: any thread. Capture: allocation may pin, and freeing a planned piece unpins; drivers refuse both
 * during a capture.
 *
 * Sources: extent hooks of jemalloc; ai-dynamo/dynamo 13710 for huge pages, parallel first touch, and registering
 * afterwards instead of cuMemHostAlloc. */
#ifndef BUCKETPOOL_PINNED_H
#define BUCKETPOOL_PINNED_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_pinned bp_pinned;

/** The allocator of small pieces. BP_PINNED_AUTO: jemalloc if available, else plain. BP_PINNED_JEMALLOC: jemalloc or
 * an error. */
typedef enum bp_pinned_allocator {
    BP_PINNED_AUTO = 0,
    BP_PINNED_JEMALLOC = 1,
    BP_PINNED_PLAIN = 2
} bp_pinned_allocator;

typedef struct bp_pinned_config {
    size_t size;
    bp_pinned_allocator allocator;
    uint64_t slab_bytes;    /**< slab of small pieces. 0: 64 MiB */
    uint64_t planned_bytes; /**< smallest planned piece. 0: 1 MiB */
    uint64_t max_bytes;     /**< limit of all pinned memory. 0: no limit */
    /** threads for the first touch of new memory, at most 64. 0: one for each processor, at most 8 */
    uint32_t touch_threads;
    /** preferred NUMA node of new memory. -1: that of the device if known, else that of the thread */
    int32_t numa_node;
    int32_t no_huge_pages; /**< 1: ordinary pages */
} bp_pinned_config;

/** Sets the defaults: automatic allocator, a slab of 64 MiB, planned pieces from 1 MiB, no limit. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_pinned_config_init(bp_pinned_config *config, size_t size);

/** Creates a source of pinned memory; nothing is allocated or pinned yet. Adds a reference to the device. `config`
 * NULL: the defaults. The caller owns it: bp_pinned_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (the message names the field; a NUMA node that this process cannot use),
 * BP_ERR_UNSUPPORTED (jemalloc was required and is not available: the message says why and what to do),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pinned_create(bp_device *device, const bp_pinned_config *config, bp_pinned **pinned);
/** Drops the caller's reference; offloads have other ones. Memory that is still allocated is freed with the last
 * reference. Memory that the device fails to unpin stays mapped, because the device may still write to it. Accepts
 * NULL and a pointer to NULL; sets *pinned to NULL. */
BP_API void bp_pinned_destroy(bp_pinned **pinned);

/** Allocates `bytes` (not 0) at a multiple of `alignment`, a power of two up to 2 MiB (0: 64). The contents are
 * undefined.
 *
 * Errors: BP_ERR_NO_HOST_MEMORY (the slab is full, max_bytes is reached, or the system has none; with the numbers),
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_CAPTURE, other errors of the device. */
BP_API bp_status bp_pinned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address);
/** Frees memory; no copy may use it any more. Accepts NULL.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (nothing is allocated there, as after a double free), errors of the device (a
 * planned piece is then still allocated; it can be freed again, and is freed with `pinned`). */
BP_API bp_status bp_pinned_free(bp_pinned *pinned, void *address);

typedef struct bp_pinned_statistics {
    size_t size;
    uint64_t pinned_bytes; /**< slab and planned pieces now */
    uint64_t peak_pinned_bytes;
    uint64_t planned_pieces, planned_bytes; /**< allocated now */
    uint64_t small_pieces, small_bytes;     /**< allocated now, without rounding */
    uint64_t slab_bytes;                    /**< 0: not allocated yet */
    uint64_t slab_used_bytes;               /**< used part of the slab, with rounding; from mallctl with jemalloc */
    /** memory in huge pages at its first touch, of all memory so far; 0 if the system does not report it */
    uint64_t huge_bytes;
    uint64_t touch_ns, pin_ns; /**< time of first touches and of pinning so far */
    int32_t numa_node;         /**< -1: none chosen */
    /** Strings live as long as the pinned memory. */
    const char *allocator; /**< "jemalloc 5.3.0 (the program's)", "jemalloc 5.3.0 (libjemalloc.so.2)", "plain" */
    const char *because;   /**< reason for the plain allocator, and how to change it; "" if it was asked for */
} bp_pinned_statistics;

/** Reads the counters. Any thread, at any time. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_pinned_statistics_get(const bp_pinned *pinned, bp_pinned_statistics *statistics);

#ifdef __cplusplus
}
#endif
#endif
