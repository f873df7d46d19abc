/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, faults and the reset. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define MAX_FUNCTIONS 32

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 23007
#endif

static const settings DEFAULTS = {FAKE_NCCL_VERSION, 0, 0, 1, UINT64_C(64) << 30, 20000};

fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct {
    pthread_mutex_t lock; /* innermost lock; no function is called under it */
    struct {
        const char *name;
        unsigned calls;
    } functions[MAX_FUNCTIONS];
    unsigned calls;
    char fails[48];
    unsigned fails_nth;
    int fails_rank, fails_result;
    bool has_failed;
    int refused_rank, refused_nth;
} control = {.lock = PTHREAD_MUTEX_INITIALIZER, .refused_nth = -1};

void fake_lock(void)
{
    pthread_mutex_lock(&fake.lock);
    if (fake.set.version != 0)
        return;
    fake.set = DEFAULTS;
    const char *text = getenv("FAKE_NCCL");
    pthread_mutex_unlock(&fake.lock);
    if (text != NULL)
        fake_nccl_set(text);
    pthread_mutex_lock(&fake.lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

/* ---- settings ------------------------------------------------------------------------------------------------------ */

static int set_one(const char *name, size_t length, long long value)
{
    int *const numbers[] = {&fake.set.version, &fake.set.share_gpu, &fake.set.same_process, &fake.set.symmetric,
                            &fake.set.watchdog_ms};
    static const char *const names[] = {"version", "share_gpu", "same_process", "symmetric", "watchdog_ms"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) {
            *numbers[i] = (int)value;
            return 0;
        }
    if (length != strlen("space_mib") || strncmp("space_mib", name, length) != 0)
        return -1;
    fake.set.space_bytes = (uint64_t)value << 20;
    return 0;
}

int fake_nccl_set(const char *text)
{
    fake_lock();
    int result = 0;
    while (*text != '\0' && result == 0) {
        const char *equals = strchr(text, '=');
        char *end = NULL;
        long long value = equals == NULL ? 0 : strtoll(equals + 1, &end, 10);
        if (equals == NULL || end == equals + 1 || (*end != ',' && *end != '\0'))
            result = -1;
        else
            result = set_one(text, (size_t)(equals - text), value);
        if (result == 0)
            text = end + (*end == ',');
    }
    fake_unlock();
    return result;
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

void fake_nccl_fail(const char *function, unsigned nth, int rank, int result)
{
    pthread_mutex_lock(&control.lock);
    snprintf(control.fails, sizeof control.fails, "%s", function == NULL ? "" : function);
    control.fails_nth = nth;
    control.fails_rank = rank;
    control.fails_result = result;
    control.has_failed = false;
    pthread_mutex_unlock(&control.lock);
}

int fake_nccl_failed(void)
{
    pthread_mutex_lock(&control.lock);
    int failed = control.has_failed;
    control.fails_nth = 0;
    pthread_mutex_unlock(&control.lock);
    return failed;
}

static void count_call(const char *function)
{
    control.calls++;
    size_t i = 0;
    while (i < MAX_FUNCTIONS - 1 && control.functions[i].name != NULL &&
           strcmp(control.functions[i].name, function) != 0)
        i++;
    control.functions[i].name = function;
    control.functions[i].calls++;
}

int enter(const char *function, const communicator *comm)
{
    pthread_mutex_lock(&control.lock);
    count_call(function);
    bool meant = control.fails_nth > 0 && (control.fails[0] == '\0' || strcmp(control.fails, function) == 0) &&
                 (control.fails_rank < 0 || (comm != NULL && comm->rank == control.fails_rank));
    int result = NCCL_SUCCESS;
    if (meant && --control.fails_nth == 0) {
        control.has_failed = true;
        result = control.fails_result;
    }
    pthread_mutex_unlock(&control.lock);
    return result;
}

unsigned fake_nccl_calls(const char *function)
{
    pthread_mutex_lock(&control.lock);
    unsigned calls = function == NULL ? control.calls : 0;
    for (size_t i = 0; function != NULL && i < MAX_FUNCTIONS && control.functions[i].name != NULL; i++)
        if (strcmp(control.functions[i].name, function) == 0)
            calls = control.functions[i].calls;
    pthread_mutex_unlock(&control.lock);
    return calls;
}

void fake_nccl_refuse_window(int rank, int nth)
{
    pthread_mutex_lock(&control.lock);
    control.refused_rank = rank;
    control.refused_nth = nth;
    pthread_mutex_unlock(&control.lock);
}

bool is_window_refused(int rank)
{
    pthread_mutex_lock(&control.lock);
    bool meant = control.refused_nth >= 0 && (control.refused_rank < 0 || control.refused_rank == rank);
    bool refused = meant && control.refused_nth == 0;
    if (meant && control.refused_nth > 0 && --control.refused_nth == 0) {
        refused = true;
        control.refused_nth = -1;
    }
    pthread_mutex_unlock(&control.lock);
    return refused;
}

void fake_nccl_break(void *comm, int result)
{
    fake_lock();
    for (communicator *c = fake.communicators; c != NULL; c = c->next)
        if (c == comm)
            c->async_error = result;
    fake_unlock();
}

int fail(communicator *comm, int result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(comm->last_error, sizeof comm->last_error, format, args);
    va_end(args);
    return result;
}

/* ---- the reset ---------------------------------------------------------------------------------------------------- */

static void forget_faults(void)
{
    pthread_mutex_lock(&control.lock);
    control.calls = 0;
    control.fails_nth = 0;
    control.has_failed = false;
    control.refused_nth = -1;
    memset(control.functions, 0, sizeof control.functions);
    pthread_mutex_unlock(&control.lock);
}

static void free_comm(communicator *comm)
{
    for (operation *o = comm->operations; o != NULL;) {
        operation *next = o->next;
        free(o);
        o = next;
    }
    free(comm);
}

static void free_dead(void)
{
    for (communicator **at = &fake.communicators; *at != NULL;) {
        communicator *comm = *at;
        if (!comm->dead || comm->running > 0) {
            at = &comm->next;
            continue;
        }
        *at = comm->next;
        comm->clique->members[comm->rank] = NULL;
        free_comm(comm);
    }
    for (clique **at = &fake.cliques; *at != NULL;) {
        clique *c = *at;
        bool used = false;
        for (int i = 0; i < FAKE_NCCL_RANKS; i++)
            used |= c->members[i] != NULL;
        if (used) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        end_meetings(c);
        free(c);
    }
}

unsigned fake_nccl_reset(void)
{
    fake_lock();
    free_dead();
    unsigned living = 0;
    fake_nccl_counts now = {0};
    for (communicator *c = fake.communicators; c != NULL; c = c->next)
        if (!c->dead) {
            living++;
            for (buffer *b = c->buffers; b != NULL; b = b->next)
                now.buffers += b->references;
            for (window *w = c->windows; w != NULL; w = w->next)
                now.windows++;
        }
    now.communicators = living;
    fake.counts = now;
    fake.set.version = 0;
    fake_unlock();
    forget_faults();
    forget_findings();
    return living;
}
