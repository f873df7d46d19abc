/* SPDX-License-Identifier: Apache-2.0 */
/* Offload and restore, in two phases each. Offload: begin copies, unmap when they are complete. Restore: map memory at the same
 * addresses, copy back the bytes that were kept. */
#include "allocators/capture.h"
#include "allocators/offload/offload.h"

#define FLAGS (BP_OFFLOAD_KEEP | BP_OFFLOAD_DISCARD | BP_OFFLOAD_RECAPTURE)

/* ---- offload ----------------------------------------------------------------------------------------------------- */

/* Claims a group for an offload; from here on new leases are refused. */
static bp_status claim(bp_offload *offload, const char *name, uint32_t flags, bp_group **claimed)
{
    const bool keep = (flags & BP_OFFLOAD_KEEP) != 0, discard = (flags & BP_OFFLOAD_DISCARD) != 0;
    bp_group *group = NULL;
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_offload_begin"));
    BP_TRY(bp_group_find(offload, name, "bp_offload_begin", &group));
    if ((flags & ~FLAGS) != 0 || keep == discard)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_offload_begin: flags 0x%x for group %.80s; expected keep (%u) or discard (%u), "
                       "alone or with recapture (%u)",
                       flags, group->name, BP_OFFLOAD_KEEP, BP_OFFLOAD_DISCARD, BP_OFFLOAD_RECAPTURE);
    if (keep && group->joint)
        return bp_fail(
            BP_ERR_UNSUPPORTED,
            "group %.80s of pool %.40s cannot be kept: several roles share a slab of it in turn, and its %llu "
            "bytes are undefined afterwards; discard them",
            group->name, offload->pool_name, (unsigned long long)group->bytes);
    if ((flags & BP_OFFLOAD_RECAPTURE) == 0)
        BP_TRY(bp_residency_check_graphs(offload->pool, group->chosen, group->name));
    pthread_mutex_lock(&offload->lock);
    bp_status status = group->residency == BP_RESIDENT ? bp_leases_check(offload, group)
                                                       : bp_group_fail_residency(offload, group, "bp_offload_begin");
    if (status == BP_OK)
        group->residency = BP_OFFLOADING;
    pthread_mutex_unlock(&offload->lock);
    if (status == BP_OK)
        *claimed = group;
    return status;
}

/* Two status agreements: no copy may read memory that another rank's failure returns to the caller, and all ranks learn if one cannot
 * begin copies. */
static bp_status begin_offload(bp_offload *offload, bp_group *group, uint32_t flags)
{
    bp_backing_memory *memory = NULL; /* host memory for the group's bytes, reused or new; NULL: discard */
    bp_job *job = NULL;
    bp_status status = BP_OK;
    if ((flags & BP_OFFLOAD_KEEP) != 0) {
        memory = group->memory != NULL ? group->memory : bp_copies_reclaim(offload, group);
        if (memory == NULL)
            status = bp_backing_memory_create(offload, group, &memory);
    }
    if (status == BP_OK)
        status = bp_job_create(offload, group, true, memory, &job);
    if (status == BP_OK)
        status = bp_residency_close(offload->pool, group->chosen, group->name);
    const bool closed = status == BP_OK;
    status = bp_offload_agree(offload, status);
    if (closed && status == BP_OK)
        status = bp_offload_agree(offload, bp_copies_start(job));

    if (closed && status == BP_OK) {
        group->job = job;
        group->recapture = (flags & BP_OFFLOAD_RECAPTURE) != 0;
        group->memory = memory != NULL ? memory : group->memory;
        for (size_t i = 0; memory != NULL && i < memory->count; i++)
            memory->pieces[i].kept = memory->pieces[i].bytes;
        return BP_OK;
    }
    if (closed)
        bp_residency_open(offload->pool, group->chosen);
    bp_backing_memory *orphan = memory != group->memory ? memory : NULL;
    if (job != NULL)
        bp_copies_abandon(job, orphan);
    else
        bp_backing_memory_destroy(&offload->source, &orphan);
    return status;
}

bp_status bp_offload_begin(bp_offload *offload, const char *group, uint32_t flags)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_offload_begin"));
    bp_status status = claim(offload, group, flags, &found);
    if (status != BP_OK) /* the other ranks wait for the agreement */
        return bp_offload_agree(offload, status);
    status = begin_offload(offload, found, flags);
    bp_group_set(offload, found, status == BP_OK ? BP_OFFLOADING : BP_RESIDENT);
    return status;
}

