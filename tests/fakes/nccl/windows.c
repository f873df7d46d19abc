/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: the kind granted by each version, and checks of rules. */
#include <stdlib.h>

#include "../cuda/fake_cuda.h"
#include "registration.h"

typedef struct window_job {
    communicator *comm;
    uint64_t number;
    uint64_t address, bytes;
    void **out;
    int flags;
} window_job;

typedef struct brought_window {
    uint64_t bytes, offset;
    int flags;
} brought_window;

static bool is_recommended(uint64_t base, uint64_t bytes, int device)
{
    bp_cu_allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1, .location_id = device};
    size_t step = 0;
    return driver_granularity(&prop, &step) == NCCL_SUCCESS && base % step == 0 && bytes % step == 0;
}

/* Without symmetric support the result depends on the version: none, a window that is only a buffer, or the buffer's
 * handle. */
static bool is_answered_without(const window_job *job)
{
    communicator *comm = job->comm;
    int version = fake.set.version;
    if (version < 22800 && !(comm->local_register && comm->cumem)) {
        *job->out = NULL;
        return true;
    }
    if (version < 22800 || is_symmetric(comm))
        return false;
    if (version >= 22900)
        *job->out = NULL;
    else if (comm->local_register)
        *job->out = add_buffer(comm, job->address, job->bytes);
    return true; /* 2.28 with neither does not write the window */
}

static int check_memory(const window_job *job, window *w, brought_window *mine)
{
    communicator *comm = job->comm;
    fake_cuda_segment segments[MAX_SEGMENTS];
    size_t count = fake_cuda_segments(job->address, job->bytes, segments, MAX_SEGMENTS);
    if (count == 0) {
        broke(rule_window_virtual_memory, "rank %d: %llu bytes at %#llx", comm->rank, (unsigned long long)job->bytes,
              (unsigned long long)job->address);
        return fail(comm, NCCL_CUDA_ERROR, "ncclCommWindowRegister: not memory of cuMemCreate");
    }
    uint64_t end = segments[count < MAX_SEGMENTS ? count - 1 : MAX_SEGMENTS - 1].address +
                   segments[count < MAX_SEGMENTS ? count - 1 : MAX_SEGMENTS - 1].bytes;
    *mine = (brought_window){job->bytes, job->address - segments[0].address, job->flags};
    w->physical = segments[0].physical;
    w->space = end - segments[0].address;
    if (mine->offset % NCCL_WIN_ALIGNMENT != 0) {
        broke(rule_window_start_aligned, "rank %d: %llu bytes into the allocation", comm->rank,
              (unsigned long long)mine->offset);
        return fail(comm, NCCL_INVALID_ARGUMENT, "Window address must be suitably aligned.");
    }
    if (count > 1 && fake.set.version < 23000)
        broke(rule_window_one_segment, "rank %d: %zu allocations", comm->rank, count);
    if (count > 1 && fake.set.version >= 22900 && fake.set.version < 23000)
        return fail(comm, NCCL_INVALID_ARGUMENT, "a window of several physical segments");
    for (const window *other = comm->windows; other != NULL; other = other->next)
        if (other->address < job->address + job->bytes && job->address < other->address + other->bytes)
            broke(rule_windows_disjoint, "rank %d: %#llx and %#llx", comm->rank, (unsigned long long)other->address,
                  (unsigned long long)job->address);
    return NCCL_SUCCESS;
}

static int take_space(communicator *comm, window *w)
{
    for (const window *other = comm->windows; other != NULL; other = other->next)
        if (other->physical == w->physical && fake.set.version < 23000)
            w->space = 0; /* merged */
    if (w->space > fake.set.space_bytes - comm->space_used) {
        for (const window *other = comm->windows; other != NULL; other = other->next)
            if (other->physical == w->physical) {
                broke(rule_symmetric_space, "rank %d: %llu bytes are taken", comm->rank,
                      (unsigned long long)comm->space_used);
                break;
            }
        return fail(comm, NCCL_INTERNAL_ERROR, "the symmetric address space is exhausted");
    }
    comm->space_used += w->space;
    return NCCL_SUCCESS;
}

