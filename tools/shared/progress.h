/* Progress on standard error: on a terminal one line, cut to its width and erased in the end, elsewhere a line every few seconds.
 * BUCKETPOOL_PROGRESS=SECONDS sets how often lines are printed where there is no terminal; 0: never. */
#ifndef TOOLS_SHARED_PROGRESS_H
#define TOOLS_SHARED_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *what;             /* is counted: "step" */
    uint64_t total;               /* 0: nothing is counted, see progress_watch */
    double started, shown, every; /* seconds; shown 0: not yet; every 0: never */
    bool terminal;
    pthread_t watcher;
    pthread_mutex_t mutex;
    pthread_cond_t ends;
    bool watched, ended;
} progress;

void progress_init(progress *p, const char *what, uint64_t total);
/* Cheap: shows only when it is time for it. */
void progress_show(progress *p, uint64_t done);
/* Takes the line away, for a message or at the end. */
void progress_erase(progress *p);

/* For a call that does not report back: a thread shows "<what>, 0:15 so far" until progress_unwatch. `what` stays alive till then. */
void progress_watch(progress *p, const char *what);
void progress_unwatch(progress *p);

#endif