bp_status bp_offload_finish(bp_offload *offload, const char *group)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_offload_finish"));
    bp_status status = bp_capture_refuse_any(offload->pool, "bp_offload_finish");
    if (status == BP_OK)
        status = bp_group_find(offload, group, "bp_offload_finish", &found);
    if (status == BP_OK && found->residency != BP_OFFLOADING)
        status = bp_group_fail_residency(offload, found, "bp_offload_finish");
    if (status != BP_OK)
        return bp_offload_agree(offload, status);
    BP_TRY(bp_offload_agree(
        offload, BP_OK)); /* if another rank cannot finish, the group stays in state offloading on all ranks */
    status = bp_offload_agree(offload, bp_copies_wait(offload, found));
    if (status == BP_OK && found->recapture) /* windows end first, and are made anew even if the memory then stays */
        bp_residency_void_graphs(offload->pool, found->chosen);
    if (status == BP_OK)
        status = bp_slabs_unload(bp_pool_slabs(offload->pool), found->chosen);

    bool absent = false;
    for (uint32_t i = 0; i < found->slab_count; i++)
        absent |= bp_pool_slabs(offload->pool)->slabs[found->slabs[i]].absent;
    if (!absent) {
        bp_backing_memory_forget(found->memory);
        bp_residency_open(offload->pool, found->chosen);
    }
    bp_group_set(offload, found, absent ? BP_OFFLOADED : BP_RESIDENT);
    return status;
}

/* ---- restore ----------------------------------------------------------------------------------------------------- */

static bp_status find_offloaded(bp_offload *offload, const char *name, bp_restore fill, bp_group **group)
{
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_restore_begin"));
    BP_TRY(bp_group_find(offload, name, "bp_restore_begin", group));
    if (fill != BP_RESTORE_ZERO && fill != BP_RESTORE_LEAVE)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_restore_begin: unknown fill %d for group %.80s", (int)fill,
                       (*group)->name);
    if ((*group)->residency != BP_OFFLOADED)
        return bp_group_fail_residency(offload, *group, "bp_restore_begin");
    if ((*group)->lost)
        return bp_fail(
            BP_ERR_SCHEDULE,
            "bp_restore_begin: group %.80s of pool %.40s was left offloaded by an offload that was destroyed; it "
            "cannot be restored",
            (*group)->name, offload->pool_name);
    return BP_OK;
}

static bp_status start_back(bp_group *group, bp_job *job)
{
    bp_status status = bp_copies_start(job);
    if (status == BP_OK)
        group->job = job;
    else
        bp_copies_abandon(job, NULL);
    return status;
}

bp_status bp_restore_begin(bp_offload *offload, const char *group, bp_restore fill)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_restore_begin"));
    bp_status status = find_offloaded(offload, group, fill, &found);
    if (status != BP_OK)
        return bp_offload_agree(offload, status);
    found->fill = fill;
    bp_job *job = NULL;
    status = bp_job_create(offload, found, false, found->memory, &job);
    status = status == BP_OK ? bp_slabs_load(bp_pool_slabs(offload->pool), found->chosen)
                             : bp_offload_agree(offload, status);
    if (status == BP_OK) /* all ranks have their memory: bp_restore_finish repeats what fails from here on */
        (void)start_back(found, job);
    else if (job != NULL)
        bp_copies_abandon(job, NULL);
    bp_group_set(offload, found, status == BP_OK ? BP_RESTORING : BP_OFFLOADED);
    return status;
}

bp_status bp_restore_finish(bp_offload *offload, const char *group)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_restore_finish"));
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_restore_finish"));
    BP_TRY(bp_group_find(offload, group, "bp_restore_finish", &found));
    if (found->residency != BP_RESTORING)
        return bp_group_fail_residency(offload, found, "bp_restore_finish");
    if (found->job == NULL) {
        bp_job *job =
            NULL; /* copies that could not begin, or whose end was not confirmed: the bytes are still on the host */
        BP_TRY(bp_job_create(offload, found, false, found->memory, &job));
        BP_TRY(start_back(found, job));
    }
    BP_TRY(bp_copies_wait(offload, found));
    bp_backing_memory_forget(found->memory);
    bp_residency_open(offload->pool, found->chosen);
    bp_group_set(offload, found, BP_RESIDENT);
    return BP_OK;
}
