/* Offloads as objects, and leases for readers of memory that must stay resident. */
#include "offload/offload.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocators/capture.h"
#include "allocators/residency.h"
#include "core/arith.h"
#include "core/structs.h"
#include "offload/copies.h"
#include "pinned/pinned.h"

#define CHUNK_BYTES (UINT64_C(32) << 20)

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static const bp_offload_config offload_config_defaults = {.size = sizeof offload_config_defaults,
                                                          .chunk_bytes = CHUNK_BYTES};

bp_status bp_offload_config_init(bp_offload_config *config, size_t size)
{
    return bp_struct_init("bp_offload_config_init", config, size, &offload_config_defaults,
                          sizeof offload_config_defaults);
}

static bp_status offload_check_config(const bp_offload_config *config, uint64_t *chunk_bytes)
{
    const uint64_t wanted = config->chunk_bytes > 0 ? config->chunk_bytes : CHUNK_BYTES;
    if ((unsigned)config->backing > BP_BACKING_STAGED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: backing %d is unknown", (int)config->backing);
    if (!bp_round_up_u64(wanted, (uint64_t)sysconf(_SC_PAGESIZE), chunk_bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: chunk_bytes is %llu, which no memory has",
                       (unsigned long long)wanted);
    return BP_OK;
}

/* A chunk is never larger than what there is to copy at once. */
static uint64_t choose_chunk(const bp_pool *pool, uint64_t wanted)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < pool->slabs.count; i++)
        largest = pool->slabs.slabs[i].bytes > largest ? pool->slabs.slabs[i].bytes : largest;
    return largest > 0 ? bp_least_u64(wanted, largest) : wanted;
}

static bp_status offload_get_pinned(bp_offload *offload, bp_pinned *given)
{
    if (given == NULL)
        return bp_pinned_create(offload->device, NULL, &offload->source.pinned);
    if (bp_device_undecorated(given->source.device) != bp_device_undecorated(offload->device))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_offload_create: the pinned memory is of another device than pool %.40s, which is on %s",
                       offload->pool_name, bp_device_name(offload->device));
    bp_pinned_retain(given);
    offload->source.pinned = given;
    return BP_OK;
}

static bp_status offload_build(bp_offload *offload, const bp_offload_config *config)
{
    BP_TRY(bp_copy_string(bp_pool_get_info(offload->pool)->name, &offload->pool_name));
    BP_TRY(bp_groups_list(offload));
    BP_TRY(offload_get_pinned(offload, config->pinned));
    return bp_movers_create(offload->device, &offload->movers);
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

static void forget_job(bp_group *group)
{
    if (group->job != NULL)
        bp_copies_abandon(group->job, NULL);
    group->job = NULL;
}

/* Where the device does not say that copies are over, what they write to and tell of their progress is left to them. */
static void offload_let_go(bp_offload *offload)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        forget_job(&offload->groups[i]);
        bp_event_destroy(&offload->groups[i].done);
    }
    if (bp_copies_settle(offload)) {
        for (size_t i = 0; i < offload->group_count; i++)
            bp_backing_memory_destroy(&offload->source, &offload->groups[i].memory);
        bp_host_source_drop_stages(&offload->source);
        bp_pinned_destroy(&offload->source.pinned);
    } else {
        atomic_fetch_add_explicit(&offload->references, 1, memory_order_relaxed);
    }
    bp_movers_destroy(&offload->movers);
    bp_device_release(offload->device);
    offload->device = NULL;
}

/* The pool goes; its slabs have what memory they have. */
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
    bp_groups_free(offload);
    pthread_mutex_destroy(&offload->lock);
    free(offload->pool_name);
    free(offload);
}

/* What has its memory, and its bytes, serves requests again. */
static void open_groups(bp_offload *offload)
{
    for (size_t i = 0; i < offload->group_count; i++) {
        bp_group *group = &offload->groups[i];
        const bool begun = group->residency == BP_OFFLOADING || group->residency == BP_RESTORING;
        const bool arrived = group->job != NULL && bp_copies_wait(offload, group) == BP_OK;
        if (begun && (arrived || group->residency == BP_OFFLOADING))
            bp_residency_open(offload->pool, group->chosen);
    }
}

void bp_offload_destroy(bp_offload **offload)
{
    if (offload == NULL || *offload == NULL)
        return;
    bp_offload *o = *offload;
    *offload = NULL;
    if (!bp_process_is_here(&o->process))
        return;
    if (o->pool != NULL) {
        open_groups(o);
        bp_residency_leave(o->pool);
        o->pool = NULL;
        offload_let_go(o);
    }
    offload_release(o);
}

bp_status bp_offload_create(bp_pool *pool, const bp_offload_config *config, bp_offload **offload)
{
    bp_offload_config own = offload_config_defaults;
    uint64_t chunk_bytes;
    void *memory;
    if (pool == NULL || offload == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_offload_create: needs a pool and an output");
    BP_TRY(bp_device_check(pool->device, "bp_offload_create"));
    BP_TRY(bp_struct_read("bp_offload_create", config, true, &own, sizeof own));
    config = &own;
    BP_TRY(offload_check_config(config, &chunk_bytes));
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
    made->device = pool->device;
    made->process = pool->device->process;
    bp_device_retain(pool->device);
    made->source = (bp_host_source){.backing = config->backing, .chunk_bytes = choose_chunk(pool, chunk_bytes)};
    made->progress = config->progress;
    made->user = config->user;
    status = offload_build(made, config);
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no offload, or its pool was destroyed", function);
    return bp_device_check(offload->device, function);
}

bp_status bp_offload_agree(const bp_offload *offload, bp_status so_far)
{
    bp_status agreed = bp_slabs_agree(&offload->pool->slabs, so_far);
    return so_far != BP_OK && agreed == BP_OK ? so_far : agreed;
}

/* ---- host memory ---------------------------------------------------------------------------------------------------- */

void bp_offload_trim(bp_offload *offload)
{
    bool staged = false;
    if (offload == NULL || offload->pool == NULL || !bp_device_is_here(offload->device) ||
        atomic_load(&offload->device->captured_pools) > 0 ||
        !bp_copies_settle(offload)) /* drivers unpin nothing while they capture, and what is not unpinned stays lent */
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

/* Leases: readers that must not lose the memory under their hands. */

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
    return bp_fail(BP_ERR_SCHEDULE, "group %.80s of pool %.40s cannot be offloaded: %u leases are out (%s)",
                   group->name, offload->pool_name, group->lease_count, names);
}
