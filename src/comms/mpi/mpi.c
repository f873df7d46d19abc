/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI provider, for CPU processes. All calls block and use host memory. With a time-out, exchanges are
 * point-to-point messages polled until a deadline, so that errors can name the missing ranks. */
#include <bucketpool/comm_mpi.h>
#include <bucketpool/comm_ops.h>
#include <bucketpool/core/fail.h>

#include <mpi.h>

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comms/mpi/halves.h"
#include "comms/timeout.h"
#include "core/clock.h"

#define REDUCTIONS 3

typedef struct bp_mpi {
    MPI_Comm comm; /* duplicate of the caller's */
    MPI_Datatype half;
    MPI_Op fp16[REDUCTIONS], bf16[REDUCTIONS];
    int rank, ranks;
    atomic_bool aborted;
    uint64_t timeout_ms; /* 0: unlimited */
    uint64_t offered, shortest;
    MPI_Request creating;
    /* For exchanges with a time-out. Not freed after a failed exchange, because MPI may still read and write it. */
    uint8_t *room; /* a piece of each rank */
    uint64_t room_bytes;
    MPI_Request *requests; /* receives by rank, sends by rank */
    MPI_Status *statuses;
    int *indices;
    bool stuck;
    struct bp_mpi *next_stuck;
} bp_mpi;

static bp_status mpi_fail(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return bp_fail(BP_ERR_COMM, "%s: %s", call, text);
}

#define MPI_TRY(call, name)                                                                                            \
    do {                                                                                                               \
        int mpi_error = (call);                                                                                        \
        if (mpi_error != MPI_SUCCESS)                                                                                  \
            return mpi_fail(mpi_error, name);                                                                          \
    } while (0)

/* ---- MPI itself ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;        /* live communicators of this library */
static bool started_here;     /* MPI was initialized here, and is finalized with the last communicator */
static atomic_bool timed_out; /* an exchange timed out: MPI_Finalize would wait for the missing rank */

static bp_status mpi_start(void)
{
    int started = 0, ended = 0, provided;
    MPI_Finalized(&ended);
    if (ended)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_comm_create_mpi: MPI was finalized in this process and cannot be initialized again");
    MPI_Initialized(&started);
    if (started)
        return BP_OK;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    if (error != MPI_SUCCESS)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_comm_create_mpi: MPI_Init_thread failed with error %d", error);
    started_here = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return BP_OK;
}

static bp_status take_mpi(void)
{
    pthread_mutex_lock(&users_lock);
    bp_status status = mpi_start();
    users += status == BP_OK;
    pthread_mutex_unlock(&users_lock);
    return status;
}

static void leave_mpi(void)
{
    int ended = 0;
    pthread_mutex_lock(&users_lock);
    MPI_Finalized(&ended);
    if (--users == 0 && started_here && !ended && !timed_out)
        MPI_Finalize();
    pthread_mutex_unlock(&users_lock);
}

/* MPI operations take no argument, so there is a function for each dtype and reduction. */
#define HALVES(name, dtype, reduction)                                                                                 \
    static void name(void *from, void *into, int *count, MPI_Datatype *type)                                           \
    {                                                                                                                  \
        (void)type;                                                                                                    \
        bp_halves_reduce((dtype), (reduction), from, into, *count);                                                    \
    }
HALVES(fp16_sum, BP_DTYPE_FP16, BP_REDUCE_SUM)
HALVES(fp16_max, BP_DTYPE_FP16, BP_REDUCE_MAX)
HALVES(fp16_min, BP_DTYPE_FP16, BP_REDUCE_MIN)
HALVES(bf16_sum, BP_DTYPE_BF16, BP_REDUCE_SUM)
HALVES(bf16_max, BP_DTYPE_BF16, BP_REDUCE_MAX)
HALVES(bf16_min, BP_DTYPE_BF16, BP_REDUCE_MIN)

/* ---- gathering ------------------------------------------------------------------------------------------------------ */

