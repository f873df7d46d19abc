/* cmocka, assertions on statuses, and tests that register themselves: TEST(name) { ... } for each, then TESTS(setup, teardown) of the
 * program, which is its main. */
#ifndef BP_TEST_SUPPORT_HARNESS_H
#define BP_TEST_SUPPORT_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/status.h>

#include <string.h>

#define HARNESS_TESTS 64

static struct CMUnitTest harness_tests[HARNESS_TESTS] __attribute__((unused));
static size_t harness_count __attribute__((unused));

/* Runs before main, in the order of the file. */
__attribute__((unused)) static void harness_add(const char *name, CMUnitTestFunction test, CMFixtureFunction begin,
                                                CMFixtureFunction end)
{
    if (harness_count < HARNESS_TESTS)
        harness_tests[harness_count] = (struct CMUnitTest){name, test, begin, end, NULL};
    harness_count++;
}

/* `begin` and `end` surround each test without other fixtures, `setup` and `teardown` all of them; each may be NULL. */
__attribute__((unused)) static int run_registered(CMFixtureFunction begin, CMFixtureFunction end,
                                                  CMFixtureFunction setup, CMFixtureFunction teardown)
{
    if (harness_count > HARNESS_TESTS)
        return 1;
    for (size_t i = 0; i < harness_count; i++) {
        if (harness_tests[i].setup_func != NULL || harness_tests[i].teardown_func != NULL)
            continue;
        harness_tests[i].setup_func = begin;
        harness_tests[i].teardown_func = end;
    }
    return _cmocka_run_group_tests("tests", harness_tests, harness_count, setup, teardown);
}

#define TEST_WITH(test, begin, end)                                                                                    \
    static void test(void **state);                                                                                    \
    __attribute__((constructor)) static void add_##test(void)                                                          \
    {                                                                                                                  \
        harness_add(#test, test, begin, end);                                                                          \
    }                                                                                                                  \
    static void test(__attribute__((unused)) void **state)
#define TEST(test) TEST_WITH(test, NULL, NULL)

#define TESTS_EACH(begin, end, setup, teardown)                                                                        \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return run_registered(begin, end, setup, teardown);                                                            \
    }
#define TESTS(setup, teardown) TESTS_EACH(NULL, NULL, setup, teardown)

/* SCOPED(bp_plan_destroy) bp_plan *plan = NULL: destroyed at the end of its block, after what is declared later. */
#define SCOPED(end) __attribute__((cleanup(end)))

#define assert_ok(status) check_ok(status, #status, __FILE__, __LINE__)
#define assert_fails(status, expected, ...)                                                                            \
    check_failure(status, expected, (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

static inline void check_ok(bp_status status, const char *call, const char *file, int line)
{
    if (status == BP_OK)
        return;
    print_error("%s\n%s: %s\n", call, bp_status_name(status), bp_error_detail());
    _fail(file, line);
}

/* Asserts the status, and that the detail contains `words` and no control characters. */
static inline void check_failure(bp_status status, bp_status expected, const char *const *words, const char *file,
                                 int line)
{
    if (status != expected) {
        print_error("status \"%s\", expected \"%s\": %s\n", bp_status_name(status), bp_status_name(expected),
                    bp_error_detail());
        _fail(file, line);
    }
    for (; *words != NULL; words++) {
        if (strstr(bp_error_detail(), *words) == NULL) {
            print_error("\"%s\" is not in: %s\n", *words, bp_error_detail());
            _fail(file, line);
        }
    }
    for (const char *at = bp_error_detail(); *at != '\0'; at++)
        assert_false((unsigned char)*at < 0x20);
}

#endif
