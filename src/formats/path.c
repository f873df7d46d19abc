#include "formats/detail.h"
#include "formats/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/text.h"

bool bp_has_suffix(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && memcmp(text + length - tail, suffix, tail) == 0;
}

bp_status bp_file_join(const char *directory, const char *name, char **path)
{
    size_t bytes = strlen(directory) + strlen(name) + 2;
    char *joined = malloc(bytes);
    if (joined == NULL)
        return bp_fail_memory(bytes);
    snprintf(joined, bytes, "%s%s%s", directory, bp_has_suffix(directory, "/") ? "" : "/", name);
    *path = joined;
    return BP_OK;
}

static bp_status copy_bytes(const char *text, size_t bytes, char **copy)
{
    char *memory = strndup(text, bytes);
    if (memory == NULL)
        return bp_fail_memory(bytes + 1);
    *copy = memory;
    return BP_OK;
}

bp_status bp_file_directory(const char *path, char **directory)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return copy_bytes(".", 1, directory);
    return copy_bytes(path, slash == path ? 1 : (size_t)(slash - path), directory);
}

/* The last component of a path, without slashes behind it. */
static void last_component(const char *path, const char **start, size_t *bytes)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    *start = path + begin;
    *bytes = end - begin;
}

/* True for files that are called so in every model. */
static bool is_common(const char *name, size_t bytes)
{
    static const char *const common[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (strlen(common[i]) == bytes && memcmp(name, common[i], bytes) == 0)
            return true;
    }
    return false;
}

static size_t without_extension(const char *name, size_t bytes)
{
    static const char *const extensions[] = {".safetensors.index.json", ".safetensors", ".json"};
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        size_t tail = strlen(extensions[i]);
        if (bytes > tail && memcmp(name + bytes - tail, extensions[i], tail) == 0)
            return bytes - tail;
    }
    return bytes;
}

/* The name of a directory that the path names by "." or "..". */
static bp_status name_of_place(const char *path, char **name)
{
    char *absolute = realpath(path, NULL);
    if (absolute == NULL)
        return errno == ENOMEM ? bp_fail_memory(strlen(path) + 1) : copy_bytes("model", 5, name);
    const char *start;
    size_t bytes;
    last_component(absolute, &start, &bytes);
    bp_status status = bytes > 0 ? copy_bytes(start, bytes, name) : copy_bytes("model", 5, name);
    free(absolute);
    return status;
}

static bp_status find_model_name(const char *path, char **name)
{
    const char *start;
    size_t bytes;
    last_component(path, &start, &bytes);
    if (bytes == 0 || (bytes <= 2 && memcmp(start, "..", bytes) == 0))
        return name_of_place(path, name);
    if (!is_common(start, bytes))
        return copy_bytes(start, without_extension(start, bytes), name);
    /* Not resolved to where a symbolic link leads: download caches keep files under their hashes. */
    char *directory = NULL;
    BP_TRY(bp_file_directory(path, &directory));
    bp_status status = find_model_name(directory, name);
    free(directory);
    return status;
}

bp_status bp_file_model_name(const char *path, char **name)
{
    BP_TRY(find_model_name(path, name));
    bp_make_printable(*name); /* file names may have any bytes, names of models go into JSON */
    return BP_OK;
}
