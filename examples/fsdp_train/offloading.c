/* SPDX-License-Identifier: Apache-2.0 */
/* Between steps only the shards of weights and of the optimizer have to be remembered. */
#include "trainer.h"
#include "try.h"

#include <string.h>

static bool is_kept(const char *group)
{
    return strcmp(group, "state") == 0 || strcmp(group, "optimizer") == 0 || strcmp(group, "persistent") == 0;
}

#define MAX_GROUPS 16

/* The groups of the pool now. */
static bp_status groups_of(const trainer *t, bp_offload_group *groups, size_t *count)
{
    groups[0].size = sizeof groups[0];
    TRY(bp_offload_groups(t->offload, groups, MAX_GROUPS, count));
    return *count <= MAX_GROUPS ? BP_OK : fail(BP_ERR_INTERNAL, "more than %d groups", MAX_GROUPS);
}

/* Windows of NCCL are other ones afterwards. */
static bool graph_has_windows(const trainer *t)
{
    const bp_capture_info *info = bp_capture_get_info(t->capture);
    for (size_t i = 0; t->graph != NULL && i < info->slab_count; i++) {
        if (info->slabs[i].has_collectives)
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
    bp_offload_group groups[MAX_GROUPS];
    size_t count;
    bool stale = graph_has_windows(t);
    TRY(committed(t, &t->away_before));
    TRY(groups_of(t, groups, &count));
    for (size_t i = 0; i < count; i++) {
        uint32_t flags = is_kept(groups[i].name) ? BP_OFFLOAD_KEEP : BP_OFFLOAD_DISCARD;
        TRY(bp_offload_begin(t->offload, groups[i].name, stale ? flags | BP_OFFLOAD_RECAPTURE : flags));
    }
    for (size_t i = 0; i < count; i++)
        TRY(bp_offload_finish(t->offload, groups[i].name));
    if (stale)
        graph_forget(t);
    t->offloads++;
    return committed(t, &t->away_bytes);
}

bp_status restore_all(trainer *t)
{
    bp_offload_group groups[MAX_GROUPS];
    size_t count;
    TRY(groups_of(t, groups, &count));
    for (size_t i = 0; i < count; i++) {
        if (groups[i].residency == BP_OFFLOADED)
            TRY(bp_restore_begin(t->offload, groups[i].name, BP_RESTORE_LEAVE));
    }
    TRY(groups_of(t, groups, &count));
    for (size_t i = 0; i < count; i++) {
        if (groups[i].residency == BP_RESTORING)
            TRY(bp_restore_finish(t->offload, groups[i].name));
    }
    return BP_OK;
}
