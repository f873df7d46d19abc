/* Reads the snapshots that `view` is given, by rank and step. */
#include "view/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

int view_file_init(const char *path, const view_options *options, bp_snapshot *snapshot, view_file *file)
{
    *file = (view_file){.path = path, .snapshot = snapshot, .info = bp_snapshot_get_info(snapshot)};
    file->pools = calloc(file->info->pool_count + 1, sizeof *file->pools);
    if (file->pools == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; i < file->info->pool_count; i++) {
        if (options->pool != NULL && strcmp(file->info->pools[i].name, options->pool) != 0)
            continue;
        bp_status status = view_pool_init(file->info, i, &file->pools[file->pool_count++]);
        if (status == BP_ERR_FORMAT)
            return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, bp_error_detail());
        if (status != BP_OK)
            return cli_fail_status(status);
    }
    if (file->pool_count == 0 && options->pool != NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: no pool \"%.60s\", of %zu", path, options->pool,
                        file->info->pool_count);
    if (file->pool_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: no pool; there is nothing to look at", path);
    return EXIT_GO_ON;
}

void view_file_finish(view_file *file)
{
    for (size_t i = 0; i < file->pool_count; i++)
        view_pool_finish(&file->pools[i]);
    free(file->pools);
    bp_snapshot_destroy(&file->snapshot);
    *file = (view_file){0};
}

void view_file_label(const view_file *file, char label[VIEW_LABEL_CHARS])
{
    const char *slash = strrchr(file->path, '/');
    if (!file->info->is_ours)
        snprintf(label, VIEW_LABEL_CHARS, "%.100s", slash != NULL ? slash + 1 : file->path);
    else
        snprintf(label, VIEW_LABEL_CHARS, "rank %u%s%.70s", file->info->rank,
                 *file->info->coordinates != '\0' ? " " : "", file->info->coordinates);
}

void view_file_step(const view_file *file, char text[VIEW_LABEL_CHARS])
{
    *text = '\0';
    if (file->info->has_step)
        snprintf(text, VIEW_LABEL_CHARS, "step %llu", (unsigned long long)file->info->step);
    else if (*file->info->label != '\0')
        snprintf(text, VIEW_LABEL_CHARS, "%.100s", file->info->label);
}

const view_pool *view_file_highest(const view_file *file)
{
    const view_pool *highest = file->pool_count > 0 ? &file->pools[0] : NULL;
    for (size_t i = 1; i < file->pool_count; i++) {
        if (file->pools[i].peak_bytes > highest->peak_bytes)
            highest = &file->pools[i];
    }
    return highest;
}

const char *view_time(uint64_t time_ns, char text[VIEW_TIME_CHARS])
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}};
    for (size_t i = 0; i < 3; i++) {
        if ((double)time_ns >= units[i].ns) {
            snprintf(text, VIEW_TIME_CHARS, "%.3f %s", (double)time_ns / units[i].ns, units[i].unit);
            return text;
        }
    }
    snprintf(text, VIEW_TIME_CHARS, "%llu ns", (unsigned long long)time_ns);
    return text;
}
