/* Wrapping an NCCL communicator: what is checked, what its version can do, its errors, its end. */
#include "comms/nccl.h"

#include <stdlib.h>
#include <time.h>

#include "core/fail.h"
#include "core/memory.h"
#include "core/structs.h"
#include "core/timeout.h"

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* ncclDataType_t and ncclRedOp_t. */
enum { NCCL_UINT8 = 1, NCCL_INT32 = 2, NCCL_INT64 = 4, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2, NCCL_MIN = 3 };

static int nccl_dtype(bp_dtype dtype)
{
    switch (dtype) {
    case BP_DTYPE_FP32: return NCCL_FLOAT32;
    case BP_DTYPE_FP16: return NCCL_FLOAT16;
    case BP_DTYPE_BF16: return NCCL_BFLOAT16;
    case BP_DTYPE_INT32: return NCCL_INT32;
    case BP_DTYPE_INT64: return NCCL_INT64;
    default: return NCCL_UINT8; /* refused before */
    }
}

static int nccl_op(bp_reduction reduction)
{
    return reduction == BP_REDUCE_MAX ? NCCL_MAX : reduction == BP_REDUCE_MIN ? NCCL_MIN : NCCL_SUM;
}

/* The stream as NCCL takes it, with the communicator's device current. */
static bp_status nccl_collectives_enter(const bp_nccl *nccl, bp_stream *stream, void **native, bp_cuda_scope *scope)
{
    uint64_t handle;
    if (bp_device_undecorated(stream->device) != bp_device_undecorated(nccl->device))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "communicator %s is of GPU %d, stream %s of another device (%s)",
                       nccl->name, bp_cuda_of(nccl->device)->info.ordinal, stream->name,
                       bp_device_name(stream->device));
    BP_TRY(bp_stream_native(stream, &handle));
    *native = (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr): a handle, as the driver gave it */
    return bp_cuda_enter(nccl->device, scope);
}

bp_status bp_nccl_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclAllGather(mine, all, bytes, NCCL_UINT8, nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclAllGather");
    bp_cuda_leave(&scope);
    return status;
}

static bp_status nccl_all_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclAllReduce(from, to, count, nccl_dtype(dtype), nccl_op(reduction), nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclAllReduce");
    bp_cuda_leave(&scope);
    return status;
}

static bp_status nccl_reduce_scatter(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                     bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    int result = nccl->f.ncclReduceScatter(from, to, count, nccl_dtype(dtype), nccl_op(reduction), nccl->comm, native);
    bp_status status = bp_nccl_check(nccl, result, "ncclReduceScatter");
    bp_cuda_leave(&scope);
    return status;
}

/* ---- the communicator -------------------------------------------------------------------------------------------- */

/* ---- results -------------------------------------------------------------------------------------------------------- */

bool bp_nccl_state(bp_nccl *nccl, int *state)
{
    pthread_mutex_lock(&nccl->asking);
    bool there = !nccl->aborted;
    if (there) {
        int asked = nccl->f.ncclCommGetAsyncError(nccl->comm, state);
        *state = asked != BP_NCCL_SUCCESS ? asked : *state;
    }
    pthread_mutex_unlock(&nccl->asking);
    return there;
}

static bool is_aborted(bp_nccl *nccl)
{
    pthread_mutex_lock(&nccl->asking);
    bool aborted = nccl->aborted;
    pthread_mutex_unlock(&nccl->asking);
    return aborted;
}

/* Communicators that do not block answer "in progress"; their calls are over when the communicator says so, or it is late. */
static int settle(bp_nccl *nccl, int result)
{
    const struct timespec pause = {.tv_nsec = 50000};
    const uint64_t deadline_ns = bp_clock_ns() + nccl->timeout_ms * 1000000;
    while (result == BP_NCCL_IN_PROGRESS && (nccl->timeout_ms == 0 || bp_clock_ns() < deadline_ns)) {
        nanosleep(&pause, NULL);
        if (!bp_nccl_state(nccl, &result))
            break;
    }
    return result;
}

