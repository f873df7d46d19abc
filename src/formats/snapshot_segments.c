/* Segments of PyTorch's allocator as slabs: every range that ever had memory. */
#include <stdlib.h>

#include "core/fail.h"
#include "formats/snapshot_torch.h"

static int by_address(const void *left, const void *right)
{
    const bp_snapshot_slab *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

/* Segments that overlap, at different times, become one slab; planned_bytes adds up what it has at the end. */
static void merge_slabs(bp_torch_device *d)
{
    bp_snapshot_slab *slabs = d->pool->slabs;
    size_t count = d->pool->slab_count, kept = 0;
    qsort(slabs, count, sizeof *slabs, by_address);
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_slab *last = kept > 0 ? &slabs[kept - 1] : NULL;
        if (last == NULL || slabs[i].address - last->address >= last->bytes) {
            slabs[kept++] = slabs[i];
            continue;
        }
        uint64_t end = slabs[i].address - last->address + slabs[i].bytes;
        last->bytes = end > last->bytes ? end : last->bytes;
        last->planned_bytes += slabs[i].planned_bytes;
    }
    d->pool->slab_count = kept;
}

static size_t slab_of(const bp_torch_device *d, uint64_t address)
{
    size_t low = 0, high = d->pool->slab_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(d->pool->slabs[middle].address <= address ? &low : &high) = middle;
    }
    return low;
}

/* An event that maps or unmaps; `forward` or played back. Whether the slab got or lost its memory. */
static bool snapshot_segments_map(bp_torch_device *d, const bp_torch_event *event, bool forward, size_t *slab)
{
    *slab = slab_of(d, event->address);
    uint64_t *mapped = &d->mapped[*slab], before = *mapped;
    bool more = (event->action == BP_TORCH_MAP) == forward;
    *mapped = more ? before + event->bytes : before - (event->bytes < before ? event->bytes : before);
    return (before > 0) != (*mapped > 0);
}

bp_status bp_torch_find_slabs(bp_torch_device *d)
{
    bp_snapshot_pool *pool = d->pool;
    for (size_t i = 0; i < d->event_count; i++) {
        if (bp_torch_is_mapping(&d->events[i]))
            pool->slabs[pool->slab_count++] =
                (bp_snapshot_slab){.address = d->events[i].address, .bytes = d->events[i].bytes};
    }
    merge_slabs(d);
    void *mapped = NULL, *changes = NULL;
    BP_TRY(bp_snapshot_scratch(d->reader, pool->slab_count, sizeof *d->mapped, &mapped));
    d->mapped = mapped;
    BP_TRY(bp_snapshot_room(d->reader, d->mapping_count, sizeof *pool->slab_events, &changes));
    pool->slab_events = changes;
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_slab *slab = &pool->slabs[i];
        d->mapped[i] = slab->planned_bytes;
        slab->group = "segment";
        slab->resident = slab->planned_bytes > 0;
        slab->planned_bytes = 0;
    }
    size_t slab = 0;
    for (size_t i = d->event_count; i-- > 0;) {
        if (bp_torch_is_mapping(&d->events[i]))
            snapshot_segments_map(d, &d->events[i], false, &slab);
    }
    for (size_t i = 0; i < pool->slab_count; i++)
        pool->slabs[i].resident_at_start = d->mapped[i] > 0;
    for (size_t i = 0; i < d->event_count; i++) {
        const bp_torch_event *event = &d->events[i];
        if (bp_torch_is_mapping(event) && snapshot_segments_map(d, event, true, &slab))
            pool->slab_events[pool->slab_event_count++] = (bp_snapshot_slab_event){
                .gained = event->action == BP_TORCH_MAP, .slab = (uint32_t)slab, .time_ns = event->time_ns};
    }
    return BP_OK;
}
