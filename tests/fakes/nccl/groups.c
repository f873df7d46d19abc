/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: calls between start and end run at the end. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

typedef struct deferred {
    struct deferred *next;
    int (*work)(void *argument);
    bool waits;
    void *context; /* current at the call */
    pthread_t thread;
    int result;
    _Alignas(16) unsigned char argument[];
} deferred;

static _Thread_local struct {
    unsigned depth;
    deferred *first, **last;
} group;

static int defer(int (*work)(void *argument), const void *argument, size_t bytes, bool waits)
{
    deferred *d = calloc(1, sizeof *d + bytes);
    if (d == NULL)
        return NCCL_SYSTEM_ERROR;
    d->work = work;
    d->waits = waits;
    d->context = driver_current_context();
    memcpy(d->argument, argument, bytes);
    *(group.first == NULL ? &group.first : group.last) = d;
    group.last = &d->next;
    return NCCL_SUCCESS;
}

int do_or_defer(int (*work)(void *argument), const void *argument, size_t bytes, bool waits)
{
    if (group.depth > 0)
        return defer(work, argument, bytes, waits);
    void *copy = malloc(bytes);
    if (copy == NULL)
        return NCCL_SYSTEM_ERROR;
    memcpy(copy, argument, bytes);
    int result = work(copy);
    free(copy);
    return result;
}

static void *run_waiting(void *argument)
{
    deferred *d = argument;
    driver_set_context(d->context);
    d->result = d->work(d->argument);
    return NULL;
}

static void run_all(deferred *first)
{
    for (deferred *d = first; d != NULL; d = d->next)
        if (d->waits && pthread_create(&d->thread, NULL, run_waiting, d) != 0)
            abort();
    for (deferred *d = first; d != NULL; d = d->next)
        if (d->waits)
            pthread_join(d->thread, NULL);
    for (deferred *d = first; d != NULL; d = d->next)
        if (!d->waits)
            d->result = d->work(d->argument);
}

int ncclGroupStart(void)
{
    int result = enter("ncclGroupStart", NULL);
    if (result == NCCL_SUCCESS)
        group.depth++;
    return result;
}

int ncclGroupEnd(void)
{
    int result = enter("ncclGroupEnd", NULL);
    if (group.depth == 0)
        return NCCL_INVALID_USAGE;
    if (--group.depth > 0)
        return result;
    deferred *first = group.first;
    group.first = NULL;
    run_all(first);
    while (first != NULL) {
        deferred *next = first->next;
        result = result == NCCL_SUCCESS ? first->result : result;
        free(first);
        first = next;
    }
    return result;
}
