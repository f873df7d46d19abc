/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all commands: messages and exit codes, formatted sizes and names, option values, interrupts. */
#include "shared/cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/print.h"

int cli_fail(int code, const char *format, ...)
{
    char text[2048]; /* paths and option values may be long */
    va_list args;
    va_start(args, format);
    bp_vprint(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "%sbucketpool: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", text); /* erases a progress line */
    return code;
}

int cli_fail_standard(int error)
{
    if (error == EPIPE)
        return EXIT_READER_GONE;
    return cli_fail(EXIT_ENVIRONMENT, "standard output cannot be written: %s", strerror(error));
}

int cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_GO_ON;
    return cli_fail_standard(errno);
}

int cli_fail_status(bp_status status)
{
    int code = EXIT_BAD_INPUT;
    if (status == BP_ERR_INFEASIBLE || status == BP_ERR_MISMATCH)
        code = EXIT_NEGATIVE;
    else if (status == BP_ERR_NO_HOST_MEMORY || status == BP_ERR_NO_DEVICE_MEMORY || status == BP_ERR_NO_DEVICE ||
             status == BP_ERR_INTERNAL || status == BP_ERR_DEVICE || status == BP_ERR_COMM || status == BP_ERR_TIMEOUT)
        code = EXIT_ENVIRONMENT;
    return cli_fail(code, "%s", bp_error_detail());
}

int cli_print_json(bp_json_writer *json)
{
    int code = EXIT_GO_ON;
    bp_status status = bp_json_close(json);
    if (status == BP_OK) {
        fwrite(json->text, 1, json->bytes, stdout);
        code = cli_flush();
    } else {
        code = status == BP_ERR_NO_HOST_MEMORY ? cli_fail(EXIT_ENVIRONMENT, "out of memory") : cli_fail_status(status);
    }
    free(json->text);
    return code;
}

const char *cli_text(const char *format, ...)
{
    static char texts[16][96];
    static unsigned next;
    char *text = texts[next++ % 16];
    va_list args;
    va_start(args, format);
    bp_vprint(text, sizeof texts[0], format, args);
    va_end(args);
    return text;
}

static void print_formatted(const char *format, va_list args)
{
    char text[1024], *longer = NULL;
    va_list again;
    va_copy(again, args);
    size_t bytes = bp_vprint(text, sizeof text, format, args);
    if (bytes >= sizeof text && (longer = malloc(bytes + 1)) != NULL)
        bp_vprint(longer, bytes + 1, format, again);
    va_end(again);
    fputs(longer != NULL ? longer : text, stdout);
    free(longer);
}

void cli_print(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_formatted(format, args);
    va_end(args);
}

void cli_print_title(const char *title, bool color)
{
    fputs(color ? "\033[1m" : "", stdout);
    cli_print("%s", title);
    fputs(color ? "\033[0m" : "", stdout);
}

void cli_print_line(const char *label, const char *format, ...)
{
    va_list args;
    printf("%-10s", label);
    va_start(args, format);
    print_formatted(format, args);
    va_end(args);
    putchar('\n');
}

void cli_append(char *text, size_t room, const char *format, ...)
{
    size_t length = strlen(text);
    va_list args;
    va_start(args, format);
    bp_vprint(text + length, room - length, format, args);
    va_end(args);
}

/* Levenshtein distance, O(length x length). */
static size_t edits_between(const char *word, const char *name)
{
    enum { LONGEST = 40 };
    size_t row[LONGEST + 1], columns = strlen(name);
    if (columns > LONGEST || strlen(word) > LONGEST)
        return SIZE_MAX;
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; word[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t above = row[j], best = diagonal + (word[i - 1] != name[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = above;
        }
    }
    return row[columns];
}

const char *cli_nearest(const char *word, const char *const *names, size_t count)
{
    size_t fewest = strlen(word) / 3 + 2; /* below: similar */
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t edits = edits_between(word, names[i]);
        if (edits < fewest) {
            fewest = edits;
            nearest = names[i];
        }
    }
    return nearest;
}

