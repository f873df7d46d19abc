/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * MPI communicators, for several processes on CPUs. In the library bucketpool-mpi. */
#ifndef BUCKETPOOL_COMM_MPI_H
#define BUCKETPOOL_COMM_MPI_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Creates a communicator from a duplicate of an MPI communicator. `mpi_comm` points to an MPI_Comm; NULL:
 * MPI_COMM_WORLD. Collective over it. The caller owns the communicator: bp_comm_destroy, which frees the duplicate.
 *
 * MPI is initialized here if it is not yet. It is then finalized with the last such communicator. After MPI_Finalize
 * by the program this call is BP_ERR_INVALID_ARGUMENT.
 *
 * `timeout_ms` applies to exchanges and to this call, as comm.h says; the shortest value of any rank applies to all.
 * Exchanges with a time-out are point-to-point messages (ranks - 1 for each rank and 64 KiB) instead of
 * MPI_Allgather, and the error names the missing ranks. The error of this call cannot name them. After a time-out MPI
 * is not finalized and the duplicate is not freed, because both would wait for the missing ranks: end the process
 * without MPI_Finalize, or with MPI_Abort.
 *
 * Collectives use host memory: they wait for the stream, then block. fp16 and bf16 are reduced two values at a time,
 * in fp32, and rounded after each step. Registration is not supported.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_UNSUPPORTED (the message quotes MPI), BP_ERR_NO_HOST_MEMORY,
 * BP_ERR_TIMEOUT. */
BP_API bp_status bp_comm_create_mpi(const void *mpi_comm, uint32_t timeout_ms, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
