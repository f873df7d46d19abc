/* Offload and restore, each in two halves: copies begin, and when they are done memory is unmapped; memory is mapped at the same addresses, and gets
 * the bytes that were kept. */
#include <stdlib.h>

#include "allocators/capture.h"
#include "allocators/residency.h"
#include "offload/copies.h"

/* ---- offload ----------------------------------------------------------------------------------------------------- */

#define FLAGS (BP_OFFLOAD_KEEP | BP_OFFLOAD_DISCARD | BP_OFFLOAD_RECAPTURE)

/* ---- begin ---------------------------------------------------------------------------------------------------------- */

static bp_status check_flags(const bp_offload *offload, const bp_group *group, uint32_t flags)
{
    const bool keep = (flags & BP_OFFLOAD_KEEP) != 0, discard = (flags & BP_OFFLOAD_DISCARD) != 0;
    if ((flags & ~FLAGS) != 0 || keep == discard)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_offload_begin: flags 0x%x for group %.80s: either keep (%u) or discard (%u), and nothing "
                       "but recapture (%u) with it",
                       flags, group->name, BP_OFFLOAD_KEEP, BP_OFFLOAD_DISCARD, BP_OFFLOAD_RECAPTURE);
    if (keep && group->joint)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "group %.80s of pool %.40s cannot be kept: several roles take turns in a slab of it, whose %llu "
                       "bytes are of no use later: discard them",
                       group->name, offload->pool_name, (unsigned long long)group->bytes);
    return BP_OK;
}

/* From here on nobody gets a lease. */
static bp_status away_claim(bp_offload *offload, bp_group *group)
{
    pthread_mutex_lock(&offload->lock);
    bp_status status = group->residency == BP_RESIDENT ? bp_leases_check(offload, group)
                                                       : bp_group_fail_residency(offload, group, "bp_offload_begin");
    if (status == BP_OK)
        group->residency = BP_OFFLOADING;
    pthread_mutex_unlock(&offload->lock);
    return status;
}

/* Host memory for all of the group's bytes: what it has already, or new. */
static bp_status away_find_memory(bp_offload *offload, bp_group *group, bp_backing_memory **memory)
{
    void *array;
    *memory = group->memory != NULL ? group->memory : bp_copies_reclaim(offload, group);
    if (*memory != NULL)
        return BP_OK;
    BP_TRY(bp_new_array(group->slab_count, sizeof(uint64_t), &array));
    uint64_t *bytes = array;
    for (uint32_t i = 0; i < group->slab_count; i++)
        bytes[i] = offload->pool->slabs.slabs[group->slabs[i]].bytes;
    bp_status status = bp_backing_memory_create(&offload->source, group->name, bytes, group->slab_count, memory);
    free(array);
    return status;
}

/* The group's memory is nobody's any more, and its bytes can go to `memory` (NULL: they are given up). */
static bp_status away_prepare(bp_offload *offload, bp_group *group, bp_backing_memory *memory, bp_job **job)
{
    BP_TRY(bp_job_create_away(offload, group, memory, job));
    return bp_residency_close(offload->pool, group->chosen, group->name);
}

static void abandon(bp_offload *offload, const bp_group *group, bp_job *job, bp_backing_memory *memory)
{
    bp_backing_memory *orphan = memory != group->memory ? memory : NULL;
    if (job != NULL)
        bp_copies_abandon(job, orphan);
    else
        bp_backing_memory_destroy(&offload->source, &orphan);
}

static void away_commit(bp_group *group, bp_job *job, bp_backing_memory *memory, uint32_t flags)
{
    group->job = job;
    group->recapture = (flags & BP_OFFLOAD_RECAPTURE) != 0;
    if (memory == NULL)
        return;
    group->memory = memory;
    for (size_t i = 0; i < memory->count; i++)
        memory->pieces[i].kept = job->pieces[i].bytes;
}

/* All agree twice: no copy reads memory that another rank's failure gives back to the caller, and all hear of one that cannot begin. */
static bp_status away_begin(bp_offload *offload, bp_group *group, uint32_t flags)
{
    bp_backing_memory *memory = NULL;
    bp_job *job = NULL;
    bp_status status = (flags & BP_OFFLOAD_KEEP) != 0 ? away_find_memory(offload, group, &memory) : BP_OK;
    if (status == BP_OK)
        status = away_prepare(offload, group, memory, &job);
    const bool closed = status == BP_OK;
    status = bp_offload_agree(offload, status);
    if (closed && status == BP_OK)
        status = bp_offload_agree(offload, bp_copies_start(job));
    if (closed && status == BP_OK) {
        away_commit(group, job, memory, flags);
        return BP_OK;
    }
    if (closed)
        bp_residency_open(offload->pool, group->chosen);
    abandon(offload, group, job, memory);
    return status;
}

static bp_status find_and_claim(bp_offload *offload, const char *name, uint32_t flags, bp_group **group)
{
    bp_group *found = NULL;
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_offload_begin"));
    BP_TRY(bp_group_find(offload, name, "bp_offload_begin", &found));
    BP_TRY(check_flags(offload, found, flags));
    if ((flags & BP_OFFLOAD_RECAPTURE) == 0)
        BP_TRY(bp_residency_check_graphs(offload->pool, found->chosen, found->name));
    BP_TRY(away_claim(offload, found));
    *group = found;
    return BP_OK;
}

bp_status bp_offload_begin(bp_offload *offload, const char *group, uint32_t flags)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_offload_begin"));
    bp_status status = find_and_claim(offload, group, flags, &found);
    if (status != BP_OK) /* the others wait to hear of it */
        return bp_offload_agree(offload, status);
    status = away_begin(offload, found, flags);
    bp_group_set(offload, found, status == BP_OK ? BP_OFFLOADING : BP_RESIDENT);
    return status;
}

