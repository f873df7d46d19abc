/* Tests that register themselves (suite.h), assertions on statuses, and TESTS(setup, teardown): the main of a program with fixtures. */
#ifndef BP_TEST_SUPPORT_HARNESS_H
#define BP_TEST_SUPPORT_HARNESS_H

#include <bucketpool/status.h>

#include "suite/suite.h"

/* `begin` and `end` surround each test that has no fixture, `setup` and `teardown` all of them; each may be NULL. */
static inline int run_registered(CMFixtureFunction begin, CMFixtureFunction end, CMFixtureFunction setup,
                                 CMFixtureFunction teardown)
{
    suite_each(begin, end);
    suite_within(setup, teardown);
    return run_suite();
}

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
