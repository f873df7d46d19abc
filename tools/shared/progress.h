/* SPDX-License-Identifier: Apache-2.0 */
/* Progress on standard error: on a terminal one line, cut to its width and erased at the end; elsewhere a line every
 * 5 seconds. BUCKETPOOL_PROGRESS=SECONDS changes the interval of these lines; 0 turns them off. */
#ifndef TOOLS_SHARED_PROGRESS_H
#define TOOLS_SHARED_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Writes the result so far, such as ", best 12"; called by another thread. */
enum { PROGRESS_DETAIL_CHARS = 96 };
typedef void progress_detail(const void *user, char text[PROGRESS_DETAIL_CHARS]);

typedef struct progress {
    const char *what;             /* noun of the counted things: "step" */
    uint64_t total;               /* 0: unknown, see progress_watch */
    double started, shown, every; /* seconds; `shown` 0: not yet; `every` 0: never shown */
    bool terminal;
    pthread_t watcher;
    pthread_mutex_t mutex;
    pthread_cond_t ends;
    bool watched, ended;
    progress_detail *detail; /* NULL: none */
    const void *user;
} progress;

void progress_init(progress *p, const char *what, uint64_t total);
/* Prints only when the interval has passed, so callers may call it for each item. */
void progress_show(progress *p, uint64_t done);
/* Erases the line, before a message or at the end. */
void progress_erase(progress *p);

/* For a call without progress reports: a thread shows "<what><detail>, 0:15 so far" until progress_unwatch. `what` and `user` must stay
 * valid until then. */
void progress_watch(progress *p, const char *what, progress_detail *detail, const void *user);
void progress_unwatch(progress *p);

#endif
