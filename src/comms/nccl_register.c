/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of memory with NCCL: buffers, windows, symmetric windows, and the reasons for refusals. */
#include "comms/nccl.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <strings.h>

enum { WINDOW_DEFAULT = 0, WINDOW_SYMMETRIC = 1 }; /* NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC */

/* True if an environment variable that NCCL reads is set to 0. */
static bool nccl_is_off(const char *variable)
{
    const char *value = secure_getenv(variable);
    if (value == NULL || value[0] == '\0')
        return false;
    char *end;
    long number = strtol(value, &end, 0);
    return end != value && number == 0;
}

/* NCCL refuses a window by success without a handle and gives no reason; this guesses one from the version, topology
 * and sizes. */
static const char *why_refused(const bp_nccl *nccl, bp_register_kind kind)
{
    if (kind < BP_REGISTER_WINDOW)
        return nccl_is_off("NCCL_LOCAL_REGISTER") ? "NCCL_LOCAL_REGISTER=0 is set" : "NCCL returned no handle";
    if (nccl_is_off("NCCL_CUMEM_ENABLE"))
        return "NCCL_CUMEM_ENABLE=0 is set: windows need NCCL's own use of virtual memory";
    if (nccl_is_off("NCCL_WIN_ENABLE"))
        return "NCCL_WIN_ENABLE=0 is set";
    if (nccl->version >= BP_NCCL_NULL_WINDOWS)
        return "NCCL granted no window: the ranks span NVLink domains, and the network does not support "
               "device-initiated transfers";
    if (nccl_is_off("NCCL_LOCAL_REGISTER"))
        return "NCCL_LOCAL_REGISTER=0 is set";
    return "NCCL granted no window: not all GPUs have peer access, or the slab is not a multiple of 2 MiB";
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

    /* 2.28 returns a buffer's handle when it grants no window; registering the same buffer again returns the same
     * handle. */
    bool unclear = nccl->version >= BP_NCCL_BUFFER_WINDOWS && nccl->version < BP_NCCL_NULL_WINDOWS;
    if (!unclear || nccl->granted == NULL || (nccl->lacks & 1u << BP_REGISTER_BUFFER) != 0)
        return BP_OK;
    void *again = NULL, *window = nccl->granted;
    result = nccl->f.ncclCommRegister(nccl->comm, address, bytes, &again);
    if (result == BP_NCCL_SUCCESS && again != NULL)
        result = nccl->f.ncclCommDeregister(nccl->comm, again);
    if (result == BP_NCCL_SUCCESS && again != window)
        return BP_OK;
    bp_status status = bp_nccl_check(nccl, result, "ncclCommRegister");
    nccl->granted = NULL;
    result = nccl->f.ncclCommWindowDeregister(nccl->comm, window);
    return status != BP_OK ? status : bp_nccl_check(nccl, result, "ncclCommWindowDeregister");
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
        return bp_fail(BP_ERR_MISMATCH, "communicator %s is on GPU %d, pool %s is on device %s, not a cuda device",
                       comm->name, gpu, bp_pool_get_info(pool)->name, bp_device_name(device));
    if (cuda->info.ordinal != gpu)
        return bp_fail(BP_ERR_MISMATCH, "communicator %s is on GPU %d, pool %s is on GPU %d", comm->name, gpu,
                       bp_pool_get_info(pool)->name, cuda->info.ordinal);
    return BP_OK;
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
    uint64_t granularity = bp_cuda_of(nccl->device)->info.recommended_granularity;
    if (granularity != 0 && (uintptr_t)address % granularity != 0)
        nccl->unaligned = address;
    *handle = nccl->granted;
    *because = nccl->granted != NULL ? "" : why_refused(nccl, kind);
    return BP_OK;
}

/* Each kind has its own deregistration; calling the wrong one ends the process. Waits for a failed exchange first,
 * whose work may still run. Also done if the device cannot be made current, because the memory is unmapped next; NCCL
 * sets the device itself. */
bp_status bp_nccl_deregister(void *self, bp_register_kind kind, void *handle)
{
    bp_nccl *nccl = self;
    bool window = kind >= BP_REGISTER_WINDOW;
    bp_cuda_scope scope = {NULL};
    (void)bp_nccl_exchange_settle(nccl);
    (void)bp_cuda_enter(nccl->device, &scope);
    int result =
        window ? nccl->f.ncclCommWindowDeregister(nccl->comm, handle) : nccl->f.ncclCommDeregister(nccl->comm, handle);
    bp_status status = bp_nccl_check(nccl, result, window ? "ncclCommWindowDeregister" : "ncclCommDeregister");
    bp_cuda_leave(&scope);
    return status;
}

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

