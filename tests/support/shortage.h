/* SPDX-License-Identifier: Apache-2.0 */
/* Counts allocations of the calling thread, or fails one of them. Programs are linked with shortage.c and -Wl,--wrap
 * for each function there. */
#ifndef BP_TEST_SUPPORT_SHORTAGE_H
#define BP_TEST_SUPPORT_SHORTAGE_H

#include <stdbool.h>

#include "status.h"

typedef struct allocation_shortage {
    bool counts;
    unsigned long allocations; /* number since counting began */
    unsigned fails;            /* 0: none fails; n: the nth from now on fails */
    bool keeps, failed;        /* all later ones fail as well; one has failed */
    unsigned long failures;    /* since the program began */
} allocation_shortage;

extern _Thread_local allocation_shortage shortage;

/* ---- each allocation of a call in turn, alone and with all later ones, until the call meets none ------------------- */

/* nth: 1, 2 .. */
static inline void begin_shortage(unsigned nth)
{
    shortage.failed = false;
    shortage.keeps = nth % 2 == 0;
    shortage.fails = (nth + 1) / 2;
}

/* True if an allocation has failed since begin_shortage. Asserts the status of the call that met it. */
static inline bool met_shortage(bp_status status, const char *call, int line)
{
    const bool failed = shortage.failed;
    shortage.failed = false;
    shortage.fails = 0;
    if (status != (failed ? BP_ERR_NO_HOST_MEMORY : BP_OK))
        fail_msg("%d: %s: an allocation %s, status \"%s\": %s", line, call, failed ? "failed" : "did not fail",
                 bp_status_name(status), bp_error_detail());
    return failed;
}
#define MET_SHORTAGE(call) met_shortage((call), #call, __LINE__)

#define FAIL_EACH(call)                                                                                                \
    for (unsigned nth = 1; begin_shortage(nth), MET_SHORTAGE(call); nth++)                                             \
    continue

/* The same for a call that creates `out`, which must not change on failure. */
#define FAIL_EACH_OUT(out, call)                                                                                       \
    do {                                                                                                               \
        bool failed = true;                                                                                            \
        for (unsigned nth = 1; failed; nth++) {                                                                        \
            (out) = (void *)&failed;                                                                                   \
            begin_shortage(nth);                                                                                       \
            failed = MET_SHORTAGE(call);                                                                               \
            assert_int_equal((void *)(out) == (void *)&failed, failed);                                                \
        }                                                                                                              \
    } while (0)

#endif
