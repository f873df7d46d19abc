/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the stand-in for cmocka: each of these must fail exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "cmocka.h"

#include <stdio.h>

static int setups, teardowns, beyond;
static char seven[] = "seven";

static int set_up(void **state)
{
    setups++;
    *state = seven;
    return 0;
}

static int tear_down(void **state)
{
    teardowns += *state == seven;
    return 0;
}

static int refuse(void **state)
{
    (void)state;
    return -1;
}

static void passes(void **state)
{
    (void)state;
    assert_true(2 > 1);
    assert_false(1 > 2);
    assert_null(NULL);
    assert_non_null(seven);
    assert_int_equal(-1, -1);
    assert_int_not_equal(1, 2);
    assert_ptr_equal(seven, seven);
    assert_ptr_not_equal(seven, NULL);
    assert_in_range(3, 3, 4);
    assert_not_in_range(5, 3, 4);
    assert_string_equal(seven, "seven");
    assert_string_not_equal(seven, "eight");
    assert_memory_equal(seven, "sevens", 5);
    assert_memory_not_equal(seven, "sever", 5);
}

#define FAILS(name, assertion)                                                                                         \
    static void name(void **state)                                                                                     \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        assertion;                                                                                                     \
        beyond++;                                                                                                      \
    }

FAILS(not_true, assert_true(1 > 2))
FAILS(not_false, assert_false(2 > 1))
FAILS(not_null, assert_null(seven))
FAILS(null, assert_non_null(NULL))
FAILS(not_equal, assert_int_equal(1, INT64_C(0x100000001)))
FAILS(equal, assert_int_not_equal(1, 1))
FAILS(other_pointer, assert_ptr_equal(seven, NULL))
FAILS(same_pointer, assert_ptr_not_equal(seven, seven))
FAILS(below, assert_in_range(2, 3, 4))
FAILS(within, assert_not_in_range(4, 3, 4))
FAILS(other_string, assert_string_equal(seven, "seven "))
FAILS(no_string, assert_string_equal(NULL, seven))
FAILS(same_string, assert_string_not_equal(seven, "seven"))
FAILS(other_bytes, assert_memory_equal(seven, "sever", 5))
FAILS(same_bytes, assert_memory_not_equal(seven, "sevens", 5))
FAILS(in_words, fail_msg("%d words", 2))
FAILS(skipped, skip())

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes),
        cmocka_unit_test_setup_teardown(passes, set_up, tear_down),
        cmocka_unit_test(not_true),
        cmocka_unit_test_setup_teardown(not_false, set_up, tear_down),
        cmocka_unit_test(not_null),
        cmocka_unit_test(null),
        cmocka_unit_test(not_equal),
        cmocka_unit_test(equal),
        cmocka_unit_test(other_pointer),
        cmocka_unit_test(same_pointer),
        cmocka_unit_test(below),
        cmocka_unit_test(within),
        cmocka_unit_test(other_string),
        cmocka_unit_test(no_string),
        cmocka_unit_test(same_string),
        cmocka_unit_test(other_bytes),
        cmocka_unit_test(same_bytes),
        cmocka_unit_test(in_words),
        cmocka_unit_test_setup_teardown(passes, refuse, NULL),
        cmocka_unit_test_setup_teardown(passes, NULL, refuse),
        cmocka_unit_test(skipped),
    };
    const struct CMUnitTest good[] = {cmocka_unit_test(passes), cmocka_unit_test(skipped)};
    const int expected[] = {18, 0, 1, 2, 3};
    const int got[] = {cmocka_run_group_tests(tests, NULL, NULL), cmocka_run_group_tests(good, NULL, NULL),
                       cmocka_run_group_tests(good, NULL, refuse), cmocka_run_group_tests(good, refuse, NULL),
                       (cmocka_set_test_filter("*_bytes*"), 1 + cmocka_run_group_tests(tests, NULL, NULL))};
    int wrong = setups != 2 || teardowns != 2 || beyond != 0;
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        wrong |= got[i] != expected[i];
    printf("%s: %d setups, %d teardowns, %d went on\n", wrong ? "WRONG" : "as it should be", setups, teardowns, beyond);
    return wrong;
}
