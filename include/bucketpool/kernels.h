/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * For libraries that compute on bucketpool's devices: their own kernels on a cuda device, the current context, and
 * checks of devices and streams. bucketpool-logprob is built on it.
 *
 * Thread safety: any function, any thread. Capture: launches may be captured; functions that load code say so. */
#ifndef BUCKETPOOL_KERNELS_H
#define BUCKETPOOL_KERNELS_H

#include <bucketpool/cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/** 1: the device was made by the parent of this forked child and cannot be used (device.h). */
BP_API int bp_device_is_inherited(const bp_device *device);

/** BP_OK if work for `device` may be enqueued on the stream; else BP_ERR_INVALID_ARGUMENT: NULL, destroyed (named), of another device
 * (both named). `function`: the caller's name, for the message. */
BP_API bp_status bp_stream_check(const bp_stream *stream, const bp_device *device, const char *function);

/* ---- for libraries that use the current context ------------------------------------------------------------------------ */

/** Makes the device's primary context current on the calling thread, for calls into the CUDA runtime and libraries on top of it. Leaving
 * restores the earlier context, even if another one was made current in between. Pairs nest; leave on the thread that entered. No effect
 * on devices other than cuda, with BP_OK. */
typedef struct bp_cuda_scope {
    const void *entered; /* internal; NULL: not entered */
} bp_cuda_scope;

/** Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_DEVICE: the scope was not entered, and *scope is not written. */
BP_API bp_status bp_cuda_enter(const bp_device *device, bp_cuda_scope *scope);
BP_API void bp_cuda_leave(bp_cuda_scope *scope);

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

/** Number of multiprocessors; 0 for other devices than cuda. */
BP_API uint32_t bp_cuda_multiprocessors(const bp_device *device);

/** Kernels on the device, for client libraries that bring their code. */
typedef struct bp_cuda_module bp_cuda_module;
typedef struct bp_cuda_kernel bp_cuda_kernel;

/** Loads a fatbin, a cubin or PTX. The caller owns a reference to the module, which keeps its device alive: bp_cuda_module_destroy. Calls with
 * the same address share one module of the device, which is loaded by the first: the image must not change while there is one. Not while
 * capturing, unless the image is loaded. Errors: BP_ERR_INVALID_ARGUMENT (not a cuda device; an image of another format),
 * BP_ERR_UNSUPPORTED (no code for this GPU in the image; code or PTX of a newer driver, both named), BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE,
 * BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
/** Drops the reference; the last one unloads the module. Launched work must be complete, and graphs with its kernels destroyed. Accepts NULL and pointers to NULL; sets *module to NULL. */
BP_API void bp_cuda_module_destroy(bp_cuda_module **module);

/** Finds a kernel by its name in the image; the same name gives the same kernel. It lives as long as the module. The code is loaded here,
 * so that the first launch may be captured (drivers load kernels lazily: CUDA programming guide, lazy loading). Any thread. Errors:
 * BP_ERR_INVALID_ARGUMENT (unknown name), BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);

/** Allows launches of the kernel with all the shared memory that the GPU has for a block, instead of 48 KiB, and prefers shared memory to L1
 * cache. *bytes: the most dynamic shared memory of a launch. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes);

typedef struct bp_cuda_grid {
    uint32_t blocks[3], threads[3];
    uint32_t shared_bytes; /* dynamic shared memory per block */
} bp_cuda_grid;

/** Launches a kernel in stream order; may be captured. `arguments` point to the kernel's parameter values, in order; they are copied. One
 * driver call if the thread has a current context from which the driver launches; else the device's context is made current around it.
 * Allocates nothing. Any thread. Errors: BP_ERR_INVALID_ARGUMENT (another device's stream, an empty grid), BP_ERR_CAPTURE, BP_ERR_DEVICE
 * (a grid that the GPU does not support; names kernel and sizes). */
BP_API bp_status bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments,
                                bp_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
