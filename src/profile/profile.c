/* Making and unmaking a profile. */
#include "profile/profile.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/structs.h"

#define DEFAULT_ENTRIES 100000u
#define DEFAULT_DIRECTORY "memory_snapshots"

static const bp_profile_config profile_config_defaults = {.size = sizeof profile_config_defaults};

bp_status bp_profile_config_init(bp_profile_config *config, size_t size)
{
    return bp_struct_init("bp_profile_config_init", config, size, &profile_config_defaults,
                          sizeof profile_config_defaults);
}

/* ---- what was configured -------------------------------------------------------------------------------------------- */

static bp_status profile_check_config(const bp_profile_config *c)
{
    if (c->directory != NULL && c->directory[0] == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: directory is empty; \".\" is the current one");
    if (c->max_entries > BP_MOST_ENTRIES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: max_entries %llu, at most %zu",
                       (unsigned long long)c->max_entries, BP_MOST_ENTRIES);
    if (c->formats & ~(BP_PROFILE_PICKLE | BP_PROFILE_TRACE))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: formats 0x%x has unknown bits", c->formats);
    if (c->rank >= (c->ranks > 0 ? c->ranks : 1))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: rank %u of %u ranks", c->rank,
                       c->ranks > 0 ? c->ranks : 1);
    for (size_t i = 0; c->record_ranks != NULL && i < c->record_rank_count; i++) {
        if (c->record_ranks[i] >= (c->ranks > 0 ? c->ranks : 1))
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: record_ranks has rank %u of %u ranks",
                           c->record_ranks[i], c->ranks > 0 ? c->ranks : 1);
    }
    if (c->coordinates != NULL && !bp_profile_is_name(c->coordinates))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_profile_create: coordinates \"%.80s\": use letters, digits, '_' and '-', at most 63",
                       c->coordinates);
    return BP_OK;
}

static bool is_recorded(const bp_profile_config *c)
{
    if (c->record_ranks == NULL)
        return true;
    for (size_t i = 0; i < c->record_rank_count; i++) {
        if (c->record_ranks[i] == c->rank)
            return true;
    }
    return false;
}

static bp_status copy_config(const bp_profile_config *c, bp_profile *profile)
{
    static const uint64_t first_two[] = {0, 1};
    const uint64_t *steps = c->profile_steps != NULL ? c->profile_steps : first_two;
    void *memory;
    profile->step_count = c->profile_steps != NULL ? c->profile_step_count : 2;
    BP_TRY(bp_new_array(profile->step_count, sizeof *profile->steps, &memory));
    profile->steps = memory;
    if (profile->step_count > 0)
        memcpy(profile->steps, steps, profile->step_count * sizeof *steps);
    BP_TRY(bp_copy_string(c->directory != NULL ? c->directory : DEFAULT_DIRECTORY, &profile->directory));
    profile->rank = c->rank;
    profile->ranks = c->ranks > 0 ? c->ranks : 1;
    profile->records = is_recorded(c);
    bp_profile_note_clocks(profile);
    profile->formats = c->formats != 0 ? c->formats : BP_PROFILE_PICKLE;
    if (c->coordinates != NULL)
        memcpy(profile->coordinates, c->coordinates, strlen(c->coordinates) + 1);
    return BP_OK;
}

static bp_status note_plan(const bp_plan *plan, bp_plan_note *note)
{
    void *memory;
    const bp_plan_info *info = bp_plan_get_info(plan);
    BP_TRY(bp_new_array(info->role_count, sizeof *note->roles, &memory));
    note->roles = memory;
    note->role_count = info->role_count;
    note->bytes = info->bytes;
    note->lower_bound_bytes = info->lower_bound_bytes;
    note->optimal = info->optimal != 0;
    for (size_t i = 0; i < info->role_count; i++)
        note->roles[i] = (bp_role_note){info->roles[i].roles, info->roles[i].bytes, info->roles[i].lower_bound_bytes};
    return BP_OK;
}

/* ---- pools ---------------------------------------------------------------------------------------------------------- */

static bp_status check_pools(bp_pool *const *pools, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pools[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: pools[%zu] is NULL", i);
        for (size_t k = 0; k < i; k++) {
            if (pools[k] == pools[i])
                return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: pools[%zu] and pools[%zu] are both %.40s",
                               k, i, bp_pool_get_info(pools[i])->name);
        }
    }
    return BP_OK;
}

/* Devices are numbered in the order in which pools name them. */
static uint32_t device_of(const bp_profile *profile, size_t index)
{
    uint32_t devices = 0;
    for (size_t i = 0; i < index; i++) {
        if (profile->pools[i].pool->device == profile->pools[index].pool->device)
            return profile->pools[i].device;
        devices = profile->pools[i].device >= devices ? profile->pools[i].device + 1 : devices;
    }
    return devices;
}

static bp_status add_pools(bp_pool *const *pools, size_t count, const bp_profile_config *c, bp_profile *profile)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *profile->pools, &memory));
    profile->pools = memory;
    for (size_t i = 0; i < count; i++) {
        bp_profiled *p = &profile->pools[profile->count++];
        *p = (bp_profiled){.profile = profile, .pool = pools[i]};
        p->device = device_of(profile, i);
        if (c->plans != NULL && c->plans[i] != NULL)
            BP_TRY(note_plan(c->plans[i], &p->plan));
        BP_TRY(bp_profiled_init(p, c->max_entries > 0 ? c->max_entries : DEFAULT_ENTRIES));
    }
    return BP_OK;
}

static void profile_destroy(bp_profile *profile)
{
    for (size_t i = profile->count; i-- > 0;)
        bp_profiled_finish(&profile->pools[i]);
    free(profile->pools);
    free(profile->steps);
    free(profile->directory);
    free(profile->paths[0]);
    free(profile->paths[1]);
    free(profile);
}

bp_status bp_profile_create(bp_pool *const *pools, size_t count, const bp_profile_config *config, bp_profile **profile)
{
    bp_profile_config own = profile_config_defaults;
    void *memory;
    if (pools == NULL || count == 0 || profile == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_profile_create: needs at least one pool and a place for the profile");
    BP_TRY(bp_struct_read("bp_profile_create", config, true, &own, sizeof own));
    config = &own;
    BP_TRY(profile_check_config(config));
    BP_TRY(check_pools(pools, count));
    for (size_t i = 0; i < count; i++)
        BP_TRY(bp_device_check(pools[i]->device, "bp_profile_create"));
    BP_TRY(bp_new_array(1, sizeof **profile, &memory));
    bp_profile *made = memory;
    made->process = pools[0]->device->process;
    made->info = (bp_profile_info){.pickle_path = "", .trace_path = ""};
    bp_status status = copy_config(config, made);
    if (status == BP_OK)
        status = add_pools(pools, count, config, made);
    if (status != BP_OK) {
        profile_destroy(made);
        return status;
    }
    *profile = made;
    return BP_OK;
}

void bp_profile_destroy(bp_profile **profile)
{
    if (profile == NULL || *profile == NULL)
        return;
    bp_profile *p = *profile;
    *profile = NULL;
    if (!bp_process_is_here(&p->process))
        return;
    if (p->open != BP_OPEN_NOTHING)
        (void)bp_profile_stop(p);
    profile_destroy(p);
}
