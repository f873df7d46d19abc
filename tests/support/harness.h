/* cmocka, and tests that register themselves: TEST(name) { ... } for each, then TESTS(setup, teardown) of the program, which is its main. */
#ifndef BP_TEST_SUPPORT_HARNESS_H
#define BP_TEST_SUPPORT_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define HARNESS_TESTS 64

static struct CMUnitTest harness_tests[HARNESS_TESTS] __attribute__((unused));
static size_t harness_count __attribute__((unused));

/* Runs before main, in the order of the file. */
__attribute__((unused)) static void harness_add(const char *name, CMUnitTestFunction test)
{
    if (harness_count < HARNESS_TESTS)
        harness_tests[harness_count] = (struct CMUnitTest){.name = name, .test_func = test};
    harness_count++;
}

/* `begin` and `end` surround each test, `setup` and `teardown` all of them; each may be NULL. */
__attribute__((unused)) static int run_registered(CMFixtureFunction begin, CMFixtureFunction end,
                                                  CMFixtureFunction setup, CMFixtureFunction teardown)
{
    if (harness_count > HARNESS_TESTS)
        return 1;
    for (size_t i = 0; i < harness_count; i++) {
        harness_tests[i].setup_func = begin;
        harness_tests[i].teardown_func = end;
    }
    return _cmocka_run_group_tests("tests", harness_tests, harness_count, setup, teardown);
}

#define TEST(test)                                                                                                     \
    static void test(void **state);                                                                                    \
    __attribute__((constructor)) static void add_##test(void)                                                          \
    {                                                                                                                  \
        harness_add(#test, test);                                                                                      \
    }                                                                                                                  \
    static void test(__attribute__((unused)) void **state)

#define TESTS_EACH(begin, end, setup, teardown)                                                                        \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return run_registered(begin, end, setup, teardown);                                                            \
    }
#define TESTS(setup, teardown) TESTS_EACH(NULL, NULL, setup, teardown)

#endif
