/* Between steps only the shards of weights and of the optimizer have to be remembered. */
#include "trainer.h"
#include "try.h"

#include <string.h>

static bool is_kept(const char *group)
{
    return strcmp(group, "state") == 0 || strcmp(group, "optimizer") == 0 || strcmp(group, "persistent") == 0;
}

static bp_status group_of(const trainer *t, size_t index, bp_offload_group *group)
{
    *group = (bp_offload_group){.size = sizeof *group};
    return bp_offload_group_get(t->offload, index, group);
}

/* Windows of NCCL are other ones afterwards. */
static bool graph_has_windows(const trainer *t)
{
    for (size_t slab = 0; t->graph != NULL && slab < bp_pool_get_info(t->pool)->slab_count; slab++) {
        if (bp_capture_pins_slab(t->capture, (uint32_t)slab))
            return true;
    }
    return false;
}

static bp_status committed(const trainer *t, uint64_t *bytes)
{
    bp_device_usage usage = {.size = sizeof usage};
    TRY(bp_device_usage_get(t->device, &usage));
    *bytes = usage.committed_bytes;
    return BP_OK;
}

bp_status offload_all(trainer *t)
{
    bp_offload_group group;
    bool stale = graph_has_windows(t);
    TRY(committed(t, &t->away_before));
    for (size_t i = 0; i < bp_offload_group_count(t->offload); i++) {
        TRY(group_of(t, i, &group));
        uint32_t flags = is_kept(group.name) ? BP_OFFLOAD_KEEP : BP_OFFLOAD_DISCARD;
        TRY(bp_offload_begin(t->offload, group.name, stale ? flags | BP_OFFLOAD_RECAPTURE : flags));
    }
    for (size_t i = 0; i < bp_offload_group_count(t->offload); i++) {
        TRY(group_of(t, i, &group));
        TRY(bp_offload_finish(t->offload, group.name));
    }
    if (stale)
        graph_forget(t);
    t->offloads++;
    return committed(t, &t->away_bytes);
}

bp_status restore_all(trainer *t)
{
    bp_offload_group group;
    for (size_t i = 0; i < bp_offload_group_count(t->offload); i++) {
        TRY(group_of(t, i, &group));
        if (group.residency == BP_OFFLOADED)
            TRY(bp_restore_begin(t->offload, group.name, BP_RESTORE_LEAVE));
    }
    for (size_t i = 0; i < bp_offload_group_count(t->offload); i++) {
        TRY(group_of(t, i, &group));
        if (group.residency == BP_RESTORING)
            TRY(bp_restore_finish(t->offload, group.name));
    }
    return BP_OK;
}
