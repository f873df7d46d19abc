/* Files that are whole or not there: written through a buffer under another name in the same folder, flushed to the disk, then renamed. */
#ifndef BP_PROFILE_OUTPUT_H
#define BP_PROFILE_OUTPUT_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

typedef struct bp_output {
    const char *path; /* the caller's */
    char *written;    /* what is renamed in the end; NULL: `path` itself, which is no regular file */
    uint8_t *buffer;
    size_t used;
    int file;
    int error; /* the first errno; nothing is written after it */
} bp_output;

/* Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_IO (names the file and why). */
bp_status bp_output_open(bp_output *output, const char *path);
/* Failures come out at the end. */
void bp_output_add(bp_output *output, const void *data, size_t bytes);
/* Writes what is left and gives the file its name, or, where anything failed so far (`status` is not BP_OK, or writing did), removes it. Returns
 * `status` if that is an error, else BP_ERR_IO with the file and the reason. */
bp_status bp_output_close(bp_output *output, bp_status status);

/* Makes the folder of `path` where there is none, with its parents; other processes may do so at the same time. BP_ERR_IO. */
bp_status bp_output_make_folder(const char *path);

static inline void bp_output_byte(bp_output *output, uint8_t byte)
{
    bp_output_add(output, &byte, 1);
}

#endif
