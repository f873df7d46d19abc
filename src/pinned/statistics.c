/* What pinned memory says of itself. */
#include "core/structs.h"
#include "devices/device.h"
#include "pinned/pinned.h"

static bp_pinned_statistics statistics_of(const bp_pinned *pinned)
{
    const bp_small *small = &pinned->small;
    return (bp_pinned_statistics){
        .size = sizeof(bp_pinned_statistics),
        .pinned_bytes = pinned->pinned_bytes,
        .peak_pinned_bytes = pinned->peak_pinned_bytes,
        .planned_pieces = pinned->planned.count,
        .planned_bytes = pinned->planned.bytes,
        .small_pieces = small->pieces.count,
        .small_bytes = small->pieces.bytes,
        .slab_bytes = small->slab.bytes,
        .slab_used_bytes = small->slab.bytes > 0 ? small->ops->used(small) : 0,
        .huge_bytes = pinned->source.huge_bytes,
        .touch_ns = pinned->source.touch_ns,
        .pin_ns = pinned->source.pin_ns,
        .numa_node = pinned->source.node,
        .allocator = pinned->name,
        .because = pinned->because,
    };
}

bp_status bp_pinned_statistics_get(const bp_pinned *pinned, bp_pinned_statistics *statistics)
{
    if (pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_statistics_get: needs pinned memory");
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_statistics_get"));
    pthread_mutex_t *lock = (pthread_mutex_t *)&pinned->lock; /* looking changes nothing else */
    pthread_mutex_lock(lock);
    const bp_pinned_statistics now = statistics_of(pinned);
    pthread_mutex_unlock(lock);
    return bp_struct_write("bp_pinned_statistics_get", &now, sizeof now, statistics);
}
