/* SPDX-License-Identifier: Apache-2.0 */
#include "scripted_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void barrier_init(barrier *m, uint32_t ranks)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->turned, NULL);
    m->ranks = ranks;
}

/* Waits for all ranks; false after 10 seconds. An exchange waits twice: until all have written, and until all have read. */
static bool barrier_wait(barrier *m)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    uint64_t turn = m->turn;
    if (++m->arrived == m->ranks) {
        m->arrived = 0;
        m->turn++;
        pthread_cond_broadcast(&m->turned);
        return true;
    }
    while (m->turn == turn)
        if (pthread_cond_timedwait(&m->turned, &m->lock, &end) == ETIMEDOUT && m->turn == turn)
            return false;
    return true;
}

static bp_status exchange(void *self, const void *mine, uint64_t bytes, void *all)
{
    rank *r = self;
    barrier *m = r->at;
    if (++r->exchanges == r->exchange_fails_at)
        return bp_error_record(r->exchange_fails_with != BP_OK ? r->exchange_fails_with : BP_ERR_COMM,
                               "the exchange was cut");
    pthread_mutex_lock(&m->lock);
    if (m->arrived == 0)
        m->bytes = bytes;
    m->uneven = m->uneven || m->bytes != bytes || bytes > sizeof m->slots[0];
    memcpy(m->slots[r->number], mine, bytes <= sizeof m->slots[0] ? bytes : sizeof m->slots[0]);
    bool good = barrier_wait(m);
    for (uint32_t i = 0; i < m->ranks && good; i++)
        memcpy((uint8_t *)all + i * bytes, m->slots[i], bytes);
    m->met += r->number == 0;
    good = good && barrier_wait(m);
    pthread_mutex_unlock(&m->lock);
    return good ? BP_OK : bp_error_record(BP_ERR_COMM, "nobody came");
}

static void destroy(void *self)
{
    rank *r = self;
    r->wrong += r->destroyed;
    r->destroyed = true;
}

static bp_status traits(void *self, bp_comm_traits *traits)
{
    const rank *r = self;
    *traits = (bp_comm_traits){.size = sizeof *traits,
                               .rank = r->number,
                               .ranks = r->at->ranks,
                               .best = r->best,
                               .lacks = r->lacks,
                               .version = r->version,
                               .version_name = "scripted 1"};
    return BP_OK;
}

static bp_status register_memory(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                                 const char **because)
{
    rank *r = self;
    if (kind >= BP_REGISTER_WINDOW) {
        pthread_mutex_lock(&r->joint->lock);
        bool all = barrier_wait(r->joint);
        pthread_mutex_unlock(&r->joint->lock);
        if (!all)
            return bp_error_record(BP_ERR_INTERNAL, "a window was registered by some ranks only");
    }
    if (++r->registrations == r->fail_at)
        return bp_error_record(BP_ERR_COMM, "out of window slots");
    if ((r->refused & 1u << kind) != 0) {
        snprintf(r->because, sizeof r->because, "no room for a %s", bp_register_kind_name(kind));
        *because = r->because;
        *handle = NULL;
        return BP_OK;
    }
    for (size_t i = 0; i < r->logged; i++)
        r->wrong += r->log[i].live && (uint8_t *)r->log[i].address < (uint8_t *)address + bytes &&
                    (uint8_t *)address < (uint8_t *)r->log[i].address + r->log[i].bytes;
    if (r->logged == MAX_LOGGED)
        return bp_error_record(BP_ERR_INTERNAL, "the log is full");
    r->log[r->logged] = (registered){address, bytes, kind, true};
    *handle = &r->log[r->logged++];
    return BP_OK;
}

static bp_status deregister_memory(void *self, bp_register_kind kind, void *handle)
{
    rank *r = self;
    registered *window = handle;
    r->wrong += !window->live || window->kind != kind || r->aborted;
    window->live = false;
    r->ended[r->deregistrations++] = (int)(window - r->log);
    return BP_OK;
}

static void warnings(void *self, bp_register_kind kind, uint32_t traffic,
                     void (*tell)(void *user, const char *sentence), void *user)
{
    (void)self;
    if (kind == BP_REGISTER_SYMMETRIC && (traffic & BP_TRAFFIC_FLOAT_AVG) != 0)
        tell(user, "averages are slow");
}

static bp_status abort_rank(void *self)
{
    rank *r = self;
    r->aborted = true;
    return BP_OK;
}

const bp_comm_ops RANK_OPS = {.size = sizeof RANK_OPS,
                              .name = "scripted",
                              .destroy = destroy,
                              .traits = traits,
                              .exchange = exchange,
                              .register_memory = register_memory,
                              .deregister_memory = deregister_memory,
                              .warnings = warnings,
                              .abort = abort_rank};

size_t live_windows(const rank *r)
{
    size_t live = 0;
    for (size_t i = 0; i < r->logged; i++)
        live += r->log[i].live;
    return live;
}

typedef struct job {
    void (*work)(void *user, uint32_t rank);
    void *user;
    uint32_t rank;
} job;

static void *run(void *argument)
{
    const job *j = argument;
    j->work(j->user, j->rank);
    return NULL;
}

void run_ranks(uint32_t count, void (*work)(void *user, uint32_t rank), void *user)
{
    pthread_t threads[MAX_RANKS];
    job jobs[MAX_RANKS];
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = (job){work, user, i};
        pthread_create(&threads[i], NULL, run, &jobs[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}