/* In pieces of at most INT_MAX bytes; the pieces of consecutive ranks are `bytes` apart. */
static bp_status mpi_gather(const bp_mpi *comm, const uint8_t *mine, uint8_t *all, uint64_t bytes)
{
    bool in_place = mine == all + (uint64_t)comm->rank * bytes;
    for (uint64_t done = 0; done < bytes;) {
        int now = bytes - done < INT_MAX ? (int)(bytes - done) : INT_MAX;
        MPI_Datatype piece, spaced;
        MPI_TRY(MPI_Type_contiguous(now, MPI_BYTE, &piece), "MPI_Type_contiguous");
        int error = MPI_Type_create_resized(piece, 0, (MPI_Aint)bytes, &spaced);
        MPI_Type_free(&piece);
        MPI_TRY(error, "MPI_Type_create_resized");
        error = MPI_Type_commit(&spaced);
        if (error == MPI_SUCCESS)
            error =
                MPI_Allgather(in_place ? MPI_IN_PLACE : mine + done, now, MPI_BYTE, all + done, 1, spaced, comm->comm);
        MPI_Type_free(&spaced);
        MPI_TRY(error, "MPI_Allgather");
        done += (uint64_t)now;
    }
    return BP_OK;
}

static bp_status mpi_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    BP_TRY(bp_stream_synchronize(stream));
    return mpi_gather(self, mine, all, bytes);
}

/* ---- exchanges with a time-out -------------------------------------------------------------------------------------- */

enum { MIN_PIECE = 4096, MAX_PIECE = 65536, ROOM_BYTES = 16 << 20, SPINS = 200 };

/* All ranks compute the same size. */
static uint64_t piece_bytes(const bp_mpi *comm, uint64_t bytes)
{
    uint64_t piece = ROOM_BYTES / (uint64_t)comm->ranks;
    piece = piece < MIN_PIECE ? MIN_PIECE : piece > MAX_PIECE ? MAX_PIECE : piece;
    return bytes < piece ? bytes : piece;
}

/* If a rank gets no memory, the others time out. */
static bp_status mpi_make_room(bp_mpi *comm, uint64_t piece)
{
    const size_t ranks = (size_t)comm->ranks;
    if (comm->requests == NULL) {
        comm->requests = malloc(2 * ranks * sizeof *comm->requests);
        comm->statuses = malloc(2 * ranks * sizeof *comm->statuses);
        comm->indices = malloc(2 * ranks * sizeof *comm->indices);
    }
    if (comm->requests == NULL || comm->statuses == NULL || comm->indices == NULL)
        return bp_fail_memory(2 * ranks * (sizeof *comm->requests + sizeof *comm->statuses + sizeof *comm->indices));
    if (piece <= comm->room_bytes)
        return BP_OK;
    uint8_t *room = malloc(ranks * piece);
    if (room == NULL)
        return bp_fail_memory(ranks * piece);
    free(comm->room);
    comm->room = room;
    comm->room_bytes = piece;
    return BP_OK;
}

/* Spins at first: the other ranks usually arrive soon. */
static void pause_polling(unsigned polls)
{
    if (polls < SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = polls < 2 * SPINS ? 20000 : 200000}, NULL);
}

static bp_status await_all(const bp_mpi *comm, uint64_t deadline_ns)
{
    int left = 2 * (comm->ranks - 1);
    for (unsigned polls = 0; left > 0; polls++) {
        int count = 0;
        int error = MPI_Testsome(2 * comm->ranks, comm->requests, &count, comm->indices, comm->statuses);
        for (int i = 0; error == MPI_ERR_IN_STATUS && i < count; i++)
            if (comm->statuses[i].MPI_ERROR != MPI_SUCCESS)
                return mpi_fail(comm->statuses[i].MPI_ERROR, "an exchange by MPI_Isend and MPI_Irecv");
        MPI_TRY(error, "MPI_Testsome");
        left -= count != MPI_UNDEFINED ? count : 0;
        if (left == 0 || count != 0)
            continue;
        if (!bp_is_past(deadline_ns)) {
            pause_polling(polls);
            continue;
        }
        bp_rank_list missing = {.count = 0};
        for (int rank = 0; rank < comm->ranks; rank++)
            if (comm->requests[rank] != MPI_REQUEST_NULL || comm->requests[comm->ranks + rank] != MPI_REQUEST_NULL)
                bp_rank_list_add(&missing, (uint32_t)rank);
        return bp_timeout_fail(&missing, (uint32_t)comm->ranks, comm->timeout_ms);
    }
    return BP_OK;
}

