/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL provider: finding the loaded copy of NCCL, its versions, collectives, exchanges, errors, creation and
 * destruction. */
#include "comms/nccl.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comms/timeout.h"
#include "core/clock.h"
#include "core/memory.h"

/* ---- results -------------------------------------------------------------------------------------------------------- */

/* ncclCommGetAsyncError. False: the communicator was aborted, and must not be asked any more. */
static bool nccl_state(bp_nccl *nccl, int *state)
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

static bp_status nccl_fail_timeout(bp_nccl *nccl, const char *call)
{
    nccl->stuck = true;
    return bp_fail(BP_ERR_TIMEOUT,
                   "%s (rank %d of %d) did not finish within %g s; NCCL does not report the missing ranks; look for a "
                   "stopped, blocked or dead process, then end all ranks",
                   call, nccl->rank, nccl->ranks, (double)nccl->timeout_ms / 1000);
}

/* Calls of nonblocking communicators return "in progress"; this waits until they are done, or until the time-out. */
bp_status bp_nccl_check(bp_nccl *nccl, int result, const char *call)
{
    const struct timespec pause = {.tv_nsec = 50000};
    const uint64_t deadline_ns = bp_clock_ns() + nccl->timeout_ms * 1000000;
    while (result == BP_NCCL_IN_PROGRESS && (nccl->timeout_ms == 0 || !bp_is_past(deadline_ns))) {
        nanosleep(&pause, NULL);
        if (!nccl_state(nccl, &result))
            break;
    }
    if (result == BP_NCCL_IN_PROGRESS && !is_aborted(nccl))
        return nccl_fail_timeout(nccl, call);
    return result == BP_NCCL_SUCCESS ? BP_OK : nccl_fail(nccl, BP_ERR_COMM, result, call);
}

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
    default: return NCCL_UINT8; /* other dtypes were refused before */
    }
}

/* Makes the communicator's device current, and gets the stream's native handle for NCCL. */
static bp_status nccl_collectives_enter(const bp_nccl *nccl, bp_stream *stream, void **native, bp_cuda_scope *scope)
{
    uint64_t handle;
    if (bp_device_undecorated(stream->device) != bp_device_undecorated(nccl->device))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "communicator %s is on GPU %d, stream %s is on another device (%s)",
                       nccl->name, bp_cuda_of(nccl->device)->info.ordinal, stream->name,
                       bp_device_name(stream->device));
    BP_TRY(bp_stream_native(stream, &handle));
    *native = (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr): a handle, as the driver gave it */
    return bp_cuda_enter(nccl->device, scope);
}

