/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack export of a pool's memory. Tensors are counted and may outlive the pool. */

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/cuda.h>
#include <bucketpool/dlpack.h>

#include <stdlib.h>

#include "allocators/report.h"
#include "allocators/residency.h"

/* ---- DLPack --------------------------------------------------------------------------------------------------------- */

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2 };
enum { CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_BFLOAT = 4, CODE_COMPLEX = 5, CODE_BOOL = 6 };

typedef struct dl_device {
    int32_t type, id;
} dl_device;

typedef struct dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_managed_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

/* ---- exported memory -------------------------------------------------------------------------------------------------- */

/* Reference-counted; owns the slabs if tensors outlive the pool. */
struct bp_exports {
    pthread_mutex_t mutex;
    uint64_t tensors;
    bool pool_is_gone;
    bp_process process; /* a forked child may delete tensors that its parent exported */
    bp_device *device;
    bp_slabs slabs;
};

typedef struct exported {
    union {
        dl_managed plain;
        dl_managed_versioned versioned;
    } as;
    bp_exports *exports;
    int64_t shape, stride;
} exported;

static void export_destroy(bp_exports *exports)
{
    bp_slabs_finish(&exports->slabs);
    bp_device_release(exports->device);
    pthread_mutex_destroy(&exports->mutex);
    free(exports);
}

static void export_give_back(exported *l)
{
    bp_exports *exports = l->exports;
    if (!bp_process_is_here(&exports->process))
        return;
    BP_KEEP_ERROR;
    pthread_mutex_lock(&exports->mutex);
    bool last = --exports->tensors == 0 && exports->pool_is_gone;
    pthread_mutex_unlock(&exports->mutex);
    if (last) { /* tensors may have work on unknown streams, and unmapping does not wait for it */
        (void)bp_device_synchronize(exports->device);
        export_destroy(exports);
    }
    free(l);
}

static void delete_plain(dl_managed *self)
{
    export_give_back((exported *)self);
}

static void delete_versioned(dl_managed_versioned *self)
{
    export_give_back((exported *)self);
}

void bp_export_pool_gone(bp_pool *pool)
{
    bp_exports *exports = pool->exports;
    if (exports == NULL) {
        bp_slabs_finish(&pool->slabs);
        return;
    }
    bp_device_retain(pool->device);
    pthread_mutex_lock(&exports->mutex);
    exports->device = pool->device;
    exports->slabs = pool->slabs;
    exports->pool_is_gone = true;
    bool unused = exports->tensors == 0;
    pthread_mutex_unlock(&exports->mutex);
    if (unused)
        export_destroy(exports);
}

static const bp_export_config export_config_defaults = {.size = sizeof export_config_defaults};

bp_status bp_export_config_init(bp_export_config *config, size_t size)
{
    return bp_struct_init("bp_export_config_init", config, size, &export_config_defaults,
                          sizeof export_config_defaults);
}

static bp_status choose_type(bp_dtype dtype, dl_dtype *type)
{
    static const uint8_t codes[BP_DTYPE_COUNT] = {
        [BP_DTYPE_FP64] = CODE_FLOAT,  [BP_DTYPE_FP32] = CODE_FLOAT,       [BP_DTYPE_FP16] = CODE_FLOAT,
        [BP_DTYPE_BF16] = CODE_BFLOAT, [BP_DTYPE_UINT8] = CODE_UINT,       [BP_DTYPE_UINT16] = CODE_UINT,
        [BP_DTYPE_UINT32] = CODE_UINT, [BP_DTYPE_UINT64] = CODE_UINT,      [BP_DTYPE_BOOL] = CODE_BOOL,
        [BP_DTYPE_INT8] = CODE_INT,    [BP_DTYPE_INT16] = CODE_INT,        [BP_DTYPE_INT32] = CODE_INT,
        [BP_DTYPE_INT64] = CODE_INT,   [BP_DTYPE_COMPLEX64] = CODE_COMPLEX};
    uint32_t bits = bp_dtype_bits(dtype);
    bool is_integer =
        dtype == BP_DTYPE_INT8 || dtype == BP_DTYPE_INT16 || dtype == BP_DTYPE_INT32 || dtype == BP_DTYPE_INT64;
    if (bits == 0 || (codes[dtype] == CODE_INT && !is_integer))
        return bp_fail(BP_ERR_UNSUPPORTED, "DLPack 1.0 has no %s; export the memory as uint8", bp_dtype_name(dtype));
    *type = (dl_dtype){.code = codes[dtype], .bits = dtype == BP_DTYPE_BOOL ? 8 : (uint8_t)bits, .lanes = 1};
    return BP_OK;
}

