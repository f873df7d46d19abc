/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of files by their first bytes, and folders of snapshots. */
#include "shared/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/files.h"
#include "core/kinds.h"
#include "formats/snapshots/trace_file.h"
#include "shared/cli.h"

/* ---- kinds of files ---------------------------------------------------------------------------------------------- */

enum { HEAD_BYTES = 4096 };

#define NO_ALLOCATIONS                                                                                                 \
    "it has no snapshot of PyTorch's allocator; record one with torch.cuda.memory._record_memory_history() and "       \
    "_dump_snapshot()"

#define GIVE "give the pickle of torch.cuda.memory._dump_snapshot()"

static const char *json_kind(const char *head)
{
    const char *format = strstr(head, "\"bucketpool.");
    size_t length = format != NULL ? strcspn(format + 1, "\"") : 0;
    if (length > 0 && length < 40 && strchr(format + 1, '/') != NULL && strchr(format + 1, '/') < format + 1 + length) {
        bp_kind kind = bp_kind_of_document(format + 1);
        return cli_text("%s (%.*s)%s%s; give a snapshot", kind.name != NULL ? kind.name : "a document", (int)length,
                        format + 1, kind.next != NULL ? "; " : "", kind.next != NULL ? kind.next : "");
    }
    if (strstr(head, "\"traceEvents\"") != NULL || strstr(head, "\"schemaVersion\"") != NULL ||
        strstr(head, "\"ph\"") != NULL)
        return "a Chrome trace, as torch.profiler writes it; " NO_ALLOCATIONS;
    if (strstr(head, "\"model_type\"") != NULL)
        return "a model's configuration; `bucketpool plan FILE` plans it";
    return "a JSON document; " GIVE;
}

static size_t read_head(const char *path, char head[HEAD_BYTES + 1])
{
    int file = -1;
    struct stat about;
    size_t got = 0;
    ssize_t more = 1;
    if (bp_input_open(path, &file, &about) != BP_OK)
        return 0;
    while (S_ISREG(about.st_mode) && got < HEAD_BYTES && (more = bp_input_read(file, head + got, HEAD_BYTES - got)) > 0)
        got += (size_t)more;
    (void)close(file);
    head[got] = '\0';
    return got;
}

const char *input_other_kind(const char *path)
{
    char head[HEAD_BYTES + 1] = "";
    size_t got = read_head(path, head);
    if (got > 1 && head[0] == (char)0x80 && head[1] >= 2 && head[1] <= 5) /* a pickle */
        return NULL;
    bp_kind kind = bp_kind_of_bytes(head, got);
    if (kind.name != NULL)
        return cli_text("%s; %s", kind.name, kind.next != NULL ? kind.next : GIVE);
    if (got > 0 && (cli_has_suffix(path, ".nsys-rep") || cli_has_suffix(path, ".qdrep")))
        return "a report of Nsight Systems; " NO_ALLOCATIONS;
    size_t blank = strspn(head, " \t\r\n");
    if (head[blank] == '<')
        return "a page, such as memory_viz and `bucketpool view --html` write; give the pickle that it was made of";
    /* "{}" and other short texts are rather broken files. */
    bool is_json = got - blank > 16 && ((head[blank] == '{' && strchr(head, ':') != NULL) || head[blank] == '[');
    return is_json ? json_kind(head) : NULL;
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

typedef struct names {
    char **all;
    size_t count, capacity;
} names;

static bool add_name(names *n, char *name)
{
    if (name != NULL && n->count == n->capacity) {
        size_t capacity = 2 * n->capacity + 16;
        char **moved = realloc(n->all, capacity * sizeof *moved);
        if (moved != NULL) {
            n->all = moved;
            n->capacity = capacity;
        }
    }
    if (name == NULL || n->count == n->capacity) {
        free(name);
        return false;
    }
    n->all[n->count++] = name;
    return true;
}

static void free_names(names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->all[i]);
    free(n->all);
    *n = (names){0};
}

