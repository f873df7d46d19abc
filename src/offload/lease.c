/* Leases: readers that must not lose the memory under their hands. */
#include <stdlib.h>
#include <string.h>

#include "offload/offload.h"

#define NAMES_BYTES 200

struct bp_lease {
    bp_offload *offload; /* kept alive */
    bp_group *group;
    bp_lease *next, **at; /* of the group's */
    char reader[];
};

static bp_status lease_take(bp_offload *offload, bp_group *group, bp_lease *lease)
{
    pthread_mutex_lock(&offload->lock);
    bp_status status = BP_OK;
    if (group->residency != BP_RESIDENT) {
        status = bp_fail(BP_ERR_SCHEDULE, "bp_lease_take: %.80s cannot read group %.80s of pool %.40s, which is %s",
                         lease->reader, group->name, offload->pool_name, bp_residency_name(group->residency));
    } else {
        lease->next = group->leases;
        lease->at = &group->leases;
        if (lease->next != NULL)
            lease->next->at = &lease->next;
        group->leases = lease;
        group->lease_count++;
    }
    pthread_mutex_unlock(&offload->lock);
    return status;
}

bp_status bp_lease_take(bp_offload *offload, const char *group, const char *reader, bp_lease **lease)
{
    bp_group *found = NULL;
    BP_TRY(bp_offload_check(offload, "bp_lease_take"));
    if (reader == NULL || lease == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lease_take: needs the reader's name and an output");
    BP_TRY(bp_group_find(offload, group, "bp_lease_take", &found));
    const size_t length = strlen(reader);
    bp_lease *made = malloc(sizeof *made + length + 1);
    if (made == NULL)
        return bp_fail_memory(sizeof *made + length + 1);
    *made = (bp_lease){.offload = offload, .group = found};
    memcpy(made->reader, reader, length + 1);
    bp_status status = lease_take(offload, found, made);
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
    bp_offload_release(offload);
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
    return bp_fail(BP_ERR_SCHEDULE, "group %.80s of pool %.40s cannot be offloaded: %u leases are out (%s)",
                   group->name, offload->pool_name, group->lease_count, names);
}
