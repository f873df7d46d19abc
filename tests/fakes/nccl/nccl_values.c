/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled if NCCL's header is installed, never run: the emulation's numbers and signatures equal the header's. */
#include <nccl.h>

#include <bucketpool/nccl.h>

#define SAME(name, value) _Static_assert((int)(name) == (value), #name)

SAME(ncclSuccess, 0);
SAME(ncclUnhandledCudaError, 1);
SAME(ncclSystemError, 2);
SAME(ncclInternalError, 3);
SAME(ncclInvalidArgument, 4);
SAME(ncclInvalidUsage, 5);
SAME(ncclRemoteError, 6);
SAME(ncclInProgress, 7);
SAME(ncclInt8, 0);
SAME(ncclUint8, 1);
SAME(ncclInt32, 2);
SAME(ncclUint32, 3);
SAME(ncclInt64, 4);
SAME(ncclUint64, 5);
SAME(ncclFloat16, 6);
SAME(ncclFloat32, 7);
SAME(ncclFloat64, 8);
SAME(ncclBfloat16, 9);
SAME(ncclSum, 0);
SAME(ncclProd, 1);
SAME(ncclMax, 2);
SAME(ncclMin, 3);
SAME(ncclAvg, 4);
SAME(sizeof(ncclUniqueId), 128);
SAME(sizeof(ncclResult_t), sizeof(int));
SAME(sizeof(ncclDataType_t), sizeof(int));
SAME(sizeof(ncclRedOp_t), sizeof(int));
#if NCCL_VERSION_CODE >= 22700
SAME(NCCL_WIN_DEFAULT, 0);
SAME(NCCL_WIN_COLL_SYMMETRIC, 1);
#endif
#ifdef NCCL_WIN_REQUIRED_ALIGNMENT
SAME(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
#endif

/* Argument counts and kinds, by calls that the compiler checks. */
int check_signatures(ncclComm_t comm, void *p, cudaStream_t stream);
int check_signatures(ncclComm_t comm, void *p, cudaStream_t stream)
{
    int value = 0;
    int result = (int)ncclGetVersion(&value);
    result |= (int)ncclCommCount(comm, &value) | (int)ncclCommUserRank(comm, &value);
    result |= (int)ncclCommCuDevice(comm, &value);
    result |= (int)ncclAllGather(p, p, (size_t)1, ncclFloat, comm, stream);
    result |= (int)ncclAllReduce(p, p, (size_t)1, ncclFloat, ncclSum, comm, stream);
    result |= (int)ncclReduceScatter(p, p, (size_t)1, ncclFloat, ncclSum, comm, stream);
#if NCCL_VERSION_CODE >= 21900
    result |= (int)ncclCommRegister(comm, p, (size_t)1, &p) | (int)ncclCommDeregister(comm, p);
#endif
#if NCCL_VERSION_CODE >= 22700
    ncclWindow_t window = NULL;
    result |= (int)ncclCommWindowRegister(comm, p, (size_t)1, &window, NCCL_WIN_COLL_SYMMETRIC);
    result |= (int)ncclCommWindowDeregister(comm, window);
#endif
    return result;
}