/* Messages from one sender arrive in order, so one tag serves all exchanges. */
static bp_status mpi_exchange_piece(bp_mpi *comm, const uint8_t *mine, uint64_t bytes, uint64_t deadline_ns)
{
    uint8_t *own = comm->room + (uint64_t)comm->rank * bytes;
    const int now = (int)bytes;
    for (int i = 0; i < 2 * comm->ranks; i++)
        comm->requests[i] = MPI_REQUEST_NULL;
    memcpy(own, mine, bytes);
    for (int step = 1; step < comm->ranks; step++) {
        int from = (comm->rank + comm->ranks - step) % comm->ranks;
        MPI_TRY(
            MPI_Irecv(comm->room + (uint64_t)from * bytes, now, MPI_BYTE, from, 0, comm->comm, &comm->requests[from]),
            "MPI_Irecv");
    }
    for (int step = 1; step < comm->ranks; step++) {
        int to = (comm->rank + step) % comm->ranks;
        MPI_TRY(MPI_Isend(own, now, MPI_BYTE, to, 0, comm->comm, &comm->requests[comm->ranks + to]), "MPI_Isend");
    }
    return await_all(comm, deadline_ns);
}

static bp_status mpi_exchange(void *self, const void *mine, uint64_t bytes, void *all)
{
    bp_mpi *comm = self;
    if (comm->timeout_ms == 0)
        return mpi_gather(comm, mine, all, bytes);
    if (comm->stuck)
        return bp_fail(BP_ERR_COMM, "an earlier exchange of this communicator failed; restart the job");
    const uint64_t piece = piece_bytes(comm, bytes);
    BP_TRY(mpi_make_room(comm, piece));
    const uint64_t deadline_ns = bp_clock_ns() + comm->timeout_ms * 1000000;
    bp_status status = BP_OK;
    for (uint64_t done = 0; done < bytes && status == BP_OK;) {
        const uint64_t now = bytes - done < piece ? bytes - done : piece;
        status = mpi_exchange_piece(comm, (const uint8_t *)mine + done, now, deadline_ns);
        for (uint64_t rank = 0; status == BP_OK && rank < (uint64_t)comm->ranks; rank++)
            memcpy((uint8_t *)all + rank * bytes + done, comm->room + rank * now, now);
        done += now;
    }
    comm->stuck = status != BP_OK;
    if (status == BP_ERR_TIMEOUT)
        timed_out = true;
    return status;
}

/* ---- reducing ------------------------------------------------------------------------------------------------------- */

/* MPI's type and operation of a dtype and reduction. */
typedef struct elements {
    MPI_Datatype type;
    MPI_Op op;
    uint64_t bytes; /* of one element */
} elements;

static elements elements_of(const bp_mpi *comm, bp_dtype dtype, bp_reduction reduction)
{
    const MPI_Op ops[REDUCTIONS] = {MPI_SUM, MPI_MAX, MPI_MIN};
    switch (dtype) {
    case BP_DTYPE_FP16: return (elements){comm->half, comm->fp16[reduction], 2};
    case BP_DTYPE_BF16: return (elements){comm->half, comm->bf16[reduction], 2};
    case BP_DTYPE_INT32: return (elements){MPI_INT32_T, ops[reduction], 4};
    case BP_DTYPE_INT64: return (elements){MPI_INT64_T, ops[reduction], 8};
    default: return (elements){MPI_FLOAT, ops[reduction], 4}; /* other dtypes were refused before */
    }
}

