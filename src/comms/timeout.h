/* SPDX-License-Identifier: Apache-2.0 */
/* Time-outs of collective status agreements: the configured value, and the error that names the missing ranks. Inline, because
 * the MPI library uses it too. */
#ifndef BP_COMMS_TIMEOUT_H
#define BP_COMMS_TIMEOUT_H

#include <bucketpool/comm.h>
#include <bucketpool/core/fail.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
