/* SPDX-License-Identifier: Apache-2.0 */
/* Private data and functions of the cuda device, which uses a GPU through the driver API. */
#ifndef BP_DEVICES_CUDA_H
#define BP_DEVICES_CUDA_H

#include <bucketpool/cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "devices/cuda_driver.h"
#include "devices/device.h"

/* Driver results (CUresult) that the device handles. */
enum {
    BP_CU_SUCCESS = 0,
    BP_CU_INVALID_VALUE = 1,
    BP_CU_OUT_OF_MEMORY = 2,
    BP_CU_NOT_INITIALIZED = 3,
    BP_CU_DEINITIALIZED = 4,
    BP_CU_STUB_LIBRARY = 34,
    BP_CU_NO_DEVICE = 100,
    BP_CU_INVALID_DEVICE = 101,
    BP_CU_INVALID_IMAGE = 200,
    BP_CU_INVALID_CONTEXT = 201,
    BP_CU_NO_BINARY_FOR_GPU = 209,
    BP_CU_INVALID_PTX = 218,
    BP_CU_JIT_COMPILER_NOT_FOUND = 221,
    BP_CU_UNSUPPORTED_PTX_VERSION = 222,
    BP_CU_JIT_COMPILATION_DISABLED = 223,
    BP_CU_INVALID_HANDLE = 400,
    BP_CU_NOT_FOUND = 500,
    BP_CU_NOT_SUPPORTED = 801,
    BP_CU_NOT_PERMITTED = 800,
    BP_CU_CAPTURE_FIRST = 900,
    BP_CU_CAPTURE_INVALIDATED = 901,
    BP_CU_CAPTURE_MERGE = 902,
    BP_CU_CAPTURE_UNMATCHED = 903,
    BP_CU_CAPTURE_UNJOINED = 904,
    BP_CU_CAPTURE_ISOLATION = 905,
    BP_CU_CAPTURE_IMPLICIT = 906,
    BP_CU_CAPTURED_EVENT = 907,
    BP_CU_CAPTURE_WRONG_THREAD = 908
};

#define BP_CU_ON_DEVICE 1 /* location type of memory and of access: a device */

#define BP_CU_HANDLE_FILE 1
#define BP_CU_HANDLE_FABRIC 8

#define BP_CU_STREAM_LEGACY 1u
#define BP_CU_STREAM_PER_THREAD 2u

typedef struct bp_cuda_stream {
    void *handle;
    bool owned;
    bool legacy;                 /* the legacy default stream, which depends on the current context */
    struct bp_cuda_stream *next; /* list of idle or stuck streams */
} bp_cuda_stream;

/* Committed physical memory, or a plain allocation. */
typedef struct bp_cuda_memory_block {
    uint64_t handle;  /* plain: the address that cuMemAlloc returned */
    uint64_t address; /* plain: the aligned address */
    uint64_t bytes;
} bp_cuda_memory_block;

typedef struct bp_cuda {
    bp_cuda_driver driver;
    bp_cuda_config config;
    bp_cuda_info info;
    bp_device_traits traits;
    int device;       /* the driver's device handle */
    int shared_bytes; /* most shared memory of a block */
    int multiprocessors;
    void *context;        /* primary context */
    bp_cu_access *access; /* devices that may access slabs: the device, then its peers */
    size_t access_count;
    pthread_mutex_t lock; /* protects the fields below; not on the path of events */
    bp_cuda_stream *idle_streams,
        *stuck_streams; /* idle: for reuse; stuck: destroyed, but the driver refused to synchronise them */
    bp_cuda_memory_block *blocks;
    size_t block_count, block_capacity;
    uint64_t committed_bytes;
    struct bp_cuda_module *modules; /* loaded images */
} bp_cuda;

/* bp_device_create_cuda with a table of driver functions, which is copied, instead of `config->driver`. */
bp_status bp_device_create_cuda_from(const bp_cuda_config *config, const bp_cuda_driver *driver, bp_device **device);

