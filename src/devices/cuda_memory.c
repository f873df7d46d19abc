/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the cuda device: slabs, stream-ordered allocations, pinned host memory. A slab of virtual memory is one physical allocation
 * with the properties of NCCL's allocations, so that NCCL can register it. Source of the properties: ncclMemAlloc of NCCL (pinned device
 * memory, exportable handles, RDMA, both granularities, peers). */

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include "core/memory.h"
#include "devices/cuda.h"

#define PINNED 1
#define RECOMMENDED 1
#define MINIMUM 0

/* Driver device attributes. */
#define HANDLE_TYPE_FILE 103
#define RDMA_WITH_VIRTUAL_MEMORY 110
#define HANDLE_TYPE_FABRIC 128
#define MULTICAST 132

/* If the recommended multicast granularity is larger, the minimum is used: slabs would be rounded up too far. */
#define MAX_MULTICAST_BYTES (UINT64_C(64) << 20)

static bp_status cuda_fail_memory(const bp_cuda *cuda, int error, uint64_t bytes, const char *function,
                                  const char *what)
{
    size_t left = 0, total = 0;
    if (error != BP_CU_OUT_OF_MEMORY || bp_cuda_push(cuda) != BP_OK)
        return bp_cuda_fail(&cuda->driver, error, function, what);
    (void)cuda->driver.cuMemGetInfo(&left, &total);
    bp_cuda_pop(cuda);
    return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "cuda: %s of %llu bytes: %s: device %d (%s) has %zu of %zu left", what,
                   (unsigned long long)bytes, function, cuda->config.ordinal, cuda->info.name, left, total);
}

/* ---- properties of slabs -------------------------------------------------------------------------------------------- */

static bp_cu_allocation_prop prop_of(const bp_cuda *cuda)
{
    return (bp_cu_allocation_prop){.type = PINNED,
                                   .handle_types = cuda->info.handle_types,
                                   .location_type = BP_CU_ON_DEVICE,
                                   .location_id = cuda->device,
                                   .gpu_direct_rdma_capable = (uint8_t)(cuda->info.rdma != 0)};
}

/* 0: not supported. */
static bp_status ask_multicast(const bp_cuda *cuda, int option, uint64_t *granularity)
{
    size_t bytes = 0;
    int devices = 0, has = 0;
    *granularity = 0;
    BP_TRY(bp_cuda_attribute(cuda, MULTICAST, &has));
    if (cuda->driver.cuMulticastGetGranularity == NULL || has == 0)
        return BP_OK;
    int error = cuda->driver.cuDeviceGetCount(&devices);
    BP_TRY(bp_cuda_check(cuda, error, "cuDeviceGetCount", "counting devices"));
    bp_cu_multicast_prop prop = {.devices = (uint32_t)devices,
                                 .bytes = (size_t)cuda->info.recommended_granularity,
                                 .handle_types = (uint64_t)cuda->info.handle_types};
    error = cuda->driver.cuMulticastGetGranularity(&bytes, &prop, option);
    if (error != BP_CU_SUCCESS && error != BP_CU_NOT_SUPPORTED && error != BP_CU_INVALID_VALUE)
        return bp_cuda_fail(&cuda->driver, error, "cuMulticastGetGranularity", "querying the multicast granularity");
    *granularity = error == BP_CU_SUCCESS ? bytes : 0;
    return BP_OK;
}

