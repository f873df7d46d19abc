/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run the same loop concurrently. */
#include "teams.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_TRIES 20

typedef struct member {
    team *team;
    pthread_t thread;
    void *user;
    double begin, end, processor_ns;
} member;

struct team {
    unsigned count;
    int beside; /* each has a separate processor */
    bench_loop *loop;
    size_t pairs; /* 0: the end */
    atomic_uint ready;
    pthread_barrier_t begin, end;
    member members[TEAM_MAX];
};

static double processor_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *work(void *argument)
{
    member *m = argument;
    team *t = m->team;
    for (;;) {
        pthread_barrier_wait(&t->begin);
        if (t->pairs == 0)
            return NULL;
        atomic_fetch_add(&t->ready, 1); /* threads wake up one by one: spins until all are awake */
        while (atomic_load(&t->ready) < t->count) {
            if (!t->beside)
                sched_yield();
        }
        double processor = processor_now_ns();
        m->begin = bench_now_ns();
        t->loop(m->user, t->pairs);
        m->end = bench_now_ns();
        m->processor_ns = processor_now_ns() - processor;
        pthread_barrier_wait(&t->end);
    }
}

team *team_create(unsigned threads, bench_loop *loop, void *const users[])
{
    cpu_set_t allowed;
    team *t = calloc(1, sizeof *t);
    if (t == NULL || threads > TEAM_MAX || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        exit(1);
    t->count = threads;
    t->loop = loop;
    t->beside = threads <= (unsigned)CPU_COUNT(&allowed);
    pthread_barrier_init(&t->begin, NULL, threads + 1);
    pthread_barrier_init(&t->end, NULL, threads + 1);
    for (unsigned i = 0, cpu = CPU_SETSIZE - 1; i < threads; i++) {
        cpu_set_t one;
        t->members[i] = (member){.team = t, .user = users[i]};
        if (pthread_create(&t->members[i].thread, NULL, work, &t->members[i]) != 0) {
            fprintf(stderr, "bench: a thread could not be started\n");
            exit(1);
        }
        do /* next processor of this process's affinity mask, cyclically */
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &allowed));
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(t->members[i].thread, sizeof one, &one);
    }
    return t;
}

void team_destroy(team *t)
{
    t->pairs = 0;
    pthread_barrier_wait(&t->begin);
    for (unsigned i = 0; i < t->count; i++)
        pthread_join(t->members[i].thread, NULL);
    pthread_barrier_destroy(&t->begin);
    pthread_barrier_destroy(&t->end);
    free(t);
}

/* From the first thread's first pair to the last thread's end. */
static double span_of(const team *t)
{
    double first = t->members[0].begin, last = t->members[0].end;
    for (unsigned i = 1; i < t->count; i++) {
        first = t->members[i].begin < first ? t->members[i].begin : first;
        last = t->members[i].end > last ? t->members[i].end : last;
    }
    return last - first;
}

/* Retries until all threads ran concurrently for nine tenths of the time, if each has a processor. */
static void run(team *t, size_t pairs)
{
    int beside = 0;
    t->pairs = pairs;
    for (int i = 0; !beside && i < MAX_TRIES; i++) {
        atomic_store(&t->ready, 0);
        pthread_barrier_wait(&t->begin);
        pthread_barrier_wait(&t->end);
        beside = 1;
        for (unsigned k = 0; t->beside && k < t->count; k++)
            beside = beside && t->members[k].processor_ns >= 0.9 * span_of(t);
    }
}

double team_run(void *user, size_t pairs)
{
    run(user, pairs);
    return span_of(user);
}

double team_run_processor(void *user, size_t pairs)
{
    team *t = user;
    double sum = 0;
    run(t, pairs);
    for (unsigned i = 0; i < t->count; i++)
        sum += t->members[i].processor_ns;
    return sum / t->count;
}
