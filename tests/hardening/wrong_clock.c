/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into the command: clocks that jump, stand still, fail, or are about to overflow. WRONG_CLOCK=MODE. */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { HOUR = 3600 };

static const char *mode(void)
{
    const char *text = getenv("WRONG_CLOCK");
    return text != NULL ? text : "";
}

/* The wall clock jumps an hour forth and back, at each reading. */
static int64_t jump(void)
{
    static atomic_uint readings;
    return strcmp(mode(), "jumps") == 0 ? (int64_t)(atomic_fetch_add(&readings, 1) % 3) * HOUR - HOUR : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (strcmp(mode(), "fails") == 0) {
        errno = EPERM;
        return -1;
    }
    const long status = syscall(SYS_clock_gettime, clock, now);
    if (strcmp(mode(), "still") == 0)
        *now = (struct timespec){.tv_sec = 5};
    if (strcmp(mode(), "late") == 0) /* 64 bits of nanoseconds end during the first minute */
        now->tv_sec = now->tv_sec % 30 + INT64_C(18446744070);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)jump();
    return (int)status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec time = {0};
    (void)zone;
    const int status = clock_gettime(CLOCK_REALTIME, &time);
    *now = (struct timeval){.tv_sec = time.tv_sec, .tv_usec = time.tv_nsec / 1000};
    return status;
}

time_t time(time_t *now)
{
    struct timespec present = {0};
    const time_t seconds = clock_gettime(CLOCK_REALTIME, &present) == 0 ? present.tv_sec : (time_t)-1;
    if (now != NULL)
        *now = seconds;
    return seconds;
}
