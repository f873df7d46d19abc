#include "profile/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/memory.h"

#define BUFFER_BYTES (256u * 1024u)
#define MOST_TRIES 100 /* of names that a process before may have left */

static bp_status fail_path(const char *what, const char *path, int error)
{
    return bp_fail(BP_ERR_IO, "%s %.300s: %s", what, path, strerror(error));
}

/* "folder/.name.<process>.<number>": unlike that of any other writer. */
static bp_status name_beside(const char *path, char **name)
{
    static atomic_uint numbers;
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    size_t bytes = strlen(path) + 40;
    void *memory;
    BP_TRY(bp_new_array(bytes, 1, &memory));
    snprintf(memory, bytes, "%.*s.%s.%ld.%u", (int)(base - path), path, base, (long)getpid(),
             atomic_fetch_add(&numbers, 1));
    *name = memory;
    return BP_OK;
}

static bp_status open_beside(bp_output *o)
{
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        free(o->written);
        o->written = NULL;
        BP_TRY(name_beside(o->path, &o->written));
        o->file = open(o->written, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->file >= 0 || errno != EEXIST)
            break;
    }
    return o->file >= 0 ? BP_OK : fail_path("cannot make", o->path, errno);
}

/* Devices and pipes are written to as they are. */
static bp_status open_file(bp_output *o)
{
    struct stat about;
    if (stat(o->path, &about) != 0 || S_ISREG(about.st_mode))
        return open_beside(o);
    o->file = open(o->path, O_WRONLY | O_CLOEXEC);
    return o->file >= 0 ? BP_OK : fail_path("cannot open", o->path, errno);
}

bp_status bp_output_open(bp_output *output, const char *path)
{
    *output = (bp_output){.path = path, .file = -1};
    void *memory;
    BP_TRY(bp_new_array(BUFFER_BYTES, 1, &memory));
    bp_status status = open_file(output);
    if (status != BP_OK) {
        free(memory);
        free(output->written);
        return status;
    }
    output->buffer = memory;
    return BP_OK;
}

static void write_all(bp_output *o, const uint8_t *data, size_t bytes)
{
    while (bytes > 0 && o->error == 0) {
        ssize_t written = write(o->file, data, bytes);
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
        } else if (written == 0 || errno != EINTR) {
            o->error = written == 0 ? EIO : errno;
        }
    }
}

static void flush(bp_output *o)
{
    write_all(o, o->buffer, o->used);
    o->used = 0;
}

void bp_output_add(bp_output *output, const void *data, size_t bytes)
{
    if (bytes > BUFFER_BYTES - output->used)
        flush(output);
    if (bytes > BUFFER_BYTES) {
        write_all(output, data, bytes);
        return;
    }
    memcpy(output->buffer + output->used, data, bytes);
    output->used += bytes;
}

/* What has no disk below it cannot be flushed to one. */
static void finish_writing(bp_output *o)
{
    flush(o);
    if (o->error == 0 && fsync(o->file) != 0 && errno != EINVAL && errno != EROFS)
        o->error = errno;
    if (close(o->file) != 0 && o->error == 0)
        o->error = errno;
}

bp_status bp_output_close(bp_output *output, bp_status status)
{
    bp_output *o = output;
    if (status == BP_OK)
        finish_writing(o);
    else
        close(o->file);
    if (status == BP_OK && o->error == 0 && o->written != NULL && rename(o->written, o->path) != 0)
        o->error = errno;
    if (o->written != NULL && (status != BP_OK || o->error != 0))
        unlink(o->written);
    free(o->written);
    free(o->buffer);
    return status == BP_OK && o->error != 0 ? fail_path("cannot write", o->path, o->error) : status;
}

/* `path` is the caller's to cut and mend. */
static bp_status make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int made = mkdir(path, 0777), error = errno;
        struct stat about;
        /* some file systems say of a folder that is there that it may not be made */
        if (made != 0 && (stat(path, &about) != 0 || !S_ISDIR(about.st_mode)))
            return fail_path("cannot make folder", path, error == EEXIST ? ENOTDIR : error);
        *slash = '/';
    }
    return BP_OK;
}

bp_status bp_output_make_folder(const char *path)
{
    char *copy;
    if (strchr(path, '/') == NULL)
        return BP_OK;
    BP_TRY(bp_copy_string(path, &copy));
    bp_status status = make_parents(copy);
    free(copy);
    return status;
}