bp_status bp_cuda_choose_memory(bp_cuda *cuda)
{
    /* The permission for fabric handles (a daemon's) cannot be queried: a trial allocation finds out. */
    bp_cuda_info *info = &cuda->info;
    int fabric, file, rdma;
    BP_TRY(bp_cuda_attribute(cuda, HANDLE_TYPE_FABRIC, &fabric));
    BP_TRY(bp_cuda_attribute(cuda, HANDLE_TYPE_FILE, &file));
    BP_TRY(bp_cuda_attribute(cuda, RDMA_WITH_VIRTUAL_MEMORY, &rdma));
    const int min = file != 0 ? BP_CU_HANDLE_FILE : 0;
    info->handle_types = min | (fabric != 0 && !cuda->config.no_fabric ? BP_CU_HANDLE_FABRIC : 0);
    info->rdma = rdma != 0;
    unsigned long long handle;
    int error = BP_CU_SUCCESS;
    do {
        size_t bytes = 0;
        bp_cu_allocation_prop prop = prop_of(cuda);
        error = cuda->driver.cuMemGetAllocationGranularity(&bytes, &prop, RECOMMENDED);
        BP_TRY(bp_cuda_check(cuda, error, "cuMemGetAllocationGranularity", "querying the allocation granularity"));
        info->recommended_granularity = bytes;
        error = cuda->driver.cuMemCreate(&handle, bytes, &prop, 0);
        if (error == BP_CU_SUCCESS || info->handle_types == 0 ||
            (error != BP_CU_NOT_PERMITTED && error != BP_CU_NOT_SUPPORTED))
            break;
        info->handle_types = info->handle_types != min ? min : 0;
    } while (true);
    if (error != BP_CU_SUCCESS)
        return cuda_fail_memory(cuda, error, info->recommended_granularity, "cuMemCreate", "a trial allocation");
    error = cuda->driver.cuMemRelease(handle);
    BP_TRY(bp_cuda_check(cuda, error, "cuMemRelease", "freeing a trial allocation"));

    BP_TRY(ask_multicast(cuda, RECOMMENDED, &info->multicast_granularity));
    if (info->multicast_granularity > MAX_MULTICAST_BYTES)
        BP_TRY(ask_multicast(cuda, MINIMUM, &info->multicast_granularity));
    cuda->traits.granularity = info->multicast_granularity > info->recommended_granularity
                                   ? info->multicast_granularity
                                   : info->recommended_granularity;
    return BP_OK;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------- */

static bp_status cuda_note_block(bp_cuda *cuda, const bp_cuda_memory_block *block)
{
    pthread_mutex_lock(&cuda->lock);
    bp_status status =
        bp_grow_array((void **)&cuda->blocks, &cuda->block_capacity, cuda->block_count, sizeof *cuda->blocks);
    if (status == BP_OK)
        cuda->blocks[cuda->block_count++] = *block;
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

static bool cuda_take_block(bp_cuda *cuda, uint64_t handle, bp_cuda_memory_block *block)
{
    pthread_mutex_lock(&cuda->lock);
    size_t i = 0;
    while (i < cuda->block_count && cuda->blocks[i].handle != handle)
        i++;
    const bool found = i < cuda->block_count;
    if (found) {
        *block = cuda->blocks[i];
        cuda->blocks[i] = cuda->blocks[--cuda->block_count];
    }
    pthread_mutex_unlock(&cuda->lock);
    return found;
}

static bp_status cuda_memory_check_bytes(const bp_cuda *cuda, uint64_t bytes, const char *what)
{
    if (bytes == 0 || bytes % cuda->traits.granularity != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: %s of %llu bytes, expected a multiple of %llu", what,
                       (unsigned long long)bytes, (unsigned long long)cuda->traits.granularity);
    return BP_OK;
}

/* Counts `bytes` more if the configured limit allows it. */
static bp_status cuda_take_budget(bp_cuda *cuda, uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    const uint64_t used = cuda->committed_bytes, max = cuda->config.memory_bytes;
    const bool fits = max == 0 || (used <= max && bytes <= max - used);
    cuda->committed_bytes += fits ? bytes : 0;
    pthread_mutex_unlock(&cuda->lock);
    if (!fits)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "cuda: commit of %llu bytes: %llu of %llu are left of memory_bytes",
                       (unsigned long long)bytes, (unsigned long long)(used > max ? 0 : max - used),
                       (unsigned long long)max);
    return BP_OK;
}

static void cuda_give_budget(bp_cuda *cuda, uint64_t bytes)
{
    pthread_mutex_lock(&cuda->lock);
    cuda->committed_bytes -= bytes;
    pthread_mutex_unlock(&cuda->lock);
}

/* ---- virtual memory ------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_cuda *cuda = self;
    uint64_t reserved;
    BP_TRY(cuda_memory_check_bytes(cuda, bytes, "reserve"));
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemAddressReserve(&reserved, (size_t)bytes, (size_t)alignment, 0, 0);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return cuda_fail_memory(cuda, error, bytes, "cuMemAddressReserve", "reserving address space");
    *address = (void *)(uintptr_t)reserved; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    return BP_OK;
}

bp_status bp_cuda_unreserve(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemAddressFree((uintptr_t)address, (size_t)bytes);
    return bp_cuda_pop_check(cuda, error, "cuMemAddressFree", "unreserving address space");
}

bp_status bp_cuda_commit(void *self, uint64_t bytes, uint64_t *handle)
{
    bp_cuda *cuda = self;
    bp_cu_allocation_prop prop = prop_of(cuda);
    unsigned long long made = 0;
    BP_TRY(cuda_memory_check_bytes(cuda, bytes, "commit"));
    BP_TRY(cuda_take_budget(cuda, bytes));
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = cuda->driver.cuMemCreate(&made, (size_t)bytes, &prop, 0);
        if (error == BP_CU_SUCCESS)
            status = cuda_note_block(cuda, &(bp_cuda_memory_block){.handle = made, .bytes = bytes});
        if (error == BP_CU_SUCCESS && status != BP_OK)
            (void)cuda->driver.cuMemRelease(made);
        bp_cuda_pop(cuda);
        if (error != BP_CU_SUCCESS)
            status = cuda_fail_memory(cuda, error, bytes, "cuMemCreate", "commit");
    }
    if (status == BP_OK)
        *handle = made;
    else
        cuda_give_budget(cuda, bytes);
    return status;
}

bp_status bp_cuda_decommit(void *self, uint64_t handle)
{
    bp_cuda *cuda = self;
    bp_cuda_memory_block block;
    BP_TRY(bp_cuda_push(cuda));
    const bool known = cuda_take_block(cuda, handle, &block);
    int error = known ? cuda->driver.cuMemRelease(handle) : BP_CU_SUCCESS;
    bp_cuda_pop(cuda);
    if (!known)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: decommit of handle %llu, which is not committed",
                       (unsigned long long)handle);
    if (error == BP_CU_SUCCESS) {
        cuda_give_budget(cuda, block.bytes);
        return BP_OK;
    }
    (void)cuda_note_block(cuda, &block); /* cannot fail: the entry was just removed */
    return bp_cuda_fail(&cuda->driver, error, "cuMemRelease", "freeing physical memory");
}

