/* SPDX-License-Identifier: Apache-2.0 */
/* Output files of a command, committed together in two phases: sync before the report is printed, rename after it. */
#ifndef TOOLS_SHARED_OUTPUTS_H
#define TOOLS_SHARED_OUTPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/files.h"

typedef struct output {
    const char *option, *path; /* of the command line; path is NULL where the option was not given */
    char written[32];          /* /proc path of the descriptor, for functions that take a path */
    bp_output file;
} output;

/* true for "-". */
bool output_is_standard(const char *path);

/* A NULL path makes the other functions do nothing. Returns EXIT_GO_ON, or the exit code after a message. */
int output_init(const char *option, const char *path, output *o);
/* The caller closes it. NULL with errno on failure. */
FILE *output_stream(const output *o);
/* Prints that the output cannot be written because of `reason`. Returns the exit code. */
int output_fail(const output *o, const char *reason);
/* First phase, before the report: does everything that may fail. Files are complete but still unnamed; outputs that
 * cannot be renamed (standard output, pipes, devices) are written. Returns EXIT_GO_ON, or the exit code after a
 * message. */
int outputs_sync(output *outputs, size_t count);
/* Second phase, after the report, whose code is given: unless something failed, flushes standard output and gives files their names. Removes
 * uncommitted outputs. Returns the first code that is not EXIT_GO_ON. */
int outputs_end(output *outputs, size_t count, int code);

#endif