const char *cli_suggestion(const char *prefix, const char *nearest)
{
    return nearest != NULL ? cli_text("; did you mean \"%s%s\"?", prefix, nearest) : "";
}

bool cli_has_suffix(const char *text, const char *suffix)
{
    size_t length = strlen(text), tail = strlen(suffix);
    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

const char *cli_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    return unit == 0 ? cli_text("%llu B", (unsigned long long)bytes)
                     : cli_text("%.*f %s",
                                value < 10    ? 3
                                : value < 100 ? 2
                                              : 1,
                                value, units[unit]);
}

const char *cli_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

const char *cli_count(uint64_t count)
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    size_t unit = 0;
    double value = (double)count;
    for (; value >= 1000 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1000;
    return unit == 0 ? cli_text("%llu", (unsigned long long)count) : cli_text("%.3f%s", value, units[unit]);
}

const char *cli_bucket(const char *name, uint32_t ordinal)
{
    return name != NULL ? name : cli_text("bucket.%u", ordinal);
}

bool cli_parse_bytes(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},          {"b", 1},           {"k", 1024.0},   {"kib", 1024.0},     {"kb", 1e3},
                 {"m", 1048576.0}, {"mib", 1048576.0}, {"mb", 1e6},     {"g", 1073741824.0}, {"gib", 1073741824.0},
                 {"gb", 1e9},      {"t", 0x1p40},      {"tib", 0x1p40}, {"tb", 1e12}};
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    double value = strtod(text, &end);
    end += strspn(end, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].unit) != 0)
            continue;
        double product = value * units[i].factor;
        if (!isfinite(product) || product < 1 || product >= 0x1p63)
            return false;
        *bytes = (uint64_t)product;
        return true;
    }
    return false;
}

bool cli_wants_color(cli_color when)
{
    if (when != COLOR_AUTO)
        return when == COLOR_ALWAYS;
    const char *no_color = secure_getenv("NO_COLOR"), *term = secure_getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_color == NULL || *no_color == '\0') &&
           (term == NULL || strcmp(term, "dumb") != 0);
}

/* ---- values of options ------------------------------------------------------------------------------------------- */

const choice choices_color[] = {{"auto", COLOR_AUTO}, {"always", COLOR_ALWAYS}, {"never", COLOR_NEVER}, {0, 0}};

const char *choice_name(const choice *choices, int value)
{
    while (choices->name != NULL && choices->value != value)
        choices++;
    return choices->name != NULL ? choices->name : "";
}

int value_choice(const char *option, const char *text, const choice *choices, int *value)
{
    char known[128] = "";
    const char *names[16];
    size_t count = 0;
    for (const choice *c = choices; c->name != NULL; c++) {
        if (strcasecmp(c->name, text) == 0) {
            *value = c->value;
            return EXIT_GO_ON;
        }
        cli_append(known, sizeof known, "%s%s", c > choices ? ", " : "", c->name);
        if (count < sizeof names / sizeof *names)
            names[count++] = c->name;
    }
    return cli_fail(EXIT_BAD_INPUT, "--%s: expected one of %s, got \"%.40s\"%s", option, known, text,
                    cli_suggestion("", *text != '\0' ? cli_nearest(text, names, count) : NULL));
}

int value_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || number < min || number > max)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected an integer in [%llu, %llu], got \"%.40s\"", option,
                        (unsigned long long)min, (unsigned long long)max, text);
    *value = number;
    return EXIT_GO_ON;
}

int value_u32(const char *option, const char *text, uint32_t min, uint32_t *value)
{
    uint64_t number = 0;
    int code = value_number(option, text, min, UINT32_MAX, &number);
    if (code == EXIT_GO_ON)
        *value = (uint32_t)number;
    return code;
}

int value_device(const char *text, const choice *choices, int *value, int32_t *ordinal)
{
    uint64_t number = 0;
    bool numbered = strncmp(text, "cuda:", 5) == 0;
    int code = value_choice("device", numbered ? "cuda" : text, choices, value);
    if (code == EXIT_GO_ON && numbered)
        code = value_number("device cuda:N", text + 5, 0, INT32_MAX, &number);
    *ordinal = (int32_t)number;
    return code;
}

