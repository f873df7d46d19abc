/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all commands: exit codes, messages, formatted sizes and names, option values, interrupts. */
#ifndef TOOLS_SHARED_CLI_H
#define TOOLS_SHARED_CLI_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "core/json_writer.h"
#include "core/print.h"

/* Part of the interface: scripts depend on them. */
enum {
    EXIT_ANSWERED = 0,      /* the question was answered */
    EXIT_NEGATIVE = 1,      /* verification failed, or the request is infeasible */
    EXIT_BAD_INPUT = 2,     /* an option or a file is wrong */
    EXIT_ENVIRONMENT = 3,   /* the machine lacks something: memory, a library, a place to write */
    EXIT_READER_GONE = 141, /* the reader of standard output has ended, as in `| head`: 128 + SIGPIPE */
    EXIT_GO_ON = -1         /* not an exit code: nothing failed so far */
};

/* Propagates an exit code. */
#define CLI_TRY(call)                                                                                                  \
    do {                                                                                                               \
        int cli_try_code = (call);                                                                                     \
        if (cli_try_code != EXIT_GO_ON)                                                                                \
            return cli_try_code;                                                                                       \
    } while (0)

typedef int cli_command(int argc, char **argv);
cli_command cli_plan, cli_explain, cli_schedule, cli_models, cli_run, cli_pack, cli_step, cli_fit, cli_view, cli_bench,
    cli_completion;
cli_command cli_manual;                           /* `completion manual`, for the build */
cli_command cli_bench_logprob, cli_bench_offload; /* of bench */

/* Lists end with a NULL name. */
typedef struct command_row {
    const char *name, *summary;
    cli_command *run;
} command_row;
extern const command_row cli_commands[], cli_benchmarks[];

/* "bucketpool: <text>" on standard error, one line. Text from files and arguments is shown as bp_vprint (core/print.h) shows it, here and in all
 * functions below. Returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
/* Flushes standard output: EXIT_GO_ON, or the exit code after a message; without a message where its reader has ended. */
int cli_flush(void);
/* Reports that writing standard output failed with this errno. Returns the exit code, as cli_flush does. */
int cli_fail_standard(int error);
/* Closes a writer in memory, frees its text, and prints it as a whole or not at all: EXIT_GO_ON, or the exit code
 * after a message. */
int cli_print_json(bp_json_writer *json);
/* The most similar of `count` names; NULL where none is similar. */
const char *cli_nearest(const char *word, const char *const *names, size_t count);
/* "; did you mean "--x"?", or "" for NULL. Same lifetime as cli_text. */
const char *cli_suggestion(const char *prefix, const char *nearest);
/* Prints the library's error detail. Returns the exit code of the status. */
int cli_fail_status(bp_status status);

/* Formats at most 47 characters. The text is valid until the 16th later call of this or of the functions below. */
__attribute__((format(printf, 1, 2))) const char *cli_text(const char *format, ...);
/* printf for text from files and arguments. The title is bold. */
__attribute__((format(printf, 1, 2))) void cli_print(const char *format, ...);
void cli_print_title(const char *title, bool color);
/* Prints "label     text\n". */
__attribute__((format(printf, 2, 3))) void cli_print_line(const char *label, const char *format, ...);
/* Appends to `text`, cut to `room` characters in all. */
__attribute__((format(printf, 3, 4))) void cli_append(char *text, size_t room, const char *format, ...);
bool cli_has_suffix(const char *text, const char *suffix);
/* "738361344" as "704.2 MiB". Same lifetime as cli_text. */
const char *cli_bytes(uint64_t bytes);
/* "31577937344" as "31.578 B", the way publishers count parameters. Same lifetime. */
const char *cli_count(uint64_t count);
/* "" for one, else "s". */
const char *cli_plural(uint64_t count);
/* A bucket's name, "bucket.<ordinal>" where it has none. Same lifetime. */
const char *cli_bucket(const char *name, uint32_t ordinal);

/* Parses "80GiB", "80 GB", "1.5T", "1048576". false for anything else and from 2^63 on. */
bool cli_parse_bytes(const char *text, uint64_t *bytes);

/* Values of --color. Auto: if standard output is a terminal and NO_COLOR is not set. */
typedef enum cli_color { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER } cli_color;
bool cli_wants_color(cli_color when);

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Length of the prefix that all unit names share ("model." or "model.layers."), to be left out of tables. Where only
 * a number would remain, the word before it is kept. */
size_t names_common_chars(const bp_buckets *buckets);

/* Phase of the step's compute; BP_PHASE_BACKWARD_GATHER and BP_PHASE_REDUCE count as backward (or combined). */
bp_phase names_direction(const bp_step *step);

enum { ROLES_TEXT_CHARS = 80 };
/* "param+grad": the roles of a BP_ROLE_BIT mask. */
const char *names_roles(uint32_t roles, char text[ROLES_TEXT_CHARS]);

/* ---- values of options ------------------------------------------------------------------------------------------- */

/* A word of an option and its value. Lists end with a NULL name. */
typedef struct choice {
    const char *name;
    int value;
} choice;

extern const choice choices_color[];

/* The word of a value; "" where there is none. */
const char *choice_name(const choice *choices, int value);

int value_choice(const char *option, const char *text, const choice *choices, int *value);
int value_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value);
int value_u32(const char *option, const char *text, uint32_t min, uint32_t *value);
/* One of the choices, or "cuda:N": N in *ordinal. */
int value_device(const char *text, const choice *choices, int *value, int32_t *ordinal);
int value_dtype(const char *option, const char *text, bp_dtype *dtype);
/* Calls `add` for each of the comma-separated words. */
int value_list(const char *option, const char *text, int (*add)(const char *word, void *user), void *user);
/* Checks the name of an output file; value_picture also its suffix. */
int value_file(const char *option, const char *text);
int value_picture(const char *option, const char *text);

/* ---- interrupts -------------------------------------------------------------------------------------------------- */

/* Counts SIGINT from now on, and sets *stop to 1, unless NULL: after the first, commands end with partial results. Some parents send it
 * twice, so the third one kills. */
void interrupt_watch(uint32_t *stop);
bool interrupt_came(void);
/* Ends the process by SIGINT if one came, so that shells report status 130. */
void interrupt_pass_on(void);

#endif
