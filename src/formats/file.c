#include "formats/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fail.h"
#include "files/files.h"
#include "formats/detail.h"

static bp_status fail_io(const char *path, const char *what, int reason)
{
    bp_status status = reason == ENOMEM ? BP_ERR_NO_HOST_MEMORY : BP_ERR_IO;
    return bp_fail(status, "%.300s: %s: %s", path, what, strerror(reason));
}

static bp_status fail_too_large(const char *path, size_t largest)
{
    return bp_fail(BP_ERR_IO, "%.300s: larger than %zu bytes, the most that is read of such a file", path, largest);
}

/* Reads to the end. One byte more than expected is asked for, so that a growing file or a pipe is noticed. */
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
