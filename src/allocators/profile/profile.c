/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: recording, steps and their files, creation and destruction. */
#include "allocators/profile/profile.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/clock.h"

/* ---- recording: the rings, and the state of the pools when they start and stop ---------------------------------------- */

/* Sets the times of a recording that begins now. */
static void note_clocks(bp_profile *profile)
{
    profile->first_ns = profile->last_ns = bp_clock_ns();
    profile->realtime_offset_ns = (int64_t)(bp_clock_of(CLOCK_REALTIME) - profile->first_ns);
}

uint32_t bp_profile_note_live(const bp_pool *pool, bp_live_note *notes)
{
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_entry *r = &pool->entries[id];
        uint64_t word = atomic_load_explicit(r->word, memory_order_acquire);
        notes[id] = (bp_live_note){0};
        if (BP_WORD_ID(word) != id || BP_WORD_REFERENCES(word) == 0)
            continue;
        const bp_stream *stream =
            atomic_load_explicit((_Atomic(const bp_stream *) *)&r->since_stream, memory_order_acquire);
        notes[id] =
            (bp_live_note){.address = atomic_load_explicit((_Atomic(uint8_t *) *)&r->address, memory_order_relaxed),
                           .step = bp_read(&r->since_step),
                           .stream = stream != NULL ? stream->number & 0xffffff : 0,
                           .live = true};
    }
    return count;
}

static void note_slab(bp_profiled *p, uint32_t slab, bool gained)
{
    p->resident[slab] = gained;
    if (!p->profile->info.recording)
        return;
    if (p->slab_event_count == BP_SLAB_EVENTS) {
        /* drops the older half, and all events before the last dropped one */
        uint32_t dropped = p->slab_event_count / 2;
        for (uint32_t i = 0; i < dropped; i++)
            p->resident_first[p->slab_events[i].slab] = p->slab_events[i].gained;
        p->first = p->slab_events[dropped - 1].before;
        p->slab_event_count -= dropped;
        memmove(p->slab_events, p->slab_events + dropped, p->slab_event_count * sizeof *p->slab_events);
    }
    p->slab_events[p->slab_event_count++] = (bp_slab_event){
        .before = bp_recorder_next(p->recorder), .time_ns = bp_clock_ns(), .slab = slab, .gained = gained};
}

static bp_status gain(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    note_slab(user, slab, true);
    return BP_OK;
}

static void recording_lose(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    note_slab(user, slab, false);
}

/* The pool was destroyed before the profile: its recording cannot be shown any more. */
static void pool_gone(void *user)
{
    bp_profiled *p = user;
    p->pool = NULL;
}

static const bp_slab_callbacks callbacks = {.attach = gain, .detach = recording_lose, .gone = pool_gone};

/* Allocates the recording state of a pool and attaches to its slabs. */
static bp_status profiled_init(bp_profiled *profiled, uint64_t entries)
{
    bp_pool *pool = profiled->pool;
    if (pool->recording.profiled)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s has a profile already; destroy that one first", pool->info.name);
    void *memory;
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *profiled->resident, &memory));
    profiled->resident = memory;
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *profiled->resident_first, &memory));
    profiled->resident_first = memory;
    BP_TRY(bp_new_array(BP_SLAB_EVENTS, sizeof *profiled->slab_events, &memory));
    profiled->slab_events = memory;
    BP_TRY(bp_new_array(pool->request_capacity, sizeof *profiled->begin, &memory));
    profiled->begin = memory;
    BP_TRY(bp_new_array(pool->request_capacity, sizeof *profiled->end, &memory));
    profiled->end = memory;
    BP_TRY(bp_recorder_create((size_t)entries, true, &profiled->recorder));
    BP_TRY(bp_pool_attach(pool, &callbacks, profiled));
    profiled->attached = pool->recording.profiled = true;
    return BP_OK;
}

static void stop_rings(bp_profile *profile, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (profile->pools[i].pool != NULL)
            bp_recorder_stop(profile->pools[i].pool, profile->pools[i].recorder);
    }
}

