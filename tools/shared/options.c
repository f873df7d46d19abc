/* SPDX-License-Identifier: Apache-2.0 */
/* Options of commands: builds argp tables from option rows and parses values into fields. */
#include "shared/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_KEY = 256, USAGE_KEY = 512, MAX_ENTRIES = OPTIONS_MAX };

typedef struct reading {
    const options_command *command;
    const option_row *rows[MAX_ENTRIES]; /* one for each entry; NULL: a heading, --help, --usage */
    struct argp_option entries[MAX_ENTRIES + 1];
    const char *names[MAX_ENTRIES];
    size_t count, name_count;
} reading;

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static int set_number(const option_row *row, const char *text, void *field)
{
    uint64_t number = 0;
    const uint64_t max = row->max != 0 ? row->max : row->kind == OPTION_U32 ? UINT32_MAX : UINT64_MAX;
    int code = value_number(row->name, text, row->min, max, &number);
    if (code != EXIT_GO_ON)
        return code;
    if (row->kind == OPTION_U32)
        *(uint32_t *)field = (uint32_t)number;
    else
        *(uint64_t *)field = number;
    return code;
}

static int set_choice(const option_row *row, const char *text, void *field)
{
    int value = 0;
    int code = value_choice(row->name, text, row->choices, &value);
    if (code == EXIT_GO_ON)
        memcpy(field, &value, sizeof value); /* enumerations have the size of int */
    return code;
}

typedef struct bit_set {
    const option_row *row;
    uint32_t bits;
} bit_set;

static int add_bit(const char *word, void *user)
{
    bit_set *set = user;
    int value = 0;
    CLI_TRY(value_choice(set->row->name, word, set->row->choices, &value));
    set->bits |= 1u << value;
    return EXIT_GO_ON;
}

static int set_bits(const option_row *row, const char *text, void *field)
{
    bit_set set = {.row = row};
    CLI_TRY(value_list(row->name, text, add_bit, &set));
    *(uint32_t *)field = set.bits;
    return EXIT_GO_ON;
}

static int set_text(const option_row *row, const char *text, void *field)
{
    char option[32];
    if (row->letter != 0)
        snprintf(option, sizeof option, "-%c", row->letter);
    else
        snprintf(option, sizeof option, "--%s", row->name);
    *(const char **)field = text;
    return row->kind == OPTION_FILE      ? value_file(option, text)
           : row->kind == OPTION_PICTURE ? value_picture(option, text)
                                         : EXIT_GO_ON;
}