/* ---- finish --------------------------------------------------------------------------------------------------------- */

static bool is_absent(const bp_offload *offload, const bp_group *group)
{
    bool absent = false;
    for (uint32_t i = 0; i < group->slab_count; i++)
        absent |= offload->pool->slabs.slabs[group->slabs[i]].absent;
    return absent;
}

static void stay(bp_offload *offload, bp_group *group)
{
    bp_backing_memory_forget(group->memory);
    bp_residency_open(offload->pool, group->chosen);
    bp_group_set(offload, group, BP_RESIDENT);
}

static void away_leave(bp_offload *offload, bp_group *group)
{
    pthread_mutex_lock(&offload->lock);
    group->offloads++;
    pthread_mutex_unlock(&offload->lock);
    bp_group_set(offload, group, BP_OFFLOADED);
}

/* Windows end first, and are other ones even where the memory then stays. */
static bp_status unload(bp_offload *offload, const bp_group *group)
{
    if (group->recapture)
        bp_residency_void_graphs(offload->pool, group->chosen);
    return bp_slabs_unload(&offload->pool->slabs, group->chosen);
}

static bp_status find_begun(bp_offload *offload, const char *name, bp_group **group)
{
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_offload_finish"));
    BP_TRY(bp_group_find(offload, name, "bp_offload_finish", group));
    return (*group)->residency == BP_OFFLOADING ? BP_OK : bp_group_fail_residency(offload, *group, "bp_offload_finish");
}

bp_status bp_offload_finish(bp_offload *offload, const char *group)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_offload_finish"));
    bp_status status = find_begun(offload, group, &found);
    if (status != BP_OK)
        return bp_offload_agree(offload, status);
    BP_TRY(bp_offload_agree(offload, BP_OK)); /* where another rank cannot, it goes on being begun on all */
    status = bp_offload_agree(offload, bp_copies_wait(offload, found));
    if (status == BP_OK)
        status = unload(offload, found);
    if (is_absent(offload, found))
        away_leave(offload, found);
    else
        stay(offload, found);
    return status;
}

/* ---- restore ----------------------------------------------------------------------------------------------------- */

/* Back: memory at the same addresses, and the bytes that were kept. */

/* ---- begin ---------------------------------------------------------------------------------------------------------- */

static bp_status find_away(bp_offload *offload, const char *name, bp_restore fill, bp_group **group)
{
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_restore_begin"));
    BP_TRY(bp_group_find(offload, name, "bp_restore_begin", group));
    if (fill != BP_RESTORE_ZERO && fill != BP_RESTORE_LEAVE)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_restore_begin: fill %d for group %.80s is unknown", (int)fill,
                       (*group)->name);
    if ((*group)->residency != BP_OFFLOADED)
        return bp_group_fail_residency(offload, *group, "bp_restore_begin");
    if ((*group)->lost)
        return bp_fail(BP_ERR_SCHEDULE,
                       "bp_restore_begin: group %.80s of pool %.40s was left away by an offload that was destroyed: it "
                       "cannot come back",
                       (*group)->name, offload->pool_name);
    return BP_OK;
}

static bp_status back_start(bp_group *group, bp_job *job)
{
    bp_status status = bp_copies_start(job);
    if (status == BP_OK)
        group->job = job;
    else
        bp_copies_abandon(job, NULL);
    return status;
}

static bp_status back_begin(bp_offload *offload, bp_group *group)
{
    bp_job *job = NULL;
    bp_status status = bp_job_create_back(offload, group, &job);
    status = status == BP_OK ? bp_slabs_load(&offload->pool->slabs, group->chosen) : bp_offload_agree(offload, status);
    if (status == BP_OK)
        (void)back_start(group,
                         job); /* all ranks have their memory: what fails now is made anew by bp_restore_finish */
    else if (job != NULL)
        bp_copies_abandon(job, NULL);
    return status;
}

bp_status bp_restore_begin(bp_offload *offload, const char *group, bp_restore fill)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_restore_begin"));
    bp_status status = find_away(offload, group, fill, &found);
    if (status != BP_OK)
        return bp_offload_agree(offload, status);
    found->fill = fill;
    status = back_begin(offload, found);
    bp_group_set(offload, found, status == BP_OK ? BP_RESTORING : BP_OFFLOADED);
    return status;
}

/* ---- finish --------------------------------------------------------------------------------------------------------- */

/* Copies that could not begin, or were not seen to end, are made anew: their bytes are still on the host. */
static bp_status start_again(bp_offload *offload, bp_group *group)
{
    bp_job *job = NULL;
    BP_TRY(bp_job_create_back(offload, group, &job));
    return back_start(group, job);
}

static bp_status arrive(bp_offload *offload, bp_group *group)
{
    if (group->residency != BP_RESTORING)
        return bp_group_fail_residency(offload, group, "bp_restore_finish");
    if (group->job == NULL)
        BP_TRY(start_again(offload, group));
    return bp_copies_wait(offload, group);
}

bp_status bp_restore_finish(bp_offload *offload, const char *group)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_restore_finish"));
    BP_TRY(bp_capture_refuse_any(offload->pool, "bp_restore_finish"));
    BP_TRY(bp_group_find(offload, group, "bp_restore_finish", &found));
    BP_TRY(arrive(offload, found));
    bp_backing_memory_forget(found->memory);
    pthread_mutex_lock(&offload->lock);
    found->restores++;
    pthread_mutex_unlock(&offload->lock);
    bp_residency_open(offload->pool, found->chosen);
    bp_group_set(offload, found, BP_RESIDENT);
    return BP_OK;
}
