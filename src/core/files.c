/* SPDX-License-Identifier: Apache-2.0 */
/* Output files: staged in an unnamed or temporary file, renamed when complete. Input files: regular files only. */
#include "core/files.h"

#include <bucketpool/core/fail.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/statfs.h>
#include <unistd.h>

#define BUFFER_BYTES (256u * 1024u)
#define MAX_LINKS 40
#define MAX_TRIES 100
#define MAX_ENTRIES                                                                                                    \
    4096 /* entries of a folder that are searched for staging files of dead writers; a folder of recordings has one file per rank */
#define STAGED_PREFIX ".bucketpool-"
#define STAGED_DIGITS 16

/* ---- paths ---------------------------------------------------------------------------------------------------------- */

/* The folder of `path`, "." without one. `path` has less than PATH_MAX bytes. */
static void folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    memcpy(folder, slash == NULL ? "." : path, bytes);
    folder[bytes] = '\0';
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* True for a path such as /proc/<process>/fd/3: it looks like a symbolic link, but leads to an open file, which may
 * have another name by now or none. */
static bool is_descriptor(const char *path)
{
    const char *name = name_of(path);
    char folder[PATH_MAX];
    struct statfs about;
    if (!isdigit((unsigned char)*name) || name[strspn(name, "0123456789")] != '\0')
        return false;
    folder_of(path, folder);
    return strcmp(name_of(folder), "fd") == 0 && statfs(folder, &about) == 0 && about.f_type == PROC_SUPER_MAGIC;
}

/* Follows symbolic links to the file itself, which may be absent, or to a descriptor. Returns an errno, or 0. */
static int follow(const char *path, char at[PATH_MAX], bool *is_link)
{
    char target[PATH_MAX];
    *is_link = false;
    if (strlen(path) >= PATH_MAX)
        return ENAMETOOLONG;
    memcpy(at, path, strlen(path) + 1);
    for (int links = 0; links < MAX_LINKS; links++) {
        ssize_t bytes = is_descriptor(at) ? -1 : readlink(at, target, sizeof target - 1);
        if (bytes < 0)
            return 0;
        size_t keep = *target == '/' ? 0 : (size_t)(name_of(at) - at);
        if (keep + (size_t)bytes >= PATH_MAX)
            return ENAMETOOLONG;
        memcpy(at + keep, target, (size_t)bytes);
        at[keep + (size_t)bytes] = '\0';
        *is_link = true;
    }
    return ELOOP;
}

/* The descriptor of this process that `at` names; -1 if none, because the same number in another process is another
 * file. */
static int own_descriptor(const char *at, const struct stat *about)
{
    struct stat own;
    if (!is_descriptor(at))
        return -1;
    long number = strtol(name_of(at), NULL, 10);
    bool is_own = number <= INT_MAX && fstat((int)number, &own) == 0 && own.st_dev == about->st_dev &&
                  own.st_ino == about->st_ino;
    return is_own ? (int)number : -1;
}

static bool continues(int error, int file, short events)
{
    struct pollfd ready = {.fd = file, .events = events};
    if (error == EAGAIN)
        poll(&ready, 1, -1);
    return error == EAGAIN || error == EINTR;
}

/* ---- inputs --------------------------------------------------------------------------------------------------------- */

static bp_status fail_input(const char *path, const char *what, int error)
{
    bp_status status = error == ENOMEM ? BP_ERR_NO_HOST_MEMORY : BP_ERR_IO;
    return bp_fail(status, "%.300s: %s: %s", path, what, strerror(error));
}

static bp_status fail_kind(const char *path, mode_t mode)
{
    const char *kind = S_ISDIR(mode)    ? "directory"
                       : S_ISFIFO(mode) ? "named pipe"
                       : S_ISSOCK(mode) ? "socket"
                       : S_ISCHR(mode)  ? "character device"
                       : S_ISBLK(mode)  ? "block device"
                                        : "special file";
    return bp_fail(BP_ERR_IO, "%.300s: is a %s, expected a regular file", path, kind);
}

bp_status bp_input_open(const char *path, int *file, struct stat *about)
{
    char at[PATH_MAX];
    bool is_link;
    /* Checked before opening: opening a device may have an effect, and opening a socket fails with an unhelpful
     * error. */
    if (stat(path, about) != 0)
        return fail_input(path, "cannot be opened", errno);
    int own = S_ISREG(about->st_mode) || follow(path, at, &is_link) != 0 ? -1 : own_descriptor(at, about);
    if (!S_ISREG(about->st_mode) && (own < 0 || S_ISDIR(about->st_mode)))
        return fail_kind(path, about->st_mode);
    int opened = own >= 0 ? fcntl(own, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0)
        return fail_input(path, "cannot be opened", errno);
    bp_status status = BP_OK;
    if (fstat(opened, about) != 0)
        status = fail_input(path, "cannot be read", errno);
    else if (own < 0 && !S_ISREG(about->st_mode))
        status = fail_kind(path, about->st_mode); /* replaced by something else since the check */
    if (status == BP_OK)
        *file = opened;
    else
        close(opened);
    return status;
}

