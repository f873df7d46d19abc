/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The cuda device: slabs, streams and events of one NVIDIA GPU.
 *
 * The driver is loaded at run time. A program that links this library also starts on machines without a driver, where
 * creating the device is BP_ERR_NO_DEVICE. The device uses the primary context, as the CUDA runtime of the same
 * process does; every call leaves the current context unchanged.
 *
 * Slabs are virtual memory: a fixed address range with one physical allocation. The allocation has the properties of
 * ncclMemAlloc, so that NCCL can register it: pinned device memory; exportable as a file descriptor and, where the
 * driver permits it, as a fabric handle; sizes and addresses in multiples of the recommended granularity and of the
 * multicast granularity; accessible by the device and its peers. The host cannot access it: use bp_stream_copy.
 *
 * Streams: bp_stream_create returns non-blocking streams, from a pool of destroyed ones. bp_stream_import takes a
 * CUstream or cudaStream_t as an integer. The legacy default stream (0 or 1) can be imported; the per-thread default
 * stream (2) cannot, because it is another stream on every thread. A stream of another device is refused. Recording
 * and waiting take one driver call on threads with a current context; on other threads, and for the legacy default
 * stream, the primary context is made current meanwhile.
 *
 * Capture: bp_stream_call, fill, copy, waits and records can be captured. The driver refuses synchronization,
 * mapping, allocation and free during a capture (BP_ERR_CAPTURE). bp_graph_begin in device.h starts a capture. */
#ifndef BUCKETPOOL_CUDA_H
#define BUCKETPOOL_CUDA_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The memory of slabs.
 * - BP_CUDA_VIRTUAL: virtual memory management, as above.
 * - BP_CUDA_PLAIN: cuMemAlloc, for legacy CUDA IPC. Such slabs cannot be offloaded or registered as windows. */
typedef enum bp_cuda_memory { BP_CUDA_VIRTUAL = 0, BP_CUDA_PLAIN = 1 } bp_cuda_memory;

typedef struct bp_cuda_config {
    size_t size;
    int32_t ordinal;    /**< index of the device in the driver (CUDA_VISIBLE_DEVICES applies) */
    const char *driver; /**< path or name of the driver's library for dlopen; NULL: "libcuda.so.1" */
    bp_cuda_memory memory;
    /** limit of slabs; commits beyond it are BP_ERR_NO_DEVICE_MEMORY. 0: the memory of the device */
    uint64_t memory_bytes;
    int32_t no_fabric; /**< 1: never ask for fabric handles */
} bp_cuda_config;

/** Sets the defaults: device 0, libcuda.so.1, virtual memory. Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_cuda_config_init(bp_cuda_config *config, size_t size);

/** Creates a cuda device. `config` NULL: the defaults. The caller owns the device: bp_device_destroy.
 *
 * Errors: BP_ERR_NO_DEVICE (no driver, a driver that is too old, no GPU, no such ordinal: the message says which),
 * BP_ERR_UNSUPPORTED (a device without virtual memory management), BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY,
 * BP_ERR_NO_DEVICE_MEMORY. */
BP_API bp_status bp_device_create_cuda(const bp_cuda_config *config, bp_device **device);

/** Properties of a cuda device. */
typedef struct bp_cuda_info {
    char name[64];          /**< "NVIDIA H200" */
    int32_t ordinal;        /**< index of the device in the driver */
    int32_t driver_version; /**< 13000: CUDA 13.0 */
    int32_t compute_major, compute_minor;
    /** handle types of slabs: bits 1 (file descriptor) and 8 (fabric); 0: not exportable */
    int32_t handle_types;
    int32_t rdma;           /**< 1: slabs support GPUDirect RDMA */
    int32_t peers;          /**< number of other devices that can access slabs */
    int32_t stream_ordered; /**< 1: dynamic requests use the driver's stream-ordered allocator */
    uint64_t recommended_granularity, multicast_granularity; /**< bytes; 0: no multicast */
    uint64_t total_bytes;                                    /**< memory of the device */
} bp_cuda_info;

/** Properties of a device; NULL for NULL and for other devices than cuda. Lives as long as the device and never
 * changes. Any thread, also during a capture. */
BP_API const bp_cuda_info *bp_cuda_get_info(const bp_device *device);

#ifdef __cplusplus
}
#endif
#endif