/* Makes the device's context current; bp_cuda_pop restores the earlier one, even if another one was made current in between. */
bp_status bp_cuda_push(const bp_cuda *cuda);
void bp_cuda_pop(const bp_cuda *cuda);

/* Records the error of a failed driver call. `function`: its name. `what`: its purpose, with names and numbers. */
bp_status bp_cuda_fail(const bp_cuda_driver *driver, int error, const char *function, const char *what);

static inline bp_status bp_cuda_check(const bp_cuda *cuda, int error, const char *function, const char *what)
{
    return error == BP_CU_SUCCESS ? BP_OK : bp_cuda_fail(&cuda->driver, error, function, what);
}

/* bp_cuda_pop, then the status of the call's result. */
static inline bp_status bp_cuda_pop_check(const bp_cuda *cuda, int error, const char *function, const char *what)
{
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, function, what);
}

/* A driver device attribute; 0 if the driver does not know it (BP_CU_INVALID_VALUE: it is older). */
bp_status bp_cuda_attribute(const bp_cuda *cuda, int attribute, int *value);

/* The cuda device below decorators; NULL: another device. */
const bp_cuda *bp_cuda_of(const bp_device *device);

/* The device's functions; each file implements one subject. */
bp_status bp_cuda_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address);
bp_status bp_cuda_unreserve(void *self, void *address, uint64_t bytes);
bp_status bp_cuda_commit(void *self, uint64_t bytes, uint64_t *handle);
bp_status bp_cuda_decommit(void *self, uint64_t handle);
bp_status bp_cuda_map(void *self, void *address, uint64_t bytes, uint64_t handle);
bp_status bp_cuda_unmap(void *self, void *address, uint64_t bytes);
bp_status bp_cuda_plain_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address);
bp_status bp_cuda_plain_unreserve(void *self, void *address, uint64_t bytes);
bp_status bp_cuda_plain_commit(void *self, uint64_t bytes, uint64_t *handle);
bp_status bp_cuda_plain_decommit(void *self, uint64_t handle);
bp_status bp_cuda_plain_map(void *self, void *address, uint64_t bytes, uint64_t handle);
bp_status bp_cuda_plain_unmap(void *self, void *address, uint64_t bytes);
bp_status bp_cuda_allocate(void *self, uint64_t bytes, void *stream, void **address);
bp_status bp_cuda_free(void *self, void *address, uint64_t bytes, void *stream);
bp_status bp_cuda_pin(void *self, void *address, uint64_t bytes);
bp_status bp_cuda_unpin(void *self, void *address, uint64_t bytes);
/* Chooses the properties of slabs: the handle types that the driver permits, and the granularity. Needs `device`, `info` and a current
 * context. */
bp_status bp_cuda_choose_memory(bp_cuda *cuda);

bp_status bp_cuda_stream_create(void *self, void **stream);
bp_status bp_cuda_stream_import(void *self, uint64_t native, void **stream);
bp_status bp_cuda_stream_native(void *self, void *stream, uint64_t *native);
bp_status bp_cuda_stream_destroy(void *self, void *stream);
bp_status bp_cuda_stream_synchronize(void *self, void *stream);
bp_status bp_cuda_synchronize(void *self);
bp_status bp_cuda_call(void *self, void *stream, bp_host_function *function, void *argument);
bp_status bp_cuda_fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes);
bp_status bp_cuda_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes);
void bp_cuda_streams_finish(bp_cuda *cuda);

bp_status bp_cuda_event_create(void *self, void **event);
bp_status bp_cuda_event_destroy(void *self, void *event);
bp_status bp_cuda_event_record(void *self, void *event, void *stream);
bp_status bp_cuda_stream_wait(void *self, void *stream, void *event);
bp_status bp_cuda_event_synchronize(void *self, void *event);

bp_status bp_cuda_capture_of(void *self, void *stream, uint64_t *capture);
bp_status bp_cuda_graph_begin(void *self, void *stream);
bp_status bp_cuda_graph_end(void *self, void *stream, void **graph);
bp_status bp_cuda_graph_launch(void *self, void *graph, void *stream);
bp_status bp_cuda_graph_destroy(void *self, void *graph);

#endif