/* Starts recording all pools, or none. Errors: BP_ERR_SCHEDULE. */
static bp_status begin_recording(bp_profile *profile)
{
    for (size_t i = 0; i < profile->count; i++) {
        bp_profiled *p = &profile->pools[i];
        bp_status status = p->pool != NULL ? bp_recorder_start(p->pool, p->recorder) : BP_OK;
        if (status != BP_OK) {
            stop_rings(profile, i);
            return status;
        }
    }
    for (size_t i = 0; i < profile->count; i++) {
        bp_profiled *p = &profile->pools[i];
        p->first = 0;
        p->slab_event_count = 0;
        if (p->pool == NULL)
            continue;
        memcpy(p->resident_first, p->resident, p->pool->slabs.count * sizeof *p->resident);
        p->begin_count = bp_profile_note_live(p->pool, p->begin);
    }
    note_clocks(profile);
    profile->recorded = true;
    profile->info.recording = 1;
    return BP_OK;
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t format;
    const char *prefix, *ending;
} files[] = {{BP_PROFILE_PICKLE, "snapshot", "pickle"}, {BP_PROFILE_TRACE, "trace", "json"}};

#define FORMATS (sizeof files / sizeof *files)

/* True for 1 to 63 letters, digits, '_' and '-'. */
static bool profile_is_name(const char *text)
{
    size_t bytes = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return bytes > 0 && bytes < BP_NAME_BYTES && text[bytes] == '\0';
}

static bp_status write_recording(const bp_recording *recording, uint32_t format, const char *path)
{
    bp_output output;
    BP_TRY(bp_output_open(&output, path));
    bp_status status =
        format == BP_PROFILE_PICKLE ? bp_snapshot_write(recording, &output) : bp_trace_write(recording, &output);
    if (status == BP_OK)
        status = bp_output_commit(&output);
    bp_output_finish(&output);
    return status;
}

/* Creates the folders of `path`; other processes may create them at the same time. */
static bp_status make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int made = mkdir(path, 0777), error = errno;
        struct stat about;
        /* some filesystems report an existing folder by another error than EEXIST */
        if (made != 0 && (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)))
            return bp_fail(BP_ERR_IO, "%.300s: the folder cannot be made: %s", path,
                           strerror(error == EEXIST ? ENOTDIR : error));
        *slash = '/';
    }
    return BP_OK;
}

