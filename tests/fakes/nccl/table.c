/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of a version as a table. */
#include "state.h"

void fake_nccl_table(bp_nccl_functions *table)
{
    fake_lock();
    int version = fake.set.version;
    fake_unlock();
    *table = (bp_nccl_functions){.size = sizeof *table,
                                 .ncclGetVersion = ncclGetVersion,
                                 .ncclGetErrorString = ncclGetErrorString,
                                 .ncclGetLastError = ncclGetLastError,
                                 .ncclCommCount = ncclCommCount,
                                 .ncclCommUserRank = ncclCommUserRank,
                                 .ncclCommCuDevice = ncclCommCuDevice,
                                 .ncclCommGetAsyncError = ncclCommGetAsyncError,
                                 .ncclCommAbort = ncclCommAbort,
                                 .ncclAllGather = ncclAllGather,
                                 .ncclAllReduce = ncclAllReduce,
                                 .ncclReduceScatter = ncclReduceScatter};
    if (version >= 21900 && FAKE_NCCL_SYMBOLS >= 21900) {
        table->ncclCommRegister = ncclCommRegister;
        table->ncclCommDeregister = ncclCommDeregister;
    }
    if (version >= 22700 && FAKE_NCCL_SYMBOLS >= 22700) {
        table->ncclCommWindowRegister = ncclCommWindowRegister;
        table->ncclCommWindowDeregister = ncclCommWindowDeregister;
    }
}
