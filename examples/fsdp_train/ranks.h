/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of the training run: processes started by MPI, or a single one. */
#ifndef FSDP_TRAIN_RANKS_H
#define FSDP_TRAIN_RANKS_H

#include <bucketpool/comm.h>

#include <stdint.h>

/* Rank from the launcher's environment, before MPI is initialised; 0 of 1 without a launcher. */
typedef struct launched {
    uint32_t rank, ranks;
    uint32_t local_rank; /* on this machine: its GPU */
} launched;

launched ranks_launched(void);

/* All processes: bucketpool-mpi where there are several, else one rank. The caller owns it. */
bp_status ranks_create(const launched *l, bp_comm **comm);

/* Ends the processes that wait for this one, too. */
_Noreturn void ranks_end_all(const launched *l, int code);

/* ---- MPI, or its stand-in ------------------------------------------------------------------------------------------- */

bp_status ranks_create_mpi(bp_comm **comm);
void ranks_abort_mpi(int code);

/* ---- GPUs ----------------------------------------------------------------------------------------------------------- */

/* NCCL's communicator of the same ranks, and the function that ends it. */
typedef struct nccl_ranks {
    void *library, *comm;
    bp_comm *wrapped; /* what collectives use */
} nccl_ranks;

/* Loads NCCL from `file` (NULL: libnccl.so.2) and makes a communicator of the ranks of `control`, on the GPU whose
 * context is current, which is the device's. */
bp_status nccl_ranks_create(const char *file, bp_device *device, bp_comm *control, nccl_ranks *n);
/* After everything that uses it. */
void nccl_ranks_destroy(nccl_ranks *n);

#endif
