/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * An allocator of segments for PyTorch: the two functions that torch.cuda.memory.CUDAPluggableAllocator loads, and
 * their configuration, which is set before because these functions only get sizes.
 *
 * PyTorch asks for whole segments (2 MiB for small tensors, 20 MiB and more for others, multiples of 2 MiB) and
 * divides them itself. Planned offsets do not apply; buckets are better served by a pool. This allocator gives
 * PyTorch tensors memory of one slab with a known size, registered like the pool's other slabs. Use it for a
 * torch.cuda.MemPool; docs/guides/pytorch_allocator.md explains how, and why not for all of PyTorch.
 *
 * A process serves each device from one source:
 * - a persistent request of a pool, which bp_registration_create registers with the pool's slabs
 * - a separate slab of a device
 * - BUCKETPOOL_TORCH_BYTES=8g (k, m, g, t or bytes) in the environment, for devices that were not configured
 *
 * Thread safety: any thread. There is a lock for each device, held while the host waits for the device. Nothing
 * prints or exits: a failed allocation is NULL, which PyTorch reports as out of memory, and bp_torch_statistics_get
 * has the reason.
 *
 * Source: torch/csrc/cuda/CUDAPluggableAllocator.cpp and c10/cuda/CUDACachingAllocator.cpp of PyTorch. */
#ifndef BUCKETPOOL_TORCH_ALLOCATOR_H
#define BUCKETPOOL_TORCH_ALLOCATOR_H

#include <bucketpool/device.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_TORCH_DEVICES 64 /**< device indices are less than this */

typedef struct bp_torch_config {
    size_t size;
    int32_t ordinal; /**< index of the device in PyTorch and in the driver */
    /** A pool on the device and one of its persistent requests, which is not live; it is acquired until bp_torch_stop. */
    bp_pool *pool;
    uint32_t request;
    /** Without a pool: the cuda device (NULL: a new one) and the bytes of a separate slab, rounded up to the
     * granularity of the device. */
    bp_device *device;
    uint64_t bytes;
} bp_torch_config;

/** Sets the defaults: device 0, no pool and no bytes. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_torch_config_init(bp_torch_config *config, size_t size);

/** Starts to serve a device through bp_torch_malloc. Call it before the first allocation of PyTorch there; not during
 * a capture. Adds a reference to `device`; a pool must live until bp_torch_stop.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (the index, both or neither of pool and bytes, a request that is not persistent, a
 * device that is not cuda), BP_ERR_SCHEDULE (served already, the request is live), BP_ERR_MISMATCH (a device with
 * another index), BP_ERR_NO_DEVICE, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_NO_HOST_MEMORY, errors of the device. */
BP_API bp_status bp_torch_serve(const bp_torch_config *config);

/** Waits for the work of the device, frees its memory and stops serving it.
 *
 * Errors: BP_ERR_SCHEDULE (not served; segments are still allocated, with their number), BP_ERR_CAPTURE, errors of
 * the device. After an error the device is served as before. */
BP_API bp_status bp_torch_stop(int32_t ordinal);

typedef struct bp_torch_statistics {
    size_t size;
    uint64_t bytes; /**< bytes available for segments */
    uint64_t live_bytes, peak_live_bytes;
    uint64_t live_segments, segments; /**< segments allocated now, and in all */
    uint64_t waits;                   /**< waits of streams for earlier users of memory */
    uint64_t refused;                 /**< allocations that returned NULL */
    uint64_t strays;                  /**< frees of unknown memory */
    char because[256];                /**< reason of the last NULL; "" */
} bp_torch_statistics;

/** Reads the counters of a device. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_SCHEDULE (the device is not served; with
 * the reason if BUCKETPOOL_TORCH_BYTES failed). */
BP_API bp_status bp_torch_statistics_get(int32_t ordinal, bp_torch_statistics *statistics);

/* ---- functions that PyTorch loads ------------------------------------------------------------------------------------ */

/** Allocates a segment for work on `stream` (cudaStream_t); NULL if that is not possible. `stream` is ordered after
 * all earlier users of the memory. The host waits only if all that is left is memory without a usable release event
 * (freed during a capture, or no event could be recorded). Addresses are multiples of 512; a separate slab begins at
 * a multiple of 2 MiB, so that the segments of PyTorch do too. On a captured stream only memory that was never used
 * is returned, because a graph cannot wait for work outside. */
BP_API void *bp_torch_malloc(size_t bytes, int device, void *stream);

/** Frees a segment for reuse after the present work of `stream`. PyTorch passes the stream of the allocation and has
 * waited for other streams that the tensors recorded. Memory that was allocated during a capture is reused last,
 * because graphs run on any stream. Unknown memory is counted and ignored. */
BP_API void bp_torch_free(void *address, size_t bytes, int device, void *stream);

#ifdef __cplusplus
}
#endif
#endif
