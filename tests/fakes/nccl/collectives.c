/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives in stream order: each rank's stream gets a host function, in which the ranks meet. A captured one
 * meets those of the same replay. */
#include <stdlib.h>
#include <string.h>

#include "../cuda/fake_cuda.h"
#include "state.h"

typedef enum operation_kind { ALL_GATHER = 1, ALL_REDUCE = 2, REDUCE_SCATTER = 3 } operation_kind;

typedef struct launch_job {
    operation *operation;
    void *stream;
} launch_job;

/* ---- running ------------------------------------------------------------------------------------------------------- */

static uint64_t bytes_sent(const operation *o)
{
    return o->count * type_bytes(o->dtype) * (o->kind == REDUCE_SCATTER ? (uint64_t)o->comm->clique->ranks : 1);
}

static uint64_t bytes_received(const operation *o)
{
    return o->count * type_bytes(o->dtype) * (o->kind == ALL_GATHER ? (uint64_t)o->comm->clique->ranks : 1);
}

static bp_register_kind lesser(bp_register_kind a, bp_register_kind b)
{
    return a < b ? a : b;
}

/* The registration kind of this rank's memory. An all-gather needs its receive buffer registered, a reduce-scatter
 * its send buffer. */
static bp_register_kind memory_of(const operation *o)
{
    bp_register_kind sent = registered_as(o->comm, o->from, bytes_sent(o));
    bp_register_kind received = registered_as(o->comm, o->to, bytes_received(o));
    if (fake.set.same_process || (o->reduction == OP_AVG && is_float(o->dtype)))
        return BP_REGISTER_NONE;
    if (o->kind == ALL_GATHER)
        return received;
    if (o->kind == REDUCE_SCATTER)
        return sent;
    bp_register_kind both = lesser(sent, received);
    return o->from == o->to && both < BP_REGISTER_SYMMETRIC ? BP_REGISTER_NONE : both;
}

static void count_served(const operation *const *of, int ranks)
{
    bp_register_kind kind = BP_REGISTER_SYMMETRIC;
    for (int i = 0; i < ranks; i++)
        kind = lesser(kind, of[i]->memory);
    fake.counts.collectives++;
    if (kind == BP_REGISTER_SYMMETRIC)
        fake.counts.symmetric++;
    else if (kind != BP_REGISTER_NONE)
        fake.counts.registered++;
    else
        fake.counts.copied++;
}

static bool all_agree(const operation *const *of, int ranks)
{
    const operation *a = of[0];
    for (int i = 1; i < ranks; i++) {
        const operation *b = of[i];
        if (a->kind != b->kind || a->count != b->count || a->dtype != b->dtype || a->reduction != b->reduction) {
            broke(rule_collectives_agree,
                  "collective %llu: rank 0 has kind %d, %zu of type %d, op %d; rank %d has kind %d, %zu of type %d, op "
                  "%d",
                  (unsigned long long)a->number, a->kind, a->count, a->dtype, a->reduction, i, b->kind, b->count,
                  b->dtype, b->reduction);
            return false;
        }
    }
    return true;
}

static void *result_of(const operation *o, const operation *const *of, int ranks)
{
    unsigned char *result = malloc(bytes_received(o) + 1);
    if (result == NULL)
        abort();
    const void *inputs[FAKE_NCCL_RANKS];
    for (int i = 0; i < ranks; i++)
        inputs[i] = of[i]->from;
    size_t bytes = o->count * type_bytes(o->dtype);
    if (o->kind != ALL_GATHER)
        reduce(inputs, ranks, o->kind == REDUCE_SCATTER ? o->count * (size_t)o->comm->rank : 0, o->count, o->dtype,
               o->reduction, result);
    for (int i = 0; i < ranks && o->kind == ALL_GATHER; i++)
        memcpy(result + bytes * (size_t)i, inputs[i], bytes);
    return result;
}

