/** @file
 * The cuda device: slabs, streams and events of one GPU, through the driver that the machine has.
 *
 * The driver is found at run time; a program that links this library starts and works on machines without one, where creating the
 * device is BP_ERR_NO_DEVICE. Works with the CUDA runtime of the same process: it uses the device's primary context, and no call leaves
 * another context current than it found.
 *
 * Slabs are virtual memory: an address range that stays, with one physical allocation mapped into it. The allocation is made as NCCL
 * makes its own, so that it can be registered: pinned device memory, exportable as a file descriptor and, where the driver permits, as
 * a fabric handle; sizes and addresses multiples of the recommended granularity and of the multicast granularity; accessible to the
 * device and to its peers. Memory of bp_pool is never served to the host: use bp_stream_copy.
 *
 * Streams: bp_stream_create makes non-blocking ones, from a pool of those that were destroyed; bp_stream_import takes a CUstream or
 * cudaStream_t as an integer. The legacy default stream (0 or 1) can be imported, the per-thread one (2) not: it is another stream on
 * every thread. Streams of another device are refused. Recording an event and waiting for one take a single driver call on threads that
 * have some context current, as threads of a runtime have; on others, and for the default stream, the context is made current around it.
 *
 * Capture: bp_stream_call, fill, copy, waits and records may be captured; what synchronises, maps, allocates or
 * frees is refused by the driver, and the error says so (BP_ERR_CAPTURE). bp_graph_* in device.h captures. */
#ifndef BUCKETPOOL_CUDA_H
#define BUCKETPOOL_CUDA_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What slabs are made of.
 * BP_CUDA_VIRTUAL: as above. BP_CUDA_PLAIN: cuMemAlloc, where legacy CUDA IPC is needed; such memory cannot be unmapped and mapped
 * again, nor registered as a window. */
typedef enum bp_cuda_memory { BP_CUDA_VIRTUAL = 0, BP_CUDA_PLAIN = 1 } bp_cuda_memory;

typedef struct bp_cuda_config {
    size_t size;
    int32_t ordinal;    /**< of the device, as the driver counts (CUDA_VISIBLE_DEVICES applies) */
    const char *driver; /**< library of the driver, a path or a name for dlopen; NULL: "libcuda.so.1" */
    bp_cuda_memory memory;
    uint64_t memory_bytes; /**< commits beyond it are BP_ERR_NO_DEVICE_MEMORY. 0: what the device has */
    int32_t no_fabric;     /**< 1: never ask for fabric handles */
} bp_cuda_config;

/** Device 0, the machine's driver, virtual memory. */
BP_API bp_status bp_cuda_config_init(bp_cuda_config *config, size_t size);

/** `config` NULL: the defaults. The caller owns the device: bp_device_destroy. The current context stays as it was.
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_DEVICE (no driver, too old, no GPU, no such ordinal: the detail tells which),
 * BP_ERR_UNSUPPORTED (a device without virtual memory management when that is asked for),
 * BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY. */
BP_API bp_status bp_device_create_cuda(const bp_cuda_config *config, bp_device **device);

/** A GPU, as it was found. */
typedef struct bp_cuda_info {
    char name[64];          /**< "NVIDIA H200" */
    int32_t ordinal;        /**< as the driver counts */
    int32_t driver_version; /**< 13000: CUDA 13.0 */
    int32_t compute_major, compute_minor;
    int32_t handle_types;   /**< that slabs are exportable as: bits 1 (file descriptor) and 8 (fabric); 0: none */
    int32_t rdma;           /**< 1: slabs are made for GPUDirect RDMA */
    int32_t peers;          /**< other devices that may access slabs */
    int32_t stream_ordered; /**< 1: dynamic requests use the driver's stream-ordered allocator */
    uint64_t recommended_granularity, multicast_granularity; /**< bytes; 0: no multicast */
    uint64_t total_bytes;                                    /**< of memory */
} bp_cuda_info;

/** Lives as long as the device and never changes. NULL: no device, or not a cuda device. Any thread, also while capturing. */
BP_API const bp_cuda_info *bp_cuda_get_info(const bp_device *device);

#ifdef __cplusplus
}
#endif
#endif