/* Compares with the windows of the other ranks; ranks that do not take part are skipped. */
static int compare_windows(communicator *comm, const meeting *met, const brought_window *mine)
{
    for (int i = 0; i < comm->clique->ranks; i++) {
        const brought_window *other = met->brought[i];
        if (other == NULL)
            continue;
        if (other->bytes != mine->bytes || other->flags != mine->flags) {
            broke(rule_window_same_size, "rank %d: %llu bytes, flags %d; rank %d: %llu bytes, flags %d", comm->rank,
                  (unsigned long long)mine->bytes, mine->flags, i, (unsigned long long)other->bytes, other->flags);
            return fail(comm, NCCL_INVALID_ARGUMENT, "ranks register different windows");
        }
        if ((mine->flags & NCCL_WIN_SYMMETRIC) != 0 && other->offset != mine->offset) {
            broke(rule_window_same_offset, "rank %d: %llu; rank %d: %llu", comm->rank, (unsigned long long)mine->offset,
                  i, (unsigned long long)other->offset);
            return fail(comm, NCCL_INVALID_ARGUMENT, "ranks register symmetric windows at different offsets");
        }
    }
    return NCCL_SUCCESS;
}

static int make_window(const window_job *job, window *w)
{
    communicator *comm = job->comm;
    brought_window mine = {0};
    int result = check_memory(job, w, &mine);
    if (result == NCCL_SUCCESS)
        result = take_space(comm, w);
    if (result != NCCL_SUCCESS) {
        stay_away(comm, MEET_WINDOW, job->number, 0);
        return result;
    }
    meeting *met = NULL;
    result = meet(comm, MEET_WINDOW, job->number, 0, &mine, &met);
    if (result == NCCL_SUCCESS) {
        result = compare_windows(comm, met, &mine);
        part(comm, met);
    }
    if (result != NCCL_SUCCESS)
        comm->space_used -= w->space;
    return result;
}

static int register_window(const window_job *job)
{
    communicator *comm = job->comm;
    fake_cuda_segment first;
    if (fake.set.version < 22800 && fake_cuda_segments(job->address, job->bytes, &first, 1) > 0 &&
        !is_recommended(first.address, first.bytes, comm->device)) {
        *job->out = NULL;
        stay_away(comm, MEET_WINDOW, job->number, 0);
        return NCCL_SUCCESS;
    }
    window *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NCCL_SYSTEM_ERROR;
    int result = make_window(job, w);
    if (result != NCCL_SUCCESS) {
        free(w);
        return result;
    }
    w->comm = comm;
    w->address = job->address;
    w->bytes = job->bytes;
    w->flags = job->flags;
    w->symmetric = is_symmetric(comm) && (job->flags & NCCL_WIN_SYMMETRIC) != 0;
    w->next = comm->windows;
    comm->windows = w;
    fake.counts.windows++;
    fake_cuda_mark_registered(w->address, w->bytes, true);
    *job->out = w;
    return NCCL_SUCCESS;
}

static int do_register_window(void *argument)
{
    const window_job *job = argument;
    fake_lock();
    fake.counts.window_calls++;
    int result = check_moment(job->comm, "ncclCommWindowRegister");
    bool refused = result == NCCL_SUCCESS && is_window_refused(job->comm->rank);
    if (refused)
        *job->out = NULL;
    if (refused || result != NCCL_SUCCESS || is_answered_without(job))
        stay_away(job->comm, MEET_WINDOW, job->number, 0);
    else
        result = register_window(job);
    fake_unlock();
    return result;
}

int ncclCommWindowRegister(void *handle, void *address, size_t bytes, void **out, int flags)
{
    fake_lock();
    communicator *comm = find_comm(handle, "ncclCommWindowRegister");
    if (comm == NULL) {
        fake_unlock();
        return NCCL_INVALID_ARGUMENT;
    }
    int result = enter("ncclCommWindowRegister", comm);
    window_job job = {comm, comm->window_number++, (uint64_t)(uintptr_t)address, bytes, out, flags};
    if (result == NCCL_SUCCESS && (address == NULL || bytes == 0 || out == NULL))
        result = NCCL_INVALID_ARGUMENT;
    if (result != NCCL_SUCCESS) {
        stay_away(comm, MEET_WINDOW, job.number, 0);
        fail(comm, result, "ncclCommWindowRegister: not done");
    }
    fake_unlock();
    return result != NCCL_SUCCESS ? result : do_or_defer(do_register_window, &job, sizeof job, true);
}
