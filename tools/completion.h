/* Completion scripts of shells, generated from the option tables of all commands. */
#ifndef TOOLS_COMPLETION_H
#define TOOLS_COMPLETION_H

#include <stddef.h>

#include "shared/cli.h"

typedef struct command_row {
    const char *name, *summary;
    cli_command *run;
} command_row;

/* `bucketpool completion SHELL`: prints the script of these commands. Returns the exit code. */
int completion_run(int argc, char **argv, const command_row *commands, size_t count);

#endif