bp_status bp_cuda_map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    bp_cuda *cuda = self;
    BP_TRY(cuda_memory_check_bytes(cuda, bytes, "map"));
    BP_TRY(bp_cuda_push(cuda));
    const char *function = "cuMemMap", *what = "mapping memory";
    int error = cuda->driver.cuMemMap((uintptr_t)address, (size_t)bytes, 0, handle, 0);
    if (error == BP_CU_SUCCESS) {
        function = "cuMemSetAccess";
        what = "making memory accessible";
        error = cuda->driver.cuMemSetAccess((uintptr_t)address, (size_t)bytes, cuda->access, cuda->access_count);
        if (error != BP_CU_SUCCESS)
            (void)cuda->driver.cuMemUnmap((uintptr_t)address, (size_t)bytes);
    }
    bp_cuda_pop(cuda);
    return error == BP_CU_SUCCESS ? BP_OK : cuda_fail_memory(cuda, error, bytes, function, what);
}

bp_status bp_cuda_unmap(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemUnmap((uintptr_t)address, (size_t)bytes);
    return bp_cuda_pop_check(cuda, error, "cuMemUnmap", "unmapping memory");
}

/* ---- slabs of plain allocations, for legacy IPC ------------------------------------------------------------------------ */

/* The allocation comes with the reservation; commit and map only do bookkeeping. */
bp_status bp_cuda_plain_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_cuda *cuda = self;
    uint64_t total, made = 0, aligned = 0;
    if (!bp_add_u64(bytes, alignment, &total))
        return bp_fail(BP_ERR_OVERFLOW, "cuda: the size of %llu bytes at a multiple of %llu exceeds 64 bits",
                       (unsigned long long)bytes, (unsigned long long)alignment);
    BP_TRY(cuda_take_budget(cuda, total));
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = cuda->driver.cuMemAlloc(&made, (size_t)total);
        aligned = (made + alignment - 1) / alignment * alignment;
        if (error == BP_CU_SUCCESS)
            status = cuda_note_block(cuda, &(bp_cuda_memory_block){.handle = aligned, .address = made, .bytes = total});
        if (error == BP_CU_SUCCESS && status != BP_OK)
            (void)cuda->driver.cuMemFree(made);
        bp_cuda_pop(cuda);
        if (error != BP_CU_SUCCESS)
            status = cuda_fail_memory(cuda, error, total, "cuMemAlloc", "allocating");
    }
    if (status == BP_OK)
        *address = (void *)(uintptr_t)aligned; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    else
        cuda_give_budget(cuda, total);
    return status;
}

