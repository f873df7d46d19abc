/* Back: memory at the same addresses, and the bytes that were kept. */
#include "allocators/capture.h"
#include "allocators/residency.h"
#include "offload/copies.h"

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
