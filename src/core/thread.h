/* Threads of the library. */
#ifndef BP_CORE_THREAD_H
#define BP_CORE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* The program's signals are its own threads' business; faults stay with the thread that makes them. Returns what pthread_create does. */
static inline int bp_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t ours, theirs;
    sigfillset(&ours);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&ours, faults[i]);
    pthread_sigmask(SIG_SETMASK, &ours, &theirs);
    int reason = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &theirs, NULL);
    return reason;
}

#endif