static char *join_path(const char *folder, const char *name)
{
    size_t length = strlen(folder), bytes = length + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path != NULL)
        snprintf(path, bytes, "%s%s%s", folder, length > 0 && folder[length - 1] == '/' ? "" : "/", name);
    return path;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* "a.txt, b.txt and 3 more". */
static const char *list_names(const names *n)
{
    enum { SHOWN = 3, CHARS = 200 };
    char text[CHARS] = "";
    for (size_t i = 0; i < n->count && i < SHOWN; i++) {
        const char *slash = strrchr(n->all[i], '/');
        cli_append(text, sizeof text, "%s%.50s", i > 0 ? ", " : "", slash != NULL ? slash + 1 : n->all[i]);
    }
    if (n->count > SHOWN)
        cli_append(text, sizeof text, " and %zu more", n->count - SHOWN);
    return cli_text("%s", text);
}

static int out_of_memory(void)
{
    return cli_fail(EXIT_ENVIRONMENT, "out of memory");
}

static int scan_folder(const char *path, names *snapshots, names *others, names *folders)
{
    DIR *opened = opendir(path);
    if (opened == NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, strerror(errno));
    bool good = true;
    for (struct dirent *entry; good && (entry = readdir(opened)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        struct stat about;
        char *name = join_path(path, entry->d_name);
        bool is_there = name != NULL && stat(name, &about) == 0;
        names *list = is_there && S_ISDIR(about.st_mode)                                    ? folders
                      : is_there && S_ISREG(about.st_mode) && bp_trace_file_is_pickle(name) ? snapshots
                                                                                            : others;
        good = add_name(list, name);
    }
    closedir(opened);
    if (!good)
        return out_of_memory();
    names *const lists[] = {snapshots, others, folders};
    for (size_t i = 0; i < 3; i++) {
        if (lists[i]->count > 1)
            qsort(lists[i]->all, lists[i]->count, sizeof *lists[i]->all, by_name);
    }
    return EXIT_GO_ON;
}

/* Names the content of a folder that is not read. */
static int refuse_folder(const char *command, const char *path, const names *snapshots, const names *others,
                         const names *folders)
{
    if (snapshots->count > 0)
        return cli_fail(
            EXIT_BAD_INPUT,
            "%.200s: a directory with snapshots (%s) and other files (%s); give the snapshots: bucketpool %s "
            "FILE...",
            path, list_names(snapshots), list_names(others), command);
    if (folders->count > 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%.200s: a directory without snapshots, but with directories (%s); give one of them", path,
                        list_names(folders));
    if (others->count > 0)
        return cli_fail(EXIT_BAD_INPUT, "%.200s: a directory without snapshots; it has %s", path, list_names(others));
    return cli_fail(EXIT_BAD_INPUT, "%.200s: an empty directory; give snapshots", path);
}

static int add_folder(const char *command, const char *path, names *files)
{
    names snapshots = {0}, others = {0}, folders = {0};
    int code = scan_folder(path, &snapshots, &others, &folders);
    if (code == EXIT_GO_ON && (snapshots.count == 0 || others.count > 0))
        code = refuse_folder(command, path, &snapshots, &others, &folders);
    for (size_t i = 0; code == EXIT_GO_ON && i < snapshots.count; i++) {
        bool good = add_name(files, snapshots.all[i]);
        snapshots.all[i] = NULL;
        code = good ? EXIT_GO_ON : out_of_memory();
    }
    free_names(&snapshots);
    free_names(&others);
    free_names(&folders);
    return code;
}

int input_files_init(const char *command, char *const *arguments, size_t count, input_files *files)
{
    names found = {0};
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++) {
        struct stat about;
        if (stat(arguments[i], &about) == 0 && S_ISDIR(about.st_mode))
            code = add_folder(command, arguments[i], &found);
        else if (!add_name(&found, strdup(arguments[i])))
            code = out_of_memory();
    }
    *files = (input_files){found.all, found.count};
    return code;
}

void input_files_finish(input_files *files)
{
    names all = {files->all, files->count, 0};
    free_names(&all);
    *files = (input_files){0};
}
