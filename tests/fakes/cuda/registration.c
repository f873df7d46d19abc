/* SPDX-License-Identifier: Apache-2.0 */
/* Functions for the emulated NCCL: properties and marks of memory. */
#include "fake.h"

static fake_cuda_segment describe(const fake_mapping *mapping)
{
    const fake_physical *physical = mapping->physical;
    return (fake_cuda_segment){
        .address = mapping->address,
        .bytes = mapping->bytes,
        .physical = physical->handle,
        .device = physical->device,
        .handle_types = physical->handle_types,
        .accessible = mapping->access[physical->device] == 3,
        .rdma = physical->rdma,
    };
}

FAKE_API size_t fake_cuda_segments(uint64_t address, uint64_t bytes, fake_cuda_segment *segments, size_t count)
{
    size_t found = 0;
    pthread_mutex_lock(&fake.lock);
    for (uint64_t at = address; at < address + bytes;) {
        const fake_mapping *mapping = fake_mapping_holding(at);
        if (mapping == NULL) {
            found = 0;
            break;
        }
        if (found < count)
            segments[found] = describe(mapping);
        found++;
        at = mapping->address + mapping->bytes;
    }
    pthread_mutex_unlock(&fake.lock);
    return found;
}

FAKE_API void fake_cuda_mark_registered(uint64_t address, uint64_t bytes, bool registered)
{
    pthread_mutex_lock(&fake.lock);
    if (registered) {
        (void)fake_range_add(&fake.registered, address, bytes);
    } else {
        fake_range *range = fake.registered;
        while (range != NULL && (range->address != address || range->bytes != bytes))
            range = range->next;
        if (range != NULL)
            fake_range_remove(&fake.registered, range);
    }
    pthread_mutex_unlock(&fake.lock);
}
