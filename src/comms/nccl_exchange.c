/* Exchanges of host memory over NCCL itself, through a piece of device memory and a stream of their own. They happen a few times in
 * the life of a pool: pieces are small, and the host waits for each. */
#include "comms/nccl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"
#include "core/timeout.h"

#define PIECE 2048u

bool bp_nccl_exchanges_on_device(const bp_comm *comm)
{
    while (comm != NULL && comm->ops->exchange == bp_nccl_exchange) {
        const bp_nccl *nccl = comm->self;
        if (nccl->control == NULL)
            return true;
        comm = nccl->control;
    }
    return false;
}

static uint64_t memory_bytes(const bp_nccl *nccl)
{
    return (uint64_t)PIECE * ((uint64_t)nccl->ranks + 1);
}

bp_status bp_nccl_exchange_init(bp_nccl *nccl)
{
    void *memory;
    BP_TRY(bp_new_array((size_t)nccl->ranks + 1, PIECE, &memory));
    nccl->staging = memory;
    BP_TRY(bp_stream_create(nccl->device, nccl->name, &nccl->stream));
    BP_TRY(bp_device_allocate(nccl->device, memory_bytes(nccl), nccl->stream, &memory));
    nccl->memory = memory;
    return BP_OK;
}

void bp_nccl_exchange_finish(bp_nccl *nccl)
{
    if (nccl->memory != NULL)
        (void)bp_device_free(nccl->device, nccl->memory, memory_bytes(nccl), nccl->stream);
    bp_stream_destroy(&nccl->stream);
    free(nccl->staging);
}

static void count_arrival(void *arrived)
{
    atomic_fetch_add_explicit((atomic_uint *)arrived, 1, memory_order_release);
}

/* The driver would wait for ever: with a time-out the stream counts, and the host looks. An error of NCCL ends the wait early. */
bp_status bp_nccl_exchange_settle(bp_nccl *nccl)
{
    if (!nccl->unsettled)
        return BP_OK;
    const uint64_t deadline_ns = bp_clock_ns() + nccl->timeout_ms * 1000000;
    int state = BP_NCCL_SUCCESS;
    while (nccl->timeout_ms > 0 && atomic_load_explicit(&nccl->arrived, memory_order_acquire) != nccl->started) {
        if (!bp_nccl_state(nccl, &state)) /* aborted: the work ends by itself */
            break;
        if (state != BP_NCCL_SUCCESS && state != BP_NCCL_IN_PROGRESS) {
            nccl->stuck = true;
            return bp_nccl_check(nccl, state, "an exchange");
        }
        if (bp_clock_ns() > deadline_ns)
            return bp_nccl_fail_timeout(nccl, "ncclAllGather");
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    BP_TRY(bp_stream_synchronize(nccl->stream));
    nccl->unsettled = false;
    return BP_OK;
}

static bp_status enqueue(bp_nccl *nccl, uint64_t bytes)
{
    uint8_t *all = nccl->memory + PIECE;
    BP_TRY(bp_stream_copy(nccl->stream, nccl->memory, nccl->staging, bytes));
    BP_TRY(bp_nccl_all_gather(nccl, nccl->memory, all, bytes, nccl->stream));
    return bp_stream_copy(nccl->stream, nccl->staging + PIECE, all, bytes * (uint64_t)nccl->ranks);
}

static bp_status exchange_pieces(bp_nccl *nccl, const uint8_t *mine, uint64_t bytes, uint8_t *all)
{
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t now = bytes - done < PIECE ? bytes - done : PIECE;
        BP_TRY(bp_nccl_exchange_settle(nccl));
        memcpy(nccl->staging, mine + done, now);
        nccl->unsettled = true;
        nccl->started++;
        bp_status status = enqueue(nccl, now);
        if (nccl->timeout_ms > 0 && status != BP_ERR_TIMEOUT) { /* then NCCL may enqueue more behind this */
            bp_status counted = bp_stream_call(nccl->stream, count_arrival, &nccl->arrived);
            status = status == BP_OK ? counted : status;
        }
        BP_TRY(status);
        BP_TRY(bp_nccl_exchange_settle(nccl));

        /* what went wrong on the way, here or on another rank, is told by the communicator afterwards */
        int state = BP_NCCL_SUCCESS;
        if (!bp_nccl_state(nccl, &state))
            return bp_fail(BP_ERR_COMM, "communicator %s was aborted during an exchange", nccl->name);
        BP_TRY(bp_nccl_check(nccl, state, "an exchange"));
        for (uint64_t rank = 0; rank < (uint64_t)nccl->ranks; rank++)
            memcpy(all + rank * bytes + done, nccl->staging + PIECE + rank * now, now);
        done += now;
    }
    return BP_OK;
}

bp_status bp_nccl_exchange(void *self, const void *mine, uint64_t bytes, void *all)
{
    bp_nccl *nccl = self;
    if (nccl->control != NULL)
        return bp_comm_exchange(nccl->control, mine, bytes, all);
    bp_cuda_scope scope;
    BP_TRY(bp_cuda_enter(nccl->device, &scope));
    bp_status status = exchange_pieces(nccl, mine, bytes, all);
    bp_cuda_leave(&scope);
    return status;
}
