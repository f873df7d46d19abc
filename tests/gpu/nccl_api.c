/* SPDX-License-Identifier: Apache-2.0 */
/* Loading, ranks and memory for the rules of NCCL. */
#include "nccl_api.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

nccl_api nccl;
bp_cuda_driver cuda;

static void *library;

static void *find(const char *name)
{
    return dlsym(library, name);
}

/* POSIX lets an object pointer stand for a function's. */
#define FIND(name) *(void **)&nccl.name = find(#name)

static void find_functions(void)
{
    FIND(ncclGetVersion);
    FIND(ncclGetUniqueId);
    FIND(ncclCommInitRank);
    FIND(ncclCommDestroy);
    FIND(ncclCommAbort);
    FIND(ncclCommGetAsyncError);
    FIND(ncclAllGather);
    FIND(ncclAllReduce);
    FIND(ncclCommRegister);
    FIND(ncclCommDeregister);
    FIND(ncclCommWindowRegister);
    FIND(ncclCommWindowDeregister);
    FIND(fake_nccl_set);
    FIND(fake_nccl_broken);
    FIND(fake_nccl_take_broken);
    FIND(fake_nccl_count);
}

static const char *chosen(const char *variable)
{
    const char *path = getenv(variable);
    return path == NULL || strcmp(path, "real") == 0 ? NULL : path;
}

const char *find_libraries(void)
{
    const char *file = chosen("BP_TEST_NCCL");
    if (bp_cuda_driver_load(chosen("BP_TEST_DRIVER"), &cuda) != BP_OK)
        return bp_error_detail();
    int devices = 0;
    if (cuda.cuDeviceGetCount(&devices) != 0 || devices == 0)
        return "the driver finds no GPU";
    library = dlopen(file == NULL ? "libnccl.so.2" : file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return dlerror();
    find_functions();
    return nccl.ncclGetVersion == NULL || nccl.ncclCommInitRank == NULL ? "libnccl.so.2 is not NCCL" : "";
}

bool is_emulated(void)
{
    return nccl.fake_nccl_broken != NULL;
}

bool was_noticed(fake_nccl_rule rule)
{
    return !is_emulated() || nccl.fake_nccl_take_broken(rule) > 0;
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

int open_rank(rule_rank *r)
{
    CHECK(nccl.ncclGetVersion(&r->version) == SUCCESS);
    CHECK(cuda.cuDevicePrimaryCtxRetain(&r->context, 0) == 0);
    CHECK(cuda.cuCtxPushCurrent(r->context) == 0);
    CHECK(cuda.cuStreamCreate(&r->stream, 1) == 0);
    return HOLDS;
}

int join_ranks(rule_rank *r)
{
    return nccl.ncclCommInitRank(&r->comm, r->ranks, r->id, r->rank);
}

void close_rank(rule_rank *r)
{
    void *context;
    if (r->comm != NULL)
        (void)nccl.ncclCommDestroy(r->comm);
    if (r->stream != NULL)
        (void)cuda.cuStreamDestroy(r->stream);
    if (r->context != NULL) {
        (void)cuda.cuCtxPopCurrent(&context);
        (void)cuda.cuDevicePrimaryCtxRelease(0);
    }
    memset(r, 0, sizeof *r);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

enum { PINNED = 1, ON_DEVICE = 1, FILE_HANDLE = 1, RECOMMENDED = 1, READ_WRITE = 3 };

int map_granules(int pieces, granules *g)
{
    bp_cu_allocation_prop prop = {.type = PINNED, .handle_types = FILE_HANDLE, .location_type = ON_DEVICE};
    bp_cu_access access = {ON_DEVICE, 0, READ_WRITE};
    memset(g, 0, sizeof *g);
    CHECK(cuda.cuMemGetAllocationGranularity(&g->step, &prop, RECOMMENDED) == 0);
    CHECK(cuda.cuMemAddressReserve(&g->address, g->step * (size_t)pieces, g->step, 0, 0) == 0);
    for (; g->pieces < pieces; g->pieces++) {
        uint64_t here = g->address + g->step * (size_t)g->pieces;
        CHECK(cuda.cuMemCreate(&g->handles[g->pieces], g->step, &prop, 0) == 0);
        CHECK(cuda.cuMemMap(here, g->step, 0, g->handles[g->pieces], 0) == 0);
    }
    CHECK(cuda.cuMemSetAccess(g->address, g->step * (size_t)pieces, &access, 1) == 0);
    return HOLDS;
}

int unmap_granules(granules *g)
{
    size_t bytes = g->step * (size_t)g->pieces;
    for (int i = 0; i < g->pieces; i++) {
        CHECK(cuda.cuMemUnmap(g->address + g->step * (size_t)i, g->step) == 0);
        CHECK(cuda.cuMemRelease(g->handles[i]) == 0);
    }
    CHECK(cuda.cuMemAddressFree(g->address, bytes) == 0);
    return HOLDS;
}

void *at(const granules *g, size_t offset)
{
    return (void *)(uintptr_t)(g->address + offset); /* NOLINT(performance-no-int-to-ptr): it is one of the device */
}