ssize_t bp_input_read(int file, void *data, size_t bytes)
{
    for (;;) {
        ssize_t got = read(file, data, bytes);
        if (got >= 0 || !continues(errno, file, POLLIN))
            return got;
    }
}

/* ---- staging files -------------------------------------------------------------------------------------------------- */

static bp_status fail_output(bp_output *o, int error)
{
    bp_status status = error == ENOMEM ? BP_ERR_NO_HOST_MEMORY : BP_ERR_IO;
    o->error = error;
    bp_error_recordf(status, "%.300s: cannot be written: %s", o->path, strerror(error));
    errno = error;
    return status;
}

static bool is_staged_name(const char *name)
{
    size_t prefix = strlen(STAGED_PREFIX);
    return strncmp(name, STAGED_PREFIX, prefix) == 0 && strlen(name) == prefix + STAGED_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == STAGED_DIGITS;
}

/* Removes a staging file whose lock is free: its writer has died. Unlinks the name only, so symbolic links are not
 * followed. */
static void remove_dead(int folder, const char *name)
{
    struct stat about;
    if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode))
        return;
    int file = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return;
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(file);
}

static void remove_all_dead(int folder)
{
    int list = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = list >= 0 ? fdopendir(list) : NULL;
    if (entries == NULL && list >= 0)
        close(list);
    const struct dirent *entry;
    for (int i = 0; entries != NULL && i < MAX_ENTRIES && (entry = readdir(entries)) != NULL; i++) {
        if (is_staged_name(entry->d_name))
            remove_dead(folder, entry->d_name);
    }
    if (entries != NULL)
        closedir(entries);
}

/* True if the staging file is still linked: before it was locked, another writer may have taken it for a dead one's
 * and removed it. On filesystems without locks it is always kept. */
static bool is_kept(int file)
{
    struct stat about;
    if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return false;
    return fstat(file, &about) == 0 && about.st_nlink > 0;
}

/* An unpredictable name prevents planted files, and O_EXCL does not follow links. Returns an errno, or 0. */
static int stage(bp_output *o)
{
    remove_all_dead(o->folder);
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        uint64_t number;
        if (getentropy(&number, sizeof number) != 0)
            return errno;
        snprintf(o->staged, sizeof o->staged, STAGED_PREFIX "%016llx", (unsigned long long)number);
        o->file = openat(o->folder, o->staged, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, o->replaces ? 0600 : 0666);
        if (o->file < 0 && errno != EEXIST)
            return errno;
        if (o->file >= 0 && is_kept(o->file))
            return 0;
        if (o->file >= 0)
            close(o->file);
        o->file = -1;
    }
    return EEXIST;
}

/* ---- opening -------------------------------------------------------------------------------------------------------- */

static bp_status fail_opening(bp_output *o, int error)
{
    bp_status status = fail_output(o, error);
    *o->staged = '\0'; /* it was not created */
    bp_output_finish(o);
    return status;
}

/* `file` is owned by the output from now on. */
static bp_status open_in_place(bp_output *o, int file)
{
    o->in_place = file;
    if (file >= 0)
        o->file = memfd_create("bucketpool", MFD_CLOEXEC);
    return o->file >= 0 ? BP_OK : fail_opening(o, errno);
}

static bp_status open_beside(bp_output *o, const char *at)
{
    char folder[PATH_MAX];
    folder_of(at, folder);
    o->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (o->folder < 0 || (o->replaces && faccessat(o->folder, name_of(at), W_OK, AT_EACCESS) != 0))
        return fail_opening(o, errno);
    o->name = strdup(name_of(at));
    int error = o->name != NULL ? stage(o) : ENOMEM;
    return error == 0 ? BP_OK : fail_opening(o, error);
}

static bp_status init(bp_output *o, const char *path)
{
    *o = (bp_output){.path = path, .file = -1, .in_place = -1, .folder = -1};
    o->buffer = malloc(BUFFER_BYTES);
    return o->buffer != NULL ? BP_OK : fail_output(o, ENOMEM);
}

