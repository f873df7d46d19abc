/* Steps, recordings by hand, and the files that they leave. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/fail.h"
#include "profile/profile.h"
#include "profile/scene.h"
#include "profile/snapshot.h"
#include "profile/trace.h"

static const struct {
    uint32_t format;
    const char *prefix, *ending;
} files[] = {{BP_PROFILE_PICKLE, "snapshot", "pickle"}, {BP_PROFILE_TRACE, "trace", "json"}};

#define FORMATS (sizeof files / sizeof *files)

bool bp_profile_is_name(const char *text)
{
    size_t bytes = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return bytes > 0 && bytes < BP_NAME_BYTES && text[bytes] == '\0';
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static bp_status write_scene(const bp_scene *scene, uint32_t format, const char *path)
{
    bp_output output;
    BP_TRY(bp_output_open(&output, path));
    bp_status status = format == BP_PROFILE_PICKLE ? bp_snapshot_write(scene, &output) : bp_trace_write(scene, &output);
    if (status == BP_OK)
        status = bp_output_commit(&output);
    bp_output_finish(&output);
    return status;
}

/* `path` is the caller's to cut and mend. */
static bp_status make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int made = mkdir(path, 0777), error = errno;
        struct stat about;
        /* some filesystems refuse to make a folder that exists with other errors than EEXIST */
        if (made != 0 && (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)))
            return bp_fail(BP_ERR_IO, "%.300s: the folder cannot be made: %s", path,
                           strerror(error == EEXIST ? ENOTDIR : error));
        *slash = '/';
    }
    return BP_OK;
}

/* Makes the folder of `path` and its parents; other processes may do so at the same time. */
static bp_status make_folder_of(const char *path)
{
    char *copy;
    if (strchr(path, '/') == NULL)
        return BP_OK;
    BP_TRY(bp_copy_string(path, &copy));
    bp_status status = make_parents(copy);
    free(copy);
    return status;
}

/* Digits that the numbers of all ranks have, so that names sort; at least two. */
static int rank_digits(uint32_t ranks)
{
    int digits = 2;
    for (uint32_t rest = (ranks - 1) / 100; rest > 0; rest /= 10)
        digits++;
    return digits;
}

static bp_status make_path(const bp_profile *p, size_t file, char **path)
{
    void *memory;
    char folder[BP_NAME_BYTES + 8];
    size_t bytes = strlen(p->directory) + sizeof folder + BP_NAME_BYTES + 64;
    BP_TRY(bp_new_array(bytes, 1, &memory));
    if (p->by_hand)
        snprintf(folder, sizeof folder, "%s", p->label);
    else
        snprintf(folder, sizeof folder, "step_%llu", (unsigned long long)p->step);
    snprintf(memory, bytes, "%s/%s/%s_rank%0*u%s%s.%s", p->directory, folder, files[file].prefix, rank_digits(p->ranks),
             p->rank, p->coordinates[0] != '\0' ? "_" : "", p->coordinates, files[file].ending);
    *path = memory;
    return BP_OK;
}

static bp_status write_file(bp_profile *p, const bp_scene *scene, size_t file)
{
    char *path;
    BP_TRY(make_path(p, file, &path));
    bp_status status = make_folder_of(path);
    if (status == BP_OK)
        status = write_scene(scene, files[file].format, path);
    if (status != BP_OK) {
        free(path);
        return status;
    }
    free(p->paths[file]);
    p->paths[file] = path;
    *(file == 0 ? &p->info.pickle_path : &p->info.trace_path) = path;
    return BP_OK;
}

/* One format may be written where another is not. The answer is the last failure, whose detail is there. Of pools that are all gone there is nothing
 * to write. */
static bp_status write_files(bp_profile *p)
{
    bp_scene scene;
    bp_status answer = bp_scene_init(p, &scene);
    for (size_t i = 0; scene.count > 0 && answer != BP_ERR_NO_HOST_MEMORY && i < FORMATS; i++) {
        bp_status status = p->formats & files[i].format ? write_file(p, &scene, i) : BP_OK;
        answer = status != BP_OK ? status : answer;
    }
    bp_scene_finish(&scene);
    return answer;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* Ends what is open, and writes it. */
static bp_status steps_finish(bp_profile *p)
{
    bp_status status = BP_OK;
    p->open = BP_OPEN_NOTHING;
    if (p->info.recording) {
        bp_profile_end(p);
        p->ending = true;
        status = write_files(p);
        p->ending = false;
    }
    return status;
}

static bp_status steps_begin(bp_profile *p, bp_open open)
{
    if (p->records)
        BP_TRY(bp_profile_begin(p));
    p->open = open;
    p->by_hand = open == BP_OPEN_LABEL;
    return BP_OK;
}

static bool steps_is_chosen(const bp_profile *p, uint64_t step)
{
    for (size_t i = 0; i < p->step_count; i++) {
        if (p->steps[i] == step)
            return true;
    }
    return false;
}

/* A forked child would write over its parent's files. */
static bp_status check_process(const bp_profile *profile, const char *function)
{
    return bp_process_check(&profile->process, function, "the profile in", profile->directory);
}

bp_status bp_profile_step(bp_profile *profile, uint64_t step)
{
    if (profile == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_step: no profile");
    BP_TRY(check_process(profile, "bp_profile_step"));
    bp_status written = profile->open == BP_OPEN_STEP ? steps_finish(profile) : BP_OK, begun = BP_OK;
    for (size_t i = 0; i < profile->count; i++) {
        if (profile->pools[i].pool != NULL)
            bp_pool_set_step(profile->pools[i].pool, step);
    }
    if (profile->open == BP_OPEN_NOTHING && steps_is_chosen(profile, step))
        begun = steps_begin(profile, BP_OPEN_STEP);
    if (begun == BP_OK && profile->open == BP_OPEN_STEP)
        profile->step = step;
    return begun != BP_OK ? begun : written;
}

bp_status bp_profile_start(bp_profile *profile, const char *label)
{
    if (profile == NULL || label == NULL || !bp_profile_is_name(label))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_profile_start: needs a profile and a label of letters, digits, '_' and '-', at most 63");
    BP_TRY(check_process(profile, "bp_profile_start"));
    if (profile->open == BP_OPEN_STEP)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_start: step %llu is being recorded already",
                       (unsigned long long)profile->step);
    if (profile->open == BP_OPEN_LABEL)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_start: %s is being recorded already", profile->label);
    BP_TRY(steps_begin(profile, BP_OPEN_LABEL));
    memcpy(profile->label, label, strlen(label) + 1);
    return BP_OK;
}

bp_status bp_profile_stop(bp_profile *profile)
{
    if (profile == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_stop: no profile");
    BP_TRY(check_process(profile, "bp_profile_stop"));
    if (profile->open == BP_OPEN_NOTHING)
        return bp_fail(BP_ERR_SCHEDULE, "bp_profile_stop: nothing is being recorded");
    return steps_finish(profile);
}

const bp_profile_info *bp_profile_get_info(const bp_profile *profile)
{
    return profile != NULL ? &profile->info : NULL;
}

bp_status bp_profile_write(bp_profile *profile, uint32_t format, const char *path)
{
    bp_scene scene;
    if (profile == NULL || path == NULL || path[0] == '\0' ||
        (format != BP_PROFILE_PICKLE && format != BP_PROFILE_TRACE))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_profile_write: needs a profile, one format and a path");
    BP_TRY(check_process(profile, "bp_profile_write"));
    bp_status status = bp_scene_init(profile, &scene);
    if (status == BP_OK)
        status = write_scene(&scene, format, path);
    bp_scene_finish(&scene);
    return status;
}
