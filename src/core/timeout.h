/* Time-outs of collective status agreements: the configured value, a clock, and the error that names the missing ranks. Inline, because
 * the MPI library uses it too. */
#ifndef BP_CORE_TIMEOUT_H
#define BP_CORE_TIMEOUT_H

#include <bucketpool/comm.h>
#include <bucketpool/core/fail.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BP_TIMEOUT_VARIABLE "BUCKETPOOL_COMM_TIMEOUT"

/* Time-out in milliseconds; 0: none. `given` is the field of a configuration (comm.h). */
static inline bp_status bp_timeout_choose(uint32_t given, uint64_t *timeout_ms)
{
    const char *variable = secure_getenv(BP_TIMEOUT_VARIABLE);
    char *end = NULL;
    if (given != 0 || variable == NULL || variable[0] == '\0') {
        *timeout_ms = given == BP_COMM_NO_TIMEOUT ? 0 : given;
        return BP_OK;
    }
    errno = 0;
    const unsigned long seconds = strtoul(variable, &end, 10);
    if (variable[0] < '0' || variable[0] > '9' || *end != '\0' || errno != 0 || seconds > 1000000)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       BP_TIMEOUT_VARIABLE ": expected seconds in [0, 1000000] (0: no time-out), got \"%.32s\"",
                       variable);
    *timeout_ms = (uint64_t)seconds * 1000;
    return BP_OK;
}

/* A clock that fails (seccomp) stands still at 0. */
static inline uint64_t bp_clock_of(clockid_t clock)
{
    struct timespec now = {0};
    if (clock_gettime(clock, &now) != 0)
        return 0;
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Steps of the wall clock do not change it. */
static inline uint64_t bp_clock_ns(void)
{
    return bp_clock_of(CLOCK_MONOTONIC);
}

/* Also right where the sum that made the deadline has wrapped. */
static inline bool bp_is_past(uint64_t deadline_ns)
{
    return (int64_t)(bp_clock_ns() - deadline_ns) > 0;
}

/* A list of ranks for a message: "2, 5, 6". Only the first few are named. */
typedef struct bp_rank_list {
    char text[96];
    uint32_t count;
} bp_rank_list;

static inline void bp_rank_list_add(bp_rank_list *list, uint32_t rank)
{
    enum { SHOWN = 8 };
    const size_t at = strlen(list->text);
    if (list->count++ < SHOWN)
        snprintf(list->text + at, sizeof list->text - at, "%s%u", at > 0 ? ", " : "", rank);
    else if (list->count == SHOWN + 1)
        snprintf(list->text + at, sizeof list->text - at, " ...");
}

static inline bp_status bp_timeout_fail(const bp_rank_list *missing, uint32_t ranks, uint64_t timeout_ms)
{
    return bp_fail(BP_ERR_TIMEOUT,
                   "rank%s %s of %u%s not answered within %g s; look for a stopped, blocked or dead process there, "
                   "then end all ranks",
                   missing->count == 1 ? "" : "s", missing->text, ranks, missing->count == 1 ? " has" : " have",
                   (double)timeout_ms / 1000);
}

#endif
