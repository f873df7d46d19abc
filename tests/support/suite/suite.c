#include "suite.h"

#include <stdlib.h>

static struct CMUnitTest *tests;
static size_t count;
static CMFixtureFunction begin_all, end_all;

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

int run_suite(void)
{
    return _cmocka_run_group_tests("tests", tests, count, begin_all, end_all);
}