static int set(const option_row *row, const char *text, void *options)
{
    void *field = (char *)options + row->field;
    switch (row->kind) {
    case OPTION_FLAG:
    case OPTION_UNFLAG: *(bool *)field = row->kind == OPTION_FLAG; return EXIT_GO_ON;
    case OPTION_U32:
    case OPTION_U64: return set_number(row, text, field);
    case OPTION_CHOICE: return set_choice(row, text, field);
    case OPTION_SET: return set_bits(row, text, field);
    case OPTION_DTYPE: return value_dtype(row->name, text, field);
    case OPTION_OWN: return row->parse(row->name, text, options);
    default: return set_text(row, text, field);
    }
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

/* Reports an unknown option, or a value that is missing or superfluous, and exits. argp's own messages are disabled. */
static _Noreturn void refuse(const reading *r, const struct argp_state *state)
{
    const char *near = state->next > 1 ? state->argv[state->next - 1] : "", *command = r->command->name;
    char word[64];
    bool is_long = strncmp(near, "--", 2) == 0;
    snprintf(word, sizeof word, "%.60s", near + (is_long ? 2 : 0));
    bool has_value = strchr(word, '=') != NULL;
    word[strcspn(word, "=")] = '\0';
    for (size_t i = 0; is_long && i < r->name_count; i++) {
        if (strcmp(word, r->names[i]) == 0)
            exit(cli_fail(EXIT_BAD_INPUT, "%s: option --%s %s (see bucketpool %s --help)", command, word,
                          has_value ? "takes no value" : "requires a value", command));
    }
    const char *nearest = is_long ? cli_nearest(word, r->names, r->name_count) : NULL;
    exit(cli_fail(EXIT_BAD_INPUT, "%s: unknown option %s%s%s (see bucketpool %s --help)", command, is_long ? "--" : "",
                  word, cli_suggestion("--", nearest), command));
}

/* Records a row once, however often it is repeated: `rows` has room for every row of the tables. */
static void note_given(options_given *given, const option_row *row)
{
    for (size_t i = 0; i < given->count; i++) {
        if (given->rows[i] == row)
            return;
    }
    given->rows[given->count++] = row;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    reading *r = state->input;
    const options_command *command = r->command;
    if (key == ARGP_KEY_ERROR)
        refuse(r, state);
    if (key == ARGP_KEY_ARGS && command->files != NULL) {
        *command->files = state->argv + state->next;
        *command->file_count = (size_t)(state->argc - state->next);
        return 0;
    }
    if (key == ARGP_KEY_ARG && command->files == NULL)
        exit(cli_fail(EXIT_BAD_INPUT, "%s: unexpected argument \"%.60s\" (see bucketpool %s --help)", command->name,
                      text, command->name));
    const option_row *row = NULL;
    for (size_t i = 0; i < r->count && row == NULL; i++) {
        if (r->rows[i] != NULL && r->entries[i].key == key)
            row = r->rows[i];
    }
    if (row == NULL)
        return ARGP_ERR_UNKNOWN;
    if (command->given != NULL)
        note_given(command->given, row);
    int code = set(row, text, command->options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message was printed */
    return 0;
}

static void add_entry(reading *r, const option_row *row, struct argp_option entry)
{
    if (r->count == MAX_ENTRIES)
        abort(); /* raise OPTIONS_MOST */
    r->rows[r->count] = row;
    r->entries[r->count++] = entry;
    if (entry.name != NULL)
        r->names[r->name_count++] = entry.name;
}

const option_row *options_row(const options_command *command, size_t position)
{
    for (size_t t = 0; t < OPTIONS_TABLES && command->tables[t] != NULL; t++) {
        for (const option_row *row = command->tables[t]; row->name != NULL || row->text != NULL; row++) {
            if (position-- == 0)
                return row;
        }
    }
    return NULL;
}

static options_visitor *visiting;

void options_visit(options_visitor *visitor)
{
    visiting = visitor;
}

int options_read(int argc, char **argv, const options_command *command)
{
    if (visiting != NULL) {
        visiting(command);
        return EXIT_ANSWERED;
    }
    reading r = {.command = command};
    const option_row *row;
    for (size_t i = 0; (row = options_row(command, i)) != NULL; i++) {
        if (row->kind == OPTION_HEADING)
            add_entry(&r, NULL, (struct argp_option){.doc = row->text, .group = row->group});
        else
            add_entry(&r, row,
                      (struct argp_option){.name = row->name,
                                           .key = row->letter != 0 ? row->letter : FIRST_KEY + (int)r.count,
                                           .arg = row->value,
                                           .doc = row->text,
                                           .group = row->group});
    }
    add_entry(&r, NULL, (struct argp_option){.name = "help", .key = '?', .doc = "Print this help", .group = -1});
    add_entry(&r, NULL,
              (struct argp_option){.name = "usage", .key = USAGE_KEY, .doc = "Print the usage line", .group = -1});
    const struct argp argp = {
        .options = r.entries, .parser = parse, .args_doc = command->arguments, .doc = command->text};
    char name[64];
    snprintf(name, sizeof name, "bucketpool %s", command->name);
    argv[0] = name;
    for (int i = 1; i < argc; i++) { /* ARGP_NO_ERRS silences argp's help too */
        bool is_usage = strcmp(argv[i], "--usage") == 0;
        if (is_usage || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-?") == 0 || strcmp(argv[i], "-h") == 0) {
            argp_help(&argp, stdout, is_usage ? ARGP_HELP_USAGE : ARGP_HELP_STD_HELP, name);
            int code = cli_flush();
            return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
        }
    }
    error_t error = argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, 0, &r);
    argv[0] = NULL;
    return error == ENOMEM ? cli_fail(EXIT_ENVIRONMENT, "out of memory") : EXIT_GO_ON;
}
