/* SPDX-License-Identifier: Apache-2.0 */
/* Time as libraries measure it. */
#ifndef BP_CORE_CLOCK_H
#define BP_CORE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

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

#endif