static bp_status write_file(bp_profile *p, const bp_recording *recording, size_t file)
{
    char folder[BP_NAME_BYTES + 8];
    int digits = 2; /* the same for all ranks, so that names sort; at least two */
    for (uint32_t rest = (p->ranks - 1) / 100; rest > 0; rest /= 10)
        digits++;
    if (p->by_hand)
        snprintf(folder, sizeof folder, "%s", p->label);
    else
        snprintf(folder, sizeof folder, "step_%llu", (unsigned long long)p->step);
    void *memory;
    const size_t bytes = strlen(p->directory) + sizeof folder + BP_NAME_BYTES + 64;
    BP_TRY(bp_new_array(bytes, 1, &memory));
    char *path = memory;
    snprintf(path, bytes, "%s/%s/%s_rank%0*u%s%s.%s", p->directory, folder, files[file].prefix, digits, p->rank,
             p->coordinates[0] != '\0' ? "_" : "", p->coordinates, files[file].ending);
    bp_status status = make_folders(path);
    if (status == BP_OK)
        status = write_recording(recording, files[file].format, path);
    if (status != BP_OK) {
        free(path);
        return status;
    }
    free(p->paths[file]);
    p->paths[file] = path;
    *(file == 0 ? &p->info.pickle_path : &p->info.trace_path) = path;
    return BP_OK;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* Ends the open recording and writes its files. A failure of one format does not prevent the other; returns the last
 * failure, with its detail. Writes nothing if all pools are destroyed. */
static bp_status steps_finish(bp_profile *p)
{
    bp_recording recording;
    p->open = BP_OPEN_NOTHING;
    if (!p->info.recording)
        return BP_OK;
    stop_rings(p, p->count);
    p->last_ns = bp_clock_ns();
    p->info.recording = 0;
    for (size_t i = 0; i < p->count; i++) {
        bp_profiled *one = &p->pools[i];
        if (one->pool != NULL)
            one->end_count = bp_profile_note_live(one->pool, one->end);
    }

    p->ending = true;
    bp_status answer = bp_recording_init(p, &recording);
    for (size_t i = 0; recording.count > 0 && answer != BP_ERR_NO_HOST_MEMORY && i < FORMATS; i++) {
        bp_status status = p->formats & files[i].format ? write_file(p, &recording, i) : BP_OK;
        answer = status != BP_OK ? status : answer;
    }
    bp_recording_finish(&recording);
    p->ending = false;
    return answer;
}

static bp_status steps_begin(bp_profile *p, bp_open open)
{
    if (p->records)
        BP_TRY(begin_recording(p));
    p->open = open;
    p->by_hand = open == BP_OPEN_LABEL;
    return BP_OK;
}

/* A forked child would overwrite its parent's files. */
static bp_status check_process(const bp_profile *profile, const char *function)
{
    return bp_process_check(&profile->process, function, "the profile in", profile->directory);
}

bp_status bp_profile_step(bp_profile *profile, uint64_t step)
{
    if (profile == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_step: profile must not be NULL");
    BP_TRY(check_process(profile, "bp_profile_step"));
    bp_status written = profile->open == BP_OPEN_STEP ? steps_finish(profile) : BP_OK, begun = BP_OK;
    for (size_t i = 0; i < profile->count; i++) {
        if (profile->pools[i].pool != NULL)
            bp_pool_set_step(profile->pools[i].pool, step);
    }
    bool chosen = false;
    for (size_t i = 0; i < profile->step_count; i++)
        chosen = chosen || profile->steps[i] == step;
    if (profile->open == BP_OPEN_NOTHING && chosen)
        begun = steps_begin(profile, BP_OPEN_STEP);
    if (begun == BP_OK && profile->open == BP_OPEN_STEP)
        profile->step = step;
    return begun != BP_OK ? begun : written;
}

bp_status bp_profile_start(bp_profile *profile, const char *label)
{
    if (profile == NULL || label == NULL || !profile_is_name(label))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_profile_start: needs a profile and a label of letters, digits, '_' and '-', at most 63");
    BP_TRY(check_process(profile, "bp_profile_start"));
    if (profile->open == BP_OPEN_STEP)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_start: step %llu is being recorded already; stop it first",
                       (unsigned long long)profile->step);
    if (profile->open == BP_OPEN_LABEL)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_start: %s is being recorded already; stop it first",
                       profile->label);
    BP_TRY(steps_begin(profile, BP_OPEN_LABEL));
    memcpy(profile->label, label, strlen(label) + 1);
    return BP_OK;
}

bp_status bp_profile_stop(bp_profile *profile)
{
    if (profile == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_stop: profile must not be NULL");
    BP_TRY(check_process(profile, "bp_profile_stop"));
    if (profile->open == BP_OPEN_NOTHING)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_stop: no recording is open");
    return steps_finish(profile);
}

const bp_profile_info *bp_profile_get_info(const bp_profile *profile)
{
    return profile != NULL ? &profile->info : NULL;
}

bp_status bp_profile_write(bp_profile *profile, uint32_t format, const char *path)
{
    bp_recording recording;
    if (profile == NULL || path == NULL || path[0] == '\0' ||
        (format != BP_PROFILE_PICKLE && format != BP_PROFILE_TRACE))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_write: expected a profile, one format and a path");
    BP_TRY(check_process(profile, "bp_profile_write"));
    bp_status status = bp_recording_init(profile, &recording);
    if (status == BP_OK)
        status = write_recording(&recording, format, path);
    bp_recording_finish(&recording);
    return status;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

#define DEFAULT_ENTRIES 100000u
#define DEFAULT_DIRECTORY "memory_snapshots"

static const bp_profile_config profile_config_defaults = {.size = sizeof profile_config_defaults};

bp_status bp_profile_config_init(bp_profile_config *config, size_t size)
{
    return bp_struct_init("bp_profile_config_init", config, size, &profile_config_defaults,
                          sizeof profile_config_defaults);
}

static bp_status profile_check_config(const bp_profile_config *c)
{
    if (c->directory != NULL && c->directory[0] == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: directory is empty; \".\" is the current one");
    if (c->max_entries > BP_MAX_ENTRIES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: max_entries %llu, expected at most %zu",
                       (unsigned long long)c->max_entries, BP_MAX_ENTRIES);
    if (c->formats & ~(BP_PROFILE_PICKLE | BP_PROFILE_TRACE))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: formats 0x%x has unknown bits", c->formats);
    if (c->rank >= (c->ranks > 0 ? c->ranks : 1))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: rank %u of %u ranks", c->rank,
                       c->ranks > 0 ? c->ranks : 1);
    for (size_t i = 0; c->record_ranks != NULL && i < c->record_rank_count; i++) {
        if (c->record_ranks[i] >= (c->ranks > 0 ? c->ranks : 1))
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: record_ranks contains rank %u of %u ranks",
                           c->record_ranks[i], c->ranks > 0 ? c->ranks : 1);
    }
    if (c->coordinates != NULL && !profile_is_name(c->coordinates))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_profile_create: coordinates \"%.80s\": use letters, digits, '_' and '-', at most 63",
                       c->coordinates);
    return BP_OK;
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
    profile->records = c->record_ranks == NULL;
    for (size_t i = 0; c->record_ranks != NULL && i < c->record_rank_count; i++)
        profile->records = profile->records || c->record_ranks[i] == c->rank;
    note_clocks(profile);
    profile->formats = c->formats != 0 ? c->formats : BP_PROFILE_PICKLE;
    if (c->coordinates != NULL)
        memcpy(profile->coordinates, c->coordinates, strlen(c->coordinates) + 1);
    return BP_OK;
}

