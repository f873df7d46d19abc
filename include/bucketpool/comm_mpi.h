/* MPI communicators: several processes on CPUs. In the library bucketpool-mpi. */
#ifndef BUCKETPOOL_COMM_MPI_H
#define BUCKETPOOL_COMM_MPI_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A duplicate of an MPI communicator, which the library frees in the end. `mpi_comm` points to an MPI_Comm; NULL: MPI_COMM_WORLD.
 * MPI is initialised here if nobody has yet, and finalised when the last such communicator goes only if it was initialised here; a
 * program that has finalised MPI itself gets BP_ERR_INVALID_ARGUMENT. Collective over the communicator.
 *
 * Collectives are of host memory: they wait for the stream, then block. fp16 and bf16 are reduced two values at a time, in fp32, and
 * rounded to the type after each. Nothing can be registered. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_UNSUPPORTED (with MPI's own words), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_comm_create_mpi(const void *mpi_comm, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