/* Fills the tensor, except for its context and deleter. */
static bp_status export_describe(const bp_pool *pool, const bp_export_config *config, dl_tensor *tensor, int64_t *numel)
{
    uint64_t bytes;
    if (config->id >= bp_request_count(pool))
        return bp_fail_unknown(pool, config->id);
    const bp_plan_request *request = &pool->requests[config->id];
    if (request->placement == BP_PLACE_DYNAMIC)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%s of %s, bucket %u is dynamic, and a release frees its memory under exported tensors; "
                       "plan it, or bind it as persistent",
                       bp_role_name((bp_role)request->role), request->unit, request->ordinal);
    BP_TRY(bp_pool_address(pool, config->id, &tensor->data, &bytes));
    for (uint32_t i = 0; i < pool->slabs.count; i++) { /* an offloaded slab keeps its address */
        const bp_slab *slab = &pool->slabs.slabs[i];
        if (bp_residency_is_closed(pool, i) && (uintptr_t)tensor->data - (uintptr_t)slab->address < slab->bytes)
            return bp_fail_offloaded(pool, config->id, i);
    }
    const bp_cuda_info *info = bp_cuda_get_info(pool->device);
    tensor->device = (dl_device){.type = DEVICE_CPU};
    if (!pool->device->traits.host_accessible) {
        if (info == NULL)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "memory of device %s cannot be exported: it belongs neither to the host nor to a GPU",
                           bp_device_name(pool->device));
        tensor->device = (dl_device){.type = DEVICE_CUDA, .id = info->ordinal};
    }
    bp_dtype dtype = config->dtype == BP_DTYPE_NONE ? request->dtype : config->dtype;
    BP_TRY(choose_type(dtype, &tensor->dtype));
    uint64_t each = tensor->dtype.bits / 8;
    if (bytes % each != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s of %s, bucket %u has %llu bytes, not a multiple of %s of %llu bytes",
                       bp_role_name((bp_role)request->role), request->unit, request->ordinal, (unsigned long long)bytes,
                       bp_dtype_name(dtype), (unsigned long long)each);
    *numel = (int64_t)(bytes / each);
    tensor->ndim = 1;
    return BP_OK;
}

bp_status bp_pool_export(bp_pool *pool, const bp_export_config *config, void **managed)
{
    bp_export_config own = export_config_defaults;
    if (pool == NULL || managed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_export: the pool or the output is NULL");
    BP_TRY(bp_device_check(pool->device, "bp_pool_export"));
    BP_TRY(bp_struct_read("bp_pool_export", config, false, &own, sizeof own));
    dl_tensor tensor = {0};
    int64_t numel = 0;
    BP_TRY(export_describe(pool, &own, &tensor, &numel));

    pthread_mutex_lock(&pool->binding);
    if (pool->exports == NULL) {
        pool->exports = calloc(1, sizeof *pool->exports);
        if (pool->exports != NULL) {
            pthread_mutex_init(&pool->exports->mutex, NULL);
            pool->exports->process = pool->device->process;
        }
    }
    bp_exports *exports = pool->exports;
    pthread_mutex_unlock(&pool->binding);
    if (exports == NULL)
        return bp_fail_memory(sizeof *exports);

    exported *l = calloc(1, sizeof *l);
    if (l == NULL)
        return bp_fail_memory(sizeof *l);
    l->exports = exports;
    l->shape = numel;
    l->stride = 1;
    tensor.shape = &l->shape;
    tensor.strides = &l->stride;
    if (own.versioned != 0)
        l->as.versioned =
            (dl_managed_versioned){.major = 1, .context = l, .deleter = delete_versioned, .tensor = tensor};
    else
        l->as.plain = (dl_managed){.context = l, .deleter = delete_plain, .tensor = tensor};
    pthread_mutex_lock(&exports->mutex);
    exports->tensors++;
    pthread_mutex_unlock(&exports->mutex);
    *managed = l;
    return BP_OK;
}

void bp_export_delete(void **managed)
{
    if (managed == NULL || *managed == NULL)
        return;
    export_give_back(*managed);
    *managed = NULL;
}

uint64_t bp_pool_export_count(bp_pool *pool)
{
    if (!bp_device_is_here(pool->device)) /* threads of the parent may hold its locks */
        return 0;
    pthread_mutex_lock(&pool->binding);
    bp_exports *exports = pool->exports;
    pthread_mutex_unlock(&pool->binding);
    if (exports == NULL)
        return 0;
    pthread_mutex_lock(&exports->mutex);
    uint64_t tensors = exports->tensors;
    pthread_mutex_unlock(&exports->mutex);
    return tensors;
}
