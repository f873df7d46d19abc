/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of a test program. They register themselves and run in the order of the file:
 *
 *     TEST(name)
 *     {
 *         assert_true(...);
 *     }
 *
 * suite_main.c runs them, unless the file has a main, which calls run_suite. The headers are those that nearly every
 * test needs. */
#ifndef BP_TEST_SUITE_H
#define BP_TEST_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) TEST_WITHIN(name, NULL, NULL)
/* With a fixture. */
#define TEST_WITHIN(name, begin, end)                                                                                  \
    static void test_##name(void **);                                                                                  \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        suite_add(&(struct CMUnitTest){#name, test_##name, begin, end, NULL});                                         \
    }                                                                                                                  \
    static void test_##name(void **state)

/* The fixture of the whole program. */
#define SUITE_WITHIN(begin, end)                                                                                       \
    __attribute__((constructor)) static void add_fixture(void)                                                         \
    {                                                                                                                  \
        suite_within(begin, end);                                                                                      \
    }

void suite_add(const struct CMUnitTest *test);
void suite_within(CMFixtureFunction begin, CMFixtureFunction end);
/* The fixture of each test without one. */
void suite_each(CMFixtureFunction begin, CMFixtureFunction end);
/* The number of failed cases, fit for an exit status. */
int run_suite(void);

#endif
