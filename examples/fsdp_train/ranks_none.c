/* SPDX-License-Identifier: Apache-2.0 */
/* Without MPI. */
#include "ranks.h"
#include "try.h"

bp_status ranks_create_mpi(bp_comm **comm)
{
    (void)comm;
    return fail(BP_ERR_UNSUPPORTED,
                "several processes were started, but this fsdp_train was built without MPI: install "
                "it (openmpi-bin and libopenmpi-dev), remove the build folder and build again");
}

void ranks_abort_mpi(int code)
{
    (void)code;
}
