/* Release groups of a pool: which there are, and how they are. */
#include <stdlib.h>
#include <string.h>

#include "allocators/capture.h"
#include "allocators/residency.h"
#include "core/structs.h"
#include "offload/offload.h"

#define LIST_BYTES 200

const char *bp_residency_name(bp_residency residency)
{
    switch (residency) {
    case BP_RESIDENT: return "resident";
    case BP_OFFLOADING: return "offloading";
    case BP_OFFLOADED: return "offloaded";
    case BP_RESTORING: return "restoring";
    }
    return "invalid";
}

/* ---- making them ---------------------------------------------------------------------------------------------------- */

static bp_group *groups_find(const bp_offload *offload, const char *name)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        if (strcmp(offload->groups[i].name, name) == 0)
            return &offload->groups[i];
    }
    return NULL;
}

static bp_status groups_add_group(bp_offload *offload, const char *name, bp_group **added)
{
    const size_t slabs = offload->pool->slabs.count;
    void *memory;
    bp_group *group = &offload->groups[offload->group_count++];
    *group = (bp_group){.residency = BP_RESIDENT};
    BP_TRY(bp_strings_add(&offload->strings, name, &group->name));
    BP_TRY(bp_new_array(slabs, sizeof *group->chosen, &memory));
    group->chosen = memory;
    BP_TRY(bp_new_array(slabs, sizeof *group->slabs, &memory));
    group->slabs = memory;
    *added = group;
    return BP_OK;
}

/* The roles of planned requests in a slab whose bytes are anybody's as they come and go. */
static uint32_t passing_roles(const bp_pool *pool, uint32_t slab)
{
    uint32_t roles = 0;
    for (uint32_t i = 0; i < pool->planned_count; i++) {
        const bp_plan_request *r = &pool->requests[i];
        if (r->placement == BP_PLACE_PLANNED && r->slab == slab)
            roles |= BP_ROLE_BIT(r->role);
    }
    return roles & ~BP_ROLES_STATE;
}

static void groups_add_slab(bp_group *group, const bp_pool *pool, uint32_t slab)
{
    const uint32_t roles = passing_roles(pool, slab);
    group->chosen[slab] = true;
    group->slabs[group->slab_count++] = slab;
    group->bytes += pool->slabs.slabs[slab].bytes;
    group->joint |= (roles & (roles - 1)) != 0;
    group->lost |= bp_residency_is_closed(pool, slab);
}

bp_status bp_groups_list(bp_offload *offload)
{
    const bp_pool *pool = offload->pool;
    void *memory;
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *offload->groups, &memory));
    offload->groups = memory;
    for (uint32_t slab = 0; slab < pool->slabs.count; slab++) {
        bp_group *group = groups_find(offload, pool->slab_infos[slab].group);
        if (group == NULL)
            BP_TRY(groups_add_group(offload, pool->slab_infos[slab].group, &group));
        groups_add_slab(group, pool, slab);
    }
    for (size_t i = 0; i < offload->group_count; i++)
        bp_group_set(offload, &offload->groups[i], offload->groups[i].lost ? BP_OFFLOADED : BP_RESIDENT);
    return BP_OK;
}

void bp_groups_free(bp_offload *offload)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        free(offload->groups[i].chosen);
        free(offload->groups[i].slabs);
    }
    free(offload->groups);
    bp_strings_finish(&offload->strings);
}

/* ---- how they are --------------------------------------------------------------------------------------------------- */

static bp_status fail_unknown(const bp_offload *offload, const char *name, const char *function)
{
    char names[LIST_BYTES] = "";
    size_t used = 0;
    for (size_t i = 0; i < offload->group_count && used < sizeof names; i++) {
        int written = snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", offload->groups[i].name);
        used += written > 0 ? (size_t)written : 0;
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: pool %.40s has no group \"%.80s\"%s%s", function, offload->pool_name,
                   name, offload->group_count > 0 ? "; it has " : "; it has none at all", names);
}

bp_status bp_group_find(bp_offload *offload, const char *name, const char *function, bp_group **group)
{
    bp_group *found = name != NULL ? groups_find(offload, name) : NULL;
    if (found == NULL)
        return fail_unknown(offload, name != NULL ? name : "NULL", function);
    *group = found;
    return BP_OK;
}

void bp_group_set(bp_offload *offload, bp_group *group, bp_residency residency)
{
    const bool away = residency == BP_OFFLOADED || residency == BP_RESTORING;
    uint64_t resident = 0, unreturned = 0;
    for (uint32_t i = 0; offload->pool != NULL && i < group->slab_count; i++) {
        const bp_slab *slab = &offload->pool->slabs.slabs[group->slabs[i]];
        resident += slab->mapped ? slab->bytes : 0;
        unreturned += slab->committed && !slab->mapped ? slab->bytes : 0;
    }
    pthread_mutex_lock(&offload->lock);
    group->residency = residency;
    group->resident_bytes = resident;
    group->unreturned_bytes = unreturned;
    group->kept_bytes = away ? bp_backing_memory_kept(group->memory) : 0;
    group->host_bytes = group->memory != NULL ? group->memory->bytes : 0;
    group->pinned = group->memory != NULL && group->memory->pinned;
    pthread_mutex_unlock(&offload->lock);
}

bp_status bp_group_fail_residency(const bp_offload *offload, const bp_group *group, const char *function)
{
    return bp_fail(BP_ERR_SCHEDULE, "%s: group %.80s of pool %.40s is %s", function, group->name, offload->pool_name,
                   bp_residency_name(group->residency));
}

/* ---- looking -------------------------------------------------------------------------------------------------------- */

static bp_offload_group group_of(const bp_group *g)
{
    return (bp_offload_group){.size = sizeof(bp_offload_group),
                              .name = g->name,
                              .residency = g->residency,
                              .slabs = g->slab_count,
                              .bytes = g->bytes,
                              .resident_bytes = g->resident_bytes,
                              .kept_bytes = g->kept_bytes,
                              .host_bytes = g->host_bytes,
                              .unreturned_bytes = g->unreturned_bytes,
                              .copied_bytes = g->copied_bytes,
                              .offloads = g->offloads,
                              .restores = g->restores,
                              .leases = g->lease_count,
                              .pinned = g->pinned};
}

static bp_status write_groups(const bp_offload *offload, bp_offload_group *groups, size_t capacity)
{
    const size_t stride = groups != NULL ? groups->size : 0;
    for (size_t i = 0; i < offload->group_count && i < capacity; i++) {
        const bp_offload_group group = group_of(&offload->groups[i]);
        void *place = (char *)groups + i * stride;
        BP_TRY(bp_struct_init("bp_offload_groups", place, stride, &group, sizeof group));
    }
    return BP_OK;
}

bp_status bp_offload_groups(const bp_offload *offload, bp_offload_group *groups, size_t capacity, size_t *count)
{
    if (offload == NULL || (groups == NULL && capacity > 0) || count == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_groups: needs an offload, room for groups and a count");
    BP_TRY(bp_process_check(&offload->process, "bp_offload_groups", "the offload of pool", offload->pool_name));
    pthread_mutex_t *lock = (pthread_mutex_t *)&offload->lock; /* looking changes nothing else */
    pthread_mutex_lock(lock);
    bp_status status = write_groups(offload, groups, capacity);
    pthread_mutex_unlock(lock);
    if (status == BP_OK)
        *count = offload->group_count;
    return status;
}
