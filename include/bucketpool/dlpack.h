/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Export of a pool's memory to other libraries, as DLPack tensors without ownership.
 * @code
 * bp_export_config config;
 * bp_export_config_init(&config, sizeof config);
 * config.id = id;
 * bp_pool_export(pool, &config, &managed); // hand it to an importer, or bp_export_delete(&managed)
 * @endcode
 *
 * An exported tensor keeps the memory mapped, also after bp_pool_destroy, so its addresses never become invalid. It
 * holds no reference to the request: acquire and release work as before, and after the release the tensor has the
 * bytes of the next request in the buffer. A tensor that is saved for longer, as in an autograd graph, delays no
 * reuse.
 *
 * The importer calls the deleter of the tensor, from any thread, also after the runtime of its language has ended.
 * The deleter is C. It takes a mutex; the last one of a destroyed pool also waits for the work of the device and
 * frees the memory, so it must not be called during a capture or from a function of a stream.
 *
 * Thread safety: any thread, at any time. Streams: the caller orders work. Offloaded memory (offload.h) is
 * inaccessible through tensors too, as is released memory in guard mode.
 *
 * Source of the structs: DLPack specification 1.0, github.com/dmlc/dlpack. */
#ifndef BUCKETPOOL_DLPACK_H
#define BUCKETPOOL_DLPACK_H

#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_export_config {
    size_t size;
    uint32_t id;       /**< a planned or persistent request */
    bp_dtype dtype;    /**< dtype of the elements; BP_DTYPE_NONE: the storage dtype of the request */
    int32_t versioned; /**< 1: a DLManagedTensorVersioned of version 1.0; 0: a DLManagedTensor */
} bp_export_config;

/** Sets the defaults: request 0, storage dtype, not versioned. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_export_config_init(bp_export_config *config, size_t size);

/** Exports a one-dimensional tensor over all bytes of a request, on kDLCPU or kDLCUDA. The importer calls its deleter;
 * without an importer, call bp_export_delete.
 *
 * Errors:
 * - BP_ERR_INVALID_ARGUMENT: an unknown id, bytes that are not a multiple of the element size.
 * - BP_ERR_SCHEDULE: the request has no memory now, for example because its group is offloaded.
 * - BP_ERR_UNSUPPORTED: a dtype or device that DLPack lacks, a dynamic request (its memory is freed on release).
 * - BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pool_export(bp_pool *pool, const bp_export_config *config, void **managed);

/** Deletes a tensor of bp_pool_export that no importer took. Accepts NULL and a pointer to NULL; sets *managed to
 * NULL. */
BP_API void bp_export_delete(void **managed);

#ifdef __cplusplus
}
#endif
#endif
