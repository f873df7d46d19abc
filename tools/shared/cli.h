/* What the commands share: exit codes, messages, sizes as people read them. */
#ifndef TOOLS_SHARED_CLI_H
#define TOOLS_SHARED_CLI_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "files/json_writer.h"

/* Pinned: scripts depend on them. */
enum {
    EXIT_ANSWERED = 0,    /* the question was answered */
    EXIT_NEGATIVE = 1,    /* verification failed, or what was asked for is infeasible */
    EXIT_BAD_INPUT = 2,   /* an option or a file is wrong */
    EXIT_ENVIRONMENT = 3, /* the machine lacks something: memory, a library, a place to write */
    EXIT_READER_GONE =
        141,        /* the reader of standard output has ended, as in `| head`: 128 + SIGPIPE, as shells report it */
    EXIT_GO_ON = -1 /* not an exit code: nothing failed so far */
};

/* Propagates an exit code. */
#define CLI_TRY(call)                                                                                                  \
    do {                                                                                                               \
        int cli_try_code = (call);                                                                                     \
        if (cli_try_code != EXIT_GO_ON)                                                                                \
            return cli_try_code;                                                                                       \
    } while (0)

typedef int cli_command(int argc, char **argv);
cli_command cli_plan, cli_explain, cli_schedule, cli_run, cli_pack, cli_view, cli_bench;
cli_command cli_bench_logprob, cli_bench_offload; /* of bench */

/* "bucketpool: <text>" on standard error, one line: control characters are shown as '?'. Returns `code`. */
__attribute__((format(printf, 2, 3))) int cli_fail(int code, const char *format, ...);
/* Flushes standard output: EXIT_GO_ON, or the exit code after a message; without a message where its reader has ended. */
int cli_flush(void);
/* The exit code for standard output that failed with this errno, as cli_flush. */
int cli_fail_standard(int error);
/* Closes a writer in memory, frees its text, and prints it as a whole or not at all: EXIT_GO_ON, or the exit code after a message. */
int cli_print_json(bp_json_writer *json);
/* The most similar of `count` names; NULL where none is similar. */
const char *cli_nearest(const char *word, const char *const *names, size_t count);
/* "; did you mean "--x"?", or "" for NULL. Same lifetime as cli_text. */
const char *cli_suggestion(const char *prefix, const char *nearest);
/* The library's detail, with the exit code that belongs to the status. */
int cli_fail_status(bp_status status);

/* A short text: at most 47 characters. It lives until the sixteenth next call of this and the following. */
__attribute__((format(printf, 1, 2))) const char *cli_text(const char *format, ...);
/* "label     text" and a line end, on standard output. */
__attribute__((format(printf, 2, 3))) void cli_print_line(const char *label, const char *format, ...);
/* Adds to a text in `room` characters, as much as there is room for. */
__attribute__((format(printf, 3, 4))) void cli_append(char *text, size_t room, const char *format, ...);
/* "738361344" as "704.2 MiB". Same lifetime as cli_text. */
const char *cli_bytes(uint64_t bytes);
/* "31577937344" as "31.578 B", the way publishers count parameters. Same lifetime. */
const char *cli_count(uint64_t count);
/* A bucket's name, "bucket.<ordinal>" where it has none. Same lifetime. */
const char *cli_bucket(const char *name, uint32_t ordinal);

/* Reads "80GiB", "80 GB", "1.5T", "1048576". false when it is no size or does not fit. */
bool cli_parse_bytes(const char *text, uint64_t *bytes);

/* Whether standard output wants colour: a terminal, unless NO_COLOR is set or `when` says "always" or "never". */
bool cli_wants_color(const char *when);

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* How many characters all names of units begin with that need not be repeated: "model." or "model.layers."; a bare number says too
 * little, so then the word before it stays. */
size_t names_common_chars(const bp_buckets *buckets);

/* What a step computes, whether or not it is the half of a step in which gathers begin. */
bp_phase names_direction(const bp_step *step);

enum { ROLES_TEXT_CHARS = 80 };
/* "param+grad": the roles of a BP_ROLE_BIT mask. */
const char *names_roles(uint32_t roles, char text[ROLES_TEXT_CHARS]);

/* ---- values of options ------------------------------------------------------------------------------------------- */

/* A value that one of a few words stands for; lists of them end with a NULL name. */
typedef struct choice {
    const char *name;
    int value;
} choice;

/* "" when no word stands for the value. */
const char *choice_name(const choice *choices, int value);

int value_choice(const char *option, const char *text, const choice *choices, int *value);
int value_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *value);
int value_u32(const char *option, const char *text, uint32_t least, uint32_t *value);
/* "host", "cuda", "cuda:1": of the choices, with the number behind cuda. */
int value_device(const char *text, const choice *choices, int *value, int32_t *ordinal);
/* auto, always or never. */
int value_color(const char *text, const char **color);
int value_dtype(const char *option, const char *text, bp_dtype *dtype);
/* Calls `add` for each of the comma-separated words. */
int value_list(const char *option, const char *text, int (*add)(const char *word, void *user), void *user);
/* The name of a file that is to be written. */
int value_file(const char *option, const char *text);
int value_picture(const char *option, const char *text);

/* Ctrl-C in commands that run for long: the first ends them in order, with what they have so far. */

/* From here on SIGINT is counted. Some parents send it twice: the third ends the process at once. */
void interrupt_watch(void);
bool interrupt_came(void);
/* Ends the process by SIGINT if one came; shells report that as status 130. */
void interrupt_pass_on(void);

#endif