/* Runs under the lock, but releases it while work is done. */
static int run_with_others(operation *o)
{
    int ranks = o->comm->clique->ranks;
    meeting *met = NULL;
    o->memory = memory_of(o);
    int result = meet(o->comm, MEET_COLLECTIVE, o->number, o->run, o, &met);
    if (result != NCCL_SUCCESS)
        return result;
    const operation *of[FAKE_NCCL_RANKS] = {NULL};
    for (int i = 0; i < ranks; i++) {
        of[i] = met->brought[i];
        if (of[i] == NULL)
            result = NCCL_REMOTE_ERROR;
    }
    if (result == NCCL_SUCCESS && !all_agree(of, ranks))
        result = NCCL_INVALID_USAGE;
    void *made = NULL;
    if (result == NCCL_SUCCESS) {
        count_served(of, ranks);
        fake_unlock();
        made = result_of(o, of, ranks);
        fake_lock();
    }
    part(o->comm, met);
    if (made != NULL)
        memcpy(o->to, made, bytes_received(o));
    free(made);
    return result;
}

static void run(void *argument)
{
    operation *o = argument;
    communicator *comm = o->comm;
    fake_lock();
    o->run++;
    if (o->captured)
        comm->running++;
    if (comm->dead && !comm->aborted)
        broke(rule_not_after_destroy, "a collective of rank %d runs", comm->rank);
    if (!comm->dead && !comm->aborted) {
        int result = run_with_others(o);
        if (result != NCCL_SUCCESS && !comm->aborted)
            comm->async_error = result;
    }
    comm->running--;
    pthread_cond_broadcast(&fake.changed);
    fake_unlock();
}

/* ---- enqueueing ---------------------------------------------------------------------------------------------------- */

static int launch(void *argument)
{
    const launch_job *job = argument;
    operation *o = job->operation;
    fake_lock();
    o->captured = fake_cuda_stream_is_capturing(job->stream);
    if (!o->captured)
        o->comm->running++;
    fake_unlock();
    int result = driver_launch(job->stream, run, o);
    if (result == NCCL_SUCCESS)
        return result;
    fake_lock();
    if (!o->captured)
        o->comm->running--;
    stay_away(o->comm, MEET_COLLECTIVE, o->number, 1);
    fail(o->comm, result, "the driver does not take a collective");
    fake_unlock();
    return result;
}

static int check_operation(communicator *comm, const operation *o)
{
    if (type_bytes(o->dtype) == 0 || o->reduction < OP_SUM || o->reduction > OP_AVG)
        return fail(comm, NCCL_INVALID_ARGUMENT, "type %d, reduction %d", o->dtype, o->reduction);
    if (o->count > 0 && (o->from == NULL || o->to == NULL))
        return fail(comm, NCCL_INVALID_ARGUMENT, "a NULL buffer");
    return NCCL_SUCCESS;
}

static int enqueue(const char *function, void *handle, operation wanted, void *stream)
{
    fake_lock();
    communicator *comm = find_comm(handle, function);
    if (comm == NULL) {
        fake_unlock();
        return NCCL_INVALID_ARGUMENT;
    }
    int result = enter(function, comm);
    wanted.comm = comm;
    wanted.number = comm->collective_number++;
    if (result == NCCL_SUCCESS)
        result = check_operation(comm, &wanted);
    else
        fail(comm, result, "%s: asked to fail", function);
    operation *o = result == NCCL_SUCCESS ? malloc(sizeof *o) : NULL;
    if (o == NULL) {
        stay_away(comm, MEET_COLLECTIVE, wanted.number, 1);
        fake_unlock();
        return result == NCCL_SUCCESS ? NCCL_SYSTEM_ERROR : result;
    }
    *o = wanted;
    o->next = comm->operations;
    comm->operations = o;
    fake_unlock();
    launch_job job = {o, stream};
    return do_or_defer(launch, &job, sizeof job, false);
}

int ncclAllGather(const void *from, void *to, size_t count, int dtype, void *comm, void *stream)
{
    operation o = {.kind = ALL_GATHER, .from = from, .to = to, .count = count, .dtype = dtype};
    return enqueue("ncclAllGather", comm, o, stream);
}

int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream)
{
    operation o = {.kind = ALL_REDUCE, .from = from, .to = to, .count = count, .dtype = dtype, .reduction = op};
    return enqueue("ncclAllReduce", comm, o, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream)
{
    operation o = {.kind = REDUCE_SCATTER, .from = from, .to = to, .count = count, .dtype = dtype, .reduction = op};
    return enqueue("ncclReduceScatter", comm, o, stream);
}
