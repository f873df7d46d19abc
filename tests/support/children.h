/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children of a test. They run a function and exit without cmocka, whose failure would run the parent's
 * remaining tests. */
#ifndef BP_TEST_CHILDREN_H
#define BP_TEST_CHILDREN_H

#include <bucketpool/status.h>

#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a child: exits with failure unless the condition holds. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: in a forked child: %s (last error: %s)\n", __FILE__, __LINE__, #condition,         \
                    bp_error_detail());                                                                                \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* The wait status of a child that runs the function. SIGALRM ends a child that hangs. */
static inline int status_of_child(void (*function)(void *), void *argument)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        function(argument);
        _exit(0);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

/* In a child: the call must be refused with a detail that names both processes. */
#define must_refuse(call)                                                                                              \
    do {                                                                                                               \
        char words_[64];                                                                                               \
        bp_error_record(BP_OK, "");                                                                                    \
        must((call) == BP_ERR_INVALID_ARGUMENT);                                                                       \
        snprintf(words_, sizeof words_, "process %ld and is used in its forked child %ld", (long)getppid(),            \
                 (long)getpid());                                                                                      \
        must(strstr(bp_error_detail(), words_) != NULL);                                                               \
    } while (0)

#endif
