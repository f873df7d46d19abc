#include "memory/slabs.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"

void bp_slabs_init(bp_device *device, bp_slabs *slabs)
{
    *slabs = (bp_slabs){.device = device};
}

static bp_status make(const bp_slabs *slabs, uint64_t alignment, bp_slab *slab)
{
    bp_device *device = slabs->device;
    void *address;
    BP_TRY(device->ops->reserve(device->self, slab->bytes, alignment, &address));
    slab->address = address;
    bp_status status = bp_device_commit(device, slab->bytes, &slab->handle);
    if (status == BP_OK) {
        status = device->ops->map(device->self, address, slab->bytes, slab->handle);
        if (status == BP_OK)
            return BP_OK;
        bp_device_decommit(device, slab->bytes, slab->handle);
    }
    device->ops->unreserve(device->self, address, slab->bytes);
    return status;
}

bp_status bp_slabs_add(bp_slabs *slabs, uint64_t bytes, uint64_t alignment)
{
    const uint64_t granularity = slabs->device->traits.granularity;
    bp_slab slab = {0};
    if (!bp_round_up_u64(bytes, granularity, &slab.bytes))
        return bp_fail(BP_ERR_OVERFLOW, "a slab of %llu bytes does not fit 64 bits", (unsigned long long)bytes);
    BP_TRY(bp_grow_array((void **)&slabs->slabs, &slabs->capacity, slabs->count, sizeof *slabs->slabs));
    BP_TRY(make(slabs, alignment > granularity ? alignment : granularity, &slab));
    slabs->slabs[slabs->count++] = slab;
    return BP_OK;
}

/* Of the first `count` slabs, last first. */
static void detach_slabs(const bp_slabs *slabs, const bp_slab_observer *observer, size_t count)
{
    for (size_t i = count; i-- > 0;)
        observer->callbacks.detach(observer->user, (uint32_t)i, slabs->slabs[i].address, slabs->slabs[i].bytes);
}

bp_status bp_slabs_attach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(bp_grow_array((void **)&slabs->observers, &slabs->observer_capacity, slabs->observer_count,
                         sizeof *slabs->observers));
    bp_slab_observer *observer = &slabs->observers[slabs->observer_count];
    *observer = (bp_slab_observer){*callbacks, user};
    for (size_t i = 0; i < slabs->count; i++) {
        bp_status status = callbacks->attach(user, (uint32_t)i, slabs->slabs[i].address, slabs->slabs[i].bytes);
        if (status != BP_OK) {
            detach_slabs(slabs, observer, i);
            return status;
        }
    }
    slabs->observer_count++;
    return BP_OK;
}

bp_status bp_slabs_detach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user)
{
    for (size_t i = slabs->observer_count; i-- > 0;) {
        bp_slab_observer *observer = &slabs->observers[i];
        if (observer->callbacks.attach != callbacks->attach || observer->callbacks.detach != callbacks->detach ||
            observer->user != user)
            continue;
        detach_slabs(slabs, observer, slabs->count);
        memmove(observer, observer + 1, (--slabs->observer_count - i) * sizeof *observer);
        return BP_OK;
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_detach: these callbacks were not attached with this argument");
}

void bp_slabs_finish(bp_slabs *slabs)
{
    for (size_t i = slabs->observer_count; i-- > 0;)
        detach_slabs(slabs, &slabs->observers[i], slabs->count);
    for (size_t i = slabs->observer_count; i-- > 0;)
        if (slabs->observers[i].callbacks.gone != NULL)
            slabs->observers[i].callbacks.gone(slabs->observers[i].user);
    bp_device *device = slabs->device;
    /* a step that fails leaves something behind that only the device can free: go on with the rest */
    for (size_t i = slabs->count; i-- > 0;) {
        bp_slab *slab = &slabs->slabs[i];
        device->ops->unmap(device->self, slab->address, slab->bytes);
        bp_device_decommit(device, slab->bytes, slab->handle);
        device->ops->unreserve(device->self, slab->address, slab->bytes);
    }
    free(slabs->observers);
    free(slabs->slabs);
    *slabs = (bp_slabs){0};
}