static bp_status nccl_all_gather(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
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

typedef int nccl_reduction(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream);

static bp_status nccl_reduce(bp_nccl *nccl, nccl_reduction *function, const char *call, const void *from, void *to,
                             uint64_t count, bp_dtype dtype, bp_reduction reduction, bp_stream *stream)
{
    const int op = reduction == BP_REDUCE_MAX ? NCCL_MAX : reduction == BP_REDUCE_MIN ? NCCL_MIN : NCCL_SUM;
    void *native;
    bp_cuda_scope scope;
    BP_TRY(nccl_collectives_enter(nccl, stream, &native, &scope));
    bp_status status = bp_nccl_check(nccl, function(from, to, count, nccl_dtype(dtype), op, nccl->comm, native), call);
    bp_cuda_leave(&scope);
    return status;
}

static bp_status nccl_all_reduce(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                 bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    return nccl_reduce(nccl, nccl->f.ncclAllReduce, "ncclAllReduce", from, to, count, dtype, reduction, stream);
}

static bp_status nccl_reduce_scatter(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                     bp_reduction reduction, bp_stream *stream)
{
    bp_nccl *nccl = self;
    return nccl_reduce(nccl, nccl->f.ncclReduceScatter, "ncclReduceScatter", from, to, count, dtype, reduction, stream);
}

/* ---- exchanges -------------------------------------------------------------------------------------------------------- */

/* Exchanges of host memory over NCCL itself, staged through device memory on a separate stream. They happen a few
 * times in the life of a pool: pieces are small, and the host waits for each. */

#define PIECE 2048u

static uint64_t memory_bytes(const bp_nccl *nccl)
{
    return (uint64_t)PIECE * ((uint64_t)nccl->ranks + 1);
}

static bp_status exchange_init(bp_nccl *nccl)
{
    void *memory;
    BP_TRY(bp_new_array((size_t)nccl->ranks + 1, PIECE, &memory));
    nccl->staging = memory;
    BP_TRY(bp_stream_create(nccl->device, nccl->name, &nccl->stream));
    BP_TRY(bp_device_allocate(nccl->device, memory_bytes(nccl), nccl->stream, &memory));
    nccl->memory = memory;
    return BP_OK;
}

static void exchange_finish(bp_nccl *nccl)
{
    BP_KEEP_ERROR;
    if (nccl->memory != NULL)
        (void)bp_device_free(nccl->device, nccl->memory, memory_bytes(nccl), nccl->stream);
    bp_stream_destroy(&nccl->stream);
    free(nccl->staging);
}

static void count_arrival(void *arrived)
{
    atomic_fetch_add_explicit((atomic_uint *)arrived, 1, memory_order_release);
}

/* Polls a counter that the stream increments, as a synchronize of the driver cannot time out. An asynchronous error
 * of NCCL ends the wait early. */
bp_status bp_nccl_exchange_settle(bp_nccl *nccl)
{
    if (!nccl->unsettled)
        return BP_OK;
    const uint64_t deadline_ns = bp_clock_ns() + nccl->timeout_ms * 1000000;
    int state = BP_NCCL_SUCCESS;
    while (nccl->timeout_ms > 0 && atomic_load_explicit(&nccl->arrived, memory_order_acquire) != nccl->started) {
        if (!nccl_state(nccl, &state)) /* aborted: NCCL ends the work */
            break;
        if (state != BP_NCCL_SUCCESS && state != BP_NCCL_IN_PROGRESS) {
            nccl->stuck = true;
            return bp_nccl_check(nccl, state, "an exchange");
        }
        if (bp_is_past(deadline_ns))
            return nccl_fail_timeout(nccl, "ncclAllGather");
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
    BP_TRY(nccl_all_gather(nccl, nccl->memory, all, bytes, nccl->stream));
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
        if (nccl->timeout_ms > 0 &&
            status != BP_ERR_TIMEOUT) { /* after a time-out NCCL could enqueue more work behind this */
            const bp_kept_error kept = bp_error_keep();
            bp_status counted = bp_stream_call(nccl->stream, count_arrival, &nccl->arrived);
            if (status == BP_OK)
                status = counted;
            else
                bp_error_put_back(&kept);
        }
        BP_TRY(status);
        BP_TRY(bp_nccl_exchange_settle(nccl));

        /* asynchronous errors, here or on another rank, are reported by the communicator afterwards */
        int state = BP_NCCL_SUCCESS;
        if (!nccl_state(nccl, &state))
            return bp_fail(BP_ERR_COMM, "communicator %s was aborted during an exchange", nccl->name);
        BP_TRY(bp_nccl_check(nccl, state, "an exchange"));
        for (uint64_t rank = 0; rank < (uint64_t)nccl->ranks; rank++)
            memcpy(all + rank * bytes + done, nccl->staging + PIECE + rank * now, now);
        done += now;
    }
    return BP_OK;
}

static bp_status nccl_exchange(void *self, const void *mine, uint64_t bytes, void *all)
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

bool bp_nccl_exchanges_on_device(const bp_comm *comm)
{
    while (comm != NULL && comm->ops->exchange == nccl_exchange) {
        const bp_nccl *nccl = comm->self;
        if (nccl->control == NULL)
            return true;
        comm = nccl->control;
    }
    return false;
}

/* ---- functions ------------------------------------------------------------------------------------------------------ */

/* Required functions come first. */
enum { NEEDED_FUNCTIONS = 11 };
static const struct {
    const char *name;
    size_t offset;
} table[] = {
    {"ncclGetVersion", offsetof(bp_nccl_functions, ncclGetVersion)},
    {"ncclGetErrorString", offsetof(bp_nccl_functions, ncclGetErrorString)},
    {"ncclGetLastError", offsetof(bp_nccl_functions, ncclGetLastError)},
    {"ncclCommCount", offsetof(bp_nccl_functions, ncclCommCount)},
    {"ncclCommUserRank", offsetof(bp_nccl_functions, ncclCommUserRank)},
    {"ncclCommCuDevice", offsetof(bp_nccl_functions, ncclCommCuDevice)},
    {"ncclCommGetAsyncError", offsetof(bp_nccl_functions, ncclCommGetAsyncError)},
    {"ncclCommAbort", offsetof(bp_nccl_functions, ncclCommAbort)},
    {"ncclAllGather", offsetof(bp_nccl_functions, ncclAllGather)},
    {"ncclAllReduce", offsetof(bp_nccl_functions, ncclAllReduce)},
    {"ncclReduceScatter", offsetof(bp_nccl_functions, ncclReduceScatter)},
    {"ncclCommRegister", offsetof(bp_nccl_functions, ncclCommRegister)},
    {"ncclCommDeregister", offsetof(bp_nccl_functions, ncclCommDeregister)},
    {"ncclCommWindowRegister", offsetof(bp_nccl_functions, ncclCommWindowRegister)},
    {"ncclCommWindowDeregister", offsetof(bp_nccl_functions, ncclCommWindowDeregister)},
};

/* The first required function that is missing; NULL if none is. */
static const char *find_missing(const bp_nccl_functions *functions)
{
    for (size_t i = 0; i < NEEDED_FUNCTIONS; i++) {
        void *function;
        memcpy(&function, (const char *)functions + table[i].offset, sizeof function);
        if (function == NULL)
            return table[i].name;
    }
    return NULL;
}

/* `name`: "NCCL 2.28.9". */
static bp_status nccl_version(const bp_nccl_functions *functions, int *version, char *name, size_t name_bytes)
{
    int found = 0;
    int result = functions->ncclGetVersion(&found);
    if (result != BP_NCCL_SUCCESS)
        return bp_fail(BP_ERR_UNSUPPORTED, "unknown version of NCCL: ncclGetVersion returned %d", result);
    if (found <= 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "unknown version of NCCL: ncclGetVersion returned version %d", found);
    const int factor = found < 10000 ? 10 : 100; /* versions before 2.9 are encoded differently */
    snprintf(name, name_bytes, "NCCL %d.%d.%d", found / 100 / factor, found / 100 % factor, found % 100);
    if (found < BP_NCCL_BUFFERS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s is too old; registration needs 2.19 or newer", name);
    *version = found;
    return BP_OK;
}

/* ---- the copy of NCCL that this process has loaded ------------------------------------------------------------------ */

/* Nothing is ever loaded here: a second copy of NCCL would not know the communicators of the first. RTLD_DEFAULT is
 * not enough: it does not search objects that were loaded with RTLD_LOCAL, as Python's extensions are. */

/* A loaded object: its name, "" for the program, and the addresses of its segments. */
typedef struct object {
    char *name;
    uintptr_t start, end;
} object;

typedef struct objects {
    object *items;
    size_t count, capacity;
    bp_status status;
} objects;

/* Runs under the loader's lock, so it only copies. */
static int note_object(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    objects *o = user;
    o->status = bp_grow_array((void **)&o->items, &o->capacity, o->count, sizeof *o->items);
    object added = {.start = UINTPTR_MAX};
    if (o->status == BP_OK)
        o->status = bp_copy_string(info->dlpi_name != NULL ? info->dlpi_name : "", &added.name);
    if (o->status != BP_OK)
        return 1;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        const uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
        added.start = start < added.start ? start : added.start;
        added.end = end > added.end ? end : added.end;
    }
    o->items[o->count++] = added;
    return 0;
}

/* A handle of an object that defines ncclGetVersion itself, not by a dependency; NULL if it does not. */
static void *open_copy(const object *o)
{
    void *handle = dlopen(o->name[0] != '\0' ? o->name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    const uintptr_t symbol = (uintptr_t)dlsym(handle, "ncclGetVersion");
    if (symbol >= o->start && symbol < o->end)
        return handle;
    dlclose(handle);
    return NULL;
}

static bp_status find_copy(const objects *o, void **copy)
{
    char names[BP_DETAIL_BYTES] = "";
    size_t found = 0, written = 0;
    *copy = NULL;
    for (size_t i = 0; i < o->count; i++) {
        void *handle = open_copy(&o->items[i]);
        if (handle == NULL)
            continue;
        if (written < sizeof names)
            written += (size_t)snprintf(names + written, sizeof names - written, "%s%s", found > 0 ? ", " : "",
                                        o->items[i].name[0] != '\0' ? o->items[i].name : "the program itself");
        if (found++ == 0)
            *copy = handle;
        else
            dlclose(handle);
    }
    if (found == 1)
        return BP_OK;
    if (*copy != NULL)
        dlclose(*copy);
    if (found == 0)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "NCCL is not loaded; load the copy that makes the communicators first, or pass its functions");
    return bp_fail(BP_ERR_UNSUPPORTED,
                   "%zu copies of NCCL are loaded (%s); pass the functions of the one that made the communicator",
                   found, names);
}

bp_status bp_nccl_find(bp_nccl_functions *functions)
{
    objects o = {.status = BP_OK};
    void *copy = NULL;
    (void)dl_iterate_phdr(note_object, &o);
    bp_status status = o.status;
    if (status == BP_OK)
        status = find_copy(&o, &copy);
    for (size_t i = 0; i < o.count; i++)
        free(o.items[i].name);
    free(o.items);
    BP_TRY(status);

    bp_nccl_functions found = {.size = sizeof found};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *symbol = dlsym(copy, table[i].name);
        memcpy((char *)&found + table[i].offset, (const void *)&symbol, sizeof symbol);
    }
    int version;
    char name[32];
    const char *missing = find_missing(&found);
    if (found.ncclGetVersion != NULL)
        status = nccl_version(&found, &version, name, sizeof name);
    dlclose(copy); /* keeps no reference: the owner of a communicator keeps its copy of NCCL loaded */
    BP_TRY(status);
    if (missing != NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "the loaded copy of NCCL lacks function %s", missing);
    *functions = found;
    return BP_OK;
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

static const bp_nccl_config nccl_config_defaults = {.size = sizeof nccl_config_defaults};

bp_status bp_nccl_config_init(bp_nccl_config *config, size_t size)
{
    return bp_struct_init("bp_nccl_config_init", config, size, &nccl_config_defaults, sizeof nccl_config_defaults);
}

/* Asks the communicator for its rank, size and device, and makes the device current. A communicator that is broken
 * or not finished cannot be asked. */
static bp_status nccl_ask(bp_nccl *nccl)
{
    int state = BP_NCCL_SUCCESS;
    int result = nccl->f.ncclCommGetAsyncError(nccl->comm, &state);
    if (result != BP_NCCL_SUCCESS)
        return nccl_fail(nccl, BP_ERR_INVALID_ARGUMENT, result, "ncclCommGetAsyncError");
    if (state == BP_NCCL_IN_PROGRESS)
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "communicator %s is still being created (ncclInProgress); wait until ncclCommGetAsyncError returns "
            "ncclSuccess",
            nccl->name);
    if (state != BP_NCCL_SUCCESS)
        return nccl_fail(nccl, BP_ERR_INVALID_ARGUMENT, state, "the last operation");

    int rank = 0, ranks = 0, ordinal = 0;
    const char *call = "ncclCommCount";
    result = nccl->f.ncclCommCount(nccl->comm, &ranks);
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
        return bp_fail(BP_ERR_MISMATCH, "communicator %s (rank %d of %d) is on GPU %d, the device is GPU %d (%s)",
                       nccl->name, rank, ranks, ordinal, cuda->info.ordinal, cuda->info.name);
    const bp_comm *control = nccl->control;
    if (control != NULL && (control->traits.ranks != (uint32_t)ranks || control->traits.rank != (uint32_t)rank))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "communicator %s has rank %d of %d, its control communicator %s rank %u of %u; both need the "
                       "same ranks in the same order",
                       nccl->name, rank, ranks, control->name, control->traits.rank, control->traits.ranks);
    return control != NULL ? BP_OK : exchange_init(nccl);
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

    bp_nccl_functions *f = &nccl->f;
    f->size = sizeof *f;
    if (config->functions == NULL) {
        BP_TRY(bp_nccl_find(f));
    } else {
        BP_TRY(bp_struct_read("bp_comm_create_nccl", config->functions, false, f, sizeof *f));
        const char *missing = find_missing(f);
        if (missing != NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: the table lacks function %s", missing);
    }
    BP_TRY(nccl_version(f, &nccl->version, nccl->version_name, sizeof nccl->version_name));
    bool buffers = f->ncclCommRegister != NULL && f->ncclCommDeregister != NULL;
    bool windows = nccl->version >= BP_NCCL_WINDOWS && f->ncclCommWindowRegister != NULL &&
                   f->ncclCommWindowDeregister != NULL && bp_cuda_of(nccl->device)->config.memory != BP_CUDA_PLAIN;
    nccl->best = windows ? BP_REGISTER_SYMMETRIC : buffers ? BP_REGISTER_BUFFER : BP_REGISTER_NONE;
    nccl->lacks = windows && !buffers ? 1u << BP_REGISTER_BUFFER : 0;

    bp_cuda_scope scope;
    BP_TRY(bp_cuda_enter(nccl->device, &scope));
    bp_status status = nccl_ask(nccl);
    bp_cuda_leave(&scope);
    return status;
}

/* Never freed, because their work may still run; listed so that leak checkers find them reachable. */
static _Atomic(bp_nccl *) stuck_ones;

static void nccl_destroy(void *self)
{
    bp_nccl *nccl = self;
    if (nccl->stuck && !is_aborted(nccl)) { /* its work may still use the stream, its memory and this struct */
        nccl->next_stuck = atomic_exchange(&stuck_ones, nccl);
        return;
    }
    exchange_finish(nccl);
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

/* ncclCommAbort frees the communicator: it is not asked for its state or its error text any more. Other threads may
 * wait for the abort, so it is done even if the device cannot be made current; NCCL sets the device itself. */
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
                                .exchange = nccl_exchange,
                                .all_gather = nccl_all_gather,
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
    if (comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: comm must not be NULL");
    if (config->comm == NULL || config->device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: needs %s",
                       config->comm == NULL ? "a communicator of NCCL" : "the device of the communicator's GPU");
    if (bp_cuda_of(config->device) == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_comm_create_nccl: device %s is not a cuda device",
                       bp_device_name(config->device));
    if (config->control != NULL)
        BP_TRY(bp_comm_check(config->control, "bp_comm_create_nccl"));

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