bp_status bp_cuda_plain_unreserve(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    bp_cuda_memory_block block;
    BP_TRY(bp_cuda_push(cuda));
    const bool known = cuda_take_block(cuda, (uintptr_t)address, &block);
    int error = known ? cuda->driver.cuMemFree(block.address) : BP_CU_SUCCESS;
    bp_cuda_pop(cuda);
    if (!known)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: %llu bytes at %p were not allocated", (unsigned long long)bytes,
                       address);
    if (error == BP_CU_SUCCESS) {
        cuda_give_budget(cuda, block.bytes);
        return BP_OK;
    }
    (void)cuda_note_block(cuda, &block); /* cannot fail: the entry was just removed */
    return bp_cuda_fail(&cuda->driver, error, "cuMemFree", "freeing memory");
}

bp_status bp_cuda_plain_commit(void *self, uint64_t bytes, uint64_t *handle)
{
    (void)self;
    *handle = bytes;
    return BP_OK;
}

bp_status bp_cuda_plain_decommit(void *self, uint64_t handle)
{
    (void)self;
    (void)handle;
    return BP_OK;
}

bp_status bp_cuda_plain_map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    (void)self;
    (void)address;
    if (handle != bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: map of %llu bytes of a plain allocation of %llu",
                       (unsigned long long)bytes, (unsigned long long)handle);
    return BP_OK;
}

bp_status bp_cuda_plain_unmap(void *self, void *address, uint64_t bytes)
{
    (void)self;
    (void)address;
    (void)bytes;
    return BP_OK;
}

/* ---- memory in stream order ----------------------------------------------------------------------------------------- */

bp_status bp_cuda_allocate(void *self, uint64_t bytes, void *stream, void **address)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    uint64_t made;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->info.stream_ordered ? cuda->driver.cuMemAllocAsync(&made, (size_t)bytes, s->handle)
                                          : cuda->driver.cuMemAlloc(&made, (size_t)bytes);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return cuda_fail_memory(cuda, error, bytes, cuda->info.stream_ordered ? "cuMemAllocAsync" : "cuMemAlloc",
                                "allocating");
    *address = (void *)(uintptr_t)made; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    return BP_OK;
}

/* Without the stream-ordered allocator the host waits for the stream, because freed memory may be reused at once. */
bp_status bp_cuda_free(void *self, void *address, uint64_t bytes, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    (void)bytes;
    BP_TRY(bp_cuda_push(cuda));
    int error;
    const char *function = "cuMemFreeAsync";
    if (cuda->info.stream_ordered) {
        error = cuda->driver.cuMemFreeAsync((uintptr_t)address, s->handle);
    } else {
        function = "cuStreamSynchronize";
        error = cuda->driver.cuStreamSynchronize(s->handle);
        if (error == BP_CU_SUCCESS) {
            function = "cuMemFree";
            error = cuda->driver.cuMemFree((uintptr_t)address);
        }
    }
    return bp_cuda_pop_check(cuda, error, function, "freeing memory");
}

/* ---- host memory ---------------------------------------------------------------------------------------------------- */

#define PORTABLE 1u /* pinned for every context */

bp_status bp_cuda_pin(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemHostRegister(address, (size_t)bytes, PORTABLE);
    bp_cuda_pop(cuda);
    if (error == BP_CU_OUT_OF_MEMORY)
        return bp_fail(BP_ERR_NO_HOST_MEMORY,
                       "cuda: %llu bytes of host memory could not be pinned: cuMemHostRegister: out of memory",
                       (unsigned long long)bytes);
    return bp_cuda_check(cuda, error, "cuMemHostRegister", "pinning host memory");
}

bp_status bp_cuda_unpin(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    (void)bytes;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemHostUnregister(address);
    return bp_cuda_pop_check(cuda, error, "cuMemHostUnregister", "unpinning host memory");
}
