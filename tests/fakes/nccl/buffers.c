/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: ncclCommRegister takes whole pages of any memory. */
#include <stdlib.h>

#include "../cuda/fake_cuda.h"
#include "registration.h"

enum { HOST_PAGE = 4096 };

/* ---- calls that are allowed ---------------------------------------------------------------------------------------- */

int check_moment(communicator *comm, const char *function)
{
    if (comm->running > 0) {
        broke(rule_register_at_rest, "%s: rank %d has %u collectives on their way", function, comm->rank,
              comm->running);
        return fail(comm, NCCL_INVALID_USAGE, "%s: collectives are on their way", function);
    }
    if (fake_cuda_any_capture()) {
        broke(rule_register_outside_capture, "%s of rank %d", function, comm->rank);
        return fail(comm, NCCL_INVALID_USAGE, "%s: a stream is being captured", function);
    }
    return NCCL_SUCCESS;
}

bool is_symmetric(const communicator *comm)
{
    return fake.set.symmetric && comm->win_enable && comm->cumem;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------- */

buffer *buffer_with(const communicator *comm, uint64_t begin, uint64_t end)
{
    for (buffer *b = comm->buffers; b != NULL; b = b->next)
        if (b->begin <= begin && end <= b->end)
            return b;
    return NULL;
}

buffer *buffer_called(const communicator *comm, const void *handle)
{
    for (buffer *b = comm->buffers; b != NULL; b = b->next)
        if (b == handle)
            return b;
    return NULL;
}

buffer *add_buffer(communicator *comm, uint64_t address, uint64_t bytes)
{
    uint64_t begin = address / HOST_PAGE * HOST_PAGE;
    uint64_t end = (address + bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    buffer *b = buffer_with(comm, begin, end);
    if (b == NULL) {
        b = calloc(1, sizeof *b);
        if (b == NULL)
            return NULL;
        *b = (buffer){comm->buffers, begin, end, 0};
        comm->buffers = b;
        fake_cuda_mark_registered(begin, end - begin, true);
    }
    b->references++;
    fake.counts.buffers++;
    return b;
}

void drop_buffer(communicator *comm, buffer *b)
{
    fake.counts.buffers--;
    if (--b->references > 0)
        return;
    buffer **at = &comm->buffers;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    fake_cuda_mark_registered(b->begin, b->end - b->begin, false);
    free(b);
}

int ncclCommRegister(void *handle, void *address, size_t bytes, void **out)
{
    communicator *comm;
    int result = begin_call("ncclCommRegister", handle, &comm);
    if (result != NCCL_SUCCESS)
        return result;
    if (address == NULL || out == NULL)
        result = fail(comm, NCCL_INVALID_ARGUMENT, "ncclCommRegister: NULL");
    else
        result = check_moment(comm, "ncclCommRegister");
    if (result == NCCL_SUCCESS && out != NULL) {
        fake.counts.buffer_calls++;
        *out = comm->local_register ? add_buffer(comm, (uint64_t)(uintptr_t)address, bytes) : NULL;
    }
    fake_unlock();
    return result;
}
