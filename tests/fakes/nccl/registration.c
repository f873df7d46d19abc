/* SPDX-License-Identifier: Apache-2.0 */
/* Deregistration, and the registration kind of a collective's memory. */
#include <stdlib.h>

#include "../cuda/fake_cuda.h"
#include "registration.h"

static window *window_called(const communicator *comm, const void *handle)
{
    for (window *w = comm->windows; w != NULL; w = w->next)
        if (w == handle)
            return w;
    return NULL;
}

static void drop_window(communicator *comm, window *w)
{
    fake_cuda_segment first;
    if (fake_cuda_segments(w->address, w->bytes, &first, 1) == 0 || first.physical != w->physical)
        broke(rule_mapped_while_registered, "rank %d: %#llx", comm->rank, (unsigned long long)w->address);
    window **at = &comm->windows;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    comm->space_used -= w->space;
    fake.counts.windows--;
    fake_cuda_mark_registered(w->address, w->bytes, false);
    free(w);
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

static int end_buffer(communicator *comm, void *handle)
{
    buffer *b = buffer_called(comm, handle);
    if (b == NULL) {
        broke(rule_deregister_by_kind, "ncclCommDeregister of %s",
              window_called(comm, handle) != NULL ? "a window" : "an unknown handle");
        return fail(comm, NCCL_INVALID_USAGE, "Deregister: Could not find handle");
    }
    fake.counts.buffer_ends++;
    note_ended(handle);
    drop_buffer(comm, b);
    return NCCL_SUCCESS;
}

static int end_window(communicator *comm, void *handle)
{
    window *w = window_called(comm, handle);
    buffer *b = buffer_called(comm, handle);
    bool is_buffer = b != NULL && fake.set.version >= 22800 && fake.set.version < 22900 && !is_symmetric(comm);
    if (w == NULL && !is_buffer) {
        broke(rule_deregister_by_kind, "ncclCommWindowDeregister of %s", b != NULL ? "a buffer" : "an unknown handle");
        return fail(comm, NCCL_INVALID_USAGE, "not a window");
    }
    fake.counts.window_ends++;
    note_ended(handle);
    if (w != NULL)
        drop_window(comm, w);
    else
        drop_buffer(comm, b);
    return NCCL_SUCCESS;
}

/* A deregistration that fails on demand still forgets the registration: the caller has no second try. */
static int end_registration(const char *function, void *handle, void *registered,
                            int (*end)(communicator *comm, void *handle))
{
    fake_lock();
    communicator *comm = find_comm(handle, function);
    int result = comm == NULL ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
    int asked = comm == NULL ? NCCL_SUCCESS : enter(function, comm);
    if (result == NCCL_SUCCESS && registered != NULL) {
        result = check_moment(comm, function);
        if (result == NCCL_SUCCESS)
            result = end(comm, registered);
        driver_set_context(comm->context);
    }
    fake_unlock();
    return asked != NCCL_SUCCESS ? asked : result;
}

int ncclCommDeregister(void *comm, void *handle)
{
    return end_registration("ncclCommDeregister", comm, handle, end_buffer);
}

int ncclCommWindowDeregister(void *comm, void *handle)
{
    return end_registration("ncclCommWindowDeregister", comm, handle, end_window);
}

bool end_registrations(communicator *comm)
{
    bool any = comm->buffers != NULL || comm->windows != NULL;
    while (comm->windows != NULL)
        drop_window(comm, comm->windows);
    while (comm->buffers != NULL)
        drop_buffer(comm, comm->buffers);
    return any;
}

/* ---- memory of collectives ----------------------------------------------------------------------------------------- */

static bool is_servable(uint64_t address, uint64_t bytes, bool one_segment)
{
    fake_cuda_segment segments[MAX_SEGMENTS];
    size_t count = fake_cuda_segments(address, bytes, segments, MAX_SEGMENTS);
    bool fits = count > 0 && count <= MAX_SEGMENTS && (count == 1 || !one_segment);
    for (size_t i = 0; i < count && fits; i++)
        fits = segments[i].handle_types != 0;
    return fits;
}

bp_register_kind registered_as(const communicator *comm, const void *memory, uint64_t bytes)
{
    uint64_t address = (uint64_t)(uintptr_t)memory;
    for (const window *w = comm->windows; w != NULL; w = w->next)
        if (w->address <= address && address + bytes <= w->address + w->bytes &&
            is_servable(w->address, w->bytes, fake.set.version < 23000))
            return w->symmetric ? BP_REGISTER_SYMMETRIC : BP_REGISTER_WINDOW;
    const buffer *b = buffer_with(comm, address, address + bytes);
    return b != NULL && is_servable(address, bytes, true) ? BP_REGISTER_BUFFER : BP_REGISTER_NONE;
}