static bp_status add_pools(bp_pool *const *pools, size_t count, const bp_profile_config *c, bp_profile *profile)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *profile->pools, &memory));
    profile->pools = memory;
    for (size_t i = 0; i < count; i++) {
        bp_profiled *p = &profile->pools[profile->count++];
        *p = (bp_profiled){.profile = profile, .pool = pools[i]};
        uint32_t devices = 0; /* devices are numbered in the order of the pools */
        size_t same = 0;
        for (; profile->pools[same].pool->device != p->pool->device; same++)
            devices = profile->pools[same].device >= devices ? profile->pools[same].device + 1 : devices;
        p->device = same < i ? profile->pools[same].device : devices;
        if (c->plans != NULL && c->plans[i] != NULL) {
            const bp_plan_info *info = bp_plan_get_info(c->plans[i]);
            BP_TRY(bp_new_array(info->role_count, sizeof *p->plan.roles, &memory));
            p->plan =
                (bp_plan_note){info->bytes, info->lower_bound_bytes, info->optimal != 0, memory, info->role_count};
            for (size_t k = 0; k < info->role_count; k++)
                p->plan.roles[k] =
                    (bp_role_note){info->roles[k].roles, info->roles[k].bytes, info->roles[k].lower_bound_bytes};
        }
        BP_TRY(profiled_init(p, c->max_entries > 0 ? c->max_entries : DEFAULT_ENTRIES));
    }
    return BP_OK;
}

static void profile_destroy(bp_profile *profile)
{
    for (size_t i = profile->count; i-- > 0;) {
        bp_profiled *p = &profile->pools[i];
        if (p->pool != NULL && p->attached) {
            /* cannot fail here: captures and seals restrict only other kinds of observers */
            (void)bp_slabs_detach(&p->pool->slabs, &callbacks, p);
            p->pool->recording.profiled = false;
        }
        bp_recorder_destroy(&p->recorder);
        free(p->resident);
        free(p->resident_first);
        free(p->slab_events);
        free(p->begin);
        free(p->end);
        free(p->plan.roles);
    }
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: expected at least one pool and a non-NULL profile");
    BP_TRY(bp_struct_read("bp_profile_create", config, true, &own, sizeof own));
    config = &own;
    BP_TRY(profile_check_config(config));
    for (size_t i = 0; i < count; i++) {
        if (pools[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: pools[%zu] is NULL", i);
        for (size_t k = 0; k < i; k++) {
            if (pools[k] == pools[i])
                return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_create: pools[%zu] and pools[%zu] are both %.40s",
                               k, i, bp_pool_get_info(pools[i])->name);
        }
    }
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
    BP_KEEP_ERROR;
    if (p->open != BP_OPEN_NOTHING)
        (void)bp_profile_stop(p);
    profile_destroy(p);
}
