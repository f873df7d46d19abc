/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that name snapshots: folders, and files of other kinds. */
#ifndef TOOLS_SHARED_INPUTS_H
#define TOOLS_SHARED_INPUTS_H

#include <stdbool.h>
#include <stddef.h>

/* The kind of a regular file that is not a pickle, by its first bytes and its name: "compressed with gzip; gunzip it first". NULL: a pickle, or unknown.
 * Same lifetime as cli_text. */
const char *input_other_kind(const char *path);

/* The files of a command. A folder stands for its snapshots. */
typedef struct input_files {
    char **all;
    size_t count;
} input_files;

/* Returns EXIT_GO_ON, or the exit code after a message: folders without snapshots, or with other files beside them, are named with their
 * content. Call the finish function either way. */
int input_files_init(const char *command, char *const *arguments, size_t count, input_files *files);
void input_files_finish(input_files *files);

#endif
