#include "values.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli.h"

const char *choice_name(const choice *choices, int value)
{
    while (choices->name != NULL && choices->value != value)
        choices++;
    return choices->name != NULL ? choices->name : "";
}

int value_choice(const char *option, const char *text, const choice *choices, int *value)
{
    char known[128] = "";
    for (const choice *c = choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0) {
            *value = c->value;
            return EXIT_GO_ON;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", c > choices ? ", " : "", c->name);
    }
    return cli_fail(EXIT_BAD_INPUT, "--%s: \"%.40s\" is unknown; known: %s", option, text, known);
}

int value_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || number < least || number > most)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected an integer from %llu to %llu, got \"%.40s\"", option,
                        (unsigned long long)least, (unsigned long long)most, text);
    *value = number;
    return EXIT_GO_ON;
}

int value_u32(const char *option, const char *text, uint32_t least, uint32_t *value)
{
    uint64_t number = 0;
    int code = value_number(option, text, least, UINT32_MAX, &number);
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

int value_color(const char *text, const char **color)
{
    static const choice whens[] = {{"auto", 0}, {"always", 1}, {"never", 2}, {0, 0}};
    int value;
    int code = value_choice("color", text, whens, &value);
    if (code == EXIT_GO_ON)
        *color = text;
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
        code =
            *word != '\0' ? add(word, user) : cli_fail(EXIT_BAD_INPUT, "--%s: an empty name in \"%s\"", option, text);
    free(copy);
    return code;
}

int value_file(const char *option, const char *text)
{
    if (*text == '\0' || text[strlen(text) - 1] == '/')
        return cli_fail(EXIT_BAD_INPUT, "%s \"%s\" names no file", option, text);
    if (strcmp(text, "-") == 0 && strcmp(option, "-o") != 0)
        return cli_fail(EXIT_BAD_INPUT, "%s -: standard output has the answer already; give a file", option);
    return EXIT_GO_ON;
}

int value_picture(const char *option, const char *text)
{
    const char *slash = strrchr(text, '/'), *ending = strrchr(slash != NULL ? slash : text, '.');
    int code = value_file(option, text);
    if (code != EXIT_GO_ON || (ending != NULL && (strcasecmp(ending, ".svg") == 0 || strcasecmp(ending, ".png") == 0 ||
                                                  strcasecmp(ending, ".pdf") == 0)))
        return code;
    return cli_fail(EXIT_BAD_INPUT, "%s %s: a picture's name ends in .svg, .png or .pdf", option, text);
}
