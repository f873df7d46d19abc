/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions: each on the thread of its stream, or all on one thread (serial_host); real drivers do either. */
#include "fake.h"

#include <stdlib.h>

typedef struct host_call {
    void (*function)(void *);
    void *argument;
    bool done;
    struct host_call *next;
} host_call;

/* Ready calls, first in, first out. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static host_call *first, **last = &first;
static bool served;

static void call(void (*function)(void *), void *argument)
{
    pthread_mutex_lock(&fake.lock);
    fake_thread *thread = fake_this_thread(); /* a new thread gets its number here */
    pthread_mutex_unlock(&fake.lock);
    bool before = thread->in_host_function;
    thread->in_host_function = true;
    function(argument);
    thread->in_host_function = before;
}

/* Never returns: the library stays loaded. */
static void *serve(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (first == NULL)
            pthread_cond_wait(&arrived, &lock);
        host_call *next = first;
        first = next->next;
        if (first == NULL)
            last = &first;
        pthread_mutex_unlock(&lock);
        call(next->function, next->argument);
        pthread_mutex_lock(&lock);
        next->done = true;
        pthread_cond_broadcast(&finished);
    }
    return NULL;
}

static void call_in_turn(void (*function)(void *), void *argument)
{
    host_call mine = {function, argument, false, NULL};
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (!served && pthread_create(&thread, NULL, serve, NULL) != 0)
        abort();
    if (!served)
        pthread_detach(thread);
    served = true;
    *last = &mine;
    last = &mine.next;
    pthread_cond_signal(&arrived);
    while (!mine.done)
        pthread_cond_wait(&finished, &lock);
    pthread_mutex_unlock(&lock);
}

void fake_call_host(void (*function)(void *), void *argument)
{
    if (fake.config.serial_host)
        call_in_turn(function, argument);
    else
        call(function, argument);
}