bp_status bp_output_open(bp_output *output, const char *path)
{
    bp_output *o = output;
    char at[PATH_MAX];
    bool is_link;
    BP_TRY(init(o, path));
    int error = follow(path, at, &is_link);
    if (error != 0)
        return fail_opening(o, error);
    bool is_there = stat(at, &o->replaced) == 0;
    if (!is_there && (errno != ENOENT || *name_of(at) == '\0'))
        return fail_opening(o, errno != ENOENT || *at == '\0' ? errno : EISDIR);
    if (!is_there && is_link) {
        bp_status status = fail_opening(o, ENOENT);
        bp_error_recordf(status,
                         "%.200s: cannot be written: a symbolic link to %.200s, which does not exist; create "
                         "that file or remove the link",
                         path, at);
        return status;
    }
    if (is_there && S_ISDIR(o->replaced.st_mode))
        return fail_opening(o, EISDIR);
    if (is_there && (!S_ISREG(o->replaced.st_mode) || is_descriptor(at))) {
        int own = own_descriptor(at, &o->replaced);
        return open_in_place(o, own >= 0 ? fcntl(own, F_DUPFD_CLOEXEC, 0) : open(at, O_WRONLY | O_CLOEXEC | O_NOCTTY));
    }
    o->replaces = is_there;
    return open_beside(o, at);
}

bp_status bp_output_open_descriptor(bp_output *output, int file, const char *path)
{
    BP_TRY(init(output, path));
    return open_in_place(output, fcntl(file, F_DUPFD_CLOEXEC, 0));
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

/* Returns an errno, or 0. */
static int write_all(int file, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(file, data, bytes);
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
        } else if (written == 0 || !continues(errno, file, POLLOUT)) {
            return written == 0 ? EIO : errno;
        }
    }
    return 0;
}

static void flush(bp_output *o)
{
    if (o->error == 0)
        o->error = write_all(o->file, o->buffer, o->used);
    o->used = 0;
}

void bp_output_add(bp_output *output, const void *data, size_t bytes)
{
    bp_output *o = output;
    if (bytes > BUFFER_BYTES - o->used)
        flush(o);
    if (bytes > BUFFER_BYTES) {
        if (o->error == 0)
            o->error = write_all(o->file, data, bytes);
        return;
    }
    memcpy(o->buffer + o->used, data, bytes);
    o->used += bytes;
}

/* Copies mode, owner and group of the file that is replaced. If the group cannot be kept, another group must not get
 * its rights; the owner is set last, because only the owner may be allowed to change the mode. Returns an errno, or
 * 0. */
static int take_over(const bp_output *o)
{
    const struct stat *old = &o->replaced;
    struct stat now;
    mode_t mode = old->st_mode & 01777;
    if (fstat(o->file, &now) != 0)
        return errno;
    if (now.st_gid != old->st_gid && fchown(o->file, (uid_t)-1, old->st_gid) != 0)
        mode = (mode & ~(mode_t)070) | ((mode & 07) << 3);
    if ((now.st_mode & 07777) != mode && fchmod(o->file, mode) != 0)
        return errno;
    if (now.st_uid != old->st_uid && fchown(o->file, old->st_uid, (gid_t)-1) != 0)
        return errno == EPERM || errno == EINVAL || errno == ENOSYS ? 0 : errno;
    return 0;
}

/* Ignores the errors of filesystems that do not support fsync. */
static int sync_file(int file)
{
    return fsync(file) == 0 || errno == EINVAL || errno == EROFS || errno == EOPNOTSUPP ? 0 : errno;
}

bp_status bp_output_sync(bp_output *output)
{
    bp_output *o = output;
    flush(o);
    if (o->error == 0 && o->replaces)
        o->error = take_over(o);
    if (o->error == 0 && o->in_place < 0)
        o->error = sync_file(o->file);
    o->synced = true;
    return o->error == 0 ? BP_OK : fail_output(o, o->error);
}

/* Returns an errno, or 0. */
static int copy_in_place(const bp_output *o)
{
    ssize_t got;
    int error = 0;
    for (off_t at = 0; error == 0 && (got = pread(o->file, o->buffer, BUFFER_BYTES, at)) != 0; at += got) {
        if (got < 0)
            return errno;
        error = write_all(o->in_place, o->buffer, (size_t)got);
    }
    return error;
}

/* Syncs the folder to make the rename durable. The file is in place in any case, so a folder that cannot be synced
 * is not an error. */
static int rename_over(bp_output *o)
{
    if (renameat(o->folder, o->staged, o->folder, o->name) != 0)
        return errno;
    *o->staged = '\0';
    int folder = openat(o->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    return 0;
}

bp_status bp_output_commit(bp_output *output)
{
    bp_output *o = output;
    if (!o->synced)
        BP_TRY(bp_output_sync(o));
    if (o->error == 0)
        o->error = o->in_place >= 0 ? copy_in_place(o) : rename_over(o);
    return o->error == 0 ? BP_OK : fail_output(o, o->error);
}

void bp_output_finish(bp_output *output)
{
    bp_output *o = output;
    int reason = errno;
    if (*o->staged != '\0') /* while the lock is held */
        unlinkat(o->folder, o->staged, 0);
    const int files[] = {o->file, o->in_place, o->folder};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i] >= 0)
            close(files[i]);
    }
    free(o->name);
    free(o->buffer);
    *o = (bp_output){.path = o->path, .error = o->error, .file = -1, .in_place = -1, .folder = -1};
    errno = reason;
}
