/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for cmocka where it is not installed: the part of its interface that the tests here use, with its meaning. It allocates
 * nothing and takes no lock, so that tests which count such calls see only their own.
 *
 * A failed assertion ends its test by a jump back to the runner; on a thread that the runner did not start it ends the program. */
#ifndef BP_TEST_CMOCKA_H
#define BP_TEST_CMOCKA_H

#include <stddef.h>
#include <stdint.h>

typedef int (*CMFixtureFunction)(void **state);
typedef void (*CMUnitTestFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(function)                                                                                     \
    {                                                                                                                  \
#function, function, NULL, NULL, NULL                                                                          \
    }
#define cmocka_unit_test_setup_teardown(function, setup, teardown)                                                     \
    {                                                                                                                  \
#function, function, setup, teardown, NULL                                                                     \
    }
#define cmocka_unit_test_prestate(function, state)                                                                     \
    {                                                                                                                  \
#function, function, NULL, NULL, state                                                                         \
    }

/* Returns how many tests failed: 0 to 255, fit for an exit status. */
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof(tests)[0], setup, teardown)
int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                            CMFixtureFunction teardown);
/* Only tests whose names match, with '*' and '?'. */
void cmocka_set_test_filter(const char *pattern);

void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

void _fail(const char *file, int line) __attribute__((noreturn));
void _skip(const char *file, int line) __attribute__((noreturn));
void cm_fail_msg(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
#define fail() _fail(__FILE__, __LINE__)
#define skip() _skip(__FILE__, __LINE__)
#define fail_msg(...) cm_fail_msg(__FILE__, __LINE__, __VA_ARGS__)

void cm_true(uintmax_t value, const char *text, const char *file, int line);
void cm_equal(uintmax_t a, uintmax_t b, int equal, const char *text, const char *file, int line);
void cm_in_range(uintmax_t value, uintmax_t min, uintmax_t max, int within, const char *file, int line);
void cm_string(const char *a, const char *b, int equal, const char *file, int line);
void cm_memory(const void *a, const void *b, size_t bytes, int equal, const char *file, int line);

#define cm_number(value) ((uintmax_t)(value))
#define cm_pointer(value) ((uintmax_t)(uintptr_t)(value))
#define assert_true(c) cm_true(cm_number(c), #c, __FILE__, __LINE__)
#define assert_false(c) cm_true(!cm_number(c), "not " #c, __FILE__, __LINE__)
#define assert_null(p) cm_true(cm_pointer(p) == 0, #p " == NULL", __FILE__, __LINE__)
#define assert_non_null(p) cm_true(cm_pointer(p) != 0, #p " != NULL", __FILE__, __LINE__)
#define assert_int_equal(a, b) cm_equal(cm_number(a), cm_number(b), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) cm_equal(cm_number(a), cm_number(b), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_ptr_equal(a, b) cm_equal(cm_pointer(a), cm_pointer(b), 1, #a " == " #b, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b) cm_equal(cm_pointer(a), cm_pointer(b), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_in_range(value, min, max)                                                                               \
    cm_in_range(cm_number(value), cm_number(min), cm_number(max), 1, __FILE__, __LINE__)
#define assert_not_in_range(value, min, max)                                                                           \
    cm_in_range(cm_number(value), cm_number(min), cm_number(max), 0, __FILE__, __LINE__)
#define assert_string_equal(a, b) cm_string(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) cm_string(a, b, 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, bytes) cm_memory(a, b, bytes, 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, bytes) cm_memory(a, b, bytes, 0, __FILE__, __LINE__)

#endif
