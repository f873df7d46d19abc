/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model by its path, its id on the hub or the name of a bundled one; `bucketpool models`. */
#include "plan/analysis.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bucketpool/formats.h>

#include "core/files.h"
#include "formats/models/hub.h"
#include "planner/model/arch_config.h"
#include "shared/cli.h"
#include "shared/sheet.h"

#define MAX_MODELS 256

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

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the repository of a bundled model to the error, or the name of a folder, if one is similar. */
static int refuse(const char *name, const char *folders)
{
    const char *names[MAX_MODELS];
    char *own[MAX_MODELS];
    size_t count = 0, bundled = 0;
    bool is_plain = strchr(name, '/') == NULL;
    for (; !is_plain && bp_bundled(bundled) != NULL && count < MAX_MODELS; bundled++)
        names[count++] = bp_bundled(bundled)->repository;
    char *copy = strdup(folders), *rest = copy, *folder;
    while (is_plain && copy != NULL && (folder = strsep(&rest, ":")) != NULL) {
        DIR *opened = *folder != '\0' ? opendir(folder) : NULL;
        for (struct dirent *entry; opened != NULL && count < MAX_MODELS && (entry = readdir(opened)) != NULL;) {
            if (*entry->d_name != '.' && (own[count] = strdup(entry->d_name)) != NULL)
                count++;
        }
        if (opened != NULL)
            closedir(opened);
    }
    free(copy);
    if (is_plain) {
        qsort(own, count, sizeof *own, by_name); /* deterministic among names at the same distance */
        memcpy(names, own, count * sizeof *names);
    }
    int code = cli_fail(EXIT_BAD_INPUT, "%s%s", bp_error_detail(), cli_suggestion("", cli_nearest(name, names, count)));
    for (size_t i = 0; is_plain && i < count; i++)
        free(own[i]);
    return code;
}

int models_find(const char *given, char **path, const char **name)
{
    char found[PATH_MAX];
    *name = NULL;
    if (strcmp(given, "-") == 0) {
        *path = strdup("/dev/stdin");
        return *path != NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    char *folders = model_folders();
    if (folders == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_status status = bp_model_find(given, folders, found, sizeof found);
    int code = status == BP_OK ? EXIT_GO_ON : status == BP_ERR_IO ? refuse(given, folders) : cli_fail_status(status);
    free(folders);
    CLI_TRY(code);
    if (strcmp(found, given) != 0) /* snapshots of a cache are named by their commits */
        *name = strrchr(given, '/') != NULL ? strrchr(given, '/') + 1 : given;
    *path = strdup(found);
    return *path != NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "out of memory");
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static const char *repository_of(const char *folder)
{
    const bp_bundled_model *model;
    for (size_t i = 0; (model = bp_bundled(i)) != NULL; i++) {
        if (strcmp(model->folder, folder) == 0)
            return model->repository;
    }
    return "";
}

static int is_shown(const struct dirent *entry)
{
    return *entry->d_name != '.';
}

static int add_model(sheet *s, const char *folder, const char *name)
{
    char path[PATH_MAX];
    bp_model *model = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bp_status status = bp_model_read(path, NULL, &model);
    if (status == BP_ERR_NO_HOST_MEMORY)
        return cli_fail_status(status);
    sheet_add_row(s, name, repository_of(name),
                  status == BP_OK ? cli_count(bp_model_get_info(model)->numel) : "cannot be read", NULL);
    bp_model_destroy(&model);
    return EXIT_GO_ON;
}

static int print_folder(const char *folder, bool color)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_shown, alphasort);
    if (count < 0)
        return errno == ENOMEM ? cli_fail(EXIT_ENVIRONMENT, "out of memory") : EXIT_GO_ON;
    cli_print("Models in %s:\n", folder);
    sheet s = sheet_new(color);
    sheet_add_columns(&s, "NAME|REPOSITORY|>PARAMETERS");
    int code = EXIT_GO_ON;
    for (int i = 0; i < count; i++) {
        if (code == EXIT_GO_ON)
            code = add_model(&s, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    int finished = sheet_finish(&s);
    code = code == EXIT_GO_ON ? finished : code;
    putchar('\n');
    return code;
}

static void print_types(void)
{
    size_t column = 0;
    const char *type;
    puts("Types whose config.json is read (\"model_type\"):");
    for (size_t i = 0; (type = bp_arch_model_type(i)) != NULL; i++) {
        bool wraps = column > 0 && column + strlen(type) + 2 > 100;
        column = wraps ? 0 : column;
        column += (size_t)printf("%s%s", wraps ? ",\n" : i > 0 ? ", " : "", type);
    }
    puts("\n\nA name or a repository is a MODEL for the other commands, as is a repository in the cache of the Hugging "
         "Face hub.\n"
         "Another type: plan its safetensors, or the units.json of `python3 -m bucketpool describe`.");
}

int cli_models(int argc, char **argv)
{
    struct {
        cli_color color;
    } options = {0};
    static const option_row table[] = {
        {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, 0, choices_color},
        OPTION_END,
    };
    const options_command reading = {.name = "models",
                                     .arguments = "",
                                     .text = "Lists the bundled models, and the model types whose config.json is "
                                             "read.\vExit: 0 answered, 2 bad input, 3 "
                                             "environment.",
                                     .tables = {table},
                                     .options = &options};
    CLI_TRY(options_read(argc, argv, &reading));
    char *folders = model_folders(), *rest = folders, *folder;
    if (folders == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    while (code == EXIT_GO_ON && (folder = strsep(&rest, ":")) != NULL) {
        if (*folder != '\0')
            code = print_folder(folder, cli_wants_color(options.color));
    }
    free(folders);
    CLI_TRY(code);
    print_types();
    code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
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
