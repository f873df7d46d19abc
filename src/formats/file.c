/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files, names of files and models, and error details with a place. */
#include "formats/file.h"

#include <bucketpool/core/fail.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/text.h"

/* ---- error details ----------------------------------------------------------------------------------------------- */

bool bp_is_name(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (*at == '\0')
        return false;
    while (*at != '\0') {
        size_t bytes = bp_printable_bytes(at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

bp_status bp_fail_at(const char *where, bp_status status)
{
    if (status == BP_OK || status == BP_ERR_NO_HOST_MEMORY)
        return status;
    bool is_input = status == BP_ERR_INVALID_ARGUMENT || status == BP_ERR_OVERFLOW;
    return bp_fail(is_input ? BP_ERR_FORMAT : status, "%.320s: %s", where, bp_error_detail());
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

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

/* The last component of a path, without trailing slashes. */
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

static bp_status find_model_name(const char *path, char **name)
{
    static const char *const common[] = {"config.json", "model.safetensors", "model.safetensors.index.json"};
    static const char *const extensions[] = {".safetensors.index.json", ".safetensors", ".json"};
    const char *start;
    size_t bytes;
    last_component(path, &start, &bytes);
    if (bytes == 0 || (bytes <= 2 && memcmp(start, "..", bytes) == 0)) { /* a directory by "." or ".." */
        char *absolute = realpath(path, NULL);
        if (absolute == NULL)
            return errno == ENOMEM ? bp_fail_memory(strlen(path) + 1) : copy_bytes("model", 5, name);
        last_component(absolute, &start, &bytes);
        bp_status status = bytes > 0 ? copy_bytes(start, bytes, name) : copy_bytes("model", 5, name);
        free(absolute);
        return status;
    }
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (strlen(common[i]) != bytes || memcmp(start, common[i], bytes) != 0)
            continue;
        /* symbolic links are not resolved: download caches store files under their hashes */
        char *directory = NULL;
        BP_TRY(bp_file_directory(path, &directory));
        bp_status status = find_model_name(directory, name);
        free(directory);
        return status;
    }
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        size_t tail = strlen(extensions[i]);
        if (bytes > tail && memcmp(start + bytes - tail, extensions[i], tail) == 0)
            return copy_bytes(start, bytes - tail, name);
    }
    return copy_bytes(start, bytes, name);
}

bp_status bp_file_model_name(const char *path, char **name)
{
    BP_TRY(find_model_name(path, name));
    bp_make_printable(*name); /* file names may have any bytes, but a model's name is written to JSON */
    return BP_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static bp_status fail_io(const char *path, const char *what, int reason)
{
    bp_status status = reason == ENOMEM ? BP_ERR_NO_HOST_MEMORY : BP_ERR_IO;
    return bp_fail(status, "%.300s: %s: %s", path, what, strerror(reason));
}

static bp_status fail_too_large(const char *path, size_t largest)
{
    return bp_fail(BP_ERR_IO, "%.300s: larger than %zu bytes, the limit for such a file", path, largest);
}

/* Reads to the end of the file. Asks for one byte more than expected, to detect pipes and growing files. */
static bp_status read_all(const char *path, int file, size_t expected, size_t largest, char **text, size_t *bytes)
{
    size_t capacity = expected + 2, used = 0;
    char *buffer = malloc(capacity);
    if (buffer == NULL)
        return bp_fail_memory(capacity);
    for (;;) {
        ssize_t got = bp_input_read(file, buffer + used, capacity - 1 - used);
        if (got < 0 || used + (size_t)got > largest) {
            int reason = errno;
            free(buffer);
            return got < 0 ? fail_io(path, "cannot be read", reason) : fail_too_large(path, largest);
        }
        if (got == 0)
            break;
        used += (size_t)got;
        if (used < capacity - 1)
            continue;
        char *larger = realloc(buffer, 2 * capacity);
        if (larger == NULL) {
            free(buffer);
            return bp_fail_memory(2 * capacity);
        }
        buffer = larger;
        capacity *= 2;
    }
    buffer[used] = '\0';
    *text = buffer;
    *bytes = used;
    return BP_OK;
}

bp_status bp_file_read(const char *path, size_t largest, char **text, size_t *bytes)
{
    int file = -1;
    struct stat about = {0};
    BP_TRY(bp_input_open(path, &file, &about));
    bool is_regular = S_ISREG(about.st_mode);
    bp_status status;
    if (is_regular && (uint64_t)about.st_size > largest)
        status = fail_too_large(path, largest);
    else
        status = read_all(path, file, is_regular ? (size_t)about.st_size : 4096, largest, text, bytes);
    close(file);
    return status;
}

bp_status bp_file_read_at(const char *path, uint64_t offset, size_t bytes, void *data, size_t *got,
                          uint64_t *file_bytes)
{
    int file = -1;
    struct stat about = {0};
    BP_TRY(bp_input_open(path, &file, &about));
    bp_status status = BP_OK;
    size_t used = 0;
    if (!S_ISREG(about.st_mode))
        status = bp_fail(BP_ERR_IO, "%.300s: not a regular file", path);
    while (status == BP_OK && used < bytes) {
        ssize_t part = pread(file, (char *)data + used, bytes - used, (off_t)(offset + used));
        if (part == 0)
            break;
        if (part > 0)
            used += (size_t)part;
        else if (errno != EINTR)
            status = fail_io(path, "cannot be read", errno);
    }
    close(file);
    if (status != BP_OK)
        return status;
    *got = used;
    *file_bytes = (uint64_t)about.st_size;
    return BP_OK;
}

bp_status bp_file_is_directory(const char *path, bool *is_directory)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return fail_io(path, "cannot be opened", errno);
    *is_directory = S_ISDIR(about.st_mode);
    return BP_OK;
}

bp_status bp_file_exists(const char *path, bool *exists)
{
    struct stat about;
    bool found = stat(path, &about) == 0;
    if (!found && errno != ENOENT)
        return fail_io(path, "cannot be opened", errno);
    *exists = found;
    return BP_OK;
}
