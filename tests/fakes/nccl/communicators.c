/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators, whose ranks are threads. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

/* ---- finding them -------------------------------------------------------------------------------------------------- */

communicator *find_comm(void *handle, const char *function)
{
    for (communicator *c = fake.communicators; c != NULL; c = c->next)
        if (c == handle && !c->dead)
            return c;
    if (handle != NULL)
        broke(rule_not_after_destroy, "%s of %p", function, handle);
    return NULL;
}

int begin_call(const char *function, void *handle, communicator **comm)
{
    fake_lock();
    communicator *found = find_comm(handle, function);
    int result = found == NULL ? NCCL_INVALID_ARGUMENT : enter(function, found);
    if (result == NCCL_SUCCESS)
        *comm = found;
    else if (found != NULL)
        fail(found, result, "%s: asked to fail", function);
    if (result != NCCL_SUCCESS)
        fake_unlock();
    return result;
}

/* ---- making them --------------------------------------------------------------------------------------------------- */

static int is_on(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text == NULL || *text == '\0' ? otherwise : atoi(text) != 0;
}

static clique *clique_of(const unique_id *id, int ranks)
{
    for (clique *c = fake.cliques; c != NULL; c = c->next)
        if (memcmp(&c->id, id, sizeof *id) == 0)
            return c->ranks == ranks ? c : NULL;
    clique *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->id = *id;
    c->ranks = ranks;
    c->next = fake.cliques;
    fake.cliques = c;
    return c;
}

static communicator *add_comm(clique *of, int rank, int device)
{
    communicator *comm = calloc(1, sizeof *comm);
    if (comm == NULL || driver_retain(device, &comm->context) != NCCL_SUCCESS) {
        free(comm);
        return NULL;
    }
    comm->clique = of;
    comm->rank = rank;
    comm->device = device;
    comm->local_register = is_on("NCCL_LOCAL_REGISTER", 1);
    comm->cumem = is_on("NCCL_CUMEM_ENABLE", 1);
    comm->win_enable = is_on("NCCL_WIN_ENABLE", 1);
    comm->next = fake.communicators;
    fake.communicators = comm;
    of->members[rank] = comm;
    fake.counts.communicators++;
    return comm;
}

static void bury(communicator *comm)
{
    comm->dead = true;
    fake.counts.communicators--;
    driver_release(comm->device);
}

static int check_gpus(const communicator *comm)
{
    bool may_share = fake.set.share_gpu || (fake.set.version >= 23000 && is_on("NCCL_MULTI_RANK_GPU_ENABLE", 0));
    for (int i = 0; i < comm->clique->ranks && !may_share; i++)
        if (i != comm->rank && comm->clique->members[i]->device == comm->device) {
            broke(rule_one_rank_per_gpu, "ranks %d and %d are on device %d", comm->rank, i, comm->device);
            return NCCL_INVALID_USAGE;
        }
    return NCCL_SUCCESS;
}

typedef struct init_job {
    void **out;
    unique_id id;
    int ranks, rank, device;
} init_job;

static int do_init(void *argument)
{
    const init_job *job = argument;
    fake_lock();
    clique *of = clique_of(&job->id, job->ranks);
    communicator *comm = of == NULL || of->members[job->rank] != NULL ? NULL : add_comm(of, job->rank, job->device);
    if (comm == NULL) {
        fake_unlock();
        return of == NULL || of->members[job->rank] != NULL ? NCCL_INVALID_ARGUMENT : NCCL_CUDA_ERROR;
    }
    meeting *met = NULL;
    int result = meet(comm, MEET_INIT, 0, 0, comm, &met);
    if (result == NCCL_SUCCESS) {
        result = check_gpus(comm);
        part(comm, met);
    }
    if (result == NCCL_SUCCESS)
        *job->out = comm;
    else
        bury(comm);
    fake_unlock();
    return result;
}

int ncclGetUniqueId(unique_id *id)
{
    static unsigned made;
    int result = enter("ncclGetUniqueId", NULL);
    if (result != NCCL_SUCCESS)
        return result;
    fake_lock();
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "clique %u", ++made);
    fake_unlock();
    return NCCL_SUCCESS;
}

