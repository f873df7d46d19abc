/* SPDX-License-Identifier: Apache-2.0 */
/* ncclMemAlloc. */
#include <stdlib.h>

#include "state.h"

int cuMemGetAllocationGranularity(size_t *bytes, const bp_cu_allocation_prop *prop, int option);
int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags);
int cuMemAddressFree(uint64_t address, size_t bytes);
int cuMemCreate(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop, unsigned long long flags);
int cuMemRelease(unsigned long long handle);
int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
int cuMemUnmap(uint64_t address, size_t bytes);
int cuMemSetAccess(uint64_t address, size_t bytes, const bp_cu_access *access, size_t count);

typedef struct allocation {
    struct allocation *next;
    uint64_t address;
    size_t bytes;
    unsigned long long handle;
} allocation;

static allocation *allocations;

enum { RECOMMENDED = 1, READ_WRITE = 3 };

int driver_granularity(const bp_cu_allocation_prop *prop, size_t *bytes)
{
    return cuMemGetAllocationGranularity(bytes, prop, RECOMMENDED) == 0 ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}

static int map(allocation *a, const bp_cu_allocation_prop *prop)
{
    bp_cu_access access = {1, prop->location_id, READ_WRITE};
    if (cuMemCreate(&a->handle, a->bytes, prop, 0) != 0)
        return NCCL_CUDA_ERROR;
    if (cuMemAddressReserve(&a->address, a->bytes, 0, 0, 0) != 0)
        goto release;
    if (cuMemMap(a->address, a->bytes, 0, a->handle, 0) != 0)
        goto free_address;
    if (cuMemSetAccess(a->address, a->bytes, &access, 1) == 0)
        return NCCL_SUCCESS;
    cuMemUnmap(a->address, a->bytes);
free_address:
    cuMemAddressFree(a->address, a->bytes);
release:
    cuMemRelease(a->handle);
    return NCCL_CUDA_ERROR;
}

int ncclMemAlloc(void **address, size_t bytes)
{
    int result = enter("ncclMemAlloc", NULL);
    bp_cu_allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1};
    size_t step = 0;
    if (result == NCCL_SUCCESS && (address == NULL || bytes == 0))
        result = NCCL_INVALID_ARGUMENT;
    if (result == NCCL_SUCCESS)
        result = driver_current_device(&prop.location_id);
    if (result == NCCL_SUCCESS)
        result = driver_granularity(&prop, &step);
    allocation *a = result == NCCL_SUCCESS ? calloc(1, sizeof *a) : NULL;
    if (a == NULL)
        return result == NCCL_SUCCESS ? NCCL_SYSTEM_ERROR : result;
    a->bytes = (bytes + step - 1) / step * step;
    result = map(a, &prop);
    if (result != NCCL_SUCCESS) {
        free(a);
        return result;
    }
    fake_lock();
    a->next = allocations;
    allocations = a;
    fake_unlock();
    *address = (void *)(uintptr_t)a->address; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    return NCCL_SUCCESS;
}

int ncclMemFree(void *address)
{
    int result = enter("ncclMemFree", NULL);
    if (result != NCCL_SUCCESS || address == NULL)
        return result;
    fake_lock();
    allocation **at = &allocations;
    while (*at != NULL && (*at)->address != (uint64_t)(uintptr_t)address)
        at = &(*at)->next;
    allocation *a = *at;
    if (a != NULL)
        *at = a->next;
    fake_unlock();
    if (a == NULL)
        return NCCL_INVALID_ARGUMENT;
    bool freed = cuMemUnmap(a->address, a->bytes) == 0;
    freed &= cuMemAddressFree(a->address, a->bytes) == 0;
    freed &= cuMemRelease(a->handle) == 0;
    free(a);
    return freed ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}