static bp_status nccl_fail(bp_nccl *nccl, bp_status status, int result, const char *call)
{
    if (is_aborted(nccl))
        return bp_fail(status, "communicator %s (rank %d of %d) was aborted during %s", nccl->name, nccl->rank,
                       nccl->ranks, call);
    const char *text = nccl->f.ncclGetErrorString(result);
    const char *last = nccl->f.ncclGetLastError(nccl->comm);
    bool more = last != NULL && last[0] != '\0';
    return bp_fail(status, "%s of communicator %s (rank %d of %d): %s (%d)%s%s", call, nccl->name, nccl->rank,
                   nccl->ranks, text != NULL ? text : "unknown error", result, more ? ": " : "", more ? last : "");
}

bp_status bp_nccl_fail_timeout(bp_nccl *nccl, const char *call)
{
    nccl->stuck = true;
    return bp_fail(
        BP_ERR_TIMEOUT,
        "%s (rank %d of %d) has not ended within %g s; NCCL does not tell which ranks are missing: look for a "
        "process that is stopped, stuck or dead, then end all ranks",
        call, nccl->rank, nccl->ranks, (double)nccl->timeout_ms / 1000);
}

bp_status bp_nccl_check(bp_nccl *nccl, int result, const char *call)
{
    result = settle(nccl, result);
    if (result == BP_NCCL_IN_PROGRESS && !is_aborted(nccl))
        return bp_nccl_fail_timeout(nccl, call);
    return result == BP_NCCL_SUCCESS ? BP_OK : nccl_fail(nccl, BP_ERR_COMM, result, call);
}

/* ---- functions ------------------------------------------------------------------------------------------------------ */