int value_dtype(const char *option, const char *text, bp_dtype *dtype)
{
    if (bp_dtype_parse(text, dtype) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--%s: %s", option, bp_error_detail());
    return EXIT_GO_ON;
}

int value_list(const char *option, const char *text, int (*add)(const char *word, void *user), void *user)
{
    char *copy = strdup(text), *rest = copy, *word;
    int code = copy != NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "out of memory");
    while (code == EXIT_GO_ON && (word = strsep(&rest, ",")) != NULL)
        code = *word != '\0' ? add(word, user)
                             : cli_fail(EXIT_BAD_INPUT, "--%s: empty entry in \"%s\"; separate entries by one comma",
                                        option, text);
    free(copy);
    return code;
}

int value_file(const char *option, const char *text)
{
    if (*text == '\0' || text[strlen(text) - 1] == '/')
        return cli_fail(EXIT_BAD_INPUT, "%s \"%s\" is not a file name; give the file to write", option, text);
    if (strcmp(text, "-") == 0 && strcmp(option, "-o") != 0)
        return cli_fail(EXIT_BAD_INPUT, "%s -: standard output is used for the report; give a file", option);
    return EXIT_GO_ON;
}

int value_picture(const char *option, const char *text)
{
    const char *slash = strrchr(text, '/'), *ending = strrchr(slash != NULL ? slash : text, '.');
    int code = value_file(option, text);
    if (code != EXIT_GO_ON || (ending != NULL && strcasecmp(ending, ".svg") == 0))
        return code;
    return cli_fail(
        EXIT_BAD_INPUT,
        "%s %s: pictures are SVG; use a name that ends in .svg (rsvg-convert or a browser makes PNG or PDF of it)",
        option, text);
}

/* ---- interrupts -------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupts;
static uint32_t *interrupt_stop;

static void count(int number)
{
    if (interrupt_stop != NULL)
        __atomic_store_n(interrupt_stop, 1, __ATOMIC_RELAXED);
    if (++interrupts == 2)
        signal(number, SIG_DFL);
}

void interrupt_watch(uint32_t *stop)
{
    interrupt_stop = stop;
    struct sigaction action = {.sa_handler = count};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_came(void)
{
    return interrupts > 0;
}

void interrupt_pass_on(void)
{
    if (interrupts == 0)
        return;
    fflush(NULL);
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}

size_t names_common_chars(const bp_buckets *buckets)
{
    size_t units = bp_buckets_get_info(buckets)->unit_count;
    const char *first = units > 0 ? bp_buckets_get_info(buckets)->units[0].name : "";
    size_t common = strlen(first);
    for (size_t u = 0; u < units; u++) {
        const char *name = bp_buckets_get_info(buckets)->units[u].name;
        size_t same = 0;
        while (same < common && name[same] == first[same])
            same++;
        common = same;
    }
    bool number = false;
    while (common > 0 && first[common - 1] != '.')
        common--;
    for (size_t u = 0; u < units; u++)
        number = number || !isalpha((unsigned char)bp_buckets_get_info(buckets)->units[u].name[common]);
    if (number && common > 0)
        common--;
    while (common > 0 && first[common - 1] != '.')
        common--;
    return common;
}

bp_phase names_direction(const bp_step *step)
{
    if (step->phase != BP_PHASE_BACKWARD_GATHER && step->phase != BP_PHASE_REDUCE)
        return step->phase;
    return step->forward_unit >= 0 ? BP_PHASE_COMBINED : BP_PHASE_BACKWARD;
}

const char *names_roles(uint32_t roles, char text[ROLES_TEXT_CHARS])
{
    *text = '\0';
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (roles & BP_ROLE_BIT(role))
            cli_append(text, ROLES_TEXT_CHARS, "%s%s", *text != '\0' ? "+" : "", bp_role_name((bp_role)role));
    }
    return text;
}
