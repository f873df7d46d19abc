/* Output files of a command: they appear together, after everything else has worked, or not at all. */
#ifndef TOOLS_SHARED_OUTPUTS_H
#define TOOLS_SHARED_OUTPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "files/files.h"

typedef struct output {
    const char *option, *path; /* of the command line; path is NULL where the option was not given */
    char written[32];          /* to be written: a path of the descriptor, for functions that want a path */
    bp_output file;
} output;

/* "-": the output is copied to standard output. */
bool output_is_standard(const char *path);

/* NULL path: no output, and the other functions do nothing. EXIT_GO_ON, or an exit code when the message is out. */
int output_init(const char *option, const char *path, output *o);
/* To be closed by the caller. NULL when that fails; errno says why. */
FILE *output_stream(const output *o);
/* Says that the output cannot be written because of `reason`. */
int output_fail(const output *o, const char *reason);
/* Before the answer: everything that may fail for want of room. Files are complete but for their names; what cannot be renamed
 * (standard output, pipes, devices) is written. EXIT_GO_ON, or an exit code when the message is out. */
int outputs_sync(output *outputs, size_t count);
/* After the answer: gives files their names. As outputs_sync. */
int outputs_commit(output *outputs, size_t count);
/* Removes what was not committed. */
void outputs_finish(output *outputs, size_t count);

#endif
