#include "outputs.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* "folder/.name.<process>.ending" for "folder/name.ending". */
static char *beside(const char *target)
{
    char *first = strdup(target), *second = strdup(target), *path = NULL;
    if (first != NULL && second != NULL) {
        const char *base = basename(first);
        const char *ending = strrchr(base, '.') != NULL ? strrchr(base, '.') : "";
        if (asprintf(&path, "%s/.%.*s.%ld%s", dirname(second), (int)(strlen(base) - strlen(ending)), base,
                     (long)getpid(), ending) < 0)
            path = NULL;
    }
    free(first);
    free(second);
    return path;
}

bool output_is_standard(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

/* Makes a temporary file, which the commit copies. */
static bool init_standard(output *o)
{
    const char *folder = secure_getenv("TMPDIR");
    if (asprintf(&o->written, "%s/bucketpool-XXXXXX", folder != NULL && *folder != '\0' ? folder : "/tmp") < 0)
        o->written = NULL;
    int file = o->written != NULL ? mkstemp(o->written) : -1;
    if (file >= 0) {
        close(file);
        o->target = strdup("-");
        return o->target != NULL;
    }
    free(o->written);
    o->written = NULL;
    return false;
}

/* Copies, never replaces: standard output may be a pipe, or a file that other programs write to as well. */
static bool commit_standard(const output *o)
{
    char piece[65536];
    FILE *file = fopen(o->written, "re");
    size_t bytes;
    while (file != NULL && (bytes = fread(piece, 1, sizeof piece, file)) > 0)
        fwrite(piece, 1, bytes, stdout);
    bool read = file != NULL && !ferror(file);
    if (file != NULL)
        fclose(file);
    return read && fflush(stdout) == 0 && !ferror(stdout);
}

bool output_init(const char *path, output *o)
{
    *o = (output){0};
    if (path == NULL)
        return true;
    if (output_is_standard(path))
        return init_standard(o);
    struct stat about = {0};
    bool there = stat(path, &about) == 0;
    if (there && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return false;
    }
    bool regular = there && S_ISREG(about.st_mode);
    o->mode = regular ? about.st_mode & 07777 : 0;
    o->target = regular ? realpath(path, NULL) : strdup(path);
    if (o->target != NULL)
        o->written = !there || regular ? beside(o->target) : strdup(o->target);
    if (o->written != NULL)
        return true;
    output_finish(o);
    return false;
}

bool output_commit(output *o)
{
    if (o->written == NULL)
        return true;
    if (output_is_standard(o->target))
        return commit_standard(o);
    bool moves = strcmp(o->written, o->target) != 0;
    if (moves && o->mode != 0 && chmod(o->written, o->mode) != 0)
        return false;
    if (moves && rename(o->written, o->target) != 0)
        return false;
    free(o->written);
    o->written = NULL;
    return true;
}

void output_finish(output *o)
{
    if (o->written != NULL && strcmp(o->written, o->target) != 0)
        unlink(o->written);
    free(o->written);
    free(o->target);
    *o = (output){0};
}
