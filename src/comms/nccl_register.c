/* Registration of memory with NCCL: buffers, windows, symmetric windows, and why they were not granted. */
#include "comms/nccl.h"

#include "core/fail.h"

enum { WINDOW_DEFAULT = 0, WINDOW_SYMMETRIC = 1 }; /* NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC */

/* NCCL succeeds without a handle where it does not grant one; its reasons can only be guessed from outside. */
static const char *why_no_buffer(void)
{
    return bp_nccl_is_off("NCCL_LOCAL_REGISTER") ? "NCCL_LOCAL_REGISTER=0 is set" : "NCCL returned no handle";
}

static const char *why_no_window(const bp_nccl *nccl)
{
    if (bp_nccl_is_off("NCCL_CUMEM_ENABLE"))
        return "NCCL_CUMEM_ENABLE=0 is set: windows need NCCL's own use of virtual memory";
    if (bp_nccl_is_off("NCCL_WIN_ENABLE"))
        return "NCCL_WIN_ENABLE=0 is set";
    if (nccl->version >= BP_NCCL_NULL_WINDOWS)
        return "NCCL returned no window: its ranks are not of one NVLink domain, and the network does not take "
               "device-initiated transfers";
    if (bp_nccl_is_off("NCCL_LOCAL_REGISTER"))
        return "NCCL_LOCAL_REGISTER=0 is set";
    return "NCCL returned no window: its GPUs do not all reach each other, or the slab is no multiple of 2 MiB";
}

/* 2.28 answers with a buffer's handle where it grants no window; the same buffer once more has the same handle. */
static bp_status refuse_buffer(bp_nccl *nccl, void *address, uint64_t bytes)
{
    bool unclear = nccl->version >= BP_NCCL_BUFFER_WINDOWS && nccl->version < BP_NCCL_NULL_WINDOWS;
    if (!unclear || nccl->granted == NULL || (nccl->lacks & 1u << BP_REGISTER_BUFFER) != 0)
        return BP_OK;
    void *again = NULL, *window = nccl->granted;
    int result = nccl->f.ncclCommRegister(nccl->comm, address, bytes, &again);
    if (result == BP_NCCL_SUCCESS && again != NULL)
        result = nccl->f.ncclCommDeregister(nccl->comm, again);
    if (result == BP_NCCL_SUCCESS && again != window)
        return BP_OK;
    bp_status status = bp_nccl_check(nccl, result, "ncclCommRegister");
    nccl->granted = NULL;
    result = nccl->f.ncclCommWindowDeregister(nccl->comm, window);
    return status != BP_OK ? status : bp_nccl_check(nccl, result, "ncclCommWindowDeregister");
}

static bp_status register_current(bp_nccl *nccl, void *address, uint64_t bytes, bp_register_kind kind)
{
    int flags = kind == BP_REGISTER_SYMMETRIC ? WINDOW_SYMMETRIC : WINDOW_DEFAULT;
    nccl->granted = NULL;
    if (kind < BP_REGISTER_WINDOW)
        return bp_nccl_check(nccl, nccl->f.ncclCommRegister(nccl->comm, address, bytes, &nccl->granted),
                             "ncclCommRegister");
    int result = nccl->f.ncclCommWindowRegister(nccl->comm, address, bytes, &nccl->granted, flags);
    BP_TRY(bp_nccl_check(nccl, result, "ncclCommWindowRegister"));
    return refuse_buffer(nccl, address, bytes);
}

bp_status bp_nccl_enter(bp_comm *comm)
{
    if (comm->ops->register_memory != bp_nccl_register)
        return BP_OK;
    bp_nccl *nccl = comm->self;
    BP_TRY(bp_cuda_enter(nccl->device, &nccl->scope));
    nccl->entered = true;
    return BP_OK;
}

void bp_nccl_leave(bp_comm *comm)
{
    if (comm->ops->register_memory != bp_nccl_register)
        return;
    bp_nccl *nccl = comm->self;
    if (nccl->entered)
        bp_cuda_leave(&nccl->scope);
    nccl->entered = false;
}

bp_status bp_nccl_check_pool(const bp_comm *comm, const bp_pool *pool)
{
    if (comm->ops->register_memory != bp_nccl_register)
        return BP_OK;
    int gpu = bp_cuda_of(((const bp_nccl *)comm->self)->device)->info.ordinal;
    const bp_device *device = bp_pool_get_info(pool)->device;
    const bp_cuda *cuda = bp_cuda_of(device);
    if (cuda == NULL)
        return bp_fail(BP_ERR_MISMATCH,
                       "communicator %s is of GPU %d, pool %s is on device %s, which is no cuda device", comm->name,
                       gpu, bp_pool_get_info(pool)->name, bp_device_name(device));
    if (cuda->info.ordinal != gpu)
        return bp_fail(BP_ERR_MISMATCH, "communicator %s is of GPU %d, pool %s is on GPU %d", comm->name, gpu,
                       bp_pool_get_info(pool)->name, cuda->info.ordinal);
    return BP_OK;
}

static bool is_unaligned(const bp_nccl *nccl, const void *address)
{
    uint64_t granularity = bp_cuda_of(nccl->device)->info.recommended_granularity;
    return granularity != 0 && (uintptr_t)address % granularity != 0;
}

bp_status bp_nccl_register(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because)
{
    bp_nccl *nccl = self;
    bp_cuda_scope scope = {NULL};
    if (!nccl->entered)
        BP_TRY(bp_cuda_enter(nccl->device, &scope));
    bp_status status = register_current(nccl, address, bytes, kind);
    bp_cuda_leave(&scope);
    BP_TRY(status);
    if (is_unaligned(nccl, address))
        nccl->unaligned = address;
    *handle = nccl->granted;
    *because = nccl->granted != NULL ? "" : kind >= BP_REGISTER_WINDOW ? why_no_window(nccl) : why_no_buffer();
    return BP_OK;
}

/* Each kind has its own: the wrong one ends the process. An exchange that failed half-way may still be on its way. */
bp_status bp_nccl_deregister(void *self, bp_register_kind kind, void *handle)
{
    bp_nccl *nccl = self;
    bool window = kind >= BP_REGISTER_WINDOW;
    bp_cuda_scope scope;
    (void)bp_nccl_exchange_settle(nccl);
    BP_TRY(bp_cuda_enter(nccl->device, &scope));
    int result =
        window ? nccl->f.ncclCommWindowDeregister(nccl->comm, handle) : nccl->f.ncclCommDeregister(nccl->comm, handle);
    bp_status status = bp_nccl_check(nccl, result, window ? "ncclCommWindowDeregister" : "ncclCommDeregister");
    bp_cuda_leave(&scope);
    return status;
}
