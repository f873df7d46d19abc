/* A line on a terminal that says how far a run is, and is gone at its end. Nothing where standard error is no terminal. */
#ifndef TOOLS_PROGRESS_H
#define TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *what; /* is counted: "step" */
    uint64_t total;
    double started, shown; /* seconds; shown 0: not yet */
    bool active;
} progress;

void progress_init(progress *p, const char *what, uint64_t total);
/* Cheap: draws ten times a second at most, and not at all in the first half second. */
void progress_show(progress *p, uint64_t done);
/* Takes the line away, for a message or at the end. */
void progress_erase(progress *p);

#endif
