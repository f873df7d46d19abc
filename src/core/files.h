/* SPDX-License-Identifier: Apache-2.0 */
/* Output files that are complete or absent, and input files that cannot block; for the libraries and the command. */
#ifndef BP_FILES_FILES_H
#define BP_FILES_FILES_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* ---- inputs --------------------------------------------------------------------------------------------------------- */

/* Opens a regular file for reading. Refuses folders, pipes, sockets and devices, which could block or never end,
 * unless `path` names a descriptor of this process (/dev/stdin, /dev/fd/3): these are read directly. Errors:
 * BP_ERR_IO. */
bp_status bp_input_open(const char *path, int *file, struct stat *about);

/* read(2) that waits on nonblocking descriptors and retries after signals. */
ssize_t bp_input_read(int file, void *data, size_t bytes);

/* ---- outputs -------------------------------------------------------------------------------------------------------- */

/* An output is written to a staging file in the folder of its target, which the commit renames. Then
 *  - a symbolic link is followed, and refused where it leads to nothing, as `cp` does;
 *  - a file that is replaced must be writable; its mode (without set-id bits), and where possible its owner and group, are kept;
 *  - a file that is new gets its mode from the umask;
 *  - hard links, access control lists and extended attributes of a file that is replaced are lost.
 * Pipes, devices and descriptors of this process cannot be replaced: the staging file is in memory and the commit copies it.
 *
 * Staging files are called .bucketpool-<16 hexadecimal digits> and are locked (flock) while their writer lives. Those of dead
 * writers are removed by the next writer to the same folder. */
typedef struct bp_output {
    const char *path; /* the caller's; used in messages */
    int file;         /* the staging file; callers may write to it directly until bp_output_sync */
    int error;        /* errno of the first failure, 0 for none */

    int in_place;    /* the opened target that the commit copies to; -1: the commit renames */
    int folder;      /* the target's folder, or -1 */
    char *name;      /* the target's name in the folder */
    char staged[32]; /* the staging file's name in the folder; "": none */
    bool replaces, synced;
    struct stat replaced;
    uint8_t *buffer;
    size_t used;
} bp_output;

/* Errors of all functions: BP_ERR_IO with path and reason, also in errno and `error`; BP_ERR_NO_HOST_MEMORY. After a
 * failed open there is nothing to finish. */
bp_status bp_output_open(bp_output *output, const char *path);
/* The commit appends to `file`, which the caller still owns. */
bp_status bp_output_open_descriptor(bp_output *output, int file, const char *path);

/* Buffered. bp_output_sync reports failures. */
void bp_output_add(bp_output *output, const void *data, size_t bytes);

/* Writes everything to disk except the name, so that committing several outputs rarely fails half-way. */
bp_status bp_output_sync(bp_output *output);
/* Replaces the target. Syncs first if the caller has not. */
bp_status bp_output_commit(bp_output *output);
/* Frees everything and removes files that were not committed. Keeps errno. */
void bp_output_finish(bp_output *output);

static inline void bp_output_byte(bp_output *output, uint8_t byte)
{
    bp_output_add(output, &byte, 1);
}

#endif
