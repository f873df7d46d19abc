#include "formats/unit_names.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"

/* Bytes of a component: up to a dot or the end. */
static size_t component_bytes(const char *text)
{
    return strcspn(text, ".");
}

/* True when `text` is `outer` and further components; *rest is what follows. */
static bool lies_inside(const char *text, const char *outer, const char **rest)
{
    size_t bytes = strlen(outer);
    if (strncmp(text, outer, bytes) != 0 || text[bytes] != '.')
        return false;
    *rest = text + bytes + 1;
    return true;
}

static bp_status add_pattern(bp_unit_patterns *patterns, char *text)
{
    text += strspn(text, " ");
    size_t bytes = strlen(text);
    while (bytes > 0 && text[bytes - 1] == ' ')
        text[--bytes] = '\0';
    if (bytes == 0 || text[0] == '.' || text[bytes - 1] == '.' || strstr(text, "..") != NULL || !bp_is_name(text))
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "units: \"%.60s\" is no pattern; expected names with dots and N for a number, as in " BP_DEFAULT_UNITS,
            text);
    if (patterns->count == BP_MOST_UNIT_PATTERNS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "units: more than %d patterns", BP_MOST_UNIT_PATTERNS);
    patterns->patterns[patterns->count++] = (bp_unit_pattern){.text = text, .rest = text, .outer = -1};
    return BP_OK;
}

static void find_outer_patterns(bp_unit_patterns *patterns)
{
    for (size_t i = 0; i < patterns->count; i++) {
        bp_unit_pattern *inner = &patterns->patterns[i];
        for (size_t o = 0; o < patterns->count; o++) {
            const char *rest;
            if (lies_inside(inner->text, patterns->patterns[o].text, &rest) && rest > inner->rest) {
                inner->rest = rest;
                inner->outer = (int)o;
            }
        }
    }
}

bp_status bp_unit_patterns_init(bp_unit_patterns *patterns, const char *text)
{
    *patterns = (bp_unit_patterns){.text = strdup(text != NULL ? text : BP_DEFAULT_UNITS)};
    if (patterns->text == NULL)
        return bp_fail_memory(strlen(text != NULL ? text : BP_DEFAULT_UNITS) + 1);
    bp_status status = BP_OK;
    char *next = patterns->text, *pattern;
    while (status == BP_OK && (pattern = strsep(&next, ",")) != NULL)
        status = add_pattern(patterns, pattern);
    if (status != BP_OK) {
        bp_unit_patterns_finish(patterns);
        return status;
    }
    find_outer_patterns(patterns);
    return BP_OK;
}

void bp_unit_patterns_finish(bp_unit_patterns *patterns)
{
    free(patterns->text);
    *patterns = (bp_unit_patterns){0};
}

/* A module number: digits, few enough to be one. */
static bool is_number(const char *text, size_t bytes)
{
    if (bytes == 0 || bytes > 9)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
    }
    return true;
}

/* Bytes that `pattern` matches at the beginning of `name`, 0 for no match. A component must follow: the unit is a
 * module, not the tensor itself. */
static size_t match_here(const char *pattern, const char *name)
{
    const char *at = name;
    for (;;) {
        size_t wanted = component_bytes(pattern), found = component_bytes(at);
        bool is_match =
            wanted == 1 && *pattern == 'N' ? is_number(at, found) : wanted == found && memcmp(pattern, at, found) == 0;
        if (!is_match || at[found] == '\0')
            return 0;
        at += found;
        pattern += wanted;
        if (*pattern == '\0')
            return (size_t)(at - name);
        at++;
        pattern++;
    }
}

/* The match inside pattern `outer` that ends first, searched from `from`. */
static bool find_match(const bp_unit_patterns *patterns, int outer, const char *name, size_t from, bp_unit_match *match)
{
    bool found = false;
    size_t at = from;
    for (;;) {
        for (size_t i = 0; i < patterns->count; i++) {
            size_t bytes = patterns->patterns[i].outer == outer ? match_here(patterns->patterns[i].rest, name + at) : 0;
            if (bytes > 0 && (!found || at + bytes < match->end)) {
                *match = (bp_unit_match){at, at + bytes, (int)i};
                found = true;
            }
        }
        at += component_bytes(name + at);
        if (name[at] == '\0' || (found && at >= match->end))
            return found;
        at++;
    }
}

size_t bp_unit_patterns_match(const bp_unit_patterns *patterns, const char *name,
                              bp_unit_match matches[BP_MOST_UNIT_PATTERNS])
{
    size_t count = 0, from = 0;
    int outer = -1;
    while (count < BP_MOST_UNIT_PATTERNS && find_match(patterns, outer, name, from, &matches[count])) {
        outer = matches[count].pattern;
        from = matches[count].end + 1;
        count++;
    }
    return count;
}

int bp_compare_natural(const char *left, const char *right)
{
    const char *a = left, *b = right;
    while (*a != '\0' && *b != '\0') {
        if (!isdigit((unsigned char)*a) || !isdigit((unsigned char)*b)) {
            if (*a != *b)
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            a++;
            b++;
            continue;
        }
        a += strspn(a, "0");
        b += strspn(b, "0");
        size_t digits_a = strspn(a, "0123456789"), digits_b = strspn(b, "0123456789");
        if (digits_a != digits_b)
            return digits_a < digits_b ? -1 : 1;
        int order = memcmp(a, b, digits_a);
        if (order != 0)
            return order;
        a += digits_a;
        b += digits_b;
    }
    return *a != *b ? (*a == '\0' ? -1 : 1) : strcmp(left, right);
}
