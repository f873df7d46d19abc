/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits of devices, and checks of addresses. */
#include "driver.h"

#include <sys/mman.h>

const unsigned char fake_poison = 0xa5;

int fake_memory_take(int device, uint64_t bytes)
{
    if (bytes > fake.config.memory - fake.used[device])
        fake_pool_trim(device, 0);
    if (bytes > fake.config.memory - fake.used[device])
        return OUT_OF_MEMORY;
    fake.used[device] += bytes;
    return OK;
}

void fake_memory_give(int device, uint64_t bytes)
{
    fake.used[device] -= bytes;
}

static int get_info(size_t *free_bytes, size_t *total_bytes)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    if (free_bytes == NULL || total_bytes == NULL)
        return INVALID_VALUE;
    *free_bytes = fake.config.memory - fake.used[context->device];
    *total_bytes = fake.config.memory;
    return OK;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_ENTER(cuMemGetInfo);
    return fake_leave(get_info(free_bytes, total_bytes));
}

FAKE_API uint64_t fake_cuda_used(int device)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t bytes = device >= 0 && device < FAKE_DEVICES ? fake.used[device] : 0;
    pthread_mutex_unlock(&fake.lock);
    return bytes;
}

/* Bytes from `address` on that the device may use and that are of one kind; 0: not accessible; UINT64_MAX: host
 * memory. */
static uint64_t usable(int device, uint64_t address, bool write, bool host)
{
    const fake_mapping *mapping = fake_mapping_holding(address);
    int wanted = write ? 3 : 1;
    if (mapping != NULL && (mapping->access[device] & wanted) == wanted)
        return mapping->address + mapping->bytes - address;
    if (mapping != NULL || fake_range_touching(fake.reservations, address, 1) != NULL) {
        fake_break("work_has_access", "work of device %d would %s 0x%llx, which is %s", device,
                   write ? "write" : "read", (unsigned long long)address,
                   mapping != NULL ? "mapped only" : "not mapped");
        return 0;
    }
    const fake_range *range = fake_range_touching(fake.allocations, address, 1);
    if (range != NULL && range->freed) {
        fake_break("freed_memory_is_not_used", "work names 0x%llx, which cuMemFreeAsync was called with",
                   (unsigned long long)range->address);
        return 0;
    }
    if (range == NULL)
        range = fake_range_touching(fake.pinned, address, 1);
    if (range != NULL)
        return range->address + range->bytes - address;
    return host && address != 0 ? UINT64_MAX : 0;
}

int fake_memory_check(int device, uint64_t address, uint64_t bytes, bool write, bool host)
{
    while (bytes > 0) {
        uint64_t part = usable(device, address, write, host);
        if (part == 0)
            return INVALID_VALUE;
        if (part >= bytes)
            return OK;
        address += part;
        bytes -= part;
    }
    return OK;
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

void *fake_view_map(uint64_t address, uint64_t bytes, int file)
{
    void *memory = mmap(fake_at(address), bytes, PROT_NONE, MAP_SHARED | (address != 0 ? MAP_FIXED : 0), file, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void fake_view_unmap(uint64_t address, uint64_t bytes, void *view)
{
    if (view != fake_at(address))
        munmap(view, bytes);
}

static void *view(uint64_t address, size_t *bytes)
{
    const fake_mapping *mapping = fake_mapping_holding(address);
    const fake_range *range = mapping == NULL ? fake_range_touching(fake.allocations, address, 1) : NULL;
    if (mapping == NULL && range == NULL)
        return fake_at(address);
    uint64_t offset = address - (mapping != NULL ? mapping->address : range->address);
    uint64_t left = (mapping != NULL ? mapping->bytes : range->bytes) - offset;
    if (*bytes > left)
        *bytes = left;
    return (char *)(mapping != NULL ? mapping->view : range->view) + offset;
}

void *fake_memory_view(uint64_t address, size_t *bytes)
{
    if (!fake.config.host_faults) /* without the lock, which would order otherwise unordered work */
        return fake_at(address);
    pthread_mutex_lock(&fake.lock);
    void *memory = view(address, bytes);
    pthread_mutex_unlock(&fake.lock);
    return memory;
}

FAKE_API void *fake_cuda_view(uint64_t address)
{
    size_t bytes = 1;
    return fake_memory_view(address, &bytes);
}

/* Makes all memory accessible while a kernel runs, because its arguments are opaque. */
static void open_all(bool open)
{
    for (const fake_mapping *mapping = fake.mappings; mapping != NULL; mapping = mapping->next)
        (void)mprotect(fake_at(mapping->address), mapping->bytes, open ? fake_mapping_protection(mapping) : PROT_NONE);
    for (const fake_range *range = fake.allocations; range != NULL; range = range->next)
        (void)mprotect(fake_at(range->address), range->bytes, open && range->open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void fake_memory_open(void)
{
    if (!fake.config.host_faults) /* without the lock, for the same reason */
        return;
    pthread_mutex_lock(&fake.lock);
    fake.kernels_running++;
    open_all(true); /* again for each kernel: memory may have been added */
    pthread_mutex_unlock(&fake.lock);
}

void fake_memory_shut(void)
{
    if (!fake.config.host_faults)
        return;
    pthread_mutex_lock(&fake.lock);
    if (--fake.kernels_running == 0)
        open_all(false);
    pthread_mutex_unlock(&fake.lock);
}

/* Base and size of the allocation or mapping at an address. */
static int get_range(uint64_t *base, size_t *bytes, uint64_t address)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    const fake_mapping *mapping = fake_mapping_holding(address);
    const fake_range *range = fake_range_touching(fake.allocations, address, 1);
    if (mapping == NULL && range == NULL)
        return INVALID_VALUE;
    if (base != NULL)
        *base = mapping != NULL ? mapping->address : range->address;
    if (bytes != NULL)
        *bytes = mapping != NULL ? mapping->bytes : range->bytes;
    return OK;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address)
{
    FAKE_ENTER(cuMemGetAddressRange);
    return fake_leave(get_range(base, bytes, address));
}

static int end_with(fake_range **list, const fake_context *context, bool memory)
{
    int count = 0;
    for (fake_range *range = *list, *next; range != NULL; range = next) {
        next = range->next;
        if (range->context != context)
            continue;
        if (memory)
            fake_allocation_release(range);
        else
            fake_range_remove(list, range);
        count++;
    }
    return count;
}

int fake_memory_end_with(const fake_context *context)
{
    return end_with(&fake.allocations, context, true) + end_with(&fake.pinned, context, false);
}

void fake_memory_forget(void)
{
    fake_mappings_forget();
    for (const fake_range *range = fake.reservations; range != NULL; range = range->next)
        munmap(fake_at(range->address), range->bytes);
    fake_ranges_forget(&fake.reservations);
    while (fake.allocations != NULL)
        fake_allocation_release(fake.allocations);
    fake_ranges_forget(&fake.pinned);
    fake_ranges_forget(&fake.registered);
    while (fake.physicals != NULL) {
        fake.physicals->handles = 0;
        fake_physical_release(fake.physicals);
    }
    for (int i = 0; i < FAKE_DEVICES; i++) {
        fake.used[i] = 0;
        fake.pools[i] = (fake_pool){0};
    }
}