/* True if a value of NCCL_PROTO such as "LL,LL128" or "^Simple" excludes the simple protocol. */
static bool leaves_simple_out(const char *protocols)
{
    bool except = protocols[0] == '^';
    for (const char *at = protocols + except; *at != '\0'; at++)
        if (strncasecmp(at, "simple", 6) == 0)
            return except;
    return !except;
}

/* NULL: no limit is known. */
static const char *limit_of(const bp_nccl *nccl, bp_register_kind kind)
{
    if (kind >= BP_REGISTER_WINDOW)
        return nccl->version < BP_NCCL_BUFFER_WINDOWS && nccl->ranks > 1
                   ? "does not tell windows from plain buffers, which it grants where ranks are on several hosts or "
                     "their GPUs do not reach each other directly; from 2.28 on this can be told"
                   : NULL;
    if (nccl->version < BP_NCCL_BUFFERS_SHARP)
        return "uses registered buffers for NVLink SHARP only; from 2.23 on they serve all GPUs of a node";
    if (nccl->version < BP_NCCL_BUFFERS_GENERAL)
        return "uses registered buffers for NVLink SHARP and InfiniBand SHARP only; from 2.23 on they serve all GPUs "
               "of a node";
    if (nccl->version < BP_NCCL_BUFFERS_NETWORK)
        return "uses registered buffers within a node, and between nodes for InfiniBand SHARP only; from 2.24 on other "
               "collectives use them on the network too";
    return NULL;
}

/* Warns of conditions in which NCCL silently ignores registered memory: environment, traffic, device, version. */
void bp_nccl_warnings(void *self, bp_register_kind kind, uint32_t traffic,
                      void (*tell)(void *user, const char *sentence), void *user)
{
    const bp_nccl *nccl = self;
    const bp_cuda *cuda = bp_cuda_of(nccl->device);
    const char *protocols = secure_getenv("NCCL_PROTO"), *limit = limit_of(nccl, kind);
    char sentence[320];
    if (nccl_is_off("NCCL_LOCAL_REGISTER"))
        tell(user, kind == BP_REGISTER_SYMMETRIC
                       ? "NCCL_LOCAL_REGISTER=0 is set: only NCCL's symmetric kernels use the windows, other "
                         "algorithms copy"
                       : "NCCL_LOCAL_REGISTER=0 is set: NCCL ignores registered buffers");
    if (nccl_is_off("NCCL_CUMEM_ENABLE"))
        tell(user, "NCCL_CUMEM_ENABLE=0 is set: NCCL cannot share these slabs between GPUs (some launchers set it)");
    if (kind >= BP_REGISTER_WINDOW && nccl_is_off("NCCL_WIN_ENABLE"))
        tell(user, "NCCL_WIN_ENABLE=0 is set: NCCL does not use windows");
    if (protocols != NULL && protocols[0] != '\0' && leaves_simple_out(protocols)) {
        snprintf(sentence, sizeof sentence,
                 "NCCL_PROTO=%.64s leaves out the Simple protocol, the only one that uses registered memory",
                 protocols);
        tell(user, sentence);
    }

    if ((traffic & BP_TRAFFIC_FLOAT_AVG) != 0)
        tell(user, "ncclAvg of floats is carried out as a pre-multiplied sum, which uses neither NVLink SHARP "
                   "registration nor symmetric kernels: scale first and use ncclSum");
    if ((traffic & BP_TRAFFIC_IN_PLACE_RING) != 0)
        tell(user, "all-reduces in place over rings do not use registered memory: reduce out of place");
    if ((traffic & BP_TRAFFIC_REDUCE_SCATTER) != 0 && kind == BP_REGISTER_SYMMETRIC)
        tell(user, "a symmetric reduce-scatter needs its send side in a symmetric window: send from these slabs only, "
                   "not from dynamic requests or copies");

    if (cuda->config.memory == BP_CUDA_PLAIN)
        tell(user, "the device's slabs are plain allocations (BP_CUDA_PLAIN), which cannot be windows; as buffers NCCL "
                   "2.24 and newer shares them between GPUs with NCCL_LEGACY_CUDA_REGISTER=1 only");
    else if (cuda->info.handle_types == 0) {
        snprintf(sentence, sizeof sentence,
                 "slabs of GPU %d (%s) have no exportable handle type: other processes cannot map them",
                 cuda->info.ordinal, cuda->info.name);
        tell(user, sentence);
    }
    if (nccl->unaligned != NULL) {
        snprintf(sentence, sizeof sentence,
                 "the slab at %p does not begin on the recommended granularity of %llu bytes", nccl->unaligned,
                 (unsigned long long)cuda->info.recommended_granularity);
        tell(user, sentence);
    }

    if (limit != NULL) {
        snprintf(sentence, sizeof sentence, "%s %s", nccl->version_name, limit);
        tell(user, sentence);
    }
}
