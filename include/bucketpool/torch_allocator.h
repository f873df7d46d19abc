/** @file
 * Segments of PyTorch's caching allocator from memory of this library: the two functions that torch.cuda.memory.CUDAPluggableAllocator loads,
 * and what has to be said before, because they are given sizes only.
 *
 * PyTorch asks for whole segments (2 MiB for small tensors, 20 MiB and more for others, multiples of 2 MiB) and divides them itself: planned
 * offsets are not honoured, and buckets are better taken from a pool. What it is for: tensors of PyTorch in memory that this library made, as
 * one slab, of a size that is known, registered with the pool's other slabs. Use it for a torch.cuda.MemPool; docs/guides/pytorch_allocator.md says how
 * and why not for all of PyTorch.
 *
 * A process serves each device from one of these:
 *   a persistent request of a pool: bp_registration_create registers it, as every slab of the pool
 *   so many bytes of a device, a slab of its own
 *   the environment: BUCKETPOOL_TORCH_BYTES=8g (k, m, g, t or plain bytes), for each device that is asked for and was not configured
 *
 * Thread safety: any thread; a lock for each device, held while the host waits for that device. Nothing prints or exits: an allocation that
 * cannot be had is NULL, which PyTorch takes for out of memory, and bp_torch_statistics_get tells why.
 *
 * Source: torch/csrc/cuda/CUDAPluggableAllocator.cpp and c10/cuda/CUDACachingAllocator.cpp of PyTorch. */
#ifndef BUCKETPOOL_TORCH_ALLOCATOR_H
#define BUCKETPOOL_TORCH_ALLOCATOR_H

#include <bucketpool/device.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_TORCH_DEVICES 64 /**< indices of devices are below */

typedef struct bp_torch_config {
    size_t size;
    int32_t ordinal; /**< PyTorch's index of the device, which is the driver's */
    /** A pool on it, and a persistent request of it that nobody holds: held until bp_torch_stop. */
    bp_pool *pool;
    uint32_t request;
    /** Without a pool: bytes of a slab of its own, rounded up to the device's granularity, and the cuda device; NULL: one of its own. */
    bp_device *device;
    uint64_t bytes;
} bp_torch_config;

/** Device 0, nothing to serve from. */
BP_API bp_status bp_torch_config_init(bp_torch_config *config, size_t size);

/** From now on bp_torch_malloc serves the device. Before PyTorch's first allocation there; not while capturing. Keeps `device`; a pool must live
 * until bp_torch_stop. Errors: BP_ERR_INVALID_ARGUMENT (an index, neither pool nor bytes or both, a request that is not persistent, not a cuda
 * device), BP_ERR_SCHEDULE (served already; the request is held), BP_ERR_MISMATCH (a device of another index), BP_ERR_NO_DEVICE,
 * BP_ERR_NO_DEVICE_MEMORY, BP_ERR_NO_HOST_MEMORY, what the device reports. */
BP_API bp_status bp_torch_serve(const bp_torch_config *config);

/** Waits for the device's work, gives its memory back, and serves it no more. Errors: BP_ERR_SCHEDULE (not served; segments are out: how many),
 * BP_ERR_CAPTURE, what the device reports: then it is served as before. */
BP_API bp_status bp_torch_stop(int32_t ordinal);

typedef struct bp_torch_statistics {
    size_t size;
    uint64_t bytes; /**< that serve */
    uint64_t live_bytes, peak_live_bytes;
    uint64_t live_segments, segments; /**< now, and ever handed out */
    uint64_t waits;                   /**< of streams for others that had memory before */
    uint64_t refused;                 /**< allocations that were NULL */
    uint64_t strays;                  /**< frees of memory that was not handed out */
    char because[256];                /**< of the last refusal; "" */
} bp_torch_statistics;

/** Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_SCHEDULE (the device is not served: and why the environment did not help, where it was tried). */
BP_API bp_status bp_torch_statistics_get(int32_t ordinal, bp_torch_statistics *statistics);

/* ---- what PyTorch loads ---------------------------------------------------------------------------------------------- */

/** Memory for `bytes`, or NULL. `stream` (cudaStream_t) is ordered after everything that used the memory before; the host does not wait, but where
 * nothing else is left than memory of which nobody knows when its work is over (freed by a capture, or not markable). Addresses are multiples of
 * 512; a slab of its own begins at a multiple of 2 MiB, as segments of PyTorch do then. On a stream that is being captured only memory that
 * nobody used before, as a graph is not ordered after work outside. */
BP_API void *bp_torch_malloc(size_t bytes, int device, void *stream);

/** Memory that bp_torch_malloc returned may be handed out again to work after what `stream` has now: PyTorch passes the stream of the allocation,
 * and has waited for others that the tensors recorded. What was handed out to a capture is kept until nothing else is left, as graphs run on any
 * stream. Anything else is counted and left alone. */
BP_API void bp_torch_free(void *address, size_t bytes, int device, void *stream);

#ifdef __cplusplus
}
#endif
#endif
