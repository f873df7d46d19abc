/* SPDX-License-Identifier: Apache-2.0 */
/* Offloads: their release groups, and leases for readers of memory that must stay resident. */
#include "allocators/offload/offload.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocators/capture.h"
#include "devices/pinned/pinned.h"

#define CHUNK_BYTES (UINT64_C(32) << 20)
#define NAMES_BYTES 200 /* length of lists in messages */

/* ---- release groups ---------------------------------------------------------------------------------------------- */

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

static bp_group *find_group(const bp_offload *offload, const char *name)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        if (strcmp(offload->groups[i].name, name) == 0)
            return &offload->groups[i];
    }
    return NULL;
}

void bp_group_set(bp_offload *offload, bp_group *group, bp_residency residency)
{
    const bool offloaded = residency == BP_OFFLOADED || residency == BP_RESTORING;
    uint64_t resident = 0, unreturned = 0;
    for (uint32_t i = 0; offload->pool != NULL && i < group->slab_count; i++) {
        const bp_slab *slab = &bp_pool_slabs(offload->pool)->slabs[group->slabs[i]];
        resident += slab->mapped ? slab->bytes : 0;
        unreturned += slab->committed && !slab->mapped ? slab->bytes : 0;
    }
    pthread_mutex_lock(&offload->lock);
    group->offloads += group->residency == BP_OFFLOADING && residency == BP_OFFLOADED;
    group->restores += group->residency == BP_RESTORING && residency == BP_RESIDENT;
    group->residency = residency;
    group->resident_bytes = resident;
    group->unreturned_bytes = unreturned;
    group->kept_bytes = offloaded ? bp_backing_memory_kept(group->memory) : 0;
    group->host_bytes = group->memory != NULL ? group->memory->bytes : 0;
    group->pinned = group->memory != NULL && group->memory->pinned;
    pthread_mutex_unlock(&offload->lock);
}

bp_status bp_group_fail_residency(const bp_offload *offload, const bp_group *group, const char *function)
{
    return bp_fail(BP_ERR_SCHEDULE, "%s: group %.80s of pool %.40s is %s", function, group->name, offload->pool_name,
                   bp_residency_name(group->residency));
}

/* Collects the pool's release groups. */
static bp_status list_groups(bp_offload *offload)
{
    const bp_pool_info *info = bp_pool_get_info(offload->pool);
    const size_t slabs = info->slab_count;
    BP_TRY(bp_new_array(slabs, sizeof *offload->groups, (void **)&offload->groups));
    for (uint32_t slab = 0; slab < slabs; slab++) {
        bp_group *group = find_group(offload, info->slabs[slab].group);
        if (group == NULL) {
            group = &offload->groups[offload->group_count++];
            *group = (bp_group){.residency = BP_RESIDENT};
            BP_TRY(bp_strings_add(&offload->strings, info->slabs[slab].group, &group->name));
            BP_TRY(bp_new_array(slabs, sizeof *group->chosen, (void **)&group->chosen));
            BP_TRY(bp_new_array(slabs, sizeof *group->slabs, (void **)&group->slabs));
        }
        uint32_t roles = 0; /* roles of planned requests, whose bytes are undefined between live ranges */
        for (uint32_t i = 0; i < info->request_count; i++) {
            const bp_plan_request *r = &info->requests[i];
            if (r->placement == BP_PLACE_PLANNED && r->slab == slab)
                roles |= BP_ROLE_BIT(r->role) & ~BP_ROLES_STATE;
        }
        group->chosen[slab] = true;
        group->slabs[group->slab_count++] = slab;
        group->bytes += info->slabs[slab].bytes;
        group->joint |= (roles & (roles - 1)) != 0;
        group->lost |= bp_residency_is_closed(offload->pool, slab);
    }
    for (size_t i = 0; i < offload->group_count; i++)
        bp_group_set(offload, &offload->groups[i], offload->groups[i].lost ? BP_OFFLOADED : BP_RESIDENT);
    return BP_OK;
}

