/* SPDX-License-Identifier: Apache-2.0 */
#include "suite.h"

#include <stdlib.h>

static struct CMUnitTest *tests;
static size_t count;
static CMFixtureFunction begin_all, end_all, begin_each, end_each;

void suite_add(const struct CMUnitTest *test)
{
    tests = realloc(tests, (count + 1) * sizeof *tests);
    if (tests == NULL)
        abort();
    tests[count++] = *test;
}

void suite_within(CMFixtureFunction begin, CMFixtureFunction end)
{
    begin_all = begin;
    end_all = end;
}

void suite_each(CMFixtureFunction begin, CMFixtureFunction end)
{
    begin_each = begin;
    end_each = end;
}

int run_suite(void)
{
    for (size_t i = 0; i < count; i++) {
        if (tests[i].setup_func != NULL || tests[i].teardown_func != NULL)
            continue;
        tests[i].setup_func = begin_each;
        tests[i].teardown_func = end_each;
    }
    return _cmocka_run_group_tests("tests", tests, count, begin_all, end_all);
}
