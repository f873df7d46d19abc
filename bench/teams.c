/* Threads that do the same at once. */
#include "teams.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST_TRIES 20

typedef struct member {
    team *team;
    pthread_t thread;
    void *user;
    double begin, end, processor_ns;
} member;

struct team {
    unsigned count;
    int beside; /* each has a processor of its own */
    bench_loop *loop;
    size_t pairs; /* 0: the end */
    atomic_uint ready;
    pthread_barrier_t begin, end;
    member members[TEAM_MOST];
};

static double processor_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Sleepers wake one after the other: who is awake waits for the rest. */
static void start_together(team *t)
{
    pthread_barrier_wait(&t->begin);
    if (t->pairs == 0)
        return;
    atomic_fetch_add(&t->ready, 1);
    while (atomic_load(&t->ready) < t->count) {
        if (!t->beside)
            sched_yield();
    }
}

static void *work(void *argument)
{
    member *m = argument;
    team *t = m->team;
    for (;;) {
        start_together(t);
        if (t->pairs == 0)
            return NULL;
        double processor = processor_now_ns();
        m->begin = bench_now_ns();
        t->loop(m->user, t->pairs);
        m->end = bench_now_ns();
        m->processor_ns = processor_now_ns() - processor;
        pthread_barrier_wait(&t->end);
    }
}

/* The n-th processor that this process may use. */
static void pin(pthread_t thread, unsigned n, const cpu_set_t *allowed)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed) || n-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
}

team *team_create(unsigned threads, bench_loop *loop, void *const users[])
{
    cpu_set_t allowed;
    team *t = calloc(1, sizeof *t);
    if (t == NULL || threads > TEAM_MOST || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        exit(1);
    t->count = threads;
    t->loop = loop;
    const unsigned processors = (unsigned)CPU_COUNT(&allowed);
    t->beside = threads <= processors;
    pthread_barrier_init(&t->begin, NULL, threads + 1);
    pthread_barrier_init(&t->end, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        t->members[i] = (member){.team = t, .user = users[i]};
        if (pthread_create(&t->members[i].thread, NULL, work, &t->members[i]) != 0) {
            fprintf(stderr, "bench: no thread\n");
            exit(1);
        }
        pin(t->members[i].thread, i % processors, &allowed);
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

/* From the first pair of any thread to the last of all. */
static double span_of(const team *t)
{
    double first = t->members[0].begin, last = t->members[0].end;
    for (unsigned i = 1; i < t->count; i++) {
        first = t->members[i].begin < first ? t->members[i].begin : first;
        last = t->members[i].end > last ? t->members[i].end : last;
    }
    return last - first;
}

/* Whether every thread was at work for nine tenths of the time. */
static int ran_beside(const team *t)
{
    for (unsigned i = 0; i < t->count; i++) {
        if (t->members[i].processor_ns < 0.9 * span_of(t))
            return 0;
    }
    return 1;
}

static void run(team *t, size_t pairs)
{
    t->pairs = pairs;
    for (int i = 0; i < MOST_TRIES; i++) {
        atomic_store(&t->ready, 0);
        pthread_barrier_wait(&t->begin);
        pthread_barrier_wait(&t->end);
        if (!t->beside || ran_beside(t))
            return;
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
