/* Devices as the project's other libraries see them: checks, the current context, kernels. Their symbols are exported for these libraries
 * alone (BUCKETPOOL_PRIVATE in bucketpool.map) and change without notice. */
#ifndef BP_DEVICES_CLIENTS_H
#define BP_DEVICES_CLIENTS_H

#include <bucketpool/cuda.h>

/* 1: this process was forked from the one that made the device, which is of no use here: see device.h. */
BP_API int bp_device_is_inherited(const bp_device *device);

/* BP_OK where work for `device` may be put on the stream; else BP_ERR_INVALID_ARGUMENT: NULL, destroyed (by name), of another device
 * (names both). `function`: the caller's name, for the message. */
BP_API bp_status bp_stream_check(const bp_stream *stream, const bp_device *device, const char *function);

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
 * BP_ERR_UNSUPPORTED (no code for this GPU in the image; PTX that the driver cannot compile),
 * BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
/* Work that was launched must be done, graphs that hold its kernels gone. Accepts NULL and pointers to NULL; sets *module to NULL. */
BP_API void bp_cuda_module_destroy(bp_cuda_module **module);

/* A kernel by the name it has in the image, the same for each call with that name; lives as long as the module. It is loaded here, not by
 * its first launch, which may be captured therefore (drivers load kernels lazily: CUDA programming guide, lazy loading). Any thread.
 * Errors: BP_ERR_INVALID_ARGUMENT (there is none: names it), BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, BP_ERR_CAPTURE, BP_ERR_DEVICE. */
BP_API bp_status bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);

typedef struct bp_cuda_grid {
    uint32_t blocks[3], threads[3];
    uint32_t shared_bytes; /* dynamic shared memory of a block */
} bp_cuda_grid;

/* One launch in stream order; may be captured. `arguments` point to the values of the kernel's parameters, in order; they are copied. Takes
 * one driver call where the device's context is current or any other with which the driver launches; else the context is made current
 * around it. Allocates nothing. Any thread. Errors: BP_ERR_INVALID_ARGUMENT (another device's stream, an empty grid), BP_ERR_CAPTURE,
 * BP_ERR_DEVICE (a grid that the GPU does not run: names kernel and sizes). */
BP_API bp_status bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments,
                                bp_stream *stream);

#endif
