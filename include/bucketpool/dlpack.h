/** @file
 * Export of a pool's memory to other libraries: DLPack tensors that do not own it.
 *
 * An exported tensor keeps the memory mapped, so that no address in it ever points at nothing, also after bp_pool_destroy; it holds no buffer.
 * The request is acquired and released as usual, and after its release the tensor's bytes are those of whoever has the buffer next. So who
 * saves a tensor for longer (a graph of automatic differentiation) delays no reuse, and reads what is there then.
 *
 * The tensor's deleter is called by whoever took it, from any thread, also when the language that the caller is written in is gone: it is C,
 * takes a mutex and, as the last of a destroyed pool, waits for the device's work and gives the memory back. Not to be called while a stream is
 * being captured then, nor by a stream's own call.
 *
 * Thread safety: any thread, beside all other calls. Streams: none; ordering work is the caller's business.
 * Memory that was offloaded (offload.h) is not there for tensors either, and guard mode makes released memory inaccessible.
 * Source of the structs: the DLPack specification 1.0, github.com/dmlc/dlpack. */
#ifndef BUCKETPOOL_DLPACK_H
#define BUCKETPOOL_DLPACK_H

#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_export_config {
    size_t size;
    uint32_t id;       /**< a request whose memory does not come and go */
    bp_dtype dtype;    /**< of the tensor's elements; BP_DTYPE_NONE: as the request is stored */
    int32_t versioned; /**< 1: a DLManagedTensorVersioned of version 1.0; 0: a DLManagedTensor */
} bp_export_config;

/** Request 0 as stored, without a version. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_export_config_init(bp_export_config *config, size_t size);

/** Exports a tensor of one dimension over all bytes of a request, on kDLCPU or kDLCUDA. The importer calls its deleter, or bp_export_delete.
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id, bytes that are no whole number of elements), BP_ERR_SCHEDULE (it has no memory now, also as
 * its group is offloaded), BP_ERR_UNSUPPORTED (a dtype that DLPack lacks, a dynamic request, whose memory goes with its release, a device that
 * DLPack lacks), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pool_export(bp_pool *pool, const bp_export_config *config, void **managed);

/** Calls the deleter of a tensor of bp_pool_export. Accepts NULL and pointers to NULL; sets *managed to NULL. */
BP_API void bp_export_delete(void **managed);

#ifdef __cplusplus
}
#endif
#endif