static bp_status mpi_all_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream)
{
    const bp_mpi *comm = self;
    const elements e = elements_of(comm, dtype, reduction);
    BP_TRY(bp_stream_synchronize(stream));
    for (uint64_t done = 0; done < count;) {
        int now = count - done < INT_MAX ? (int)(count - done) : INT_MAX;
        const void *piece = from == to ? MPI_IN_PLACE : (const uint8_t *)from + done * e.bytes;
        MPI_TRY(MPI_Allreduce(piece, (uint8_t *)to + done * e.bytes, now, e.type, e.op, comm->comm), "MPI_Allreduce");
        done += (uint64_t)now;
    }
    return BP_OK;
}

/* One MPI_Reduce for each block: MPI_Reduce_scatter_block in place writes to the start of the buffer, not to this
 * rank's block. */
static bp_status mpi_reduce_scatter(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                    bp_reduction reduction, bp_stream *stream)
{
    const bp_mpi *comm = self;
    const elements e = elements_of(comm, dtype, reduction);
    BP_TRY(bp_stream_synchronize(stream));
    for (int root = 0; root < comm->ranks; root++) {
        const uint8_t *block = (const uint8_t *)from + (uint64_t)root * count * e.bytes;
        for (uint64_t done = 0; done < count;) {
            int now = count - done < INT_MAX ? (int)(count - done) : INT_MAX;
            uint8_t *into = comm->rank == root ? (uint8_t *)to + done * e.bytes : NULL;
            const uint8_t *piece = block + done * e.bytes;
            MPI_TRY(MPI_Reduce(piece == into ? MPI_IN_PLACE : piece, into, now, e.type, e.op, root, comm->comm),
                    "MPI_Reduce");
            done += (uint64_t)now;
        }
    }
    return BP_OK;
}

/* ---- creation and destruction --------------------------------------------------------------------------------------- */

/* Waits for a collective call of the creation. A time-out cannot name the missing ranks: no communicator exists yet to
 * ask over yet. */
static bp_status await_creation(bp_mpi *comm, const char *call)
{
    const uint64_t deadline_ns = bp_clock_ns() + comm->timeout_ms * 1000000;
    int done = 0;
    for (unsigned polls = 0; !done; polls++) {
        MPI_TRY(MPI_Test(&comm->creating, &done, MPI_STATUS_IGNORE), call);
        if (!done && comm->timeout_ms > 0 && bp_is_past(deadline_ns)) {
            comm->stuck = true;
            timed_out = true;
            return bp_fail(
                BP_ERR_TIMEOUT,
                "bp_comm_create_mpi: not all ranks created the communicator within %g s (%s); the missing ranks "
                "are unknown; look for a stopped, blocked or dead process, then end all ranks",
                (double)comm->timeout_ms / 1000, call);
        }
        if (!done)
            pause_polling(polls);
    }
    return BP_OK;
}

