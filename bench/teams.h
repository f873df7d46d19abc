/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run the same loop concurrently; a window of a team is one window of each thread. */
#ifndef BENCH_TEAMS_H
#define BENCH_TEAMS_H

#include "measure.h"

#define TEAM_MAX 4u

typedef struct team team;

/* A team of threads that run `loop`, each with its `users` entry. */
team *team_create(unsigned threads, bench_loop *loop, void *const users[]);
void team_destroy(team *t);

/* bench_run functions over a team: the time from the first thread's first pair to the last thread's end, or the mean processor time of a
 * thread. Threads are pinned to separate processors if there are enough; a window in which they did not run concurrently is repeated a few
 * times. On a shared machine the minimum may still come from threads that ran in sequence: use the median. */
double team_run(void *user, size_t pairs);
double team_run_processor(void *user, size_t pairs);

#endif