int ncclCommInitRank(void **comm, int ranks, unique_id id, int rank)
{
    int result = enter("ncclCommInitRank", NULL);
    if (result != NCCL_SUCCESS)
        return result;
    if (comm == NULL || ranks < 1 || ranks > FAKE_NCCL_RANKS || rank < 0 || rank >= ranks)
        return NCCL_INVALID_ARGUMENT;
    init_job job = {comm, id, ranks, rank, 0};
    result = driver_current_device(&job.device);
    return result != NCCL_SUCCESS ? result : do_or_defer(do_init, &job, sizeof job, true);
}

int ncclCommInitAll(void **comms, int count, const int *devices)
{
    int result = enter("ncclCommInitAll", NULL);
    if (result != NCCL_SUCCESS)
        return result;
    int there = driver_device_count();
    if (comms == NULL || count < 1 || count > FAKE_NCCL_RANKS)
        return NCCL_INVALID_ARGUMENT;
    unique_id id;
    result = ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int i = 0; i < count && result == NCCL_SUCCESS; i++) {
        init_job job = {&comms[i], id, count, i, devices == NULL ? i : devices[i]};
        result = job.device < 0 || job.device >= there ? NCCL_INVALID_ARGUMENT
                                                       : do_or_defer(do_init, &job, sizeof job, true);
    }
    int ended = ncclGroupEnd();
    return result != NCCL_SUCCESS ? result : ended;
}

/* ---- ending them --------------------------------------------------------------------------------------------------- */

static void await_rest(const communicator *comm)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1 + fake.set.watchdog_ms / 1000;
    while (comm->running > 0 && pthread_cond_timedwait(&fake.changed, &fake.lock, &until) != ETIMEDOUT)
        ;
}

int ncclCommFinalize(void *handle)
{
    communicator *comm;
    int result = begin_call("ncclCommFinalize", handle, &comm);
    if (result != NCCL_SUCCESS)
        return result;
    await_rest(comm);
    fake_unlock();
    return NCCL_SUCCESS;
}

int ncclCommDestroy(void *handle)
{
    if (handle == NULL)
        return NCCL_SUCCESS;
    communicator *comm;
    int result = begin_call("ncclCommDestroy", handle, &comm);
    if (result != NCCL_SUCCESS)
        return result;
    await_rest(comm);
    if (end_registrations(comm))
        broke(rule_deregister_before_destroy, "rank %d", comm->rank);
    bury(comm);
    fake_unlock();
    return NCCL_SUCCESS;
}

int ncclCommAbort(void *handle)
{
    if (handle == NULL)
        return NCCL_SUCCESS;
    communicator *comm;
    int result = begin_call("ncclCommAbort", handle, &comm);
    if (result != NCCL_SUCCESS)
        return result;
    comm->aborted = true;
    pthread_cond_broadcast(&fake.changed);
    await_rest(comm);
    end_registrations(comm);
    bury(comm);
    fake_unlock();
    return NCCL_SUCCESS;
}

/* ---- what they are ------------------------------------------------------------------------------------------------- */

static int answer(const char *function, void *handle, int *value, int (*of)(const communicator *))
{
    communicator *comm;
    int result = begin_call(function, handle, &comm);
    if (result != NCCL_SUCCESS)
        return result;
    *value = of(comm);
    fake_unlock();
    return NCCL_SUCCESS;
}

static int ranks_of(const communicator *comm)
{
    return comm->clique->ranks;
}

static int rank_of(const communicator *comm)
{
    return comm->rank;
}

static int device_of(const communicator *comm)
{
    return comm->device;
}

static int error_of(const communicator *comm)
{
    return comm->async_error;
}

int ncclCommCount(void *comm, int *ranks)
{
    return answer("ncclCommCount", comm, ranks, ranks_of);
}

int ncclCommUserRank(void *comm, int *rank)
{
    return answer("ncclCommUserRank", comm, rank, rank_of);
}

int ncclCommCuDevice(void *comm, int *device)
{
    return answer("ncclCommCuDevice", comm, device, device_of);
}

int ncclCommGetAsyncError(void *comm, int *result)
{
    return answer("ncclCommGetAsyncError", comm, result, error_of);
}

int ncclGetVersion(int *version)
{
    int result = enter("ncclGetVersion", NULL);
    if (result != NCCL_SUCCESS)
        return result;
    fake_lock();
    *version = fake.set.version;
    fake_unlock();
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return result >= 0 && (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(void *handle)
{
    static _Thread_local char text[256];
    fake_lock();
    const communicator *comm = handle == NULL ? NULL : find_comm(handle, "ncclGetLastError");
    snprintf(text, sizeof text, "%s", comm == NULL ? "" : comm->last_error);
    fake_unlock();
    return text;
}
