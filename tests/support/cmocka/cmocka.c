/* SPDX-License-Identifier: Apache-2.0 */
/* The runner and assertions of the stand-in for cmocka. */
#include "cmocka.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum outcome { PASSED = 1, FAILED, SKIPPED } outcome;

/* Target of a failed assertion's jump; set on the thread that runs tests. */
static _Thread_local jmp_buf *back;
static const char *filter;

void cmocka_set_test_filter(const char *pattern)
{
    filter = pattern;
}

void print_message(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

void print_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

/* ---- assertions ---------------------------------------------------------------------------------------------------- */

static void __attribute__((noreturn)) leave(outcome result)
{
    if (back == NULL)
        exit(255);
    longjmp(*back, (int)result);
}

void _fail(const char *file, int line)
{
    print_error("%s:%d: error: failed\n", file, line);
    leave(FAILED);
}

void _skip(const char *file, int line)
{
    (void)file, (void)line;
    leave(SKIPPED);
}

void cm_fail_msg(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    print_error("\n");
    _fail(file, line);
}

void cm_true(uintmax_t value, const char *text, const char *file, int line)
{
    if (value != 0)
        return;
    print_error("not true: %s\n", text);
    _fail(file, line);
}

void cm_equal(uintmax_t a, uintmax_t b, int equal, const char *text, const char *file, int line)
{
    if ((a == b) == equal)
        return;
    print_error("%s: %" PRIdMAX " (%#" PRIxMAX "), %" PRIdMAX " (%#" PRIxMAX ")\n", text, (intmax_t)a, a, (intmax_t)b,
                b);
    _fail(file, line);
}

void cm_in_range(uintmax_t value, uintmax_t min, uintmax_t max, int within, const char *file, int line)
{
    if ((value >= min && value <= max) == within)
        return;
    print_error("%" PRIuMAX " is %s %" PRIuMAX " to %" PRIuMAX "\n", value, within ? "not within" : "within", min, max);
    _fail(file, line);
}

void cm_string(const char *a, const char *b, int equal, const char *file, int line)
{
    if (a != NULL && b != NULL && (strcmp(a, b) == 0) == equal)
        return;
    print_error("\"%s\" %s \"%s\"\n", a == NULL ? "(null)" : a, equal ? "!=" : "==", b == NULL ? "(null)" : b);
    _fail(file, line);
}

void cm_memory(const void *a, const void *b, size_t bytes, int equal, const char *file, int line)
{
    const unsigned char *x = a, *y = b;
    if ((memcmp(a, b, bytes) == 0) == equal)
        return;
    if (!equal)
        print_error("%zu equal bytes\n", bytes);
    for (size_t i = 0, shown = 0; i < bytes && equal && shown < 16; i++) {
        if (x[i] != y[i]) {
            print_error("byte %zu: 0x%02x, 0x%02x\n", i, x[i], y[i]);
            shown++;
        }
    }
    _fail(file, line);
}

/* ---- the runner ---------------------------------------------------------------------------------------------------- */

/* Runs a test or, if that is NULL, a fixture. */
static outcome run(CMUnitTestFunction test, CMFixtureFunction fixture, void **state)
{
    jmp_buf here;
    volatile outcome result = PASSED;
    back = &here;
    int jumped = setjmp(here);
    if (jumped != 0)
        result = (outcome)jumped;
    else if (test != NULL)
        test(state);
    else if (fixture != NULL && fixture(state) != 0)
        result = FAILED;
    back = NULL;
    return result;
}

static outcome run_with_fixtures(const struct CMUnitTest *test, void *group_state)
{
    void *state = test->initial_state != NULL ? test->initial_state : group_state;
    outcome result = run(NULL, test->setup_func, &state);
    if (result == PASSED)
        result = run(test->test_func, NULL, &state);
    if (run(NULL, test->teardown_func, &state) != PASSED)
        result = FAILED;
    return result;
}

static int is_wanted(const struct CMUnitTest *test)
{
    return test->test_func != NULL && (filter == NULL || fnmatch(filter, test->name, 0) == 0);
}

int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                            CMFixtureFunction teardown)
{
    static const char *const words[] = {"", "      OK", " FAILED ", "SKIPPED "};
    size_t numbers[4] = {0};
    void *state = NULL;
    int ready = run(NULL, setup, &state) == PASSED;
    if (!ready)
        print_error("%s: the setup of the group failed\n", group);
    for (size_t i = 0; i < count; i++) {
        if (!is_wanted(&tests[i]))
            continue;
        print_message("[ RUN    ] %s\n", tests[i].name);
        outcome result = ready ? run_with_fixtures(&tests[i], state) : FAILED;
        numbers[result]++;
        print_message("[%s] %s\n", words[result], tests[i].name);
    }
    if (run(NULL, teardown, &state) != PASSED) {
        print_error("%s: the teardown of the group failed\n", group);
        numbers[FAILED]++;
    }
    numbers[FAILED] += !ready && numbers[FAILED] == 0;
    print_message("%s: %zu passed, %zu failed, %zu skipped\n", group, numbers[PASSED], numbers[FAILED],
                  numbers[SKIPPED]);
    return numbers[FAILED] < 255 ? (int)numbers[FAILED] : 255;
}