static bp_status mpi_build(const void *mpi_comm, bp_mpi *comm)
{
    MPI_Comm given = MPI_COMM_WORLD;
    if (mpi_comm != NULL)
        memcpy(&given, mpi_comm, sizeof(MPI_Comm));
    if (given == MPI_COMM_NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_mpi: the communicator is MPI_COMM_NULL");
    int error = MPI_Comm_idup(given, &comm->comm, &comm->creating);
    if (error != MPI_SUCCESS) {
        comm->comm = MPI_COMM_NULL;
        (void)mpi_fail(error, "MPI_Comm_idup");
        return bp_error_record(BP_ERR_UNSUPPORTED, bp_error_detail());
    }
    bp_status status = await_creation(comm, "MPI_Comm_idup");
    comm->stuck = status != BP_OK;
    BP_TRY(status);
    MPI_TRY(MPI_Comm_set_errhandler(comm->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_TRY(MPI_Comm_rank(comm->comm, &comm->rank), "MPI_Comm_rank");
    MPI_TRY(MPI_Comm_size(comm->comm, &comm->ranks), "MPI_Comm_size");

    /* The shortest time-out of all ranks is used: a variable that is set on one host only would let ranks exchange
     * in two incompatible ways. */
    comm->offered = comm->timeout_ms == 0 ? UINT64_MAX : comm->timeout_ms;
    MPI_TRY(MPI_Iallreduce(&comm->offered, &comm->shortest, 1, MPI_UINT64_T, MPI_MIN, comm->comm, &comm->creating),
            "MPI_Iallreduce");
    BP_TRY(await_creation(comm, "MPI_Iallreduce"));
    comm->timeout_ms = comm->shortest == UINT64_MAX ? 0 : comm->shortest;

    static MPI_User_function *const fp16[REDUCTIONS] = {fp16_sum, fp16_max, fp16_min};
    static MPI_User_function *const bf16[REDUCTIONS] = {bf16_sum, bf16_max, bf16_min};
    MPI_TRY(MPI_Type_contiguous(2, MPI_BYTE, &comm->half), "MPI_Type_contiguous");
    MPI_TRY(MPI_Type_commit(&comm->half), "MPI_Type_commit");
    for (int i = 0; i < REDUCTIONS; i++) {
        MPI_TRY(MPI_Op_create(fp16[i], 1, &comm->fp16[i]), "MPI_Op_create");
        MPI_TRY(MPI_Op_create(bf16[i], 1, &comm->bf16[i]), "MPI_Op_create");
    }
    return BP_OK;
}

/* Never freed, because MPI may still use them; listed so that leak checkers find them reachable. */
static _Atomic(bp_mpi *) stuck_ones;

/* Does not free a communicator that was aborted or timed out: MPI_Comm_free may wait for ranks that have ended. MPI
 * may be finalized already. */
static void mpi_destroy(void *self)
{
    bp_mpi *comm = self;
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended) {
        for (int i = 0; i < REDUCTIONS; i++) {
            if (comm->fp16[i] != MPI_OP_NULL)
                MPI_Op_free(&comm->fp16[i]);
            if (comm->bf16[i] != MPI_OP_NULL)
                MPI_Op_free(&comm->bf16[i]);
        }
        if (comm->half != MPI_DATATYPE_NULL)
            MPI_Type_free(&comm->half);
        if (comm->comm != MPI_COMM_NULL && !comm->aborted && !comm->stuck)
            MPI_Comm_free(&comm->comm);
    }
    leave_mpi();
    if (comm->stuck) {
        comm->next_stuck = atomic_exchange(&stuck_ones, comm);
        return;
    }
    free(comm->room);
    free(comm->requests);
    free(comm->statuses);
    free(comm->indices);
    free(comm);
}

static bp_status mpi_traits(void *self, bp_comm_traits *traits)
{
    const bp_mpi *comm = self;
    *traits = (bp_comm_traits){
        .size = sizeof *traits, .rank = (uint32_t)comm->rank, .ranks = (uint32_t)comm->ranks, .version_name = ""};
    return BP_OK;
}

/* Ends this rank's communicator only: MPI_Abort would end all processes. */
static bp_status mpi_abort_comm(void *self)
{
    ((bp_mpi *)self)->aborted = true;
    return BP_OK;
}

static const bp_comm_ops ops = {.size = sizeof ops,
                                .name = "mpi",
                                .destroy = mpi_destroy,
                                .traits = mpi_traits,
                                .exchange = mpi_exchange,
                                .all_gather = mpi_all_gather,
                                .all_reduce = mpi_all_reduce,
                                .reduce_scatter = mpi_reduce_scatter,
                                .abort = mpi_abort_comm};

bp_status bp_comm_create_mpi(const void *mpi_comm, uint32_t timeout_ms, bp_comm **comm)
{
    uint64_t chosen_ms;
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_mpi: comm must not be NULL");
    BP_TRY(bp_timeout_choose(timeout_ms, &chosen_ms));
    BP_TRY(take_mpi());
    bp_mpi *created = calloc(1, sizeof *created);
    if (created == NULL) {
        leave_mpi();
        return bp_fail_memory(sizeof *created);
    }
    created->timeout_ms = chosen_ms;
    created->comm = MPI_COMM_NULL;
    created->half = MPI_DATATYPE_NULL;
    for (int i = 0; i < REDUCTIONS; i++)
        created->fp16[i] = created->bf16[i] = MPI_OP_NULL;
    bp_status status = mpi_build(mpi_comm, created);
    if (status != BP_OK) {
        mpi_destroy(created);
        return status;
    }
    return bp_comm_create(&ops, created, NULL, comm);
}