bp_status bp_group_find(bp_offload *offload, const char *name, const char *function, bp_group **group)
{
    char names[NAMES_BYTES] = "";
    size_t used = 0;
    bp_group *found = name != NULL ? find_group(offload, name) : NULL;
    if (found != NULL) {
        *group = found;
        return BP_OK;
    }
    for (size_t i = 0; i < offload->group_count && used < sizeof names; i++) {
        int written = snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", offload->groups[i].name);
        used += written > 0 ? (size_t)written : 0;
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: pool %.40s has no group \"%.80s\"%s%s", function, offload->pool_name,
                   name != NULL ? name : "NULL", offload->group_count > 0 ? "; it has " : "; it has none at all",
                   names);
}

bp_status bp_offload_groups(const bp_offload *offload, bp_offload_group *groups, size_t capacity, size_t *count)
{
    if (offload == NULL || (groups == NULL && capacity > 0) || count == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_groups: the offload, the groups or the count is NULL");
    BP_TRY(bp_process_check(&offload->process, "bp_offload_groups", "the offload of pool", offload->pool_name));
    const size_t stride = groups != NULL ? groups->size : 0;
    pthread_mutex_t *lock = (pthread_mutex_t *)&offload->lock; /* a getter: only the lock changes */
    bp_status status = BP_OK;
    pthread_mutex_lock(lock);
    for (size_t i = 0; i < offload->group_count && i < capacity && status == BP_OK; i++) {
        const bp_group *g = &offload->groups[i];
        const bp_offload_group group = {.size = sizeof(bp_offload_group),
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
        status = bp_struct_init("bp_offload_groups", (char *)groups + i * stride, stride, &group, sizeof group);
    }
    pthread_mutex_unlock(lock);
    if (status == BP_OK)
        *count = offload->group_count;
    return status;
}

/* ---- destruction ---------------------------------------------------------------------------------------------------- */

/* If the device does not confirm the end of copies, their memory and progress records are leaked on purpose. */
static void offload_let_go(bp_offload *offload)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        bp_group *group = &offload->groups[i];
        if (group->job != NULL)
            bp_copies_abandon(group->job, NULL);
        group->job = NULL;
        bp_event_destroy(&group->done);
    }
    if (bp_copies_settle(offload)) {
        for (size_t i = 0; i < offload->group_count; i++)
            bp_backing_memory_destroy(&offload->source, &offload->groups[i].memory);
        bp_host_source_drop_stages(&offload->source);
        bp_pinned_destroy(&offload->source.pinned);
    } else {
        atomic_fetch_add_explicit(&offload->references, 1, memory_order_relaxed);
    }
    for (int i = BP_MOVERS; i-- > 0;)
        bp_stream_destroy(&offload->movers[i]);
    bp_device_release(offload->device);
    offload->device = NULL;
}

/* Called when the pool is destroyed; slabs keep the residency that they have. */
static void offload_gone(void *user)
{
    bp_offload *offload = user;
    offload->pool = NULL;
    offload_let_go(offload);
    for (size_t i = 0; i < offload->group_count; i++)
        bp_group_set(offload, &offload->groups[i], offload->groups[i].residency);
}

