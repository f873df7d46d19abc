/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of streams and the threads that run them. */
#include "fake.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

bool fake_is_reached(const fake_mark *mark)
{
    return mark->stream == NULL || mark->stream->completed >= mark->count;
}

void fake_await(fake_mark mark)
{
    while (!fake_is_reached(&mark))
        pthread_cond_wait(&fake.changed, &fake.lock);
}

/* In pieces: a range may span several mappings. */
static void fill(const fake_work *work)
{
    for (size_t done = 0, piece; done < work->bytes; done += piece) {
        piece = work->bytes - done;
        void *to = fake_memory_view(work->to + done, &piece);
        memset(to, work->value, piece);
    }
}

static void copy(const fake_work *work)
{
    for (size_t done = 0, piece; done < work->bytes; done += piece) {
        piece = work->bytes - done;
        void *to = fake_memory_view(work->to + done, &piece);
        const void *from = fake_memory_view(work->from + done, &piece);
        memmove(to, from, piece);
    }
}

/* The comparison is cyclic. */
static void wait_value(const fake_work *work)
{
    size_t bytes = sizeof work->min;
    const uint32_t *word = fake_memory_view(work->to, &bytes);
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_SEQ_CST) - work->min) < 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Without the lock. */
void fake_run(const fake_work *work)
{
    switch (work->kind) {
    case FAKE_NOTHING:
    case FAKE_LAUNCH: break;
    case FAKE_FILL: fill(work); break;
    case FAKE_COPY: copy(work); break;
    case FAKE_CALL: fake_call_host(work->function, work->argument); break;
    case FAKE_WAIT: wait_value(work); break;
    case FAKE_OPEN: fake_allocation_open(work->to); break;
    case FAKE_CLOSE: fake_allocation_close(work->to); break;
    case FAKE_KERNEL: fake_launch_run(work->launch); break;
    }
}

static void pause_at_random(uint64_t *random)
{
    if (fake.config.delay_us == 0 || fake_random(random) % 2 == 0)
        return;
    uint64_t pause_us = fake_random(random) % ((uint64_t)fake.config.delay_us + 1);
    struct timespec pause = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000 * 1000)};
    nanosleep(&pause, NULL);
}

/* With the lock, which is free while the work runs. */
static void perform(fake_stream *stream, fake_op *op)
{
    for (size_t i = 0; i < op->mark_count; i++)
        fake_await(op->marks[i]);
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    pthread_mutex_unlock(&fake.lock);
    pause_at_random(&stream->random);
    if (op->work.kind == FAKE_LAUNCH)
        fake_exec_run(op->work.exec, &stream->random);
    else
        fake_run(&op->work);
    pthread_mutex_lock(&fake.lock);
    fake_work_release(&op->work);
    stream->completed++;
    pthread_cond_broadcast(&fake.changed);
    free(op);
}

static void *serve(void *argument)
{
    fake_stream *stream = argument;
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* otherwise every pause is 50 us longer; in ns */
    pthread_mutex_lock(&fake.lock);
    (void)fake_this_thread(); /* gets its number */
    for (;;) {
        if (stream->head != NULL)
            perform(stream, stream->head);
        else if (stream->object.alive)
            pthread_cond_wait(&stream->arrived, &fake.lock);
        else
            break;
    }
    stream->served = false;
    fake.served_streams--;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

/* Starts the stream's thread with signals blocked, so that they go to the program's threads; faults stay
 * synchronous. */
static int start(fake_stream *stream)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t ours, theirs;
    sigfillset(&ours);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&ours, faults[i]);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &ours, &theirs);
    int reason = pthread_create(&thread, NULL, serve, stream);
    pthread_sigmask(SIG_SETMASK, &theirs, NULL);
    if (reason != 0)
        return OUT_OF_MEMORY;
    pthread_detach(thread);
    stream->served = true;
    fake.served_streams++;
    return OK;
}

/* Implicit synchronization: marks for which the legacy stream and blocking streams of a context wait. */
static size_t implied(const fake_stream *stream, fake_mark *marks)
{
    size_t count = 0;
    for (fake_stream *other = fake.streams; other != NULL; other = other->next) {
        bool related = other != stream && other->context == stream->context && !(other->flags & 1u) &&
                       !(stream->flags & 1u) && (stream->legacy || other->legacy);
        if (!related || other->completed == other->enqueued)
            continue;
        if (marks != NULL)
            marks[count] = (fake_mark){other, other->enqueued};
        count++;
    }
    return count;
}

int fake_enqueue(fake_stream *stream, const fake_work *work, const fake_mark *waits, size_t wait_count)
{
    if (!stream->served)
        FAKE_TRY(start(stream));
    size_t count = implied(stream, NULL);
    fake_op *op = fake_new(sizeof *op + (count + wait_count) * sizeof *op->marks);
    op->work = *work;
    (void)implied(stream, op->marks);
    for (size_t i = 0; i < wait_count; i++)
        op->marks[count + i] = waits[i];
    op->mark_count = count + wait_count;
    if (stream->tail != NULL)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    stream->enqueued++;
    pthread_cond_signal(&stream->arrived);
    return OK;
}
