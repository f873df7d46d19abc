#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fail.h"
#include "formats/detail.h"

static bp_status fail_io(const char *path, const char *what, int reason)
{
    bp_status status = reason == ENOMEM ? BP_ERR_NO_HOST_MEMORY : BP_ERR_IO;
    return bp_fail_quoting(status, "%.300s: %s: %s", path, what, strerror(reason));
}

/* Opens for reading and looks at what it is; directories are refused. */
static bp_status open_to_read(const char *path, int *file, struct stat *about)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return fail_io(path, "cannot be opened", errno);
    int reason = fstat(opened, about) != 0 ? errno : S_ISDIR(about->st_mode) ? EISDIR : 0;
    if (reason != 0) {
        close(opened);
        return fail_io(path, "cannot be read", reason);
    }
    *file = opened;
    return BP_OK;
}

static bp_status fail_too_large(const char *path, size_t largest)
{
    return bp_fail_quoting(BP_ERR_IO, "%.300s: larger than %zu bytes, the most that is read of such a file", path,
                           largest);
}

/* Reads to the end. One byte more than expected is asked for, so that a growing file or a pipe is noticed. */
static bp_status read_all(const char *path, int file, size_t expected, size_t largest, char **text, size_t *bytes)
{
    size_t capacity = expected + 2, used = 0;
    char *buffer = malloc(capacity);
    if (buffer == NULL)
        return bp_fail_memory(capacity);
    for (;;) {
        ssize_t got = read(file, buffer + used, capacity - 1 - used);
        if (got < 0 && errno == EINTR)
            continue;
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
    BP_TRY(open_to_read(path, &file, &about));
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
    BP_TRY(open_to_read(path, &file, &about));
    bp_status status = BP_OK;
    size_t used = 0;
    if (!S_ISREG(about.st_mode))
        status = bp_fail_quoting(BP_ERR_IO, "%.300s: not a regular file", path);
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

/* Errno, or 0. */
static int write_all(int file, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t part = write(file, data, bytes);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            return part < 0 ? errno : EIO;
        data += part;
        bytes -= (size_t)part;
    }
    return 0;
}

static bp_status write_directly(const char *path, const void *data, size_t bytes)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return fail_io(path, "cannot be written", errno);
    int reason = write_all(file, data, bytes);
    if (close(file) != 0 && reason == 0)
        reason = errno;
    return reason == 0 ? BP_OK : fail_io(path, "cannot be written", reason);
}

/* A new file beside `path` with the mode an ordinary creation gives (mkstemp would make it private). */
static int create_beside(const char *path, char *temporary, size_t temporary_bytes)
{
    static unsigned counter;
    for (int tries = 0; tries < 100; tries++) {
        unsigned number = __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
        snprintf(temporary, temporary_bytes, "%s.%ld-%u.tmp", path, (long)getpid(), number);
        int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0 || errno != EEXIST)
            return file;
    }
    return -1;
}

/* A rename is on the disk when its directory is. A filesystem that cannot sync directories still renamed. */
static void sync_directory_of(const char *path)
{
    char *directory = NULL;
    if (bp_file_directory(path, &directory) != BP_OK)
        return;
    int file = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        fsync(file);
        close(file);
    }
    free(directory);
}

/* `mode`: of the file that is replaced, 0 for none. */
static bp_status replace_file(const char *path, mode_t mode, const void *data, size_t bytes)
{
    size_t temporary_bytes = strlen(path) + 48;
    char *temporary = malloc(temporary_bytes);
    if (temporary == NULL)
        return bp_fail_memory(temporary_bytes);
    int file = create_beside(path, temporary, temporary_bytes);
    if (file < 0) {
        int reason = errno;
        free(temporary);
        return fail_io(path, "cannot be created", reason);
    }
    int reason = mode != 0 && fchmod(file, mode) != 0 ? errno : 0;
    if (reason == 0)
        reason = write_all(file, data, bytes);
    if (reason == 0 && fsync(file) != 0)
        reason = errno;
    if (close(file) != 0 && reason == 0)
        reason = errno;
    if (reason == 0 && rename(temporary, path) != 0)
        reason = errno;
    if (reason != 0)
        unlink(temporary);
    else
        sync_directory_of(path);
    free(temporary);
    return reason == 0 ? BP_OK : fail_io(path, "cannot be written", reason);
}

bp_status bp_file_write(const char *path, const void *data, size_t bytes)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return errno == ENOENT ? replace_file(path, 0, data, bytes) : fail_io(path, "cannot be written", errno);
    if (S_ISDIR(about.st_mode))
        return fail_io(path, "cannot be written", EISDIR);
    if (!S_ISREG(about.st_mode)) /* renaming over /dev/stdout would destroy it */
        return write_directly(path, data, bytes);
    char *target = realpath(path, NULL); /* a symbolic link keeps pointing to the new file */
    if (target == NULL)
        return fail_io(path, "cannot be written", errno);
    bp_status status = replace_file(target, about.st_mode & 07777, data, bytes);
    free(target);
    return status;
}