static void offload_release(bp_offload *offload)
{
    if (atomic_fetch_sub_explicit(&offload->references, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < offload->group_count; i++) {
        free(offload->groups[i].chosen);
        free(offload->groups[i].slabs);
    }
    free(offload->groups);
    bp_strings_finish(&offload->strings);
    pthread_mutex_destroy(&offload->lock);
    free(offload->pool_name);
    free(offload);
}

void bp_offload_destroy(bp_offload **offload)
{
    if (offload == NULL || *offload == NULL)
        return;
    bp_offload *o = *offload;
    *offload = NULL;
    if (!bp_process_is_here(&o->process))
        return;
    BP_KEEP_ERROR;
    if (o->pool != NULL) {
        for (size_t i = 0; i < o->group_count; i++) { /* resident slabs with their bytes serve requests again */
            bp_group *group = &o->groups[i];
            const bool begun = group->residency == BP_OFFLOADING || group->residency == BP_RESTORING;
            const bool arrived = group->job != NULL && bp_copies_wait(o, group) == BP_OK;
            if (begun && (arrived || group->residency == BP_OFFLOADING))
                bp_residency_open(o->pool, group->chosen);
        }
        bp_residency_leave(o->pool);
        o->pool = NULL;
        offload_let_go(o);
    }
    offload_release(o);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static const bp_offload_config offload_config_defaults = {.size = sizeof offload_config_defaults,
                                                          .chunk_bytes = CHUNK_BYTES};

bp_status bp_offload_config_init(bp_offload_config *config, size_t size)
{
    return bp_struct_init("bp_offload_config_init", config, size, &offload_config_defaults,
                          sizeof offload_config_defaults);
}

/* Allocates host memory, streams and pinned memory. */
static bp_status offload_build(bp_offload *offload, bp_pinned *given)
{
    static const char *const movers[BP_MOVERS] = {"offload.copies", "offload.helper", "restore.copies",
                                                  "restore.helper"};
    BP_TRY(bp_copy_string(bp_pool_get_info(offload->pool)->name, &offload->pool_name));
    BP_TRY(list_groups(offload));
    if (given == NULL) {
        BP_TRY(bp_pinned_create(offload->device, NULL, &offload->source.pinned));
    } else {
        if (bp_device_undecorated(given->source.device) != bp_device_undecorated(offload->device))
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "bp_offload_create: the pinned memory is of another device than pool %.40s, which is on %s",
                           offload->pool_name, bp_device_name(offload->device));
        bp_pinned_retain(given);
        offload->source.pinned = given;
    }
    for (int i = 0; i < BP_MOVERS; i++)
        BP_TRY(bp_stream_create(offload->device, movers[i], &offload->movers[i]));
    return BP_OK;
}

bp_status bp_offload_create(bp_pool *pool, const bp_offload_config *config, bp_offload **offload)
{
    bp_offload_config own = offload_config_defaults;
    uint64_t chunk, largest = 0;
    void *memory;
    if (pool == NULL || offload == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: the pool or the output is NULL");
    bp_device *device = bp_pool_device(pool);
    BP_TRY(bp_device_check(device, "bp_offload_create"));
    BP_TRY(bp_struct_read("bp_offload_create", config, true, &own, sizeof own));
    if ((unsigned)own.backing > BP_BACKING_STAGED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: unknown backing %d", (int)own.backing);
    const uint64_t wanted = own.chunk_bytes > 0 ? own.chunk_bytes : CHUNK_BYTES;
    if (!bp_round_up_u64(wanted, (uint64_t)sysconf(_SC_PAGESIZE), &chunk))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: chunk_bytes %llu exceeds the address space",
                       (unsigned long long)wanted);
    const bp_pool_info *info = bp_pool_get_info(pool);
    for (size_t i = 0; i < info->slab_count; i++) /* a chunk never exceeds the largest slab */
        largest = info->slabs[i].bytes > largest ? info->slabs[i].bytes : largest;

    BP_TRY(bp_new_array(1, sizeof(bp_offload), &memory));
    bp_offload *made = memory;
    bp_status status = bp_residency_join(pool, made, offload_gone);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    atomic_init(&made->references, 1);
    pthread_mutex_init(&made->lock, NULL); /* cannot fail for a plain mutex */
    made->pool = pool;
    made->device = device;
    made->process = device->process;
    bp_device_retain(device);
    made->source.backing = own.backing;
    made->source.chunk_bytes = largest > 0 ? bp_min_u64(chunk, largest) : chunk;
    made->progress = own.progress;
    made->user = own.user;
    status = offload_build(made, own.pinned);
    if (status == BP_OK)
        *offload = made;
    else
        bp_offload_destroy(&made);
    return status;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

bp_status bp_offload_check(const bp_offload *offload, const char *function)
{
    if (offload == NULL || offload->pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the offload is NULL, or its pool was destroyed", function);
    return bp_device_check(offload->device, function);
}

bp_status bp_offload_agree(const bp_offload *offload, bp_status so_far)
{
    bp_status agreed = bp_slabs_agree(bp_pool_slabs(offload->pool), so_far);
    return so_far != BP_OK && agreed == BP_OK ? so_far : agreed;
}

void bp_offload_trim(bp_offload *offload)
{
    bool staged = false;
    if (offload == NULL || offload->pool == NULL || !bp_device_is_here(offload->device) ||
        atomic_load(&offload->device->captured_pools) > 0 ||
        !bp_copies_settle(
            offload)) /* drivers do not unpin during captures, and pinned pieces that are in use stay allocated */
        return;
    for (size_t i = 0; i < offload->group_count; i++) {
        bp_group *group = &offload->groups[i];
        if (bp_backing_memory_kept(group->memory) == 0)
            bp_backing_memory_destroy(&offload->source, &group->memory);
        staged |= group->memory != NULL && !group->memory->pinned;
        bp_group_set(offload, group, group->residency);
    }
    if (!staged)
        bp_host_source_drop_stages(&offload->source);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

struct bp_lease {
    bp_offload *offload; /* holds a reference */
    bp_group *group;
    bp_lease *next, **at; /* list of the group's leases */
    char reader[];
};

bp_status bp_lease_take(bp_offload *offload, const char *group, const char *reader, bp_lease **lease)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_lease_take"));
    if (reader == NULL || lease == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lease_take: the reader's name or the output is NULL");
    BP_TRY(bp_group_find(offload, group, "bp_lease_take", &found));
    const size_t length = strlen(reader);
    bp_lease *made = malloc(sizeof *made + length + 1);
    if (made == NULL)
        return bp_fail_memory(sizeof *made + length + 1);
    *made = (bp_lease){.offload = offload, .group = found};
    memcpy(made->reader, reader, length + 1);
    bp_status status = BP_OK;
    pthread_mutex_lock(&offload->lock);
    if (found->residency != BP_RESIDENT) {
        status = bp_fail(BP_ERR_SCHEDULE, "bp_lease_take: %.80s cannot read group %.80s of pool %.40s, which is %s",
                         made->reader, found->name, offload->pool_name, bp_residency_name(found->residency));
    } else {
        made->next = found->leases;
        made->at = &found->leases;
        if (made->next != NULL)
            made->next->at = &made->next;
        found->leases = made;
        found->lease_count++;
    }
    pthread_mutex_unlock(&offload->lock);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    atomic_fetch_add_explicit(&offload->references, 1, memory_order_relaxed);
    *lease = made;
    return BP_OK;
}

void bp_lease_return(bp_lease **lease)
{
    if (lease == NULL || *lease == NULL)
        return;
    bp_lease *returned = *lease;
    bp_offload *offload = returned->offload;
    *lease = NULL;
    if (!bp_process_is_here(&offload->process))
        return;
    pthread_mutex_lock(&offload->lock);
    *returned->at = returned->next;
    if (returned->next != NULL)
        returned->next->at = returned->at;
    returned->group->lease_count--;
    pthread_mutex_unlock(&offload->lock);
    free(returned);
    offload_release(offload);
}

bp_status bp_leases_check(const bp_offload *offload, const bp_group *group)
{
    char names[NAMES_BYTES] = "";
    size_t used = 0;
    if (group->lease_count == 0)
        return BP_OK;
    for (const bp_lease *lease = group->leases; lease != NULL && used < sizeof names; lease = lease->next) {
        int written =
            snprintf(names + used, sizeof names - used, "%s%.80s", lease != group->leases ? ", " : "", lease->reader);
        used += written > 0 ? (size_t)written : 0;
    }
    return bp_fail(BP_ERR_SCHEDULE,
                   "group %.80s of pool %.40s cannot be offloaded: it has %u leases (%s); return them first",
                   group->name, offload->pool_name, group->lease_count, names);
}
