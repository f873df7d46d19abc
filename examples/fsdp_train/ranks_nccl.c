/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL is loaded when a GPU is asked for, so that nobody else needs it. */
#include "ranks.h"

#include <bucketpool/nccl.h>

#include <dlfcn.h>
#include <stdlib.h>

#include "try.h"

/* As nccl.h declares them. */
typedef struct unique_id {
    char internal[128];
} unique_id;
typedef int get_unique_id(unique_id *id);
typedef int comm_init_rank(void **comm, int ranks, unique_id id, int rank);
typedef int comm_destroy(void *comm);
typedef const char *get_error_string(int result);

static bp_status check(const nccl_ranks *n, int result, const char *call)
{
    if (result == 0)
        return BP_OK;
    get_error_string *words;
    *(void **)&words = dlsym(n->library, "ncclGetErrorString");
    return fail(BP_ERR_COMM, "%s: %s", call, words != NULL ? words(result) : "failed");
}

/* Rank 0's identity, told to all: what did not work there is known to all, too. */
static bp_status agree_on_id(nccl_ranks *n, bp_comm *control, unique_id *id)
{
    struct {
        unique_id id;
        int result;
    } mine = {.result = 0}, *all = calloc(bp_comm_get_info(control)->ranks, sizeof mine);
    if (all == NULL)
        return fail_memory();
    get_unique_id *make;
    *(void **)&make = dlsym(n->library, "ncclGetUniqueId");
    if (bp_comm_get_info(control)->rank == 0)
        mine.result = make != NULL ? make(&mine.id) : 1;
    bp_status status = bp_comm_exchange(control, &mine, sizeof mine, all);
    if (status == BP_OK) {
        *id = all[0].id;
        status = check(n, all[0].result, "ncclGetUniqueId of rank 0");
    }
    free(all);
    return status;
}

static bp_status join(nccl_ranks *n, bp_comm *control)
{
    unique_id id;
    comm_init_rank *init;
    *(void **)&init = dlsym(n->library, "ncclCommInitRank");
    TRY(agree_on_id(n, control, &id));
    if (init == NULL)
        return fail(BP_ERR_COMM, "this NCCL has no ncclCommInitRank");
    return check(n, init(&n->comm, (int)bp_comm_get_info(control)->ranks, id, (int)bp_comm_get_info(control)->rank),
                 "ncclCommInitRank");
}

bp_status nccl_ranks_create(const char *file, bp_device *device, bp_comm *control, nccl_ranks *n)
{
    bp_nccl_config config;
    *n = (nccl_ranks){0};
    n->library = dlopen(file != NULL ? file : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return fail(BP_ERR_UNSUPPORTED, "NCCL cannot be loaded: %s; say where it is with --nccl FILE", dlerror());
    TRY(join(n, control));
    TRY(bp_nccl_config_init(&config, sizeof config));
    config.comm = n->comm;
    config.device = device;
    config.control = control;
    return bp_comm_create_nccl(&config, &n->wrapped);
}

void nccl_ranks_destroy(nccl_ranks *n)
{
    comm_destroy *destroy = NULL;
    bp_comm_destroy(&n->wrapped);
    if (n->library != NULL)
        *(void **)&destroy = dlsym(n->library, "ncclCommDestroy");
    if (n->comm != NULL && destroy != NULL)
        (void)destroy(n->comm);
    n->comm = NULL;
}
