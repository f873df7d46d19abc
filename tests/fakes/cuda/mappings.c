/* SPDX-License-Identifier: Apache-2.0 */
/* Reserved address space and the mappings in it. Access to unmapped or inaccessible memory faults. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

fake_mapping *fake_mapping_holding(uint64_t address)
{
    fake_mapping *mapping = fake.mappings;
    while (mapping != NULL && address - mapping->address >= mapping->bytes)
        mapping = mapping->next;
    return mapping;
}

static bool is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Maps more than needed, and unmaps the unaligned ends. */
static void *map_aligned(uint64_t bytes, uint64_t alignment, uint64_t wanted)
{
    if (bytes + alignment < bytes)
        return NULL;
    void *memory =
        mmap(fake_at(wanted), bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    char *start = memory;
    uint64_t head = -(uint64_t)(uintptr_t)start & (alignment - 1);
    if (head > 0)
        munmap(start, head);
    munmap(start + head + bytes, alignment - head);
    return start + head;
}

static int reserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags)
{
    uint64_t step = fake.config.granularity;
    if (address == NULL || flags != 0 || bytes == 0 || bytes % step != 0 ||
        (alignment != 0 && !is_power_of_two(alignment)))
        return INVALID_VALUE;
    void *memory = map_aligned(bytes, alignment > step ? alignment : step, wanted);
    if (memory == NULL)
        return OUT_OF_MEMORY;
    *address = fake_range_add(&fake.reservations, (uint64_t)(uintptr_t)memory, bytes)->address;
    return OK;
}

int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags)
{
    FAKE_ENTER(cuMemAddressReserve);
    return fake_leave(reserve(address, bytes, alignment, wanted, flags));
}

static bool is_mapped_anywhere(uint64_t address, uint64_t bytes)
{
    for (const fake_mapping *mapping = fake.mappings; mapping != NULL; mapping = mapping->next)
        if (mapping->address < address + bytes && address < mapping->address + mapping->bytes)
            return true;
    return false;
}

int cuMemAddressFree(uint64_t address, size_t bytes)
{
    FAKE_ENTER(cuMemAddressFree);
    fake_range *range = fake_range_at(fake.reservations, address);
    if (range == NULL || range->bytes != bytes || is_mapped_anywhere(address, bytes))
        return fake_leave(INVALID_VALUE);
    munmap(fake_at(address), bytes);
    fake_range_remove(&fake.reservations, range);
    return fake_leave(OK);
}

static int map(uint64_t address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
    uint64_t step = fake.config.granularity;
    fake_physical *physical = fake_physical_find(handle);
    if (offset != 0)
        return NOT_SUPPORTED;
    if (physical == NULL || physical->handles == 0 || flags != 0 || bytes == 0 || bytes % step != 0 ||
        address % step != 0 || bytes > physical->bytes ||
        fake_range_holding(fake.reservations, address, bytes) == NULL || is_mapped_anywhere(address, bytes))
        return INVALID_VALUE;
    void *view = fake_view_map(address, bytes, physical->file);
    if (view != NULL && fake.config.host_faults)
        view = fake_view_map(0, bytes, physical->file);
    if (view == NULL)
        return OUT_OF_MEMORY;
    fake_mapping *mapping = fake_new(sizeof *mapping);
    *mapping =
        (fake_mapping){.address = address, .bytes = bytes, .physical = physical, .view = view, .next = fake.mappings};
    fake.mappings = mapping;
    physical->mappings++;
    return OK;
}

int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
    FAKE_ENTER(cuMemMap);
    return fake_leave(map(address, bytes, offset, handle, flags));
}

/* True if the range consists of whole mappings. */
static bool is_whole(uint64_t address, uint64_t bytes)
{
    while (bytes > 0) {
        const fake_mapping *mapping = fake_mapping_holding(address);
        if (mapping == NULL || mapping->address != address || mapping->bytes > bytes)
            return false;
        address += mapping->bytes;
        bytes -= mapping->bytes;
    }
    return true;
}

static void remove_mapping(fake_mapping *mapping)
{
    fake_mapping **link = &fake.mappings;
    while (*link != mapping)
        link = &(*link)->next;
    *link = mapping->next;
    fake_view_unmap(mapping->address, mapping->bytes, mapping->view);
    (void)mmap(fake_at(mapping->address), mapping->bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    mapping->physical->mappings--;
    fake_physical_release(mapping->physical);
    free(mapping);
}

static int unmap(uint64_t address, size_t bytes)
{
    if (bytes == 0 || !is_whole(address, bytes))
        return INVALID_VALUE;
    if (fake_range_touching(fake.registered, address, bytes) != NULL)
        fake_break("registered_memory_stays_mapped", "cuMemUnmap of %zu bytes at 0x%llx, which are registered", bytes,
                   (unsigned long long)address);
    for (uint64_t done = 0; done < bytes;) {
        fake_mapping *mapping = fake_mapping_holding(address + done);
        done += mapping->bytes;
        remove_mapping(mapping);
    }
    return OK;
}

int cuMemUnmap(uint64_t address, size_t bytes)
{
    FAKE_ENTER(cuMemUnmap);
    return fake_leave(unmap(address, bytes));
}

void fake_mappings_forget(void)
{
    while (fake.mappings != NULL)
        remove_mapping(fake.mappings);
}

int fake_mapping_protection(const fake_mapping *mapping)
{
    int all = 0, protection[] = {PROT_NONE, PROT_READ, PROT_READ, PROT_READ | PROT_WRITE};
    for (int i = 0; i < FAKE_DEVICES; i++)
        all |= mapping->access[i];
    return protection[all & 3];
}

static int check_access(const bp_cu_access *access)
{
    if (access->location_type != 1 || (access->flags != 0 && access->flags != 1 && access->flags != 3))
        return INVALID_VALUE;
    return access->location_id < 0 || access->location_id >= fake.config.devices ? INVALID_DEVICE : OK;
}

static int set_access(uint64_t address, size_t bytes, const bp_cu_access *access, size_t count)
{
    if (bytes == 0 || access == NULL || count == 0 || !is_whole(address, bytes))
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        FAKE_TRY(check_access(&access[i]));
    for (uint64_t done = 0; done < bytes;) {
        fake_mapping *mapping = fake_mapping_holding(address + done);
        for (size_t i = 0; i < count; i++) {
            if (access[i].location_id != mapping->physical->device && fake.config.peers == 0)
                return NOT_SUPPORTED;
            mapping->access[access[i].location_id] = access[i].flags;
        }
        (void)mprotect(mapping->view, mapping->bytes, fake_mapping_protection(mapping));
        done += mapping->bytes;
    }
    return OK;
}

int cuMemSetAccess(uint64_t address, size_t bytes, const bp_cu_access *access, size_t count)
{
    FAKE_ENTER(cuMemSetAccess);
    return fake_leave(set_access(address, bytes, access, count));
}
