/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <stdlib.h>

#include "try.h"

static uint32_t number_in(const char *const *variables, uint32_t otherwise)
{
    for (; *variables != NULL; variables++) {
        const char *text = getenv(*variables);
        if (text != NULL && text[0] != '\0')
            return (uint32_t)strtoul(text, NULL, 10);
    }
    return otherwise;
}

/* Open MPI, then MPICH and those that come of it. */
launched ranks_launched(void)
{
    static const char *const rank[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const local[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    launched l = {number_in(rank, 0), number_in(ranks, 1), 0};
    l.local_rank = number_in(local, 0);
    return l;
}

bp_status ranks_create(const launched *l, bp_comm **comm)
{
    return l->ranks > 1 ? ranks_create_mpi(comm) : bp_comm_create_self(comm);
}

void ranks_end_all(const launched *l, int code)
{
    if (l->ranks > 1)
        ranks_abort_mpi(code);
    exit(code);
}
