/* SPDX-License-Identifier: Apache-2.0 */
/* Options of commands. A row declares one option: name, help text, the field it sets, allowed values, and where it
 * has an effect. The tables of a command set fields of one struct. Its first member may be the struct of a table
 * that several commands share. */
#ifndef TOOLS_SHARED_OPTIONS_H
#define TOOLS_SHARED_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/cli.h"

typedef enum option_kind {
    OPTION_HEADING, /* heading of the following rows in --help: `text` */
    OPTION_FLAG,    /* bool: true */
    OPTION_UNFLAG,  /* bool: false */
    OPTION_U32,     /* uint32_t in [`least`, `most`]; `most` 0: no limit */
    OPTION_U64,     /* uint64_t, the same */
    OPTION_CHOICE,  /* an enumeration or uint32_t: one of `choices` */
    OPTION_SET,     /* uint32_t: a bit 1 << value for each of `choices` in a list with commas */
    OPTION_DTYPE,   /* bp_dtype */
    OPTION_TEXT,    /* const char * */
    OPTION_FILE,    /* const char *: an output file */
    OPTION_PICTURE, /* const char *: an output file .svg */
    OPTION_OWN,     /* read by `parse`; `choices` are its words, for completion */
} option_kind;

/* Bits of `applies`. */
#define OPTION_MAKES_PLANS 1u                  /* has no effect on a finished plan */
#define OPTION_GENERATES 2u                    /* has no effect on a recorded schedule */
#define OPTION_POLICY(policy) (4u << (policy)) /* has an effect with this policy; no such bit: with all policies */

typedef struct option_row {
    const char *name, *value, *text; /* `value` NULL: a flag; completes FILE and DIR to files, LIST word by word */
    option_kind kind;
    uint32_t field; /* offset in the command's struct */
    const choice *choices;
    uint64_t min, max;
    int (*parse)(const char *name, const char *text, void *options); /* EXIT_GO_ON or an exit code after a message */
    unsigned applies;
    short group; /* of a heading: its place in --help */
    char letter; /* short name; 0: none */
} option_row;

#define OPTION_END                                                                                                     \
    {                                                                                                                  \
        0                                                                                                              \
    }

/* The options that were given, each once, in the order of the command line. */
#define OPTIONS_MAX 80 /* rows of a command's tables, with headings */
typedef struct options_given {
    const option_row *rows[OPTIONS_MAX];
    size_t count;
} options_given;

/* A command's options and arguments. */
#define OPTIONS_TABLES 4
typedef struct options_command {
    const char *name;      /* "bench logprob" */
    const char *arguments; /* "MODEL..."; "": none */
    const char *text;      /* --help: printed above the options, after \v below them */
    const option_row *tables[OPTIONS_TABLES];
    void *options;        /* struct whose fields the rows set */
    options_given *given; /* may be NULL */
    char ***files;        /* arguments; NULL: the command takes none */
    size_t *file_count;
} options_command;

/* Row of a command's tables by its position in all of them; NULL after the last. */
const option_row *options_row(const options_command *command, size_t position);

/* Called with the tables of a command. */
typedef void options_visitor(const options_command *command);
/* From now on options_read calls `visitor` and returns EXIT_ANSWERED, so that running a command only visits its tables. */
void options_visit(options_visitor *visitor);

/* Prints help, or reads the arguments after the command's name. EXIT_GO_ON or an exit code. */
int options_read(int argc, char **argv, const options_command *command);

#endif
