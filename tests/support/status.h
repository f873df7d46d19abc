/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with its headers, and assertions on statuses. */
#ifndef BP_TEST_SUPPORT_STATUS_H
#define BP_TEST_SUPPORT_STATUS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/status.h>

#include <string.h>

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
