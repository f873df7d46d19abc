/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of ranks. A missing rank is reported after a time-out instead of a deadlock. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "state.h"

static const char *name_of(meeting_kind kind)
{
    static const char *const names[] = {"", "ncclCommInitRank", "ncclCommWindowRegister", "a collective"};
    return names[kind];
}

static meeting *meeting_of(clique *of, meeting_kind kind, uint64_t number, uint64_t run)
{
    for (meeting *m = of->meetings; m != NULL; m = m->next)
        if (m->kind == kind && m->number == number && m->run == run)
            return m;
    meeting *m = calloc(1, sizeof *m);
    if (m == NULL)
        abort();
    *m = (meeting){.next = of->meetings, .kind = kind, .number = number, .run = run};
    of->meetings = m;
    return m;
}

static void end_meeting(clique *of, meeting *m)
{
    meeting **at = &of->meetings;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    free(m);
}

void end_meetings(clique *of)
{
    while (of->meetings != NULL)
        end_meeting(of, of->meetings);
}

static struct timespec in_ms(int ms)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += (long)(ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static void report_missing(const communicator *comm, const meeting *m)
{
    char ranks[96] = "";
    size_t length = 0;
    for (int i = 0; i < comm->clique->ranks && length < sizeof ranks; i++)
        if (!m->came[i])
            length += (size_t)snprintf(ranks + length, sizeof ranks - length, " %d", i);
    broke(rule_all_ranks_come, "%s, number %llu: rank %d waits for%s", name_of(m->kind), (unsigned long long)m->number,
          comm->rank, ranks);
}

/* Waits until `count` is the number of ranks. False: the rendezvous failed, or this rank was aborted. */
static bool await(communicator *comm, meeting *m, const unsigned *count)
{
    struct timespec until = in_ms(fake.set.watchdog_ms);
    while (*count < (unsigned)comm->clique->ranks && !m->failed && !comm->aborted)
        if (pthread_cond_timedwait(&fake.changed, &fake.lock, &until) == ETIMEDOUT && !m->failed && !comm->aborted) {
            report_missing(comm, m);
            m->failed = true;
            pthread_cond_broadcast(&fake.changed);
        }
    return !m->failed && !comm->aborted;
}

int meet(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run, const void *brought, meeting **met)
{
    meeting *m = meeting_of(comm->clique, kind, number, run);
    m->came[comm->rank] = true;
    m->brought[comm->rank] = brought;
    m->here++;
    pthread_cond_broadcast(&fake.changed);
    if (!await(comm, m, &m->here))
        return fail(comm, NCCL_REMOTE_ERROR, "%s: not every rank came", name_of(kind));
    *met = m;
    return NCCL_SUCCESS;
}

void part(communicator *comm, meeting *met)
{
    unsigned ranks = (unsigned)comm->clique->ranks;
    if (++met->gone == ranks)
        pthread_cond_broadcast(&fake.changed);
    if (await(comm, met, &met->gone) && ++met->seen == ranks)
        end_meeting(comm->clique, met);
}

void stay_away(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run)
{
    meeting *m = meeting_of(comm->clique, kind, number, run);
    unsigned ranks = (unsigned)comm->clique->ranks;
    m->came[comm->rank] = true;
    m->here++;
    m->gone++;
    m->seen++;
    pthread_cond_broadcast(&fake.changed);
    if (m->gone == ranks) /* every rank has left */
        end_meeting(comm->clique, m);
}
