/* The cuda device: slabs, streams and events of one GPU, through the driver that the machine has.
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

#include <bucketpool/cuda_driver.h>
#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What slabs are made of.
 * BP_CUDA_VIRTUAL: as above. BP_CUDA_PLAIN: cuMemAlloc, where legacy CUDA IPC is needed; such memory cannot be unmapped and mapped
 * again, nor registered as a window. */
typedef enum bp_cuda_memory { BP_CUDA_VIRTUAL = 0, BP_CUDA_PLAIN = 1 } bp_cuda_memory;

typedef struct bp_cuda_config {
    size_t size;
    int32_t ordinal;              /* of the device, as the driver counts (CUDA_VISIBLE_DEVICES applies) */
    const bp_cuda_driver *driver; /* copied; NULL: bp_cuda_driver_load(NULL) */
    bp_cuda_memory memory;
    uint64_t memory_bytes; /* commits beyond it are BP_ERR_NO_DEVICE_MEMORY. 0: what the device has */
    int32_t no_fabric;     /* 1: never ask for fabric handles */
} bp_cuda_config;

/* Device 0, the machine's driver, virtual memory. */
BP_API bp_status bp_cuda_config_init(bp_cuda_config *config, size_t size);

/* `config` NULL: the defaults. The caller owns the device: bp_device_destroy. The current context stays as it was.
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_DEVICE (no driver, too old, no GPU, no such ordinal: the detail tells which),
 * BP_ERR_UNSUPPORTED (a device without virtual memory management when that is asked for; an incomplete driver table),
 * BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY. */
BP_API bp_status bp_device_create_cuda(const bp_cuda_config *config, bp_device **device);

/* What was found. */
typedef struct bp_cuda_info {
    size_t size;
    char name[64];          /* "NVIDIA H200" */
    int32_t ordinal;        /* as the driver counts */
    int32_t driver_version; /* 13000: CUDA 13.0 */
    int32_t compute_major, compute_minor;
    int32_t handle_types;   /* that slabs are exportable as: bits 1 (file descriptor) and 8 (fabric); 0: none */
    int32_t rdma;           /* 1: slabs are made for GPUDirect RDMA */
    int32_t peers;          /* other devices that may access slabs */
    int32_t stream_ordered; /* 1: dynamic requests use the driver's stream-ordered allocator */
    uint64_t recommended_granularity, multicast_granularity; /* 0: no multicast */
    uint64_t total_bytes;
} bp_cuda_info;

/* Errors: BP_ERR_INVALID_ARGUMENT (not a cuda device). */
BP_API bp_status bp_cuda_info_get(const bp_device *device, bp_cuda_info *info);

/* ---- for libraries that use the current context ------------------------------------------------------------------------ */

/* Between the two the device's primary context is current on the calling thread; afterwards that is which was before, even where something
 * in between has made another one current. For calls into the CUDA runtime and what is built on it. Pairs nest; leave on the thread that
 * entered. With another device nothing happens, and BP_OK. */
typedef struct bp_cuda_scope {
    const void *entered; /* the library's; NULL: there is nothing to leave */
} bp_cuda_scope;

/* Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_DEVICE: then there is nothing to leave, and *scope is not written. */
BP_API bp_status bp_cuda_enter(const bp_device *device, bp_cuda_scope *scope);
BP_API void bp_cuda_leave(bp_cuda_scope *scope);

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

/* Code on the device: for clients of the library that bring kernels of their own. */
typedef struct bp_cuda_module bp_cuda_module;
typedef struct bp_cuda_kernel bp_cuda_kernel;

/* Loads a fatbin, a cubin or PTX; `image` is read during the call. The caller owns the module, which keeps its device:
 * bp_cuda_module_destroy. Not while capturing. Errors: BP_ERR_INVALID_ARGUMENT (not a cuda device; an image that is none of these),
 * BP_ERR_UNSUPPORTED (no code for this GPU in the image; PTX that the driver cannot compile; a driver table of version 1),
 * BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
/* Work that was launched must be done, graphs that hold its kernels gone. Accepts NULL and pointers to NULL; sets *module to NULL. */
BP_API void bp_cuda_module_destroy(bp_cuda_module **module);

/* A kernel by the name it has in the image, the same for each call with that name; lives as long as the module. It is loaded here, not by
 * its first launch, which may be captured therefore (drivers load kernels lazily: CUDA programming guide, lazy loading). Any thread.
 * Errors: BP_ERR_INVALID_ARGUMENT (there is none: names it), BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);

typedef struct bp_cuda_grid {
    size_t size;
    uint32_t blocks[3], threads[3];
    uint32_t shared_bytes; /* dynamic shared memory of a block */
} bp_cuda_grid;

/* One launch in stream order; may be captured. `arguments` point to the values of the kernel's parameters, in order; they are copied. Takes
 * one driver call where the device's context is current or any other with which the driver launches; else the context is made current
 * around it. Allocates nothing. Any thread. Errors: BP_ERR_INVALID_ARGUMENT (another device's stream, an empty grid), BP_ERR_CAPTURE,
 * BP_ERR_DEVICE (a grid that the GPU does not run: names kernel and sizes). */
BP_API bp_status bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments,
                                bp_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
