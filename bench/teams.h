/* Threads that do the same at once: one window of a team is one of each of its threads. */
#ifndef BENCH_TEAMS_H
#define BENCH_TEAMS_H

#include "measure.h"

#define TEAM_MOST 4u

typedef struct team team;

/* Of threads that run `loop`, each with its own `users` entry. */
team *team_create(unsigned threads, bench_loop *loop, void *const users[]);
void team_destroy(team *t);

/* bench_runs; user is a team. The time from the first pair of any thread to the last of all, or the mean processor time of a thread.
 * Threads have processors of their own as far as there are enough; then a window in which they did not run beside each other is
 * measured again, some times. Where others use the machine the least figure may still be of threads that ran in turn: see the median. */
double team_run(void *user, size_t pairs);
double team_run_processor(void *user, size_t pairs);

#endif
