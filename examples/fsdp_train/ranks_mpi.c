/* SPDX-License-Identifier: Apache-2.0 */
/* With MPI. */
#include "ranks.h"

#include <bucketpool/comm_mpi.h>

#include <mpi.h>

bp_status ranks_create_mpi(bp_comm **comm)
{
    return bp_comm_create_mpi(NULL, 0, comm);
}

void ranks_abort_mpi(int code)
{
    int started = 0;
    MPI_Initialized(&started);
    if (started)
        MPI_Abort(MPI_COMM_WORLD, code);
}
