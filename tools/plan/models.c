/* Finds a model by its path, or by the name of a bundled one. */
#include "plan/analysis.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/files.h"
#include "shared/cli.h"

#define MOST_MODELS 256

/* ---- folders ----------------------------------------------------------------------------------------------------- */

/* "<folder of this program>/<name>". NULL: unknown, or out of memory. */
static char *beside_program(const char *name)
{
    char program[PATH_MAX], *path = NULL;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return NULL;
    program[length] = '\0';
    *(strrchr(program, '/') + 1) = '\0';
    return asprintf(&path, "%s%s", program, name) < 0 ? NULL : path;
}

/* Models of the source tree, for a program in a build folder: the build writes their path next to the program. */
static char *source_models(void)
{
    char *list = beside_program("models.path"), *line = NULL;
    size_t capacity = 0;
    FILE *file = list != NULL ? fopen(list, "re") : NULL;
    bool read = file != NULL && getline(&line, &capacity, file) > 0;
    if (file != NULL)
        fclose(file);
    free(list);
    if (!read) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

/* Folders with colons between them, in the order of the search: BUCKETPOOL_MODELS, then those of the build or of the
 * installation. */
static char *model_folders(void)
{
    const char *named = secure_getenv("BUCKETPOOL_MODELS");
    char *own = source_models(), *folders = NULL, *resolved = NULL;
    if (own == NULL)
        own = beside_program(MODELS_FROM_PROGRAM);
    if (own != NULL)
        resolved = realpath(own, NULL);
    const char *last = resolved != NULL ? resolved : own != NULL ? own : "";
    bool both = named != NULL && *named != '\0';
    if (asprintf(&folders, "%s%s%s", both ? named : "", both ? ":" : "", last) < 0)
        folders = NULL;
    free(own);
    free(resolved);
    return folders;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static char *find_in(const char *folders, const char *name)
{
    char *copy = strdup(folders), *rest = copy, *folder, *path = NULL;
    struct stat about;
    while (copy != NULL && path == NULL && (folder = strsep(&rest, ":")) != NULL) {
        if (*folder == '\0' || asprintf(&path, "%s/%s", folder, name) < 0)
            path = NULL;
        else if (stat(path, &about) != 0) {
            free(path);
            path = NULL;
        }
    }
    free(copy);
    return path;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int refuse(const char *name, const char *folders)
{
    char *names[MOST_MODELS];

    size_t count = 0;
    char *copy = strdup(folders), *rest = copy, *folder;
    while (copy != NULL && (folder = strsep(&rest, ":")) != NULL) {
        DIR *opened = *folder != '\0' ? opendir(folder) : NULL;
        for (struct dirent *entry; opened != NULL && count < MOST_MODELS && (entry = readdir(opened)) != NULL;) {
            if (*entry->d_name != '.' && (names[count] = strdup(entry->d_name)) != NULL)
                count++;
        }
        if (opened != NULL)
            closedir(opened);
    }
    free(copy);

    qsort(names, count, sizeof *names, by_name); /* deterministic among names at the same distance */
    const char *nearest = cli_nearest(name, (const char *const *)names, count);
    int code =
        cli_fail(EXIT_BAD_INPUT, "%.200s: No such file or directory, and not a bundled model%s (searched in %.600s)",
                 name, cli_suggestion("", nearest), folders);
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    return code;
}

int models_find(const char *given, char **path)
{
    struct stat about;
    bool is_path = strchr(given, '/') != NULL || *given == '\0' || stat(given, &about) == 0 || errno != ENOENT;
    bool is_input = strcmp(given, "-") == 0;
    *path = is_input || is_path ? strdup(is_input ? "/dev/stdin" : given) : NULL;
    if (is_input || is_path)
        return *path != NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "out of memory");
    char *folders = model_folders();
    if (folders == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    *path = find_in(folders, given);
    int code = *path != NULL ? EXIT_GO_ON : refuse(given, folders);
    free(folders);
    return code;
}

/* ---- kinds of files ---------------------------------------------------------------------------------------------- */

bool models_has_tensors(const char *path)
{
    struct stat about;
    char head[4096], config[PATH_MAX];
    if (cli_has_suffix(path, ".safetensors") || cli_has_suffix(path, ".safetensors.index.json"))
        return true;
    snprintf(config, sizeof config, "%s/config.json", path);
    if (stat(path, &about) != 0)
        return false;
    if (S_ISDIR(about.st_mode))
        return stat(config, &about) != 0 || S_ISDIR(about.st_mode);
    int file = -1;
    if (!S_ISREG(about.st_mode) || bp_input_open(path, &file, &about) != BP_OK)
        return false;
    ssize_t bytes = bp_input_read(file, head, sizeof head - 1);
    head[bytes > 0 ? bytes : 0] = '\0';
    close(file);
    return strstr(head, "\"weight_map\"") != NULL; /* an index of another name */
}
