/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory: files without names, counted against the device. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* CUmemAllocationHandleType. */
enum { FILE_DESCRIPTOR = 1, FABRIC = 8 };

static bool exists(int device)
{
    return device >= 0 && device < fake.config.devices;
}

static int check_prop(const bp_cu_allocation_prop *prop)
{
    if (prop == NULL || prop->type != 1 || prop->location_type != 1)
        return INVALID_VALUE;
    if (!exists(prop->location_id))
        return INVALID_DEVICE;
    if ((prop->handle_types & ~(FILE_DESCRIPTOR | FABRIC)) != 0 || !fake_attribute(102, prop->location_id))
        return NOT_SUPPORTED;
    if ((prop->handle_types & FILE_DESCRIPTOR) && !fake_attribute(103, prop->location_id))
        return NOT_SUPPORTED;
    if ((prop->handle_types & FABRIC) && !fake_attribute(128, prop->location_id))
        return NOT_SUPPORTED;
    if (prop->gpu_direct_rdma_capable && !fake_attribute(110, prop->location_id))
        return NOT_SUPPORTED;
    return OK;
}

int cuMemGetAllocationGranularity(size_t *bytes, const bp_cu_allocation_prop *prop, int option)
{
    FAKE_ENTER(cuMemGetAllocationGranularity);
    int result = bytes == NULL || option < 0 || option > 1 ? INVALID_VALUE : check_prop(prop);
    if (result == OK)
        *bytes = option == 1 ? fake.config.recommended : fake.config.granularity;
    return fake_leave(result);
}

int cuMulticastGetGranularity(size_t *bytes, const bp_cu_multicast_prop *prop, int option)
{
    FAKE_ENTER(cuMulticastGetGranularity);
    if (bytes == NULL || prop == NULL || option < 0 || option > 1 || prop->devices == 0 || prop->flags != 0)
        return fake_leave(INVALID_VALUE);
    if (fake.config.multicast == 0 || !fake_attribute(132, 0))
        return fake_leave(NOT_SUPPORTED);
    *bytes = fake.config.multicast;
    return fake_leave(OK);
}

/* New memory is not cleared: fills it with a pattern. */
static bool fill(int file, uint64_t bytes)
{
    static unsigned char dirt[65536];
    memset(dirt, fake_poison, sizeof dirt);
    uint64_t limit = bytes < fake.config.poison ? bytes : fake.config.poison;
    for (uint64_t done = 0; done < limit;) {
        size_t part = limit - done < sizeof dirt ? limit - done : sizeof dirt;
        ssize_t written = pwrite(file, dirt, part, (off_t)done);
        if (written <= 0)
            return false;
        done += (uint64_t)written;
    }
    return true;
}

int fake_physical_open(uint64_t bytes, int *file)
{
    int opened = memfd_create("emulated GPU", MFD_CLOEXEC);
    if (opened < 0)
        return OUT_OF_MEMORY;
    if (ftruncate(opened, (off_t)bytes) != 0 || !fill(opened, bytes)) {
        close(opened);
        return OUT_OF_MEMORY;
    }
    *file = opened;
    return OK;
}

static int create(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop, unsigned long long flags)
{
    int file;
    if (handle == NULL || flags != 0 || bytes == 0 || bytes % fake.config.granularity != 0)
        return INVALID_VALUE;
    FAKE_TRY(check_prop(prop));
    if ((prop->handle_types & FABRIC) && fake.config.fabric != OK)
        return fake.config.fabric;
    FAKE_TRY(fake_memory_take(prop->location_id, bytes));
    if (fake_physical_open(bytes, &file) != OK) {
        fake_memory_give(prop->location_id, bytes);
        return OUT_OF_MEMORY;
    }
    fake_physical *physical = fake_new(sizeof *physical);
    *physical = (fake_physical){
        .handle = 0x700000000 + ++fake.physicals_made,
        .bytes = bytes,
        .device = prop->location_id,
        .handle_types = prop->handle_types,
        .file = file,
        .handles = 1,
        .rdma = prop->gpu_direct_rdma_capable != 0,
        .next = fake.physicals,
    };
    fake.physicals = physical;
    *handle = physical->handle;
    return OK;
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop, unsigned long long flags)
{
    FAKE_ENTER(cuMemCreate);
    return fake_leave(create(handle, bytes, prop, flags));
}

fake_physical *fake_physical_find(unsigned long long handle)
{
    fake_physical *physical = fake.physicals;
    while (physical != NULL && physical->handle != handle)
        physical = physical->next;
    return physical;
}

void fake_physical_release(fake_physical *physical)
{
    if (physical->handles > 0 || physical->mappings > 0)
        return;
    fake_physical **link = &fake.physicals;
    while (*link != physical)
        link = &(*link)->next;
    *link = physical->next;
    fake_memory_give(physical->device, physical->bytes);
    close(physical->file);
    free(physical);
}

int cuMemRelease(unsigned long long handle)
{
    FAKE_ENTER(cuMemRelease);
    fake_physical *physical = fake_physical_find(handle);
    if (physical == NULL || physical->handles == 0) {
        fake_break("physical_handles_are_released_once", "cuMemRelease of %llu, an unknown handle", handle);
        return fake_leave(INVALID_VALUE);
    }
    physical->handles--;
    fake_physical_release(physical);
    return fake_leave(OK);
}

int cuMemRetainAllocationHandle(unsigned long long *handle, void *address)
{
    FAKE_ENTER(cuMemRetainAllocationHandle);
    const fake_mapping *mapping = fake_mapping_holding((uint64_t)(uintptr_t)address);
    if (handle == NULL || mapping == NULL)
        return fake_leave(INVALID_VALUE);
    mapping->physical->handles++;
    *handle = mapping->physical->handle;
    return fake_leave(OK);
}
