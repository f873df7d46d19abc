/** @file
 * MPI communicators: several processes on CPUs. In the library bucketpool-mpi. */
#ifndef BUCKETPOOL_COMM_MPI_H
#define BUCKETPOOL_COMM_MPI_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A duplicate of an MPI communicator, which the library frees in the end. `mpi_comm` points to an MPI_Comm; NULL: MPI_COMM_WORLD.
 * MPI is initialised here if nobody has yet, and finalised when the last such communicator goes only if it was initialised here; a
 * program that has finalised MPI itself gets BP_ERR_INVALID_ARGUMENT. Collective over the communicator.
 *
 * `timeout_ms`: of exchanges and of this call, as comm.h says; the shortest that a rank gives holds for all. Exchanges with a time-out are
 * messages from each rank to each other one (ranks - 1 per rank and 64 KiB) instead of MPI_Allgather, and the error names the ranks that
 * are missing. The error of this call cannot name them. After a time-out MPI is not finalised here and the duplicate is not freed, as
 * both would wait for the missing ranks: end the process without MPI_Finalize, or with MPI_Abort.
 *
 * Collectives are of host memory: they wait for the stream, then block. fp16 and bf16 are reduced two values at a time, in fp32, and
 * rounded to the type after each. Nothing can be registered. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_UNSUPPORTED (with MPI's own words), BP_ERR_NO_HOST_MEMORY, BP_ERR_TIMEOUT. */
BP_API bp_status bp_comm_create_mpi(const void *mpi_comm, uint32_t timeout_ms, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