const char *bp_nccl_missing(const bp_nccl_functions *f)
{
    const struct {
        bool present;
        const char *name;
    } functions[] = {
        {f->ncclGetVersion != NULL, "ncclGetVersion"},
        {f->ncclGetErrorString != NULL, "ncclGetErrorString"},
        {f->ncclGetLastError != NULL, "ncclGetLastError"},
        {f->ncclCommCount != NULL, "ncclCommCount"},
        {f->ncclCommUserRank != NULL, "ncclCommUserRank"},
        {f->ncclCommCuDevice != NULL, "ncclCommCuDevice"},
        {f->ncclCommGetAsyncError != NULL, "ncclCommGetAsyncError"},
        {f->ncclCommAbort != NULL, "ncclCommAbort"},
        {f->ncclAllGather != NULL, "ncclAllGather"},
        {f->ncclAllReduce != NULL, "ncclAllReduce"},
        {f->ncclReduceScatter != NULL, "ncclReduceScatter"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!functions[i].present)
            return functions[i].name;
    return NULL;
}

/* "NCCL 2.28.9" */
static void nccl_version_name(int version, char *name, size_t bytes)
{
    if (version < 10000) /* as versions before 2.9 counted */
        snprintf(name, bytes, "NCCL %d.%d.%d", version / 1000, version / 100 % 10, version % 100);
    else
        snprintf(name, bytes, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

bp_status bp_nccl_version(const bp_nccl_functions *functions, int *version)
{
    int found = 0;
    char name[32];
    int result = functions->ncclGetVersion(&found);
    if (result != BP_NCCL_SUCCESS)
        return bp_fail(BP_ERR_UNSUPPORTED, "NCCL does not tell its version: ncclGetVersion answers %d", result);
    nccl_version_name(found, name, sizeof name);
    if (found < BP_NCCL_BUFFERS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s is too old: registration needs 2.19 or newer", name);
    *version = found;
    return BP_OK;
}

static bp_status take_functions(bp_nccl *nccl, const bp_nccl_functions *functions)
{
    nccl->f.size = sizeof nccl->f;
    if (functions == NULL)
        return bp_nccl_find(&nccl->f);
    BP_TRY(bp_struct_read("bp_comm_create_nccl", functions, false, &nccl->f, sizeof nccl->f));
    const char *missing = bp_nccl_missing(&nccl->f);
    if (missing != NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: the table has no function %s", missing);
    return BP_OK;
}

static void choose_kinds(bp_nccl *nccl)
{
    const bp_nccl_functions *f = &nccl->f;
    bool buffers = f->ncclCommRegister != NULL && f->ncclCommDeregister != NULL;
    bool windows = nccl->version >= BP_NCCL_WINDOWS && f->ncclCommWindowRegister != NULL &&
                   f->ncclCommWindowDeregister != NULL && bp_cuda_of(nccl->device)->config.memory != BP_CUDA_PLAIN;
    nccl->best = windows ? BP_REGISTER_SYMMETRIC : buffers ? BP_REGISTER_BUFFER : BP_REGISTER_NONE;
    nccl->lacks = windows && !buffers ? 1u << BP_REGISTER_BUFFER : 0;
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

static const bp_nccl_config nccl_config_defaults = {.size = sizeof nccl_config_defaults};

bp_status bp_nccl_config_init(bp_nccl_config *config, size_t size)
{
    return bp_struct_init("bp_nccl_config_init", config, size, &nccl_config_defaults, sizeof nccl_config_defaults);
}

static bp_status nccl_check_config(const bp_nccl_config *config, bp_comm *const *comm)
{
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: needs an output");
    if (config->comm == NULL || config->device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: needs %s",
                       config->comm == NULL ? "a communicator of NCCL" : "the device of the communicator's GPU");
    if (bp_cuda_of(config->device) == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: device %s is no cuda device",
                       bp_device_name(config->device));
    return config->control != NULL ? bp_comm_check(config->control, "bp_comm_create_nccl") : BP_OK;
}

/* A communicator that is broken, or not finished, has no rank that could be asked for. */
static bp_status check_health(bp_nccl *nccl)
{
    int state = BP_NCCL_SUCCESS;
    int result = nccl->f.ncclCommGetAsyncError(nccl->comm, &state);
    if (result != BP_NCCL_SUCCESS)
        return nccl_fail(nccl, BP_ERR_INVALID_ARGUMENT, result, "ncclCommGetAsyncError");
    if (state == BP_NCCL_IN_PROGRESS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "communicator %s is still being made (ncclInProgress): wait until ncclCommGetAsyncError answers "
                       "ncclSuccess",
                       nccl->name);
    return state == BP_NCCL_SUCCESS ? BP_OK : nccl_fail(nccl, BP_ERR_INVALID_ARGUMENT, state, "the last operation");
}

static bp_status nccl_ask(bp_nccl *nccl)
{
    int rank = 0, ranks = 0, ordinal = 0;
    const char *call = "ncclCommCount";
    int result = nccl->f.ncclCommCount(nccl->comm, &ranks);
    if (result == BP_NCCL_SUCCESS)
        result = nccl->f.ncclCommUserRank(nccl->comm, &rank), call = "ncclCommUserRank";
    if (result == BP_NCCL_SUCCESS)
        result = nccl->f.ncclCommCuDevice(nccl->comm, &ordinal), call = "ncclCommCuDevice";
    if (result != BP_NCCL_SUCCESS)
        return nccl_fail(nccl, BP_ERR_INVALID_ARGUMENT, result, call);
    if (rank < 0 || rank >= ranks)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "communicator %s has rank %d of %d ranks", nccl->name, rank, ranks);
    nccl->rank = rank;
    nccl->ranks = ranks;
    const bp_cuda *cuda = bp_cuda_of(nccl->device);
    if (ordinal != cuda->info.ordinal)
        return bp_fail(BP_ERR_MISMATCH, "communicator %s (rank %d of %d) is of GPU %d, the device is GPU %d (%s)",
                       nccl->name, rank, ranks, ordinal, cuda->info.ordinal, cuda->info.name);
    return BP_OK;
}

static bp_status check_control(const bp_nccl *nccl)
{
    const bp_comm *control = nccl->control;
    if (control->traits.ranks != (uint32_t)nccl->ranks || control->traits.rank != (uint32_t)nccl->rank)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "communicator %s has rank %d of %d, its control communicator %s rank %u of %u: they must be the "
                       "same ranks in the same order",
                       nccl->name, nccl->rank, nccl->ranks, control->name, control->traits.rank, control->traits.ranks);
    return BP_OK;
}

static bp_status build_current(bp_nccl *nccl)
{
    BP_TRY(check_health(nccl));
    BP_TRY(nccl_ask(nccl));
    return nccl->control != NULL ? check_control(nccl) : bp_nccl_exchange_init(nccl);
}

static bp_status nccl_build(const bp_nccl_config *config, bp_nccl *nccl)
{
    pthread_mutex_init(&nccl->asking, NULL);
    nccl->comm = config->comm;
    nccl->device = config->device;
    bp_device_retain(nccl->device);
    nccl->control = config->control;
    if (nccl->control != NULL)
        bp_comm_retain(nccl->control);
    BP_TRY(bp_copy_string(config->name != NULL ? config->name : "nccl", &nccl->name));
    BP_TRY(bp_timeout_choose(config->timeout_ms, &nccl->timeout_ms));
    BP_TRY(take_functions(nccl, config->functions));
    BP_TRY(bp_nccl_version(&nccl->f, &nccl->version));
    nccl_version_name(nccl->version, nccl->version_name, sizeof nccl->version_name);
    choose_kinds(nccl);
    bp_cuda_scope scope;
    BP_TRY(bp_cuda_enter(nccl->device, &scope));
    bp_status status = build_current(nccl);
    bp_cuda_leave(&scope);
    return status;
}

/* Kept for ever, where tools that look for leaks find them. */
static _Atomic(bp_nccl *) stuck_ones;

static void nccl_destroy(void *self)
{
    bp_nccl *nccl = self;
    if (nccl->stuck && !is_aborted(nccl)) { /* the work may still touch the stream, memory, this struct */
        nccl->next_stuck = atomic_exchange(&stuck_ones, nccl);
        return;
    }
    bp_nccl_exchange_finish(nccl);
    bp_comm_destroy(&nccl->control);
    bp_device_release(nccl->device);
    pthread_mutex_destroy(&nccl->asking);
    free(nccl->name);
    free(nccl);
}

static bp_status nccl_traits(void *self, bp_comm_traits *traits)
{
    const bp_nccl *nccl = self;
    *traits = (bp_comm_traits){.size = sizeof *traits,
                               .rank = (uint32_t)nccl->rank,
                               .ranks = (uint32_t)nccl->ranks,
                               .best = nccl->best,
                               .lacks = nccl->lacks,
                               .version = (uint64_t)nccl->version,
                               .version_name = nccl->version_name,
                               .captures = 1};
    return BP_OK;
}

/* NCCL frees it: from now on it is asked neither for its state nor for its words. Others may be waiting for this: it is aborted even where
 * the device cannot be made current, as NCCL does so itself. */
static bp_status nccl_abort_comm(void *self)
{
    bp_nccl *nccl = self;
    bp_cuda_scope scope = {NULL};
    (void)bp_cuda_enter(nccl->device, &scope);
    pthread_mutex_lock(&nccl->asking);
    nccl->aborted = true;
    pthread_mutex_unlock(&nccl->asking);
    int result = nccl->f.ncclCommAbort(nccl->comm);
    bool over = result == BP_NCCL_SUCCESS || result == BP_NCCL_IN_PROGRESS;
    const char *text = over ? NULL : nccl->f.ncclGetErrorString(result);
    bp_status status =
        over ? BP_OK
             : bp_fail(BP_ERR_COMM, "ncclCommAbort of communicator %s (rank %d of %d): %s (%d)", nccl->name, nccl->rank,
                       nccl->ranks, text != NULL ? text : "unknown error", result);
    bp_cuda_leave(&scope);
    return status;
}

static const bp_comm_ops ops = {.size = sizeof ops,
                                .name = "nccl",
                                .destroy = nccl_destroy,
                                .traits = nccl_traits,
                                .exchange = bp_nccl_exchange,
                                .all_gather = bp_nccl_all_gather,
                                .all_reduce = nccl_all_reduce,
                                .reduce_scatter = nccl_reduce_scatter,
                                .register_memory = bp_nccl_register,
                                .deregister_memory = bp_nccl_deregister,
                                .warnings = bp_nccl_warnings,
                                .abort = nccl_abort_comm};

bp_status bp_comm_create_nccl(const bp_nccl_config *config, bp_comm **comm)
{
    bp_nccl_config own = nccl_config_defaults;
    BP_TRY(bp_struct_read("bp_comm_create_nccl", config, false, &own, sizeof own));
    config = &own;
    BP_TRY(nccl_check_config(config, comm));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_nccl), &memory));
    bp_nccl *nccl = memory;
    bp_status status = nccl_build(config, nccl);
    if (status != BP_OK) {
        nccl_destroy(nccl);
        return status;
    }
    return bp_comm_create(&ops, nccl, nccl->name, comm);
}
