/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's exported functions, without its types: enumerations are int, handles are pointers. */
#ifndef FAKE_NCCL_ABI_H
#define FAKE_NCCL_ABI_H

#include "fake_nccl.h"

typedef struct unique_id {
    char internal[128];
} unique_id;

/* The first version whose functions this copy exports. */
#ifndef FAKE_NCCL_SYMBOLS
#define FAKE_NCCL_SYMBOLS 22700
#endif

FAKE_NCCL_API int ncclGetVersion(int *version);
FAKE_NCCL_API const char *ncclGetErrorString(int result);
FAKE_NCCL_API const char *ncclGetLastError(void *handle);
FAKE_NCCL_API int ncclGetUniqueId(unique_id *id);
FAKE_NCCL_API int ncclCommInitRank(void **comm, int ranks, unique_id id, int rank);
FAKE_NCCL_API int ncclCommInitAll(void **comms, int count, const int *devices);
FAKE_NCCL_API int ncclCommFinalize(void *handle);
FAKE_NCCL_API int ncclCommDestroy(void *handle);
FAKE_NCCL_API int ncclCommAbort(void *handle);
FAKE_NCCL_API int ncclCommCount(void *comm, int *ranks);
FAKE_NCCL_API int ncclCommUserRank(void *comm, int *rank);
FAKE_NCCL_API int ncclCommCuDevice(void *comm, int *device);
FAKE_NCCL_API int ncclCommGetAsyncError(void *comm, int *result);
FAKE_NCCL_API int ncclGroupStart(void);
FAKE_NCCL_API int ncclGroupEnd(void);
FAKE_NCCL_API int ncclAllGather(const void *from, void *to, size_t count, int dtype, void *comm, void *stream);
FAKE_NCCL_API int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream);
FAKE_NCCL_API int ncclReduceScatter(const void *from, void *to, size_t count, int dtype, int op, void *comm,
                                    void *stream);
/* Hidden instead of left out, so that an older copy is built from the same sources. */
#if FAKE_NCCL_SYMBOLS >= 21900
#define FAKE_NCCL_2_19 FAKE_NCCL_API
#else
#define FAKE_NCCL_2_19
#endif
#if FAKE_NCCL_SYMBOLS >= 22700
#define FAKE_NCCL_2_27 FAKE_NCCL_API
#else
#define FAKE_NCCL_2_27
#endif
FAKE_NCCL_2_19 int ncclMemAlloc(void **address, size_t bytes);
FAKE_NCCL_2_19 int ncclMemFree(void *address);
FAKE_NCCL_2_19 int ncclCommRegister(void *handle, void *address, size_t bytes, void **out);
FAKE_NCCL_2_19 int ncclCommDeregister(void *comm, void *handle);
FAKE_NCCL_2_27 int ncclCommWindowRegister(void *handle, void *address, size_t bytes, void **out, int flags);
FAKE_NCCL_2_27 int ncclCommWindowDeregister(void *comm, void *handle);

#endif
